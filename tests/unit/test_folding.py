"""The live set: worlds small enough to work out by hand, and random histories folded in two other ways."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from group_models.errors import StateError
from group_models.live.folding import live_set, publish_refusal
from group_models.live.releases import FoldPlan, Release, RunInfo, hold, newer_runs, runs_to_read
from tests.unit.histories import ANY, COLUMNS, EPOCH, EVENTS, KEYS, History, happen


def manifest(*rows: str) -> pd.DataFrame:
    """Return manifest rows written as `run key status serves [model run]`."""
    words = [row.split() for row in rows]
    return pd.DataFrame([each + [None] * (5 - len(each)) for each in words], columns=COLUMNS, dtype=object)


def served(live: pd.DataFrame) -> dict[str, str | None]:
    assert live["key_id"].is_unique
    return dict(zip(live["key_id"], live["model_run_id"], strict=True))


def fold(
    *rows: str, runs: str, base: str | None = None, pinned: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    return served(live_set(manifest(*rows), FoldPlan(base, tuple(runs.split())), pinned or {}))


def test_a_new_model_serves_its_key():
    assert fold("r1 a trained new r1", "r1 b failed none", runs="r1") == {"a": "r1", "b": None}


def test_the_run_that_started_last_wins_whatever_the_order_of_its_rows():
    rows = ["r1 a trained new r1", "r2 a trained new r2"]
    assert fold(*rows, runs="r1 r2") == fold(*reversed(rows), runs="r1 r2") == {"a": "r2"}
    assert fold(*rows, runs="r2 r1") == {"a": "r1"}


@pytest.mark.parametrize("status", ["failed", "unchanged", "rejected", "too_small", "vanished", "deferred"])
def test_a_key_that_decides_nothing_keeps_the_model_that_another_run_decided(status):
    rows = ["r1 a trained new r1", "r2 a trained new r2", f"r3 a {status} previous r1"]
    assert fold(*rows, runs="r1 r2 r3") == {"a": "r2"}


@pytest.mark.parametrize("serves", ["parent", "none"])
def test_a_key_without_a_model_of_its_own_takes_none_away(serves):
    assert fold("r1 a trained new r1", f"r2 a too_small {serves}", runs="r1 r2") == {"a": "r1"}


def test_a_gate_that_hands_the_key_to_its_parent_decides_it():
    rows = ["r1 a trained new r1", "r2 a rejected parent r0"]
    assert fold(*rows, runs="r1 r2") == {"a": None}
    assert fold(*rows, runs="r2 r1") == {"a": "r1"}


def test_a_gate_that_keeps_the_champion_decides_nothing():
    assert fold("r1 a trained new r1", "r2 a rejected previous r1", runs="r1 r2") == {"a": "r1"}


def test_rows_of_the_base_stand_for_the_runs_before_it():
    rows = ["r9 a failed previous r1", "r9 b trained new r9", "r9 c failed none", "s a trained new s"]
    assert fold(*rows, runs="r9", base="r9") == {"a": "r1", "b": "r9", "c": None}
    assert fold(*rows, runs="r9") == {"a": None, "b": "r9", "c": None}
    assert fold(*rows, runs="r9 s", base="r9")["a"] == "s"


def test_what_the_base_repeats_is_older_than_any_decision_beside_it():
    rows = ["s a trained new s", "r9 a unchanged previous r1"]
    assert fold(*rows, runs="s r9", base="r9") == {"a": "s"}


def test_a_pin_lays_the_model_of_its_run_over_the_rest():
    rows = ["r1 a trained new r1", "r1 b trained new r1", "r2 a trained new r2", "r2 b trained new r2"]
    live = live_set(manifest(*rows), FoldPlan(None, ("r1", "r2")), {"a": "r1"})
    assert served(live) == {"a": "r1", "b": "r2"}
    assert dict(zip(live["key_id"], live["is_pinned"], strict=True)) == {"a": True, "b": False}
    assert list(live["newest_run_id"]) == ["r2", "r2"]


def test_a_pin_to_a_run_that_left_the_key_alone_takes_the_model_that_served_after_it():
    rows = ["r1 a trained new r1", "r2 a failed previous r1", "r3 a trained new r3"]
    assert fold(*rows, runs="r1 r2 r3", pinned={"a": "r2"}) == {"a": "r1"}


def test_a_pin_to_a_run_after_which_the_parent_served_leaves_no_model():
    assert fold("r1 a rejected parent", "r2 a trained new r2", runs="r1 r2", pinned={"a": "r1"}) == {"a": None}


def test_rows_of_a_pinned_run_that_does_not_count_decide_no_other_key():
    rows = ["r1 a trained new r1", "r1 b trained new r1", "r2 b trained new r2"]
    live = live_set(manifest(*rows), FoldPlan(None, ("r2",)), {"a": "r1"})
    assert served(live) == {"a": "r1", "b": "r2"}
    pinned = live[live["key_id"] == "a"].iloc[0]
    assert (pinned["newest_run_id"], pinned["status"], pinned["is_pinned"]) == (None, None, True)


def test_a_pin_whose_run_has_no_row_of_the_key_is_an_error():
    with pytest.raises(StateError, match=r"key a is pinned to run r1, .* \(1 such pins\).*release unpin"):
        fold("r1 b trained new r1", "r2 a trained new r2", runs="r1 r2", pinned={"a": "r1"})


def test_status_is_that_of_the_newest_row():
    rows = ["r1 a trained new r1", "r2 a failed previous r1", "r1 b trained new r1"]
    live = live_set(manifest(*rows), FoldPlan(None, ("r1", "r2")), {}).set_index("key_id")
    assert live["newest_run_id"].to_dict() == {"a": "r2", "b": "r1"}
    assert live["status"].to_dict() == {"a": "failed", "b": "trained"}


def test_rows_that_are_there_twice_count_once():
    rows = ["r1 a trained new r1", "r2 a failed previous r1", "r2 b trained new r2"]
    once = live_set(manifest(*rows), FoldPlan(None, ("r1", "r2")), {"a": "r1"})
    twice = live_set(manifest(*rows, *rows), FoldPlan(None, ("r1", "r2")), {"a": "r1"})
    pd.testing.assert_frame_equal(once, twice)


def test_no_rows_are_no_keys():
    live = live_set(manifest(), FoldPlan(None, ()), {})
    assert list(live.columns) == ["key_id", "model_run_id", "newest_run_id", "status", "is_pinned"]
    assert live.empty


def test_categories_and_a_foreign_index_are_taken_as_well():
    rows = manifest("r1 a trained new r1", "r2 a failed previous r1", "r2 b trained new r2")
    odd = rows.astype("category").set_index(pd.Index([7, 7, 7]))
    plan = FoldPlan("r2", ("r1", "r2"))
    pd.testing.assert_frame_equal(live_set(odd, plan, {"a": "r1"}), live_set(rows, plan, {"a": "r1"}))


def test_many_keys_are_folded_in_a_moment():
    keys = np.array([f"{i:032x}" for i in range(100_000)], dtype=object)
    runs = [f"r{i}" for i in range(6)]
    rows = pd.concat(
        pd.DataFrame({"run_id": run, "key_id": keys, "status": "trained", "serves": "new", "model_run_id": run})
        for run in runs
    )
    start = time.process_time()
    live = live_set(rows, FoldPlan("r0", tuple(runs)), {keys[0]: "r0"})
    assert time.process_time() - start < 3
    assert len(live) == 100_000
    assert live["model_run_id"].value_counts().to_dict() == {"r5": 99_999, "r0": 1}


# Publishing


def release(number: int, action: str, **what: str) -> Release:
    at = EPOCH + dt.timedelta(minutes=number)
    return Release(model_set="m", alias="champion", action=action, release_id=f"x{number}", at=at, **what)


def run(number: int, base: str | None = None, *, is_full: bool = True) -> RunInfo:
    return RunInfo(f"r{number}", EPOCH + dt.timedelta(seconds=number), is_full, base)


@pytest.fixture
def three_runs() -> dict[str, RunInfo]:
    return {"r1": run(1), "r2": run(2, is_full=False), "r3": run(3, is_full=False)}


THREE_ROWS = manifest(
    "r1 a trained new r1",
    "r1 b trained new r1",
    "r1 c failed none",
    "r2 a trained new r2",
    "r3 b rejected parent",
)


def test_a_run_whose_keys_are_all_decided_by_later_runs_is_refused(three_runs):
    log = [release(1, "publish", run_id="r2"), release(2, "publish", run_id="r3")]
    said = publish_refusal(log, three_runs, "champion", "r1", THREE_ROWS)
    assert said is not None
    assert "every key that this run decides (2) is decided by a run that started later (r2, r3)" in said
    assert "release rollback" in said
    assert "release pin" in said
    assert publish_refusal(log, three_runs, "champion", "r1", THREE_ROWS, is_forced=True) == said


def test_a_run_that_decides_one_key_that_no_later_run_decides_may_be_published(three_runs):
    log = [release(1, "publish", run_id="r2")]
    assert publish_refusal(log, three_runs, "champion", "r1", THREE_ROWS) is None


def test_a_run_that_decides_nothing_may_be_published(three_runs):
    log = [release(1, "publish", run_id="r2")]
    rows = manifest("r1 a unchanged previous r0", "r2 a trained new r2")
    assert publish_refusal(log, three_runs, "champion", "r1", rows) is None


def test_the_newest_run_may_be_published_without_its_rows_being_read(three_runs):
    log = [release(1, "publish", run_id="r1")]
    assert newer_runs(log, three_runs, "champion", "r3") == ()
    assert publish_refusal(log, three_runs, "champion", "r3", manifest()) is None


def test_a_run_whose_base_does_not_count_any_more_is_refused_unless_forced():
    runs = {"r1": run(1), "r2": run(2, "x1"), "r3": run(3, "x2")}
    log = [release(1, "publish", run_id="r1"), release(2, "publish", run_id="r2")]
    assert publish_refusal(log, runs, "champion", "r3", manifest()) is None
    log.append(release(3, "rollback", target_release_id="x1"))
    said = publish_refusal(log, runs, "champion", "r3", manifest())
    assert said is not None
    assert "this run started from release x2, where r2 counted and now does not" in said
    assert "group-models release publish SPEC --run-id r3 --force" in said
    assert publish_refusal(log, runs, "champion", "r3", manifest(), is_forced=True) is None
    log.append(release(4, "publish", run_id="r2"))
    assert publish_refusal(log, runs, "champion", "r3", manifest()) is None


def test_a_run_that_is_not_known_cannot_be_published(three_runs):
    with pytest.raises(StateError, match="does not know r9; it knows r3, r2, r1"):
        publish_refusal([], three_runs, "champion", "r9", manifest())


def test_carriers_beside_a_slow_full_run_end_the_same_in_any_order_of_publishing():
    runs = {
        "r1": run(1),
        "r2": run(2, "x1"),
        "r3": run(3, "x1", is_full=False),
        "r4": run(4, "x1", is_full=False),
    }
    rows = manifest(
        *("r1 ua trained new r1", "r1 dl trained new r1", "r1 b6 trained new r1"),
        *("r2 ua trained new r2", "r2 dl trained new r2", "r2 b6 failed previous r1"),
        *("r3 ua trained new r3", "r4 dl failed previous r1"),
    )
    for order in itertools.permutations(["r2", "r3", "r4"]):
        log = [release(number, "publish", run_id=run_id) for number, run_id in enumerate(["r1", *order], 1)]
        plan = runs_to_read(log, runs, "champion")
        assert plan == FoldPlan("r2", ("r2", "r3", "r4"))
        assert served(live_set(rows, plan, {})) == {"ua": "r3", "dl": "r2", "b6": "r1"}


# Random histories


def questions(history: History, choice: int) -> Iterator[tuple[str, str | None]]:
    """What is asked of a history: each alias, now and as of some release."""
    moments = [None, history.log[choice % len(history.log)].release_id] if history.log else [None]
    yield from itertools.product(("champion", "challenger"), moments)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, min_size=5, max_size=16), ANY)
def test_the_live_set_of_any_history_is_what_replaying_it_gives(events, choice):
    history = History()
    for event in events:
        happen(history, event)
    for alias, as_of in questions(history, choice):
        plan = runs_to_read(history.log, history.runs, alias, as_of)
        fast = history.folded(alias, as_of, plan)
        naive = history.folded(alias, as_of, history.naive_plan(alias, as_of))
        expected = history.expected(alias, as_of)
        assert {key: model for key, model in served(fast).items() if model} == expected
        assert {key: model for key, model in served(naive).items() if model} == expected
        # Fewer runs may know fewer keys that have no model but for a pin; what they know of a key is the same.
        known = fast[fast["newest_run_id"].notna()].reset_index(drop=True)
        pd.testing.assert_frame_equal(known, naive.set_index("key_id").loc[known["key_id"]].reset_index())
        assert fast.loc[fast["newest_run_id"].isna(), "is_pinned"].all()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, min_size=5, max_size=16))
def test_no_night_changes_what_a_rollback_brought_back(events):
    history = History()
    for event in events:
        before, was_held = history.expected("champion", None), history.held["champion"]
        happen(history, event)
        assert {alias: hold(history.log, alias) is not None for alias in history.held} == history.held
        assert event[0] != "night" or not was_held or history.expected("champion", None) == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, min_size=5, max_size=16), ANY)
def test_publishing_a_run_that_is_refused_as_decided_later_would_change_nothing(events, choice):
    history = History()
    for event in [*events, ("start", None, ("new",) * len(KEYS))]:
        happen(history, event)
    run_id = history.finished()[choice % len(history.finished())]
    rows = pd.DataFrame(history.rows, columns=COLUMNS, dtype=object)
    said = publish_refusal(history.log, history.runs, "champion", run_id, rows, is_forced=True)
    before = history.expected("champion", None)
    history.act("publish", "champion", run_id=run_id)
    assert said is None or history.expected("champion", None) == before
