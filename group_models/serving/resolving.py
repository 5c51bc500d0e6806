"""Resolve the keys of an input to models: which model serves each key, and what its rows will say."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from group_models.conformal import bounds_of, width_name
from group_models.errors import DataError
from group_models.frames import ColumnKind, base_type, column_kind, none_where
from group_models.keys import show_key
from group_models.labels import PROBABILITIES, Labels
from group_models.live.parents import serving_parents
from group_models.live.sets import Live, age_days
from group_models.serving.bases import MODELS, bases_first, has_base
from group_models.serving.routing import Inputs
from group_models.serving.statuses import NO_MODEL, SCORE_STATUSES, SCORED

PREDICTION, STATUS, PLANNED = "prediction", "status", "planned"

PROVENANCE = ("model_level", "model_key", "model_run_id", "model_age_days", "model_status")
OUTPUTS = (PREDICTION, *PROVENANCE, "score_status")
"""Columns that scoring adds, in order; of classes see `outputs_of`."""


def outputs_of(intervals: Sequence[float], labels: Labels | None = None) -> tuple[str, ...]:
    """Return the columns that scoring adds, in order, with the bounds of these levels after the prediction.

    Of classes the probabilities are there.
    """
    beside = bounds_of(intervals) if labels is None else (PROBABILITIES,)
    return (PREDICTION, *beside, *OUTPUTS[1:])


_WITHOUT_MODEL = ("unseen_key", "no_model", "null_key")
_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Request:
    """What a caller asks of a scoring: columns in, columns passed by, how the outputs are named.

    Attributes
    ----------
    features
        The feature columns that the models need, in the order that `Inputs.positions` count.
    passed
        Input columns to pass by, exactly as they are.
    prefix
        Put before the name of each output column.
    slots
        Tasks that run at the same time.
    labels
        Where models are of classes, the labels of which each row gets probabilities.
    """

    keys: Sequence[str]
    features: Mapping[str, ColumnKind]
    passed: Sequence[str]
    prefix: str
    slots: int
    labels: Labels | None = None


@dataclasses.dataclass(frozen=True)
class ScorePlan:
    """Which model each key of an input gets.

    Attributes
    ----------
    keys
        One row per distinct key of the input: `k0.., key_id, key, rows, key_ix int, model_ix int, planned int`
        (the `SCORE_STATUSES` code of a row whose prediction works), and the `PROVENANCE` columns.
    models
        One row per model that some row needs, in order of `model_ix`: `run_id, key_id, number, sha256, model_bytes,
        model_ix, run_ix`, and `parent_ix`, the model that it builds on (`NO_MODEL` for none); the digest is the
        manifest's. Models that others build on come first, and `is_base` says which these are.
    inputs
        Per run code, the features of the run's models.
    intervals
        The levels of the bounds that rows get; per level `keys` has the column `half_width_...`.
    """

    keys: pa.Table
    models: pa.Table
    inputs: Mapping[int, Inputs]
    intervals: Sequence[float] = ()


def plan_scores(
    counts: pa.Table, live: Live, *, now: dt.datetime, max_age_days: float | None, with_parents: bool = False
) -> ScorePlan:
    """Return which model each distinct key gets.

    Parameters
    ----------
    counts
        One row per distinct key of the input: `k0.., key_id, key (map), rows`.
    live
        The live set to score with.
    max_age_days
        Age from which a model's rows are `too_old` (they still have a prediction).
    with_parents
        Keys without a model get that of their most specific parent that has one.
    """
    ids = pd.Index(counts["key_id"].to_pandas())
    at = live.keys.index.get_indexer(ids)
    own, is_known = _rows_of(live, at, ids), at >= 0
    served = _with_parents(counts, at, live) if with_parents else at
    known = own if served is at else _rows_of(live, served, ids)
    is_parents = served != at
    run = none_where(known["model_run_id"], served < 0)
    has_model = ~pd.isna(run)
    age = np.where(has_model, age_days(known["trained_at"], now), np.nan)
    is_stored = has_model & known["number"].notna().to_numpy() & has_base(known)
    models, model_ix, inputs = _models(run, known, is_stored, live)
    planned = _planned(counts, is_known, has_model, is_stored, age, max_age_days)
    planned = np.where(is_parents & (planned == SCORED), SCORE_STATUSES.index("parent"), planned)
    keys = counts.append_column("key_ix", pa.array(np.arange(counts.num_rows), pa.int32()))
    added = {
        "model_ix": pa.array(model_ix, pa.int32()),
        PLANNED: pa.array(planned, pa.int32()),
        "model_level": pa.array(none_where(known["level"], ~has_model), pa.string()),
        "model_key": pa.array(none_where(known["key_json"], ~has_model), pa.string()),
        "model_run_id": pa.array(run, pa.string()),
        "model_age_days": pa.array(age, pa.float64(), from_pandas=True),
        "model_status": pa.array(none_where(own["status"], ~is_known), pa.string()),
    }
    for name in map(width_name, live.intervals):
        widths = np.where(has_model, known[name].to_numpy(np.float64), np.nan)
        added[name] = pa.array(widths, pa.float64(), from_pandas=True)
    for name, values in added.items():
        keys = keys.append_column(name, values)
    return ScorePlan(keys, models, inputs, live.intervals)


def _rows_of(live: Live, at: npt.NDArray[np.intp], ids: pd.Index) -> pd.DataFrame:
    """Return the rows of the live set at these places; any row where the place is none."""
    return live.keys.take(np.where(at < 0, 0, at)) if len(live.keys) else live.keys.reindex(ids)


def _with_parents(counts: pa.Table, at: npt.NDArray[np.intp], live: Live) -> npt.NDArray[np.intp]:
    """Return the places in the live set of what serves each key: of those without a model, of their parent."""
    has_model = live.keys["model_run_id"].notna().to_numpy()
    lacks = (at < 0) | ~has_model[at] if len(has_model) else at < 0
    if not live.levels.parents or not lacks.any():
        return at
    parents = serving_parents(live, map(dict, counts["key"].filter(pa.array(lacks)).to_pylist()))
    found = live.keys.index.get_indexer(pd.Index(parents, dtype=object))
    served = at.copy()
    served[lacks] = np.where(found < 0, at[lacks], found)
    return served


def _models(
    run: npt.NDArray[np.object_],
    known: pd.DataFrame,
    is_stored: npt.NDArray[np.bool_],
    live: Live,
) -> tuple[pa.Table, npt.NDArray[np.int64], dict[int, Inputs]]:
    """Return the models that are needed, the model of each key, and the inputs of each run; a parent's is one model."""
    ix, serving = pd.factorize(known.index.to_numpy(object)[is_stored])
    first = np.flatnonzero(is_stored)[np.unique(ix, return_index=True)[1]]
    own = known.iloc[first]
    served = pd.DataFrame({
        "run_id": run[first], "key_id": serving, "number": own["number"].to_numpy().astype(np.int64),
        "sha256": own["sha256"].to_numpy(dtype=object), "model_bytes": own["model_bytes"].fillna(0).to_numpy(np.int64),
    })  # fmt: skip
    table, places = bases_first(served, own)
    model_ix = np.full(len(run), NO_MODEL, dtype=np.int64)
    model_ix[is_stored] = places[ix]
    runs = sorted(set(table["run_id"]))
    code = {run_id: i for i, run_id in enumerate(runs)}
    table["model_ix"], table["run_ix"] = np.arange(len(table)), [code[r] for r in table["run_id"]]
    models = pa.Table.from_pandas(table, MODELS, preserve_index=False)
    names = list(live.features(runs))
    inputs = {
        code[r]: Inputs(live.run_features[r], tuple(names.index(name) for name in live.run_features[r])) for r in runs
    }
    return models, model_ix, inputs


def _planned(
    counts: pa.Table,
    is_known: npt.NDArray[np.bool_],
    has_model: npt.NDArray[np.bool_],
    is_stored: npt.NDArray[np.bool_],
    age: npt.NDArray[np.float64],
    max_age_days: float | None,
) -> npt.NDArray[np.int64]:
    code = SCORE_STATUSES.index
    columns = [name for name in counts.column_names if name[0] == "k" and name[1:].isdigit()]
    has_null = np.zeros(counts.num_rows, dtype=bool)
    for name in columns:
        has_null |= counts[name].is_null().to_numpy()
    planned = np.where(is_known, code("no_model"), np.where(has_null, code("null_key"), code("unseen_key")))
    planned = np.where(~has_model & has_null, code("null_key"), planned)
    is_old = has_model & (age > max_age_days) if max_age_days is not None else np.zeros_like(has_model)
    planned = np.where(has_model, np.where(is_old, code("too_old"), code("scored")), planned)
    return np.where(has_model & ~is_stored, code("model_failed"), planned)


def check_missing(plan: ScorePlan) -> None:
    """Refuse an input that has keys without a model (`on_missing: raise`), before anything heavy.

    Raises
    ------
    DataError
        It names a few keys and counts keys and rows.
    """
    codes = [SCORE_STATUSES.index(status) for status in _WITHOUT_MODEL]
    lacking = plan.keys.filter(pa.array(np.isin(plan.keys[PLANNED].to_numpy(), codes)))
    if not lacking.num_rows:
        return
    some = "; ".join(
        f"{show_key(dict(row['key']))} ({SCORE_STATUSES[row[PLANNED]]})" for row in lacking.slice(0, _NAMED).to_pylist()
    )
    more = f" and {lacking.num_rows - _NAMED} more" if lacking.num_rows > _NAMED else ""
    raise DataError(
        f"{lacking.num_rows} key(s) of the input, {sum(lacking['rows'].to_pylist()):,} rows, have no model, and "
        f"on_missing is raise: {some}{more}. Train them, or say on_missing: null."
    )


def check_inputs(columns: Mapping[str, str], plan: ScorePlan, live: Live, *, keys: Sequence[str]) -> None:
    """Refuse an input that lacks columns, or has them in another kind than the models were trained on.

    Parameters
    ----------
    columns
        Name to Spark type of the input.

    Raises
    ------
    DataError
        Every such column with the runs whose models need it.
    """
    mistakes = [f"key column {name!r} is missing" for name in keys if name not in columns]
    runs = sorted(set(plan.models["run_id"].to_pylist()))
    for name, kind in live.features(runs).items():
        needed = [run_id for run_id in runs if name in live.run_features[run_id]]
        where = f"needed by the models of run {', '.join(needed[:3])}{' and others' if len(needed) > 3 else ''}"
        if name not in columns:
            mistakes.append(f"feature column {name!r} is missing ({where})")
        elif column_kind(columns[name]) != kind:
            said = f"{name!r} is {columns[name]}, trained as {kind} ({where})"
            hint = "cast it to a number" if base_type(columns[name]) == "string" else f"give it as {kind}"
            mistakes.append(f"feature column {said}: {hint} in the input")
    if mistakes:
        raise DataError("the input does not fit the models: " + "; ".join(mistakes))


def check_names(columns: Sequence[str], passed: Sequence[str], prefix: str, outputs: Sequence[str] = OUTPUTS) -> None:
    """Refuse an input whose passed columns would meet an output column.

    Raises
    ------
    DataError
        It names the columns and the way out.
    """
    lacking = [name for name in passed if name not in columns]
    if lacking:
        raise DataError(f"cannot pass by {', '.join(map(repr, lacking))}: the input has no such column")
    taken = {(prefix + name).lower() for name in outputs}
    met = [name for name in passed if str(name).lower() in taken]
    if met:
        raise DataError(
            f"the input already has the column(s) {', '.join(map(repr, met))}, which scoring writes; "
            "give a prefix for the output columns (`--prefix`, prefix=), or leave them out"
        )
