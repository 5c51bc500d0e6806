"""From settings to a family, and every mistake in the settings at once."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, Family, Features, Floats
from group_models.estimators.boosters import BoosterFamily, booster_family
from group_models.estimators.classifiers import CLASS_FAMILIES, CLASS_RECIPES, PRIOR, class_family
from group_models.estimators.closed_families import BATCHED, closed_family
from group_models.estimators.families import RECIPES, sklearn_family
from group_models.estimators.objects import ObjectFamily, object_family, unpicklable_part
from group_models.estimators.transformed import TransformedFamily
from group_models.estimators.weights import weight_mistake

FAMILIES: Mapping[str, Callable[[EstimatorSettings, Features], Family]] = {
    **dict.fromkeys(RECIPES, sklearn_family),
    **dict.fromkeys(BATCHED, closed_family),
    "xgboost": booster_family,
}
"""The named families."""

_NATIVE_NAMES = {
    "alpha": "reg_alpha",
    "eta": "learning_rate",
    "lambda": "reg_lambda",
    "min_split_loss": "gamma",
    "nthread": "n_jobs",
    "num_boost_round": "n_estimators",
    "num_round": "n_estimators",
    "seed": "random_state",
}
_OBJECTIVE_PARAMS = frozenset({"huber_slope", "quantile_alpha", "tweedie_variance_power"})
_DECIDED_HERE = frozenset(
    {"callbacks", "enable_categorical", "feature_types", "feature_weights", "importance_type", "missing"}
)
"""Parameters of `XGBRegressor` that have no meaning here or are decided by the columns."""

_COUNTS = ("n_estimators", "early_stopping_rounds")

# What users' code and the libraries raise over a wrong parameter or column; anything else is shown as it is.
_FAULTS = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)


def make_family(settings: EstimatorSettings, features: Features) -> Family:
    """Return the family that the settings choose; `check_settings` says whether they are right.

    Raises
    ------
    SpecError
        The name is unknown.
    """
    if settings.name is not None and settings.name not in _known(settings):
        raise SpecError([_unknown_name(settings)])
    if settings.labels is not None:
        return class_family(settings, features)
    family = object_family(settings, features) if settings.name is None else FAMILIES[settings.name](settings, features)
    return family if settings.transform is None else TransformedFamily(family, settings.transform)


def _known(settings: EstimatorSettings) -> Collection[str]:
    """Return the names of the families that fit what is asked: numbers, or classes."""
    return FAMILIES if settings.labels is None else CLASS_FAMILIES


def check_settings(settings: EstimatorSettings, features: Features, *, is_weighted: bool = False) -> list[str]:
    """Return one sentence per mistake, found on the driver and without Spark.

    Parameters are compared with the class's own, and their values judged by the library. A user's callable is
    called once. Only if there are text features, a user's estimator is fitted to twelve synthetic rows: one
    that cannot take text would fail for every key alike.
    """
    if (settings.name is None) == (settings.object is None):
        return ["estimator: give either a name (one of " + ", ".join(sorted(_known(settings))) + ") or an object"]
    mistakes, is_class = _range_mistakes(settings), settings.labels is not None
    if settings.name is None:
        family = object_family(settings, features)
        return mistakes + _object_mistakes(family, is_weighted=is_weighted, is_class=is_class)
    if settings.name not in _known(settings):
        return [*mistakes, _unknown_name(settings)]
    if settings.name == "xgboost":
        # Which objective a classifier gets is for each key's labels to say; the rest is the same.
        objective = "binary:logistic" if is_class else None
        return mistakes + _booster_mistakes(booster_family(settings, features), objective=objective)
    if settings.name == PRIOR:
        return mistakes + _unknown_params(PRIOR, settings.params, ())
    recipes = CLASS_RECIPES if is_class else RECIPES
    return mistakes + _sklearn_mistakes(settings.name, settings.params, recipes[settings.name].estimator_class())


def _range_mistakes(settings: EstimatorSettings) -> list[str]:
    mistakes = []
    if settings.threads < 1:
        mistakes.append(f"estimator.threads is {settings.threads}; it must be at least 1")
    if not 0 < settings.validation_share < 1:
        share = settings.validation_share
        mistakes.append(f"estimator.validation_share is {share}; it must be between 0 and 1")
    return mistakes


def _unknown_name(settings: EstimatorSettings) -> str:
    name, families = str(settings.name), _known(settings)
    known = ", ".join(sorted(families))
    if name in FAMILIES:
        return f"estimator.name {name!r} fits numbers, and the task is classification; take one of {known}"
    if name in CLASS_FAMILIES:
        return f"estimator.name {name!r} fits classes: say `task: classification`, or take one of {known}"
    return f"estimator.name {name!r} is unknown{_meant(name, families)}; it is one of {known}"


def _meant(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _unknown_params(family: str, names: Iterable[str], known: Collection[str]) -> list[str]:
    unknown = [name for name in names if name not in known]
    takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
    return [f"estimator.params: {family} has no {name!r}{_meant(name, known)}; {takes}" for name in unknown]


def _sklearn_mistakes(name: str, params: Mapping[str, Any], cls: Any) -> list[str]:
    known = [] if name in ("median", "mean") else [p for p in cls().get_params() if p != "categorical_features"]
    mistakes = _unknown_params(name, params, known)
    estimator = cls(**{name: value for name, value in params.items() if name in known})
    try:
        # Since scikit-learn 1.2 each fit begins with this; without it the values are judged by the first key.
        getattr(estimator, "_validate_params", lambda: None)()
    except ValueError as error:
        mistakes.append(f"estimator.params: {error}")
    return mistakes


def _booster_mistakes(family: BoosterFamily, *, objective: str | None) -> list[str]:
    if importlib.util.find_spec("xgboost") is None:
        return ["estimator xgboost needs the xgboost package: pip install 'group-models[xgboost]'"]
    import xgboost

    params = family.params
    if objective is not None:
        if "objective" in params:
            return ["estimator.params: the labels of each key decide the objective of a classifier; leave it out"]
        family = dataclasses.replace(family, params={**params, "objective": objective})
    known = ({*xgboost.XGBRegressor().get_params()} | _OBJECTIVE_PARAMS) - _DECIDED_HERE
    native = [name for name in params if name in _NATIVE_NAMES]
    mistakes = [f"estimator.params: write {_NATIVE_NAMES[n]} for {n}, as in XGBRegressor" for n in native]
    mistakes += _unknown_params("xgboost", [name for name in params if name not in native], known)
    if params.get("booster") == "gblinear":
        mistakes.append("estimator.params: booster gblinear is not supported; use the estimator ridge")
    callables = [name for name, value in params.items() if callable(value)]
    mistakes += [f"estimator.params: {name} must be a name, not a function" for name in callables]
    mistakes += [_count_mistake(n, params[n]) for n in _COUNTS if not _is_count(params.get(n))]
    return mistakes or _trial_mistakes(family)


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


def _count_mistake(name: str, value: Any) -> str:
    return f"estimator.params: {name} is {value!r}; it must be a whole number from 1"


def _trial_mistakes(family: BoosterFamily) -> list[str]:
    """Fit one round to a few rows: the library judges names and values by itself."""
    params = {**family.params, "n_estimators": 1, "early_stopping_rounds": None}
    x, y = synthetic_rows(family.features)
    try:
        BoosterFamily(params, family.features).fit(x, y, seed=0)
    except (TypeError, ValueError) as error:
        return [f"estimator.params: xgboost refuses them: {_first_line(error)}"]
    return []


def _object_mistakes(family: ObjectFamily, *, is_weighted: bool, is_class: bool) -> list[str]:
    try:
        source = family.resolved()
    except SpecError as error:
        return [f"estimator.object {mistake}" for mistake in error.mistakes]
    if not callable(source) and not hasattr(source, "fit"):
        kind = type(source).__name__
        return [f"estimator.object {family.name!r} is a {kind}; it must be callable or an estimator"]
    if (part := unpicklable_part(family.object) or unpicklable_part(family.params)) is not None:
        return [_pickle_mistake(f"estimator.object {family.name!r} cannot be sent to the workers", part)]
    return _made_mistakes(family, is_weighted=is_weighted, is_class=is_class)


def _made_mistakes(family: ObjectFamily, *, is_weighted: bool, is_class: bool) -> list[str]:
    try:
        estimator = family.make(seed=0)
    except _FAULTS as error:
        given = ", ".join(family.params) or "no arguments"
        return [f"estimator.object {family.name!r} fails when called with {given}: {_show(error)}"]
    needed = ("fit", "predict_proba" if is_class else "predict")
    lacking = [name for name in needed if not callable(getattr(estimator, name, None))]
    if lacking:
        what = f"estimator.object {family.name!r} gives a {type(estimator).__name__}"
        return [f"{what} without {' and '.join(lacking)}; it must have {' and '.join(needed)}"]
    if is_weighted and (said := weight_mistake(estimator)):
        what = f"estimator.object {family.name!r} gives a {type(estimator).__name__}, and {said}"
        asked = "sample_weight or class_weight" if is_class else "sample_weight"
        return [f"{what}, which the spec's {asked} needs; take another estimator, or leave {asked} out"]
    if (part := unpicklable_part(estimator)) is not None:
        what = f"estimator.object {family.name!r} gives a {type(estimator).__name__} that cannot be stored"
        return [_pickle_mistake(what, part)]
    return _text_mistakes(family, is_class=is_class) if family.features.text else []


def _pickle_mistake(what: str, part: str) -> str:
    return f"{what}: {part} does not pickle; make it where it is used (in fit, in the callable), or leave it out"


def _text_mistakes(family: ObjectFamily, *, is_class: bool) -> list[str]:
    x, y = synthetic_rows(family.features)
    try:
        family.fit(x, (y > np.median(y)).astype(np.int64) if is_class else y, seed=0).predict(x)
    except _FAULTS as error:
        columns = ", ".join(f"{name} (string)" for name in family.features.text)
        what = f"estimator.object {family.name!r} cannot take the text features {columns}: {_show(error)}"
        way_out = "return a Pipeline that encodes them (ColumnTransformer with OneHotEncoder)"
        return [f"{what}; {way_out}, or leave them out"]
    return []


def synthetic_rows(features: Features, *, rows: int = 12) -> tuple[pd.DataFrame, Floats]:
    """Return a few rows of the features, without missing values, and a target in (0, 1): for trial fits.

    Such a target is within the range of every objective for numbers, of logarithms and rates too.
    """
    numbers = np.random.default_rng(0).uniform(0.1, 0.9, size=(rows, len(features.numeric) + 1))
    columns: dict[str, Any] = {name: numbers[:, place] for place, name in enumerate(features.numeric)}
    columns |= {name: pd.Series(["a", "b", "c"] * rows, dtype=object)[:rows] for name in features.text}
    return pd.DataFrame({name: columns[name] for name in features.names}), numbers[:, -1]


def _show(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
