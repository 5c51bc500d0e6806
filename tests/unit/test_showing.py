"""What `show` and a run's summary tell of each key, on hand-made runs."""

from __future__ import annotations

from typing import Any

import pytest

from group_models import api, releasing, targets
from group_models.errors import SpecError, StateError
from group_models.fakes import MemoryTables
from group_models.live.pinning import pin
from group_models.live.publishing import publish
from group_models.live.sets import read_live
from group_models.reporting import showing
from group_models.reporting.report import rows_table
from group_models.spec import Limits
from tests.unit.runs import SET, add_run, id_of

OF_MODEL = showing.OF_MODEL


@pytest.fixture
def tables() -> MemoryTables:
    """Two nights: of the second, `a` is unchanged, `b` failed, `c` is trained anew and `d` never had a model."""
    nights = MemoryTables()
    first = {"a": "trained", "b": "trained", "c": "trained", "d": "too_small"}
    add_run(nights, "one", 1, first, mae={"a": 3.0, "b": 1.0, "c": 9.0})
    base = publish(nights, SET, "one", limits=Limits()).release_id
    second = {"a": "unchanged", "b": "failed", "c": "trained", "d": "too_small"}
    add_run(nights, "two", 2, second, previous={"a": "one", "b": "one"}, base=base, mae={"c": 2.0})
    publish(nights, SET, "two", limits=Limits())
    return nights


def shown(tables: MemoryTables, run_id: str | None = None) -> dict[str, dict[str, Any]]:
    rows = (
        showing.newest_rows(tables, SET, read_live(tables, SET))
        if run_id is None
        else showing.run_rows(tables, SET, run_id)
    )
    return {row["key"]["k"]: row for row in rows}


@pytest.mark.parametrize("run_id", [None, "two"])
def test_a_key_that_an_earlier_model_serves_is_shown_with_what_that_model_is(tables: MemoryTables, run_id: str | None):
    now, then = shown(tables, run_id), shown(tables, "one")
    assert [(row["status"], row["serves"], row["model_run_id"]) for row in (now["a"], now["b"])] == [
        ("unchanged", "previous", "one"),
        ("failed", "previous", "one"),
    ]
    for key in "ab":
        assert {name: now[key][name] for name in OF_MODEL} == {name: then[key][name] for name in OF_MODEL}
        assert now[key]["sha256"] == f"{key} of one"
    assert (now["c"]["metrics"], now["c"]["sha256"]) == ({"mae": 2.0}, "c of two")
    assert now["d"]["metrics"] is None


def test_a_pinned_key_is_shown_with_the_model_that_it_is_pinned_to(tables: MemoryTables):
    pin(tables, SET, "k=c", run_id="one", alias="champion", note=None)
    row = shown(tables)["c"]
    assert (row["run_id"], row["serves"], row["model_run_id"], row["sha256"]) == ("two", "previous", "one", "c of one")


def test_the_worst_keys_of_a_run_are_ranked_by_the_models_that_serve(tables: MemoryTables):
    found = showing.worst_of_run(tables, SET, "two", 2)
    assert [(row["key_id"], row["metrics"], row["run_id"]) for row in found] == [
        (id_of("a"), {"mae": 3.0}, "two"),
        (id_of("c"), {"mae": 2.0}, "two"),
    ]


def test_the_metric_of_the_runs_spec_is_told_first_and_decides_which_keys_are_worst(tables: MemoryTables):
    errors = {"mae": {"a": 1.0, "b": 2.0}, "rmse": {"a": 9.0, "b": 3.0}}
    add_run(tables, "squares", 3, {"a": "trained", "b": "trained"}, spec='{"metric": "rmse"}', **errors)
    worst = showing.worst_of_run(tables, SET, "squares", 2)
    assert [list(row["metrics"].items()) for row in worst] == [
        [("rmse", 9.0), ("mae", 1.0)],
        [("rmse", 3.0), ("mae", 2.0)],
    ]
    assert showing.worst(showing.run_rows(tables, SET, "squares"), 1)[0]["key_id"] == id_of("a")
    assert [column.header for column in rows_table("Keys", worst, width=200).columns][-3:] == [
        "rmse",
        "median's rmse",
        "reason",
    ]


def test_rows_are_in_the_order_of_their_keys_values_numbers_by_size_and_nulls_last():
    kinds = {"carrier": "string", "stop": "integer"}
    keys = [("B", "10"), ("B", "9"), (None, "1"), ("A", None), ("A", "2")]
    rows = [{"key": dict(zip(kinds, key, strict=True))} for key in keys]
    ordered = [tuple(row["key"].values()) for row in showing.by_key(rows, kinds)]
    assert ordered == [("A", "2"), ("A", None), ("B", "9"), ("B", "10"), (None, "1")]


@pytest.fixture
def asked(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which the calls find these tables."""
    monkeypatch.setattr(targets, "tables_of", lambda *_: tables)
    return SET


def test_a_key_that_a_run_does_not_have_is_no_unknown_key(tables: MemoryTables, asked: str):
    add_run(tables, "three", 3, {"a": "trained"})
    for call in (api.show, api.load_model):
        with pytest.raises(
            StateError, match=r"run three of .*: key 'k=b' \(key_id .*\) was not among the keys of that"
        ):
            call(asked, key="k=b", run_id="three")
    with pytest.raises(StateError, match=rf"no published run knows key_id {id_of('z')}$"):
        api.show(asked, key=id_of("z"))


def test_a_misspelt_model_set_has_no_release_and_no_log(asked: str):
    with pytest.raises(StateError, match=r"model set c\.s\.n has no release yet in .*; `group-models train` makes one"):
        api.show("c.s.n")
    with pytest.raises(StateError, match=r"model set c\.s\.n has no release yet"):
        releasing.list_releases("c.s.n")
    assert [row.run_id for row in releasing.list_releases(asked)] == ["one", "two"]


def test_where_runs_wait_for_their_release_the_newest_is_named(monkeypatch: pytest.MonkeyPatch):
    waiting = MemoryTables()
    monkeypatch.setattr(targets, "tables_of", lambda *_: waiting)
    add_run(waiting, "one", 1, {"a": "failed"})
    with pytest.raises(StateError, match="its newest run is one: see `show --run-id`"):
        api.show(SET)
    assert releasing.list_releases(SET) == []


def test_a_list_asked_of_release_names_the_call_that_lists(asked: str):
    with pytest.raises(SpecError, match=r"action 'list': say publish or rollback; the log is what `list_releases`"):
        releasing.release(asked, "list")  # type: ignore[arg-type]
