"""Publish a run to an alias, roll back, list: one row of the release log each."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

from group_models import releases
from group_models.errors import StateError
from group_models.folding import publish_refusal
from group_models.live import Alias, read_releases, read_runs
from group_models.manifest import count_statuses, release_refusal
from group_models.ports import LOG_OWNER, Commit, Tables
from group_models.releases import Act, Release
from group_models.spec import Limits
from group_models.tables import MANIFEST, PLAN, RELEASE

_TRIES = 50
"""Appends to the log that may lose the race for a place before we give up."""


def publish(
    tables: Tables, model_set: str, run_id: str, *, limits: Limits, alias: Alias = "champion", force: bool = False,
    note: str | None = None,
) -> Release:  # fmt: skip
    """Publish a run: from now on its decisions count for the alias.

    Raises
    ------
    StateError
        The run has no complete manifest, too many of its keys failed, all its keys are decided by later runs, or
        what it was trained against no longer counts (the last three not with `force`).
    """
    counts = manifest_counts(tables, model_set, run_id)
    if not force and (why := release_refusal(counts, limits)):
        raise StateError(f"run {run_id} is not published: {why}. `release publish --run-id {run_id} --force` does.")
    if why := log_refusal(tables, model_set, run_id, alias, force=force):
        raise StateError(f"run {run_id} is not published: {why}")
    return _append(tables, Act(model_set=model_set, alias=alias, action="publish", run_id=run_id, by=user(), note=note))


def rollback(
    tables: Tables, model_set: str, *, target: str | None, alias: Alias = "champion", note: str | None = None
) -> Release:
    """Go back to an earlier release of an alias: what counted then counts again. Pins stay.

    Parameters
    ----------
    target
        Release id; by default the newest publish before the one that counts last.

    Raises
    ------
    StateError
        There is no such release of the alias.
    """
    log = read_releases(tables, model_set)
    target = target or _before_last(log, alias)
    releases.rollback_target(log, alias, target)
    return _append(
        tables,
        Act(
            model_set=model_set,
            alias=alias,
            action="rollback",
            target_release_id=target,
            by=user(),
            note=note,
        ),
    )


def _before_last(log: Sequence[Release], alias: Alias) -> str:
    """Return the row to go back to by default: the publish that counted just before the newest that counts."""
    counting = releases.counted(log, alias)
    publishes = [r for r in log if r.alias == alias and r.action == "publish" and r.run_id in counting]
    if len(publishes) < 2:
        raise StateError(f"there is no earlier release of {alias} to go back to; `release list` shows the log")
    return publishes[-2].release_id


def manifest_counts(tables: Tables, model_set: str, run_id: str) -> dict[str, int]:
    """Return the keys of a finished manifest by status.

    Raises
    ------
    StateError
        There is no such run, or its manifest is not written yet.
    """
    where = {"model_set": [model_set], "run_id": [run_id]}
    statuses = tables.read(MANIFEST, columns=["status"], where=where)
    if not tables.numbers(MANIFEST, model_set=model_set, owner=run_id):
        known = read_runs(tables, model_set).sort_by("at")["run_id"].to_pylist()
        if run_id in known:
            raise StateError(f"run {run_id} has no manifest yet; `train SPEC --run-id {run_id}` finishes it")
        said = f"the newest are {', '.join(known[-5:])}" if known else "it has none"
        raise StateError(f"model set {model_set} has no run {run_id!r} ({said})")
    planned = tables.read(PLAN, columns=["key_id"], where=where).num_rows
    if planned != statuses.num_rows:
        raise StateError(f"run {run_id}: {planned} keys in, {statuses.num_rows} manifest rows out; not released")
    return count_statuses(statuses)


def log_refusal(
    tables: Tables, model_set: str, run_id: str, alias: Alias = "champion", *, force: bool = False
) -> str | None:
    """Return why the release log speaks against publishing a run."""
    log = read_releases(tables, model_set)
    runs = releases.runs_from(read_runs(tables, model_set))
    newer = releases.newer_runs(log, runs, alias, run_id)
    where = {"model_set": [model_set], "run_id": [run_id, *newer]}
    rows = tables.read(MANIFEST, columns=["run_id", "key_id", "status", "serves"], where=where).to_pandas()
    return publish_refusal(log, runs, alias, run_id, rows, is_forced=force)


def _append(tables: Tables, act: Act) -> Release:
    """Append one row to the log; who loses the race for a place reads again and takes the next."""
    for _ in range(_TRIES):
        numbers = tables.numbers(RELEASE, model_set=act.model_set, owner=LOG_OWNER)
        log = read_releases(tables, act.model_set)
        row = releases.next_release(log[-1] if log else None, act)
        number = numbers[-1] + 1 if numbers else 0
        if tables.append(RELEASE, RELEASE.rows([row.row()]), Commit(act.model_set, LOG_OWNER, number)):
            return row
    raise StateError(f"the release log of {act.model_set} changed {_TRIES} times while one row was added; try again")


def user() -> str:
    """Return who runs this process, as far as the machine knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def released_as(tables: Tables, model_set: str, run_id: str, alias: Alias = "champion") -> Release | None:
    """Return the newest publish of a run to an alias, or None."""
    log = read_releases(tables, model_set)
    found = [r for r in log if r.action == "publish" and r.run_id == run_id and r.alias == alias]
    return found[-1] if found else None


def release_of(tables: Tables, model_set: str, run_id: str, alias: Alias = "champion") -> Release:
    """Return the newest publish of a run to an alias.

    Raises
    ------
    StateError
        There is none.
    """
    found = released_as(tables, model_set, run_id, alias)
    if found is None:
        raise StateError(f"run {run_id!r} was never published to {alias}; `release list` shows what was")
    return found


def newest_run(tables: Tables, model_set: str) -> str:
    """Return the run with a manifest that started last.

    Raises
    ------
    StateError
        There is none.
    """
    for run_id in reversed(read_runs(tables, model_set).sort_by("at")["run_id"].to_pylist()):
        if tables.numbers(MANIFEST, model_set=model_set, owner=run_id):
            return str(run_id)
    raise StateError(f"model set {model_set} has no finished run to publish; `group-models train` makes one")
