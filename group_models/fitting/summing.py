"""The metrics of a holdout that is never in one place: sums of its batches, merged in any grouping.

Mean and squared deviations of the target are merged by the formula of Chan, Golub and LeVeque (1979, "Updating
formulae and a pairwise algorithm for computing sample variances"), which loses nothing where the mean is large
beside the spread. So that the means lose nothing either, they are kept as distances from an origin: a target of
the batch, from which its other targets differ by little.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from group_models.evaluation import Floats


@dataclasses.dataclass(frozen=True)
class RegressionSums:
    """What `evaluation.regression_metrics` needs of any number of rows, in eleven numbers that can be added up.

    The fields are plain numbers, so that a Spark row carries them (`pair_columns`).

    Attributes
    ----------
    count
        Rows, those included whose prediction is not finite.
    not_finite
        Rows whose prediction is not finite; they are in no other sum.
    error, abs_error, squared_error
        Sums of prediction minus target, of its size and of its square.
    origin, mean, squared_deviation
        A target, the mean of all targets less that one, and the sum of squared distances from the mean.
    low, high
        Smallest and largest target.
    weight
        Sum of the weights of the rows whose prediction is finite, their number where they have none; all sums and
        means are weighted.

    Examples
    --------
    >>> sums = RegressionSums.of(np.array([1.0]), np.array([2.0])).add(np.array([3.0]), np.array([3.0]))
    >>> sums.metrics()
    {'mae': 0.5, 'rmse': 0.7071067811865476, 'r2': 0.5, 'bias': 0.5}
    """

    count: int = 0
    not_finite: int = 0
    error: float = 0.0
    abs_error: float = 0.0
    squared_error: float = 0.0
    origin: float = 0.0
    mean: float = 0.0
    squared_deviation: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    weight: float = 0.0

    @classmethod
    def of(cls, y: Floats, prediction: Floats, weight: Floats | None = None) -> RegressionSums:
        """Return the sums of one batch of finite targets and their predictions."""
        is_finite = np.isfinite(prediction)
        wrong = len(y) - int(np.count_nonzero(is_finite))
        if wrong:
            y, prediction = y[is_finite], prediction[is_finite]
            weight = None if weight is None else weight[is_finite]
        if not len(y):
            return cls(count=wrong, not_finite=wrong)
        error, origin = prediction - y, float(y[0])
        distance = y - origin
        if weight is not None:
            return cls._weighted(error, distance, weight, origin, wrong)
        mean = float(distance.mean())
        centred = distance - mean
        return cls(
            count=len(y) + wrong,
            not_finite=wrong,
            error=float(error.sum()),
            abs_error=float(np.abs(error).sum()),
            squared_error=float(error @ error),
            origin=origin,
            mean=mean,
            squared_deviation=float(centred @ centred),
            low=float(y.min()),
            high=float(y.max()),
            weight=float(len(y)),
        )

    @classmethod
    def _weighted(cls, error: Floats, distance: Floats, weight: Floats, origin: float, wrong: int) -> RegressionSums:
        total = float(weight.sum())
        mean = float(distance @ weight) / total
        centred = distance - mean
        return cls(
            count=len(error) + wrong,
            not_finite=wrong,
            error=float(error @ weight),
            abs_error=float(np.abs(error) @ weight),
            squared_error=float((error * weight) @ error),
            origin=origin,
            mean=mean,
            squared_deviation=float((centred * weight) @ centred),
            low=origin + float(distance.min()),
            high=origin + float(distance.max()),
            weight=total,
        )

    def add(self, y: Floats, prediction: Floats) -> RegressionSums:
        """Return the sums with one more batch."""
        return self.merge(self.of(y, prediction))

    def merge(self, other: RegressionSums) -> RegressionSums:
        """Return the sums of the rows of both."""
        here, there = self.weight, other.weight
        if not here or not there:
            return dataclasses.replace(
                self if here else other,
                count=self.count + other.count,
                not_finite=self.not_finite + other.not_finite,
            )
        apart = (other.origin - self.origin) + (other.mean - self.mean)
        share = there / (here + there)
        between = apart * apart * here * share
        return RegressionSums(
            count=self.count + other.count,
            not_finite=self.not_finite + other.not_finite,
            error=self.error + other.error,
            abs_error=self.abs_error + other.abs_error,
            squared_error=self.squared_error + other.squared_error,
            origin=self.origin,
            mean=self.mean + apart * share,
            squared_deviation=self.squared_deviation + other.squared_deviation + between,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            weight=here + there,
        )

    def metrics(self) -> dict[str, float]:
        """Return `mae, rmse, r2, bias` as `evaluation.regression_metrics` defines them; {} for no rows."""
        if not self.count:
            return {}
        if self.not_finite:
            return dict.fromkeys(("mae", "rmse", "r2", "bias"), math.nan)
        return {
            "mae": self.abs_error / self.weight,
            "rmse": math.sqrt(self.squared_error / self.weight),
            "r2": self._r2(),
            "bias": self.error / self.weight,
        }

    def _r2(self) -> float:
        # Squares of tiny distances may all be rounded to zero.
        if self.low == self.high or self.squared_deviation == 0.0:
            return 1.0 if self.squared_error == 0.0 else 0.0
        return 1.0 - self.squared_error / self.squared_deviation


_SPARK_TYPES = {"int": "bigint", "float": "double"}
_FIELDS = {field.name: _SPARK_TYPES[str(field.type)] for field in dataclasses.fields(RegressionSums)}
_MODEL, _BASELINE = "m_", "b_"

PAIR_TYPES = {f"{side}{name}": kind for side in (_MODEL, _BASELINE) for name, kind in _FIELDS.items()}
"""The sums of a model and of its baseline as columns of one Spark row: name to type."""


def pair_columns(model: RegressionSums, baseline: RegressionSums) -> dict[str, float]:
    """Return the sums of a model and of its baseline as columns `PAIR_TYPES`."""
    values = (*dataclasses.astuple(model), *dataclasses.astuple(baseline))
    return dict(zip(PAIR_TYPES, values, strict=True))


def pair_of(row: Mapping[str, Any]) -> tuple[RegressionSums, RegressionSums]:
    """Return the sums of a model and of its baseline from a row with columns `PAIR_TYPES`."""
    model, baseline = ({name: row[f"{side}{name}"] for name in _FIELDS} for side in (_MODEL, _BASELINE))
    return RegressionSums(**model), RegressionSums(**baseline)
