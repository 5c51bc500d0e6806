"""Exact order statistics of a column too large to sort in one place: the same on any partitioning.

`percentile_approx` differs with the partitioning, and exact `percentile` holds every distinct value in one task. Here
the approximate one only says where to look: the values near the wanted rank are counted, and the count decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc

_ACCURACY = 10_000
_SLACK = 2 / _ACCURACY
"""How far around the wanted ranks to look, as a share of the rows."""


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A value of a column: how many rows have a smaller one, and how many have this one."""

    value: Any
    before: int
    ties: int


def values_at(rows: DataFrame, column: str, ranks: Sequence[int], count: int) -> list[Ranked]:
    """Return the values at some ranks, from 0, of a column of numbers without null and NaN.

    Two jobs, and about 0.06% of the distinct values on the driver.

    Parameters
    ----------
    ranks
        Ranks close to each other, ascending.
    count
        Rows of the frame.
    """
    shares = [max(0.0, ranks[0] / count - _SLACK), min(1.0, (ranks[-1] + 1) / count + _SLACK)]
    low, high = rows.select(F.percentile_approx(column, shares, _ACCURACY)).collect()[0][0]
    near = F.when(F.col(column) >= low, F.col(column))
    found = _ranked(_counts(rows.where(F.col(column) <= high), near), ranks)
    # Large integers are rounded to doubles inside `percentile_approx`, so that few rows may all be beyond its answer.
    return found or _ranked(_counts(rows, F.col(column)), ranks) or []


def _counts(rows: DataFrame, value: Column) -> pa.Table:
    return rows.groupBy(value.alias("value")).agg(F.count("*").alias("rows")).toArrow()


def _ranked(counts: pa.Table, ranks: Sequence[int]) -> list[Ranked]:
    """Return the values at some ranks, given counts by value (those below in one, null); [] if one is not in there."""
    is_near = counts["value"].is_valid()
    near = counts.filter(is_near).sort_by("value")
    below = int(np.sum(counts["rows"].to_numpy())) - int(np.sum(near["rows"].to_numpy()))
    ends = below + np.cumsum(near["rows"].to_numpy())
    if ranks[0] < below or not len(ends) or ranks[-1] >= ends[-1]:
        return []
    places = np.searchsorted(ends, ranks, side="right").tolist()
    ties = [near["rows"][place].as_py() for place in places]
    return [Ranked(near["value"][p].as_py(), int(ends[p]) - n, n) for p, n in zip(places, ties, strict=True)]


def exact_median(rows: DataFrame, column: str, count: int) -> float:
    """Return the median of a column, as numpy's is: of an even number of rows the mean of the middle two."""
    low, high = values_at(rows, column, [(count - 1) // 2, count // 2], count)
    return float(np.median([low.value, high.value]))


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where the last rows begin in the order of a fit, by time and then by row hash.

    Attributes
    ----------
    rows
        Rows from there on.
    """

    time_us: int
    row_hash: int
    rows: int

    def is_after(self) -> Column:
        """Return whether a row is one of the last."""
        time, row_hash = F.col(sc.TIME), F.col(sc.HASH)
        is_later = (time == F.lit(self.time_us)) & (row_hash >= F.lit(self.row_hash))
        return (time > F.lit(self.time_us)) | is_later


def cut_last(rows: DataFrame, wanted: int, count: int) -> Cut:
    """Return where the last rows begin; identical rows there are not told apart, so there may be a few more."""
    (time,) = values_at(rows, sc.TIME, [count - wanted], count)
    first = count - wanted - time.before
    of_moment = rows.where(F.col(sc.TIME) == F.lit(time.value))
    (row_hash,) = values_at(of_moment, sc.HASH, [first], time.ties)
    return Cut(time.value, row_hash.value, count - time.before - row_hash.before)
