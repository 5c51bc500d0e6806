"""The families of classifiers: a named one, xgboost or a user's own, fitted to the labels that a key's rows have."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.class_metrics import class_shares
from group_models.estimators.base import EstimatorSettings, Features, Fitted, Flavor, Floats
from group_models.estimators.boosters import BoosterFamily
from group_models.estimators.classes import ClassPredictor
from group_models.estimators.families import RECIPES, Recipe, SklearnFamily
from group_models.estimators.objects import ObjectFamily, object_family
from group_models.labels import NO_LABELS, Labels
from group_models.spec import ClassWeight

Ints: TypeAlias = NDArray[np.int64]

PRIOR = "prior"
"""The family without features: every row gets the shares of the key's labels."""

ONE_CLASS = "one_class"
"""Key of `params` that names the only label of the rows that a model was fitted to."""


def _like(name: str, class_name: str) -> Recipe:
    """Return the recipe of a regressor with the classifier of the same kind."""
    return dataclasses.replace(RECIPES[name], class_name=class_name)


CLASS_RECIPES: Mapping[str, Recipe] = {
    # An iterative fit: some hundred passes where ridge has one.
    "logistic": dataclasses.replace(
        _like("ridge", "LogisticRegression"),
        seconds=lambda params, rows, columns: 2e-3 + 2e-6 * rows * columns,  # noqa: ARG005 - as of any family
    ),
    "gradient_boosting": _like("gradient_boosting", "GradientBoostingClassifier"),
    "hist_gradient_boosting": _like("hist_gradient_boosting", "HistGradientBoostingClassifier"),
    "random_forest": _like("random_forest", "RandomForestClassifier"),
}
"""The named scikit-learn classifiers."""

CLASS_FAMILIES = (*CLASS_RECIPES, "xgboost", PRIOR)
"""Names of the families that classify."""

_BOOSTED = frozenset({"gradient_boosting", "hist_gradient_boosting", "xgboost"})
"""Families that grow a tree per label in each round, where there are more than two."""


def class_weights(codes: Ints, labels: Labels, rule: ClassWeight, weight: Floats | None = None) -> Floats:
    """Return the weight of each row by its label, times its own.

    `balanced` lets each label of the key count alike: (all rows / labels) / rows of the label, as in scikit-learn.

    Examples
    --------
    >>> class_weights(np.array([0, 0, 0, 1]), Labels(("a", "b")), "balanced").round(3).tolist()
    [0.667, 0.667, 0.667, 2.0]
    >>> class_weights(np.array([0, 1]), Labels(("a", "b")), {"b": 5.0}).tolist()
    [1.0, 5.0]
    """
    each = np.ones(len(codes)) if weight is None else weight
    if isinstance(rule, str):
        shares = class_shares(codes.astype(np.float64), len(labels.names), each)
        of_label = 1 / (np.count_nonzero(shares) * np.where(shares > 0, shares, 1.0))
    else:
        of_label = np.array([rule.get(name, 1.0) for name in labels.names])
    return np.asarray(each * of_label[codes])


@dataclasses.dataclass(frozen=True)
class SklearnClassifier(SklearnFamily):
    """A named scikit-learn classifier with the preparation of its columns."""

    labels: Labels = NO_LABELS
    class_weight: ClassWeight | None = None

    @property
    def recipe(self) -> Recipe:
        """What the family is made of."""
        return CLASS_RECIPES[self.name]

    def last_weight(self, y: Any, weight: Floats | None) -> Floats | None:
        """Return the weights of the classifier alone: those of labels do not move what scales the columns."""
        if self.class_weight is None:
            return weight
        codes = y.astype(np.int64)
        return class_weights(codes, self.labels, self.class_weight, weight)


@dataclasses.dataclass(frozen=True)
class ObjectClassifier(ObjectFamily):
    """A user's classifier."""

    def watched(self, y: Any) -> int | None:
        """Return how many rows early stopping watches; None where the others lack a label, which a fit refuses."""
        watched = super().watched(y)
        return None if watched is None or len(np.unique(y[:-watched])) < len(np.unique(y)) else watched


Own: TypeAlias = SklearnClassifier | BoosterFamily | ObjectClassifier


@dataclasses.dataclass(frozen=True)
class ClassFamily:
    """A family that tells the labels of a key apart; a key of one label gets a model that always says it.

    Attributes
    ----------
    own
        What is fitted to labels 0, 1, ...; None for the class prior.
    """

    own: Own | None
    labels: Labels
    class_weight: ClassWeight | None = None
    flavor: ClassVar[Flavor] = "classes"

    @property
    def name(self) -> str:
        """The family's name or the object's dotted path."""
        return PRIOR if self.own is None else self.own.name

    @property
    def threads(self) -> int:
        """Threads of one fit."""
        return 1 if self.own is None else self.own.threads

    @property
    def takes_float32(self) -> bool:
        """Whether it computes in single precision."""
        return self.own is not None and self.own.takes_float32

    @property
    def takes_infinity(self) -> bool:
        """Whether infinite values are left to the classifier."""
        return self.own is None or self.own.takes_infinity

    def load(self) -> None:
        """Import what a fit needs."""
        if self.own is not None:
            self.own.load()

    def predicted_seconds(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit, by rows."""
        if self.own is None:
            return 1e-4 + 1e-8 * np.asarray(rows, dtype=np.float64)
        return self._trees() * self.own.predicted_seconds(rows, columns)

    def predicted_model_bytes(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected bytes of one model, by rows."""
        of_labels = 100.0 + 20.0 * len(self.labels.names)
        if self.own is None:
            return np.full(len(rows), of_labels)
        return of_labels + self._trees() * self.own.predicted_model_bytes(rows, columns)

    def _trees(self) -> int:
        """Return how many models in one a model is."""
        return len(self.labels.names) if self.name in _BOOSTED and len(self.labels.names) > 2 else 1

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit one key's rows, `y` being places in the labels of the set."""

        def fit(own: Own, local: Ints, weights: Mapping[str, Floats]) -> Fitted:
            return own.fit(x, local, seed=seed, **weights)  # type: ignore[arg-type]

        return self._fitted(y, weight, fit)

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit all rows, after early stopping with the rounds that it chose."""

        def fit(own: Own, local: Ints, weights: Mapping[str, Floats]) -> Fitted:
            # Rounds that were chosen for a constant model are none.
            again = own.fit if ONE_CLASS in fitted.params else _refitting(own, fitted)
            return again(x, local, seed=seed, **weights)  # type: ignore[arg-type]

        return self._fitted(y, weight, fit)

    def _fitted(
        self, y: Floats, weight: Floats | None, fit: Callable[[Own, Ints, Mapping[str, Floats]], Fitted]
    ) -> Fitted:
        codes, local = np.unique(y.astype(np.int64), return_inverse=True)
        known = Labels(tuple(self.labels.names[code] for code in codes.tolist()), self.labels.kind)
        if self.own is None or len(codes) == 1:
            return self._constant(codes, local, known, weight)
        own, notes = self._of_labels(self.own, local, known)
        if self.class_weight is not None and not isinstance(own, SklearnClassifier):
            weight = class_weights(local, known, self.class_weight, weight)
        fitted = fit(own, local, {} if weight is None else {"weight": weight})
        predictor = ClassPredictor(self.labels, tuple(codes.tolist()), fitted.predictor)
        return dataclasses.replace(fitted, predictor=predictor, params=self._params(fitted.params) | notes)

    def _constant(self, codes: Ints, local: Ints, known: Labels, weight: Floats | None) -> Fitted:
        shares = class_shares(local.astype(np.float64), len(codes), weight)
        predictor = ClassPredictor(self.labels, tuple(codes.tolist()), shares=tuple(shares.tolist()))
        params = {ONE_CLASS: known.names[0]} if len(codes) == 1 else {}
        return Fitted(predictor, self._params(params), rows_used=len(local))

    def _params(self, params: Mapping[str, str]) -> dict[str, str]:
        said = {} if self.class_weight is None else {"class_weight": str(self.class_weight)}
        return {**params, **said}

    def _of_labels(self, own: Own, local: Ints, known: Labels) -> tuple[Own, dict[str, str]]:
        """Return the family for rows of these labels, and what is left out because a label has too few rows."""
        if isinstance(own, BoosterFamily):
            return dataclasses.replace(own, params={**own.params, **_objective(len(known.names))}), {}
        if not isinstance(own, SklearnClassifier):
            return own, {}
        params, notes = stopping_off(own.params, own.name, np.bincount(local))
        return dataclasses.replace(own, params=params, labels=known, class_weight=self.class_weight), notes


def _refitting(own: Own, fitted: Fitted) -> Callable[..., Fitted]:
    return lambda x, y, **given: own.refit(fitted, x, y, **given)


def _objective(labels: int) -> dict[str, Any]:
    if labels == 2:
        return {"objective": "binary:logistic"}
    return {"objective": "multi:softprob", "num_class": labels}


_WATCHES: Mapping[str, Callable[[Mapping[str, Any], int], bool]] = {
    "gradient_boosting": lambda params, _: params.get("n_iter_no_change") is not None,
    "hist_gradient_boosting": lambda params, rows: (
        params.get("validation_fraction", 0.1) is not None
        and (rows > 10_000 if (asked := params.get("early_stopping", "auto")) == "auto" else bool(asked))
    ),
}
"""Families that set rows of each label aside to stop early, and when they do so (scikit-learn 1.6 to 1.7)."""

_OFF: Mapping[str, Mapping[str, Any]] = {
    "gradient_boosting": {"n_iter_no_change": None},
    "hist_gradient_boosting": {"early_stopping": False},
}


def stopping_off(
    params: Mapping[str, Any], name: str, rows_of_labels: Ints
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return parameters without early stopping, and a note, where a label has too few rows to be in both parts.

    Examples
    --------
    >>> stopping_off({"n_iter_no_change": 3}, "gradient_boosting", np.array([19, 1]))
    ({'n_iter_no_change': None}, {'early_stopping': 'off: a label has 1 row'})
    >>> stopping_off({"n_iter_no_change": 3}, "gradient_boosting", np.array([19, 11]))
    ({'n_iter_no_change': 3}, {})
    """
    rows, labels = int(rows_of_labels.sum()), len(rows_of_labels)
    if name not in _WATCHES or not _WATCHES[name](params, rows):
        return params, {}
    share = params.get("validation_fraction", 0.1)
    held = math.ceil(share * rows) if isinstance(share, float) else int(share)
    fewest = int(rows_of_labels.min())
    if fewest >= 2 and held >= labels and rows - held >= labels:
        return params, {}
    why = "a label has 1 row" if fewest < 2 else f"{rows} rows are too few"
    return {**params, **_OFF[name]}, {"early_stopping": f"off: {why}"}


def class_family(settings: EstimatorSettings, features: Features) -> ClassFamily:
    """Return the family of the settings, whose labels are known or yet to be."""
    labels = settings.labels or NO_LABELS
    return ClassFamily(_own_family(settings, features), labels, settings.class_weight)


def _own_family(settings: EstimatorSettings, features: Features) -> Own | None:
    if settings.name == PRIOR:
        return None
    if settings.name == "xgboost":
        return BoosterFamily(dict(settings.params), features, settings.threads, settings.validation_share)
    if settings.name is not None:
        return SklearnClassifier(settings.name, dict(settings.params), features, settings.threads)
    own = object_family(settings, features)
    return ObjectClassifier(own.name, own.object, own.params, features, own.threads, own.validation_share)
