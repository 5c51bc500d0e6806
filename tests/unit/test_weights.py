"""Sample weights: a whole weight is so many copies of its row, in fits and in metrics."""

import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from group_models.comparing import grouped_comparison
from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import check_settings, make_family
from group_models.estimators.weights import weighted_medians
from group_models.evaluation import grouped_metrics, regression_metrics
from group_models.fitting.comparisons import Comparison
from group_models.fitting.summing import RegressionSums
from group_models.fitting.units import fit_unit
from group_models.frames import check_columns
from group_models.loading import load_spec
from tests.unit.test_windows import SPEC

RNG = np.random.default_rng(5)
ROWS = 60
X = pd.DataFrame({"a": RNG.normal(size=ROWS).round(1), "b": RNG.normal(size=ROWS).round(1)})
TEXT = pd.Series(RNG.choice(["red", "blue", "green"], ROWS), dtype=object)
Y = (2 * X["a"] - X["b"] + RNG.normal(size=ROWS)).to_numpy()
W = RNG.integers(1, 4, ROWS).astype(float)
COPIES = np.repeat(np.arange(ROWS), W.astype(int))
NUMBERS = Features(("a", "b"), (), ("a", "b"))
MIXED = Features(("a", "b"), ("c",), ("a", "b", "c"))
BY_HAND = make_pipeline(StandardScaler(), Ridge(alpha=2.0))


def test_a_weighted_median_is_the_median_of_copies():
    offsets = np.array([0, 1, 7, 30, ROWS])
    found = weighted_medians(Y, W, offsets)
    for place, (start, end) in enumerate(itertools.pairwise(offsets)):
        assert found[place] == np.median(np.repeat(Y[start:end], W[start:end].astype(int)))


def test_weighted_metrics_are_those_of_copies_also_in_sums_of_batches():
    guess = Y + RNG.normal(size=ROWS)
    expected = pytest.approx(regression_metrics(Y[COPIES], guess[COPIES]), rel=1e-12)
    assert regression_metrics(Y, guess, W) == expected
    batches = [slice(0, 11), slice(11, 12), slice(12, ROWS)]
    sums = RegressionSums()
    for rows in batches:
        sums = sums.merge(RegressionSums.of(Y[rows], guess[rows], W[rows]))
    assert sums.metrics() == expected
    grouped = grouped_metrics(Y, guess, np.array([0, 20]), W)
    assert grouped["rmse"][1] == pytest.approx(regression_metrics(Y[20:], guess[20:], W[20:])["rmse"], rel=1e-12)


@pytest.mark.parametrize("features", [NUMBERS, MIXED], ids=["numbers", "text"])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("ridge", {"alpha": 2.0}),
        ("ridge", {"alpha": 2.0, "solver": "cholesky"}),  # more than the batch knows: by scikit-learn's pipeline
        ("linear", {}),
        ("median", {}),
        ("mean", {}),
        ("gradient_boosting", {"n_estimators": 3, "min_samples_leaf": 1, "min_samples_split": 2, "max_depth": 2}),
        ("hist_gradient_boosting", {"max_iter": 3, "min_samples_leaf": 1, "max_depth": 2}),
        ("xgboost", {"n_estimators": 3, "tree_method": "exact", "max_depth": 2}),
    ],
)
def test_a_weight_is_so_many_copies_of_its_row(name, params, features):
    if features is MIXED and params.get("tree_method") == "exact":
        params = {**params, "tree_method": "hist"}
    x = X.assign(c=TEXT)[list(features.names)]
    family = make_family(EstimatorSettings(name, params), features)
    copied = family.fit(x.iloc[COPIES].reset_index(drop=True), Y[COPIES], seed=1)
    weighted = family.fit(x, Y, seed=1, weight=W)
    plain = family.fit(x, Y, seed=1)
    np.testing.assert_allclose(weighted.predict(x), copied.predict(x), rtol=1e-5, atol=1e-6)
    assert np.abs(plain.predict(x) - weighted.predict(x)).max() > 1e-3
    again = family.refit(weighted, x, Y, seed=1, weight=W)
    np.testing.assert_array_equal(again.predict(x), weighted.predict(x))


def test_watched_rows_are_weighted_too():
    params = {"n_estimators": 50, "early_stopping_rounds": 2, "max_depth": 2, "learning_rate": 0.5}
    family = make_family(EstimatorSettings("xgboost", params), NUMBERS)
    tail = np.where(np.arange(ROWS) == ROWS - 1, 1000.0, W)
    rounds = [family.fit(X, Y, seed=1, weight=weight).rounds for weight in (W, tail)]
    assert rounds[0] != rounds[1]


@pytest.mark.parametrize("estimator", [BY_HAND, Ridge(alpha=2.0)], ids=["pipeline", "bare"])
def test_a_users_estimator_gets_the_weights(estimator):
    family = make_family(EstimatorSettings(object=estimator), NUMBERS)
    weighted, plain = family.fit(X, Y, seed=1, weight=W), family.fit(X, Y, seed=1)
    assert np.abs(weighted.predict(X) - plain.predict(X)).max() > 1e-3


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (KNeighborsRegressor(), "it has no sample_weight in its fit"),
        (make_pipeline(StandardScaler(), KNeighborsRegressor()), "the last step of its pipeline, KNeighborsRegressor,"),
    ],
)
def test_a_users_estimator_without_weights_is_refused_only_where_the_spec_has_them(estimator, said):
    settings = EstimatorSettings(object=estimator)
    assert check_settings(settings, NUMBERS) == []
    (mistake,) = check_settings(settings, NUMBERS, is_weighted=True)
    assert said in mistake
    assert mistake.endswith("take another estimator, or leave sample_weight out")


def test_a_weight_is_a_number_and_no_target():
    assert check_columns({"w": "string"}, sample_weight="w") == [
        "sample_weight: 'w' is string; a sample weight is a number; cast it in the source"
    ]
    with pytest.raises(SpecError, match="sample_weight: 'y' is the target"):
        load_spec(SPEC | {"sample_weight": "y"})
    plain = load_spec(SPEC)
    assert "sample_weight" not in plain.to_json()
    assert load_spec(SPEC | {"sample_weight": "w"}).fingerprint({}) != plain.fingerprint({})


def test_no_key_is_distributed_by_weights_or_after_a_choice():
    assert load_spec(SPEC).why_not_distributed is None
    spec = load_spec(SPEC | {"sample_weight": "w", "candidates": ["xgboost"]})
    assert spec.why_not_distributed == "no key is where the spec has sample_weight and candidates"


@pytest.mark.parametrize("estimator", ["ridge", "xgboost"])
def test_a_unit_fits_and_measures_by_weights_each_key_alone_and_many_at_once(estimator):
    from tests.unit.test_fitting import FEATURES, keys_of, settings

    at = np.tile(np.arange(ROWS // 2), 2)
    frame = pd.DataFrame(
        {"key_index": np.repeat([0, 1], ROWS // 2), "time_us": at, "row_hash": at, "is_holdout": at >= 20, "y": Y,
         "f0": X["a"], "f1": X["b"], "w": W}
    )  # fmt: skip
    assert len(FEATURES) == 2
    told = settings(estimator, holdout_from_us=20)
    rows = fit_unit(frame, keys_of(2), told).to_dict("records")
    copied = fit_unit(frame.iloc[COPIES].drop(columns="w"), keys_of(2), told).to_dict("records")
    for row, of_copies in zip(rows, copied, strict=True):
        assert row["rows_used"] == ROWS // 2
        for name in ("metrics", "baseline_metrics"):
            assert row[name] == pytest.approx(of_copies[name], rel=1e-5), name


@pytest.mark.parametrize("weight", [np.ones(ROWS), W], ids=["ones", "whole"])
def test_comparisons_are_weighted_alike_at_once_and_in_batches(weight):
    """Weights of one give what no weights give; others the weighted mean, as that of copies."""
    own, other = Y + RNG.normal(size=ROWS), Y + RNG.normal(size=ROWS)
    other[::7] = np.nan
    at_once = grouped_comparison(Y, own, other, np.zeros(1, dtype=np.int64), "mae", weight)
    batches = Comparison()
    for rows in (slice(0, 20), slice(20, ROWS)):
        batches = batches.merge(Comparison.of(Y[rows], own[rows], other[rows], "mae", weight[rows]))
    assert {name: values[0] for name, values in at_once.items()} == pytest.approx(batches.values(), rel=1e-9)
    copies = np.repeat(np.arange(ROWS), weight.astype(int))
    plain = grouped_comparison(Y[copies], own[copies], other[copies], np.zeros(1, dtype=np.int64), "mae")
    names = ["mae", "rmse", "difference"] + ["difference_se"] * bool((weight == 1).all())
    assert {name: at_once[name][0] for name in names} == pytest.approx({name: plain[name][0] for name in names})
