"""Intervals: their quantile, their coverage, what units say of them, and that they go wherever predictions go."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from group_models.conformal import coverage, half_widths, least_rows, rank
from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings
from group_models.fitting.intervals import Residuals, interval_columns
from group_models.fitting.measured import Measured
from group_models.fitting.parts import judge_parts, with_metrics
from group_models.fitting.summing import RegressionSums
from group_models.fitting.units import fit_unit
from group_models.loading import load_spec
from tests import fitted
from tests.unit.test_reasons import NAMED, keys_of, predictor, settings_of, world

LEVELS = (0.5, 0.9)


def plain_width(sizes: np.ndarray, level: float) -> float:
    place = math.ceil(round((len(sizes) + 1) * level, 9))
    return float(np.sort(sizes)[place - 1]) if place <= len(sizes) else math.nan


def test_half_widths_are_those_of_a_loop_over_keys():
    rng = np.random.default_rng(1)
    rows = np.array([0, 1, 8, 9, 10, 200])
    owner = rng.permutation(np.repeat(np.arange(len(rows)), rows))
    sizes = np.abs(rng.normal(size=len(owner)))
    found = half_widths(sizes, owner, len(rows), [*LEVELS, 0.95])
    for place, level in enumerate((*LEVELS, 0.95)):
        expected = [plain_width(sizes[owner == key], level) for key in range(len(rows))]
        np.testing.assert_array_equal(found[place], expected)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99, 0.975])
def test_the_fewest_rows_are_those_of_which_the_largest_residual_is_the_half_width(level: float):
    least = least_rows(level)
    assert rank(least, level) == least
    assert rank(least - 1, level) > least - 1


def test_coverage_is_that_of_intervals_of_the_other_half_by_a_plain_loop():
    rng = np.random.default_rng(2)
    sizes, row_hash = np.abs(rng.normal(size=41)), rng.integers(-(2**62), 2**62, 41)
    found = coverage(sizes, row_hash, np.zeros(41, dtype=np.int64), 1, LEVELS)
    from group_models.conformal import mixed

    order = np.argsort(mixed(row_hash))
    first, second = sizes[order[:20]], sizes[order[20:]]
    for place, level in enumerate(LEVELS):
        inside = (second <= plain_width(first, level)).sum() + (first <= plain_width(second, level)).sum()
        assert found[place, 0] == pytest.approx(inside / 41)


def test_a_row_that_only_its_own_interval_would_hold_is_outside():
    sizes = np.append(np.zeros(38), [1.0, 2.0])
    found = coverage(sizes, np.arange(40), np.zeros(40, dtype=np.int64), 1, [0.95])
    assert found[0, 0] < 1.0


def test_coverage_says_nothing_of_a_key_whose_halves_are_too_small():
    owner = np.repeat([0, 1], [17, 18])
    found = coverage(np.ones(35), np.arange(35), owner, 2, LEVELS)
    np.testing.assert_array_equal(found, [[1.0, 1.0], [np.nan, 1.0]])


def test_the_coverage_of_a_fleet_is_within_the_binomial_band_of_the_level():
    """300 keys x 40 rows of skewed errors: expected is rank(m) / (m + 1) of the halves' m = 20 rows.

    A half's interval covers a Beta(k, m + 1 - k) share of new rows, of which 20 are drawn (Vovk 2012): the rows of a
    half are that much less independent than the binomial's, and the band is of that variance.
    """
    rng = np.random.default_rng(5)
    keys, rows, half = 300, 40, 20
    owner = np.repeat(np.arange(keys), rows)
    sizes, row_hash = rng.lognormal(size=keys * rows), rng.integers(-(2**62), 2**62, keys * rows)
    found = coverage(sizes, row_hash, owner, keys, LEVELS).mean(axis=1)
    for share, level in zip(found, LEVELS, strict=True):
        expected = int(rank(half, level)) / (half + 1)
        of_one_half = expected * (1 - expected) / half * (half + half + 1) / (half + 2)
        assert share == pytest.approx(expected, abs=3 * math.sqrt(of_one_half / keys))
        assert share >= level - 0.01


@pytest.mark.parametrize("estimator", NAMED[:3], ids=lambda estimator: estimator.name)
def test_a_unit_tells_half_widths_and_coverage_of_the_measured_models_residuals(estimator: EstimatorSettings):
    frame = world(rows=160)
    settings = dataclasses.replace(settings_of(estimator, intervals=LEVELS), refit=False)
    rows = fit_unit(frame, keys_of(), settings).to_dict("records")
    for key, row in enumerate(rows):
        own = frame[(frame["key_index"] == key) & frame["is_holdout"]].sort_values("time_us")
        x = own[["f0", "f1", "f2"]].set_axis(["a", "city", "b"], axis=1)
        sizes = np.abs(predictor(row).predict(x) - own["y"].to_numpy())
        assert row["interval"] == pytest.approx({f"{level:g}": plain_width(sizes, level) for level in LEVELS})
        expected = coverage(sizes, own["row_hash"].to_numpy(), np.zeros(len(own), dtype=np.int64), 1, LEVELS)
        assert list(row["coverage"].values()) == pytest.approx(expected[:, 0])


def test_without_intervals_a_unit_tells_none_and_a_key_of_few_rows_those_that_it_can():
    assert fit_unit(world(), keys_of(), settings_of(NAMED[0]))["interval"].tolist() == [None] * 3
    few = world(rows=25)
    few["is_holdout"] = few["time_us"] >= 20
    rows = fit_unit(few, keys_of(), settings_of(NAMED[0], intervals=LEVELS)).to_dict("records")
    assert [set(row["interval"]) for row in rows] == [{"0.5"}] * 3
    assert [set(row["coverage"]) for row in rows] == [{"0.5"}] * 3


def test_residuals_that_come_in_batches_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(4)
    sizes, row_hash = np.abs(rng.normal(size=500)), rng.integers(0, 400, 500)
    for most in (10_000, 120):
        monkeypatch.setattr("group_models.fitting.intervals.MAX_RESIDUALS", most)
        found = []
        for parts in (1, 7):
            cut = np.array_split(rng.permutation(500), parts)
            merged = Residuals()
            for own in cut:
                merged = merged.merge(Residuals.parse(Residuals(sizes[own], row_hash[own]).pack()))
            found.append(merged)
        np.testing.assert_array_equal(found[0].sizes, found[1].sizes)
        assert len(found[0].sizes) == min(500, most)
    assert Residuals().columns(LEVELS) == {}
    assert Residuals(sizes, row_hash).columns(()) == {}


def test_a_salted_key_has_the_interval_of_its_ensemble():
    frame, settings = world(keys=1, rows=200), settings_of(NAMED[0], intervals=LEVELS)
    parts = []
    for part in range(2):
        own = frame[frame["row_hash"] % 2 == part]
        parts += fit_unit(own, keys_of(1, part=[part], n_parts=2), settings).to_dict("records")
    outcome = judge_parts([{**row, "number": 0} for row in parts], {"key_id": "k0", "n_parts": 2, "unit": 0}, settings)
    y, sizes = np.zeros(50), np.arange(50.0)
    measured = Measured(
        RegressionSums.of(y, sizes), RegressionSums.of(y, sizes), residuals=Residuals(sizes, np.arange(50))
    )
    columns = with_metrics(outcome, measured)
    assert columns["interval"] == interval_columns(y, sizes, np.arange(50), LEVELS)["interval"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"intervals": [0.9], "holdout": {"by": "none"}}, "intervals: they are made of errors on the holdout"),
        ({"intervals": [90]}, "90 is no level; write shares between 0 and 1"),
        ({"intervals": [0.9, 0.9]}, "a level stands twice"),
    ],
)
def test_intervals_that_cannot_be_are_refused_in_a_sentence(changes: dict[str, Any], said: str):
    with pytest.raises(SpecError, match=said):
        load_spec(fitted.spec("w", **changes))


def test_a_spec_with_intervals_is_another_one_and_without_them_the_one_it_was():
    plain, asked = (load_spec(fitted.spec("w", **more)) for more in ({}, {"intervals": [0.9, 0.5]}))
    assert asked.intervals == (0.5, 0.9)
    assert asked.fingerprint({}) != plain.fingerprint({})
    assert "intervals" not in plain.to_json()
    assert "importance" not in plain.to_json()
    assert load_spec(fitted.spec("w", importance="none")).fingerprint({}) == plain.fingerprint({})
