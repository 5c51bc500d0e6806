"""The metrics of classifiers on a holdout that is never in one place: sums of its batches, merged in any grouping."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Self

import numpy as np

from group_models.class_metrics import confusion, confusion_entries, log_losses, of_own_label, scores
from group_models.evaluation import Floats
from group_models.labels import best

NAMES = ("log_loss", "accuracy", "f1")
"""What can be told from sums; `auc` needs all rows in one place."""


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """What `class_metrics` needs of any number of rows but for `auc`, in numbers that can be added up.

    Attributes
    ----------
    names
        The labels of the set.
    count
        Rows, those included that have no probability.
    not_finite
        Rows without; they are in no other sum.
    loss, weight
        Sums of the log losses times the rows' weights, and of the weights.
    rows, weights
        Rows, and their weights, by actual and predicted label, row by row of the matrix.

    Examples
    --------
    >>> sums = ClassSums.of(np.array([0.0]), np.array([[1.0, 0.0]]), ("a", "b"))
    >>> sums.merge(ClassSums.of(np.array([1.0]), np.array([[1.0, 0.0]]), ("a", "b"))).metrics()["accuracy"]
    0.5
    """

    names: tuple[str, ...] = ()
    count: int = 0
    not_finite: int = 0
    loss: float = 0.0
    weight: float = 0.0
    rows: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, y: Floats, matrix: Floats, names: tuple[str, ...], weight: Floats | None = None) -> Self:
        """Return the sums of one batch of labels, as places in `names`, and their probabilities."""
        is_finite = np.isfinite(matrix).all(axis=1)
        each = (np.ones(len(y)) if weight is None else weight)[is_finite]
        count, y, matrix = len(y), y[is_finite], matrix[is_finite]
        actual, predicted = y.astype(np.int64), best(matrix)
        return cls(
            names, count, count - len(y), float(log_losses(of_own_label(matrix, y)) @ each), float(each.sum()),
            tuple(confusion(actual, predicted, len(names)).ravel().tolist()),
            tuple(confusion(actual, predicted, len(names), each).ravel().tolist()),
        )  # fmt: skip

    def merge(self, other: Self) -> Self:
        """Return the sums of the rows of both."""
        if not self.count or not other.count:
            return self if self.count else other
        return dataclasses.replace(
            self,
            count=self.count + other.count,
            not_finite=self.not_finite + other.not_finite,
            loss=self.loss + other.loss,
            weight=self.weight + other.weight,
            rows=_added(self.rows, other.rows),
            weights=_added(self.weights, other.weights),
        )

    def metrics(self) -> dict[str, float]:
        """Return `log_loss, accuracy, f1` and confusion counts as `class_metrics` defines them; {} for no rows."""
        if not self.count:
            return {}
        if self.not_finite:
            return dict.fromkeys(NAMES, math.nan)
        shape = (len(self.names), len(self.names))
        rows, weights = (np.reshape(each, shape) for each in (self.rows, self.weights))
        return {"log_loss": self.loss / self.weight, **scores(weights), **confusion_entries(rows, self.names)}

    def to_text(self) -> str:
        """Return the sums as text that a Spark row carries; each number comes back exactly."""
        return json.dumps(dataclasses.astuple(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the sums that `to_text` wrote."""
        names, count, not_finite, loss, weight, rows, weights = json.loads(text)
        return cls(tuple(names), count, not_finite, loss, weight, tuple(rows), tuple(weights))


def _added(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(first + second for first, second in zip(one, other, strict=True))
