"""Whether a source looks half-loaded beside the one of the last run. Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from group_models.planning.windows import LEFT_OUT
from group_models.spec import Limits
from group_models.tables import micros

ROWS, USABLE_ROWS, KEYS, MODELS, NEWEST = "rows", "usable rows", "keys", "keys with a model", "newest row"
"""What is counted of a source, `NEWEST` in seconds since 1970."""

_MISSING = "missing "
"""Before a column's name: the share of the rows in which the feature, or a usable target, is missing."""

_LEAKING = "is the target: "
"""Before a feature's name: it has the target's value in every row."""

_SECONDS_PER_HOUR = 3600


@dataclasses.dataclass(frozen=True)
class LastRun:
    """What the last finished run of the same scope saw: its `source_stats`, and the keys that had rows."""

    run_id: str
    stats: Mapping[str, float]
    keys: Collection[str]


def source_stats(
    sizes: pa.Table, missing: Mapping[str, float], target: str, served: Collection[str]
) -> dict[str, float]:
    """Return what tells a half-loaded source, as the run table keeps it.

    Parameters
    ----------
    sizes
        One row per key: `key_id, rows, usable_rows, train_to` and the counts of rows that are left out
        (`windows.LEFT_OUT`); rows are 0 for a key that is gone.
    missing
        Per feature the share of rows in which it is null or not a number.
    target
        Name of the target.
    served
        Key ids that had a model before.
    """
    rows, usable, *left_out = (pc.sum(sizes[name]).as_py() or 0 for name in ("rows", "usable_rows", *LEFT_OUT))
    has_model = pc.is_in(sizes["key_id"], pa.array(sorted(served), pa.string()))
    stats = {
        ROWS: float(rows),
        USABLE_ROWS: float(usable),
        KEYS: float(len(keys_with_rows(sizes))),
        MODELS: float(pc.sum(has_model).as_py() or 0),
    }
    if (newest := pc.max(sizes["train_to"]).as_py()) is not None:
        stats[NEWEST] = micros(newest) / 1e6
    # A row that is left out has a target: with a window it is no more missing than before.
    shares = {target: 1 - (usable + sum(left_out)) / rows, **missing} if rows else {}
    return stats | {_MISSING + name: share for name, share in shares.items()}


def leak_stats(features: Collection[str]) -> dict[str, float]:
    """Return what the run table keeps of features that are the target."""
    return {_LEAKING + name: 1.0 for name in features}


def leaks(stats: Mapping[str, float], target: str) -> list[str]:
    """Return which features know the target, one sentence each.

    Examples
    --------
    >>> leaks(leak_stats(["hours"]), "eta_hours")
    ["feature 'hours' equals the target 'eta_hours' in every row"]
    """
    named = [name.removeprefix(_LEAKING) for name in stats if name.startswith(_LEAKING)]
    return [f"feature {name!r} equals the target {target!r} in every row" for name in named]


def keys_with_rows(sizes: pa.Table) -> set[str]:
    """Return the ids of the keys that are in the data."""
    return set(sizes.filter(pc.greater(sizes["rows"], 0))["key_id"].to_pylist())


def source_mistakes(
    stats: Mapping[str, float], keys: Collection[str], last: LastRun | None, limits: Limits, now: dt.datetime
) -> list[str]:
    """Return how a source falls short of the limits, one sentence each; none where it may be trained on.

    Parameters
    ----------
    stats
        From `source_stats`.
    keys
        Key ids that have rows.
    last
        What the last run saw, or None before the first one.
    """
    if not stats[USABLE_ROWS] and stats[MODELS]:
        what = "no rows" if not stats[ROWS] else f"{stats[ROWS]:,.0f} rows, none of them with a finite target"
        return [f"it has {what}, and {stats[MODELS]:,.0f} keys had models before"]
    mistakes = [_stale(stats, limits, now)]
    if last is not None:
        mistakes += [_vanished(keys, last, limits), _lost_rows(stats, last, limits)]
        mistakes += [_risen(name, stats, last, limits) for name in stats if name.startswith(_MISSING)]
    return [said for said in mistakes if said]


def _stale(stats: Mapping[str, float], limits: Limits, now: dt.datetime) -> str | None:
    if limits.max_staleness_hours is None or NEWEST not in stats:
        return None
    hours = (now.timestamp() - stats[NEWEST]) / _SECONDS_PER_HOUR
    if hours <= limits.max_staleness_hours:
        return None
    at = dt.datetime.fromtimestamp(stats[NEWEST], dt.UTC)
    rule = f"over limits.max_staleness_hours {limits.max_staleness_hours:g}"
    return f"its newest row ({at:%Y-%m-%d %H:%M:%S}) is {hours:,.1f} hours old: {rule}"


def _vanished(keys: Collection[str], last: LastRun, limits: Limits) -> str | None:
    gone = len(set(last.keys) - set(keys))
    if not gone or gone / len(last.keys) <= limits.max_vanished_share:
        return None
    share = f"{gone / len(last.keys):.1%}"
    rule = f"over limits.max_vanished_share {limits.max_vanished_share:.0%}"
    return f"{gone:,} of {len(last.keys):,} keys of run {last.run_id} have no rows now ({share}): {rule}"


def _lost_rows(stats: Mapping[str, float], last: LastRun, limits: Limits) -> str | None:
    before = last.stats.get(ROWS, 0.0)
    lost = (before - stats[ROWS]) / before if before else 0.0
    if lost <= limits.max_lost_rows_share:
        return None
    rule = f"over limits.max_lost_rows_share {limits.max_lost_rows_share:.0%}"
    return f"it has {stats[ROWS]:,.0f} rows, {lost:.1%} fewer than the {before:,.0f} of run {last.run_id}: {rule}"


def _risen(name: str, stats: Mapping[str, float], last: LastRun, limits: Limits) -> str | None:
    before = last.stats.get(name)
    if before is None or stats[name] - before <= limits.max_missing_rise:
        return None
    column = name.removeprefix(_MISSING)
    rule = f"a rise over limits.max_missing_rise {limits.max_missing_rise:.0%}"
    return f"{column!r} is missing in {stats[name]:.1%} of the rows, in run {last.run_id} in {before:.1%}: {rule}"
