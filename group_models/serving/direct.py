"""The direct path: score a pandas frame here and now, each model fetched by whoever keeps it. No Spark, no MLflow."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from group_models.artifacts import StoredModel, load_model
from group_models.conformal import level_name, width_name
from group_models.errors import DataError, LibraryWarning
from group_models.estimators.bounded import bounds
from group_models.frames import feature_frame, key_values
from group_models.keys import Key, key_id, key_text
from group_models.labels import Labels, class_columns
from group_models.libraries import LoadNotes, TrainedBy, check_libraries, installed
from group_models.live.sets import Live
from group_models.serving.children import Segment, predict_children
from group_models.serving.resolving import (
    PLANNED,
    PROVENANCE,
    ScorePlan,
    check_missing,
    check_names,
    outputs_of,
    plan_scores,
)
from group_models.serving.statuses import NO_MODEL, SCORE_STATUSES, SCORED, Floats, no_predictions, predict_rows
from group_models.spec import Scoring
from group_models.tables import utc_now

Fetch: TypeAlias = Callable[[ScorePlan, LoadNotes], Iterator[tuple[dict[str, Any], StoredModel | None]]]
"""Yields each model of a plan with its row there; None for one that is missing or cannot be loaded."""


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


def compare_libraries(keys: Mapping[str, int], live: Live, rules: Scoring) -> None:
    """Say once, before anything is read, which models were trained with other libraries than are installed here.

    Parameters
    ----------
    keys
        Run to the number of keys of which its models are about to be read.

    Raises
    ------
    PlatformError
        There are some, and the spec says `scoring: {on_library_change: refuse}`.
    """
    runs = [TrainedBy(run_id, *live.run_libraries.get(run_id, ({}, ())), keys[run_id]) for run_id in sorted(keys)]
    check_libraries(runs, installed(), rules.on_library_change)


def plan_asked(counts: pa.Table, live: Live, rules: Scoring) -> ScorePlan:
    """Return which model each distinct key gets by a spec's rules, parents where they are to serve."""
    with_parents = rules.on_missing == "parent"
    return plan_scores(counts, live, now=utc_now(), max_age_days=rules.max_age_days, with_parents=with_parents)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A pandas frame whose keys are resolved: which model each key gets, and the key of each row."""

    frame: pd.DataFrame
    plan: ScorePlan
    codes: npt.NDArray[np.intp]
    passed: Sequence[str]


def resolve_frame(frame: pd.DataFrame, live: Live, ask: Ask) -> Asked:
    """Return which model each row of a frame gets; nothing is read yet.

    Raises
    ------
    DataError
        The frame does not fit the models, or `on_missing` is `raise` and keys have no model.
    """
    passed = list(frame.columns if ask.columns is None else ask.columns)
    check_columns_once(list(frame.columns))
    check_names(list(frame.columns), passed, ask.prefix, outputs_of(live.intervals, live.labels))
    keys = _row_keys(frame, live, ask.keys)
    codes, distinct = pd.factorize(pd.Series(keys, dtype=object))
    counts = _counts(list(distinct), codes, ask.keys)
    plan = plan_asked(counts, live, ask.scoring)
    if ask.scoring.on_missing == "raise":
        check_missing(plan)
    return Asked(frame, plan, codes, passed)


def answer_frame(asked: Asked, live: Live, ask: Ask, fetch: Fetch) -> pd.DataFrame:
    """Return a copy of the frame with the output columns, in its order and under its index.

    Raises
    ------
    DataError
        The frame lacks a feature, or has one of another kind.
    """
    plan, codes = asked.plan, asked.codes
    prediction, status = _predict_frame(asked, live, fetch)
    planned = plan.keys[PLANNED].to_numpy()[codes]
    final = np.where(status == SCORED, planned, status)
    labels = live.labels
    outputs: dict[str, Any] = {"score_status": np.array(SCORE_STATUSES, dtype=object)[final]}
    outputs |= {"prediction": prediction} if labels is None else _by_position(prediction, labels)
    outputs |= {name: plan.keys[name].to_numpy()[codes] for name in PROVENANCE}
    widths = {level_name(level): plan.keys[width_name(level)].to_numpy()[codes] for level in plan.intervals}
    outputs |= bounds(prediction, widths)
    names = outputs_of(plan.intervals, labels)
    added = pd.DataFrame({ask.prefix + name: outputs[name] for name in names}, index=asked.frame.index)
    return pd.concat([asked.frame[asked.passed], added], axis=1) if asked.passed else added


def _by_position(probabilities: Floats, labels: Labels) -> dict[str, Any]:
    """Return the columns of classes without an index: they are attached by position."""
    return {name: column.array for name, column in class_columns(probabilities, labels).items()}


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


def _predict_frame(asked: Asked, live: Live, fetch: Fetch) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return prediction (of classes the probabilities of all labels) and status code per row, by position."""
    frame, plan = asked.frame, asked.plan
    prediction = no_predictions(len(frame), live.labels)
    status = np.full(len(frame), SCORED, dtype=np.int64)
    model_ix = plan.keys["model_ix"].to_numpy()[asked.codes]
    runs = sorted(set(plan.models["run_id"].to_pylist()))
    x = {run_id: feature_frame(frame, live.run_features[run_id]) for run_id in runs}
    order = np.argsort(model_ix, kind="stable")
    starts = np.searchsorted(model_ix[order], np.arange(plan.models.num_rows + 1))
    notes, bases = LoadNotes(), dict[int, StoredModel | None]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row, model in fetch(plan, notes):
            rows = order[starts[row["model_ix"]] : starts[row["model_ix"] + 1]]
            if row["is_base"]:
                bases[row["model_ix"]] = model
            given = x[row["run_id"]].iloc[rows].reset_index(drop=True)
            if row["parent_ix"] == NO_MODEL:
                prediction[rows], status[rows] = predict_rows(model, given, live.labels)
            else:
                found = np.full(len(rows), np.nan), np.full(len(rows), SCORED, dtype=np.int32)
                own = [Segment(slice(0, len(rows)), row["run_ix"], row["parent_ix"], model)]
                predict_children(own, bases.get(row["parent_ix"]), given, *found)
                prediction[rows], status[rows] = found
    for said in notes.sentences():
        warnings.warn(said, LibraryWarning, stacklevel=2)
    return prediction, np.where(model_ix == NO_MODEL, SCORED, status)


def load_stored(row: Mapping[str, Any], notes: LoadNotes) -> StoredModel | None:
    """Return the model of a store row, its digest checked; None where there is none or it cannot be loaded."""
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
