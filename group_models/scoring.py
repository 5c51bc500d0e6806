"""Score a frame with the models of an alias or of a run: a Spark frame by streaming, a pandas frame directly."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from group_models.artifacts import StoredModel, load_model
from group_models.errors import DataError, LibraryWarning
from group_models.estimators import one_thread
from group_models.frames import check_columns, feature_frame, key_kind, key_values
from group_models.keys import Key, key_id, key_text
from group_models.libraries import LoadNotes, TrainedBy, check_libraries, installed
from group_models.live import Live
from group_models.ports import SparkFrame, Tables
from group_models.resolving import (
    OUTPUTS,
    PLANNED,
    PROVENANCE,
    Request,
    ScorePlan,
    check_inputs,
    check_missing,
    check_names,
    plan_scores,
)
from group_models.routing import NO_MODEL, SCORE_STATUSES, SCORED, predict_rows
from group_models.spec import Scoring
from group_models.tables import STORE, WHOLE, utc_now

OnMissing = Literal["null", "parent", "raise"]

_FETCH = ("run_id", "key_id", "number", "format", "data_file", "sha256", "data")
_FETCH_KEYS = 2_000
"""Models fetched at once by the direct path, so that its memory is bounded."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """How a frame is scored.

    Attributes
    ----------
    columns
        Input columns to pass by; None for all.
    prefix
        Put before the name of each output column.
    """

    keys: Sequence[str]
    scoring: Scoring
    columns: Sequence[str] | None = None
    prefix: str = ""


def score_spark(frame: SparkFrame, tables: Tables, model_set: str, live: Live, ask: Ask, slots: int) -> SparkFrame:
    """Return the frame's columns and the output columns, one row per row, lazily and in no order.

    Raises
    ------
    DataError
        The input does not fit the models, or `on_missing` is `raise` and keys have no model.
    """
    from group_models.adapters import spark_columns, spark_score
    from group_models.adapters.spark_errors import failing

    types = spark_columns.column_types(frame)
    passed = list(frame.columns if ask.columns is None else ask.columns)
    check_names(list(frame.columns), passed, ask.prefix)
    check_columns_once(list(frame.columns))
    check_keys(types, live, ask.keys)
    with failing("counting the input's keys"):
        counts = spark_score.count_keys(frame, ask.keys)
    plan = plan_scores(counts, live, now=utc_now(), max_age_days=ask.scoring.max_age_days)
    check_inputs(types, plan, live, keys=ask.keys)
    compare_libraries(plan, live, ask.scoring)
    if ask.scoring.on_missing == "raise":
        check_missing(plan)
    runs = sorted(set(plan.models["run_id"].to_pylist()))
    store = tables.scan(
        frame.sparkSession, STORE, columns=[*_FETCH, "part"], where={"model_set": [model_set], "run_id": runs}
    )
    request = Request(ask.keys, live.features(runs), passed, ask.prefix, slots)
    return spark_score.score_frame(frame, store, plan, request)


def compare_libraries(plan: ScorePlan, live: Live, rules: Scoring) -> None:
    """Say once, before anything is read, which models were trained with other libraries than are installed here.

    Raises
    ------
    PlatformError
        There are some, and the spec says `scoring: {on_library_change: refuse}`.
    """
    keys = Counter(plan.models["run_id"].to_pylist())
    runs = [TrainedBy(run_id, *live.run_libraries.get(run_id, ({}, ())), keys[run_id]) for run_id in sorted(keys)]
    check_libraries(runs, installed(), rules.on_library_change)


def check_columns_once(columns: Sequence[str]) -> None:
    """Refuse a frame in which a column name stands twice.

    Raises
    ------
    DataError
        It names the columns.
    """
    lower = [str(name).lower() for name in columns]
    doubled = sorted({str(name) for name in columns if lower.count(str(name).lower()) > 1})
    if doubled:
        raise DataError(f"the input has the column(s) {', '.join(map(repr, doubled))} more than once; rename them")


def check_keys(types: Mapping[str, str], live: Live, keys: Sequence[str]) -> None:
    """Refuse an input whose key columns are missing or of another type than the models' keys.

    Raises
    ------
    DataError
        Without this every row would be an unseen key.
    """
    mistakes = check_columns(types, keys=keys)
    for name in keys if not mistakes else ():
        wanted = live.key_kinds.get(name)
        if wanted is not None and key_kind(types[name]) != wanted:
            mistakes.append(
                f"key column {name!r} is {types[name]}, the models' keys are {wanted}; cast it in the input"
            )
    if mistakes:
        raise DataError("the input does not fit the models: " + "; ".join(mistakes))


def score_pandas(frame: pd.DataFrame, tables: Tables, model_set: str, live: Live, ask: Ask) -> pd.DataFrame:
    """Return a copy of a pandas frame with the output columns, in its order and under its index; no Spark job.

    Raises
    ------
    DataError
        As for a Spark frame.
    """
    passed = list(frame.columns if ask.columns is None else ask.columns)
    check_columns_once(list(frame.columns))
    check_names(list(frame.columns), passed, ask.prefix)
    keys = _row_keys(frame, live, ask.keys)
    codes, distinct = pd.factorize(pd.Series(keys, dtype=object))
    plan = plan_scores(
        _counts(list(distinct), codes, ask.keys), live, now=utc_now(), max_age_days=ask.scoring.max_age_days
    )
    if ask.scoring.on_missing == "raise":
        check_missing(plan)
    compare_libraries(plan, live, ask.scoring)
    prediction, status = _predict_frame(frame, tables, model_set, live, plan, codes)
    planned = plan.keys[PLANNED].to_numpy()[codes]
    final = np.where(status == SCORED, planned, status)
    outputs = {"prediction": prediction, "score_status": np.array(SCORE_STATUSES, dtype=object)[final]}
    outputs |= {name: plan.keys[name].to_pandas().to_numpy()[codes] for name in PROVENANCE}
    added = pd.DataFrame({ask.prefix + name: outputs[name] for name in OUTPUTS}, index=frame.index)
    return pd.concat([frame[passed], added], axis=1)


def _row_keys(frame: pd.DataFrame, live: Live, keys: Sequence[str]) -> list[Key]:
    lacking = [name for name in keys if name not in frame.columns]
    if lacking:
        raise DataError(f"the frame lacks the key column(s) {', '.join(map(repr, lacking))}")
    columns = [key_values(frame[name], live.key_kinds[name]) for name in keys]
    return list(zip(*columns, strict=True))


def _counts(distinct: Sequence[Key], codes: npt.NDArray[np.intp], names: Sequence[str]) -> pa.Table:
    """Return the distinct keys of a frame as `plan_scores` takes them."""
    texts = [[key_text(value) for value in key] for key in distinct]
    columns = {f"k{i}": pa.array([row[i] for row in texts], pa.string()) for i in range(len(names))}
    columns["key_id"] = pa.array([key_id(key) for key in distinct], pa.string())
    pairs = [list(zip(names, row, strict=True)) for row in texts]
    columns["key"] = pa.array(pairs, pa.map_(pa.string(), pa.string()))
    columns["rows"] = pa.array(np.bincount(codes, minlength=len(distinct)), pa.int64())
    return pa.table(columns)


def _predict_frame(
    frame: pd.DataFrame,
    tables: Tables,
    model_set: str,
    live: Live,
    plan: ScorePlan,
    codes: npt.NDArray[np.intp],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return prediction and status code per row, by position."""
    prediction = np.full(len(frame), np.nan)
    status = np.full(len(frame), SCORED, dtype=np.int64)
    model_ix = plan.keys["model_ix"].to_numpy()[codes]
    runs = sorted(set(plan.models["run_id"].to_pylist()))
    x = {run_id: feature_frame(frame, live.run_features[run_id]) for run_id in runs}
    order = np.argsort(model_ix, kind="stable")
    starts = np.searchsorted(model_ix[order], np.arange(plan.models.num_rows + 1))
    notes = LoadNotes()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row, model in _fetched(tables, model_set, plan, notes):
            rows = order[starts[row["model_ix"]] : starts[row["model_ix"] + 1]]
            prediction[rows], status[rows] = predict_rows(model, x[row["run_id"]].iloc[rows].reset_index(drop=True))
    for said in notes.sentences():
        warnings.warn(said, LibraryWarning, stacklevel=2)
    return prediction, np.where(model_ix == NO_MODEL, SCORED, status)


def _fetched(
    tables: Tables, model_set: str, plan: ScorePlan, notes: LoadNotes
) -> Iterator[tuple[dict[str, Any], StoredModel | None]]:
    """Yield each model of the plan, read in chunks; None for one that cannot be loaded."""
    for start in range(0, plan.models.num_rows, _FETCH_KEYS):
        wanted = plan.models.slice(start, _FETCH_KEYS)
        where = {
            "model_set": [model_set],
            "run_id": sorted(set(wanted["run_id"].to_pylist())),
            "key_id": wanted["key_id"].to_pylist(),
            "part": [WHOLE],
        }
        rows = tables.read(STORE, columns=_FETCH, where=where).to_pylist()
        found = {(row["run_id"], row["key_id"], row["number"]): row for row in rows}
        for row in wanted.to_pylist():
            stored = found.get((row["run_id"], row["key_id"], row["number"]))
            yield row, None if stored is None else _loaded({**stored, "sha256": row["sha256"]}, notes)


def _loaded(row: Mapping[str, Any], notes: LoadNotes) -> StoredModel | None:
    if row["data"] is None:
        return None
    label = f"the model of key {row['key_id']} of run {row['run_id']}"
    try:
        with notes.reading(label):
            return load_model(
                row["data"], format=row["format"], data_file=row["data_file"], sha256=row["sha256"], what=label
            )
    except Exception:  # noqa: BLE001 - whatever a stored model raises, its own rows are `model_failed`
        return None
