"""Folds of a key's training rows, and which of several candidates they speak for. Pure numpy."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Places: TypeAlias = npt.NDArray[np.intp]
Fold: TypeAlias = tuple[Places, Places]
"""Places of the rows to fit and of those to validate on."""


def time_folds(time_us: Ints, count: int, *, min_rows: int, gap_us: int = 0) -> list[Fold]:
    """Return folds in the order of time: each block of rows is validated on by what was fitted to earlier rows.

    The rows are cut into one block more than there are folds (a rolling origin, see Hyndman and Athanasopoulos,
    "Forecasting: principles and practice", 5.10). Rows of the moment with which a block begins, and those in the gap
    before it, are not fitted to. A key of which a fold has less than `min_rows` rows on either side gets none.

    Parameters
    ----------
    time_us
        Ascending.

    Examples
    --------
    >>> [(fit.tolist(), validate.tolist()) for fit, validate in time_folds(np.arange(6), 2, min_rows=2)]
    [([0, 1], [2, 3]), ([0, 1, 2, 3], [4, 5])]
    """
    edges = np.linspace(0, len(time_us), count + 2).astype(np.intp)
    folds = []
    for start, end in itertools.pairwise(edges[1:]):
        if start == end:
            return []
        seen = int(np.searchsorted(time_us, time_us[start] - gap_us, "left"))
        folds.append((np.arange(seen), np.arange(start, end)))
    return _enough(folds, min_rows)


def hash_folds(fold: Ints, *, min_rows: int) -> list[Fold]:
    """Return folds by each row's own: each is validated on by what was fitted to the others.

    Examples
    --------
    >>> [(fit.tolist(), validate.tolist()) for fit, validate in hash_folds(np.array([0, 1, 0, 1]), min_rows=2)]
    [([1, 3], [0, 2]), ([0, 2], [1, 3])]
    """
    return _enough([(np.flatnonzero(fold != own), np.flatnonzero(fold == own)) for own in np.unique(fold)], min_rows)


def _enough(folds: list[Fold], min_rows: int) -> list[Fold]:
    is_enough = len(folds) > 1 and all(min(len(fit), len(validate)) >= min_rows for fit, validate in folds)
    return folds if is_enough else []


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Which candidate was chosen, and why.

    Attributes
    ----------
    place
        Its place in the list, simple ones first.
    best
        Place of the one with the lowest mean error.
    means
        Mean error of each candidate over the folds; NaN of one that failed in a fold.
    standard_error
        Of the best one's mean.
    """

    place: int
    best: int
    means: tuple[float, ...]
    standard_error: float


def choose(errors: Sequence[Sequence[float]]) -> Chosen | None:
    """Return the first candidate that is no worse than the best one by more than one standard error; None for none.

    The one-standard-error rule of Breiman, Friedman, Olshen and Stone (1984, "Classification and regression trees",
    3.4.3): among those that the folds cannot tell apart, the simplest.

    Parameters
    ----------
    errors
        Of each candidate, from simple to complex, its error on each fold; one that is not finite says that it failed.

    Examples
    --------
    >>> choose([[3.0, 3.2], [1.1, 1.3], [1.0, 1.2]])
    Chosen(place=1, best=2, means=(3.1, 1.2000000000000002, 1.1), standard_error=0.09999999999999998)
    """
    table = np.asarray(errors, dtype=np.float64)
    means = np.where(np.isfinite(table).all(axis=1), table.mean(axis=1), np.nan)
    if np.isnan(means).all():
        return None
    best = int(np.nanargmin(means))
    spread = float(table[best].std(ddof=1) / np.sqrt(table.shape[1])) if table.shape[1] > 1 else 0.0
    place = int(np.argmax(means <= means[best] + spread))
    return Chosen(place, best, tuple(means.tolist()), spread)
