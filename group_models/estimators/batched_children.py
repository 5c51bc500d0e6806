"""Children of a family that fits all keys of a unit at once."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from group_models.estimators.base import EstimatorSettings, Features, Fitted
from group_models.estimators.batched import BatchedFamily, FittedGroups, Flags, medians
from group_models.estimators.children import PARENT, REFITTED, ChildFamily, own_weight, with_parent
from group_models.estimators.linear import Ints, Shape, Table
from group_models.estimators.mixing import MixedFamily
from group_models.estimators.registry import make_family

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class FittedChildren:
    """The children of many keys, see `batched.FittedGroups`."""

    family: BatchedChildFamily
    own: FittedGroups
    holds: Flags
    rows: Ints
    shift: Floats

    def predict(self, table: Table, offsets: Ints) -> Floats:
        """Return one prediction per row, from the parent's in the table."""
        given, parent = self.family.columns(table)
        counts = np.diff(offsets)
        weight, shift = (np.repeat(of, counts) for of in (own_weight(self.rows, self.family.half_rows), self.shift))
        return np.asarray(parent + weight * (self.own.predict(given, offsets) + shift))

    def fitted(self, place: int, *, seed: int) -> Fitted:
        """Return the model of one key."""
        own = self.own.fitted(place, seed=seed)
        return self.family.child_of(own, int(self.rows[place]), float(self.shift[place]))


@dataclasses.dataclass(frozen=True)
class BatchedChildFamily(ChildFamily):
    """A `ChildFamily` of which all keys of a unit are fitted at once."""

    own: BatchedFamily

    @property
    def shape(self) -> Shape:
        """The columns that it reads: the parent's predictions are the last two of the numbers."""
        shape = self.own.shape
        numeric = tuple(name for name in shape.numeric if name != PARENT)
        return dataclasses.replace(shape, numeric=(*numeric, PARENT, REFITTED))

    def fit_groups(self, table: Table, y: Floats, offsets: Ints, *, weight: Floats | None = None) -> FittedChildren:  # noqa: ARG002 - without weights, see `Spec`
        """Fit every key to what its measured parent gets wrong."""
        given, parent = self.columns(table)
        return self._children(given, y - parent, offsets)

    def refit_groups(self, table: Table, y: Floats, offsets: Ints, *, weight: Floats | None = None) -> FittedChildren:  # noqa: ARG002 - without weights, see `Spec`
        """Fit every key to what its parent that serves gets wrong."""
        given, parent = self.columns(table, place=-1)
        return self._children(given, y - parent, offsets)

    def _children(self, given: Table, wrong: Floats, offsets: Ints) -> FittedChildren:
        fits = np.logical_and.reduceat(np.isfinite(wrong), offsets[:-1])
        own, shift = self.own.fit_groups(given, wrong, offsets), np.zeros(len(offsets) - 1)
        if self.metric == "mae":
            shift = medians((wrong - own.predict(given, offsets))[None, :], offsets)[0]
        return FittedChildren(self, own, own.holds & fits & np.isfinite(shift), np.diff(offsets), shift)

    def columns(self, table: Table, place: int = -2) -> tuple[Table, Floats]:
        """Return what the own part reads, and the parent's prediction (at this place of the numbers)."""
        parent = table.numbers[place]
        numbers = table.numbers[:-2]
        if PARENT in self.own.shape.numeric:
            numbers = np.vstack([numbers, parent])
        return Table(numbers, table.codes, table.values), parent


def child_family(
    settings: EstimatorSettings, features: Features, half_rows: float, *, is_residual: bool = True
) -> ChildFamily:
    """Return the family of children whose own part is the family of the settings."""
    metric = settings.metric or "rmse"
    if not is_residual:
        return MixedFamily(make_family(settings, features), half_rows, metric)
    own = make_family(settings, with_parent(features))
    if isinstance(own, BatchedFamily):
        return BatchedChildFamily(own, half_rows, metric)
    return ChildFamily(own, half_rows, metric)
