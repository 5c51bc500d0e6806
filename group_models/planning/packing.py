"""Pack keys into units, cut units into waves, place units on partitions. Pure arithmetic."""

from __future__ import annotations

import heapq
import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

UNITS_PER_SLOT = 8
"""Units that each slot gets in a wave: enough that one slow unit does not leave the others idle."""

MIN_UNIT_SECONDS = 0.3
"""Below this a unit costs more to start than to train; seen with Spark 4.0 to 4.2 on two cores."""


def part_rows(n_parts: Ints) -> tuple[Ints, Ints]:
    """Return, for each part of each key in order, the place of its key and the part's number within it.

    Examples
    --------
    >>> [a.tolist() for a in part_rows(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    owner = np.repeat(np.arange(len(n_parts)), n_parts)
    return owner, np.arange(len(owner)) - (np.cumsum(n_parts) - n_parts)[owner]


def unit_count(seconds: Floats, *, slots: int, wave_s: float) -> int:
    """Return how many units to aim for: `UNITS_PER_SLOT` per slot and wave, fewer where they would be tiny."""
    total = float(seconds.sum())
    waves = max(1, round(total / (slots * wave_s)))
    worthwhile = max(slots, int(total / MIN_UNIT_SECONDS))
    return max(1, min(len(seconds), waves * slots * UNITS_PER_SLOT, max(worthwhile, waves)))


def pack(seconds: Floats, loads: Floats, limits: tuple[float, ...], count: int) -> Ints:
    """Assign keys to units: longest first, each onto the least loaded unit whose limits it keeps.

    Longest processing time first is at most 4/3 of the best makespan (Graham, 1969, SIAM J. Appl. Math. 17).
    A unit that cannot take the next key is closed; where all are closed, a new one is opened.

    Parameters
    ----------
    seconds
        Expected seconds per key, shape (keys,).
    loads
        What is bounded per unit (data bytes, model bytes), shape (keys, limits). A key over a limit gets a
        unit of its own.
    limits
        Upper bound of each load per unit.
    count
        Units to open at first.

    Returns
    -------
    Unit per key, from 0, shape (keys,).
    """
    unit = np.empty(len(seconds), dtype=np.int64)
    open_units = [(0.0, u) for u in range(count)]
    room = [list(limits) for _ in range(count)]
    order = np.argsort(-seconds, kind="stable")
    # Columns, so that of a million keys no list each is kept; without a limit there are none.
    columns = [column.tolist() for column in loads[order].T]
    of_keys = zip(*columns, strict=True) if columns else itertools.repeat(())
    for i, took, load in zip(order.tolist(), seconds[order].tolist(), of_keys, strict=False):
        while open_units and not _fits(load, room[open_units[0][1]], limits):
            heapq.heappop(open_units)
        if not open_units:
            room.append(list(limits))
            heapq.heappush(open_units, (0.0, len(room) - 1))
        time, u = open_units[0]
        left = room[u]
        for place, need in enumerate(load):
            left[place] -= need
        heapq.heapreplace(open_units, (time + took, u))
        unit[i] = u
    return unit


def _fits(load: tuple[float, ...], room: list[float], limits: tuple[float, ...]) -> bool:
    """Return whether a load fits into the room left; into an empty unit anything does."""
    # It runs once per key: a generator for `all` would take twice as long.
    for need, left, limit in zip(load, room, limits, strict=True):  # noqa: SIM110
        if need > left and left != limit:
            return False
    return True


def order_units(packed: Ints, seconds: Floats, *, slots: int, wave_s: float) -> tuple[Ints, Ints, Ints]:
    """Renumber units largest first, cut them into waves, and number the keys of each unit.

    Returns unit, wave and place in the unit, per key.
    """
    if not len(packed):
        return packed, packed, packed
    used, compact = np.unique(packed, return_inverse=True)
    totals = np.bincount(compact, weights=seconds, minlength=len(used))
    rank = np.empty(len(used), dtype=np.int64)
    rank[np.argsort(-totals, kind="stable")] = np.arange(len(used))
    unit = rank[compact]
    wave = wave_of_units(np.sort(totals.astype(np.float64))[::-1], slots=slots, wave_s=wave_s)[unit]
    order = np.argsort(unit, kind="stable")
    starts = np.searchsorted(unit[order], np.arange(len(used)))
    index = np.empty(len(unit), dtype=np.int64)
    index[order] = np.arange(len(unit)) - starts[unit[order]]
    return unit, wave, index


def wave_of_units(seconds: Floats, *, slots: int, wave_s: float) -> Ints:
    """Return the wave of each unit: consecutive units whose seconds on all slots come to about `wave_s`."""
    waves = max(1, round(float(seconds.sum()) / (slots * wave_s)))
    middle = np.cumsum(seconds) - seconds / 2
    total = max(float(seconds.sum()), np.finfo(float).tiny)
    wave = np.minimum((middle / total * waves).astype(np.int64), waves - 1)
    return np.unique(wave, return_inverse=True)[1].astype(np.int64)


def place(candidates: Ints, partitions: Ints, count: int) -> Ints:
    """Choose unit ids that Spark's own hash spreads one to a partition.

    Parameters
    ----------
    candidates, partitions
        Ints and the partition of `count` that Spark's `pmod(hash(int), count)` gives each.
    count
        Number of partitions and of ids wanted.

    Returns
    -------
    Per partition the id that lands there, so that the unit placed first is in partition 0 and starts first.

    Raises
    ------
    ValueError
        Some partition has no candidate; offer more.
    """
    found, first = np.unique(partitions, return_index=True)
    if len(found) < count:
        raise ValueError(f"{len(candidates)} candidates reach {len(found)} of {count} partitions; offer more")
    return candidates[first]


def makespan(seconds: Floats, slots: int) -> float:
    """Return the seconds until units that start in this order on `slots` slots are all done."""
    ends = [0.0] * slots
    for duration in seconds.tolist():
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
