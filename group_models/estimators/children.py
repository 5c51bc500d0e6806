"""Models that build on a parent's: what a key's own model adds to its parent's prediction, and by which weight.

A child holds no copy of its parent. Wherever it predicts, the parent's prediction of the same rows stands beside the
features in a column `PARENT`; the two together, as one model, are a `PooledPredictor`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.estimators.base import Features, Fitted, Flavor, Predictor
from group_models.estimators.ensembles import Read, pack_parts, unpack_parts
from group_models.estimators.linear import LinearForm
from group_models.estimators.wrapping import WrappedFamily, split_header, with_header
from group_models.spec import Metric

Floats: TypeAlias = npt.NDArray[np.float64]

PARENT, REFITTED = "group_models: parent", "group_models: refitted parent"
"""Columns of the parent's prediction: of its models that have not seen the holdout, and of those that serve.

Both are out of part: of the models that did not see the row.
"""


@dataclasses.dataclass(frozen=True)
class ChildPredictor:
    """A key's own model beside its parent's.

    Where it is of a residual, of what the parent gets wrong, the prediction is `parent + weight * (own + shift)`, and
    `own` reads the features and beside them the parent's prediction. Else it is `weight * own + (1 - weight) * parent`,
    and `own` reads the features alone.
    """

    own: Predictor
    weight: float
    is_residual: bool = True
    shift: float = 0.0
    data_file: ClassVar[str] = "child.bin"

    @property
    def native(self) -> Any:
        """The scikit-learn estimator or the xgboost Booster of the key's own part."""
        return self.own.native

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row of the features and `PARENT`."""
        others = {REFITTED} if self.is_residual else {PARENT, REFITTED}
        own = self.own.predict(x.drop(columns=list(others & set(x.columns))))
        parent = x[PARENT].to_numpy(np.float64)
        return np.asarray(parent + self.weight * (own + self.shift if self.is_residual else own - parent))

    def dump(self) -> bytes:
        """Return the model as bytes: a line of JSON, then the data file of the key's own part."""
        names = ("weight", "is_residual", "shift")
        header = {**{name: getattr(self, name) for name in names}, "data_file": self.own.data_file}
        return with_header(header, self.own.dump())

    @classmethod
    def parse(cls, data: bytes, read: Read) -> ChildPredictor:
        """Return the model that `dump` wrote.

        Raises
        ------
        ValueError
            The bytes are no child.
        """
        said, own = split_header(data)
        return cls(read(own, str(said.pop("data_file"))), **said)


@dataclasses.dataclass(frozen=True)
class PooledPredictor:
    """A child with its parent: one model of the raw columns, as it is exported and loaded."""

    parent: Predictor
    child: Predictor
    data_file: ClassVar[str] = "pooled.zip"

    @property
    def native(self) -> list[Any]:
        """What is native of the parent and of the child's own part."""
        return [self.parent.native, self.child.native]

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row."""
        return self.child.predict(x.assign(**{PARENT: self.parent.predict(x)}))

    def dump(self) -> bytes:
        """Return the model as bytes: the data files of both in one archive."""
        return pack_parts([(model.dump(), model.data_file) for model in (self.parent, self.child)])

    @classmethod
    def parse(cls, data: bytes, read: Read) -> PooledPredictor:
        """Return the model of an archive of a parent and its child.

        Raises
        ------
        ValueError
            The bytes are no such archive.
        """
        models = unpack_parts(data, read)
        if len(models) != 2:
            raise ValueError(f"an archive of {len(models)} models; a parent and a child are two")
        return cls(*models)


def own_weight(rows: Any, half_rows: float) -> Any:
    """Return the weight of what a key's model adds: rows / (rows + half_rows).

    The credibility of a group's own experience beside that of all (Buehlmann 1967, "Experience rating and
    credibility", ASTIN Bulletin 4): half of it where a key has `half_rows` rows.

    Examples
    --------
    >>> own_weight(50, 50.0), own_weight(450, 50.0)
    (0.5, 0.9)
    """
    return rows / (rows + half_rows)


@dataclasses.dataclass(frozen=True)
class ChildFamily(WrappedFamily):
    """A family that is fitted to what the parent gets wrong, on the features and the parent's prediction.

    Where the metric is `mae`, what it adds is moved by the median of what it leaves, as the loss is the metric: least
    squares alone would move the prediction of a skewed target from its median to its mean.

    The frames that it gets have the columns `PARENT` and `REFITTED` after the features: a fit that is measured takes
    the one, a refit the other.
    """

    half_rows: float
    metric: Metric
    flavor: ClassVar[Flavor] = "pooled"

    def predicted_seconds(self, rows: npt.NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit, by rows."""
        return super().predicted_seconds(rows, columns + 1)

    def predicted_model_bytes(self, rows: npt.NDArray[Any], columns: int) -> Floats:
        """Return the expected bytes of one model, by rows."""
        return super().predicted_model_bytes(rows, columns + 1) + 50.0

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:  # noqa: ARG002 - without weights, see `Spec`
        """Fit what the measured parent gets wrong."""
        given = x.drop(columns=REFITTED)
        return self._fit(given, y, lambda of_parent: self.own.fit(given, of_parent, seed=seed))

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:  # noqa: ARG002 - without weights, see `Spec`
        """Fit what the parent that serves gets wrong."""
        given = x.drop(columns=REFITTED).assign(**{PARENT: x[REFITTED]})
        return self._fit(given, y, lambda of_parent: self.own.refit(fitted, given, of_parent, seed=seed))

    def _fit(self, x: pd.DataFrame, y: Floats, fit: Callable[[Floats], Fitted]) -> Fitted:
        wrong = y - finite_parent(x[PARENT])
        own = fit(wrong)
        shift = float(np.median(wrong - own.predict(x))) if self.metric == "mae" else 0.0
        return self.child_of(own, len(y), shift)

    def child_of(self, own: Fitted, rows: int, shift: float) -> Fitted:
        """Return a fit of so many rows with its weight, and by what it is moved."""
        weight = float(own_weight(rows, self.half_rows))
        params = {**own.params, "pooling": "residual", "weight": f"{weight:.6g}"}
        return dataclasses.replace(own, predictor=ChildPredictor(own.predictor, weight, shift=shift), params=params)


def finite_parent(column: pd.Series) -> Floats:
    """Return the parent's predictions of rows that are fitted.

    Raises
    ------
    ValueError
        One is not finite.
    """
    parent: Floats = column.to_numpy(np.float64)
    if wrong := int(np.count_nonzero(~np.isfinite(parent))):
        raise ValueError(f"the parent's prediction of {wrong} of {len(parent)} rows is not finite")
    return parent


def with_parent(features: Features) -> Features:
    """Return the features that a child's own part reads."""
    return Features((*features.numeric, PARENT), features.text, (*features.names, PARENT))


def child_form(predictor: Predictor) -> LinearForm | None:
    """Return the form of a child of a residual whose own part is one; None of any other model."""
    if not isinstance(predictor, ChildPredictor) or not predictor.is_residual:
        return None
    return predictor.own if isinstance(predictor.own, LinearForm) else None
