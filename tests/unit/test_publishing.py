"""Publishing and rolling back on tables in memory, with hand-made runs."""

import datetime as dt

import pytest

from group_models.errors import StateError
from group_models.fakes import MemoryTables
from group_models.live import read_key_kinds, read_live, read_without_pins
from group_models.ports import Commit
from group_models.publishing import newest_run, publish, rollback
from group_models.releases import counted, releases_from
from group_models.showing import newest_rows
from group_models.spec import Limits
from group_models.tables import MANIFEST, PLAN, RELEASE, RUN, STORE

SET = "c.s.m"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def add_run(tables, run_id, day, statuses, *, kinds=None, base=None, copies=1):
    """A finished run of day `day` in which keys came to these statuses."""
    shared = {"model_set": SET, "run_id": run_id}
    kinds = kinds or {"k": "string"}
    run = {**shared, "event": "started", "at": START + dt.timedelta(days=day), "key_kinds": kinds, "base_release": base}
    tables.append(RUN, RUN.rows([{**run, "feature_kinds": {"x": "numeric"}}]), Commit(SET, run_id, 0))
    key = [{**shared, "key_id": k, "key": [("k", k)], "level": "k"} for k in statuses]
    tables.append(PLAN, PLAN.rows([{**row, "decision": "whole"} for row in key]), Commit(SET, run_id, 0))
    stored = [{**row, "wave": 0, "number": 0, "part": -1, "format": 1} for row in key]
    stored = [{n: v for n, v in row.items() if n in STORE.names} | {"status": "trained"} for row in stored]
    tables.append(STORE, STORE.rows(stored), Commit(SET, run_id, 0))
    rows = []
    for row, status in zip(key, statuses.values(), strict=True):
        new = status == "trained"
        rows += copies * [
            {**row, "status": status, "serves": "new" if new else "none", "model_run_id": run_id if new else None}
        ]
    tables.append(MANIFEST, MANIFEST.rows(rows), Commit(SET, run_id, 0))


def counting(tables):
    return counted(releases_from(tables.read(RELEASE)), "champion")


def publish_all(tables, *run_ids):
    return [publish(tables, SET, run_id, limits=Limits()) for run_id in run_ids]


@pytest.fixture
def tables():
    made = MemoryTables()
    for day, run_id in enumerate(["r1", "r2", "r3"]):
        add_run(made, run_id, day, {"a": "trained"})
    return made


def test_a_rollback_goes_back_to_fewer_runs_and_a_second_one_further(tables):
    publish_all(tables, "r1", "r2", "r3")
    rollback(tables, SET, target=None)
    assert counting(tables) == {"r1", "r2"}
    rollback(tables, SET, target=None)
    assert counting(tables) == {"r1"}
    with pytest.raises(StateError, match="no earlier release"):
        rollback(tables, SET, target=None)


def test_a_run_published_twice_is_rolled_back_as_one(tables):
    publish_all(tables, "r1", "r2", "r2")
    rollback(tables, SET, target=None)
    assert counting(tables) == {"r1"}


def test_a_rollback_after_a_rollback_and_a_publish_changes_something(tables):
    publish_all(tables, "r1", "r2")
    rollback(tables, SET, target=None)
    publish(tables, SET, "r2", limits=Limits(), force=True)
    rollback(tables, SET, target=None)
    assert counting(tables) == {"r1"}


def test_an_act_is_decided_on_the_log_that_it_is_appended_to():
    """The first append loses its place to another publish, after which this one is superseded."""

    class Racing(MemoryTables):
        raced = False

        def append(self, table, rows, commit):
            if table is RELEASE and not self.raced and rows["run_id"][0].as_py() == "r1":
                self.raced = True
                publish(self, SET, "r2", limits=Limits())
            return super().append(table, rows, commit)

    tables = Racing()
    add_run(tables, "r1", 1, {"a": "trained"})
    add_run(tables, "r2", 2, {"a": "trained"})
    with pytest.raises(StateError, match="started later"):
        publish(tables, SET, "r1", limits=Limits())
    assert counting(tables) == {"r2"}


def test_a_run_of_which_too_many_keys_failed_is_published_by_force_only():
    tables = MemoryTables()
    add_run(tables, "r1", 1, dict.fromkeys("abc", "failed") | {"d": "trained"})
    with pytest.raises(StateError, match=r"3 of 4 keys failed.*--force"):
        publish(tables, SET, "r1", limits=Limits())
    assert publish(tables, SET, "r1", limits=Limits(), force=True).run_id == "r1"


def test_an_unknown_run_is_refused_with_those_there_are(tables):
    with pytest.raises(StateError, match=r"no run 'rx'.*r1, r2, r3"):
        publish(tables, SET, "rx", limits=Limits())


def test_the_newest_run_is_the_one_that_started_last(tables):
    assert newest_run(tables, SET) == "r3"


def test_a_run_that_is_not_published_changes_nothing_of_how_keys_are_read(tables):
    publish(tables, SET, "r1", limits=Limits())
    add_run(tables, "r9", 9, {"a": "trained"}, kinds={"other": "integer"})
    assert read_live(tables, SET).key_kinds == {"k": "string"}
    assert read_key_kinds(tables, SET) == {"k": "string"}


def test_before_the_first_release_nothing_was_served(tables):
    publish(tables, SET, "r1", limits=Limits())
    assert read_without_pins(tables, SET, None).models() == {}
    assert read_live(tables, SET).models() == {"a": "r1"}


def test_g12_a_manifest_row_that_stands_twice_is_shown_once():
    tables = MemoryTables()
    add_run(tables, "r1", 1, dict.fromkeys("abc", "trained"), copies=2)
    live = read_run_live(tables)
    assert [row["key_id"] for row in newest_rows(tables, SET, live)] == ["a", "b", "c"]


def read_run_live(tables):
    from group_models.live import read_run

    return read_run(tables, SET, "r1")
