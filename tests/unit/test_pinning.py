"""Pinning keys to runs on tables in memory, with hand-made runs."""

from __future__ import annotations

import pytest

from group_models.errors import SpecError, StateError
from group_models.fakes import MemoryTables
from group_models.live.pinning import pin, unpin
from group_models.live.publishing import publish, rollback
from group_models.live.releases import pins
from group_models.live.sets import read_key_texts, read_live, read_releases
from group_models.reporting.report import releases_table, rows_table
from group_models.reporting.showing import newest_rows
from group_models.spec import Limits
from tests.unit.runs import SET, add_run, by_name, id_of


@pytest.fixture
def tables() -> MemoryTables:
    """Runs r1 and r2 are published, r3 is not; b failed in r2, c was never trained."""
    made = MemoryTables()
    add_run(made, "r1", 1, {"a": "trained", "b": "trained", "c": "too_small"})
    add_run(made, "r2", 2, {"a": "trained", "b": "failed", "c": "too_small"}, previous={"b": "r1"})
    add_run(made, "r3", 3, {"a": "trained", "d": "trained"})
    for run_id in ("r1", "r2"):
        publish(made, SET, run_id, limits=Limits())
    return made


def models(tables: MemoryTables, alias: str = "champion") -> dict[str, str]:
    return by_name(read_live(tables, SET, alias).models())


def test_a_pinned_key_stays_through_publishes_and_rollbacks_until_it_is_unpinned(tables):
    assert models(tables) == {"a": "r2", "b": "r1"}
    done = pin(tables, SET, "k=a", run_id="r1", note="r2 is odd")
    assert (done.action, done.run_id, done.key_id, done.note) == ("pin", "r1", id_of("a"), "r2 is odd")
    assert models(tables) == {"a": "r1", "b": "r1"}
    publish(tables, SET, "r3", limits=Limits())
    assert models(tables) == {"a": "r1", "b": "r1", "d": "r3"}
    rollback(tables, SET, target=None)
    assert models(tables) == {"a": "r1", "b": "r1"}
    unpin(tables, SET, {"k": "a"})
    assert models(tables) == {"a": "r2", "b": "r1"}


def test_a_pin_of_one_alias_is_none_of_the_other(tables):
    pin(tables, SET, "k=a", run_id="r1", alias="challenger")
    assert models(tables)["a"] == "r2"
    assert models(tables, "challenger")["a"] == "r1"
    with pytest.raises(StateError, match="no key of champion is pinned"):
        unpin(tables, SET, "k=a")


def test_a_later_pin_takes_the_place_of_an_earlier_one(tables):
    pin(tables, SET, "k=a", run_id="r1")
    pin(tables, SET, "k=a", run_id="r3")
    assert models(tables)["a"] == "r3"
    unpin(tables, SET, "k=a")
    assert models(tables)["a"] == "r2"


def test_a_key_that_went_on_with_an_earlier_model_is_pinned_to_that(tables):
    pin(tables, SET, "k=b", run_id="r2")
    assert models(tables)["b"] == "r1"


@pytest.mark.parametrize(
    ("key", "run_id", "said"),
    [
        ("k=a", "r9", r"has no run 'r9' \(the newest are r1, r2, r3\)"),
        ("k=b", "r3", r"key k=b .* run r3 has no row of it.*with a model of its own: r2, r1$"),
        ("k=c", "r2", r"key k=c .* its status there is too_small; .*with a model of its own: none$"),
        ("k=e", "r2", r"key k=e .* run r2 has no row of it.*with a model of its own: none$"),
    ],
)
def test_a_pin_that_would_serve_nothing_is_refused_with_a_way_out(tables, key, run_id, said):
    with pytest.raises(StateError, match=said):
        pin(tables, SET, key, run_id=run_id)
    assert pins(read_releases(tables, SET), "champion") == {}


def test_a_run_without_a_manifest_takes_no_pin(tables):
    add_run(tables, "r4", 4, {"a": "trained"}, stops_after="waves")
    with pytest.raises(StateError, match="run r4 has no manifest yet; `train SPEC --run-id r4` finishes it"):
        pin(tables, SET, "k=a", run_id="r4")


def test_a_key_must_name_the_key_columns(tables):
    with pytest.raises(SpecError, match="the key columns are k"):
        pin(tables, SET, "carrier=a", run_id="r1")


def test_unpinning_a_key_that_is_not_pinned_is_refused_with_those_that_are(tables):
    pin(tables, SET, "k=a", run_id="r1")
    with pytest.raises(StateError, match="is not pinned for champion; pinned are k=a to run r1"):
        unpin(tables, SET, '{"k": "b"}')


def test_show_says_that_a_key_is_pinned_and_where(tables):
    pin(tables, SET, "k=a", run_id="r1")
    rows = {row["key"]["k"]: row for row in newest_rows(tables, SET, read_live(tables, SET))}
    shown = {
        key: (row["run_id"], row["serves"], row["model_run_id"], row["pinned_run_id"]) for key, row in rows.items()
    }
    assert shown == {
        "a": ("r2", "previous", "r1", "r1"),
        "b": ("r2", "previous", "r1", None),
        "c": ("r2", "none", None, None),
    }
    table = rows_table("keys", list(rows.values()))
    assert [str(cell) for cell in table.columns[2].cells] == ["previous, pinned", "previous", "none"]


def test_a_pinned_key_that_no_published_run_knows_is_shown_by_the_row_of_its_pin(tables):
    pin(tables, SET, "k=d", run_id="r3")
    (row,) = [row for row in newest_rows(tables, SET, read_live(tables, SET)) if row["key"] == {"k": "d"}]
    assert (row["run_id"], row["serves"], row["pinned_run_id"]) == ("r3", "new", "r3")


def test_the_log_says_of_each_row_what_it_is_about(tables):
    first = read_releases(tables, SET)[0].release_id
    pin(tables, SET, "k=a", run_id="r1", note="odd")
    rollback(tables, SET, target=first)
    unpin(tables, SET, "k=a")
    log = read_releases(tables, SET)
    table = releases_table(log, read_key_texts(tables, SET, log))
    assert [str(cell) for cell in table.columns[2].cells] == ["publish", "publish", "pin", "rollback", "unpin"]
    assert [str(cell) for cell in table.columns[3].cells] == [
        "run r1", "run r2", "key k=a to run r1", f"release {first}", "key k=a",
    ]  # fmt: skip
    assert [str(cell) for cell in table.columns[6].cells] == ["", "", "odd", "", ""]
