"""Intervals around predictions from the errors of a holdout: split conformal prediction. Pure.

The half width at a level is the ceil((n + 1) * level)-th smallest of the n absolute residuals of rows that the model
has not seen. An interval of it covers the target of a new row with at least that probability, whatever model and
distribution, as long as the row could as well have been one of those n (Lei, G'Sell, Rinaldo, Tibshirani and Wasserman
2018, "Distribution-free predictive inference for regression", JASA 113; Angelopoulos and Bates 2023, "Conformal
prediction: a gentle introduction", Foundations and Trends in Machine Learning 16). Fewer than `least_rows(level)` rows
have no such order statistic, and no interval. Rows count alike, whatever their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from group_models.evaluation import Floats

Ints: TypeAlias = NDArray[np.int64]

_ROUNDED = 9
"""Digits to which a rank is rounded before it is rounded up: 10 * 0.9 may be a little more than 9."""

_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def level_name(level: float) -> str:
    """Return a level as the maps of the tables have it.

    Examples
    --------
    >>> level_name(0.9), level_name(0.975)
    ('0.9', '0.975')
    """
    return f"{level:g}"


def rank(rows: NDArray[np.int64] | int, level: float) -> NDArray[np.int64]:
    """Return which of so many residuals, in ascending order from 1, is the half width; more than there are is none.

    Examples
    --------
    >>> rank(np.array([9, 10, 8]), 0.9).tolist()
    [9, 10, 9]
    """
    return np.ceil(np.round((np.asarray(rows) + 1) * level, _ROUNDED)).astype(np.int64)


def least_rows(level: float) -> int:
    """Return the fewest rows that an interval of a level needs.

    Examples
    --------
    >>> least_rows(0.5), least_rows(0.9), least_rows(0.95)
    (1, 9, 19)
    """
    return math.ceil(round(1.0 / (1.0 - level) - 1.0, _ROUNDED))


def half_widths(sizes: Floats, owner: Ints, keys: int, levels: Sequence[float]) -> Floats:
    """Return the half width of each key at each level, shape (levels, keys); NaN where a key has too few rows.

    Parameters
    ----------
    sizes
        Absolute residuals.
    owner
        Per row the place of its key, in any order.

    Examples
    --------
    >>> half_widths(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0, 0, 0, 1]), 2, [0.5, 0.75]).tolist()
    [[2.0, 9.0], [3.0, nan]]
    """
    ordered = np.append(sizes[np.lexsort((sizes, owner))], np.nan)
    rows = np.bincount(owner, minlength=keys)
    starts = np.cumsum(rows) - rows
    found = np.empty((len(levels), keys))
    for place, level in enumerate(levels):
        wanted = rank(rows, level)
        found[place] = ordered[np.where(wanted <= rows, starts + wanted - 1, len(sizes))]
    return found


def coverage(sizes: Floats, row_hash: Ints, owner: Ints, keys: int, levels: Sequence[float]) -> Floats:
    """Return the share of each key's rows inside intervals that other rows made, shape (levels, keys).

    The key's rows are put into two halves by a hash of theirs; intervals of one half's residuals are held against the
    rows of the other, both ways. So no row is inside of an interval that it made itself. NaN where a half is too small
    for the level. The intervals that serve are of all rows and a little nearer to the level: of m rows the expected
    coverage is ceil((m + 1) * level) / (m + 1).
    """
    half = _halves(row_hash, owner, keys)
    group = owner * 2 + half
    made = half_widths(sizes, group, 2 * keys, levels)
    rows = np.maximum(np.bincount(owner, minlength=keys), 1)
    found = np.empty((len(levels), keys))
    for place, of_halves in enumerate(made):
        inside = np.bincount(owner, sizes <= of_halves[group ^ 1], keys) / rows
        found[place] = np.where(np.isnan(of_halves.reshape(keys, 2)).any(axis=1), np.nan, inside)
    return found


def _halves(row_hash: Ints, owner: Ints, keys: int) -> Ints:
    """Return 0 or 1 per row: half of each key's rows, those whose mixed hashes are the lowest, and the others."""
    order = np.lexsort((mixed(row_hash), owner))
    rows = np.bincount(owner, minlength=keys)
    starts = np.cumsum(rows) - rows
    place = np.empty(len(owner), dtype=np.int64)
    place[order] = np.arange(len(owner)) - np.repeat(starts, rows)
    return (place >= (rows // 2)[owner]).astype(np.int64)


def mixed(row_hash: Ints) -> NDArray[np.uint64]:
    """Return another hash of row hashes, on which nothing else depends (Steele, Lea and Flood 2014: SplitMix64)."""
    with np.errstate(over="ignore"):
        value = row_hash.astype(np.uint64) + _GOLDEN
        value = (value ^ (value >> np.uint64(30))) * _FIRST
        value = (value ^ (value >> np.uint64(27))) * _SECOND
        return np.asarray(value ^ (value >> np.uint64(31)), dtype=np.uint64)


def as_map(values: Sequence[float], levels: Sequence[float]) -> dict[str, float]:
    """Return the values of one key by level, without those that are NaN."""
    return {level_name(level): float(value) for level, value in zip(levels, values, strict=True) if value == value}  # noqa: PLR0124 - NaN


def fleet_coverage(coverages: Sequence[Mapping[str, float]], rows: Sequence[int]) -> dict[str, float]:
    """Return the share of all keys' rows inside their intervals by level, from that of each key and its rows.

    Examples
    --------
    >>> fleet_coverage([{"0.9": 1.0}, {"0.9": 0.8}, {}], [10, 30, 5])
    {'0.9': 0.85}
    """
    found = {}
    for name in dict.fromkeys(name for each in coverages for name in each):
        own = [(each[name], count) for each, count in zip(coverages, rows, strict=True) if name in each]
        total = sum(count for _, count in own)
        found[name] = sum(share * count for share, count in own) / total
    return found


def bound_names(level: float | str) -> tuple[str, str]:
    """Return the columns of a scored row that hold the bounds of a level, in percent.

    Examples
    --------
    >>> bound_names(0.9), bound_names("0.975")
    (('lower_90', 'upper_90'), ('lower_97_5', 'upper_97_5'))
    """
    return f"lower_{_percent(level)}", f"upper_{_percent(level)}"


def width_name(level: float | str) -> str:
    """Return the column that has the half width of a level beside a key.

    Examples
    --------
    >>> width_name(0.9)
    'half_width_90'
    """
    return f"half_width_{_percent(level)}"


def _percent(level: float | str) -> str:
    return f"{round(float(level) * 100, 6):g}".replace(".", "_")


def bounds_of(levels: Sequence[float]) -> tuple[str, ...]:
    """Return all columns of bounds, those of each level side by side."""
    return tuple(name for level in levels for name in bound_names(level))
