"""Measures of classifiers on plain numbers: log loss, AUC, F1, accuracy and confusion counts; the class prior."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from group_models.labels import best

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

CONFUSION = "confusion "
"""What names of confusion counts begin with; then come the actual and the predicted label as a JSON list."""

_LEAST = float(np.finfo(np.float64).eps)


def log_losses(probability: Floats) -> Floats:
    """Return what each row adds to the log loss, from the probability that its own label got.

    It is held within [eps, 1 - eps] of doubles, as scikit-learn's `log_loss` holds it: a label that a model gave no
    chance costs 36.04, and is not infinite. NaN stays.
    """
    return np.asarray(-np.log(np.clip(probability, _LEAST, 1 - _LEAST)))


def of_own_label(matrix: Floats, codes: Floats) -> Floats:
    """Return the probability that each row's own label got.

    Examples
    --------
    >>> of_own_label(np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([1.0, 0.0])).tolist()
    [0.75, 0.5]
    """
    return np.asarray(matrix[np.arange(len(codes)), codes.astype(np.int64)])


def class_shares(codes: Floats, count: int, weight: Floats | None = None) -> Floats:
    """Return the share of each label among rows: what the class prior gives every row.

    Examples
    --------
    >>> class_shares(np.array([0.0, 2.0, 2.0, 2.0]), 3).tolist()
    [0.25, 0.0, 0.75]
    """
    counts = np.bincount(codes.astype(np.int64), weight, count).astype(np.float64)
    return np.asarray(counts / counts.sum())


def class_metrics(
    codes: Floats, matrix: Floats, names: Sequence[str], weight: Floats | None = None
) -> dict[str, float]:
    """Return `log_loss, accuracy, f1, auc` and confusion counts of probabilities; {} for no rows.

    `f1` is the mean over the labels that occur or are predicted (macro). `auc` is the mean over labels of that of one
    label against the others, of two labels that of either; it is left out where all rows have one label. With weights
    all but the counts are weighted.

    Parameters
    ----------
    codes
        Each row's label as its place in `names`.
    matrix
        Probabilities, shape (rows, labels).

    Examples
    --------
    >>> found = class_metrics(np.array([0.0, 1.0]), np.array([[0.5, 0.5], [0.25, 0.75]]), ["no", "yes"])
    >>> found["accuracy"], found["auc"], found['confusion ["yes", "yes"]']
    (1.0, 1.0, 1.0)
    """
    if not len(codes):
        return {}
    actual, predicted = codes.astype(np.int64), best(matrix)
    each = np.ones(len(codes)) if weight is None else weight
    counts = confusion(actual, predicted, len(names))
    weighted = counts if weight is None else confusion(actual, predicted, len(names), weight)
    found = {"log_loss": float(np.average(log_losses(of_own_label(matrix, codes)), weights=each))}
    found |= scores(weighted)
    if (area := auc(actual, matrix, each)) is not None:
        found["auc"] = area
    return found | confusion_entries(counts, names)


def confusion(actual: Ints, predicted: Ints, count: int, weight: Floats | None = None) -> Floats:
    """Return rows by actual and predicted label, shape (labels, labels)."""
    cells = np.bincount(actual * count + predicted, weight, count * count)
    return cells.reshape(count, count).astype(np.float64)


def confusion_entries(counts: Floats, names: Sequence[str]) -> dict[str, float]:
    """Return the confusion counts above 0 by name.

    Examples
    --------
    >>> confusion_entries(np.array([[2.0, 0.0], [1.0, 0.0]]), ["a", "b"])
    {'confusion ["a", "a"]': 2.0, 'confusion ["b", "a"]': 1.0}
    """
    return {
        confusion_name(names[actual], names[predicted]): float(counts[actual, predicted])
        for actual, predicted in zip(*(at.tolist() for at in np.nonzero(counts)), strict=True)
    }


def confusion_name(actual: str, predicted: str) -> str:
    """Return the name of a confusion count among a key's metrics."""
    return CONFUSION + json.dumps([actual, predicted], ensure_ascii=False)


def confusion_of(metrics: Mapping[str, float]) -> dict[tuple[str, str], int]:
    """Return the confusion counts among a key's metrics, by actual and predicted label."""
    found = {name.removeprefix(CONFUSION): value for name, value in metrics.items() if name.startswith(CONFUSION)}
    return {(pair[0], pair[1]): int(value) for name, value in found.items() for pair in [json.loads(name)]}


def without_confusion(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a key's metrics without confusion counts."""
    return {name: value for name, value in metrics.items() if not name.startswith(CONFUSION)}


def scores(weighted: Floats) -> dict[str, float]:
    """Return accuracy and macro F1 from a confusion matrix.

    Examples
    --------
    >>> scores(np.array([[2.0, 0.0], [1.0, 1.0]]))
    {'accuracy': 0.75, 'f1': 0.7333333333333334}
    """
    right, seen = np.diag(weighted), weighted.sum(axis=0) + weighted.sum(axis=1)
    of_labels = 2 * right[seen > 0] / seen[seen > 0]
    return {"accuracy": float(right.sum() / weighted.sum()), "f1": float(of_labels.mean())}


def auc(actual: Ints, matrix: Floats, weight: Floats) -> float | None:
    """Return the mean over the labels that occur of the area under the ROC curve of one against the others."""
    present = np.unique(actual)
    if len(present) < 2:
        return None
    return float(np.mean([_area(actual == code, matrix[:, code], weight) for code in present.tolist()]))


def _area(is_own: NDArray[np.bool_], score: Floats, weight: Floats) -> float:
    """Return the share of pairs of an own and another row of which the own has the higher score, ties by half.

    That is the statistic of Mann and Whitney (1947), equal to the area under the ROC curve (Hanley and McNeil 1982).
    """
    _, place = np.unique(score, return_inverse=True)
    own, other = (np.bincount(place, weight * flags) for flags in (is_own, ~is_own))
    below = np.cumsum(other) - other
    return float(own @ (below + other / 2) / (own.sum() * other.sum()))
