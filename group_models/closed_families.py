"""The families in closed form (ridge, linear, median, mean): all keys of a unit are fitted at once.

A key that the batch does not hold (near to singular, not finite, many text values), and every key where the spec's
parameters ask for more than the batch knows, is fitted by the family's scikit-learn pipeline. What is stored is the
same either way: the pipeline's numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.batched import Flags, constants, fit_ridge, means, medians
from group_models.estimators import EstimatorSettings, Features, Fitted, Flavor, Floats
from group_models.families import SklearnFamily, sklearn_family
from group_models.linear import Ints, LinearForm, LinearForms, Shape, Table

Solve: TypeAlias = Callable[[Table, Floats, Ints], tuple[LinearForms, Flags]]

_BATCHED: Mapping[str, frozenset[str]] = {
    "ridge": frozenset({"alpha"}),
    "linear": frozenset(),
    "median": frozenset(),
    "mean": frozenset(),
}
"""Of each family, the parameters that the batch knows."""


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
class ClosedFamily:
    """A named family whose fit has a closed form; `usual` is its scikit-learn pipeline."""

    usual: SklearnFamily

    @property
    def name(self) -> str:
        """The family's name."""
        return self.usual.name

    @property
    def threads(self) -> int:
        """Threads of one fit."""
        return self.usual.threads

    @property
    def flavor(self) -> Flavor:
        """MLflow's own: a model's directory holds the pipeline."""
        return self.usual.flavor

    @property
    def takes_float32(self) -> bool:
        """Whether feature values beyond single precision count as infinite."""
        return self.usual.takes_float32

    @property
    def takes_infinity(self) -> bool:
        """Whether infinite feature values can be fitted."""
        return self.usual.takes_infinity

    @functools.cached_property
    def shape(self) -> Shape:
        """The shape of the forms; those of text features get their values per key."""
        features = self.usual.features
        if self.usual.recipe.preparation == "none":
            return Shape(self.name, dict(self.usual.params), features.names, (), {})
        text = dict.fromkeys(features.text, ())
        return Shape(self.name, dict(self.usual.params), features.names, features.numeric, text)

    def load(self) -> None:
        """Import what a fit needs."""
        self.usual.load()

    def predicted_seconds(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit, by rows."""
        return self.usual.predicted_seconds(rows, columns)

    def predicted_model_bytes(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected bytes of one model, by rows."""
        return self.usual.predicted_model_bytes(rows, columns)

    def text_params(self, seed: int) -> dict[str, str]:
        """Return the parameters as fitted."""
        return self._params | ({"random_state": str(seed)} if "random_state" in self._params else {})

    @functools.cached_property
    def _params(self) -> dict[str, str]:
        return self.usual.text_params(seed=0)

    def fit_groups(self, table: Table, y: Floats, offsets: Ints) -> FittedForms:
        """Fit every key; the rows of each stand together, and none is without rows."""
        rows = np.diff(offsets)
        if set(self.usual.params) - _BATCHED[self.name]:
            forms, holds = constants(np.zeros(len(rows))), np.zeros(len(rows), dtype=bool)
        else:
            forms, holds = self._solve(table, y, offsets)
        return FittedForms(self, forms, holds, rows, table.values)

    def _solve(self, table: Table, y: Floats, offsets: Ints) -> tuple[LinearForms, Flags]:
        if self.name in ("median", "mean"):
            values = (medians if self.name == "median" else means)(y[None, :], offsets)[0]
            return constants(values), np.isfinite(values)
        alpha = 0.0 if self.name == "linear" else float(self.usual.params.get("alpha", 1.0))
        return fit_ridge(table, y, offsets, alpha=alpha)

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int) -> Fitted:
        """Fit one key as the batch would, or where that does not hold by scikit-learn."""
        groups = self.fit_groups(Table.of(x, self.shape.numeric, tuple(self.shape.text)), y, np.array([0, len(y)]))
        if groups.holds[0]:
            return groups.fitted(0, seed=seed)
        native = self.usual.fit_native(x, y, seed=seed)
        return Fitted(LinearForm.of(native, self.shape), self.text_params(seed), rows_used=len(y))

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int) -> Fitted:  # noqa: ARG002 - protocol
        """Fit again, on these rows."""
        return self.fit(x, y, seed=seed)


def closed_family(settings: EstimatorSettings, features: Features) -> ClosedFamily:
    """Return the family of the settings."""
    return ClosedFamily(sklearn_family(settings, features))
