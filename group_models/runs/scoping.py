"""From what a caller asks for to the keys that a run answers for; a run that goes on keeps those it started with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from group_models.errors import StateError
from group_models.keys import KeyKind, KeyTexts
from group_models.live import releases
from group_models.live.manifest import FAILED
from group_models.live.sets import newest_release, read_releases, read_without_pins
from group_models.planning.scopes import FAILED_KEYS, KEYS, Ask, Scope, list_of, read_keys
from group_models.ports import Tables, Where
from group_models.tables import PLAN, RUN


def find_scope(
    ask: Ask, tables: Tables, model_set: str, kinds: Mapping[str, KeyKind], check_where: Callable[[str], None]
) -> Scope:
    """Return the scope of the run that a caller asks for.

    A list of keys is taken from the plan of a run that has one: keys that failed before may be others by now.

    Parameters
    ----------
    kinds
        The key columns in order and what their values are.
    check_where
        Refuses a predicate that is none.

    Raises
    ------
    SpecError
        The predicate or the list cannot be used.
    StateError
        The run to resume was started for a list that is nowhere now.
    """
    started = started_row(tables, model_set, ask.resume or ask.run_id)
    text = started["scope"] if started else None
    what = list_of(text)
    if ask.resume is not None:
        if what is None:
            return _where(text, check_where)
        if (planned := _planned(tables, started)) is not None:
            return planned
        return failed_keys(tables, model_set, started) if what == FAILED_KEYS else _no_list(ask.resume)
    if ask.keys is not None:
        return Scope.of_keys(read_keys(ask.keys, kinds, lambda: known_keys(tables, model_set)))
    if ask.failed_only:
        return (what == FAILED_KEYS and _planned(tables, started)) or failed_keys(tables, model_set, started)
    return _where(ask.where, check_where)


def started_row(tables: Tables, model_set: str, run_id: str | None) -> dict[str, Any] | None:
    """Return the row `started` of a run, None where it has none."""
    if run_id is None:
        return None
    where = {"model_set": [model_set], "run_id": [run_id], "event": ["started"]}
    return next(iter(tables.read(RUN, where=where).to_pylist()), None)


def known_keys(tables: Tables, model_set: str) -> dict[str, KeyTexts]:
    """Return the keys that published runs know, by key id."""
    live = read_without_pins(tables, model_set, newest_release(tables, model_set))
    return {str(identity): key for identity, key in live.keys["key"].items()}


def failed_keys(tables: Tables, model_set: str, started: Mapping[str, Any] | None) -> Scope:
    """Return the keys whose newest published outcome is a failure, as of the run's start or now."""
    base = started["base_release"] if started else newest_release(tables, model_set)
    keys = read_without_pins(tables, model_set, base).keys
    failed = keys[keys["status"].isin(FAILED)]["key"]
    return Scope.of_keys({str(identity): key for identity, key in failed.items()}, FAILED_KEYS)


def no_failed_text(tables: Tables, model_set: str) -> str:
    """Return that there is no failed key to train; where the last run that is not published has some, how to go on."""
    text = "no key failed in its newest published run"
    log = read_releases(tables, model_set)
    counted = {run_id for alias in (releases.CHAMPION, releases.CHALLENGER) for run_id in releases.counted(log, alias)}
    where: Where = {"model_set": [model_set], "event": ["finished"]}
    rows = tables.read(RUN, columns=["run_id", "at", "counts"], where=where).sort_by("at").to_pylist()
    failed = sum(count for status, count in dict(rows[-1]["counts"] or ()).items() if status in FAILED) if rows else 0
    if not failed or (run_id := rows[-1]["run_id"]) in counted:
        return text
    return (
        f"{text}; {failed:,} did in {run_id}, which is not published: after `group-models release publish SPEC "
        f"--run-id {run_id} --force` they are found, or name them with --keys"
    )


def _where(where: str | None, check_where: Callable[[str], None]) -> Scope:
    if where is None:
        return Scope()
    where = where.strip()
    check_where(where)
    return Scope.of_where(where)


def _planned(tables: Tables, started: Mapping[str, Any] | None) -> Scope | None:
    """Return the keys of a started run's plan, where it has one."""
    if started is None:
        return None
    model_set, run_id = started["model_set"], started["run_id"]
    if not tables.numbers(PLAN, model_set=model_set, owner=run_id):
        return None
    rows = tables.read(PLAN, columns=["key_id", "key"], where={"model_set": [model_set], "run_id": [run_id]})
    return Scope(keys={row["key_id"]: dict(row["key"]) for row in rows.to_pylist()}, text=started["scope"])


def _no_list(run_id: str) -> Scope:
    raise StateError(
        f"run {run_id} was started for a list of {KEYS} and has no plan yet; give the list again: "
        f"`train SPEC --run-id {run_id} --keys FILE`"
    )
