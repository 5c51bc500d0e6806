"""Hand-made runs in tables in memory: what came of each key, without any data or Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from group_models.keys import key_id
from group_models.ports import Commit, Tables
from group_models.tables import MANIFEST, PLAN, RUN, STORE

SET = "c.s.m"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def id_of(name: str) -> str:
    """Return the id of the key whose one column holds this text."""
    return key_id((name,))


_NAMES = {id_of(letter): letter for letter in "abcdefghijklmnopqrstuvwxyz"}


def by_name(of_keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from key ids as one from the letters of these keys."""
    return {_NAMES[each]: value for each, value in of_keys.items()}


def days_ago(count: float) -> float:
    """Return the day that is so many days before now, as `add_run` counts days."""
    return (dt.datetime.now(dt.UTC) - START) / dt.timedelta(days=1) - count


def add_run(
    tables: Tables,
    run_id: str,
    day: float,
    statuses: Mapping[str, str],
    *,
    previous: Mapping[str, str] | None = None,
    parents: Mapping[str, tuple[str, str]] | None = None,
    kinds: Mapping[str, str] | None = None,
    base: str | None = None,
    scope: str | None = None,
    copies: int = 1,
    mae: Mapping[str, float] | None = None,
    rmse: Mapping[str, float] | None = None,
    stops_after: str | None = None,
    spec: str | None = None,
) -> None:
    """Add a run of day `day` in which keys came to these statuses.

    Parameters
    ----------
    previous
        Key to the run whose model serves it on.
    parents
        Key to the run and key of the parent that its new model builds on.
    copies
        How often each manifest row stands there.
    mae, rmse
        Key to the error of its new model on the holdout.
    stops_after
        `waves` or `manifest`, after which the run stopped for good; by default it finished.
    spec
        The run's spec as JSON.
    """
    shared = {"model_set": SET, "run_id": run_id}
    at = START + dt.timedelta(days=day)
    run = {
        "at": at,
        "key_kinds": kinds or {"k": "string"},
        "base_release": base,
        "scope": scope,
        "spec": spec,
        **shared,
    }
    _append(tables, RUN, run_id, [{**run, "event": "started", "feature_kinds": {"x": "numeric"}}])
    keys = [{**shared, "key_id": id_of(k), "key": [("k", k)], "level": "k"} for k in statuses]
    _append(tables, PLAN, run_id, [{**row, "decision": "whole"} for row in keys])
    _append(tables, STORE, run_id, [_stored(run_id, k, status) for k, status in statuses.items()])
    if stops_after == "waves":
        return
    outcomes = [_outcome(run_id, k, status, previous or {}, parents or {}) for k, status in statuses.items()]
    rows = [{**row, **outcome, "finished_at": at} for row, outcome in zip(keys, outcomes, strict=True)]
    errors = {k: {"mae": error, **({"rmse": rmse[k]} if rmse else {})} for k, error in (mae or {}).items()}
    told = {id_of(k): _told(run_id, k, of_key) for k, of_key in errors.items()}
    rows = [{**row, **told.get(row["key_id"], {})} for row in rows]
    _append(tables, MANIFEST, run_id, rows * copies)
    if stops_after is None:
        _append(tables, RUN, run_id, [{**run, "event": "finished"}], number=1)


def _append(tables: Tables, table: Any, run_id: str, rows: list[dict[str, Any]], number: int = 0) -> None:
    assert tables.append(table, table.rows(rows), Commit(SET, run_id, number))


def _stored(run_id: str, key: str, status: str) -> dict[str, Any]:
    row = {"model_set": SET, "run_id": run_id, "key_id": id_of(key), "wave": 0, "number": 0, "part": -1, "format": 1}
    model = f"{key} of {run_id}".encode() if status == "trained" else None
    return {**row, "status": status, "data": model, "model_bytes": None if model is None else len(model)}


def _told(run_id: str, key: str, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return what a manifest row tells of a new model."""
    return {
        "estimator": "ridge",
        "params": [("alpha", "1.0")],
        "metrics": list(metrics.items()),
        "baseline_metrics": [(name, 2 * error) for name, error in metrics.items()],
        "holdout_from": START,
        "holdout_rows": 3,
        "model_bytes": 10,
        "sha256": f"{key} of {run_id}",
    }


def _outcome(
    run_id: str, key: str, status: str, previous: Mapping[str, str], parents: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    if status == "trained":
        of_run, of_key = parents.get(key, (None, None))
        parent = {"parent_run_id": of_run, "parent_key_id": of_key and id_of(of_key)}
        return {"status": status, "serves": "new", "model_run_id": run_id, **parent}
    if status == "to_parent":
        return {"status": "rejected", "serves": "parent"}
    if key in previous:
        return {"status": status, "serves": "previous", "model_run_id": previous[key]}
    return {"status": status, "serves": "none"}
