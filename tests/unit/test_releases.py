"""The release log: what counts, what is pinned, which runs are enough to read."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

import pytest

from group_models.errors import StateError
from group_models.live.releases import (
    Act,
    FoldPlan,
    Release,
    RunInfo,
    counted,
    find_release,
    hold,
    newer_runs,
    next_release,
    pins,
    releases_from,
    rollback_target,
    runs_from,
    runs_to_read,
)
from group_models.tables import RELEASE, RUN

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def log(*acts: str) -> list[Release]:
    """Return a log, rows x1, x2, ...: `publish r1`, `rollback x1`, `pin k r1`, `challenger publish r1`."""
    return [_release(number, act.split()) for number, act in enumerate(acts, 1)]


def _release(number: int, words: list[str]) -> Release:
    alias = words.pop(0) if words[0] == "challenger" else "champion"
    action, *rest = words
    fields = {"publish": ["run_id"], "pin": ["key_id", "run_id"], "unpin": ["key_id"]}
    named = dict(zip(fields.get(action, ["target_release_id"]), rest, strict=True))
    at = EPOCH + dt.timedelta(minutes=number)
    return Release(model_set="m", alias=alias, action=action, release_id=f"x{number}", at=at, **named)


def runs(**described: str) -> dict[str, RunInfo]:
    """Return runs in the order of their start: `r1="full"`, or with its base release `r2="scoped x1"`."""
    found = {}
    for number, (run_id, words) in enumerate(described.items()):
        kind, *base = words.split()
        at = EPOCH + dt.timedelta(seconds=number)
        found[run_id] = RunInfo(run_id, at, kind == "full", base[0] if base else None)
    return found


def counts(acts: Sequence[str], alias: str = "champion", as_of: str | dt.datetime | None = None) -> str:
    return " ".join(sorted(counted(log(*acts), alias, as_of)))


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([], ""),
        (["publish r1"], "r1"),
        (["publish r1", "publish r2"], "r1 r2"),
        (["publish r1", "publish r1"], "r1"),
        (["publish r1", "publish r2", "rollback x1"], "r1"),
        (["publish r1", "publish r2", "rollback x1", "publish r3"], "r1 r3"),
        (["publish r1", "publish r2", "rollback x1", "publish r2"], "r1 r2"),
        (["publish r1", "publish r2", "rollback x1", "rollback x2"], "r1 r2"),
        (["publish r1", "publish r2", "rollback x1", "publish r3", "rollback x3"], "r1"),
        (["publish r1", "publish r2", "rollback x1", "publish r3", "rollback x2"], "r1 r2"),
        (["publish r1", "publish r2", "adopt x1"], "r1"),
        (["publish r1", "pin k r9", "publish r2", "rollback x2"], "r1"),
        (["publish r1", "publish r2", "mirror x1", "unpin k"], "r1 r2"),
    ],
)
def test_publishes_count_and_a_rollback_restores_those_of_the_row_it_names(acts, expected):
    assert counts(acts) == expected


def test_challenger_counts_its_own_publishes_and_those_of_champion():
    acts = ["publish r1", "challenger publish r2", "publish r3"]
    assert counts(acts, "challenger") == "r1 r2 r3"
    assert counts(acts, "champion") == "r1 r3"


def test_a_rollback_of_one_alias_leaves_the_publishes_of_the_other():
    acts = ["challenger publish r1", "publish r2", "challenger publish r3", "publish r4"]
    assert counts([*acts, "challenger rollback x1"], "challenger") == "r1 r2 r4"
    assert counts([*acts, "rollback x2"], "challenger") == "r1 r2 r3"


@pytest.mark.parametrize(
    ("as_of", "expected"),
    [
        ("x1", "r1"),
        ("x2", "r1"),  # a row of the other alias is a moment as well
        ("x3", "r1 r3"),
        ("x4", "r1"),
        (EPOCH, ""),
        (EPOCH + dt.timedelta(minutes=1), "r1"),
        (EPOCH + dt.timedelta(minutes=3, seconds=59), "r1 r3"),
        (EPOCH + dt.timedelta(days=1), "r1"),
    ],
)
def test_as_of_a_row_or_a_time_is_what_counted_then(as_of, expected):
    acts = ["publish r1", "challenger publish r2", "publish r3", "rollback x1"]
    assert counts(acts, as_of=as_of) == expected


def test_the_order_of_the_rows_in_the_table_does_not_matter():
    rows = log("publish r1", "publish r2", "rollback x1", "pin k r1", "unpin k", "publish r3")
    shuffled = rows[::-2] + rows[::2]
    assert counted(shuffled, "champion") == {"r1", "r3"}
    assert pins(shuffled, "champion") == {}


def test_rows_of_the_same_moment_are_ordered_by_their_id():
    first, second = log("publish r1", "rollback x1")
    rows = [dataclasses.replace(second, at=first.at), first]
    assert counted(rows, "champion") == {"r1"}


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        (["publish r1", "rollback x9"], r"no release 'x9'; the newest are x1 \(publish\)"),
        (["rollback x9"], "no release 'x9'; there is none yet"),
        (
            ["publish r1", "challenger publish r2", "rollback x2"],
            "'x2' is one of challenger, not of champion",
        ),
        (["publish r1", "rollback x3", "publish r3"], "no release 'x3'"),
        (["publish r1", "rollback x2"], "no release 'x2'"),
    ],
)
def test_a_rollback_to_a_row_that_is_not_there_before_it_is_an_error(acts, said):
    with pytest.raises(StateError, match=said):
        counts(acts)


@pytest.mark.parametrize(
    ("acts", "held"),
    [
        ([], None),
        (["publish r1"], None),
        (["publish r1", "publish r2", "rollback x1"], "x3"),
        (["publish r1", "publish r2", "adopt x1"], "x3"),
        (["publish r1", "publish r2", "rollback x1", "publish r2"], None),
        (["publish r1", "publish r2", "rollback x1", "rollback x2"], "x4"),
        (["publish r1", "rollback x1", "pin k r1", "unpin k", "mirror x2"], "x2"),
        (["publish r1", "rollback x1", "challenger publish r2"], "x2"),
        (["challenger publish r1", "challenger rollback x1"], None),
    ],
)
def test_a_rollback_holds_champion_until_something_is_published_to_it(acts, held):
    found = hold(log(*acts)[::-1])
    assert (found and found.release_id) == held


def test_a_moment_that_is_not_in_the_log_is_an_error_that_names_the_newest_few():
    rows = log(*(f"publish r{i}" for i in range(9)))
    with pytest.raises(StateError, match=r"no release 'y'; the newest are x9 \(publish\), x8 .* x5 \(publish\)$"):
        counted(rows, "champion", "y")


def test_a_rollback_target_is_looked_up_among_the_rows_of_its_alias():
    rows = log("publish r1", "challenger publish r2")
    assert rollback_target(rows, "champion", "x1") is rows[0]
    assert find_release(rows, "x2") is rows[1]
    with pytest.raises(StateError, match=r"one of challenger, not of champion; the newest are x1 \(publish\)$"):
        rollback_target(rows, "champion", "x2")


def test_pins_hold_through_publishes_and_rollbacks_until_they_are_ended():
    acts = ["publish r1", "pin a r1", "pin b r1", "publish r2", "rollback x1", "pin b r2", "unpin a"]
    assert pins(log(*acts), "champion", "x5") == {"a": "r1", "b": "r1"}
    assert pins(log(*acts), "champion") == {"b": "r2"}
    assert pins(log(*acts, "unpin never"), "champion") == {"b": "r2"}


def test_pins_are_those_of_one_alias():
    rows = log("pin a r1", "challenger pin b r2")
    assert pins(rows, "champion") == {"a": "r1"}
    assert pins(rows, "challenger") == {"b": "r2"}


@pytest.mark.parametrize(
    ("known", "acts", "expected"),
    [
        (runs(), [], FoldPlan(None, ())),
        (runs(r1="full"), [], FoldPlan(None, ())),
        (runs(r1="full"), ["publish r1"], FoldPlan("r1", ("r1",))),
        # night after night: the last full run is enough
        (
            runs(r1="full", r2="full x1", r3="full x2"),
            ["publish r1", "publish r2", "publish r3"],
            FoldPlan("r3", ("r3",)),
        ),
        # what was published while a slow full run went on stands beside it
        (
            runs(r1="full", slow="full x1", ua="scoped x1", dl="scoped x1"),
            ["publish r1", "publish ua", "publish slow", "publish dl"],
            FoldPlan("slow", ("slow", "ua", "dl")),
        ),
        # scoped runs that the full run saw are in its rows
        (
            runs(r1="full", ua="scoped x1", r2="full x2"),
            ["publish r1", "publish ua", "publish r2"],
            FoldPlan("r2", ("r2",)),
        ),
        # a run published after the base started, but started before one that the base saw
        (
            runs(r1="full", late="scoped x1", ua="scoped x1", r2="full x2"),
            ["publish r1", "publish ua", "publish r2", "publish late"],
            FoldPlan("r2", ("late", "ua", "r2")),
        ),
        # no full run
        (runs(ua="scoped", dl="scoped"), ["publish dl", "publish ua"], FoldPlan(None, ("ua", "dl"))),
        # the newest full run saw what was rolled back: the one before it is the base
        (
            runs(r1="full", r2="full x1", r3="full x2"),
            ["publish r1", "publish r2", "rollback x1", "publish r3"],
            FoldPlan("r1", ("r1", "r3")),
        ),
        # no base is left: all that counts is read
        (
            runs(ua="scoped", r2="full x1", dl="scoped x2"),
            ["publish ua", "publish dl", "rollback x1", "publish dl", "publish r2", "rollback x2"],
            FoldPlan(None, ("ua", "dl")),
        ),
        # what a base saw is what counted for champion, whoever published last
        (
            runs(r1="full", rc="full x1", r2="full x2"),
            ["publish r1", "challenger publish rc", "publish r2"],
            FoldPlan("r2", ("r2",)),
        ),
        # a full run that was never published is no base
        (runs(r1="full", r2="full x1"), ["publish r1"], FoldPlan("r1", ("r1",))),
    ],
)
def test_the_runs_to_read_are_the_newest_base_and_what_it_did_not_see(known, acts, expected):
    assert runs_to_read(log(*acts), known, "champion") == expected


def test_the_base_of_challenger_may_be_a_run_of_its_own():
    known = runs(r1="full", r2="full x1", r3="scoped x1")
    rows = log("publish r1", "challenger publish r2", "publish r3")
    assert runs_to_read(rows, known, "challenger") == FoldPlan("r2", ("r2", "r3"))
    assert runs_to_read(rows, known, "champion") == FoldPlan("r1", ("r1", "r3"))


def test_the_runs_to_read_as_of_an_earlier_release_are_those_of_then():
    known = runs(r1="full", r2="full x1")
    assert runs_to_read(log("publish r1", "publish r2"), known, "champion", "x1") == FoldPlan("r1", ("r1",))


def test_a_published_run_that_the_run_table_does_not_know_is_an_error():
    with pytest.raises(StateError, match="does not know r2; it knows r1"):
        runs_to_read(log("publish r1", "publish r2"), runs(r1="full"), "champion")


def test_newer_runs_are_those_that_count_and_started_later():
    known = runs(r1="full", r2="full", r3="scoped", r4="scoped", r5="full")
    rows = log("publish r4", "publish r3", "publish r1", "challenger publish r5")
    assert newer_runs(rows, known, "champion", "r2") == ("r3", "r4")
    assert newer_runs(rows, known, "challenger", "r2") == ("r3", "r4", "r5")
    assert newer_runs(rows, known, "champion", "r4") == ()


def test_a_release_has_the_columns_of_its_table():
    assert {field.name for field in dataclasses.fields(Release)} == set(RELEASE.names)


def test_releases_survive_their_table():
    rows = log("publish r1", "pin k r1", "rollback x1")
    table = RELEASE.rows(release.row() for release in reversed(rows))
    assert releases_from(table) == rows


def test_runs_are_read_from_their_first_start():
    row = {"model_set": "m", "run_id": "r1", "event": "started", "at": EPOCH}
    later = EPOCH + dt.timedelta(hours=1)
    table = RUN.rows([
        row | {"at": later, "base_release": "x2"},
        row | {"base_release": "x1"},
        row | {"event": "finished", "at": later},
        row | {"run_id": "r2", "scope": "carrier = 'UA'"},
        row | {"run_id": "r3", "event": "finished"},
    ])  # fmt: skip
    assert runs_from(table) == {
        "r1": RunInfo("r1", EPOCH, is_full=True, base_release="x1"),
        "r2": RunInfo("r2", EPOCH, is_full=False, base_release=None),
    }


def test_the_next_release_is_at_the_clock_or_just_after_the_newest_row():
    act = Act(model_set="m", alias="champion", action="publish", run_id="r1", by="me")
    first = next_release(None, act, now=EPOCH)
    behind = next_release(first, act, now=EPOCH - dt.timedelta(days=1))
    ahead = next_release(behind, act, now=EPOCH + dt.timedelta(days=1))
    times = [first.at, behind.at, ahead.at]
    assert times == [EPOCH, EPOCH + dt.timedelta(microseconds=1), EPOCH + dt.timedelta(days=1)]
    assert sorted([ahead, first, behind], key=lambda release: release.release_id) == [first, behind, ahead]
    assert (first.run_id, first.by, first.action, first.key_id) == ("r1", "me", "publish", None)


def test_the_next_release_takes_the_clock_by_itself_and_ids_never_repeat():
    act = Act(model_set="m", alias="champion", action="publish", run_id="r1")
    made = [next_release(None, act) for _ in range(100)]
    assert len({release.release_id for release in made}) == 100
    assert abs(made[0].at - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
