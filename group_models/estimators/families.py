"""The scikit-learn families: an estimator with the preparation of its columns, one pipeline per key.

Missing numbers are imputed with the key's median (0 where a key has none), or left to an estimator that takes
them. Text is encoded by the values that the key's rows hold; missing text and values unseen in training are
treated alike: no one-hot column is set, or the estimator's own missing value stands.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.estimators.base import (
    IMPUTE,
    EstimatorSettings,
    Features,
    Fitted,
    Flavor,
    Floats,
    PickledPredictor,
    as_text,
)
from group_models.estimators.losses import with_loss
from group_models.estimators.weights import fit_pipeline

Preparation: TypeAlias = Literal["scaled", "imputed", "native", "none"]
Cost: TypeAlias = Callable[[Mapping[str, Any], Floats, int], Floats]
"""(parameters with defaults, rows per key, columns) -> seconds or bytes per key."""

MAX_ONE_HOT = 1000
"""Most values of a text column that get a one-hot column of their own; the rarest go without."""

MAX_ONE_HOT_CELLS = 20_000_000
"""Most cells (rows x values) of a key's one-hot columns, 160 MB: Ridge is exact on dense columns only."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a named scikit-learn family is made of, and what a fit of it costs."""

    module: str
    class_name: str
    preparation: Preparation
    seconds: Cost
    model_bytes: Cost
    takes_float32: bool = False
    takes_infinity: bool = False

    def estimator_class(self) -> Any:
        """Return the estimator's class (imports scikit-learn)."""
        return getattr(importlib.import_module(self.module), self.class_name)


def _nodes(params: Mapping[str, Any], rows: Floats, *, depth: int | None) -> Floats:
    """Nodes of one tree: bounded by its rows, its depth and its leaves."""
    deepest = float(params.get("max_depth", depth) or 30)
    leaves = float(params.get("max_leaf_nodes") or np.inf)
    return np.clip(1.26 * rows, 1.0, min(2.0 ** (deepest + 1), 2.0 * leaves))


def _linear_seconds(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    return 2e-4 + 3e-8 * rows * columns


def _linear_bytes(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    return 200.0 + 50.0 * columns + 0.0 * rows


def _constant_seconds(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    return 1.2e-4 + 1.3e-8 * rows


def _constant_bytes(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    return 100.0 + 15.0 * columns + 0.0 * rows


def _forest_seconds(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    logs: Floats = np.log2(np.maximum(rows, 2.0))
    return float(params["n_estimators"]) * (4.5e-4 + 4.5e-8 * columns * rows * logs)


def _forest_bytes(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    return float(params["n_estimators"]) * (700 + 72 * _nodes(params, rows, depth=None))


def _boosting_seconds(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    depth = min(float(params.get("max_depth") or 30), 30)
    return float(params["n_estimators"]) * (4e-4 + 8e-8 * depth * rows * columns)


def _boosting_bytes(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    return float(params["n_estimators"]) * (400 + 48 * _nodes(params, rows, depth=3))


def _histogram_leaves(params: Mapping[str, Any], rows: Floats) -> Floats:
    return np.clip(rows / float(params["min_samples_leaf"]), 1.0, float(params.get("max_leaf_nodes") or 255))


def _histogram_seconds(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    leaves = (2.6e-5 + 1.5e-6 * columns) * _histogram_leaves(params, rows)
    return float(params["max_iter"]) * (8e-5 + leaves + 4.5e-9 * columns * rows)


def _histogram_bytes(params: Mapping[str, Any], rows: Floats, columns: int) -> Floats:
    return float(params["max_iter"]) * (90 + 120 * _histogram_leaves(params, rows))


# Coefficients: one thread of a 2020s x86 server, 50 to 50,000 rows, 3 to 10 columns, scikit-learn 1.7; within
# a factor of two of what was measured, which is enough to pack units of like cost.
RECIPES: Mapping[str, Recipe] = {
    "ridge": Recipe("sklearn.linear_model", "Ridge", "scaled", _linear_seconds, _linear_bytes),
    "gradient_boosting": Recipe(
        "sklearn.ensemble", "GradientBoostingRegressor", "imputed", _boosting_seconds, _boosting_bytes,
        takes_float32=True,
    ),
    "hist_gradient_boosting": Recipe(
        "sklearn.ensemble", "HistGradientBoostingRegressor", "native", _histogram_seconds, _histogram_bytes,
        takes_infinity=True,
    ),
    "random_forest": Recipe(
        "sklearn.ensemble", "RandomForestRegressor", "imputed", _forest_seconds, _forest_bytes,
        takes_float32=True,
    ),
    "linear": Recipe("sklearn.linear_model", "LinearRegression", "scaled", _linear_seconds, _linear_bytes),
    "median": Recipe(
        "sklearn.dummy", "DummyRegressor", "none", _constant_seconds, _constant_bytes, takes_infinity=True
    ),
    "mean": Recipe("sklearn.dummy", "DummyRegressor", "none", _constant_seconds, _constant_bytes, takes_infinity=True),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SklearnFamily:
    """A named scikit-learn family with the spec's parameters."""

    name: str
    params: Mapping[str, Any]
    features: Features
    threads: int = 1
    flavor: ClassVar[Flavor] = "sklearn"

    @property
    def recipe(self) -> Recipe:
        """What the family is made of."""
        return RECIPES[self.name]

    @property
    def takes_float32(self) -> bool:
        """Whether feature values beyond single precision count as infinite."""
        return self.recipe.takes_float32

    @property
    def takes_infinity(self) -> bool:
        """Whether infinite feature values can be fitted."""
        return self.recipe.takes_infinity

    def load(self) -> None:
        """Import what a fit needs."""
        self.recipe.estimator_class()

    def predicted_seconds(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit, by rows."""
        return self.recipe.seconds(self._all_params(), np.asarray(rows, dtype=np.float64), columns)

    def predicted_model_bytes(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected bytes of one model, by rows."""
        return self.recipe.model_bytes(self._all_params(), np.asarray(rows, dtype=np.float64), columns)

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit the pipeline on all rows."""
        model = self.fit_native(x, y, seed=seed, weight=weight)
        params = self.text_params(seed) | _stopped(model[-1] if hasattr(model, "steps") else model)
        return Fitted(PickledPredictor(model, is_importable=True), params, rows_used=len(x))

    def text_params(self, seed: int) -> dict[str, str]:
        """Return the parameters as fitted: the spec's, seed and threads."""
        return as_text(self._given_params(seed))

    def fit_native(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Any:
        """Return the fitted scikit-learn estimator: a pipeline, or the bare estimator where nothing is prepared."""
        estimator = self._estimator(seed)
        if self.features.text and self.recipe.preparation == "native":
            estimator.set_params(categorical_features=list(range(len(self.features.text))))
        model = self._pipeline(x, estimator)
        with _without_checks():
            if self._is_plain:
                fit_pipeline(model, x.to_numpy(), y, weight, self.last_weight(y, weight))
                model[0].feature_names_in_ = x.columns.to_numpy(dtype=object)
            else:
                fit_pipeline(model, x, y, weight, self.last_weight(y, weight))
        return model

    def last_weight(self, y: Floats, weight: Floats | None) -> Floats | None:
        """Return the weights of the estimator itself, where those of its preparation are `weight`."""
        return weight

    @property
    def _is_plain(self) -> bool:
        """Whether the model is a pipeline on numbers only.

        Such a one is fitted on the array and told the names afterwards: the same model, without the checks that
        scikit-learn makes per column of a frame, which take longer than the fit of a small key (1.5 to 1.7).
        """
        return not self.features.text and self.recipe.preparation in ("scaled", "imputed")

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit again, on these rows."""
        return self.fit(x, y, seed=seed, weight=weight)

    def _all_params(self) -> dict[str, Any]:
        return {**self.recipe.estimator_class()().get_params(), **self.params}

    def _given_params(self, seed: int) -> dict[str, Any]:
        params = {**self.params, "n_jobs": self.threads}
        if params.get("random_state") is None:
            params["random_state"] = seed
        known = self.recipe.estimator_class()().get_params()
        return {name: value for name, value in params.items() if name in known}

    def _estimator(self, seed: int) -> Any:
        fixed = {"strategy": self.name} if self.recipe.class_name == "DummyRegressor" else {}
        return self.recipe.estimator_class()(**fixed, **self._given_params(seed))

    def _pipeline(self, x: pd.DataFrame, estimator: Any) -> Any:
        preparation = self.recipe.preparation
        if preparation == "none" or (preparation == "native" and not self.features.text):
            return estimator
        from sklearn.pipeline import Pipeline

        if not self.features.text:
            return Pipeline([*_numeric_steps(preparation), (self.name, estimator)])
        return Pipeline([("columns", _columns(x, self.features, preparation, estimator)), (self.name, estimator)])


def _without_checks() -> Any:
    """Leave out what scikit-learn checks again per fit: parameters (checked on the driver) and finite values."""
    import sklearn

    return sklearn.config_context(assume_finite=True, skip_parameter_validation=True)


def _stopped(estimator: Any) -> dict[str, str]:
    """Return the rounds that were fitted, where the estimator stopped by itself before the last."""
    rounds = getattr(estimator, "n_iter_", None) or getattr(estimator, "n_estimators_", None)
    params = estimator.get_params()
    if not isinstance(rounds, int) or rounds >= (params.get("max_iter") or params.get("n_estimators") or 0):
        return {}
    return {"stopped_round": str(rounds)}


def _numeric_steps(preparation: Preparation) -> list[tuple[str, Any]]:
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    impute = (IMPUTE, SimpleImputer(strategy="median", keep_empty_features=True))
    return [impute, ("scale", StandardScaler())] if preparation == "scaled" else [impute]


def _columns(x: pd.DataFrame, features: Features, preparation: Preparation, estimator: Any) -> Any:
    """Return the column transformer: text first, then numbers, each column found by its name."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    if preparation == "native":
        text, numeric = _ordinal(x, features, estimator), "passthrough"
    else:
        text, numeric = _one_hot(x, features), Pipeline(_numeric_steps(preparation))
    parts = [("text", text, list(features.text)), ("numeric", numeric, list(features.numeric))]
    return ColumnTransformer([part for part in parts if part[2]], sparse_threshold=0)


def _one_hot(x: pd.DataFrame, features: Features) -> Any:
    from sklearn.preprocessing import OneHotEncoder

    most = min(MAX_ONE_HOT, max(10, MAX_ONE_HOT_CELLS // (len(x) * len(features.text))))
    return OneHotEncoder(categories=_categories(x, features, most), handle_unknown="ignore", sparse_output=False)


def _ordinal(x: pd.DataFrame, features: Features, estimator: Any) -> Any:
    """Codes of values; HistGradientBoosting takes at most `max_bins` of them (scikit-learn 1.5 to 1.7)."""
    from sklearn.preprocessing import OrdinalEncoder

    return OrdinalEncoder(
        categories=_categories(x, features, estimator.max_bins),
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
    )


def _categories(x: pd.DataFrame, features: Features, most: int) -> list[NDArray[Any]]:
    return [np.array(frequent_values(x[name], most), dtype=object) for name in features.text]


def frequent_values(column: pd.Series, most: int) -> list[str]:
    """Return the most frequent values of a text column in the order of the text, at least one.

    Ties go to the smaller text. A column with no value gives the empty text: encoders refuse an empty list.

    Examples
    --------
    >>> frequent_values(pd.Series(["b", None, "a", "b", "c"]), 2)
    ['a', 'b']
    >>> frequent_values(pd.Series([None, None], dtype=object), 2)
    ['']
    """
    counts = column.value_counts()
    by_count = sorted(zip(-counts.to_numpy(), counts.index, strict=True))
    return sorted(value for _, value in by_count[:most]) or [""]


def sklearn_family(settings: EstimatorSettings, features: Features) -> SklearnFamily:
    """Return the named family of the settings."""
    name = str(settings.name)
    return SklearnFamily(name, with_loss(name, settings.params, settings.metric), features, settings.threads)
