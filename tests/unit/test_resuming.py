"""What is other now than when a run started, in words."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from group_models.errors import StateError
from group_models.fakes import MemoryTables
from group_models.keys import key_id
from group_models.planning.scopes import Scope
from group_models.runs.resuming import (
    Events,
    append_event,
    check_run_exists,
    check_same,
    read_events,
    size_changes,
    spec_changes,
)
from group_models.tables import RUN
from tests.unit.test_planning import sizes, spec


def accepted(stored: str | None) -> dict[str, str | None]:
    return {"stored_before": stored}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([None], None),
        ([""], set()),
        (["0,1000"], {0, 1000}),
        ([None, "0", "0,1"], {0}),
    ],
)
def test_only_commits_before_the_first_accepted_change_are_what_the_plan_says(rows, expected):
    events = Events(None, tuple(map(accepted, rows)), None)
    assert events.stored_before() == (None if expected is None else frozenset(expected))


def test_fields_that_differ_are_named_with_both_values():
    before = {"estimator": {"name": "ridge", "params": {"alpha": 1.0}}, "seed": 7, "keys": ["a"]}
    now = {"estimator": {"name": "median", "params": {}}, "seed": 7, "keys": ["a", "b"]}
    assert spec_changes(before, now) == [
        "estimator.name was 'ridge', is 'median'",
        "estimator.params.alpha was 1.0, is None",
        "keys was ['a'], is ['a', 'b']",
    ]
    assert spec_changes(before, dict(reversed(before.items()))) == []


def test_data_that_differ_are_counted_and_some_keys_named():
    planned = sizes(("a", 10, 10, 1), ("b", 10, 10, 1), ("c", 10, 10, 1), ("done", 10, 10, 1), ("gone", 0, 0, 0))
    missing = [key_id((name,)) for name in "abc"]
    now = sizes(("a", 10, 10, 1), ("b", 10, 9, 1), ("done", 99, 99, 1), ("gone", 5, 5, 1), ("new", 1, 1, 1))
    assert size_changes(planned, missing, now) == [
        "1 of 3 keys still to be trained have other data (k=b)",
        "1 of 3 keys still to be trained have none any more (k=c)",
        "1 keys are new (k=new)",
    ]
    assert size_changes(planned, missing, planned) == []


def test_of_many_keys_that_differ_a_few_are_named():
    planned = sizes(*[(str(i), 10, 10, 1) for i in range(9)])
    now = sizes(*[(str(i), 11, 11, 1) for i in range(9)])
    (said,) = size_changes(planned, planned["key_id"].to_pylist(), now)
    assert said.startswith("9 of 9 keys")
    assert said.endswith("; ...)")
    assert said.count("k=") == 5


def preparation(tables: MemoryTables) -> Any:
    """Return what an event needs to know of a run."""
    return SimpleNamespace(spec=spec(), tables=tables, scope=Scope.of_where("k = 'a'"))


@pytest.mark.parametrize("fault", ["write_then_raise", "write_then_false"])
def test_a_run_starts_and_finishes_once_and_its_numbers_ascend_in_time(fault):
    tables = MemoryTables(fail_on={1: fault})
    prepared = preparation(tables)
    for event in ("started", "started", "accepted", "accepted", "finished", "finished"):
        with contextlib.suppress(StateError):
            append_event(prepared, "r1", event, changes=event)
    assert tables.numbers(RUN, model_set="a.b.c", owner="r1") == [0, 1, 2, 3]
    rows = tables.read(RUN).sort_by("at")
    assert rows["event"].to_pylist() == ["started", "accepted", "accepted", "finished"]
    assert rows["scope"].to_pylist() == ["k = 'a'"] * 4
    events = read_events(tables, "a.b.c", "r1")
    assert (events.started["changes"], len(events.accepted), events.finished["event"]) == ("started", 2, "finished")


def test_of_several_attempts_to_plan_the_newest_one_is_what_the_run_saw():
    tables = MemoryTables()
    prepared = preparation(tables)
    append_event(prepared, "r1", "started")
    assert read_events(tables, "a.b.c", "r1").planned is None
    for missing in (0.5, 0.25):
        append_event(prepared, "r1", "planned", source_stats={"missing x": missing})
    assert dict(read_events(tables, "a.b.c", "r1").planned["source_stats"]) == {"missing x": 0.25}


def test_a_run_that_never_started_is_told_with_the_newest_ones():
    tables = MemoryTables()
    with pytest.raises(StateError, match=r"no run 'r9' to resume \(it has none\); `train SPEC --run-id r9` starts it"):
        check_run_exists(tables, "a.b.c", "r9")
    for number in range(7):
        append_event(preparation(tables), f"r{number}", "started")
    with pytest.raises(StateError, match=r"no run 'r9' to resume \(the newest are r6, r5, r4, r3, r2\)"):
        check_run_exists(tables, "a.b.c", "r9")
    check_run_exists(tables, "a.b.c", "r0")


def test_a_finished_run_is_told_again_after_an_update_of_a_library_and_an_unfinished_one_is_not():
    roles = SimpleNamespace(features={"x": "numeric"})
    prepared = SimpleNamespace(**vars(preparation(MemoryTables())), roles=roles)
    versions = {"python": "3.11", "numpy": "0.1.0"}
    started = {"scope": "k = 'a'", "spec": spec().to_json(), "versions": versions, "feature_kinds": roles.features}
    finished = {"event": "finished"}
    assert check_same(prepared, "r1", Events(started, (), finished), accept_changes=False) == []
    with pytest.raises(StateError, match=r"used by another spec \(.*numpy .*0\.1"):
        check_same(prepared, "r1", Events(started, (), None), accept_changes=False)
    other = {**started, "spec": spec(seed=99).to_json()}
    with pytest.raises(StateError, match=r"used by another spec \(seed was 99, is 7\); give another run id$"):
        check_same(prepared, "r1", Events(other, (), finished), accept_changes=False)
