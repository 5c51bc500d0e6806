"""Cleaning tables of hand-made runs: what goes, what stays, and what is refused afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from group_models.adapters.path_tables import PathTables
from group_models.errors import StateError
from group_models.fakes import MemoryTables
from group_models.live.cleaning import clean, plan_clean
from group_models.live.pinning import pin, unpin
from group_models.live.publishing import publish, publish_unattended, rollback
from group_models.live.sets import check_not_cleaned, read_live, read_releases, read_run, stored_model
from group_models.ports import Commit, Tables
from group_models.reporting.report import releases_table, text_table
from group_models.spec import Limits
from group_models.tables import MANIFEST, PLAN, RELEASE, STORE
from tests.unit.runs import SET, add_run, by_name, days_ago, id_of


@pytest.fixture(params=["memory", "paths"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    return MemoryTables() if request.param == "memory" else PathTables(tmp_path, "c.s")


def released(tables, run_id, alias="champion", *, force=False):
    return publish(tables, SET, run_id, limits=Limits(), alias=alias, force=force).release_id


def night(tables, run_id, day, statuses, **options):
    """Add a run that builds on the newest release and publish it."""
    log = read_releases(tables, SET)
    add_run(tables, run_id, day, statuses, base=log[-1].release_id if log else None, **options)
    return released(tables, run_id, force=True)


def rows_left(tables, table=STORE):
    """Return the rows that are there, as `run key`."""
    names = {id_of(letter): letter for letter in "abcdefgh"}
    rows = tables.read(table, columns=["run_id", "key_id"]).to_pylist()
    return sorted(f"{row['run_id']} {names[row['key_id']]}" for row in rows)


def models(tables, alias="champion", as_of=None):
    """Return the live set by letter, after a look at each of its models."""
    found = read_live(tables, SET, alias, as_of).models()
    for key_id, run_id in found.items():
        assert stored_model(tables, SET, run_id, key_id)["data"].decode().endswith(f" of {run_id}")
    return by_name(found)


@pytest.fixture
def nights(tables):
    """Five nights: a is trained each time, b in the first alone, c in the first and the third."""
    none = {"b": "r1"}
    return [
        night(tables, "r1", 1, {"a": "trained", "b": "trained", "c": "trained"}),
        night(tables, "r2", 2, {"a": "trained", "b": "failed", "c": "failed"}, previous={**none, "c": "r1"}),
        night(tables, "r3", 3, {"a": "trained", "b": "failed", "c": "trained"}, previous=none),
        night(tables, "r4", 4, {"a": "trained", "b": "failed", "c": "failed"}, previous={**none, "c": "r3"}),
        night(tables, "r5", 5, {"a": "trained", "b": "failed", "c": "failed"}, previous={**none, "c": "r3"}),
    ]


def test_a_clean_keeps_what_serves_at_the_releases_that_stay_and_nothing_else_of_old_runs(tables, nights):
    done = clean(tables, SET, keep=2)
    assert rows_left(tables) == [
        "r1 b", "r3 c", "r4 a", "r4 b", "r4 c", "r5 a", "r5 b", "r5 c",
    ]  # fmt: skip
    assert rows_left(tables, MANIFEST) == rows_left(tables)
    assert rows_left(tables, PLAN) == [f"{run_id} {key}" for run_id in ("r4", "r5") for key in "abc"]
    assert models(tables) == {"a": "r5", "b": "r1", "c": "r3"}
    assert models(tables, as_of=nights[3]) == {"a": "r4", "b": "r1", "c": "r3"}
    assert list(done.losses) == ["r1", "r2", "r3"]
    assert done.losses["r2"].rows == {PLAN.name: 3, STORE.name: 3, MANIFEST.name: 3}
    assert done.losses["r1"].bytes == len("a of r1") * 2


def test_a_plan_of_a_clean_tells_the_same_and_changes_nothing(tables, nights):
    before = [rows_left(tables, table) for table in (STORE, MANIFEST, PLAN)]
    planned = plan_clean(tables, SET, keep=2)
    assert [rows_left(tables, table) for table in (STORE, MANIFEST, PLAN)] == before
    assert len(read_releases(tables, SET)) == 5
    done = clean(tables, SET, keep=2)
    assert (planned.losses, planned.retention) == (done.losses, done.retention)
    assert planned.facts() == {
        "would be removed": "9 plan, 7 store, 7 manifest rows; 0.0 MiB of models",
        "runs": "1 go, 2 lose rows, 2 stay as they are",
        "oldest release of champion": nights[3],
    }
    assert done.facts()["removed"] == planned.facts()["would be removed"]
    rows = {row["run"]: row["stays"] for row in planned.rows()}
    assert rows == {
        "r1": "keys: 1 serve",
        "r2": "",
        "r3": "keys: 1 serve",
        "r4": f"published to champion as {nights[3]}",
        "r5": f"published to champion as {nights[4]}",
    }
    assert text_table("runs", planned.rows()).row_count == 5


def test_a_second_clean_finds_nothing_and_writes_nothing(tables, nights):
    clean(tables, SET, keep=2)
    log = read_releases(tables, SET)
    again = clean(tables, SET, keep=2)
    assert again.losses == {}
    assert read_releases(tables, SET) == log
    assert "oldest release of champion" not in again.facts()


def test_one_can_go_back_to_the_releases_that_stay_and_to_no_other(tables, nights):
    clean(tables, SET, keep=2)
    with pytest.raises(StateError, match=rf"{nights[2]} is before the oldest release of champion .* {nights[3]}: "):
        rollback(tables, SET, target=nights[2])
    with pytest.raises(StateError, match=rf"{nights[0]} is before .*cleaned \(keep 2\) at 20"):
        read_live(tables, SET, as_of=nights[0])
    rollback(tables, SET, target=nights[3])
    assert models(tables) == {"a": "r4", "b": "r1", "c": "r3"}
    with pytest.raises(StateError, match="no earlier release of champion to go back to"):
        rollback(tables, SET, target=None)


def test_a_cleaned_run_is_refused_by_name_wherever_it_would_be_taken_for_the_whole(tables, nights):
    clean(tables, SET, keep=2)
    for run_id in ("r1", "r2"):
        for refused in (
            lambda run_id=run_id: released(tables, run_id, force=True),
            lambda run_id=run_id: publish_unattended(tables, SET, run_id, limits=Limits()),
            lambda run_id=run_id: read_run(tables, SET, run_id),
            lambda run_id=run_id: check_not_cleaned(tables, SET, run_id),
            lambda run_id=run_id: pin(tables, SET, "k=a", run_id=run_id),
        ):
            with pytest.raises(StateError, match=rf"only what still served is left of run {run_id} since .* cleaned"):
                refused()
    assert read_run(tables, SET, "r4").models()


def test_a_pinned_key_keeps_its_row_and_its_model(tables, nights):
    pin(tables, SET, "k=a", run_id="r2")
    pin(tables, SET, "k=c", run_id="r2", alias="challenger")
    clean(tables, SET, keep=1)
    assert [row for row in rows_left(tables) if row[:2] in ("r1", "r2", "r3")] == ["r1 b", "r1 c", "r2 a", "r3 c"]
    assert "r2 c" in rows_left(tables, MANIFEST)
    assert models(tables) == {"a": "r2", "b": "r1", "c": "r3"}
    assert models(tables, "challenger") == {"a": "r5", "b": "r1", "c": "r1"}
    unpin(tables, SET, "k=a")
    unpin(tables, SET, "k=c", alias="challenger")
    night(tables, "r6", 6, {"a": "failed"}, previous={"a": "r5"}, scope="k = 'a'")
    clean(tables, SET, keep=1)
    assert [row for row in rows_left(tables) if row[:2] in ("r1", "r2", "r3")] == ["r1 b", "r3 c"]


def test_a_key_may_be_pinned_to_what_is_left_of_a_cleaned_run_where_that_serves(tables, nights):
    clean(tables, SET, keep=1)
    pin(tables, SET, "k=b", run_id="r1")
    night(tables, "r6", 6, {"b": "trained"}, scope="k = 'b'")
    clean(tables, SET, keep=1)
    assert models(tables)["b"] == "r1"


def test_the_parents_of_models_that_stay_stay_and_theirs(tables):
    night(tables, "r1", 1, {"g": "trained", "h": "trained"})
    night(tables, "r2", 2, {"h": "trained"}, parents={"h": ("r1", "g")}, scope="h")
    night(tables, "r3", 3, {"a": "trained", "b": "trained"}, parents={"a": ("r2", "h")}, scope="a, b")
    for number in (4, 5):
        night(tables, f"r{number}", number, {**dict.fromkeys("bgh", "trained"), "a": "failed"}, previous={"a": "r3"})
    clean(tables, SET, keep=1)
    assert [row for row in rows_left(tables) if row[:2] in ("r1", "r2", "r3")] == ["r1 g", "r2 h", "r3 a"]


def test_runs_that_are_not_published_yet_stay_while_they_may_be(tables, nights):
    """r6 has not finished and started long ago; r7 finished before the release on which r8 builds, r8 after it."""
    add_run(tables, "r6", 2.5, {"a": "trained"}, stops_after="waves")
    add_run(tables, "r7", 4.5, {"a": "trained"}, base=nights[3])
    add_run(tables, "r8", 365_000, {"a": "trained"}, base=nights[4])
    done = clean(tables, SET, keep=1)
    assert done.retention.whole["r8"] == "started since the release on which the newest run builds"
    assert {row[:2] for row in rows_left(tables)} == {"r1", "r3", "r5", "r8"}
    assert released(tables, "r8")


def test_a_young_run_that_has_not_finished_stays_with_all_on_which_it_builds(tables):
    for number in range(1, 6):
        night(tables, f"r{number}", number, {"a": "trained"})
    log = read_releases(tables, SET)
    add_run(tables, "young", days_ago(1), {"a": "trained"}, base=log[1].release_id, stops_after="waves")
    add_run(tables, "newest", days_ago(-1), {"a": "trained"}, base=log[-1].release_id)
    done = clean(tables, SET, keep=1)
    assert done.retention.whole["young"] == "not finished; `train SPEC --run-id young` finishes it"
    assert rows_left(tables) == ["newest a", "r2 a", "r5 a", "young a"]


def test_what_a_rollback_brought_back_stays_however_old(tables, nights):
    back = rollback(tables, SET, target=nights[0]).release_id
    clean(tables, SET, keep=1)
    assert models(tables) == {"a": "r1", "b": "r1", "c": "r1"}
    assert models(tables, as_of=back) == models(tables)


def test_the_last_releases_of_challenger_stay_too(tables, nights):
    for day, run_id in enumerate(["try", "retry"], 6):
        add_run(tables, run_id, day, {"a": "trained"}, base=nights[4], scope="a")
        released(tables, run_id, "challenger")
    rollback(tables, SET, target=None, alias="challenger")
    clean(tables, SET, keep=1)
    assert models(tables, "challenger") == {"a": "try", "b": "r1", "c": "r3"}


def test_a_key_that_a_gate_left_to_its_parent_does_not_get_an_older_model_back(tables):
    """The model of r1 stays for a pin; what r2 decided must stay beside it."""
    for number, status in enumerate(["trained", "to_parent", "failed"], 1):
        night(tables, f"r{number}", number, {"a": status}, scope="a")
    pin(tables, SET, "k=a", run_id="r1")
    night(tables, "r4", 4, {"b": "trained"}, scope="b")
    night(tables, "r5", 5, {"b": "trained"}, scope="b")
    clean(tables, SET, keep=1)
    unpin(tables, SET, "k=a")
    assert models(tables) == {"b": "r5"}


def test_a_run_that_lost_rows_is_no_base_of_a_live_set_any_more(tables):
    """Once `old` counts again all that counted at the start of `full` does; but `full` repeats no more what b had."""
    first = night(tables, "r1", 1, {"a": "trained", "b": "trained"})
    add_run(tables, "old", days_ago(3), {"b": "trained"}, scope="b", base=first, stops_after="manifest")
    second = released(tables, "old")
    add_run(tables, "full", days_ago(2), {"a": "trained", "b": "failed"}, previous={"b": "old"}, base=second)
    rollback(tables, SET, target=first)
    released(tables, "full", force=True)
    night(tables, "r6", days_ago(1), {"b": "failed"}, previous={"b": "r1"}, scope="b")
    clean(tables, SET, keep=1)
    assert "full b" not in rows_left(tables, MANIFEST)
    assert models(tables) == {"a": "full", "b": "r1"}
    released(tables, "old")
    assert models(tables) == {"a": "full", "b": "old"}


def test_the_full_run_from_which_a_live_set_is_read_stays_whole(tables):
    night(tables, "r1", 1, dict.fromkeys("abc", "trained"))
    for number in (2, 3, 4):
        night(tables, f"r{number}", number, {"a": "trained"}, scope="a")
    done = clean(tables, SET, keep=1)
    assert done.retention.whole["r1"] == "a live set is read from it"
    assert rows_left(tables) == ["r1 a", "r1 b", "r1 c", "r4 a"]


def test_a_clean_that_was_killed_is_ended_by_the_next_one(tables, nights, monkeypatch):
    before = models(tables)
    for steps in range(3):
        done: list[str] = []

        def killed(table, keys, *, model_set, where=None, _done=done, _steps=steps, _real=tables.keep_only):
            if len(_done) == _steps:
                raise KeyboardInterrupt
            _done.append(table.name)
            _real(table, keys, model_set=model_set, where=where)

        with monkeypatch.context() as patch:
            patch.setattr(tables, "keep_only", killed)
            with pytest.raises(KeyboardInterrupt):
                clean(tables, SET, keep=2)
        assert models(tables) == before
        assert models(tables, as_of=nights[3]) == {"a": "r4", "b": "r1", "c": "r3"}
    assert clean(tables, SET, keep=2).losses
    assert rows_left(tables, MANIFEST) == [
        "r1 b",
        "r3 c",
        *(f"{run_id} {key}" for run_id in ("r4", "r5") for key in "abc"),
    ]
    assert plan_clean(tables, SET, keep=2).losses == {}


@pytest.mark.parametrize("act", ["publish", "rollback", "pin"])
def test_who_acts_while_a_clean_is_decided_is_seen_by_it(act):
    """The clean loses its place in the log to the act, and plans again."""

    class Racing(MemoryTables):
        raced = False

        def append(self, table, rows, commit):
            if table is RELEASE and not self.raced and "clean" in rows["action"].to_pylist():
                self.raced = True
                acts[act]()
            return super().append(table, rows, commit)

    tables = Racing()
    nights = [night(tables, f"r{number}", number, {"a": "trained"}) for number in range(1, 5)]
    add_run(tables, "aside", 2.5, {"b": "trained"}, base=nights[1])
    acts = {
        "publish": lambda: released(tables, "aside"),
        "rollback": lambda: rollback(tables, SET, target=nights[0]),
        "pin": lambda: pin(tables, SET, "k=a", run_id="r2"),
    }
    clean(tables, SET, keep=1)
    assert tables.raced
    expected = {"publish": {"a": "r4", "b": "aside"}, "rollback": {"a": "r1"}, "pin": {"a": "r2"}}
    assert models(tables) == expected[act]


def test_a_reader_that_a_clean_overtakes_reads_again():
    class Overtaken(MemoryTables):
        is_reading = False

        def read(self, table, *, columns=None, where=None):
            if table is MANIFEST and self.is_reading:
                self.is_reading = False
                night(self, "r4", 4, {"a": "trained"})
                night(self, "r5", 5, {"a": "trained"})
                clean(self, SET, keep=1)
            return super().read(table, columns=columns, where=where)

    tables = Overtaken()
    for number in range(1, 4):
        night(tables, f"r{number}", number, {"a": "trained"})
    tables.is_reading = True
    assert by_name(read_live(tables, SET).models()) == {"a": "r5"}
    assert not tables.is_reading


def test_the_log_tells_a_clean_in_one_line(tables, nights):
    clean(tables, SET, keep=2)
    table = releases_table(read_releases(tables, SET), {})
    assert table.row_count == 6
    assert [str(list(column.cells)[-1]) for column in table.columns[2:4]] == [
        "clean", f"run r1, run r2, run r3, champion before release {nights[3]}",
    ]  # fmt: skip


def test_nothing_is_cleaned_where_nothing_was_ever_released(tables):
    add_run(tables, "r1", 1, {"a": "trained"})
    add_run(tables, "r2", 2, {"a": "trained"})
    assert clean(tables, SET, keep=1).losses == {}
    assert rows_left(tables) == ["r1 a", "r2 a"]


def add_parts(tables, run_id, letter, number):
    rows = [
        {"model_set": SET, "run_id": run_id, "key_id": id_of(letter), "wave": 0, "number": number, "part": part,
         "format": 1, "status": "trained", "data": b"part", "model_bytes": 4}
        for part in range(3)
    ]  # fmt: skip
    assert tables.append(STORE, STORE.rows(rows), Commit(SET, run_id, number))


def parts_left(tables):
    rows = tables.read(STORE, columns=["run_id", "part"]).to_pylist()
    return sorted(row["run_id"] for row in rows if row["part"] >= 0)


def test_parts_go_once_their_run_has_finished_also_from_runs_that_stay(tables, nights):
    for run_id, letter in (("r1", "b"), ("r2", "a"), ("r5", "a")):
        add_parts(tables, run_id, letter, 7)
    add_run(tables, "r6", days_ago(1), {"a": "trained"}, base=nights[-1], stops_after="waves")
    add_parts(tables, "r6", "a", 7)
    planned = plan_clean(tables, SET, keep=2)
    # Those of r2 go with the run itself.
    assert {run_id: (loss.rows, loss.bytes) for run_id, loss in planned.parts.items()} == {
        "r1": ({STORE.name: 3}, 12),
        "r5": ({STORE.name: 3}, 12),
    }
    assert "6 store rows" in planned.facts()["parts of ensembles"]
    goes = {row["run"]: row["goes"] for row in planned.rows()}
    assert goes["r5"].startswith("parts: 3 store rows")
    assert len(parts_left(tables)) == 12
    clean(tables, SET, keep=2)
    assert parts_left(tables) == ["r6"] * 3
    assert models(tables) == {"a": "r5", "b": "r1", "c": "r3"}
    assert models(tables, as_of=nights[3]) == {"a": "r4", "b": "r1", "c": "r3"}
    assert not plan_clean(tables, SET, keep=2).parts


def test_a_run_that_loses_but_its_parts_has_lost_nothing_and_can_be_published(tables, nights):
    add_parts(tables, "r5", "a", 7)
    clean(tables, SET, keep=9)
    assert parts_left(tables) == []
    assert not [row for row in read_releases(tables, SET) if row.action == "clean"]
    released(tables, "r5", alias="challenger")


def test_the_parts_of_a_parent_stay_while_models_build_on_it(tables):
    night(tables, "r1", 1, {"g": "trained", "a": "trained", "b": "trained"})
    night(tables, "r2", 2, {"a": "trained", "b": "trained"}, parents={"a": ("r1", "g"), "b": ("r1", "g")}, scope="a, b")
    add_parts(tables, "r1", "g", 7)
    add_parts(tables, "r2", "b", 7)
    assert list(plan_clean(tables, SET, keep=1).parts) == ["r2"]
    clean(tables, SET, keep=1)
    assert parts_left(tables) == ["r1"] * 3
    assert not plan_clean(tables, SET, keep=1).parts
    night(tables, "r3", 3, {"g": "trained", "a": "trained", "b": "trained"})
    clean(tables, SET, keep=1)
    assert parts_left(tables) == []


def test_a_model_set_without_a_run_has_nothing_to_clean():
    with pytest.raises(StateError, match=f"{SET} has no run yet, so there is nothing to clean; is the warehouse right"):
        plan_clean(MemoryTables(), SET, keep=1)
