"""Metrics, the holdout's cutoff, infinite columns and errors as text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from group_models.evaluation import (
    MAX_MESSAGE,
    MAX_TRACEBACK,
    error_summary,
    holdout_cutoff,
    infinite_columns,
    printable,
    regression_metrics,
)


def test_metrics_equal_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    y, prediction = rng.normal(size=(2, 50))
    metrics = regression_metrics(y, prediction)
    assert list(metrics) == ["mae", "rmse", "r2", "bias"]
    assert metrics["mae"] == pytest.approx(mean_absolute_error(y, prediction), rel=1e-12)
    assert metrics["rmse"] == pytest.approx(root_mean_squared_error(y, prediction), rel=1e-12)
    assert metrics["r2"] == pytest.approx(r2_score(y, prediction), rel=1e-12)


def test_the_bias_of_a_model_that_predicts_too_much_is_positive():
    assert regression_metrics(np.array([1.0, 2.0]), np.array([2.0, 5.0]))["bias"] == 2.0


@pytest.mark.parametrize("y", [[0.1] * 3, [7.0]], ids=["constant target", "one row"])
@pytest.mark.parametrize(("error", "r2"), [(0.0, 1.0), (0.5, 0.0)])
def test_r2_is_one_or_zero_where_the_target_does_not_vary(y, error, r2):
    assert regression_metrics(np.array(y), np.array(y) + error)["r2"] == r2


def test_no_rows_have_no_metrics():
    assert regression_metrics(np.empty(0), np.empty(0)) == {}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_c15_a_prediction_that_is_not_finite_makes_every_metric_nan(bad):
    assert np.isnan(list(regression_metrics(np.zeros(2), np.array([0.0, bad])).values())).all()


@pytest.mark.parametrize(
    ("rows", "share", "cutoff"),
    [
        ([40, 40, 20], 0.2, 30),
        ([40, 40, 20], 0.5, 20),
        ([1, 1, 98], 0.2, 30),
        ([98, 1, 1], 0.2, 20),
        ([50, 0, 50], 0.2, 30),
        ([25, 50, 25], 0.5, 30),
    ],
    ids=[
        "exact",
        "closest",
        "large last bucket",
        "large first bucket",
        "empty bucket",
        "tie goes to the later",
    ],
)
def test_the_cutoff_is_the_bucket_whose_share_is_closest(rows, share, cutoff):
    assert holdout_cutoff([10, 20, 30], rows, share) == cutoff


@pytest.mark.parametrize(("starts", "rows"), [([], []), ([10], [9]), ([10, 20], [9, 0]), ([10, 10], [4, 5])])
def test_one_bucket_has_no_cutoff(starts, rows):
    assert holdout_cutoff(starts, rows, 0.2) is None


@given(
    st.dictionaries(st.integers(0, 2**52), st.integers(0, 10**9), min_size=2, max_size=30),
    st.floats(0.01, 0.99),
    st.randoms(use_true_random=False),
)
def test_the_cutoff_does_not_depend_on_order_or_partitioning_and_leaves_both_sides(buckets, share, random):
    expected = holdout_cutoff(list(buckets), list(buckets.values()), share)
    pieces = [(start, part) for start, n in buckets.items() for part in (n // 3, n - n // 3)]
    random.shuffle(pieces)
    assert holdout_cutoff([s for s, _ in pieces], [n for _, n in pieces], share) == expected
    if expected is None:
        assert sum(n > 0 for n in buckets.values()) < 2
    else:
        assert sum(n for start, n in buckets.items() if start < expected) > 0
        assert sum(n for start, n in buckets.items() if start >= expected) > 0


def test_d8_infinite_columns_are_named_and_missing_values_are_not():
    values = np.array([[1.0, np.nan, -np.inf, 1e39], [2.0, np.nan, 3.0, 4.0]])
    assert infinite_columns(values, ["a", "b", "c", "d"], float32=False) == ["c"]
    assert infinite_columns(values, ["a", "b", "c", "d"], float32=True) == ["c", "d"]


def test_large_finite_values_are_not_infinite(recwarn):
    values = np.full((3, 2), 1.7e308)
    assert infinite_columns(values, ["a", "b"], float32=False) == []
    assert infinite_columns(np.full((3, 1), 3.4e38), ["a"], float32=True) == []
    assert infinite_columns(np.empty((0, 2)), ["a", "b"], float32=True) == []
    assert not recwarn.list


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_an_error_is_summed_up_by_type_message_stage_and_traceback():
    summary = error_summary(raised(ValueError("bad depot")), "fit")
    assert (summary.error_type, summary.error_message, summary.error_stage) == (
        "ValueError",
        "bad depot",
        "fit",
    )
    assert summary.traceback.startswith("Traceback")
    assert summary.traceback.endswith("ValueError: bad depot\n")


def test_a_class_of_a_library_is_named_with_its_module():
    assert error_summary(np.linalg.LinAlgError("singular"), "fit").error_type == "numpy.linalg.LinAlgError"


def test_a_long_error_is_cut_and_its_traceback_keeps_the_end():
    error = ValueError("x" * 10_000_000)
    error.__cause__ = raised(KeyError("depot"))
    error.__cause__.__cause__ = raised(KeyError("carrier" * 500))
    summary = error_summary(error, "fit")
    assert len(summary.error_message) == MAX_MESSAGE
    assert len(summary.traceback) <= MAX_TRACEBACK
    assert "KeyError: 'depot'" in summary.traceback
    assert "ValueError: xxx" in summary.traceback


def test_the_end_of_a_long_traceback_is_kept():
    error = raised(ValueError("the last"))
    for number in range(20):
        outer = raised(ValueError(f"cause {number}"))
        outer.__cause__, error = error, outer
    summary = error_summary(error, "fit")
    assert len(summary.traceback) == MAX_TRACEBACK
    assert summary.traceback.startswith("...")
    assert summary.traceback.endswith("ValueError: cause 19\n")


def test_binary_characters_and_lone_surrogates_are_escaped():
    summary = error_summary(ValueError("a\x00b\x1b[31m\ud800é\n"), "serialize")
    assert summary.error_message == "a\\x00b\\x1b[31m\\ud800é\n"
    summary.traceback.encode()


def test_an_error_without_text_is_named_by_its_type():
    summary = error_summary(raised(UnprintableError()), "evaluate")
    assert summary.error_type.endswith("UnprintableError")
    assert summary.error_message == "<exception str() failed>"


def test_text_that_fits_is_not_cut():
    assert printable("x" * 10, 10) == "x" * 10


def test_targets_whose_squares_vanish_are_constant_ones():
    assert regression_metrics(np.array([0.0, 1e-200]), np.array([1.0, 1.0]))["r2"] == 0.0
