"""Users' own estimators: a dotted path, a callable that returns an estimator, or an estimator.

The frame reaches them as it is (missing values and text kept): no check is stricter than their own. What they
get from here is seed and threads and, where they ask for early stopping, rows to watch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import io
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.errors import SpecError
from group_models.estimators.base import (
    PICKLE_PROTOCOL,
    EstimatorSettings,
    Features,
    Fitted,
    Flavor,
    Floats,
    PickledPredictor,
    Shipped,
    as_text,
    take_control,
)
from group_models.estimators.boosters import too_few, watched_rows
from group_models.estimators.weights import fit_arguments

_ON_DRIVER_ONLY = ("SparkSession", "SparkContext", "DataFrame")


def resolve(path: str, *, where: str = "the estimator") -> Any:
    """Return what `package.module:attribute` names; `where` says in messages which part of the spec has it.

    Raises
    ------
    SpecError
        The text has no such form, the module cannot be imported, or it has no such attribute.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        message = f"{path!r} is no dotted path; write package.module:attribute"
        raise SpecError([message], where=where)
    if module_name == "__main__":
        message = f"{path!r}: workers have another __main__; give the object itself, or move it into a module"
        raise SpecError([message], where=where)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        message = f"{path!r}: module {module_name} cannot be imported here ({type(error).__name__}: {error})"
        raise SpecError([message], where=where) from error
    if not hasattr(module, attribute):
        raise SpecError([f"{path!r}: module {module_name} has no {attribute}"], where=where)
    return getattr(module, attribute)


class TravelPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles as cloudpickle does, but nothing that works on the driver only."""

    def reducer_override(self, obj: Any) -> Any:  # noqa: D102  pickle's own hook
        # A Connect session pickles without an error; every worker that reads it fails (seen in Spark 4.2).
        if type(obj).__module__.startswith("pyspark.") and type(obj).__name__ in _ON_DRIVER_ONLY:
            raise pickle.PicklingError(f"a {type(obj).__name__} works on the driver only")
        return super().reducer_override(obj)


def unpicklable_part(value: Any, *, depth: int = 4) -> str | None:
    """Return which part of a value keeps it from the workers (`helper.lock (_thread.lock)`); None for a free one.

    Looked into are attributes, also those of a method's object, what a function encloses, arguments of a
    `partial`, and containers.
    """
    try:
        TravelPickler(io.BytesIO(), protocol=PICKLE_PROTOCOL).dump(value)
    except Exception:  # noqa: BLE001 - pickling runs code of any class
        for name, part in _parts(value).items() if depth else ():
            if (found := unpicklable_part(part, depth=depth - 1)) is not None:
                return f"{name}.{found}" if found[0] != "(" else f"{name} {found}"
        return f"({type(value).__module__}.{type(value).__qualname__})"
    return None


def _parts(value: Any) -> dict[str, Any]:
    """Return what a value is made of, by name."""
    if inspect.ismethod(value):
        return _parts(value.__self__)
    if inspect.isfunction(value):
        enclosed = inspect.getclosurevars(value)
        return {**enclosed.nonlocals, **enclosed.globals}
    if isinstance(value, functools.partial):
        return {"func": value.func, **_parts(value.args), **value.keywords}
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return {str(place): part for place, part in enumerate(value)}
    members = dict(getattr(value, "__dict__", {}))
    return {name: part for name, part in members.items() if name not in ("__dict__", "__weakref__")}


@dataclasses.dataclass(frozen=True)
class ObjectFamily:
    """A user's estimator, made anew for each key."""

    name: str
    object: Any
    params: Mapping[str, Any]
    features: Features
    threads: int = 1
    validation_share: float = 0.2
    flavor: ClassVar[Flavor] = "sklearn"
    takes_float32: ClassVar[bool] = False
    takes_infinity: ClassVar[bool] = True

    def load(self) -> None:
        """Import the module of a dotted path."""
        self.resolved()

    def predicted_seconds(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit: unknown, so those of a small boosted model."""
        return 0.02 + 2e-6 * np.asarray(rows, dtype=np.float64) * columns

    def predicted_model_bytes(self, rows: NDArray[Any], columns: int) -> Floats:  # noqa: ARG002  unknown
        """Return the expected bytes of one model: unknown, so those of a small boosted model."""
        return np.full(len(rows), 200_000.0)

    def resolved(self) -> Any:
        """Return the estimator or callable itself."""
        return resolve(self.object) if isinstance(self.object, str) else self.object

    def make(self, seed: int) -> Any:
        """Return a new estimator; a callable gets the spec's params, and `seed` if it has that argument."""
        source = self.resolved()
        if not hasattr(source, "fit") or inspect.isclass(source):
            return source(**self._arguments(source, seed))
        made = clone(source)
        if self.params:
            made.set_params(**self.params)
        return made

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit one key's rows; with `early_stopping_rounds` the last of them are only watched.

        A user's estimator gets copies: one that works in place would change what it is measured on.
        """
        x, y = x.copy(), y.copy()
        estimator = self.make(seed)
        params = as_text(self.params) | take_control(estimator, seed=seed, threads=self.threads)
        if not stops_early(estimator):
            return _fit_all(estimator, x, y, params, weight)
        watched = self.watched(y)
        if watched is not None:
            return _fit_watched(estimator, x, y, params, weight, watched=watched)
        _last_step(estimator).set_params(early_stopping_rounds=None)
        return _fit_all(estimator, x, y, params | too_few(len(x)), weight)

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit all rows, after early stopping with the rounds that it chose."""
        x, y = x.copy(), y.copy()
        estimator = self.make(seed)
        take_control(estimator, seed=seed, threads=self.threads)
        if stops_early(estimator):
            rounds = {} if fitted.rounds is None else {"n_estimators": fitted.rounds}
            _last_step(estimator).set_params(early_stopping_rounds=None, **rounds)
        return dataclasses.replace(_fit_all(estimator, x, y, fitted.params, weight), rounds=fitted.rounds)

    def watched(self, y: Any) -> int | None:
        """Return how many of the last rows early stopping watches; None where it is left out."""
        return watched_rows(len(y), self.validation_share)

    def _arguments(self, source: Any, seed: int) -> dict[str, Any]:
        is_asked = _takes(source, "seed") and "seed" not in self.params
        return {**self.params, "seed": seed} if is_asked else dict(self.params)


def _takes(function: Any, argument: str) -> bool:
    try:
        return argument in inspect.signature(function).parameters
    except ValueError:  # some built-in types have no signature
        return False


def clone(estimator: Any) -> Any:
    """Return an unfitted copy of an estimator; a plain copy of one that scikit-learn cannot clone."""
    if not hasattr(estimator, "get_params"):
        return copy.deepcopy(estimator)
    import sklearn.base

    return sklearn.base.clone(estimator)


def _last_step(estimator: Any) -> Any:
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator


def stops_early(estimator: Any) -> bool:
    """Return whether an estimator, or the last step of its pipeline, needs rows to watch, as xgboost's do."""
    return getattr(_last_step(estimator), "early_stopping_rounds", None) is not None


def _fit_all(estimator: Any, x: pd.DataFrame, y: Floats, params: Mapping[str, str], weight: Floats | None) -> Fitted:
    estimator.fit(x, y, **fit_arguments(estimator, weight))
    return Fitted(PickledPredictor(estimator), dict(params), rows_used=len(x))


def _fit_watched(
    estimator: Any, x: pd.DataFrame, y: Floats, params: Mapping[str, str], weight: Floats | None, *, watched: int
) -> Fitted:
    """Fit with the last rows watched; they pass the same fitted steps as the others."""
    train, rest = x.iloc[:-watched], x.iloc[-watched:]
    for _, step in getattr(estimator, "steps", [])[:-1]:
        if hasattr(step, "transform"):
            train, rest = step.fit_transform(train, y[:-watched]), step.transform(rest)
    model = _last_step(estimator)
    quiet = {"verbose": False} if _takes(model.fit, "verbose") else {}
    weights: dict[str, Any] = {} if weight is None else {"sample_weight": weight[:-watched]}
    if weight is not None and _takes(model.fit, "sample_weight_eval_set"):
        weights["sample_weight_eval_set"] = [weight[-watched:]]
    model.fit(train, y[:-watched], eval_set=[(rest, y[-watched:])], **quiet, **weights)
    best = _first(model, "best_iteration", "best_iteration_")
    facts = as_text({"best_iteration": best, "stopped_round": _rounds(model)})
    rounds = None if best is None else int(best) + 1
    return Fitted(PickledPredictor(estimator), dict(params) | facts, rows_used=len(train), rounds=rounds)


def _first(model: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(model, name, None)) is not None), None)


def _rounds(model: Any) -> int | None:
    booster = model.get_booster() if hasattr(model, "get_booster") else None
    return None if booster is None else int(booster.num_boosted_rounds())


def object_family(settings: EstimatorSettings, features: Features) -> ObjectFamily:
    """Return the family of the settings' object, unpacked where it travelled with its code."""
    source, params = settings.object, dict(settings.params)
    if isinstance(source, Shipped):
        source, params = source.load()
    return ObjectFamily(
        settings.label,
        source,
        params,
        features,
        settings.threads,
        settings.validation_share,
    )
