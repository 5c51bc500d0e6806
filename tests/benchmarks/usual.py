"""The usual work per key, as one writes it with pandas and scikit-learn: what all sides but the product's do.

It is there twice. As people write it, models are fitted on the frames that grouping gives, and know the names of their
columns. Written by somebody who minds the time, they are fitted on arrays: scikit-learn checks the columns of a frame
one by one, which takes longer than the fit of a small key.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from group_models.evaluation import regression_metrics
from tests.benchmarks.workloads import FEATURES, ID, KEYS, TARGET, Workload

Form: TypeAlias = Literal["frames", "arrays"]
"""What models are fitted on and predict."""

TIME_US = "time_us"
METRICS = ["mae", "rmse", "r2", "bias"]
COLUMNS = [*KEYS, "rows", *METRICS, *[f"baseline_{name}" for name in METRICS], "model"]
"""One row per key: metrics of the model and of the training median on the holdout, and the pickled model."""

DDL = ", ".join(
    [
        *[f"{name} string" for name in KEYS],
        "rows bigint",
        *[f"{name} double" for name in COLUMNS[len(KEYS) + 1 : -1]],
        "model binary",
    ]
)
"""`COLUMNS` as Spark's schema."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """What is fitted per key, and the moment of the split in microseconds since 1970."""

    workload: Workload
    cutoff_us: int
    form: Form = "frames"


def new_model(estimator: str, params: Mapping[str, Any]) -> Any:
    """Return what is fitted: the pipeline that the product's family is, or xgboost's scikit-learn class."""
    if estimator == "xgboost":
        from xgboost import XGBRegressor

        return XGBRegressor(**params, n_jobs=1, random_state=7)
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    impute = SimpleImputer(strategy="median", keep_empty_features=True)
    return Pipeline([("impute", impute), ("scale", StandardScaler()), ("ridge", Ridge(**params))])


def fit_key(frame: pd.DataFrame, fit: Fit) -> tuple[Any, dict[str, float]]:
    """Split, fit, measure on the holdout, fit again on all rows; return the model and its metrics.

    Parameters
    ----------
    frame
        One key's rows in order of time: `time_us`, the target and the features as float64.
    """
    x, y = inputs(frame, fit.form), _target(frame, fit.form)
    is_held = frame[TIME_US].to_numpy() >= fit.cutoff_us
    metrics: dict[str, float] = {}
    if is_held.any() and not is_held.all():
        model = new_model(fit.workload.estimator, fit.workload.params)
        model.fit(x[~is_held], y[~is_held])
        metrics = _measure(np.asarray(y[is_held]), model.predict(x[is_held]), np.median(y[~is_held]))
    model = new_model(fit.workload.estimator, fit.workload.params)
    model.fit(x, y)
    return model, metrics


def inputs(frame: pd.DataFrame, form: Form) -> Any:
    """Return the features as the usual models take them."""
    return frame[FEATURES] if form == "frames" else frame[FEATURES].to_numpy(np.float64)


def _target(frame: pd.DataFrame, form: Form) -> Any:
    return frame[TARGET] if form == "frames" else frame[TARGET].to_numpy()


def _measure(y: np.ndarray, prediction: np.ndarray, median: np.floating[Any]) -> dict[str, float]:
    baseline = regression_metrics(y, np.full(len(y), median))
    of_model = regression_metrics(y, np.asarray(prediction, dtype=np.float64))
    return of_model | {f"baseline_{name}": value for name, value in baseline.items()}


def key_row(key: tuple[str, ...], frame: pd.DataFrame, fit: Fit) -> dict[str, Any]:
    """Return the row `COLUMNS` of one key."""
    model, metrics = fit_key(frame, fit)
    named = dict(zip(KEYS, key, strict=True))
    return {**named, "rows": len(frame), **metrics, "model": pickle.dumps(model)}


def predict_sample(sample: pd.DataFrame, models: Mapping[tuple[str, ...], Any], form: Form) -> dict[str, float]:
    """Return the prediction of each row of the sample by its id, by the usual models."""
    found: dict[str, float] = {}
    for key, rows in sample.groupby(KEYS):
        prediction = models[key].predict(inputs(rows.astype(dict.fromkeys(FEATURES, np.float64)), form))
        found |= zip(map(str, rows[ID]), map(float, prediction), strict=True)
    return found
