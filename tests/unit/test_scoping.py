"""From what a caller asks for to a run's keys, on tables in memory."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from group_models.errors import StateError
from group_models.fakes import MemoryTables
from group_models.keys import key_id
from group_models.planning.scopes import Ask, Scope
from group_models.ports import LOG_OWNER, Commit
from group_models.runs.scoping import find_scope, no_failed_text
from group_models.tables import MANIFEST, PLAN, RELEASE, RUN

KINDS = {"k": "string"}


def at(day: int) -> dt.datetime:
    return dt.datetime(2026, 3, day, tzinfo=dt.UTC)


def start(tables: MemoryTables, run_id: str, day: int, **more: Any) -> None:
    row = {"model_set": "m", "run_id": run_id, "event": "started", "at": at(day), "key_kinds": KINDS, **more}
    tables.append(RUN, RUN.rows([{"feature_kinds": {}, **row}]), Commit("m", run_id, 0))


def finish(tables: MemoryTables, run_id: str, day: int, **counts: int) -> None:
    row = {"model_set": "m", "run_id": run_id, "event": "finished", "at": at(day), "counts": list(counts.items())}
    tables.append(RUN, RUN.rows([row]), Commit("m", run_id, 1))


def publish(tables: MemoryTables, run_id: str, day: int, **statuses: str) -> None:
    """Publish a run with these outcomes."""
    usual = {"model_set": "m", "run_id": run_id, "level": "k", "serves": "none"}
    rows = [{**usual, "key_id": key_id((k,)), "key": [("k", k)], "status": s} for k, s in statuses.items()]
    tables.append(MANIFEST, MANIFEST.rows(rows), Commit("m", run_id, 0))
    act = {"model_set": "m", "release_id": f"p{day}", "alias": "champion", "action": "publish", "run_id": run_id}
    tables.append(RELEASE, RELEASE.rows([{**act, "at": at(day)}]), Commit("m", LOG_OWNER, day))


def plan(tables: MemoryTables, run_id: str, *names: str) -> None:
    usual = {"model_set": "m", "run_id": run_id, "level": "k", "decision": "whole"}
    rows = [{**usual, "key_id": key_id((k,)), "key": [("k", k)]} for k in names]
    tables.append(PLAN, PLAN.rows(rows), Commit("m", run_id, 0))


@pytest.fixture
def tables() -> MemoryTables:
    """Runs r1 and r2 are published; a and c failed the last time."""
    found = MemoryTables()
    start(found, "r1", 1)
    publish(found, "r1", 1, a="trained", b="failed", c="crashed", d="too_small")
    start(found, "r2", 2, base_release="p1", scope="k < 'c'")
    publish(found, "r2", 2, a="failed", b="trained")
    return found


def found(tables: MemoryTables, **asked: Any) -> Scope:
    return find_scope(Ask(**asked), tables, "m", KINDS, lambda _: None)


def names(scope: Scope) -> set[str | None]:
    assert scope.keys is not None
    return {key["k"] for key in scope.keys.values()}


def test_failed_keys_are_those_whose_newest_published_outcome_is_a_failure(tables: MemoryTables):
    scope = found(tables, failed_only=True)
    assert names(scope) == {"a", "c"}
    assert scope.text == Scope.of_keys(scope.keys, "failed keys").text
    assert names(found(MemoryTables(), failed_only=True)) == set()


def test_where_no_key_failed_the_last_run_that_is_not_published_is_told_with_the_way_out(tables: MemoryTables):
    said = "no key failed in its newest published run"
    assert no_failed_text(MemoryTables(), "m") == said
    finish(tables, "r2", 2, failed=1)
    assert no_failed_text(tables, "m") == said
    finish(tables, "r3", 3, trained=4)
    assert no_failed_text(tables, "m") == said
    finish(tables, "r4", 4, failed=2, crashed=1, trained=1)
    way_out = "3 did in r4, which is not published: after `group-models release publish SPEC --run-id r4 --force`"
    assert no_failed_text(tables, "m").startswith(f"{said}; {way_out}")


def test_a_run_of_failed_keys_keeps_them_although_others_fail_by_now(tables: MemoryTables):
    text = found(tables, failed_only=True).text
    start(tables, "r3", 3, scope=text, base_release="p2")
    start(tables, "r4", 4, base_release="p2", scope="k < 'c'")
    publish(tables, "r4", 4, a="trained", b="failed")
    assert names(found(tables, failed_only=True)) == {"b", "c"}
    for asked in ({"resume": "r3"}, {"run_id": "r3", "failed_only": True}):
        assert (names(found(tables, **asked)), found(tables, **asked).text) == ({"a", "c"}, text)
    plan(tables, "r3", "a")
    for asked in ({"resume": "r3"}, {"run_id": "r3", "failed_only": True}):
        assert (names(found(tables, **asked)), found(tables, **asked).text) == ({"a"}, text)


def test_a_run_of_failed_keys_that_is_named_without_saying_so_is_asked_for_all_keys(tables: MemoryTables):
    start(tables, "r3", 3, scope=found(tables, failed_only=True).text, base_release="p2")
    assert found(tables, run_id="r3") == Scope()


def test_a_run_of_a_list_without_a_plan_needs_the_list_again(tables: MemoryTables):
    listed = found(tables, keys=["k=a", ("e",)])
    start(tables, "r3", 3, scope=listed.text, base_release="p2")
    with pytest.raises(StateError, match=r"run r3 was started for a list of keys and has no plan yet; .* --keys FILE"):
        found(tables, resume="r3")
    assert found(tables, run_id="r3", keys=["k=a", ("e",)]) == listed
    plan(tables, "r3", "a")
    assert names(found(tables, resume="r3")) == {"a"}


def test_key_ids_name_published_keys(tables: MemoryTables):
    assert names(found(tables, keys=[key_id(("d",)), key_id(("a",))])) == {"a", "d"}


def test_a_predicate_is_checked_and_kept_also_by_a_run_that_goes_on(tables: MemoryTables):
    checked: list[str] = []
    start(tables, "r3", 3, scope="k = 'a'", base_release="p2")
    for ask in (Ask(where=" k = 'a' "), Ask(resume="r3")):
        assert find_scope(ask, tables, "m", KINDS, checked.append) == Scope.of_where("k = 'a'")
    assert checked == ["k = 'a'"] * 2
    assert found(tables, resume="r1") == Scope()
