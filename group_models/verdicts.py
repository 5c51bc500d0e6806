"""Whether models per key pay: their errors beside those of what is simpler, and how sure that is. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from group_models.comparing import as_metric, mean_loss
from group_models.evaluation import Floats
from group_models.spec import Metric

LEVEL = 0.95
"""Confidence of the intervals."""

_SAMPLES, _MOST_BUNDLES = 2_000, 10_000
"""Samples of keys that are drawn; of more keys than this random bundles of keys are drawn, as many as this."""

_CHUNK = 2_000_000


@dataclasses.dataclass(frozen=True)
class Against:
    """The models of the keys beside something simpler, on the holdouts of the keys that it was measured on.

    Attributes
    ----------
    error, other
        The metric over all rows: of the keys' models, and of the simpler thing.
    change, low, high
        `error / other - 1`, below zero where the keys' models are better, and its interval; NaN for one key.
    keys_better, rows_better
        Share of the keys, and of the rows, of which the model has the lower error.
    """

    name: str
    keys: int
    rows: int
    error: float
    other: float
    change: float
    low: float
    high: float
    keys_better: float
    rows_better: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether models per key pay.

    Attributes
    ----------
    against
        By name (`median` or of classes `prior`, `parent`, `global`), each simpler thing that there is.
    """

    metric: Metric
    against: Mapping[str, Against]

    @property
    def strongest(self) -> Against:
        """The simpler thing beside which the keys' models do worst."""
        return max(self.against.values(), key=lambda each: each.change)

    @property
    def word(self) -> str:
        """`pay`, `do not pay`, or that it is not clear: what the interval beside the strongest says."""
        if self.strongest.high < 0:
            return "pay"
        return "do not pay" if self.strongest.low > 0 else "make no clear difference"

    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        best = self.strongest
        others = f" (the strongest of {', '.join(self.against)})" if len(self.against) > 1 else ""
        interval = "" if math.isnan(best.low) else f", {LEVEL:.0%} interval {best.low:+.1%} to {best.high:+.1%}"
        return (
            f"models per key {self.word}: {self.metric} {best.error:.4g} beside {best.other:.4g} of the "
            f"{best.name}{others}, {best.change:+.1%}{interval}; better on {best.keys_better:.0%} of {best.keys:,} "
            f"keys with {best.rows_better:.0%} of {best.rows:,} rows"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values, for JSON; what is no number is None."""
        against = {name: dataclasses.asdict(each) for name, each in self.against.items()}
        plain = {name: {n: _plain(value) for n, value in each.items()} for name, each in against.items()}
        return {"sentence": self.sentence(), "word": self.word, "metric": self.metric, "against": plain}

    def metrics(self) -> dict[str, float]:
        """Return the verdict as numbers by name, for a tracking server."""
        found: dict[str, float] = {}
        for name, each in self.against.items():
            values = {"": each.other, "_change": each.change, "_change_low": each.low, "_change_high": each.high,
                      "_keys_better": each.keys_better, "_rows_better": each.rows_better}  # fmt: skip
            found |= {f"{self.metric}_{name}{what}": value for what, value in values.items()}
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def judge(rows: Floats, own: Floats, others: Mapping[str, Floats], metric: Metric, *, seed: int = 0) -> Verdict | None:
    """Return whether models per key pay, None where nothing was measured.

    The errors of all keys together are means over their rows. The interval is that of a paired bootstrap: keys are
    drawn with replacement, each with both of its errors, and the interval is between percentiles of the change (Efron
    and Tibshirani 1993, "An Introduction to the Bootstrap", sections 8.3 and 13.3). Keys are drawn and not rows: the
    rows of one key go wrong together.

    Parameters
    ----------
    rows
        Rows of each key's holdout.
    own
        The metric of each key's model there; NaN for a key that has none.
    others
        By name the metric of something simpler on the same rows, NaN where there is none.
    seed
        Of the draws: the same numbers give the same interval.

    Examples
    --------
    >>> found = judge(np.array([10.0, 30.0]), np.array([1.0, 2.0]), {"median": np.array([2.0, 4.0])}, "mae")
    >>> found.against["median"].error, found.against["median"].other, found.against["median"].change
    (1.75, 3.5, -0.5)
    >>> found.word
    'pay'
    """
    against = {}
    for name, other in others.items():
        is_there = np.isfinite(own) & np.isfinite(other) & (rows > 0)
        if is_there.any():
            against[name] = _against(name, rows[is_there], own[is_there], other[is_there], metric, seed)
    return Verdict(metric, against) if against else None


def _against(name: str, rows: Floats, own: Floats, other: Floats, metric: Metric, seed: int) -> Against:
    ours, theirs = rows * mean_loss(own, metric), rows * mean_loss(other, metric)
    total = rows.sum()
    error, simpler = float(as_metric(ours.sum() / total, metric)), float(as_metric(theirs.sum() / total, metric))
    low, high = _interval(ours, theirs, metric, seed)
    is_better = own < other
    return Against(
        name=name, keys=len(rows), rows=int(total), error=error, other=simpler,
        change=float(_change(ours.sum(), theirs.sum(), metric)), low=low, high=high,
        keys_better=float(is_better.mean()), rows_better=float(rows[is_better].sum() / total),
    )  # fmt: skip


def _change(ours: Any, theirs: Any, metric: Metric) -> Floats:
    """Return by how much the metric is lower (below zero) or higher; 0 where both are without error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(np.divide(ours, theirs), dtype=np.float64)
    ratio = np.where(np.equal(ours, theirs), 1.0, ratio)
    return np.asarray(as_metric(ratio, metric) - 1.0)


def _interval(ours: Floats, theirs: Floats, metric: Metric, seed: int) -> tuple[float, float]:
    if len(ours) < 2:
        return math.nan, math.nan
    draws = np.random.default_rng(seed)
    ours, theirs = _bundled(ours, theirs, draws)
    at_once = max(1, _CHUNK // len(ours))
    changes: list[NDArray[np.float64]] = []
    for start in range(0, _SAMPLES, at_once):
        drawn = draws.integers(0, len(ours), (min(at_once, _SAMPLES - start), len(ours)))
        changes.append(_change(ours[drawn].sum(axis=1), theirs[drawn].sum(axis=1), metric))
    # No interpolation: of changes that are infinite it makes no number.
    ends = np.quantile(np.concatenate(changes), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return float(ends[0]), float(ends[1])


def _bundled(ours: Floats, theirs: Floats, draws: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the sums of random bundles of keys, where there are many keys: sums vary as those of the keys do."""
    if len(ours) <= _MOST_BUNDLES:
        return ours, theirs
    bundle = draws.permutation(len(ours)) % _MOST_BUNDLES
    return np.bincount(bundle, ours).astype(np.float64), np.bincount(bundle, theirs).astype(np.float64)
