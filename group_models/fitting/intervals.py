"""What an outcome says of the intervals around its predictions: half widths, and how much they cover."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from group_models.conformal import Ints, as_map, coverage, half_widths, mixed
from group_models.evaluation import Floats

MAX_RESIDUALS = 100_000
"""Rows of a holdout that is in no one place whose residuals are kept: those of the lowest mixed hashes, a sample by
lot that is the same in whatever parts the rows came."""


@dataclasses.dataclass(frozen=True)
class GroupIntervals:
    """Half widths and coverage of many keys, as lists by key."""

    levels: Sequence[float]
    widths: Sequence[Sequence[float]]
    covered: Sequence[Sequence[float]]

    @classmethod
    def of(
        cls, y: Floats, prediction: Floats, row_hash: Ints, rows: Ints, levels: Sequence[float]
    ) -> GroupIntervals | None:
        """Return those of keys whose held out rows stand together; `rows` counts them, of each key some."""
        if not levels:
            return None
        owner, keys = np.repeat(np.arange(len(rows)), rows), len(rows)
        sizes = np.abs(prediction - y)
        widths = half_widths(sizes, owner, keys, levels)
        return cls(levels, widths.T.tolist(), coverage(sizes, row_hash, owner, keys, levels).T.tolist())

    def columns(self, place: int) -> dict[str, Any]:
        """Return the columns of one key."""
        found = {"interval": self.widths[place], "coverage": self.covered[place]}
        return {name: as_map(values, self.levels) for name, values in found.items()}


def interval_columns(y: Floats, prediction: Floats, row_hash: Ints, levels: Sequence[float]) -> dict[str, Any]:
    """Return `interval` and `coverage` of one key, from the rows of its holdout; nothing where none are asked for."""
    found = GroupIntervals.of(y, prediction, row_hash, np.array([len(y)]), levels)
    return {} if found is None else found.columns(0)


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """Absolute residuals of rows and their hashes, of a holdout that is in no one place; sums up in any grouping."""

    sizes: Floats = dataclasses.field(default_factory=lambda: np.empty(0))
    row_hash: Ints = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def merge(self, other: Residuals) -> Residuals:
        """Return the residuals of both, no more than are kept."""
        sizes, row_hash = (np.concatenate([getattr(each, n) for each in (self, other)]) for n in ("sizes", "row_hash"))
        # By size too, so that the order in which copies of a row come decides nothing.
        order = np.lexsort((sizes, row_hash, mixed(row_hash)))[:MAX_RESIDUALS]
        return Residuals(sizes[order], row_hash[order])

    def columns(self, levels: Sequence[float]) -> dict[str, Any]:
        """Return `interval` and `coverage`; nothing of no rows or where none are asked for."""
        if not len(self.sizes):
            return {}
        return interval_columns(np.zeros(len(self.sizes)), self.sizes, self.row_hash, levels)

    def pack(self) -> bytes:
        """Return them as one value that a Spark row carries."""
        return self.row_hash.astype("<i8").tobytes() + self.sizes.astype("<f8").tobytes()

    @classmethod
    def parse(cls, packed: bytes) -> Residuals:
        """Return what is packed into one value."""
        half = len(packed) // 2
        row_hash, sizes = np.frombuffer(packed[:half], "<i8"), np.frombuffer(packed[half:], "<f8")
        return cls(sizes.astype(np.float64), row_hash.astype(np.int64))
