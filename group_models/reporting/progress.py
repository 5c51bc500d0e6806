"""How far a run is: keys, rows and waves done, and the time left by the plan's costs and what waves took. Pure."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable
from typing import Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from group_models.planning.packing import makespan
from group_models.planning.plans import Plan, count_waves
from group_models.texts import duration_text, number_text

START_S = 5.0
"""Seconds that a wave is taken to cost beside its fits until one has shown that it takes less."""

_TRUST_S = 10.0
"""Predicted seconds that must have been seen before waves are believed as much as the plan's costs."""


@dataclasses.dataclass(frozen=True)
class Done:
    """What a wave has brought: keys with an outcome, those of them that failed, and the usable rows of all."""

    keys: int
    failed: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes
    ----------
    keys, rows
        Keys that the plan fits (parents too), and their usable rows.
    owed_s
        Per wave of the plan the predicted wall seconds of what had no outcome when this process began; none for
        one that puts the parts of salted keys together.
    seen
        Predicted and actual seconds of each wave that this process has trained.
    """

    keys: int
    rows: int
    owed_s: tuple[float, ...]
    keys_done: int = 0
    failed: int = 0
    rows_done: int = 0
    waves_done: int = 0
    seen: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, plan: Plan, stored: pa.Table | None = None) -> Self:
        """Return where a run begins.

        Parameters
        ----------
        stored
            Columns `key_id, part` of the run's rows in the store, where it goes on.
        """
        parts = plan.parts()
        left = parts if stored is None else parts.join(stored, ["key_id", "part"], join_type="left anti")
        return cls(
            keys=pc.count_distinct(parts["key_id"]).as_py(),
            rows=round(pc.sum(parts["usable_rows"]).as_py() or 0),
            owed_s=tuple(_wave_seconds(left, wave, plan.slots) for wave in range(count_waves(plan))),
        )

    def after_wave(self, wave: int, took_s: float) -> Self:
        """Return the progress after a wave that took so long."""
        owed = self.owed_s[wave]
        # A wave without fits, or of which an earlier process had committed all, tells nothing of the time.
        seen = (*self.seen, (owed, took_s)) if owed > 0 else self.seen
        return dataclasses.replace(self, waves_done=self.waves_done + 1, seen=seen)

    def plus(self, done: Done) -> Self:
        """Return the progress with these outcomes more."""
        return dataclasses.replace(
            self,
            keys_done=self.keys_done + done.keys,
            failed=self.failed + done.failed,
            rows_done=self.rows_done + done.rows,
        )

    def left_s(self, elapsed_s: float = 0.0) -> float:
        """Return about how many seconds the waves take that are left.

        Parameters
        ----------
        elapsed_s
            Seconds since the wave began that is being trained.
        """
        left = [self._expected_s(owed) for owed in self.owed_s[self.waves_done :]]
        return max(left[0] - elapsed_s, 0.0) + sum(left[1:]) if left else 0.0

    def share(self, elapsed_s: float = 0.0) -> float:
        """Return the share of the time of all waves that has gone by, from 0 to 1."""
        spent = sum(took for _, took in self.seen) + elapsed_s
        whole = spent + self.left_s(elapsed_s)
        return spent / whole if whole else float(self.waves_done == len(self.owed_s))

    def _expected_s(self, owed_s: float) -> float:
        """Return the seconds of a wave: what each costs to start, and its fits by what fits took against the plan."""
        if not owed_s:
            return 0.0
        start = min([START_S, *(took for _, took in self.seen)])
        fits = sum(took - start for _, took in self.seen)
        return start + owed_s * (fits + _TRUST_S) / (sum(owed for owed, _ in self.seen) + _TRUST_S)

    def text(self, elapsed_s: float = 0.0) -> str:
        """Return the progress in a line."""
        failed = f" ({self.failed:,} failed)" if self.failed else ""
        keys = f"{self.keys_done:,} of {number_text(self.keys, 'key')}{failed}"
        return f"{keys}, {self.rows_done:,} of {number_text(self.rows, 'row')}; {self._left_text(elapsed_s)}"

    def _left_text(self, elapsed_s: float) -> str:
        if self.waves_done == len(self.owed_s):
            return "no wave is left"
        return f"about {duration_text(self.left_s(elapsed_s))} left"

    def wave_text(self) -> str:
        """Return which wave is being trained."""
        return f"wave {min(self.waves_done + 1, len(self.owed_s))} of {len(self.owed_s)}"

    def __repr__(self) -> str:
        """Return the progress in one line."""
        return f"{self.wave_text()}: {self.text()}"

    def _repr_html_(self) -> str:
        bar = f"<progress max='1' value='{self.share():.3f}'></progress>"
        return f"<div>{bar} {html.escape(repr(self))}</div>"


Show: TypeAlias = Callable[[Progress], None]
"""Where a run shows how far it is, whenever that changes."""


def show_nothing(_: Progress) -> None:
    """Show nothing."""


def _wave_seconds(parts: pa.Table, wave: int, slots: int) -> float:
    """Return the predicted wall seconds of the parts of one wave."""
    of_wave = parts.filter(pc.equal(parts["wave"], wave)).group_by("unit").aggregate([("predicted_seconds", "sum")])
    return makespan(of_wave.sort_by("unit")["predicted_seconds_sum"].to_numpy(), slots)
