"""Measures and checks on plain numbers: the holdout's cutoff, metrics, infinite columns, errors as text."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]

Stage: TypeAlias = Literal["prepare", "fit", "evaluate", "refit", "serialize"]
"""Where in a key's training an error arose."""

MAX_MESSAGE = 500
"""Characters of an error's message that are kept."""

MAX_TRACEBACK = 2000
"""Characters of a traceback that are kept: the last ones, where the error was raised."""


def regression_metrics(y: Floats, prediction: Floats, weight: Floats | None = None) -> dict[str, float]:
    """Return `mae, rmse, r2, bias` of predictions, in the target's units (`r2` has none); {} for no rows.

    `bias` is mean(prediction - y): above zero the model predicts too much. `r2` is 1 - SSE / SST with SST
    about the mean of these rows. Where SST is 0 (one row, or a constant target) `r2` is 1 for exact
    predictions and else 0, as in scikit-learn's `r2_score(force_finite=True)`, there for two rows and more. A
    prediction that is not finite makes every metric NaN. With weights every mean and sum is weighted.

    Examples
    --------
    >>> regression_metrics(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    {'mae': 0.5, 'rmse': 0.7071067811865476, 'r2': 0.5, 'bias': 0.5}
    """
    if not len(y):
        return {}
    if not np.isfinite(prediction).all():
        return dict.fromkeys(("mae", "rmse", "r2", "bias"), float("nan"))
    if weight is not None:
        found = grouped_metrics(y, prediction, np.zeros(1, dtype=np.int64), weight)
        return {name: float(values[0]) for name, values in found.items()}
    error = prediction - y
    squared = float(error @ error)
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(squared / len(y))),
        "r2": _r2(y, squared),
        "bias": float(error.mean()),
    }


def _r2(y: Floats, squared_error: float) -> float:
    # `ptp` and not SST decides: the mean of equal numbers is not always equal to them.
    centred = y - y.mean()
    total = float(centred @ centred)
    # Squares of tiny distances may all be rounded to zero.
    if np.ptp(y) == 0.0 or total == 0.0:
        return 1.0 if squared_error == 0.0 else 0.0
    return 1.0 - squared_error / total


def grouped_metrics(
    y: Floats, prediction: Floats, starts: NDArray[np.int64], weight: Floats | None = None
) -> dict[str, Floats]:
    """Return `regression_metrics` of many keys at once: per metric one value per key.

    Parameters
    ----------
    starts
        Where each key's rows begin; the rows of a key stand together, and each key has some.

    Examples
    --------
    >>> found = grouped_metrics(np.array([1.0, 3.0, 5.0]), np.array([2.0, 3.0, 5.0]), np.array([0, 2]))
    >>> {name: values.tolist() for name, values in found.items()}
    {'mae': [0.5, 0.0], 'rmse': [0.7071067811865476, 0.0], 'r2': [0.5, 1.0], 'bias': [0.5, 0.0]}
    """
    rows = np.diff(np.append(starts, len(y)))
    each = np.ones(1) if weight is None else weight
    total_weight = rows if weight is None else np.add.reduceat(weight, starts)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = prediction - y
        squared = np.add.reduceat(error * error * each, starts)
        centred = y - np.repeat(np.add.reduceat(y * each, starts) / total_weight, rows)
        total = np.add.reduceat(centred * centred * each, starts)
        is_constant = (np.maximum.reduceat(y, starts) == np.minimum.reduceat(y, starts)) | (total == 0.0)
        r2 = np.where(is_constant, np.where(squared == 0.0, 1.0, 0.0), 1.0 - squared / total)
        found = {
            "mae": np.add.reduceat(np.abs(error) * each, starts) / total_weight,
            "rmse": np.sqrt(squared / total_weight),
            "r2": r2,
            "bias": np.add.reduceat(error * each, starts) / total_weight,
        }
    is_finite = np.logical_and.reduceat(np.isfinite(prediction), starts)
    return {name: np.where(is_finite, values, np.nan) for name, values in found.items()}


def holdout_cutoff(bucket_starts_us: ArrayLike, rows: ArrayLike, share: float) -> int | None:
    """Return the first moment of the holdout, in microseconds, or None if all rows are in one bucket.

    Of the cutoffs that are the start of a bucket and leave rows on both sides, the one whose share of rows at
    or after it is closest to `share`; of two equally close ones the later, which holds out less. It depends
    on the counts alone, not on their order or on how they were partitioned.

    Parameters
    ----------
    bucket_starts_us
        Start of each time bucket in microseconds, in any order; one that stands twice is added up.
    rows
        Usable rows in each bucket, over the whole model set.
    share
        Share of the rows to hold out.

    Examples
    --------
    >>> holdout_cutoff([30, 10, 20], [20, 40, 40], 0.2)
    30
    >>> holdout_cutoff([10], [100], 0.2) is None
    True
    """
    counts = np.asarray(rows, dtype=np.int64)
    starts, bucket = np.unique(np.asarray(bucket_starts_us, dtype=np.int64)[counts > 0], return_inverse=True)
    if len(starts) < 2:
        return None
    totals = np.zeros(len(starts), dtype=np.int64)
    np.add.at(totals, bucket, counts[counts > 0])
    held_out = np.cumsum(totals[::-1])[:-1]
    best = int(np.argmin(np.abs(held_out - share * totals.sum())))
    return int(starts[::-1][best])


def why_no_metrics(held: int, rows: int, gap: int = 0) -> str | None:
    """Return why a key of so many rows, so many of them held out, cannot be measured; None where it can.

    `gap` is how many rows are in the gap before the holdout.

    Examples
    --------
    >>> why_no_metrics(0, 10)
    'no metrics: no row of the key falls into the holdout'
    """
    if held == 0:
        return "no metrics: no row of the key falls into the holdout"
    if held == rows:
        return "no metrics: all rows of the key fall into the holdout; fitted on them"
    if held + gap == rows:
        return "no metrics: all rows of the key fall into the holdout or the gap before it; fitted on them"
    return None


def infinite_columns(values: NDArray[Any], names: Sequence[str], *, float32: bool) -> list[str]:
    """Return the names of the columns that hold an infinite value; NaN is not infinite.

    Parameters
    ----------
    values
        Rows x columns.
    names
        The columns' names.
    float32
        The estimator computes in single precision: a value that overflows it counts as infinite.

    Examples
    --------
    >>> infinite_columns(np.array([[1.0, 1e39], [np.inf, np.nan]]), ["a", "b"], float32=False)
    ['a']
    >>> infinite_columns(np.array([[1.0, 1e39], [np.nan, np.nan]]), ["a", "b"], float32=True)
    ['b']
    """
    with np.errstate(over="ignore", invalid="ignore"):
        seen = values.astype(np.float32) if float32 else values
        if not values.size or np.isfinite(seen.sum()):
            return []
    return [name for name, bad in zip(names, np.isinf(seen).any(axis=0), strict=True) if bad]


@dataclasses.dataclass(frozen=True)
class ErrorSummary:
    """An exception as the columns of a row of the store."""

    error_type: str
    error_message: str
    error_stage: Stage
    traceback: str


def error_summary(error: BaseException, stage: Stage) -> ErrorSummary:
    """Return an exception as text that fits into a table: cut, and without control or binary characters.

    An exception that cannot even be turned into text (its `__str__` raises) is named by its type.
    """
    told = traceback.TracebackException.from_exception(error)
    kind = type(error)
    # Of our own classes the place tells a reader nothing.
    is_known = kind.__module__ == "builtins" or kind.__module__.startswith("group_models.")
    name = kind.__qualname__ if is_known else f"{kind.__module__}.{kind.__qualname__}"
    lines = [_cut(line, MAX_MESSAGE) for line in told.format()]
    return ErrorSummary(name, printable(str(told), MAX_MESSAGE), stage, _last("".join(lines), MAX_TRACEBACK))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 4] + "...\n"


def _last(text: str, most: int) -> str:
    shown = printable(text, len(text) * 10)
    return shown if len(shown) <= most else "..." + shown[3 - most :]


def printable(text: str, most: int) -> str:
    r"""Return text of at most `most` characters with control, binary and lone surrogate characters escaped.

    Examples
    --------
    >>> printable("a\x00b" + "c" * 20, 10)
    'a\\x00bc...'
    """
    # Cut before escaping too: an estimator may put a whole matrix into its message.
    head = text[: most + 1]
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in head)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
