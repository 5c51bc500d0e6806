"""What each feature adds to single predictions: a base value and contributions that sum to the prediction.

Of a linear model they are its terms. Of xgboost they are its own SHAP values (Lundberg and Lee 2017, "A unified
approach to interpreting model predictions"; exact for trees by Lundberg et al. 2020, Nature Machine Intelligence 2).
What is made of such models adds them up as it adds up predictions. Of other models nothing that is exact is known here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from group_models.errors import ModelError
from group_models.estimators.base import Floats, Predictor
from group_models.estimators.boosters import BoosterPredictor
from group_models.estimators.bounded import BoundedPredictor
from group_models.estimators.children import PARENT, ChildPredictor, PooledPredictor
from group_models.estimators.classes import labels_of
from group_models.estimators.ensembles import EnsemblePredictor
from group_models.estimators.linear import LinearForm, linear_form
from group_models.estimators.transformed import TransformedPredictor

OF_PARENT = "(parent)"
"""Under this name stands what the parent's prediction, as a feature of a key's own part, adds."""

RELATIVE_FLOAT32 = 1e-5
"""How near sums are to predictions where a model computes in single precision."""


@dataclasses.dataclass(frozen=True)
class Contributions:
    """Of each row a base value, and by name what each feature adds to it; together they are the prediction."""

    base: Floats
    of: Mapping[str, Floats]

    def scaled(self, by: float) -> Contributions:
        """Return all of it times a factor."""
        return Contributions(self.base * by, {name: values * by for name, values in self.of.items()})

    def plus(self, other: Contributions) -> Contributions:
        """Return the sum, feature by feature."""
        names = dict.fromkeys([*self.of, *other.of])
        nothing = np.zeros(len(self.base))
        added = {name: self.of.get(name, nothing) + other.of.get(name, nothing) for name in names}
        return Contributions(self.base + other.base, added)

    def total(self) -> Floats:
        """Return the sums: the predictions."""
        return functools.reduce(np.add, self.of.values(), self.base)


def contributions(predictor: Predictor, x: pd.DataFrame) -> Contributions:
    """Return what each feature adds to the predictions of these rows.

    Raises
    ------
    ModelError
        None are known of such a model; the message says of which they are.
    """
    if isinstance(predictor, BoundedPredictor):
        return contributions(predictor.model, x)
    if labels_of(predictor) is not None:
        raise ModelError(_refusal(predictor))
    if isinstance(predictor, EnsemblePredictor):
        parts = [contributions(part, x) for part in predictor.parts]
        return functools.reduce(Contributions.plus, parts).scaled(1.0 / len(parts))
    if isinstance(predictor, PooledPredictor) and isinstance(predictor.child, ChildPredictor):
        return _of_pooled(predictor.child, predictor.parent, x)
    if isinstance(predictor, BoosterPredictor):
        return _of_booster(predictor, x)
    form = predictor if isinstance(predictor, LinearForm) else linear_form(predictor)
    if form is not None:
        return _of_form(form, x)
    raise ModelError(_refusal(predictor))


def _refusal(predictor: Predictor) -> str:
    if labels_of(predictor) is not None:
        return (
            "contributions that sum to the prediction are those of numbers, and this model gives probabilities of "
            "labels; `show --key` has the importance of its features"
        )
    if isinstance(predictor, TransformedPredictor):
        return (
            f"this model predicts the inverse of {predictor.transform}, by which the spec transforms the target: no "
            "contributions of features sum to that; `show --key` has the importance of its features"
        )
    native = predictor.native
    kind = type(native[-1] if hasattr(native, "steps") else native).__name__
    return (
        f"contributions that sum to the prediction are known of ridge, linear, median, mean and xgboost and of what is "
        f"made of them, not of this model, a {kind}; `show --key` has the importance of its features"
    )


def _of_form(form: LinearForm, x: pd.DataFrame) -> Contributions:
    """Return the terms of a linear model; a base of all features at their means, and of no text."""
    median, mean, scale, coefficient = form.vectors
    found = {name: np.zeros(len(x)) for name in form.shape.names}
    for place, name in enumerate(form.shape.numeric):
        column = x[name].to_numpy(np.float64, na_value=np.nan)
        filled = np.where(np.isnan(column), median[place], column)
        found[name] = (filled - mean[place]) / scale[place] * coefficient[place]
    start = 0
    for name, values in form.shape.text.items():
        weights = np.append(form.weights[start : start + len(values)], 0.0)
        # -1, of a text that the model does not know, is the 0 at the end.
        found[name] = weights[pd.Index(values, dtype=object).get_indexer(pd.Index(x[name], dtype=object))]
        start += len(values)
    return Contributions(np.full(len(x), form.intercept), found)


def _of_booster(booster: BoosterPredictor, x: pd.DataFrame) -> Contributions:
    values = booster.contributions(x)
    found = Contributions(values[:, -1], dict(zip(booster.columns.names, values.T[:-1], strict=True)))
    within = RELATIVE_FLOAT32 * np.abs(values).sum(axis=1)
    if (np.abs(found.total() - booster.predict(x)) > within + np.finfo(np.float32).tiny).any():
        raise ModelError(
            "this xgboost model's objective predicts a function of a sum (such as its exponential): no contributions "
            "of features sum to its predictions; `show --key` has the importance of its features"
        )
    return found


def _of_pooled(child: ChildPredictor, parent: Predictor, x: pd.DataFrame) -> Contributions:
    """Return the parent's contributions and the child's own: each as much as it counts in the prediction."""
    above = contributions(parent, x)
    if not child.is_residual:
        return contributions(child.own, x).scaled(child.weight).plus(above.scaled(1.0 - child.weight))
    own = contributions(child.own, x.assign(**{PARENT: parent.predict(x)})).scaled(child.weight)
    named = {OF_PARENT if name == PARENT else name: values for name, values in own.of.items()}
    return above.plus(Contributions(own.base + child.weight * child.shift, named))
