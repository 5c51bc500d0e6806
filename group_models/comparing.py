"""How much better one model predicts the same rows than another, and whether that is more than noise. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from group_models.class_metrics import log_losses
from group_models.evaluation import Floats, grouped_metrics
from group_models.spec import Metric

Ints: TypeAlias = NDArray[np.int64]

DIFFERENCE, ERROR_OF_IT, ROWS = "difference", "difference_se", "rows"


def simplest(metric: Metric) -> str:
    """Return the name of what needs no features, beside which models are measured: `median`, or of classes `prior`."""
    return "prior" if metric == "log_loss" else "median"


def losses(y: Floats, prediction: Floats, metric: Metric) -> Floats:
    """Return what each row adds to the metric: the size of its error, or for `rmse` its square.

    Of a classification (`log_loss`) the predictions are the probabilities that the rows' own labels got.
    """
    if metric == "log_loss":
        return log_losses(prediction)
    error = prediction - y
    return np.abs(error) if metric == "mae" else error * error


def mean_loss(metric_value: float | Floats, metric: Metric) -> Floats:
    """Return the mean loss of rows from their metric; what can be averaged over keys, weighted by rows."""
    value = np.asarray(metric_value, dtype=np.float64)
    return value * value if metric == "rmse" else value


def as_metric(loss: float | Floats, metric: Metric) -> Floats:
    """Return the metric of rows from their mean loss; inverse of `mean_loss`."""
    value = np.asarray(loss, dtype=np.float64)
    return np.sqrt(value) if metric == "rmse" else value


def error_together(metric: Metric, of_keys: Floats, rows: Floats) -> float:
    """Return the error over the rows of all keys, from those of each and their rows.

    Examples
    --------
    >>> error_together("mae", np.array([1.0, 4.0]), np.array([2.0, 1.0]))
    2.0
    >>> error_together("rmse", np.array([1.0, 7.0]), np.array([1.0, 1.0]))
    5.0
    """
    return float(as_metric(float(np.average(mean_loss(of_keys, metric), weights=rows)), metric))


def grouped_comparison(
    y: Floats, prediction: Floats, other: Floats, starts: Ints, metric: Metric, weight: Floats | None = None
) -> Mapping[str, Floats]:
    """Return, of each key, the metrics of another model on the same rows, and how its own model differs from it.

    Rows that the other model has no prediction of (NaN) are left out of all of it; a key without any has NaN.
    `difference` is the mean over rows of the own model's loss less the other's: below zero the own model is better.
    `difference_se` is the standard error of that mean, the rows taken as independent: s / sqrt(n) with s about the
    mean and n - 1 degrees of freedom (Student 1908, "The probable error of a mean", for paired differences); NaN of
    one row. With weights the mean is weighted, and its standard error is that of a weighted mean,
    sqrt(n / (n - 1) * sum((w * (d - mean)) ** 2)) / sum(w) (Cochran 1977, "Sampling techniques", 6.3): the same for
    weights that are all alike.

    Parameters
    ----------
    starts
        Where each key's rows begin; the rows of a key stand together, and each key has some.

    Examples
    --------
    >>> y, own, other = np.zeros(4), np.array([1.0, 1, 1, 5]), np.array([2.0, 4, np.nan, np.nan])
    >>> found = grouped_comparison(y, own, other, np.array([0, 3]), "mae")
    >>> [found[name].tolist() for name in ("mae", "difference", "difference_se", "rows")]
    [[3.0, nan], [-2.0, nan], [1.0, nan], [2.0, 0.0]]
    """
    keys = len(starts)
    is_there = ~np.isnan(other)
    rows = np.add.reduceat(is_there, starts, dtype=np.int64) if keys else np.zeros(0, dtype=np.int64)
    flags = rows > 0
    names = ("log_loss",) if metric == "log_loss" else ("mae", "rmse", "r2", "bias")
    values = {name: np.full(keys, np.nan) for name in (*names, DIFFERENCE, ERROR_OF_IT)}
    if flags.any():
        counts = rows[flags]
        begins = np.cumsum(counts) - counts
        y, prediction, other = y[is_there], prediction[is_there], other[is_there]
        weight = None if weight is None else weight[is_there]
        differences = _differences(y, prediction, other, begins, counts, metric, weight)
        found = {**_metrics(y, other, begins, metric, weight), **differences}
        for name, of_keys in found.items():
            values[name][flags] = of_keys
    return {**values, ROWS: rows.astype(np.float64)}


def _metrics(
    y: Floats, prediction: Floats, starts: Ints, metric: Metric, weight: Floats | None
) -> Mapping[str, Floats]:
    if metric != "log_loss":
        return grouped_metrics(y, prediction, starts, weight)
    each = np.ones(len(y)) if weight is None else weight
    loss = np.add.reduceat(losses(y, prediction, metric) * each, starts) / np.add.reduceat(each, starts)
    return {"log_loss": loss}


def _differences(
    y: Floats,
    prediction: Floats,
    other: Floats,
    starts: Ints,
    counts: Ints,
    metric: Metric,
    weight: Floats | None,
) -> dict[str, Floats]:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        difference = losses(y, prediction, metric) - losses(y, other, metric)
        if weight is not None:
            total = np.add.reduceat(weight, starts)
            mean = np.add.reduceat(difference * weight, starts) / total
            centred = (difference - np.repeat(mean, counts)) * weight
            spread = np.add.reduceat(centred * centred, starts) * counts / (counts - 1)
            return {DIFFERENCE: mean, ERROR_OF_IT: np.sqrt(spread) / total}
        mean = np.add.reduceat(difference, starts) / counts
        centred = difference - np.repeat(mean, counts)
        variance = np.add.reduceat(centred * centred, starts) / (counts - 1)
        return {DIFFERENCE: mean, ERROR_OF_IT: np.sqrt(variance / counts)}
