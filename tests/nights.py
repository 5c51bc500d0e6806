"""Simulated nights: keys come, go, change, fail and heal; and a plain model of what each night must come to.

The model shares nothing with the package: it remembers, per key, which run serves it and what that run saw.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

MODEL_SET = "zrl.ml.nights"
MIN_ROWS = 5
MAX_VANISHED_SHARE = 0.5
FIRST_KEYS = 8
FEW, USUAL, MANY = MIN_ROWS - 1, 8, 60
MAX_KEY_ROWS = 40
"""Of so many rows a key is trained whole; one of `MANY` is salted."""


@dataclasses.dataclass(frozen=True)
class Data:
    """The rows of one key on one night; equal values are equal rows."""

    version: int
    rows: int = USUAL
    is_poison: bool = False


Night = Mapping[str, Data]
"""What the source holds: the data of each key that has any."""


def table(night: Night) -> pa.Table:
    """Return the rows of a night; a poisoned key has a feature that no ridge can be fitted to."""
    rows = [(key, place, data) for key, data in night.items() for place in range(data.rows)]
    return pa.table(
        {
            "key": pa.array([key for key, _, _ in rows], pa.string()),
            "x": pa.array(
                [float("inf") if data.is_poison and not i else float(i) for _, i, data in rows], pa.float64()
            ),
            "y": pa.array([float(i * (data.version + 1)) for _, i, data in rows], pa.float64()),
        }
    )


def spec(source: Any, warehouse: Any, **changes: Any) -> dict[str, Any]:
    """Return the spec of all nights."""
    limits = {
        "min_rows": MIN_ROWS,
        "max_key_rows": MAX_KEY_ROWS,
        "max_failed_share": 1.0,
        "max_vanished_share": MAX_VANISHED_SHARE,
    }
    return {
        "model_set": MODEL_SET,
        "source": source,
        "keys": ["key"],
        "target": "y",
        "features": ["x"],
        "estimator": "ridge",
        "holdout": {"by": "none"},
        "limits": {**limits, "max_failed_share": 1.0, "max_lost_rows_share": 1.0, "max_missing_rise": 1.0},
        "compute": {"slots": 2},
        "warehouse": str(warehouse),
        **changes,
    }


class Feed:
    """A source that changes from night to night, by chance of a seed; `half` is the night half loaded."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._next = 0
        self._away: dict[str, Data] = {}
        self.now: dict[str, Data] = {}
        for _ in range(FIRST_KEYS):
            self._come()

    def turn(self) -> None:
        """Let a day pass: of each key something happens or, most often, nothing; one comes, some come back."""
        for key in list(self.now):
            self._happen(key, self._random.random())
        for key in [key for key in self._away if self._random.random() < 0.4]:
            self.now[key] = self._away.pop(key)
        if self._random.random() < 0.7:
            self._come()

    def half(self) -> Night | None:
        """Return, on some nights, the night of which only few keys have arrived."""
        return dict(list(self.now.items())[: len(self.now) // 4]) if self._random.random() < 0.3 else None

    def _come(self) -> None:
        self.now[f"k{self._next}"] = Data(version=0)
        self._next += 1

    def _happen(self, key: str, chance: float) -> None:
        data = self.now[key]
        changed = dataclasses.replace(data, version=data.version + 1)
        if chance < 0.1 and len(self.now) > FIRST_KEYS // 2:
            self._away[key] = self.now.pop(key)
        elif chance < 0.3:
            self.now[key] = dataclasses.replace(changed, is_poison=False)
        elif chance < 0.4:
            self.now[key] = dataclasses.replace(changed, is_poison=not data.is_poison)
        elif chance < 0.5:
            self.now[key] = dataclasses.replace(changed, rows=FEW if data.rows >= MIN_ROWS else USUAL)
        elif chance < 0.6:
            self.now[key] = dataclasses.replace(changed, rows=USUAL if data.rows == MANY else MANY)


@dataclasses.dataclass(frozen=True)
class Row:
    """What the manifest must say of a key."""

    status: str
    serves: str
    model_run_id: str | None
    rows: int
    policy: str | None = None


class Expected:
    """What must come of each night, worked out from the one before."""

    def __init__(self) -> None:
        self.served: dict[str, tuple[str, Data]] = {}
        self._seen: set[str] = set()

    def is_refused(self, night: Night) -> bool:
        """Return whether too many keys of the last finished night are gone."""
        return bool(self._seen) and len(self._seen - set(night)) / len(self._seen) > MAX_VANISHED_SHARE

    def manifest(self, night: Night, run_id: str) -> dict[str, Row]:
        """Return the rows of the night's manifest by key."""
        return {key: self._row(key, night.get(key), run_id) for key in {*night, *self.served}}

    def finish(self, night: Night, run_id: str) -> bool:
        """Take over what the night trained, where it is published; return whether it is."""
        rows = self.manifest(night, run_id)
        trained = [key for key, row in rows.items() if row.status == "trained"]
        is_published = bool(trained) or not any(row.status == "failed" for row in rows.values())
        if is_published:
            self.served |= {key: (run_id, night[key]) for key in trained}
        self._seen = set(night)
        return is_published

    def live(self) -> dict[str, str]:
        """Return the run that serves each key."""
        return {key: run_id for key, (run_id, _) in self.served.items()}

    def _row(self, key: str, data: Data | None, run_id: str) -> Row:
        before, trained_on = self.served.get(key, (None, None))
        kept = ("previous" if before else "none", before)
        if data is None:
            return Row("vanished", *kept, 0)
        if data.rows < MIN_ROWS:
            return Row("too_small", *kept, data.rows)
        if data == trained_on:
            return Row("unchanged", *kept, data.rows)
        policy = "salted" if data.rows > MAX_KEY_ROWS else "whole"
        if data.is_poison:
            return Row("failed", *kept, data.rows, policy)
        return Row("trained", "new", run_id, data.rows, policy)
