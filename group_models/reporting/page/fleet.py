"""All keys of a run together: counts, errors and what they are against, causes of failures. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.comparing import simplest
from group_models.live.manifest import FAILED
from group_models.spec import Metric
from group_models.tables import NEW_MODEL

Floats = npt.NDArray[np.float64]

BASELINES: Mapping[str, str] = {"": "median", "parent_": "parent", "global_": "global model"}
"""Prefix of a metric in `baseline_metrics` to what it is the metric of: the key's own training median, and models."""

SIMPLEST = ("median", "prior")
"""Names of what is made of a key's own rows without features."""

METRIC_NAMES: Mapping[str, str] = {
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "log_loss": "log loss",
    "accuracy": "accuracy",
    "f1": "F1",
    "auc": "AUC",
    "bias": "bias",
    "r2": "R\N{SUPERSCRIPT TWO}",
}

BINS = 30
"""Bins of a histogram; the last one also holds what lies above."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|(?<![A-Za-z_])-?\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_MOST_NAMED = 3


def values_of(maps: pd.Series, name: str) -> Floats:
    """Return one entry of each map, NaN where it has none."""
    return np.array([np.nan if (value := each.get(name)) is None else value for each in maps], dtype=np.float64)


def metric_name(metric: str) -> str:
    """Return a metric as words.

    Examples
    --------
    >>> metric_name("mae"), metric_name("pinball")
    ('mean absolute error', 'pinball')
    """
    return METRIC_NAMES.get(metric, metric)


def baselines(metric: Metric) -> Mapping[str, str]:
    """Return `BASELINES`, whose median is of classes the prior."""
    return {**BASELINES, "": simplest(metric)}


def short_name(metric: str) -> str:
    """Return a metric as the head of a column.

    Examples
    --------
    >>> short_name("mae"), short_name("log_loss")
    ('MAE', 'LOG LOSS')
    """
    return metric.upper().replace("_", " ")


def known_baselines(keys: pd.DataFrame, metric: Metric) -> dict[str, Floats]:
    """Return what the keys' errors can be compared with: its name to its errors, those that no key has left out."""
    found = {name: values_of(keys["baseline_metrics"], prefix + metric) for prefix, name in baselines(metric).items()}
    return {name: errors for name, errors in found.items() if np.isfinite(errors).any()}


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of one width; where `is_cut`, the last bin also holds all values above."""

    edges: Floats
    counts: npt.NDArray[np.int64]
    is_cut: bool


def histogram(values: Floats, *, bins: int = BINS, upto: float | None = None) -> Histogram:
    """Return the histogram of finite values of zero and more, cut where a hundredth of them lies above.

    Examples
    --------
    >>> found = histogram(np.array([0.5, 1.5, 1.6, 9.0]), bins=2, upto=2.0)
    >>> found.counts.tolist(), found.edges.tolist(), found.is_cut
    ([1, 3], [0.0, 1.0, 2.0], True)
    """
    finite = values[np.isfinite(values)]
    top = nice_above(float(np.quantile(finite, 0.99))) if upto is None and len(finite) else upto or 1.0
    edges = np.linspace(0.0, top, bins + 1)
    counts, _ = np.histogram(np.minimum(finite, top), edges)
    return Histogram(edges, counts.astype(np.int64), bool((finite > top).any()))


def nice_above(value: float) -> float:
    """Return the next number of two digits at or above a value: the end of an axis.

    Examples
    --------
    >>> nice_above(0.0131), nice_above(731.0), nice_above(0.0)
    (0.014, 740.0, 1.0)
    """
    if not value > 0:
        return 1.0
    unit = 10.0 ** (np.floor(np.log10(value)) - 1)
    return float(np.round(np.ceil(np.round(value / unit, 9)) * unit, 12))


@dataclasses.dataclass(frozen=True)
class Ratios:
    """The errors of the keys' models over those of a baseline, one per key that has both and a baseline above zero."""

    name: str
    values: Floats

    @property
    def better(self) -> int:
        """Keys whose own error is lower."""
        return int((self.values < 1).sum())


def ratios(keys: pd.DataFrame, metric: Metric) -> list[Ratios]:
    """Return the keys' errors over those of each baseline that they know."""
    own = values_of(keys["metrics"], metric)
    found = []
    for name, other in known_baselines(keys, metric).items():
        both = np.isfinite(own) & np.isfinite(other) & (other > 0)
        if both.any():
            found.append(Ratios(name, own[both] / other[both]))
    return found


@dataclasses.dataclass(frozen=True)
class Cause:
    """Keys that failed for one cause: class of the error, stage, and its message with what differs by key left out."""

    error_type: str
    stage: str
    pattern: str
    example: str
    statuses: tuple[str, ...]
    keys: int
    served: int
    named: tuple[tuple[str, str], ...]


def causes(keys: pd.DataFrame) -> list[Cause]:
    """Return why keys failed, the commonest cause first.

    Parameters
    ----------
    keys
        Columns `key_id, label, status, serves, reason, error_type, error_stage, error_message`.
    """
    failed = keys[keys["status"].isin(FAILED)].copy()
    if failed.empty:
        return []
    failed["message"] = failed["error_message"].fillna(failed["reason"]).fillna("")
    failed["pattern"] = [message_pattern(each) for each in failed["message"]]
    failed = failed.fillna({"error_type": failed["status"], "error_stage": ""})
    found = [_cause(of_cause) for _, of_cause in failed.groupby(["error_type", "error_stage", "pattern"], sort=False)]
    return sorted(found, key=lambda cause: (-cause.keys, cause.error_type, cause.pattern))


def _cause(rows: pd.DataFrame) -> Cause:
    first = rows.iloc[0]
    return Cause(
        str(first["error_type"]),
        str(first["error_stage"]),
        str(first["pattern"]),
        str(first["message"]),
        tuple(sorted(set(rows["status"]))),
        len(rows),
        int(rows["serves"].isin(("previous", "parent", "new")).sum()),
        tuple(zip(rows["key_id"][:_MOST_NAMED], rows["label"][:_MOST_NAMED], strict=True)),
    )


def message_pattern(message: str) -> str:
    """Return a message's first line with quoted texts and numbers left out: equal for keys that fail alike.

    Examples
    --------
    >>> message_pattern("column 'a b' holds 12 infinite values, -1.5e3 at row 7")
    'column … holds # infinite values, # at row #'
    """
    line = message.strip().partition("\n")[0]
    return _NUMBER.sub("#", _QUOTED.sub("…", line))[:200]


def status_counts(keys: pd.DataFrame) -> list[tuple[str, int, str]]:
    """Return statuses with their keys and what kind of outcome they are (`good`, `bad`, `kept`), most keys first."""
    counts = keys["status"].value_counts()
    return [(str(name), int(count), status_kind(str(name))) for name, count in counts.items()]


def status_kind(status: str) -> str:
    """Return what kind of outcome a status is.

    Examples
    --------
    >>> [status_kind(name) for name in ("trained", "unchanged", "timed_out", "too_small")]
    ['good', 'good', 'bad', 'kept']
    """
    if status in (*NEW_MODEL, "unchanged"):
        return "good"
    return "bad" if status in FAILED else "kept"


def ranked(errors: Floats, count: int) -> tuple[list[int], list[int]]:
    """Return the places of the keys with the highest errors, worst first, and with the lowest, best first.

    Examples
    --------
    >>> ranked(np.array([2.0, np.nan, 5.0, 1.0]), 2)
    ([2, 0], [3])
    """
    measured = np.flatnonzero(np.isfinite(errors))
    order = measured[np.argsort(-errors[measured], kind="stable")]
    worst, best = order[:count], order[::-1][: max(0, min(count, len(order) - count))]
    return worst.tolist(), best.tolist()


@dataclasses.dataclass(frozen=True)
class RowsBin:
    """Keys with about so many rows: the median of their errors, and where the middle four fifths lie."""

    rows: float
    keys: int
    low: float
    middle: float
    high: float


def by_rows(rows: Floats, errors: Floats, *, bins: int = 12) -> list[RowsBin]:
    """Return errors by the keys' number of rows, in bins of about equally many keys; [] where rows hardly differ."""
    both = np.isfinite(rows) & np.isfinite(errors) & (rows > 0)
    if both.sum() < 3 * bins:
        return []
    counts, own = rows[both], errors[both]
    edges = np.unique(np.quantile(counts, np.linspace(0, 1, bins + 1)))
    if len(edges) < 4:
        return []
    place = np.clip(np.searchsorted(edges, counts, side="right") - 1, 0, len(edges) - 2)
    return [_rows_bin(counts[place == i], own[place == i]) for i in range(len(edges) - 1) if (place == i).any()]


def _rows_bin(rows: Floats, errors: Floats) -> RowsBin:
    low, middle, high = np.quantile(errors, [0.1, 0.5, 0.9])
    return RowsBin(float(np.median(rows)), len(rows), float(low), float(middle), float(high))


def cumulative_share(seconds: Floats, *, points: int = 60) -> list[tuple[float, float]]:
    """Return (share of keys, their share of all seconds), the slowest keys first; [] where nothing took time.

    Examples
    --------
    >>> cumulative_share(np.array([1.0, 3.0]))
    [(0.0, 0.0), (0.5, 0.75), (1.0, 1.0)]
    """
    known = np.sort(seconds[np.isfinite(seconds)])[::-1]
    if not len(known) or not known.sum() > 0:
        return []
    total = np.concatenate([[0.0], np.cumsum(known) / known.sum()])
    at = np.unique(np.round(np.geomspace(1, len(known) + 1, points)).astype(int) - 1)
    return [(float(i / len(known)), float(total[i])) for i in at]


def percent(share: float, digits: int = 0) -> str:
    """Return a share as a percentage.

    Examples
    --------
    >>> percent(0.256), percent(0.0004, 1)
    ('26%', '0.0%')
    """
    return f"{share:.{digits}%}"


def signed(share: float) -> str:
    """Return a change as a percentage with its sign.

    Examples
    --------
    >>> signed(0.256), signed(-0.1) == "\N{MINUS SIGN}10.0%"
    ('+25.6%', True)
    """
    return f"{share:+.1%}".replace("-", "\N{MINUS SIGN}")


def sensible(value: float, typical: float | None = None) -> str:
    """Return a number with as many decimals as three digits of a typical one have.

    Examples
    --------
    >>> sensible(12.3456), sensible(0.00123456), sensible(1234567.0), sensible(0.5, 100.0)
    ('12.3', '0.00123', '1,234,567', '0')
    """
    if not np.isfinite(value):
        return "\N{EN DASH}"
    return f"{value:,.{decimals(value if typical is None else typical)}f}"


def decimals(typical: float) -> int:
    """Return how many decimals leave three digits of a number.

    Examples
    --------
    >>> decimals(5.4), decimals(0.02), decimals(1e6), decimals(0.0)
    (2, 4, 0, 2)
    """
    if not typical or not np.isfinite(typical):
        return 2
    return int(np.clip(2 - np.floor(np.log10(abs(typical))), 0, 9))
