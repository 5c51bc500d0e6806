"""The gate of a fleet: a run that is worse than what serves stays challenger until a person makes it champion."""

from __future__ import annotations

from typing import Any

import pytest

from group_models.fakes import MemoryTables
from group_models.live import publishing
from group_models.live.fleet import publish_trained
from group_models.live.sets import newest_release, read_live, read_releases
from group_models.loading import load_spec
from group_models.spec import Limits
from tests import fitted

GATED = {"gates": {"fleet": {"tolerance": 0.1}}, "time_column": "at"}
WORSE, BETTER = {"a": (50.0, 3.0, 1.0), "b": (50.0, 1.0, 2.0)}, {"a": (50.0, 1.1, 1.0), "b": (50.0, 1.0, 2.0)}


def night(tables: MemoryTables, run_id: str, day: float, **beside: Any) -> tuple[Any, str | None]:
    fitted.add_run(tables, run_id, day, {"a": 1.0, "b": 2.0}, base=newest_release(tables, fitted.SET), **beside)
    return publish_trained(tables, load_spec(fitted.spec("none", **GATED)), run_id)


def served(tables: MemoryTables, alias: Any) -> set[str]:
    return set(read_live(tables, fitted.SET, alias).models().values())


def acts(tables: MemoryTables) -> list[tuple[str, str, str | None]]:
    return [(row.alias, row.action, row.run_id) for row in read_releases(tables, fitted.SET)]


@pytest.fixture
def tables() -> MemoryTables:
    """Tables with a first run, which has nothing to be compared with and serves."""
    made = MemoryTables()
    done, why = night(made, "one", 0)
    assert (done is not None, why) == (True, None)
    assert acts(made) == [("challenger", "publish", "one"), ("champion", "publish", "one")]
    return made


def test_a_run_that_is_not_worse_serves(tables: MemoryTables) -> None:
    done, why = night(tables, "two", 1, beside=BETTER)
    assert (done is not None, why) == (True, None)
    assert served(tables, "champion") == {"two"}


def test_a_worse_run_stays_challenger_until_a_person_publishes_it(tables: MemoryTables) -> None:
    done, why = night(tables, "two", 1, beside=WORSE)
    assert done is None
    assert why is not None
    assert why.startswith("it stays challenger (")
    assert "its mae is 2 beside 1.5 of the models that serve, on the same 100 rows of 2 keys" in why
    assert (served(tables, "champion"), served(tables, "challenger")) == ({"one"}, {"two"})
    # A retry shows it no second time.
    assert publish_trained(tables, load_spec(fitted.spec("none", **GATED)), "two") == (None, why)
    assert acts(tables)[2:] == [("challenger", "publish", "two")]
    publishing.publish(tables, fitted.SET, "two", limits=Limits())
    assert served(tables, "champion") == {"two"}


def test_a_run_that_cannot_be_compared_stays_challenger(tables: MemoryTables) -> None:
    done, why = night(tables, "two", 1)
    assert (done, "whether the run is better is not known" in (why or "")) == (None, True)


def test_after_a_rollback_a_better_run_is_shown_and_waits_for_a_person(tables: MemoryTables) -> None:
    night(tables, "two", 1, beside=BETTER)
    publishing.rollback(tables, fitted.SET, target=None)
    done, why = night(tables, "three", 2, beside=BETTER)
    assert (done, "brought champion back" in (why or "")) == (None, True)
    assert (served(tables, "champion"), served(tables, "challenger")) == ({"one"}, {"three"})


def test_without_the_gate_nothing_goes_to_challenger() -> None:
    tables = MemoryTables()
    fitted.add_run(tables, "one", 0, {"a": 1.0}, beside={"a": (9.0, 9.0, 1.0)})
    publish_trained(tables, load_spec(fitted.spec("none")), "one")
    assert acts(tables) == [("champion", "publish", "one")]
