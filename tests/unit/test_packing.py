"""Packing: no key is lost or doubled, no budget is broken, the longest goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group_models.planning.packing import makespan, order_units, pack, place, unit_count, wave_of_units


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, tuple[float, float], int]:
    """Seconds and two loads per key, a limit of each load, and a number of units."""
    count = draw(st.integers(0, 40))
    seconds = draw(st.lists(st.floats(0, 100), min_size=count, max_size=count))
    loads = draw(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=count, max_size=count))
    limits = (float(draw(st.integers(1, 150))), float(draw(st.integers(1, 150))))
    return floats(*seconds), np.array(loads, dtype=np.float64).reshape(count, 2), limits, draw(st.integers(1, 12))


@settings(deadline=None)
@given(jobs())
def test_a_unit_over_a_limit_holds_one_key_that_is_over_it_by_itself(job):
    seconds, loads, limits, count = job
    unit = pack(seconds, loads, limits, count)
    assert len(unit) == len(seconds)
    for u in set(unit.tolist()):
        total = loads[unit == u].sum(axis=0)
        assert np.all(total <= limits) or np.count_nonzero(unit == u) == 1


@settings(deadline=None)
@given(jobs())
def test_without_a_limit_no_unit_is_longer_than_the_mean_and_one_key(job):
    seconds, loads, _, count = job
    unit = pack(seconds, loads, (float("inf"), float("inf")), count)
    assert np.all(unit < count)
    longest = np.bincount(unit, weights=seconds, minlength=count).max() if len(unit) else 0.0
    assert longest <= seconds.sum() / count + seconds.max(initial=0.0) + 1e-9


@settings(deadline=None)
@given(jobs(), st.integers(1, 4), st.floats(0.5, 50))
def test_units_are_numbered_longest_first_and_waves_and_places_without_gaps(job, slots, wave_s):
    seconds, loads, limits, count = job
    packed = pack(seconds, loads, limits, count)
    unit, wave, index = order_units(packed, seconds, slots=slots, wave_s=wave_s)
    assert len({*zip(packed.tolist(), unit.tolist(), strict=True)}) == len(set(packed.tolist()))
    if not len(unit):
        return
    units = unit.max() + 1
    totals = np.bincount(unit, weights=seconds)
    assert set(unit.tolist()) == set(range(units))
    assert np.all(np.diff(totals) <= 1e-9)
    for u in range(units):
        assert sorted(index[unit == u].tolist()) == list(range(np.count_nonzero(unit == u)))
        assert len(set(wave[unit == u].tolist())) == 1
    of_unit = [int(wave[unit == u][0]) for u in range(units)]
    assert of_unit == sorted(of_unit)
    assert set(of_unit) == set(range(of_unit[-1] + 1))


def test_the_longest_goes_first_onto_the_least_loaded_unit():
    # 5 | 4, then 3 beside the 4, 3 beside the 5, and the last 3 beside 4 + 3.
    unit = pack(floats(3, 5, 3, 4, 3), np.zeros((5, 0)), (), 2)
    assert unit.tolist() == [1, 0, 0, 1, 1]


def test_a_unit_that_cannot_take_the_next_key_is_closed_and_a_new_one_opened():
    loads = np.array([[60.0], [60.0], [60.0], [40.0]])
    unit = pack(floats(4, 3, 2, 1), loads, (100.0,), 2)
    # Units 0 and 1 take 60 each; the third 60 closes both and opens unit 2, where the 40 fits.
    assert unit.tolist() == [0, 1, 2, 2]


def test_a_key_over_the_limit_is_alone_in_its_unit():
    unit = pack(floats(9, 1, 1), np.array([[500.0], [10.0], [10.0]]), (100.0,), 1)
    assert unit.tolist() == [0, 1, 1]


def test_the_second_limit_counts_as_the_first():
    loads = np.array([[1.0, 80.0], [1.0, 80.0], [1.0, 10.0]])
    unit = pack(floats(3, 2, 1), loads, (100.0, 100.0), 1)
    assert unit.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("seconds", "slots", "wave_s", "expected"),
    [
        ([1.0] * 100, 2, 600.0, 16),  # 8 for each of 2 slots
        ([1.0] * 3, 2, 600.0, 3),  # no more than keys
        ([0.01] * 100, 2, 600.0, 3),  # 1 s of work is worth 3 units of 0.3 s
        ([0.001] * 100, 4, 600.0, 4),  # but each slot gets one
        ([24.0] * 100, 2, 600.0, 32),  # 2,400 s are two waves
        ([], 2, 600.0, 1),
    ],
)
def test_there_are_eight_units_per_slot_and_wave_unless_they_would_be_tiny(seconds, slots, wave_s, expected):
    assert unit_count(floats(*seconds), slots=slots, wave_s=wave_s) == expected


def test_waves_are_cut_where_the_work_is_even():
    assert wave_of_units(floats(3, 3, 2, 2, 1, 1), slots=1, wave_s=6).tolist() == [0, 0, 1, 1, 1, 1]
    assert wave_of_units(floats(3, 3, 2, 2, 1, 1), slots=2, wave_s=6).tolist() == [0] * 6


def test_one_unit_of_many_waves_leaves_no_empty_wave():
    assert wave_of_units(floats(100, 1), slots=1, wave_s=10).tolist() == [0, 1]


def test_units_without_any_predicted_work_are_one_wave():
    assert wave_of_units(floats(0, 0, 0), slots=2, wave_s=600).tolist() == [0, 0, 0]


def test_placing_chooses_one_id_for_each_partition_in_order():
    candidates, partitions = np.arange(8), np.array([2, 2, 0, 1, 0, 1, 2, 0])
    assert place(candidates, partitions, 3).tolist() == [2, 3, 0]


def test_placing_refuses_candidates_that_miss_a_partition():
    with pytest.raises(ValueError, match="3 candidates reach 2 of 3 partitions; offer more"):
        place(np.arange(3), np.array([0, 2, 2]), 3)


@pytest.mark.parametrize(("seconds", "slots", "expected"), [([4, 3, 2, 2], 2, 6.0), ([5], 3, 5.0), ([], 2, 0.0)])
def test_the_makespan_is_that_of_units_started_in_order(seconds, slots, expected):
    assert makespan(floats(*seconds), slots) == expected
