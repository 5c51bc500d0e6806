"""The release log against a registry's aliases: what is not shown there yet, and what a move by hand means. Pure.

The log is the truth, and an alias of the registered model its mirror. Each version that was made is a row `mirror` of
the log: the release that it shows, its number, and in `note` the state that it holds. A version holds a state once:
going back to that state goes back to that version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from group_models.errors import MovedAliasError, StateError
from group_models.live import releases
from group_models.live.cleans import check_kept
from group_models.live.releases import CHALLENGER, CHAMPION, CHANGING, Act, Release
from group_models.live.sets import Live
from group_models.spec import Scoring
from group_models.texts import some_of

ALIASES = (CHAMPION, CHALLENGER)

_SERVING = [*CHANGING, "pin", "unpin"]
_STATE = "state "
_HELD = ["model_run_id", "number", "sha256", "status"]


def newest_act(log: Sequence[Release], alias: str) -> Release | None:
    """Return the last row that changed what an alias serves; None for an alias that was never used.

    What `challenger` serves changes with what counts for `champion`, too.
    """
    own = [row for row in log if row.alias == alias and row.action in _SERVING]
    others = [row for row in log if row.alias == CHAMPION and row.action in CHANGING] if alias == CHALLENGER else []
    return max([own[-1], *others[-1:]], key=log.index) if own else None


def last_mirror(log: Sequence[Release], alias: str) -> Release | None:
    """Return the newest row that says which version shows an alias."""
    rows = [row for row in log if row.alias == alias and row.action == "mirror"]
    return rows[-1] if rows else None


def is_mirrored(log: Sequence[Release], alias: str, state: str | None = None) -> bool:
    """Return whether the registry shows what the log says of an alias, and as a `state` where one is given.

    The same release is another state once the spec's `scoring` has changed.
    """
    act, shown = newest_act(log, alias), last_mirror(log, alias)
    if act is None:
        return True
    is_same = shown is not None and shown.target_release_id == act.release_id
    return is_same and (state is None or (shown is not None and shown.note == _STATE + state))


def mirror_act(of: Release, alias: str, version: str, state: str, *, by: str) -> Act:
    """Return the row that says that a version shows a release."""
    return Act(
        model_set=of.model_set, alias=alias, action="mirror", target_release_id=of.release_id,
        registered_version=version, note=_STATE + state, by=by,
    )  # fmt: skip


def version_of_state(log: Sequence[Release], state: str) -> str | None:
    """Return the newest version that holds a state; None where there is none yet."""
    rows = [row for row in log if row.action == "mirror" and row.note == _STATE + state]
    return rows[-1].registered_version if rows else None


def state_of(live: Live, scoring: Scoring) -> str:
    """Return the digest of all that decides what a router answers."""
    held = live.keys.sort_index()[_HELD]
    text = held.to_csv() + scoring.model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_moved(log: Sequence[Release], alias: str, version: str | None) -> bool:
    """Return whether somebody moved an alias by hand to a version that shows a release.

    Only where the log has nothing that is not shown yet: else it may be us who were stopped between two steps.
    """
    shown = last_mirror(log, alias)
    if version is None or shown is None or not is_mirrored(log, alias) or version == shown.registered_version:
        return False
    return bool(_shown_by(log, version))


def adopting_acts(log: Sequence[Release], alias: str, version: str, *, by: str) -> list[Act]:
    """Return the rows with which an alias comes to serve what the version holds that somebody moved it to.

    To a version that the alias had: one `adopt`, which counts as a rollback and leaves pins alone. Of `champion` to one
    that only `challenger` had: a `publish` of each run that counted there.

    Raises
    ------
    MovedAliasError
        Such rows would make another state than the version holds, because other runs count meanwhile, or a clean has
        removed models of it.
    """
    shown = _shown_by(log, version)
    of = next((row for row in reversed(shown) if row.alias == alias), shown[-1])
    wanted = releases.counted(log, of.alias, of.target_release_id)
    acts = _adopt(log, alias, of, by) if of.alias == alias else _publishes(log, alias, of, wanted, by)
    if not acts or releases.counted(_after(log, acts), alias) != wanted:
        why = f"neither a rollback of {alias} nor a publish to it brings back what that version holds"
        raise MovedAliasError(_foreign(log, alias, version, why))
    return acts


def _adopt(log: Sequence[Release], alias: str, shown: Release, by: str) -> list[Act]:
    last = releases.find_release(log, shown.target_release_id or "")
    then = [row for row in log if row.at <= last.at and row.alias == alias and row.action in CHANGING]
    if not then:
        return []
    try:
        check_kept(log, [alias], then[-1].release_id)
    except StateError as e:
        raise MovedAliasError(_foreign(log, alias, shown.registered_version, str(e))) from e
    return [
        Act(
            model_set=shown.model_set, alias=alias, action="adopt", target_release_id=then[-1].release_id, by=by,
            note=f"{alias} was moved to version {shown.registered_version}",
        )
    ]  # fmt: skip


def _publishes(log: Sequence[Release], alias: str, shown: Release, wanted: Collection[str], by: str) -> list[Act]:
    note = f"{alias} was moved to version {shown.registered_version} of {shown.alias}"
    new = sorted(set(wanted) - releases.counted(log, alias))
    return [
        Act(model_set=shown.model_set, alias=alias, action="publish", run_id=run_id, by=by, note=note) for run_id in new
    ]


def _after(log: Sequence[Release], acts: Sequence[Act]) -> list[Release]:
    """Return the log as these rows would leave it."""
    then = list(log)
    for act in acts:
        then.append(releases.next_release(then[-1] if then else None, act))
    return then


def moved_text(log: Sequence[Release], alias: str, version: str) -> str:
    """Return what is said of a move that the spec does not adopt."""
    return _foreign(log, alias, version, "the spec says `register: {on_moved_alias: refuse}`")


def foreign_text(log: Sequence[Release], alias: str, version: str) -> str:
    """Return what is said of an alias on a version that no release is known of."""
    known = some_of(sorted({row.registered_version or "" for row in log if row.action == "mirror"}))
    return _foreign(log, alias, version, f"group-models did not make it (it made {known})")


def _foreign(log: Sequence[Release], alias: str, version: str | None, why: str) -> str:
    shown = last_mirror(log, alias)
    back = shown.registered_version if shown else None
    return (
        f"alias {alias} points at version {version}, and the release log at version {back}: {why}. Point it back at "
        f"version {back}; `group-models release publish` and `release rollback` change both"
    )


def _shown_by(log: Sequence[Release], version: str) -> list[Release]:
    return [row for row in log if row.action == "mirror" and row.registered_version == version]
