"""Whether the models of a run, or of a live set, pay: read from the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from group_models.comparing import simplest
from group_models.keys import level_name
from group_models.live.gating import values
from group_models.live.manifest import FITTING
from group_models.live.metrics import first_metric, read_metric
from group_models.live.sets import read_key_kinds
from group_models.ports import Tables, Where
from group_models.spec import Metric
from group_models.tables import MANIFEST
from group_models.verdicts import Verdict, judge

_READ = ("key_id", "level", "status", "metrics", "baseline_metrics", "holdout_rows")


def verdict_of(rows: pa.Table, metric: Metric) -> Verdict | None:
    """Return whether the models of manifest rows (columns `metrics, baseline_metrics, holdout_rows`) pay."""
    held = rows["holdout_rows"].cast(pa.float64()).to_numpy(zero_copy_only=False)
    names = {simplest(metric): metric, "parent": f"parent_{metric}", "global": f"global_{metric}"}
    others = {name: values(rows["baseline_metrics"], entry) for name, entry in names.items()}
    others = {name: found for name, found in others.items() if np.isfinite(found).any()}
    return judge(np.nan_to_num(held), values(rows["metrics"], metric), others, metric)


def read_verdict(tables: Tables, model_set: str, run_id: str) -> Verdict | None:
    """Return whether the models that a run trained for keys pay, None where none was measured.

    Rejected ones count too, or the verdict would be one on those that passed a gate.
    """
    where: Where = {"model_set": [model_set], "run_id": [run_id]}
    rows = tables.read(MANIFEST, columns=_READ, where={**where, "status": list(FITTING)})
    own = level_name(list(read_key_kinds(tables, model_set, [run_id])))
    return verdict_of(rows.filter(pc.equal(rows["level"], own)), read_metric(tables, model_set, [run_id]))


def verdict_facts(verdict: Verdict | None) -> dict[str, str]:
    """Return a verdict as fact and text; nothing where there is none."""
    if verdict is None:
        return {}
    beside = ", ".join(f"{each.name} {each.other:.4g} ({each.change:+.1%})" for each in verdict.against.values())
    return {"verdict": verdict.sentence(), "simpler models": f"{verdict.metric} {beside}"}


def verdict_of_rows(rows: Sequence[Mapping[str, Any]], metric: Metric | None = None) -> Verdict | None:
    """Return whether the models of manifest rows in Python pay, by a metric or by the one that they tell first."""
    maps = pa.map_(pa.string(), pa.float64())
    columns = {
        name: pa.array([list((row[name] or {}).items()) for row in rows], maps)
        for name in ("metrics", "baseline_metrics")
    }
    columns["holdout_rows"] = pa.array([row["holdout_rows"] for row in rows], pa.int64())
    return verdict_of(pa.table(columns), metric or first_metric(rows))
