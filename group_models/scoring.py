"""Score a frame with the models of an alias or of a run: a Spark frame by streaming, a pandas frame directly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from group_models.artifacts import StoredModel
from group_models.errors import DataError
from group_models.estimators.base import one_thread
from group_models.frames import check_columns, key_kind
from group_models.libraries import LoadNotes
from group_models.live.sets import Live
from group_models.ports import SparkFrame, Tables
from group_models.serving.direct import (
    Ask,
    answer_frame,
    check_columns_once,
    compare_libraries,
    load_stored,
    plan_asked,
    resolve_frame,
)
from group_models.serving.resolving import Request, ScorePlan, check_inputs, check_missing, check_names, outputs_of
from group_models.tables import STORE, WHOLE

OnMissing = Literal["null", "parent", "raise"]

_FETCH = ("run_id", "key_id", "number", "format", "data_file", "sha256", "data")
_FETCH_KEYS = 2_000
"""Models fetched at once by the direct path, so that its memory is bounded."""


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
    check_names(list(frame.columns), passed, ask.prefix, outputs_of(live.intervals, live.labels))
    check_columns_once(list(frame.columns))
    check_keys(types, live, ask.keys)
    with failing("counting the input's keys"):
        counts = spark_score.count_keys(frame, ask.keys)
    plan = plan_asked(counts, live, ask.scoring)
    check_inputs(types, plan, live, keys=ask.keys)
    compare_libraries(Counter(plan.models["run_id"].to_pylist()), live, ask.scoring)
    if ask.scoring.on_missing == "raise":
        check_missing(plan)
    runs = sorted(set(plan.models["run_id"].to_pylist()))
    store = tables.scan(
        frame.sparkSession, STORE, columns=[*_FETCH, "part"], where={"model_set": [model_set], "run_id": runs}
    )
    request = Request(ask.keys, live.features(runs), passed, ask.prefix, slots, live.labels)
    return spark_score.score_frame(frame, store, plan, request)


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
    asked = resolve_frame(frame, live, ask)
    compare_libraries(Counter(asked.plan.models["run_id"].to_pylist()), live, ask.scoring)

    def fetch(plan: ScorePlan, notes: LoadNotes) -> Iterator[tuple[dict[str, Any], StoredModel | None]]:
        return _fetched(tables, model_set, plan, notes)

    with one_thread():
        return answer_frame(asked, live, ask, fetch)


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
            yield row, None if stored is None else load_stored({**stored, "sha256": row["sha256"]}, notes)
