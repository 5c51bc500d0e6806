"""Families fitted to a transformed target: what they predict, and what is measured, is in the target's own units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from group_models.estimators.base import Fitted, Flavor, Floats, Predictor
from group_models.estimators.ensembles import Read
from group_models.estimators.wrapping import WrappedFamily, split_header, with_header

_INVERSES: dict[str, Callable[[Floats], Floats]] = {"log1p": np.expm1}


@dataclasses.dataclass(frozen=True)
class TransformedPredictor:
    """A model of a transformed target, which predicts in the target's own units."""

    own: Predictor
    transform: str
    data_file: ClassVar[str] = "transformed.bin"

    @property
    def native(self) -> Any:
        """The scikit-learn estimator or the xgboost Booster of the transformed target."""
        return self.own.native

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row, in the target's own units."""
        with np.errstate(over="ignore"):
            return _INVERSES[self.transform](self.own.predict(x))

    def dump(self) -> bytes:
        """Return the model as bytes: a line of JSON, then the data file of the model within."""
        header = {"transform": self.transform, "data_file": self.own.data_file}
        return with_header(header, self.own.dump())

    @classmethod
    def parse(cls, data: bytes, read: Read) -> TransformedPredictor:
        """Return the model that `dump` wrote.

        Raises
        ------
        ValueError
            The bytes are no such model.
        """
        said, within = split_header(data)
        if said["transform"] not in _INVERSES:
            raise ValueError(f"an unknown transform {said['transform']!r}; use a newer group-models")
        return cls(read(within, str(said["data_file"])), said["transform"])


@dataclasses.dataclass(frozen=True)
class TransformedFamily(WrappedFamily):
    """A family that is fitted to the logarithm of the target plus one (`log1p`)."""

    transform: str
    flavor: ClassVar[Flavor] = "transformed"

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit the transformed target of one key's rows.

        Raises
        ------
        ValueError
            A target has no logarithm.
        """
        return self._wrapped(self.own.fit(x, self._transformed(y), seed=seed, weight=weight))

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit all rows, after early stopping with the rounds that it chose."""
        return self._wrapped(self.own.refit(fitted, x, self._transformed(y), seed=seed, weight=weight))

    def _transformed(self, y: Floats) -> Floats:
        if wrong := int(np.count_nonzero(y <= -1)):
            raise ValueError(
                f"target_transform {self.transform}: {wrong} of {len(y)} targets are -1 or less and have no logarithm; "
                "leave such rows out in the source, or leave target_transform out"
            )
        return np.log1p(y)

    def _wrapped(self, fitted: Fitted) -> Fitted:
        predictor = TransformedPredictor(fitted.predictor, self.transform)
        params = {**fitted.params, "target_transform": self.transform}
        return dataclasses.replace(fitted, predictor=predictor, params=params)
