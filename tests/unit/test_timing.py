"""What is told of a run's time equals what its rows say, worked out by hand."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from group_models.fakes import MemoryTables
from group_models.ports import Commit
from group_models.reporting.timing import Timing, read_timing, run_timing
from group_models.tables import MANIFEST, PLAN, STORE, WHOLE

START = dt.datetime(2026, 3, 1, 2, 0, tzinfo=dt.UTC)
RUN = {"model_set": "a.b.c", "run_id": "r1"}


def plan(*rows: tuple[str, int | None, int | None, int, float | None]) -> pa.Table:
    """Return a plan's rows given as key, unit, wave, parts and predicted seconds."""
    return PLAN.rows(
        {**RUN, "key_id": name, "key": [("k", name)], "level": "k", "decision": "whole", "unit": unit, "wave": wave,
         "n_parts": parts, "predicted_seconds": seconds}
        for name, unit, wave, parts, seconds in rows
    )  # fmt: skip


def fit(name: str, unit: int, start: float, end: float, **more: Any) -> dict[str, Any]:
    """Return a store row of a fit of a hundred rows whose CPU time is half its wall time."""
    return {
        **RUN, "key_id": name, "unit": unit, "wave": 0, "number": 0, "part": WHOLE, "attempt": 0, "format": 1,
        "status": "trained", "rows_used": 100, "fit_seconds": end - start, "cpu_seconds": (end - start) / 2,
        "started_at": START + dt.timedelta(seconds=start), "finished_at": START + dt.timedelta(seconds=end), **more,
    }  # fmt: skip


PLANNED = plan(
    ("a", 0, 0, 1, 10.0), ("b", 1, 0, 1, 4.0), ("c", 1, 0, 1, 5.0), ("d", 2, 1, 1, 3.0), ("small", None, None, 1, None)
)
FITS = [
    fit("a", 0, 0, 20), fit("b", 1, 0, 3), fit("c", 1, 4, 8, rows_used=900),
    fit("d", 2, 100, 106, wave=1, number=1000),
]  # fmt: skip
"""Two slots: unit 0 takes 20 s, unit 1 takes 8 s; then, in wave 1, unit 2 alone takes 6 s."""


def timing(planned: pa.Table = PLANNED, fits: list[dict[str, Any]] = FITS, slots: int | None = 2) -> Timing:
    found = run_timing(planned, STORE.rows(fits), slots=slots)
    assert found is not None
    return found


def test_each_wave_is_told_as_predicted_and_as_it_was():
    first, second = timing().waves
    assert (first.units, first.keys, first.predicted_s, first.wall_s) == (2, 3, 10.0, 20.0)
    assert (first.fit_s, first.cpu_s, first.busy_share) == (27.0, 13.5, 28 / 40)
    assert (second.units, second.keys, second.predicted_s, second.wall_s) == (1, 1, 3.0, 6.0)
    assert (second.wave, second.busy_share) == (1, 0.5)


def test_the_run_is_the_sum_of_its_waves():
    found = timing()
    assert (found.wall_s, found.predicted_s) == (26.0, 13.0)
    assert (found.fit_s, found.predicted_fit_s, found.cpu_s) == (33.0, 22.0, 16.5)
    assert found.busy_share == pytest.approx(34 / 52)


def test_the_slowest_unit_and_the_one_of_most_rows_are_named_with_their_keys():
    found = timing()
    assert (found.slowest.unit, found.slowest.names, found.slowest.wall_s) == (0, ("k=a",), 20.0)
    assert found.slowest.predicted_s == 10.0
    assert (found.largest.unit, found.largest.rows, found.largest.keys) == (1, 1000, 2)
    assert found.largest.names == ("k=c", "k=b")


def test_the_facts_read_well():
    assert timing().facts() == {
        "fits": "26.0 s on 2 slot(s), predicted 13.0 s; 33.0 s of fits, 16.5 s of CPU; slots busy 65%",
        "slowest unit": "0 of wave 1: 20.0 s (77% of the run's fits), predicted 10.0 s; 1 key(s), 100 rows: k=a",
    }


def test_a_unit_of_many_keys_names_the_slowest_of_them():
    names = "abcde"
    planned = plan(*[(name, 0, 0, 1, 1.0) for name in names])
    found = timing(planned, [fit(name, 0, 10 * i, 10 * i + i + 1) for i, name in enumerate(names)])
    assert found.facts()["slowest unit"].endswith("5 key(s), 500 rows: k=e; k=d; k=c; ...")


def test_the_parts_of_a_salted_key_count_and_the_row_that_combines_them_does_not():
    planned = plan(("big", 0, 0, 2, 20.0), ("b", 2, 0, 1, 4.0))
    fits = [
        fit("big", 0, 0, 12, part=0), fit("big", 1, 0, 11, part=1), fit("b", 2, 12, 15),
        fit("big", 0, 0, 23, wave=1, number=1000, rows_used=200),
    ]  # fmt: skip
    found = timing(planned, fits)
    assert [(wave.wave, wave.units, wave.predicted_s, wave.wall_s) for wave in found.waves] == [(0, 3, 14.0, 15.0)]
    assert found.fit_s == 26.0
    assert (found.slowest.unit, found.slowest.predicted_s) == (0, 10.0)


def test_the_time_between_two_tries_of_a_wave_is_not_its_own():
    again = [fit("a", 0, 0, 20), fit("b", 1, 0, 3), fit("c", 1, 1000, 1004, attempt=1, number=1)]
    (wave,) = timing(PLANNED, again).waves
    assert wave.wall_s == 24.0
    assert wave.busy_share == 27 / 48


def test_of_a_fit_that_was_committed_twice_the_first_one_counts():
    found = timing(PLANNED, [*FITS, fit("a", 0, 50, 90, number=5)])
    assert found == timing()


@pytest.mark.parametrize(
    ("fits", "slots"),
    [(FITS, 2), ([fit("a", 0, 0, 5), fit("b", 1, 5, 9)], 1), ([fit(n, u, 0, 5) for u, n in enumerate("abc")], 3)],
)
def test_slots_that_nobody_knows_are_the_most_units_at_once(fits, slots):
    assert timing(PLANNED, fits, slots=None).slots == slots


def test_rows_of_the_manifest_tell_the_same():
    columns = ("key_id", "unit", "wave", "attempt", "rows_used", "fit_seconds", "cpu_seconds", "started_at",
               "finished_at")  # fmt: skip
    given = [{**{name: row[name] for name in columns}, **RUN, "level": "k", "key": [("k", row["key_id"])],
              "status": "trained", "serves": "new"} for row in FITS]  # fmt: skip
    not_fitted = {**RUN, "key_id": "small", "level": "k", "key": [("k", "small")], "status": "too_small",
                  "serves": "none"}  # fmt: skip
    assert run_timing(PLANNED, MANIFEST.rows([*given, not_fitted]), slots=2) == timing()


def test_a_run_without_a_fit_has_no_timing():
    assert run_timing(PLANNED, STORE.empty(), slots=2) is None


def test_the_tables_of_a_run_tell_its_timing():
    tables = MemoryTables()
    tables.append(PLAN, PLANNED, Commit("a.b.c", "r1", 0))
    tables.append(STORE, STORE.rows(FITS), Commit("a.b.c", "r1", 0))
    assert read_timing(tables, "a.b.c", "r1", slots=2) == timing()
    assert read_timing(tables, "a.b.c", "r2") is None
