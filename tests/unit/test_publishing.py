"""Publishing and rolling back on tables in memory, with hand-made runs."""

import pytest

from group_models.errors import SpecError, StateError
from group_models.fakes import MemoryTables
from group_models.live.publishing import newest_run, publish, publish_unattended, rollback
from group_models.live.releases import counted, releases_from
from group_models.live.sets import read_key_kinds, read_live, read_without_pins
from group_models.reporting.showing import newest_rows
from group_models.spec import Limits
from group_models.tables import RELEASE
from tests.unit.runs import SET, add_run, by_name


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


def test_key_columns_in_another_order_are_others(tables):
    from group_models.loading import load_spec
    from group_models.runs.preparing import check_keys_kept

    tables, kinds = MemoryTables(), {"k": "string", "s": "integer"}
    add_run(tables, "r1", 0, {"a": "trained"}, kinds=kinds)
    publish_all(tables, "r1")
    turned = dict(reversed(kinds.items()))
    spec = load_spec({
        "model_set": SET, "source": {"path": "x"}, "keys": list(turned), "target": "y", "features": ["x"],
        "estimator": "ridge",
    })  # fmt: skip
    check_keys_kept(tables, spec, kinds)
    with pytest.raises(SpecError, match=r"with k \(string\), s \(integer\), the spec has s \(integer\), k \(string\)"):
        check_keys_kept(tables, spec, turned)
    add_run(tables, "r2", 1, {"b": "trained"}, kinds=turned)
    publish_all(tables, "r2")
    with pytest.raises(StateError, match="run r1 has others, or has them in another order"):
        read_live(tables, SET)


def test_before_the_first_release_nothing_was_served(tables):
    publish(tables, SET, "r1", limits=Limits())
    assert read_without_pins(tables, SET, None).models() == {}
    assert by_name(read_live(tables, SET).models()) == {"a": "r1"}


def test_g12_a_manifest_row_that_stands_twice_is_shown_once():
    tables = MemoryTables()
    add_run(tables, "r1", 1, dict.fromkeys("abc", "trained"), copies=2)
    live = read_run_live(tables)
    assert sorted(row["key"]["k"] for row in newest_rows(tables, SET, live)) == ["a", "b", "c"]


def read_run_live(tables):
    from group_models.live.sets import read_run

    return read_run(tables, SET, "r1")


# After a rollback


def unattended(tables, run_id):
    return publish_unattended(tables, SET, run_id, limits=Limits())


def test_a_run_publishes_itself_where_nothing_speaks_against_it(tables):
    done, refusal = unattended(tables, "r1")
    assert (done.action, done.run_id, refusal) == ("publish", "r1", None)
    assert counting(tables) == {"r1"}


def test_after_a_rollback_no_run_publishes_itself_until_one_is_published_by_hand(tables, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    first, _ = publish_all(tables, "r1", "r2")
    back = rollback(tables, SET, target=first.release_id, note="r2 was worse")
    done, refusal = unattended(tables, "r3")
    assert done is None
    at = f"{back.at:%Y-%m-%d %H:%M:%S} UTC"
    assert refusal.startswith(
        f"ada brought champion back to release {first.release_id} (rollback {back.release_id} of {at}: r2 was worse)"
    )
    assert "`group-models release publish SPEC --run-id r3` publishes this one and ends that" in refusal
    assert counting(tables) == {"r1"}
    publish_all(tables, "r3")
    assert counting(tables) == {"r1", "r3"}
    add_run(tables, "r4", 4, {"a": "trained"})
    assert unattended(tables, "r4")[0].run_id == "r4"


def test_a_held_run_that_needs_force_says_so_too(tables):
    first, second = publish_all(tables, "r1", "r2")
    add_run(tables, "r4", 4, {"a": "trained"}, base=second.release_id)
    rollback(tables, SET, target=first.release_id)
    _, refusal = unattended(tables, "r4")
    assert "brought champion back" in refusal
    assert "; besides, this run started from release" in refusal
    assert "`group-models release publish SPEC --run-id r4 --force`" in refusal
    publish(tables, SET, "r4", limits=Limits(), force=True)
    assert counting(tables) == {"r1", "r4"}


def test_a_rollback_of_challenger_holds_nothing_of_champion(tables):
    first = publish(tables, SET, "r1", limits=Limits(), alias="challenger")
    publish(tables, SET, "r2", limits=Limits(), alias="challenger")
    rollback(tables, SET, target=first.release_id, alias="challenger")
    assert unattended(tables, "r3")[0].run_id == "r3"


def test_a_rollback_that_comes_while_a_run_publishes_itself_holds_it():
    class Racing(MemoryTables):
        raced = False

        def append(self, table, rows, commit):
            if table is RELEASE and not self.raced and rows["run_id"][0].as_py() == "r3":
                self.raced = True
                rollback(self, SET, target=None)
            return super().append(table, rows, commit)

    tables = Racing()
    for day, run_id in enumerate(["r1", "r2", "r3"]):
        add_run(tables, run_id, day, {"a": "trained"})
    publish_all(tables, "r1", "r2")
    done, refusal = unattended(tables, "r3")
    assert done is None
    assert "brought champion back" in refusal
    assert counting(tables) == {"r1"}


def test_what_is_no_refusal_is_raised(tables):
    with pytest.raises(StateError, match="no run 'rx'"):
        unattended(tables, "rx")
