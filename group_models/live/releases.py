"""The release log: what counts for an alias at a moment, and which runs' outcomes are enough to tell. Pure.

What an alias serves is never stored: it is this log, folded over the manifests of the runs that count.
Publishing adds a run to those; going back to a row of the log restores those that counted there. The order of
publishing does not matter, and publishing twice changes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from group_models.errors import StateError
from group_models.tables import utc_now
from group_models.texts import facts_html, some_of

Action: TypeAlias = Literal["publish", "rollback", "adopt", "pin", "unpin", "mirror", "clean"]

AsOf: TypeAlias = str | dt.datetime | None
"""A moment of the log: a release id (that row included), a time (the rows up to it), None for now."""

CHAMPION = "champion"
CHALLENGER = "challenger"

_RESTORING = ("rollback", "adopt")
CHANGING = ("publish", *_RESTORING)
"""Acts after which other runs count for an alias."""

_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Act:
    """What somebody does to an alias; the columns of the release table but for what the log itself adds."""

    model_set: str
    alias: str
    action: Action
    run_id: str | None = None
    target_release_id: str | None = None
    key_id: str | None = None
    by: str | None = None
    note: str | None = None
    registered_version: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Release(Act):
    """One row of the release log."""

    release_id: str
    at: dt.datetime

    def row(self) -> dict[str, Any]:
        """Return the release as a row of its table."""
        return dataclasses.asdict(self)

    def facts(self) -> dict[str, str]:
        """Return the release as fact and text, columns without a value left out."""
        return {name: str(value) for name, value in self.row().items() if value is not None}

    def __repr__(self) -> str:
        """Return the release in one line."""
        subject = {"run": self.run_id, "release": self.target_release_id, "key": self.key_id}
        what = ", ".join(f"{name} {value}" for name, value in subject.items() if value is not None)
        return f"Release({self.release_id}: {self.action} {what} for {self.alias} of {self.model_set})"

    def _repr_html_(self) -> str:
        return facts_html(f"Release {self.release_id} of {self.model_set}", self.facts())


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """What a fold needs to know of a run.

    `is_full`: it answers for all keys. `base_release`: the newest release row, of any alias, when the run
    started; None before the first.
    """

    run_id: str
    started_at: dt.datetime
    is_full: bool
    base_release: str | None


@dataclasses.dataclass(frozen=True)
class FoldPlan:
    """Which runs' manifest rows make a live set; `run_ids` in the order in which the runs started.

    The rows of the base run repeat what served before it and so stand for the counted runs that are not among
    `run_ids`. Without a base run all counted runs are.
    """

    base_run_id: str | None
    run_ids: tuple[str, ...]


def releases_from(rows: pa.Table) -> list[Release]:
    """Return the rows of one model set's release table in the order of the log, `(at, release_id)`."""
    return sorted((Release(**row) for row in rows.to_pylist()), key=_moment)


def runs_from(rows: pa.Table) -> dict[str, RunInfo]:
    """Return the runs of one model set's run table by run id; of a run that started twice the first start."""
    started = [row for row in rows.to_pylist() if row["event"] == "started"]
    started.sort(key=lambda row: row["at"], reverse=True)
    return {
        row["run_id"]: RunInfo(row["run_id"], row["at"], row["scope"] is None, row["base_release"]) for row in started
    }


def next_release(newest: Release | None, act: Act, *, now: dt.datetime | None = None) -> Release:
    """Return an act as the row that follows the newest row of its log.

    Its time is the clock's, or one microsecond after that row where the clock is behind. Ids sort by time.
    """
    at = now or utc_now()
    if newest is not None:
        at = max(at, newest.at + dt.timedelta(microseconds=1))
    release_id = f"{at.astimezone(dt.UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
    return Release(**dataclasses.asdict(act), release_id=release_id, at=at)


def find_release(releases: Sequence[Release], release_id: str) -> Release:
    """Return a release by its id.

    Raises
    ------
    StateError
        The log has no such row.
    """
    for release in releases:
        if release.release_id == release_id:
            return release
    raise StateError(f"there is no release {release_id!r}; {_known(releases)}")


def rollback_target(releases: Sequence[Release], alias: str, release_id: str) -> Release:
    """Return the row that a rollback or an adopt of this alias goes back to.

    Raises
    ------
    StateError
        The log has no such row, or it is one of another alias.
    """
    target = find_release(releases, release_id)
    if target.alias != alias:
        own = [release for release in releases if release.alias == alias]
        raise StateError(f"release {release_id!r} is one of {target.alias}, not of {alias}; {_known(own)}")
    return target


def counted(releases: Sequence[Release], alias: str, as_of: AsOf = None) -> frozenset[str]:
    """Return the runs whose publishes count for an alias; for `challenger` those of `champion` count as well.

    Raises
    ------
    StateError
        `as_of` or the target of a rollback is not in the log.
    """
    log = _until(releases, as_of)
    alone = _counted_alone(log, alias)
    return alone | _counted_alone(log, CHAMPION) if alias == CHALLENGER else alone


def base_counted(releases: Sequence[Release], run: RunInfo) -> frozenset[str]:
    """Return the runs that counted for `champion` when a run started."""
    return frozenset() if run.base_release is None else counted(releases, CHAMPION, run.base_release)


def pins(releases: Sequence[Release], alias: str, as_of: AsOf = None) -> dict[str, str]:
    """Return the run at which each pinned key id is held; pins of this alias alone, rollbacks leave them."""
    held: dict[str, str] = {}
    for release in _until(releases, as_of):
        if release.alias != alias or release.key_id is None:
            continue
        if release.action == "pin" and release.run_id is not None:
            held[release.key_id] = release.run_id
        elif release.action == "unpin":
            held.pop(release.key_id, None)
    return held


def hold(releases: Sequence[Release], alias: str = CHAMPION) -> Release | None:
    """Return the rollback or adopt of an alias since which nothing was published to it, or None.

    Somebody took models back and has not let new ones through yet: until then no run publishes itself.
    """
    for release in sorted(releases, key=_moment, reverse=True):
        if release.alias == alias and release.action in CHANGING:
            return None if release.action == "publish" else release
    return None


def cleaned(releases: Sequence[Release]) -> dict[str, Release]:
    """Return the runs of which a clean removed rows, each with the first clean that did."""
    found: dict[str, Release] = {}
    for release in sorted(releases, key=_moment):
        if release.action == "clean" and release.run_id is not None:
            found.setdefault(release.run_id, release)
    return found


def runs_to_read(releases: Sequence[Release], runs: Mapping[str, RunInfo], alias: str, as_of: AsOf = None) -> FoldPlan:
    """Return the runs whose manifest rows are enough for the live set of an alias.

    Raises
    ------
    StateError
        A run that counts is not in the run table, or as for `counted`.
    """
    return runs_to_fold(releases, runs, counted(releases, alias, as_of))


def runs_to_fold(releases: Sequence[Release], runs: Mapping[str, RunInfo], now: frozenset[str]) -> FoldPlan:
    """Return the runs whose manifest rows are enough for the live set where these runs count.

    The base is the full run that started last among them, provided that all that counted when it started counts
    now: its rows repeat what came of that. Beside it stand the runs that count since then, and of the older ones
    those that started after one of these and so win over it. A run of which rows were cleaned repeats too little.

    Raises
    ------
    StateError
        A run that counts is not in the run table.
    """
    order = [run.run_id for run in _by_start(runs, now)]
    gone = cleaned(releases)
    for run_id in reversed(order):
        is_whole = runs[run_id].is_full and run_id not in gone
        before = base_counted(releases, runs[run_id]) if is_whole else None
        if before is not None and before <= now:
            first = min(order.index(new) for new in now - before | {run_id})
            return FoldPlan(run_id, tuple(order[first:]))
    return FoldPlan(None, tuple(order))


def newer_runs(releases: Sequence[Release], runs: Mapping[str, RunInfo], alias: str, run_id: str) -> tuple[str, ...]:
    """Return the runs that count for an alias and started after this one.

    Raises
    ------
    StateError
        This run, or one that counts, is not in the run table.
    """
    order = [run.run_id for run in _by_start(runs, counted(releases, alias) | {run_id})]
    return tuple(order[order.index(run_id) + 1 :])


def _moment(release: Release) -> tuple[dt.datetime, str]:
    return release.at, release.release_id


def _until(releases: Sequence[Release], as_of: AsOf) -> list[Release]:
    log = sorted(releases, key=_moment)
    if as_of is None:
        return log
    if isinstance(as_of, dt.datetime):
        return [release for release in log if release.at <= as_of]
    last = _moment(find_release(log, as_of))
    return [release for release in log if _moment(release) <= last]


def _counted_alone(log: Sequence[Release], alias: str) -> frozenset[str]:
    """Walk one alias's rows back from the newest; a rollback jumps to the row that it names."""
    own = [release for release in log if release.alias == alias]
    found: set[str] = set()
    while own:
        last = own.pop()
        if last.action in _RESTORING:
            earlier = [release for release in log if _moment(release) < _moment(last)]
            target = rollback_target(earlier, alias, last.target_release_id or "")
            own = [release for release in own if _moment(release) <= _moment(target)]
        elif last.action == "publish" and last.run_id is not None:
            found.add(last.run_id)
    return frozenset(found)


def _by_start(runs: Mapping[str, RunInfo], run_ids: frozenset[str]) -> list[RunInfo]:
    unknown = sorted(run_ids - set(runs))
    if unknown:
        raise StateError(f"the run table does not know {some_of(unknown)}; it knows {some_of(sorted(runs)[::-1])}")
    return sorted((runs[run_id] for run_id in run_ids), key=lambda run: (run.started_at, run.run_id))


def _known(releases: Sequence[Release]) -> str:
    newest = sorted(releases, key=_moment, reverse=True)[:_SHOWN]
    if not newest:
        return "there is none yet"
    listed = ", ".join(f"{release.release_id} ({release.action})" for release in newest)
    return f"the newest are {listed}"
