"""Whether the models of a run, or of a live set, pay: read from the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from group_models.keys import level_name
from group_models.live.gating import values
from group_models.live.metrics import read_metric
from group_models.live.sets import read_key_kinds
from group_models.ports import Tables, Where
from group_models.spec import Metric
from group_models.tables import MANIFEST
from group_models.verdicts import Verdict, judge

TRIED = ("trained", "rejected")
"""Statuses of keys with a new model: rejected ones too, or a verdict would be one on those that passed a gate."""

_READ = ("key_id", "level", "status", "metrics", "baseline_metrics", "holdout_rows")


def verdict_of(rows: pa.Table, metric: Metric) -> Verdict | None:
    """Return whether the models of manifest rows (columns `metrics, baseline_metrics, holdout_rows`) pay."""
    held = rows["holdout_rows"].cast(pa.float64()).to_numpy(zero_copy_only=False)
    names = {"median": metric, "parent": f"parent_{metric}", "global": f"global_{metric}"}
    others = {name: values(rows["baseline_metrics"], entry) for name, entry in names.items()}
    others = {name: found for name, found in others.items() if np.isfinite(found).any()}
    return judge(np.nan_to_num(held), values(rows["metrics"], metric), others, metric)


def read_verdict(tables: Tables, model_set: str, run_id: str) -> Verdict | None:
    """Return whether the models that a run trained for keys pay, None where none was measured."""
    where: Where = {"model_set": [model_set], "run_id": [run_id]}
    rows = tables.read(MANIFEST, columns=_READ, where={**where, "status": list(TRIED)})
    own = level_name(list(read_key_kinds(tables, model_set, [run_id])))
    return verdict_of(rows.filter(pc.equal(rows["level"], own)), read_metric(tables, model_set, [run_id]))


def verdict_facts(verdict: Verdict | None) -> dict[str, str]:
    """Return a verdict as fact and text; nothing where there is none."""
    if verdict is None:
        return {}
    beside = ", ".join(f"{each.name} {each.other:.4g} ({each.change:+.1%})" for each in verdict.against.values())
    return {"verdict": verdict.sentence(), "simpler models": f"{verdict.metric} {beside}"}


def verdict_of_rows(rows: Sequence[Mapping[str, Any]], metric: Metric) -> Verdict | None:
    """Return whether the models of manifest rows in Python pay."""
    names = ("metrics", "baseline_metrics", "holdout_rows")
    maps = pa.map_(pa.string(), pa.float64())
    columns = [[list((row[n] or {}).items()) if n != "holdout_rows" else row[n] for row in rows] for n in names]
    types = (maps, maps, pa.int64())
    return verdict_of(pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names), metric)
