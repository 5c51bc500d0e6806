"""Publish a run to an alias, roll back, list: one row of the release log each."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence

import pyarrow as pa

from group_models.errors import StateError
from group_models.live import releases
from group_models.live.cleans import check_kept, cleaned_text, kept_releases
from group_models.live.folding import publish_refusal
from group_models.live.manifest import manifest_refusal
from group_models.live.releases import Act, Release
from group_models.live.sets import Alias, read_releases, read_runs
from group_models.ports import LOG_OWNER, Commit, Tables
from group_models.spec import Limits
from group_models.tables import MANIFEST, PLAN, RELEASE

_TRIES = 50
"""Appends to the log that may lose the race for a place before we give up."""


def _nothing_more(_: Sequence[Release]) -> None:
    """Refuse nothing."""


def publish(
    tables: Tables,
    model_set: str,
    run_id: str,
    *,
    limits: Limits,
    alias: Alias = "champion",
    force: bool = False,
    note: str | None = None,
    check: Callable[[Sequence[Release]], None] = _nothing_more,
) -> Release:
    """Publish a run: from now on its decisions count for the alias.

    Parameters
    ----------
    force
        Publish it also where too many of its keys failed, or where what it was trained against counts no longer.
    check
        Called with the log that the row will follow, to refuse by raising.

    Raises
    ------
    StateError
        The run has no complete manifest, too many of its keys failed, all its keys are decided by later runs, or
        what it was trained against no longer counts.
    """

    def act(log: Sequence[Release]) -> Act:
        if why := cleaned_text(log, run_id):
            raise StateError(f"run {run_id} is not published: {why}; train it again")
        manifest = read_outcomes(tables, model_set, run_id)
        if not force and (why := manifest_refusal(manifest, limits)):
            raise StateError(f"run {run_id} is not published: {why}. `{_by_hand(run_id)} --force` does.")
        check(log)
        if why := log_refusal(tables, model_set, run_id, alias, log=log, force=force):
            raise StateError(f"run {run_id} is not published: {why}")
        return Act(model_set=model_set, alias=alias, action="publish", run_id=run_id, by=user(), note=note)

    return append_act(tables, model_set, act)


def _by_hand(run_id: str) -> str:
    return f"group-models release publish SPEC --run-id {run_id}"


class _RefusedError(StateError):
    """The release log speaks against what a run would do by itself."""


def publish_unattended(
    tables: Tables, model_set: str, run_id: str, *, limits: Limits, alias: Alias = "champion"
) -> tuple[Release | None, str | None]:
    """Publish what was just trained, unless the log speaks against it or a rollback holds champion.

    Returns
    -------
    tuple
        The release and None, or None and why there is none. Whatever else goes wrong is raised: a log that cannot
        be written is no refusal.
    """

    def check(log: Sequence[Release]) -> None:
        held = _hold_text(log, run_id) if alias == "champion" else None
        said = [held, log_refusal(tables, model_set, run_id, alias, log=log)]
        if any(said):
            raise _RefusedError("; besides, ".join(why for why in said if why))

    try:
        return publish(tables, model_set, run_id, limits=limits, alias=alias, check=check), None
    except _RefusedError as refused:
        return None, str(refused)


def _hold_text(log: Sequence[Release], run_id: str) -> str | None:
    held = releases.hold(log)
    if held is None:
        return None
    who = f"{held.by or 'somebody'} brought champion back to release {held.target_release_id}"
    note = f": {held.note}" if held.note else ""
    return (
        f"{who} ({held.action} {held.release_id} of {held.at:%Y-%m-%d %H:%M:%S} UTC{note}), and since then no run "
        f"publishes itself. `{_by_hand(run_id)}` publishes this one and ends that"
    )


def rollback(
    tables: Tables, model_set: str, *, target: str | None, alias: Alias = "champion", note: str | None = None
) -> Release:
    """Go back to an earlier release of an alias: what counted then counts again. Pins stay.

    Parameters
    ----------
    target
        Release id; by default the newest one at which fewer runs counted than now.

    Raises
    ------
    StateError
        There is no such release of the alias.
    """

    def act(log: Sequence[Release]) -> Act:
        to = target or _before_now(log, alias)
        releases.rollback_target(log, alias, to)
        check_kept(log, [alias], to)
        return Act(model_set=model_set, alias=alias, action="rollback", target_release_id=to, by=user(), note=note)

    return append_act(tables, model_set, act)


def _before_now(log: Sequence[Release], alias: Alias) -> str:
    """Return the newest release of an alias at which fewer runs counted than now, and some did."""
    now = releases.counted(log, alias)
    for release in reversed(kept_releases(log, alias, len(log))):
        then = releases.counted(log, alias, release.release_id)
        if then and then < now:
            return release.release_id
    raise StateError(f"there is no earlier release of {alias} to go back to; `release list` shows the log")


def read_outcomes(tables: Tables, model_set: str, run_id: str) -> pa.Table:
    """Return what came of each key of a finished manifest: `key_id`, `level`, `status`, `serves`.

    Raises
    ------
    StateError
        There is no such run, or its manifest is not written yet.
    """
    where = {"model_set": [model_set], "run_id": [run_id]}
    manifest = tables.read(MANIFEST, columns=["key_id", "level", "status", "serves"], where=where)
    check_manifest(tables, model_set, run_id)
    planned = set(tables.read(PLAN, columns=["key_id"], where=where)["key_id"].to_pylist())
    if planned != set(manifest["key_id"].to_pylist()):
        raise StateError(f"run {run_id}: {len(planned)} keys in, {manifest.num_rows} other rows out; not released")
    return manifest


def check_manifest(tables: Tables, model_set: str, run_id: str) -> None:
    """Refuse a run that is not there or has no manifest yet.

    Raises
    ------
    StateError
        It says which runs there are, or how to finish this one.
    """
    if tables.numbers(MANIFEST, model_set=model_set, owner=run_id):
        return
    known = read_runs(tables, model_set).sort_by("at")["run_id"].to_pylist()
    if run_id in known:
        raise StateError(f"run {run_id} has no manifest yet; `train SPEC --run-id {run_id}` finishes it")
    said = f"the newest are {', '.join(known[-5:])}" if known else "it has none"
    raise StateError(f"model set {model_set} has no run {run_id!r} ({said})")


def log_refusal(
    tables: Tables,
    model_set: str,
    run_id: str,
    alias: Alias = "champion",
    *,
    log: Sequence[Release] | None = None,
    force: bool = False,
) -> str | None:
    """Return why the release log (as it is now, or as given) speaks against publishing a run."""
    log = read_releases(tables, model_set) if log is None else log
    runs = releases.runs_from(read_runs(tables, model_set))
    newer = releases.newer_runs(log, runs, alias, run_id)
    where = {"model_set": [model_set], "run_id": [run_id, *newer]}
    rows = tables.read(MANIFEST, columns=["run_id", "key_id", "status", "serves"], where=where).to_pandas()
    return publish_refusal(log, runs, alias, run_id, rows, is_forced=force)


def append_act(tables: Tables, model_set: str, act: Callable[[Sequence[Release]], Act]) -> Release:
    """Append one row to the log; `act` decides on the log that the row follows."""
    return append_acts(tables, model_set, lambda log: [act(log)])[0]


def append_acts(tables: Tables, model_set: str, acts: Callable[[Sequence[Release]], Sequence[Act]]) -> list[Release]:
    """Append rows to the log, all of them at once or none; `acts` decides on the log that they follow.

    Who loses the race for a place reads again, decides again and takes the next: so no act is decided on another
    log than it is appended to.
    """
    for _ in range(_TRIES):
        numbers = tables.numbers(RELEASE, model_set=model_set, owner=LOG_OWNER)
        log = read_releases(tables, model_set)
        newest, rows = log[-1] if log else None, []
        for act in acts(log):
            newest = releases.next_release(newest, act)
            rows.append(newest)
        commit = Commit(model_set, LOG_OWNER, numbers[-1] + 1 if numbers else 0)
        if not rows or tables.append(RELEASE, RELEASE.rows([row.row() for row in rows]), commit):
            return rows
    raise StateError(f"the release log of {model_set} changed {_TRIES} times while a row was added; try again")


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
