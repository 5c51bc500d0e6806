"""A run as one HTML page: read from the tables, its worst keys looked at closely where the source can be read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.errors import DataError, GroupModelsError, LibraryWarning, StateError
from group_models.keys import KeyTexts, parse_key
from group_models.live.sets import Live, read_run
from group_models.ports import Tables
from group_models.reporting import tracking
from group_models.reporting.page.closeups import Observed
from group_models.reporting.page.fleet import Floats
from group_models.reporting.page.page import Page, check_installed, close_ups, render, worst_keys
from group_models.reporting.page.reading import PageData, read_histories, read_page
from group_models.spec import Scoring
from group_models.targets import SpecLike, find_target, unknown_key

MAX_KEY_ROWS = 5_000
"""Rows of a key that are scored for its charts, drawn by lot."""

_MAX_FEATURES = 40
"""Features up to which importance is measured by shuffling them one by one."""


Predict: TypeAlias = Callable[[pd.DataFrame], Floats]

_OF_PARENT = Observed(why_not="A parent's rows are not shown beside predictions: their keys' own models predict them.")

_KEY_ID = "group_models key_id"
"""Column beside the source's own that says whose row it is."""


def report(
    spec: SpecLike,
    *,
    run_id: str | None = None,
    keys: Sequence[str | Mapping[str, Any]] = (),
    worst: int = 5,
    output: str | Path | None = None,
    warehouse: str | None = None,
) -> Page:
    """Return a run (by default the newest that finished) as one self-contained HTML page, and write it if asked.

    Parameters
    ----------
    keys, worst
        Keys that are looked at closely: those named, and so many of those with the highest errors. Their rows are
        shown beside predictions where the source is a local one of Parquet files; Spark is never started.
    output
        File to write.

    Raises
    ------
    StateError
        There is no such run, or it does not have a key that is named.
    PlatformError
        A library of the `report` extra is not installed.
    GroupModelsError
        The file cannot be written.
    """
    check_installed()
    model_set, tables, _ = find_target(spec, warehouse)
    run_id = run_id or tracking.newest_finished(tables, model_set)
    page = make_page(tables, model_set, run_id, keys=keys, worst=worst)
    if output is not None:
        page.write(output)
    return page


def make_page(
    tables: Tables,
    model_set: str,
    run_id: str,
    *,
    keys: Sequence[str | Mapping[str, Any]] = (),
    worst: int = 5,
) -> Page:
    """Return the page of a run from its tables; what it raises is what `report` does."""
    data = read_page(tables, model_set, run_id)
    wanted = list(dict.fromkeys([*(_known(key, data) for key in keys), *worst_keys(data, worst)]))
    if not wanted:
        return render(data)
    observed = observe(tables, data, wanted)
    return render(data, close_ups(data, wanted, read_histories(tables, model_set, wanted), observed))


def _known(key: str | Mapping[str, Any], data: PageData) -> str:
    identity = parse_key(key, data.kinds, [tuple(each) for each in data.spec.get("levels") or ()])
    if identity not in set(data.keys["key_id"]):
        raise StateError(unknown_key(data.model_set, data.run_id, key, identity))
    return identity


def observe(tables: Tables, data: PageData, key_ids: Sequence[str]) -> dict[str, Observed]:
    """Return the rows of some keys beside what their models predict, or of each why there are none."""
    try:
        return _observed(tables, data, key_ids)
    except GroupModelsError as e:
        why = f"Its rows are not shown beside predictions: {e}."
        return dict.fromkeys(key_ids, Observed(why_not=why))


def _observed(tables: Tables, data: PageData, key_ids: Sequence[str]) -> dict[str, Observed]:
    spec = data.spec
    source = spec.get("source") or {}
    if source.get("path") is None or source.get("format") not in (None, "parquet"):
        raise DataError(f"the source ({data.started['source']}) is not one of Parquet files, and Spark is not started")
    if spec.get("task", "regression") != "regression":
        raise DataError("only those of regressions are")
    live = read_run(tables, data.model_set, data.run_id)
    keys = data.own.set_index("key_id")["key"]
    found = {key_id: _rows_of(keys[key_id], _features(live, key_id), data) for key_id in key_ids if key_id in keys}
    scored = _scored(_predictor(tables, data.model_set, live), data, found) if found else {}
    return {key_id: scored.get(key_id, _OF_PARENT) for key_id in key_ids}


def _features(live: Live, key_id: str) -> list[str]:
    """Return the features of a key's model, or of all that could serve it where it has none of its own."""
    run_id = str(live.keys["model_run_id"].get(key_id))
    return list(live.run_features[run_id] if run_id in live.run_features else live.features(list(live.run_features)))


def _rows_of(key: KeyTexts, features: Sequence[str], data: PageData) -> pd.DataFrame:
    """Return the usable rows of a key, some of them by lot where they are many."""
    from group_models.adapters.parquet_rows import read_rows

    target, time = data.spec["target"], data.spec.get("time_column")
    columns = dict.fromkeys([*data.kinds, *features, target, *([time] if time else [])])
    rows = read_rows(data.spec["source"]["path"], [key], data.kinds, list(columns))
    usable: pd.DataFrame = rows[np.isfinite(pd.to_numeric(rows[target], errors="coerce").to_numpy(dtype=np.float64))]
    return usable if len(usable) <= MAX_KEY_ROWS else usable.sample(MAX_KEY_ROWS, random_state=0)


def _scored(predict: Predict, data: PageData, found: Mapping[str, pd.DataFrame]) -> dict[str, Observed]:
    """Return the keys' rows with predictions: all keys at once, so that each model is fetched once."""
    frames = [rows.assign(**{_KEY_ID: key_id}) for key_id, rows in found.items()]
    rows = pd.concat(frames, ignore_index=True)
    if rows.empty:
        return dict.fromkeys(found, _of_key(pd.DataFrame({"y": []}), pd.DataFrame()))
    y = pd.to_numeric(rows[data.spec["target"]]).to_numpy(dtype=np.float64)
    seen = pd.DataFrame({"y": y, "prediction": predict(rows)})
    if time := data.spec.get("time_column"):
        seen["at"] = pd.to_datetime(rows[time], utc=True, errors="coerce")
    shuffled = pd.DataFrame(index=rows.index)
    is_untold = ~rows[_KEY_ID].isin(_told(data))
    if is_untold.any():
        untold = rows[is_untold]
        shuffled = _shuffled_errors(untold, y[is_untold.to_numpy()], predict, data.spec["features"])
    return {key_id: _of_key(seen[rows[_KEY_ID] == key_id], shuffled) for key_id in found}


def _told(data: PageData) -> list[str]:
    """Return the keys of whose models importance is stored: of the others it is measured by shuffling."""
    return [str(row.key_id) for row in data.own[["key_id", "importance"]].itertuples() if row.importance]


def _predictor(tables: Tables, model_set: str, live: Live) -> Predict:
    """Return what gives a frame's predictions by these models."""
    from group_models.scoring import score_pandas
    from group_models.serving.direct import Ask

    ask = Ask(list(live.key_kinds), Scoring(), columns=())

    def predict(rows: pd.DataFrame) -> Floats:
        with warnings.catch_warnings():
            # What the libraries say of old models is said by `score`; here it would be said once per feature.
            warnings.simplefilter("ignore", LibraryWarning)
            return score_pandas(rows, tables, model_set, live, ask)["prediction"].to_numpy(dtype=np.float64)

    return predict


def _shuffled_errors(rows: pd.DataFrame, y: Floats, predict: Predict, features: Sequence[str]) -> pd.DataFrame:
    """Return the absolute error of each row where one feature is shuffled among the rows of its key, by feature."""
    if len(features) > _MAX_FEATURES:
        return pd.DataFrame(index=rows.index)
    order = _within_keys(rows[_KEY_ID])
    shuffled = {name: rows.assign(**{name: rows[name].to_numpy()[order]}) for name in features if name in rows}
    return pd.DataFrame({name: np.abs(predict(other) - y) for name, other in shuffled.items()}, index=rows.index)


def _within_keys(key_ids: pd.Series) -> npt.NDArray[np.intp]:
    """Return an order of rows that puts each one in the place of another one of its key, by lot."""
    lots = np.random.default_rng(0).random(len(key_ids))
    order = np.empty(len(key_ids), dtype=np.intp)
    for at in key_ids.groupby(key_ids).indices.values():
        order[at] = at[np.argsort(lots[at])]
    return order


def _of_key(seen: pd.DataFrame, shuffled: pd.DataFrame) -> Observed:
    if seen.empty:
        return Observed(why_not="The source has no usable row of this key now.")
    rows = seen[np.isfinite(seen["prediction"].to_numpy())]
    if rows.empty:
        return Observed(why_not="No row of this key has a prediction.")
    error = float(np.abs(rows["prediction"] - rows["y"]).mean())
    # Of a key of whose model it is stored nothing was shuffled.
    rises = (shuffled.reindex(rows.index).mean() - error).dropna()
    return Observed(rows.reset_index(drop=True), {str(name): float(rise) for name, rise in rises.items()})
