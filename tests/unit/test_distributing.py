"""What can be distributed, and what a distributed fit is told."""

import numpy as np
import pytest

from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.boosters import BoosterFamily
from group_models.planning import deciding
from group_models.planning.distributing import refusal, regressor_params

FEATURES = Features(("a",), (), ("a",))


@pytest.mark.parametrize(
    ("estimator", "slots", "said"),
    [
        (EstimatorSettings("ridge"), 8, "only the estimator xgboost can be distributed, not ridge"),
        (EstimatorSettings(object="pkg.mod:make"), 8, "not pkg.mod:make"),
        (EstimatorSettings("xgboost", {"tree_method": "exact"}), 8, "tree_method exact cannot be distributed"),
        (EstimatorSettings("xgboost"), 1, "needs 2 task slots, and there is 1"),
    ],
    ids=["another family", "an object", "exact", "one slot"],
)
def test_what_cannot_be_distributed_anywhere_says_why(estimator, slots, said):
    assert said in refusal(estimator, slots)


def test_xgboost_over_two_slots_is_tried():
    assert refusal(EstimatorSettings("xgboost", {"tree_method": "approx"}), 2) is None


def test_the_spec_decides_the_parameters_and_the_key_the_seed():
    family = BoosterFamily({"max_depth": 3, "n_jobs": 8, "objective": "reg:tweedie", "gamma": None}, FEATURES)
    assert regressor_params(family, seed=5, rounds=9, is_watched=False) == {
        "objective": "reg:tweedie", "random_state": 5, "verbosity": 0, "max_depth": 3, "n_estimators": 9,
        "verbose": False,
    }  # fmt: skip


def test_a_seed_of_the_spec_stays():
    family = BoosterFamily({"random_state": 1}, FEATURES)
    assert regressor_params(family, seed=5, rounds=9, is_watched=False)["random_state"] == 1


@pytest.mark.parametrize("is_watched", [True, False])
def test_early_stopping_is_asked_for_only_where_rows_are_watched(is_watched):
    family = BoosterFamily({"early_stopping_rounds": 4}, FEATURES)
    assert ("early_stopping_rounds" in regressor_params(family, seed=5, rounds=9, is_watched=is_watched)) == is_watched


def test_distributed_keys_come_after_the_last_part_of_every_salted_one():
    placed = {"unit": np.array([1, 0]), "wave": np.array([0, 0]), "key_index": np.array([0, 3])}
    every = deciding._place_last(placed, np.array([False, True, False, True]), np.array([5, 1]))
    assert every["unit"].tolist() == [1, 6, 0, 7]
    assert every["wave"].tolist() == [0, 1, 0, 2]
    assert every["key_index"].tolist() == [0, 0, 3, 0]
