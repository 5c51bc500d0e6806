"""The manifest as `show` lists it: every known key, one row each, and what serves it now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from group_models.live import Live
from group_models.ports import Tables
from group_models.tables import MANIFEST

_MAPS = ("key", "params", "metrics", "baseline_metrics")


def newest_rows(tables: Tables, model_set: str, live: Live) -> list[dict[str, Any]]:
    """Return the newest published manifest row of each key, `serves` and `model_run_id` as the live set has them.

    `pinned_run_id` is added: the run that the key is pinned to, or None. A key that no published run knows has the
    row of that run.
    """
    pinned = pd.Series(dict(live.pinned), dtype=object).reindex(live.keys.index)
    newest = live.keys["newest_run_id"].where(live.keys["newest_run_id"].notna(), pinned)
    rows = _without_doubles(_of_runs(tables, model_set, sorted(set(newest))))
    at = _index(rows).get_indexer(pd.MultiIndex.from_arrays([newest, live.keys.index]))
    shown = _plain(rows.take(pa.array(at)) if len(at) else rows.slice(0, 0))
    serving = zip(live.keys["model_run_id"], [live.pinned.get(key_id) for key_id in live.keys.index], strict=True)
    return [_as_live(row, *served) for row, served in zip(shown, serving, strict=True)]


def run_rows(tables: Tables, model_set: str, run_id: str) -> list[dict[str, Any]]:
    """Return the manifest rows of one run as they are."""
    return _plain(_without_doubles(_of_runs(tables, model_set, [run_id])))


def _of_runs(tables: Tables, model_set: str, runs: Sequence[str]) -> pa.Table:
    return tables.read(MANIFEST, where={"model_set": [model_set], "run_id": list(runs)}) if runs else MANIFEST.empty()


def _index(rows: pa.Table) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows.select(["run_id", "key_id"]).to_pandas())


def _without_doubles(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(~_index(rows).duplicated()))


def _as_live(row: dict[str, Any], model_run_id: Any, pinned_run_id: str | None) -> dict[str, Any]:
    has_model = not pd.isna(model_run_id)
    if not has_model:
        serves = "parent" if row["serves"] == "parent" else "none"
    else:
        serves = "new" if model_run_id == row["run_id"] else "previous"
    live = {"serves": serves, "model_run_id": model_run_id if has_model else None, "pinned_run_id": pinned_run_id}
    return {**row, **live}


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    return [
        {name: dict(value) if name in _MAPS and value is not None else value for name, value in row.items()}
        for row in rows.to_pylist()
    ]


def failures(tables: Tables, model_set: str, run_id: str) -> dict[str, int]:
    """Return a run's keys with an error, counted by its class and its stage where that is known, most first."""
    where = {"model_set": [model_set], "run_id": [run_id]}
    rows = tables.read(MANIFEST, columns=["error_stage", "error_type"], where=where).to_pylist()
    named = [(row["error_type"], row["error_stage"]) for row in rows if row["error_type"]]
    counts = Counter(f"{kind} in {stage}" if stage else kind for kind, stage in named)
    return dict(counts.most_common())


def worst(rows: Sequence[dict[str, Any]], count: int, metric: str = "mae") -> list[dict[str, Any]]:
    """Return the rows with the highest metric on their holdout, worst first; rows without one are left out."""
    measured = [row for row in rows if row["metrics"] and metric in row["metrics"]]
    values = np.array([row["metrics"][metric] for row in measured])
    return [measured[i] for i in np.argsort(-values, kind="stable")[:count]]


def worst_of_run(tables: Tables, model_set: str, run_id: str, count: int) -> list[Mapping[str, Any]]:
    """Return the worst rows of a run, read from the columns that decide and only then whole."""
    where = {"model_set": [model_set], "run_id": [run_id]}
    metrics = tables.read(MANIFEST, columns=["key_id", "metrics"], where=where)
    measured = metrics.filter(pc.is_valid(metrics["metrics"])).to_pylist()
    ranked = worst([{**row, "metrics": dict(row["metrics"])} for row in measured], count)
    ids = [row["key_id"] for row in ranked]
    found = {row["key_id"]: row for row in _plain(tables.read(MANIFEST, where={**where, "key_id": ids}))} if ids else {}
    return [found[key_id] for key_id in ids]
