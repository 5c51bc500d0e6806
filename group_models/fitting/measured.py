"""What was measured of a model on rows that are in no one place, and how it crosses from one place to another."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeAlias

import pandas as pd

from group_models.evaluation import Floats
from group_models.fitting.class_sums import ClassSums
from group_models.fitting.comparisons import Comparisons, from_text, merged, to_text
from group_models.fitting.intervals import Residuals
from group_models.fitting.summing import PAIR_TYPES, RegressionSums, pair_columns, pair_of
from group_models.labels import Labels

FAILURE = ("status", "reason", "error_type", "error_message", "error_stage", "traceback")
"""Columns of a store row that say how the measuring of an ensemble failed."""

COMPARED, CLASSES, RESIDUALS = "compared", "classes", "residuals"

MEASURED_TYPES = {
    **PAIR_TYPES, COMPARED: "string", CLASSES: "string", RESIDUALS: "binary", **dict.fromkeys(FAILURE, "string"),
}  # fmt: skip
"""What was measured as columns of one Spark row: name to type."""

Sums: TypeAlias = RegressionSums | ClassSums


def sums_of(y: Floats, prediction: Floats, labels: Labels | None, weight: Floats | None) -> Sums:
    """Return the sums of one batch: of numbers, or of probabilities of labels."""
    if labels is None:
        return RegressionSums.of(y, prediction, weight)
    return ClassSums.of(y, prediction, labels.names, weight)


def merged_sums(one: Sums, other: Sums) -> Sums:
    """Return the sums of the rows of both; where one has none it may be of another kind."""
    if isinstance(one, ClassSums) and isinstance(other, ClassSums):
        return one.merge(other)
    if isinstance(one, RegressionSums) and isinstance(other, RegressionSums):
        return one.merge(other)
    return one if one.count else other


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came of the rows that an ensemble was measured on.

    Attributes
    ----------
    failure
        Columns `FAILURE` of the first thing that stopped it; None where nothing did.
    """

    model: Sums = dataclasses.field(default_factory=RegressionSums)
    baseline: Sums = dataclasses.field(default_factory=RegressionSums)
    failure: dict[str, Any] | None = None
    compared: Comparisons = dataclasses.field(default_factory=dict)
    residuals: Residuals = dataclasses.field(default_factory=Residuals)

    def merge(self, other: Self) -> Self:
        """Return what came of the rows of both; of two failures the first."""
        return type(self)(
            merged_sums(self.model, other.model),
            merged_sums(self.baseline, other.baseline),
            self.failure or other.failure,
            merged(self.compared, other.compared),
            self.residuals.merge(other.residuals),
        )

    def row(self, places: Mapping[str, int]) -> pd.DataFrame:
        """Return it as the one row of columns `MEASURED_TYPES`, after those that say where it was measured."""
        failure = self.failure or dict.fromkeys(FAILURE)
        beside = {COMPARED: to_text(self.compared), RESIDUALS: self.residuals.pack()}
        row = {**places, **_sum_columns(self.model, self.baseline), **beside, **failure}
        return pd.DataFrame([row]).astype(dict.fromkeys([*FAILURE, CLASSES], object))

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Return what came of all rows with columns `MEASURED_TYPES`, in their order."""
        return functools.reduce(cls.merge, map(cls._of_row, rows), cls())

    @classmethod
    def _of_row(cls, row: Mapping[str, Any]) -> Self:
        failure = {name: row[name] for name in FAILURE} if row["status"] is not None else None
        residuals = Residuals.parse(row[RESIDUALS])
        return cls(*_sums_of(row), failure, from_text(row[COMPARED]), residuals)


def _sum_columns(model: Sums, baseline: Sums) -> dict[str, Any]:
    """Return the sums of a model and its baseline as columns: of classes as text, with those of numbers empty."""
    if isinstance(model, RegressionSums) and isinstance(baseline, RegressionSums):
        return {**pair_columns(model, baseline), CLASSES: None}
    texts = [each.to_text() for each in (model, baseline) if isinstance(each, ClassSums)]
    return {**pair_columns(RegressionSums(), RegressionSums()), CLASSES: json.dumps(texts)}


def _sums_of(row: Mapping[str, Any]) -> tuple[Sums, Sums]:
    """Return the sums of a model and of its baseline from the columns of `_sum_columns`."""
    if row[CLASSES] is None:
        return pair_of(row)
    model, baseline = map(ClassSums.from_text, json.loads(row[CLASSES]))
    return model, baseline
