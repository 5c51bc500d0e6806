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
        Over the same rows: the sums of the own model's loss less the other's times the row's weight, and of its square.
    crossed, weights
        The sums of that difference times the squared weight, and of the squared weights; without weights all are 1.
    """

    other: RegressionSums = dataclasses.field(default_factory=RegressionSums)
    difference: float = 0.0
    squared: float = 0.0
    crossed: float = 0.0
    weights: float = 0.0

    @classmethod
    def of(
        cls, y: Floats, prediction: Floats, other: Floats, metric: Metric, weight: Floats | None = None
    ) -> Comparison:
        """Return the sums of one batch; rows without a prediction of the other model (NaN) are left out."""
        is_there = ~np.isnan(other)
        y, prediction, other = y[is_there], prediction[is_there], other[is_there]
        difference = losses(y, prediction, metric) - losses(y, other, metric)
        if metric == "log_loss":
            # What it is measured by are means of these alone.
            y, other = np.zeros(len(y)), losses(y, other, metric)
        if weight is None:
            total = float(difference.sum())
            return cls(RegressionSums.of(y, other), total, float(difference @ difference), total, float(len(y)))
        weight = weight[is_there]
        weighted = difference * weight
        sums = (weighted.sum(), weighted @ weighted, weighted @ weight, weight @ weight)
        return cls(RegressionSums.of(y, other, weight), *map(float, sums))

    def merge(self, more: Comparison) -> Comparison:
        """Return the sums of the rows of both."""
        names = ("difference", "squared", "crossed", "weights")
        sums = {name: getattr(self, name) + getattr(more, name) for name in names}
        return Comparison(self.other.merge(more.other), **sums)

    def values(self, metric: Metric = "mae") -> dict[str, float]:
        """Return what is known of the key, under the names of `grouped_comparison`."""
        rows = self.other.count
        if not rows:
            return {ROWS: 0.0}
        total = self.other.weight
        mean = self.difference / total
        squared = max(self.squared - 2 * mean * self.crossed + mean * mean * self.weights, 0.0)
        error = math.sqrt(squared * rows / (rows - 1)) / total if rows > 1 else math.nan
        found = self.other.metrics()
        found = {"log_loss": found["mae"]} if metric == "log_loss" else found
        return {**found, DIFFERENCE: mean, ERROR_OF_IT: error, ROWS: float(rows)}


Comparisons = Mapping[str, Comparison]
"""By the name of the other model."""


def merged(first: Comparisons, second: Comparisons) -> dict[str, Comparison]:
    """Return the comparisons of the rows of both."""
    names = dict.fromkeys([*first, *second])
    return {name: first.get(name, Comparison()).merge(second.get(name, Comparison())) for name in names}


def entries(comparisons: Comparisons, rows: int, metric: Metric = "mae") -> dict[str, float]:
    """Return the entries of `baseline_metrics` of a key with so many rows held out."""
    return entries_of({name: each.values(metric) for name, each in comparisons.items()}, rows)


def to_text(comparisons: Comparisons) -> str:
    """Return comparisons as text that a Spark row carries; each number comes back exactly."""
    return json.dumps({name: list(dataclasses.astuple(comparison)) for name, comparison in comparisons.items()})


def from_text(text: str) -> dict[str, Comparison]:
    """Return the comparisons that `to_text` wrote."""
    return {name: Comparison(RegressionSums(*other), *sums) for name, (other, *sums) in json.loads(text).items()}
