"""The sides of what importance and intervals cost: a fleet of which nothing is told, and one of which both are."""

from __future__ import annotations

from tests.benchmarks.level_sides import spec_beside
from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.target_sides import train

TOLD = {"importance": "auto", "intervals": [0.5, 0.9]}


def train_plain(job: Job) -> Outcome:
    """Train all keys without importance and intervals."""
    return train(job, spec_beside(job) | {"importance": "none"})


def train_told(job: Job) -> Outcome:
    """Train all keys with both."""
    return train(job, spec_beside(job) | TOLD)
