"""Whether models per key pay, in one sentence."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_models.verdicts import Verdict, judge

ROWS = np.array([10.0, 30.0, 60.0])


def test_errors_of_all_keys_are_means_over_their_rows() -> None:
    found = judge(ROWS, np.array([1.0, 2.0, 3.0]), {"median": np.array([2.0, 1.0, 4.0])}, "mae")
    assert found is not None
    of = found.against["median"]
    assert (of.error, of.other) == (pytest.approx(2.5), pytest.approx(2.9))
    assert (of.keys, of.rows, of.keys_better, of.rows_better) == (3, 100, pytest.approx(2 / 3), pytest.approx(0.7))
    assert of.change == pytest.approx(2.5 / 2.9 - 1)


def test_squared_errors_are_averaged_before_their_root() -> None:
    found = judge(ROWS, np.array([1.0, 2.0, 3.0]), {"median": np.full(3, 4.0)}, "rmse")
    assert found is not None
    assert found.against["median"].error == pytest.approx(((10 + 120 + 540) / 100) ** 0.5)
    assert found.against["median"].other == pytest.approx(4.0)


def test_a_key_without_a_baseline_or_metrics_is_left_out_of_that_comparison_alone() -> None:
    others = {"median": np.array([2.0, 2.0, 2.0]), "parent": np.array([np.nan, 4.0, 4.0])}
    found = judge(ROWS, np.array([1.0, 1.0, np.nan]), others, "mae")
    assert found is not None
    assert (found.against["median"].keys, found.against["parent"].keys) == (2, 1)
    assert (found.against["parent"].other, found.against["parent"].rows) == (4.0, 30)


def test_nothing_measured_is_no_verdict() -> None:
    assert judge(ROWS, np.full(3, np.nan), {"median": ROWS}, "mae") is None
    assert judge(ROWS, ROWS, {}, "mae") is None
    assert judge(np.zeros(0), np.zeros(0), {"median": np.zeros(0)}, "mae") is None


def verdict(shift: float, noise: float, keys: int = 200) -> Verdict:
    draws = np.random.default_rng(3)
    other = 10.0 + draws.normal(size=keys)
    own = other + shift + noise * draws.normal(size=keys)
    found = judge(draws.integers(10, 100, keys).astype(float), own, {"parent": other}, "mae")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("shift", "noise", "word"),
    [(-1.0, 1.0, "pay"), (1.0, 1.0, "do not pay"), (0.0, 2.0, "make no clear difference")],
)
def test_the_sentence_says_what_the_interval_says(shift: float, noise: float, word: str) -> None:
    found = verdict(shift, noise)
    assert found.word == word
    assert found.sentence().startswith(f"models per key {word}: mae ")
    assert "of the parent" in found.sentence()
    assert "95% interval" in found.sentence()


def test_keys_are_judged_beside_the_strongest_of_what_is_simpler() -> None:
    others = {"median": np.full(3, 9.0), "parent": np.full(3, 2.0), "global": np.full(3, 5.0)}
    found = judge(ROWS, np.full(3, 3.0), others, "mae")
    assert found is not None
    assert (found.strongest.name, found.word) == ("parent", "do not pay")
    assert "(the strongest of median, parent, global)" in found.sentence()
    assert found.metrics()["mae_global_change"] == pytest.approx(-0.4)


def test_one_key_has_a_change_and_no_interval() -> None:
    found = judge(ROWS[:1], np.array([1.0]), {"median": np.array([2.0])}, "mae")
    assert found is not None
    assert math.isnan(found.strongest.low)
    assert found.word == "make no clear difference"
    assert found.as_dict()["against"]["median"]["low"] is None
    assert "mae_median_change_low" not in found.metrics()
    assert "interval" not in found.sentence()


def test_two_models_without_error_are_alike() -> None:
    found = judge(ROWS, np.zeros(3), {"median": np.zeros(3)}, "rmse")
    assert found is not None
    assert (found.strongest.change, found.strongest.low, found.strongest.high) == (0.0, 0.0, 0.0)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0.01, 100), st.floats(0.01, 100)), min_size=2, max_size=30),
    st.sampled_from(["mae", "rmse"]),
)
def test_the_same_numbers_give_the_same_interval_and_scale_does_not_matter(keys, metric) -> None:
    rows, own, other = (np.array(column, dtype=float) for column in zip(*keys, strict=True))
    first, again = (judge(rows, own, {"median": other}, metric) for _ in range(2))
    assert first == again
    scaled = judge(rows, own * 8, {"median": other * 8}, metric)
    assert first is not None
    assert scaled is not None
    for name in ("change", "low", "high", "keys_better"):
        assert getattr(scaled.strongest, name) == pytest.approx(getattr(first.strongest, name), rel=1e-9, abs=1e-9)
    assert first.strongest.low <= first.strongest.high
    ratios = np.sort(own / other) - 1
    assert ratios[0] - 1e-9 <= first.strongest.low
    assert first.strongest.high <= ratios[-1] + 1e-9


def test_the_interval_holds_what_many_fresh_samples_of_keys_give() -> None:
    """Of 200 samples of 100 keys of one population, about 95 in 100 intervals hold the change of all keys."""
    draws = np.random.default_rng(1)
    own, other = draws.gamma(2.0, size=50_000), draws.gamma(2.0, size=50_000) * 1.1
    truth = own.sum() / other.sum() - 1
    held = 0
    for _ in range(200):
        chosen = draws.integers(0, len(own), 100)
        found = judge(np.ones(100), own[chosen], {"parent": other[chosen]}, "mae")
        assert found is not None
        held += found.strongest.low <= truth <= found.strongest.high
    assert 180 <= held <= 199
