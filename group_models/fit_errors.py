"""How far a model is from the rows that it was fitted on, beside the holdout, and what that says of the fit. Pure."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from group_models.evaluation import Floats

Ints: TypeAlias = NDArray[np.int64]

OVER_RATIO = 1.5
"""A fit is `over` where its error rises from its training rows to the holdout by more than so many times as that of
the training median does: that one's rise tells how much harder the holdout is."""

UNDER_SHARE = 0.95
"""A fit is `under` where its error on its own training rows is more than this share of the training median's."""

MIN_FLAG_ROWS = 20
"""Rows, of the training and of the holdout, below which nothing is said."""


def grouped_errors(y: Floats, prediction: Floats, starts: Ints, weight: Floats | None = None) -> dict[str, Floats]:
    """Return `mae, rmse` of many keys at once, as `evaluation.grouped_metrics` has them.

    Examples
    --------
    >>> found = grouped_errors(np.array([1.0, 3.0, 5.0]), np.array([2.0, 3.0, 5.0]), np.array([0, 2]))
    >>> {name: values.round(3).tolist() for name, values in found.items()}
    {'mae': [0.5, 0.0], 'rmse': [0.707, 0.0]}
    """
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(prediction - y)
        square = size * size
        if weight is not None:
            size, square = size * weight, square * weight
        rows = np.diff(np.append(starts, len(y))) if weight is None else np.add.reduceat(weight, starts)
        return {
            "mae": np.add.reduceat(size, starts) / rows,
            "rmse": np.sqrt(np.add.reduceat(square, starts) / rows),
        }


def fit_flags(train: Floats, holdout: Floats, base_train: Floats, base_holdout: Floats) -> NDArray[np.object_]:
    """Return `over`, `under` or `ok` per key, from the errors of its model and of the training median; None of NaN.

    Examples
    --------
    >>> errors = np.array([1.0, 1.0, 9.9]), np.array([4.0, 1.2, 10.0])
    >>> fit_flags(*errors, np.full(3, 10.0), np.full(3, 11.0)).tolist()
    ['over', 'ok', 'under']
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        harder = np.where((base_train > 0) & (base_holdout > 0), base_holdout / base_train, 1.0)
        is_over = holdout > OVER_RATIO * train * harder
        is_under = (base_train > 0) & (train > UNDER_SHARE * base_train)
    flags = np.where(is_over, "over", np.where(is_under, "under", "ok")).astype(object)
    flags[~np.isfinite(train + holdout + base_train + base_holdout)] = None
    return flags
