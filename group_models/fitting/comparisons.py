"""How a model compares with others on rows that are never in one place: sums of batches, merged in any grouping."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping

import numpy as np

from group_models.comparing import DIFFERENCE, ERROR_OF_IT, ROWS, losses
from group_models.evaluation import Floats
from group_models.fitting.references import entries_of
from group_models.fitting.summing import RegressionSums
from group_models.spec import Metric


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `comparing.grouped_comparison` says of one key, as sums of its rows.

    Attributes
    ----------
    other
        The other model's sums, over the rows that it has a prediction of.
    difference, squared
        Over the same rows: the sums of the own model's loss less the other's, and of its square.
    """

    other: RegressionSums = dataclasses.field(default_factory=RegressionSums)
    difference: float = 0.0
    squared: float = 0.0

    @classmethod
    def of(cls, y: Floats, prediction: Floats, other: Floats, metric: Metric) -> Comparison:
        """Return the sums of one batch; rows without a prediction of the other model (NaN) are left out."""
        is_there = ~np.isnan(other)
        y, prediction, other = y[is_there], prediction[is_there], other[is_there]
        difference = losses(y, prediction, metric) - losses(y, other, metric)
        return cls(RegressionSums.of(y, other), float(difference.sum()), float(difference @ difference))

    def merge(self, more: Comparison) -> Comparison:
        """Return the sums of the rows of both."""
        return Comparison(self.other.merge(more.other), self.difference + more.difference, self.squared + more.squared)

    def values(self) -> dict[str, float]:
        """Return what is known of the key, under the names of `grouped_comparison`."""
        rows = self.other.count
        if not rows:
            return {ROWS: 0.0}
        mean = self.difference / rows
        variance = max(self.squared / rows - mean * mean, 0.0) / (rows - 1) if rows > 1 else math.nan
        return {**self.other.metrics(), DIFFERENCE: mean, ERROR_OF_IT: math.sqrt(variance), ROWS: float(rows)}


Comparisons = Mapping[str, Comparison]
"""By the name of the other model."""


def merged(first: Comparisons, second: Comparisons) -> dict[str, Comparison]:
    """Return the comparisons of the rows of both."""
    names = dict.fromkeys([*first, *second])
    return {name: first.get(name, Comparison()).merge(second.get(name, Comparison())) for name in names}


def entries(comparisons: Comparisons, rows: int) -> dict[str, float]:
    """Return the entries of `baseline_metrics` of a key with so many rows held out."""
    return entries_of({name: each.values() for name, each in comparisons.items()}, rows)


def to_text(comparisons: Comparisons) -> str:
    """Return comparisons as text that a Spark row carries; each number comes back exactly."""
    return json.dumps(
        {name: [dataclasses.astuple(c.other), c.difference, c.squared] for name, c in comparisons.items()}
    )


def from_text(text: str) -> dict[str, Comparison]:
    """Return the comparisons that `to_text` wrote."""
    return {name: Comparison(RegressionSums(*other), *sums) for name, (other, *sums) in json.loads(text).items()}
