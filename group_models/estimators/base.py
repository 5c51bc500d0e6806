"""What an estimator is here: the features, the settings, the protocols, and the control of seeds and threads.

The families that implement the protocols are in `families` (scikit-learn and users' objects) and `boosters`
(xgboost). Importing this module imports neither scikit-learn nor xgboost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import cloudpickle
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.frames import ColumnKind
from group_models.labels import Labels
from group_models.spec import ClassWeight, Metric

Floats: TypeAlias = NDArray[np.float64]

Flavor: TypeAlias = Literal[
    "sklearn", "xgboost", "group_models", "ensemble", "pooled", "bounded", "classes", "transformed"
]
"""Which loader reads a stored model: MLflow's own for scikit-learn or xgboost, or this package's."""

PICKLE_PROTOCOL = 5
"""The newest protocol of Python 3.8 to 3.13, fixed so that a worker's default never decides."""

IMPUTE = "group_models_impute"
"""Name of the first step of the pipelines that the named families make for columns of numbers, and of no other."""

_THREAD_PARAMS = frozenset({"n_jobs", "nthread", "num_threads", "thread_count"})


@dataclasses.dataclass(frozen=True)
class Features:
    """The feature columns: the numeric ones, the text ones, and all of them in the order declared."""

    numeric: tuple[str, ...]
    text: tuple[str, ...]
    names: tuple[str, ...]


def features_of(kinds: Mapping[str, ColumnKind]) -> Features:
    """Return feature columns by kind."""
    return Features(
        numeric=tuple(name for name, kind in kinds.items() if kind == "numeric"),
        text=tuple(name for name, kind in kinds.items() if kind == "text"),
        names=tuple(kinds),
    )


@dataclasses.dataclass(frozen=True)
class Shipped:
    """A user's estimator or callable and its params, pickled, with the code of the modules named."""

    label: str
    data: bytes = dataclasses.field(repr=False)
    modules: tuple[str, ...] = ()

    def load(self) -> tuple[Any, dict[str, Any]]:
        """Return estimator or callable, and params: in one process always the same ones."""
        return _unpickled(self.data)


@functools.lru_cache(maxsize=8)
def _unpickled(data: bytes) -> tuple[Any, dict[str, Any]]:
    source, params = pickle.loads(data)  # noqa: S301  pickled by the driver of the same run
    return source, params


@dataclasses.dataclass(frozen=True)
class EstimatorSettings:
    """Which estimator to fit per key, as the spec says it.

    Attributes
    ----------
    name
        A named family, or None where `object` is given.
    params
        Parameters of the named family, under the names of its scikit-learn class; with an object, the
        arguments of the callable or parameters of the estimator.
    object
        `package.module:attribute`, a callable that returns an estimator, an estimator, or one of these `Shipped`.
    version
        What the user calls this state of `object`.
    threads
        Threads of one fit.
    validation_share
        Share of a key's rows (its last ones) that early stopping watches.
    metric
        What a named family minimises where it can and its parameters say nothing else; None leaves it to its library.
    labels
        Of a classification its labels, empty before they are known; None of a regression.
    class_weight
        How much the rows of each label count.
    transform
        What is done to a regression's target before a fit, and undone after each prediction.
    """

    name: str | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    object: Any = None
    version: str | None = None
    threads: int = 1
    validation_share: float = 0.2
    metric: Metric | None = None
    labels: Labels | None = None
    class_weight: ClassWeight | None = None
    transform: str | None = None

    @property
    def label(self) -> str:
        """The family's name, or the dotted path or class of the object."""
        if self.name is not None:
            return self.name
        if isinstance(self.object, str):
            return self.object
        if isinstance(self.object, Shipped):
            return self.object.label
        named: Any = self.object if hasattr(self.object, "__qualname__") else type(self.object)
        return f"{named.__module__}:{named.__qualname__}"


class Predictor(Protocol):
    """A fitted model that predicts and can be written as the bytes of one file."""

    @property
    def native(self) -> Any:
        """The scikit-learn estimator or the xgboost Booster."""

    @property
    def data_file(self) -> str:
        """The file's name; it says how to read the bytes."""

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row of the feature columns; of classes a row of probabilities."""

    def dump(self) -> bytes:
        """Return the model as bytes."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What a fit returns.

    Attributes
    ----------
    params
        The parameters as fitted: the spec's, seed, threads and what early stopping found.
    rows_used
        Rows the model was fitted on; rows that early stopping only watched do not count.
    rounds
        Boosting rounds that early stopping chose; None without early stopping.
    """

    predictor: Predictor
    params: dict[str, str]
    rows_used: int
    rounds: int | None = None

    @property
    def native(self) -> Any:
        """The scikit-learn estimator or the xgboost Booster."""
        return self.predictor.native

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row of the feature columns."""
        return self.predictor.predict(x)


class Family(Protocol):
    """An estimator as the spec chose it, ready to be fitted to any number of keys. Picklable."""

    @property
    def name(self) -> str:
        """The family's name or the object's dotted path."""

    @property
    def threads(self) -> int:
        """Threads of one fit."""

    @property
    def flavor(self) -> Flavor:
        """Which loader reads its models."""

    @property
    def takes_float32(self) -> bool:
        """Whether the family computes in single precision: values beyond it count as infinite."""

    @property
    def takes_infinity(self) -> bool:
        """Whether infinite values are left to the estimator; else they are refused by the column's name."""

    def load(self) -> None:
        """Import what a fit needs, so that thread limits find its libraries."""

    def predicted_seconds(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit with one thread, by rows."""

    def predicted_model_bytes(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected bytes of one stored model, by rows."""

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit one key's rows, by their weights if there are; with early stopping the last of them are only watched."""

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit all rows again as `fitted` was, after early stopping with the rounds that it chose."""


@dataclasses.dataclass(frozen=True)
class PickledPredictor:
    """A scikit-learn compatible estimator, stored by cloudpickle (classes of a notebook by value).

    Attributes
    ----------
    is_importable
        All its classes can be imported anywhere, so that plain pickle writes the same at a fraction of the time.
    """

    native: Any
    is_importable: bool = False
    data_file: ClassVar[str] = "model.pkl"

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row.

        Raises
        ------
        ValueError
            The estimator did not answer one number per row.
        """
        if not len(x):
            return np.empty(0)
        with warnings.catch_warnings():
            # Of our own doing: an array in place of a frame has no names, and its columns are checked here.
            warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
            prediction = np.asarray(self.native.predict(self.given(x)), dtype=np.float64)
        if prediction.size != len(x):
            raise ValueError(f"predict gave {prediction.size} values for {len(x)} rows; one a row is needed")
        return prediction.reshape(len(x))

    def given(self, x: pd.DataFrame) -> Any:
        """Return a copy of the frame, or its array where the first step is our imputer of just these columns.

        Of a frame with more columns than the model was fitted on, those.

        A copy, because a user's estimator may work in place.
        The array spares scikit-learn's checks per column of a frame, which take longer than the prediction.
        """
        fitted = getattr(self.native, "feature_names_in_", None)
        if fitted is not None and len(fitted) < len(x.columns) and set(fitted) <= set(x.columns):
            x = x[list(fitted)]
        steps = getattr(self.native, "steps", None)
        if not steps or steps[0][0] != IMPUTE or not np.array_equal(x.columns, self.native.feature_names_in_):
            return x.copy()
        return x.to_numpy(dtype=np.float64)

    def dump(self) -> bytes:
        """Return the model as bytes."""
        if self.is_importable:
            return pickle.dumps(self.native, protocol=PICKLE_PROTOCOL)
        return bytes(cloudpickle.dumps(self.native, protocol=PICKLE_PROTOCOL))

    @classmethod
    def parse(cls, data: bytes) -> PickledPredictor:
        """Return the model that `dump` wrote; this runs code, so the bytes must be trusted."""
        return cls(pickle.loads(data))  # noqa: S301  the caller has compared the digest


def take_control(estimator: Any, *, seed: int, threads: int) -> dict[str, str]:
    """Set seed and threads wherever an estimator has them, also in nested estimators; return what was set.

    A `random_state` that is an integer already is the user's choice and stays; None and generators, with
    which two runs would differ, are replaced. Thread parameters are always set.
    """
    if not hasattr(estimator, "get_params"):
        return {}
    params = estimator.get_params(deep=True)
    changes = {name: threads for name in params if _last(name) in _THREAD_PARAMS}
    states = {name: value for name, value in params.items() if _last(name) == "random_state"}
    changes |= {name: seed for name, value in states.items() if not isinstance(value, int | np.integer)}
    estimator.set_params(**changes)
    for splitter in params.values():
        if not hasattr(splitter, "get_params") and getattr(splitter, "random_state", 0) is None:
            splitter.random_state = seed
    return as_text(states | changes)


def _last(name: str) -> str:
    return name.rpartition("__")[2]


def as_text(params: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters as text, without those that are None.

    Examples
    --------
    >>> as_text({"alpha": 1.0, "solver": None})
    {'alpha': '1.0'}
    """
    return {name: str(value) for name, value in params.items() if value is not None}


@contextlib.contextmanager
def one_thread(family: Family | None = None) -> Iterator[None]:
    """Hold BLAS and OpenMP at one thread, or at as many as the family was given.

    The limits reach only libraries that are loaded (threadpoolctl 3), so the family's are imported first.
    Entering costs about 10 ms, so it goes around a unit of keys and not around one key.
    """
    # Before the limits: scikit-learn and SciPy bring their own OpenMP and BLAS.
    import sklearn.ensemble  # noqa: F401
    import threadpoolctl

    if family is not None:
        family.load()
    with threadpoolctl.threadpool_limits(limits=1 if family is None else family.threads):
        yield
