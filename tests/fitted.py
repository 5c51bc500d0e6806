"""Trained runs in tables, with models that predict and without Spark: key `k` of slope s predicts s * x."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from group_models.estimators.base import EstimatorSettings
from group_models.keys import key_id
from group_models.ports import Commit, Tables
from group_models.tables import MANIFEST, NEW_MODEL, PLAN, RUN, STORE
from tests.cases.worlds import fit_keys

SET = "zrl.ml.eta"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LINEAR = EstimatorSettings(name="linear")


def spec(warehouse: Any, **changes: Any) -> dict[str, Any]:
    """Return a spec of these runs; its source is never read."""
    return {
        "model_set": SET,
        "source": {"path": "never-read.parquet"},
        "keys": ["k"],
        "target": "y",
        "features": ["x"],
        "estimator": "linear",
        "warehouse": str(warehouse),
        **changes,
    }


def add_run(
    tables: Tables,
    run_id: str,
    day: float,
    slopes: Mapping[str, float],
    *,
    base: str | None = None,
    failed: Iterable[str] = (),
    estimator: EstimatorSettings = LINEAR,
    beside: Mapping[str, tuple[float, float, float]] = MappingProxyType({}),
    spec: str = '{"estimator": {"name": "linear"}}',
    columns: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Add a finished run of all keys: a model per slope, and keys that failed.

    Of an estimator of classes a slope is the x from which a row has the second label.
    `beside` has for keys the rows on which they were compared with what served, and the error of the new and the old.
    `columns` are the same in the rows of all keys that were trained.
    """
    at = START + dt.timedelta(days=day)
    shared = {"model_set": SET, "run_id": run_id}
    event = {
        **shared, "at": at, "base_release": base, "key_kinds": {"k": "string"}, "feature_kinds": {"x": "numeric"},
        "spec": spec, "versions": {}, "source": "path: never-read.parquet",
    }  # fmt: skip
    fitted = _fitted(slopes, estimator)
    for name, (count, new, old) in beside.items():
        compared = {"champion_rows": count, "champion_mae": old, "champion_difference": new - old}
        fitted[name]["baseline_metrics"] = {**fitted[name]["baseline_metrics"], **compared}
    rows = {
        name: {**row, **shared, "number": 0, "wave": 0, "finished_at": at, **columns} for name, row in fitted.items()
    }
    rows |= {name: {"status": "failed", "reason": "it was told to", **_of_key(name), **shared} for name in failed}
    labels = None if estimator.labels is None else estimator.labels.to_json()
    _append(tables, RUN, run_id, [{**event, "event": "started", "labels": labels}])
    _append(tables, PLAN, run_id, [{**_of_key(name), **shared, "decision": "whole"} for name in rows])
    _append(tables, STORE, run_id, [_only(STORE, row) for row in rows.values() if row["status"] in NEW_MODEL])
    _append(tables, MANIFEST, run_id, [_only(MANIFEST, {**row, **_outcome(row)}) for row in rows.values()])
    finished = {**event, "event": "finished", "counts": {"trained": len(slopes)}, "seconds": {"train": 1.5}}
    _append(tables, RUN, run_id, [{**finished, "at": at + dt.timedelta(minutes=3), "waves": 1}], number=1)


def _fitted(slopes: Mapping[str, float], estimator: EstimatorSettings) -> dict[str, dict[str, Any]]:
    x = np.tile(np.arange(10.0), len(slopes))
    names = np.repeat(list(slopes), 10)
    given = np.repeat(list(slopes.values()), 10)
    y = x * given if estimator.labels is None else (x >= given).astype(float)
    held = np.tile(np.arange(10) >= 8, len(slopes))
    rows = fit_keys(pd.DataFrame({"x": x}), y, keys=names, is_holdout=held, estimator=estimator)
    ids = {key_id((name,)): name for name in slopes}
    return {ids[row["key_id"]]: {**row, **_of_key(ids[row["key_id"]])} for row in rows}


def _of_key(name: str) -> dict[str, Any]:
    return {"key_id": key_id((name,)), "key": [("k", name)], "level": "k"}


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    is_trained = row["status"] in NEW_MODEL
    return {"serves": "new" if is_trained else "none", "model_run_id": row["run_id"] if is_trained else None}


def _only(table: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if _is_null(value) else value for name, value in row.items() if name in table.names}


def _is_null(value: Any) -> bool:
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _append(tables: Tables, table: Any, run_id: str, rows: list[dict[str, Any]], number: int = 0) -> None:
    assert tables.append(table, table.rows(rows), Commit(SET, run_id, number))
