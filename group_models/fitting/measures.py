"""What predictions are measured by, and beside what: numbers and their median, classes and their prior."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from group_models.class_metrics import class_metrics, class_shares, of_own_label, without_confusion
from group_models.estimators.weights import weighted_median
from group_models.evaluation import Floats, regression_metrics
from group_models.labels import Labels, aligned

TRAIN_MEDIAN = "train_median"
"""Key of `baseline_metrics` of a part: the median target of the rows that its measured model was fitted on."""

TRAIN_SHARE = "train_share "
"""With a label's code after it, of classes: the share of that label among those rows."""


def metrics_of(y: Floats, prediction: Floats, labels: Labels | None, weight: Floats | None = None) -> dict[str, float]:
    """Return the metrics of predictions: numbers, or where there are labels probabilities of them."""
    if labels is None:
        return regression_metrics(y, prediction, weight)
    return class_metrics(y, prediction, labels.names, weight)


def baseline_metrics(
    y: Floats, train: Mapping[str, float], labels: Labels | None, weight: Floats | None
) -> dict[str, float]:
    """Return the metrics of what needs no features: the median of the training rows, or their class prior.

    Parameters
    ----------
    train
        What `train_baseline` says of the training rows.
    """
    return without_confusion(metrics_of(y, baseline_prediction(len(y), train, labels), labels, weight))


def baseline_prediction(rows: int, train: Mapping[str, float], labels: Labels | None) -> Floats:
    """Return what the baseline says of so many rows: the median of the training rows, or their class prior."""
    if labels is None:
        return np.full(rows, train[TRAIN_MEDIAN])
    return np.tile(shares_of(train, labels), (rows, 1))


def train_baseline(y: Floats, labels: Labels | None, weight: Floats | None = None) -> dict[str, float]:
    """Return what a baseline is made of, as entries of `baseline_metrics`: the median, of classes the shares too.

    Of classes the median is that of their codes, and only marks the rows of models that can be measured.
    """
    found = {TRAIN_MEDIAN: weighted_median(y, weight)}
    if labels is None:
        return found
    shares = class_shares(y, len(labels.names), weight)
    return found | {f"{TRAIN_SHARE}{code}": float(share) for code, share in enumerate(shares) if share}


def shares_of(train: Mapping[str, float], labels: Labels) -> Floats:
    """Return the share of each label among training rows."""
    return np.array([train.get(f"{TRAIN_SHARE}{code}", 0.0) for code in range(len(labels.names))])


def not_finite(prediction: Floats) -> int:
    """Return how many rows have a prediction that is not finite."""
    return int(np.count_nonzero(~np.isfinite(prediction).reshape(len(prediction), -1).all(axis=1)))


def comparable(prediction: Floats, y: Floats, labels: Labels | None, own: Labels | None = None) -> Floats:
    """Return one number a row that models are compared by: the prediction, or the probability of the row's own label.

    Parameters
    ----------
    own
        The labels of the model that predicted, where they may be others than those of `y`.
    """
    if labels is None or not len(y):
        return prediction
    return of_own_label(aligned(prediction, own or labels, labels), y)
