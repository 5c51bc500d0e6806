"""Which metric a run's spec names: what is told first of its models, and what its keys are ordered by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from group_models.live.sets import read_runs
from group_models.ports import Tables
from group_models.spec import Metric

OLD_METRIC: Metric = "mae"
"""What was told first of runs whose spec names no metric: they are older than the field."""


def spec_metric(spec: Mapping[str, Any]) -> Metric:
    """Return the metric of a run's spec as the run table has it.

    Examples
    --------
    >>> spec_metric({"metric": "rmse"}), spec_metric({})
    ('rmse', 'mae')
    """
    return cast("Metric", spec.get("metric", OLD_METRIC))


def read_metric(tables: Tables, model_set: str, runs: Sequence[str]) -> Metric:
    """Return the metric of the one of these runs that started last; `OLD_METRIC` where there is none."""
    started = read_runs(tables, model_set)
    of_runs = started.filter(pc.is_in(started["run_id"], pa.array(runs, pa.string()))).sort_by("at")
    specs = of_runs["spec"].to_pylist()
    return spec_metric(json.loads(specs[-1] or "{}")) if specs else OLD_METRIC


def metric_first(metrics: Mapping[str, float], metric: str) -> dict[str, float]:
    """Return metrics with this one before the others.

    Examples
    --------
    >>> metric_first({"mae": 1.0, "rmse": 2.0, "bias": 0.0}, "rmse")
    {'rmse': 2.0, 'mae': 1.0, 'bias': 0.0}
    """
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: name != metric)}


def first_metric(rows: Sequence[Mapping[str, Any]]) -> Metric:
    """Return the first metric of manifest rows: that of their spec, where `metric_first` has ordered them.

    Examples
    --------
    >>> first_metric([{"metrics": None}, {"metrics": {"rmse": 2.0, "mae": 1.0}}]), first_metric([])
    ('rmse', 'mae')
    """
    return cast("Metric", next((next(iter(row["metrics"])) for row in rows if row["metrics"]), OLD_METRIC))
