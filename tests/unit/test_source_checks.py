"""Whether a source looks half-loaded: each limit on its own, at its edge, and by name."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from group_models.planning.source_checks import LastRun, keys_with_rows, source_mistakes, source_stats
from group_models.spec import Limits
from tests.unit.test_planning import sizes

NOW = dt.datetime(2025, 1, 2, 6, tzinfo=dt.UTC)
"""Thirty hours after the newest row of `sizes`."""

KEYS = [str(i) for i in range(10)]


def stats(**changes: Any) -> dict[str, float]:
    usual = {"rows": 1000, "usable rows": 900, "keys": 10, "keys with a model": 10, "newest row": NOW.timestamp()}
    return usual | {"missing y": 0.1, "missing x": 0.2} | {n.replace("_", " "): v for n, v in changes.items()}


def mistakes(now: dict[str, float], keys: list[str] = KEYS, last: LastRun | None = None, **limits: Any) -> list[str]:
    return source_mistakes(now, keys, last or LastRun("r1", stats(), KEYS), Limits(**limits), NOW)


def test_stats_count_rows_keys_missing_values_and_the_newest_row():
    measured = sizes(("a", 60, 50, 9), ("b", 40, 40, 9), ("gone", 0, 0, 0))
    served = {measured["key_id"][2].as_py(), "of another scope"}
    found = source_stats(measured, {"x": 0.25}, "y", served)
    at = dt.datetime(2025, 1, 1, tzinfo=dt.UTC).timestamp()
    assert found == pytest.approx(
        {"rows": 100, "usable rows": 90, "keys": 2, "keys with a model": 1, "newest row": at, "missing y": 0.1,
         "missing x": 0.25}
    )  # fmt: skip
    assert keys_with_rows(measured) == set(measured["key_id"].to_pylist()[:2])


def test_stats_of_nothing_are_zeros():
    none = {"rows": 0, "usable rows": 0, "keys": 0, "keys with a model": 0}
    assert source_stats(sizes(), {}, "y", ()) == none


def test_a_source_like_the_last_one_is_fine():
    assert mistakes(stats()) == []


def test_before_the_first_run_only_the_age_of_the_newest_row_counts():
    assert source_mistakes(stats(), [], None, Limits(), NOW) == []
    empty = {"rows": 0.0, "usable rows": 0.0, "keys": 0.0, "keys with a model": 0.0}
    assert source_mistakes(empty, [], None, Limits(max_staleness_hours=1), NOW) == []


@pytest.mark.parametrize(
    ("left", "limit", "expected"),
    [
        (8, 0.2, []),
        (7, 0.2, ["3 of 10 keys of run r1 have no rows now (30.0%): over limits.max_vanished_share 20%"]),
        (7, 0.3, []),
        (0, 1.0, []),
    ],
)
def test_vanished_keys_over_their_share_are_named(left: int, limit: float, expected: list[str]):
    assert mistakes(stats(), KEYS[:left], max_vanished_share=limit) == expected


def test_new_keys_do_not_make_up_for_vanished_ones():
    assert len(mistakes(stats(), [*KEYS[:7], "a", "b", "c"])) == 1


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (700, []),
        (699, ["it has 699 rows, 30.1% fewer than the 1,000 of run r1: over limits.max_lost_rows_share 30%"]),
        (5000, []),
    ],
)
def test_lost_rows_over_their_share_are_named(rows: int, expected: list[str]):
    assert mistakes(stats(rows=rows)) == expected


@pytest.mark.parametrize("column", ["x", "y"])
def test_missing_values_that_rise_too_much_name_feature_or_target(column: str):
    before = stats()[f"missing {column}"]
    assert mistakes(stats() | {f"missing {column}": before + 0.2}, max_missing_rise=0.21) == []
    (said,) = mistakes(stats() | {f"missing {column}": before + 0.3})
    rule = "a rise over limits.max_missing_rise 20%"
    assert said == f"'{column}' is missing in {before + 0.3:.1%} of the rows, in run r1 in {before:.1%}: {rule}"


def test_a_column_that_the_last_run_did_not_measure_is_not_compared():
    assert mistakes(stats() | {"missing new": 1.0}) == []
    assert mistakes(stats(), last=LastRun("r1", {}, ())) == []


@pytest.mark.parametrize(("hours", "expected"), [(30.0, 0), (29.9, 1), (None, 0)])
def test_a_newest_row_that_is_too_old_is_named(hours: float | None, expected: int):
    now = stats(newest_row=dt.datetime(2025, 1, 1, tzinfo=dt.UTC).timestamp())
    found = mistakes(now, max_staleness_hours=hours)
    assert len(found) == expected
    if found:
        rule = "over limits.max_staleness_hours 29.9"
        assert found == [f"its newest row (2025-01-01 00:00:00) is 30.0 hours old: {rule}"]


def test_a_source_without_rows_or_usable_rows_is_said_once_where_keys_had_models():
    nothing = stats(rows=0, usable_rows=0)
    assert mistakes(nothing, []) == ["it has no rows, and 10 keys had models before"]
    useless = stats(usable_rows=0, missing_y=1.0)
    said = "it has 1,000 rows, none of them with a finite target, and 10 keys had models before"
    assert mistakes(useless) == [said]


def test_all_that_is_wrong_is_said_at_once():
    now = stats(rows=100, missing_x=1.0, newest_row=0.0)
    assert len(mistakes(now, [], max_staleness_hours=1)) == 4
