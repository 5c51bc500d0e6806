"""The sides of what parents cost: a fleet alone, without fits, and with a parent of all rows, baselines and gates."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.target_sides import data_beside, train

GATED = {"levels": [[]], "gates": {"parent": {"standard_errors": 1e6}, "max_metric": 1e9}}
"""A parent of all rows, beside which every key is measured, and gates that each of them passes."""


def train_alone(job: Job) -> Outcome:
    """Train all keys, without parents."""
    return train(job, spec_beside(job))


def train_floor(job: Job) -> Outcome:
    """The same run without fits: the median per key."""
    return train(job, spec_beside(job) | {"estimator": "median"})


def train_gated(job: Job) -> Outcome:
    """Train a parent and all keys, compare them, and let gates judge."""
    return train(job, spec_beside(job) | GATED)


def spec_beside(job: Job) -> dict[str, Any]:
    """Return the spec of the workload over rows that other sides use too, made by who comes first."""
    data = data_beside(job, job.workload)
    if not data.is_made:
        data.make(job.workload)
    return job.workload.spec(data.rows, job.out)
