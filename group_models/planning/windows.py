"""Which rows are old enough for their label to be known and new enough to be trained on. Pure arithmetic on moments."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping

from group_models.tables import moment

LEFT_OUT: Mapping[str, str] = {
    "old_rows": "before the window",
    "immature_rows": "whose label may not be known yet",
    "unweighted_rows": "without a weight above 0",
}
"""Columns of plan and manifest that count rows with a finite target that are left out, and why they are, in words."""

_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The moments between which rows are trained on and measured, in microseconds since 1970; None is no bound.

    Attributes
    ----------
    after_us
        Rows of this moment and before are out of the window, and so are rows without a time.
    until_us
        Labels of rows after this moment may not be known yet.

    Examples
    --------
    >>> Bounds.of(10 * 86_400_000_000, window_days=2, label_delay_hours=24).until_us // 86_400_000_000
    9
    """

    after_us: int | None = None
    until_us: int | None = None

    @classmethod
    def of(cls, newest_us: int | None, *, window_days: float | None, label_delay_hours: float | None) -> Bounds:
        """Return the bounds that a spec asks for.

        Parameters
        ----------
        newest_us
            Time of the newest row that has a label, over the whole source: the data decide, not the clock, so that
            the same data give the same models whenever they are trained. None where no row has a time and a label.
        window_days
            Days before the newest label that counts as known.
        label_delay_hours
            Hours until a label is known for certain. The label of a row may come sooner, and the newest rows with a
            label are those where it did: trained on those alone, a model learns the quick ones.
        """
        if newest_us is None or (window_days is None and label_delay_hours is None):
            return cls()
        until = newest_us - round((label_delay_hours or 0.0) * _HOUR_US)
        return cls(
            None if window_days is None else until - round(window_days * _DAY_US),
            None if label_delay_hours is None else until,
        )

    @property
    def after(self) -> dt.datetime | None:
        """`after_us` as a moment."""
        return None if self.after_us is None else moment(self.after_us)

    @property
    def until(self) -> dt.datetime | None:
        """`until_us` as a moment."""
        return None if self.until_us is None else moment(self.until_us)

    def __str__(self) -> str:
        """Return the bounds for people; empty where there are none."""
        said = (("after", self.after), ("up to", self.until))
        return " and ".join(f"{word} {at:%Y-%m-%d %H:%M:%S}" for word, at in said if at is not None)


NO_BOUNDS = Bounds()
"""All rows are trained on."""


def left_out_text(counts: Mapping[str, int | None]) -> str:
    """Return how many rows are left out and why, for people; empty where none are.

    Examples
    --------
    >>> left_out_text({"old_rows": 1200, "immature_rows": 0, "unweighted_rows": None})
    '1,200 rows before the window'
    """
    return ", ".join(f"{count:,} rows {why}" for name, why in LEFT_OUT.items() if (count := counts.get(name)))
