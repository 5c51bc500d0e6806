"""What `show` and a run's summary tell of each key, on hand-made runs."""

from __future__ import annotations

from typing import Any

import pytest

from group_models import showing
from group_models.fakes import MemoryTables
from group_models.live import read_live
from group_models.pinning import pin
from group_models.publishing import publish
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
