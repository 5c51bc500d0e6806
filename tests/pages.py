"""Hand-made runs of many keys for the report: two nights whose keys are good, bad, gone and oddly named."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import numpy as np

from group_models.keys import key_id
from group_models.ports import Commit, Tables
from group_models.tables import MANIFEST, PLAN, RELEASE, RUN, STORE

SET = "zrl.ml.eta"
START = dt.datetime(2026, 3, 1, 2, tzinfo=dt.UTC)
KINDS = {"carrier": "string", "lane": "string"}
ODD = "<script>alert(1)</script>"
"""A carrier's name that must stay a name."""

CARRIERS = ("UA", "AA", "DL", "B6", "EV", "9E", ODD, "</script><b>bold", "Ærø & 'søn\" \u2028 \U0001f69a", "=cmd()")

_SPEC: dict[str, Any] = {
    "model_set": SET, "target": "transit_h", "keys": list(KINDS), "features": ["x1", "x2"], "refit": True,
    "estimator": {"name": "ridge", "params": {"alpha": 1.0}}, "source": {"path": "never-read.parquet"},
}  # fmt: skip


def add_nights(tables: Tables, keys: int, **changes: Any) -> None:
    """Add the runs `night-1` and `night-2` of so many keys; the second has some new keys and lacks some old ones."""
    add_night(tables, "night-1", 0, range(keys), alpha=1.0, **changes)
    add_night(tables, "night-2", 1, range(keys // 100, keys + keys // 100), alpha=3.0, **changes)


def add_night(tables: Tables, run_id: str, day: int, numbers: range, *, alpha: float, **changes: Any) -> None:
    """Add one finished and published run; `changes` go into its spec."""
    shared, at = {"model_set": SET, "run_id": run_id}, START + dt.timedelta(days=day)
    spec = {**_SPEC, **changes, "estimator": {"name": "ridge", "params": {"alpha": alpha}}}
    event = {
        **shared, "at": at, "key_kinds": KINDS, "feature_kinds": {"x1": "numeric", "x2": "numeric"},
        "spec": json.dumps(spec), "versions": {"numpy": "2.3.4"}, "source": "path: never-read.parquet",
    }  # fmt: skip
    rows = [_outcome(number, day, at, alpha) for number in numbers]
    plan = [{"decision": "whole", "unit": row["unit"], "wave": row["wave"], **_named(row), **shared} for row in rows]
    for entry, row in zip(plan, rows, strict=True):
        entry |= {"predicted_seconds": 0.004, "rows": row["rows"], "n_parts": 1}
    _append(tables, RUN, run_id, [{**event, "event": "started"}])
    _append(tables, PLAN, run_id, plan)
    _append(tables, STORE, run_id, [_stored(row, shared) for row in rows])
    _append(tables, MANIFEST, run_id, [{**row, **shared, "model_run_id": _model_run(row, run_id)} for row in rows])
    seconds = {"measure": 8.0, "train": 41.0, "write": 3.0}
    finished = {**event, "event": "finished", "seconds": seconds, "rows": sum(row["rows"] for row in rows)}
    _append(tables, RUN, run_id, [{**finished, "at": at + dt.timedelta(minutes=2), "waves": 2}], number=1)
    release = {"release_id": f"of-{run_id}", "alias": "champion", "action": "publish", "by": "nightly"}
    at = at + dt.timedelta(minutes=3)
    tables.append(RELEASE, RELEASE.rows([{**release, **shared, "at": at}]), Commit(SET, "log", day))


def key_of(number: int) -> dict[str, str | None]:
    """Return the key of this number; every fiftieth has no lane."""
    lane = None if number % 50 == 49 else f"{number % 97:02d}-{number:05d}"
    carrier = CARRIERS[number % len(CARRIERS)]
    return {"carrier": f"{carrier}{number}" if lane is None else carrier, "lane": lane}


def _named(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("key_id", "key", "level")}


def _outcome(number: int, day: int, at: dt.datetime, alpha: float) -> dict[str, Any]:
    key, dice = key_of(number), np.random.default_rng([number, day])
    rows = int(30 + 4000 * dice.pareto(2.0))
    row: dict[str, Any] = {
        "key_id": key_id(tuple(key.values())), "key": list(key.items()), "level": "carrier,lane", "rows": rows,
        "usable_rows": rows, "unit": number % 16, "wave": number % 2, "attempt": 0, "status": "trained",
        "serves": "new",
    }  # fmt: skip
    if number % 40 == 7:
        return {**row, "status": "too_small", "serves": "none", "reason": f"{number % 30} usable rows; min_rows is 30"}
    seconds = float(0.001 + rows * 1e-6 * dice.uniform(0.8, 1.5))
    started = at + dt.timedelta(seconds=float(number % 500) / 100)
    row |= {"fit_seconds": seconds, "cpu_seconds": seconds, "started_at": started, "estimator": "ridge", "seed": number}
    row |= {"finished_at": started + dt.timedelta(seconds=seconds), "rows_used": rows}
    if number % 60 == 11:
        said = f"column 'x{number % 2 + 1}' holds {number % 9 + 2} infinite values"
        failure = {"error_type": "DataError", "error_message": said, "error_stage": "prepare"}
        return {**row, **failure, "status": "failed", "serves": "previous" if day else "none", "reason": said}
    if number % 400 == 13:
        return {**row, "status": "timed_out", "serves": "none", "reason": "the fit took over 600 s", "error_type": None}
    base = 2 + 3 * dice.gamma(3.0)
    mae = float(base * (0.55 + 4 / np.sqrt(rows) + 0.12 * dice.standard_normal()))
    told = {"mae": abs(mae), "rmse": abs(mae) * 1.3, "r2": float(1 - (mae / base) ** 2), "bias": float(dice.normal())}
    row |= {
        "metrics": list(told.items()),
        "baseline_metrics": [("mae", float(base)), ("rmse", float(base) * 1.4)],
        "holdout_rows": rows // 5,
    }
    return {
        **row,
        "params": [("alpha", str(alpha)), ("random_state", str(number))],
        "model_bytes": 700,
        "policy": "whole",
    }


def _model_run(row: dict[str, Any], run_id: str) -> str | None:
    return {"new": run_id, "previous": "night-1"}.get(row["serves"])


def _stored(row: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name in STORE.names}
    return {**kept, **shared, "number": 0, "part": -1, "format": 2}


def _append(tables: Tables, table: Any, run_id: str, rows: list[dict[str, Any]], number: int = 0) -> None:
    assert tables.append(table, table.rows(rows), Commit(SET, run_id, number))
