"""The families in closed form (ridge, linear, median, mean): all keys of a unit are fitted at once.

A key that the batch does not hold (near to singular, not finite, many text values), and every key where the spec's
parameters ask for more than the batch knows, is fitted by the family's scikit-learn pipeline. What is stored is the
same either way: the pipeline's numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.estimators.base import EstimatorSettings, Features, Fitted, Floats
from group_models.estimators.batched import Flags, constants, fit_ridge, means, medians
from group_models.estimators.families import SklearnFamily
from group_models.estimators.linear import VECTORS, Ints, LinearForm, LinearForms, Shape, Table, TextWeights
from group_models.estimators.weights import weighted_medians

BATCHED: Mapping[str, frozenset[str]] = {
    "ridge": frozenset({"alpha"}),
    "linear": frozenset(),
    "median": frozenset(),
    "mean": frozenset(),
}
"""The families in closed form, and of each the parameters that the batch knows."""


@dataclasses.dataclass(frozen=True)
class FittedForms:
    """The models of many keys, see `batched.FittedGroups`."""

    family: ClosedFamily
    forms: LinearForms
    holds: Flags
    rows: Ints
    values: tuple[NDArray[np.object_], ...]

    def predict(self, table: Table, offsets: Ints) -> Floats:
        """Return one prediction per row; the rows of each key stand together."""
        return self.forms.predict(table, np.repeat(np.arange(len(self.holds)), np.diff(offsets)))

    def fitted(self, place: int, *, seed: int) -> Fitted:
        """Return the model of one key."""
        form = self.forms.form(place, self.family.shape, self.values)
        return Fitted(form, self.family.text_params(seed), rows_used=int(self.rows[place]))


@dataclasses.dataclass(frozen=True)
class ClosedFamily(SklearnFamily):
    """A named family whose fit has a closed form."""

    @functools.cached_property
    def shape(self) -> Shape:
        """The shape of the forms; those of text features get their values per key."""
        features = self.features
        if self.recipe.preparation == "none":
            return Shape(self.name, dict(self.params), features.names, (), {})
        text = dict.fromkeys(features.text, ())
        return Shape(self.name, dict(self.params), features.names, features.numeric, text)

    def text_params(self, seed: int) -> dict[str, str]:
        """Return the parameters as fitted."""
        return self._params | ({"random_state": str(seed)} if "random_state" in self._params else {})

    @functools.cached_property
    def _params(self) -> dict[str, str]:
        return super().text_params(seed=0)

    def fit_groups(self, table: Table, y: Floats, offsets: Ints, *, weight: Floats | None = None) -> FittedForms:
        """Fit every key; the rows of each stand together, and none is without rows."""
        rows = np.diff(offsets)
        if set(self.params) - BATCHED[self.name]:
            forms, holds = _nothing(table, len(rows)), np.zeros(len(rows), dtype=bool)
        else:
            forms, holds = self._solve(table, y, offsets, weight)
        return FittedForms(self, forms, holds, rows, table.values)

    def refit_groups(self, table: Table, y: Floats, offsets: Ints, *, weight: Floats | None = None) -> FittedForms:
        """Fit every key again, on these rows."""
        return self.fit_groups(table, y, offsets, weight=weight)

    def _solve(self, table: Table, y: Floats, offsets: Ints, weight: Floats | None) -> tuple[LinearForms, Flags]:
        if self.name in ("median", "mean"):
            values = self._values(y, offsets, weight)
            return constants(values), np.isfinite(values)
        alpha = 0.0 if self.name == "linear" else float(self.params.get("alpha", 1.0))
        return fit_ridge(table, y, offsets, alpha=alpha, weight=weight)

    def _values(self, y: Floats, offsets: Ints, weight: Floats | None) -> Floats:
        """Return the median or mean of each key."""
        if self.name == "mean":
            return np.ravel(means(y[None, :], offsets, weight))
        return np.ravel(medians(y[None, :], offsets)) if weight is None else weighted_medians(y, weight, offsets)

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit one key as the batch would, or where that does not hold by scikit-learn."""
        table = Table.of(x, self.shape.numeric, tuple(self.shape.text))
        groups = self.fit_groups(table, y, np.array([0, len(y)]), weight=weight)
        if groups.holds[0]:
            return groups.fitted(0, seed=seed)
        native = self.fit_native(x, y, seed=seed, weight=weight)
        return Fitted(LinearForm.of(native, self.shape), self.text_params(seed), rows_used=len(y))


def _nothing(table: Table, keys: int) -> LinearForms:
    """Return forms of keys that the batch does not hold: they read the table as others do, and predict 0."""
    vectors = np.zeros((VECTORS, keys, len(table.numbers)))
    vectors[2] = 1.0
    text = [TextWeights(len(values) + 1, np.zeros(0, np.int64), np.zeros(0)) for values in table.values]
    return LinearForms(vectors, np.zeros(keys), tuple(text))


def closed_family(settings: EstimatorSettings, features: Features) -> ClosedFamily:
    """Return the family of the settings."""
    return ClosedFamily(str(settings.name), dict(settings.params), features, settings.threads)
