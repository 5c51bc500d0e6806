"""What a unit is told, and the outcomes that it returns: the columns of a row of the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from group_models.artifacts import FORMAT, NEWEST, digest, serialize
from group_models.estimators.base import EstimatorSettings, Fitted
from group_models.estimators.classifiers import ONE_CLASS
from group_models.fitting.deaths import NO_LIMITS, FitLimits
from group_models.frames import ColumnKind
from group_models.labels import Labels
from group_models.mlmodel import MlmodelTemplate
from group_models.spec import Importance, Metric, Tune
from group_models.tables import STORE, WHOLE, moment, utc_now

RESULT = tuple(name for name in STORE.names if name not in ("model_set", "run_id", "wave", "number", "attempt"))
"""Columns of a store row that a unit fills; the wave's adapter adds the others."""

MEASURED = WHOLE + 1
"""Part of the model of a whole key that has not seen the holdout; of a salted key's part it is `part + n_parts`."""


@dataclasses.dataclass(frozen=True)
class PoolSettings:
    """How models of keys build on those of parents.

    Attributes
    ----------
    estimator
        What is fitted: to what the parent gets wrong where `is_residual`, else to be mixed with the parent.
    half_rows
        Rows at which that counts half.
    template
        The `MLmodel` text of such models.
    """

    estimator: EstimatorSettings
    half_rows: float
    template: MlmodelTemplate
    is_residual: bool = True


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """All that a unit must know beside its rows and keys; small, and the same for all units of a run.

    Attributes
    ----------
    holdout_from_us
        First moment of the holdout in micros since 1970, where it is by time.
    overrides
        The settings for the keys of each override of the spec; their features are some of these.
    alternatives
        The settings of each other estimator that a key may get, from simple to complex; this one is the simplest.
    folds, min_fold_rows
        On how many folds they are tried, and the rows that each must have.
    is_in_time
        Folds are in the order of time, else by a hash of the row.
    gap_us
        Microseconds before it of which no row is in a fit that is measured.
    max_model_bytes
        Bytes over which a model is not stored.
    limits
        What the fit of one key may take.
    is_isolated
        Each key is fitted in a child process, so that one that kills its process is a row too.
    keeps_measured
        A whole key leaves the model that has not seen the holdout too, as its part 0: what its children are
        compared with.
    metric
        What decides which of two models is better.
    tuning
        How the parameters of a key's estimator are searched; None where they are the spec's.
    pooling
        Of a run whose keys build on parents; None of others, and of parents.
    importance
        Which importance of features is told of a model.
    intervals
        The levels of the intervals that are measured, ascending.
    """

    model_set: str
    run_id: str
    features: Mapping[str, ColumnKind]
    estimator: EstimatorSettings
    template: MlmodelTemplate
    refit: bool
    seed: int
    max_model_bytes: int
    holdout_by: Literal["time", "hash", "none"]
    holdout_share: float
    holdout_from_us: int | None
    limits: FitLimits = NO_LIMITS
    is_isolated: bool = False
    keeps_measured: bool = False
    metric: Metric = "mae"
    gap_us: int = 0
    overrides: tuple[FitSettings, ...] = ()
    alternatives: tuple[FitSettings, ...] = ()
    folds: int = 0
    min_fold_rows: int = 0
    is_in_time: bool = True
    pooling: PoolSettings | None = None
    tuning: Tune | None = None
    importance: Importance = "auto"
    intervals: tuple[float, ...] = ()

    @property
    def is_choosing(self) -> bool:
        """Whether each key's estimator, or its parameters, are chosen on folds."""
        return bool(self.alternatives) or self.tuning is not None

    def of(self, place: float | None) -> FitSettings:
        """Return the settings for the keys of an override; as they are for those of none."""
        if place is None or np.isnan(place):
            return self
        of_place = self.overrides[int(place)]
        names = ("estimator", "template", "features", "alternatives", "tuning")
        return dataclasses.replace(self, **{name: getattr(of_place, name) for name in names})

    @property
    def labels(self) -> Labels | None:
        """The labels of a classification; None of a regression."""
        return self.estimator.labels

    def choosing(self, place: int) -> FitSettings:
        """Return the settings with the estimator that is in this place of the candidates, the own one first."""
        if place == 0:
            return self
        other = self.alternatives[place - 1]
        return dataclasses.replace(self, estimator=other.estimator, template=other.template)

    def is_in_gap(self, time_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which rows are before the holdout, and too near to it to be in a fit that is measured on it."""
        if self.holdout_from_us is None or not self.gap_us:
            return np.zeros(len(time_us), dtype=np.bool_)
        return (time_us < self.holdout_from_us) & (time_us >= self.holdout_from_us - self.gap_us)


def identity(
    key_id: str, part: int, unit: int | None, seed: int, estimator: str, settings: FitSettings
) -> dict[str, Any]:
    """Return what the outcome of a key says whatever comes of it."""
    return {
        "key_id": key_id,
        "part": part,
        "format": FORMAT if is_plain(settings.estimator) else NEWEST,
        "estimator": estimator,
        "unit": unit,
        "seed": seed,
        "holdout_from": None if settings.holdout_from_us is None else moment(settings.holdout_from_us),
    }


def is_plain(estimator: EstimatorSettings) -> bool:
    """Return whether models are such as the readers of `artifacts.FORMAT` know: of numbers, as they are."""
    return estimator.labels is None and estimator.transform is None


def stored_columns(fitted: Fitted, key_id: str, key: str, settings: FitSettings) -> dict[str, Any]:
    """Return the model as columns, or why it is too big for them."""
    data, data_file = serialize(fitted)
    used = {"rows_used": fitted.rows_used, "params": dict(fitted.params)}
    if len(data) > settings.max_model_bytes:
        said = f"the model has {len(data):,} bytes; max_model_bytes is {settings.max_model_bytes:,}"
        return {"status": "model_too_big", "reason": said, "model_bytes": len(data), **used}
    return {
        "status": "trained",
        **used,
        "mlmodel": settings.template.render(key_id, key, utc_now()),
        "data": data,
        "data_file": data_file,
        "model_bytes": len(data),
        "sha256": digest(data),
    }


def one_class_columns(fitted: Fitted, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return status and reason of a key whose rows have one label only; nothing of any other, or of one without model.

    Such a key has a model, which always says that label.
    """
    if ONE_CLASS not in fitted.params or columns["status"] != "trained":
        return {}
    said = f"all its rows have the label {fitted.params[ONE_CLASS]!r}: its model says nothing else"
    return {"status": "one_class", "reason": "; ".join(filter(None, (columns.get("reason"), said)))}


def result_frame(outcomes: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return outcomes as typed columns: a column without a value is typed too, which Arrow needs."""
    columns = {name: [outcome.get(name) for outcome in outcomes] for name in RESULT}
    return pd.DataFrame({name: _typed(name, values) for name, values in columns.items()})


_PANDAS = {"int": "Int32", "bigint": "Int64", "double": "float64", "timestamp": "datetime64[us, UTC]"}
_DTYPES = {column.name: _PANDAS.get(column.type, "object") for column in STORE.columns}


def _typed(name: str, values: list[Any]) -> Any:
    return pd.Series(values, dtype=cast("Any", _DTYPES[name]))


def result_table(outcomes: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return outcomes as Arrow columns `RESULT`, maps included."""
    fields = [STORE.arrow_schema.field(name) for name in RESULT]
    rows = [{n: list(v.items()) if isinstance(v, dict) else v for n, v in row.items()} for row in outcomes]
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
    return pa.table(arrays, schema=pa.schema(fields))
