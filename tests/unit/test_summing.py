"""Sums of batches give the metrics of all rows, however the rows were cut."""

import dataclasses
import functools
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_models.evaluation import regression_metrics
from group_models.fitting.summing import PAIR_TYPES, RegressionSums, pair_columns, pair_of

TARGETS = st.integers(-(10**6), 10**6).map(lambda thousandths: thousandths / 1000)
ROWS = st.lists(st.tuples(TARGETS, TARGETS), min_size=1, max_size=60)
OFFSETS = st.sampled_from([0.0, 1.0, -1e6, 1e9])


def batches(y, prediction, cuts):
    edges = sorted({0, len(y), *(cut % (len(y) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        yield RegressionSums.of(y[start:end], prediction[start:end])


def merged(parts):
    """Return the parts merged one after the other."""
    return functools.reduce(RegressionSums.merge, parts, RegressionSums())


def tree(parts):
    """Return the parts merged two by two, as a tree of tasks would."""
    while len(parts) > 1:
        parts = [merged(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def close(metrics, wanted):
    """Return whether metrics are equal to 1e-12, the bias beside the size of the errors that cancel in it."""
    scale = {"mae": wanted["mae"], "rmse": wanted["rmse"], "r2": 1 + abs(1 - wanted["r2"]), "bias": wanted["mae"]}
    return list(metrics) == list(wanted) and all(abs(metrics[n] - wanted[n]) <= 1e-12 * scale[n] for n in wanted)


def test_the_sums_of_a_model_and_of_its_baseline_come_back_from_one_row():
    model, baseline = (RegressionSums.of(np.array([1.0, 2.0]), np.array([other, 0.5])) for other in (2.0, np.nan))
    row = pair_columns(model, baseline)
    assert list(row) == list(PAIR_TYPES)
    assert pair_of({"unit": 3, **row}) == (model, baseline)


@given(rows=ROWS, offset=OFFSETS, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_sums_of_batches_give_the_metrics_of_all_rows(rows, offset, cuts):
    y, prediction = np.array(rows).T + offset
    parts = list(batches(y, prediction, cuts))
    wanted = regression_metrics(y, prediction)
    assert close(merged(parts).metrics(), wanted)
    assert close(merged(parts[::-1]).metrics(), wanted)
    assert close(tree(parts).metrics(), wanted)


@given(rows=ROWS, offset=OFFSETS)
def test_the_squared_deviation_is_the_exact_one_also_far_from_zero(rows, offset):
    y = np.array(rows)[:, 0] + offset
    sums = merged(RegressionSums.of(y[i : i + 1], y[i : i + 1]) for i in range(len(y)))
    exact = [Fraction(value) for value in y.tolist()]
    mean = sum(exact) / len(exact)
    deviation = float(sum((value - mean) ** 2 for value in exact))
    assert sums.squared_deviation == pytest.approx(deviation, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_r2_of_a_constant_target_is_one_or_zero_also_in_batches(error):
    y = np.full(3, 0.1)
    sums = RegressionSums.of(y[:1], y[:1] + error).add(y[1:], y[1:] + error)
    assert sums.metrics() == regression_metrics(y, y + error)


def test_targets_whose_squared_distances_are_too_small_for_a_double_count_as_constant():
    assert RegressionSums.of(np.array([0.0, 1e-200]), np.zeros(2)).metrics()["r2"] == 1.0


def test_no_rows_have_no_metrics_and_change_nothing():
    some = RegressionSums.of(np.array([1.0, 2.0]), np.array([2.0, 2.0]))
    assert merged([]).metrics() == {}
    assert some.add(np.empty(0), np.empty(0)) == some
    assert RegressionSums().merge(some) == some


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("first", [True, False])
def test_one_prediction_that_is_not_finite_makes_every_metric_nan_and_is_counted(bad, first):
    good, wrong = (RegressionSums.of(np.ones(1), np.array([value])) for value in (2.0, bad))
    sums = merged([wrong, good] if first else [good, wrong])
    assert (sums.count, sums.not_finite) == (2, 1)
    assert np.isnan(list(sums.metrics().values())).all()


def test_the_fields_come_back_from_a_row_of_plain_numbers():
    sums = RegressionSums.of(np.array([1.0, 4.0]), np.array([2.0, 2.0]))
    row = dataclasses.asdict(sums)
    assert {type(value) for value in row.values()} == {int, float}
    assert RegressionSums(**row) == sums
