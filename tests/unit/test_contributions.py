"""What each feature adds to single predictions sums to them: to nine digits, of xgboost to five."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models.errors import ModelError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.children import PARENT, ChildPredictor, PooledPredictor
from group_models.estimators.contributions import OF_PARENT, contributions
from group_models.estimators.ensembles import EnsemblePredictor
from group_models.estimators.linear import linear_form
from group_models.estimators.registry import make_family

FEATURES = Features(("a", "b"), ("city",), ("a", "city", "b"))
RIDGE = EstimatorSettings("ridge", {"alpha": 1.0})
TREES = EstimatorSettings("xgboost", {"n_estimators": 30, "max_depth": 3})


def rows(count: int = 120, seed: int = 1) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, count))
    city = rng.choice(np.array(["x", "y", None], dtype=object), count)
    y = 300.0 + 3 * a + np.abs(b) + 2 * (city == "x")
    b[::7] = np.nan
    return pd.DataFrame({"a": a, "city": city, "b": b}), y


def fitted(settings: EstimatorSettings, seed: int = 1, features: Features = FEATURES, **more: Any) -> Any:
    x, y = rows(seed=seed)
    return make_family(settings, features).fit(x.assign(**more)[list(features.names)], y, seed=0).predictor


def check(predictor: Any, x: pd.DataFrame, rel: float) -> dict[str, np.ndarray]:
    found = contributions(predictor, x)
    np.testing.assert_allclose(found.total(), predictor.predict(x), rtol=rel)
    assert all(len(values) == len(x) for values in found.of.values())
    return dict(found.of)


def asked() -> pd.DataFrame:
    """Return rows that no model saw, with missing values and a text that none knows."""
    x, _ = rows(count=50, seed=9)
    x.loc[3, "city"] = "nowhere"
    return x


@pytest.mark.parametrize("name", ["ridge", "linear", "median", "mean"])
def test_of_a_linear_model_they_are_its_terms(name: str):
    found = check(fitted(EstimatorSettings(name)), asked(), 1e-9)
    assert list(found) == ["a", "city", "b"]
    assert found["city"][3] == 0.0
    assert bool(np.ptp(found["a"]) == 0.0) is (name in ("median", "mean"))


def test_of_xgboost_they_are_its_own():
    found = check(fitted(TREES), asked(), 1e-5)
    assert list(found) == ["a", "city", "b"]
    assert np.ptp(found["city"]) > 0.0


def test_of_parts_they_are_the_mean():
    for settings, rel in ((RIDGE, 1e-9), (TREES, 1e-5)):
        parts = tuple(fitted(settings, seed) for seed in (1, 2, 3))
        found = check(EnsemblePredictor(parts), asked(), rel)
        own = [contributions(part, asked()).of["a"] for part in parts]
        np.testing.assert_allclose(found["a"], np.mean(own, axis=0))


@pytest.mark.parametrize(("parent", "own", "rel"), [(RIDGE, RIDGE, 1e-9), (TREES, RIDGE, 1e-5), (RIDGE, TREES, 1e-5)])
def test_of_a_child_they_are_its_parents_and_its_own(parent: Any, own: Any, rel: float):
    above = fitted(parent, seed=5)
    beside = Features((*FEATURES.numeric, PARENT), FEATURES.text, (*FEATURES.names, PARENT))
    residual = fitted(own, features=beside, **{PARENT: above.predict(rows()[0])})
    found = check(PooledPredictor(above, ChildPredictor(residual, 0.4, shift=0.3)), asked(), rel)
    assert list(found) == ["a", "city", "b", OF_PARENT]
    mixed = ChildPredictor(fitted(own), 0.7, is_residual=False)
    assert list(check(PooledPredictor(above, mixed), asked(), rel)) == ["a", "city", "b"]


def test_other_models_are_refused_with_what_there_is_instead():
    forest = fitted(EstimatorSettings("random_forest", {"n_estimators": 3}))
    with pytest.raises(ModelError, match="a RandomForestRegressor; `show --key` has the importance"):
        contributions(forest, asked())
    with pytest.raises(ModelError, match="RandomForestRegressor"):
        contributions(EnsemblePredictor((fitted(RIDGE), forest)), asked())


def test_an_objective_that_predicts_an_exponential_is_refused():
    gamma = fitted(EstimatorSettings("xgboost", {"n_estimators": 5, "objective": "reg:gamma"}))
    with pytest.raises(ModelError, match="a function of a sum"):
        contributions(gamma, asked())


def test_a_transformed_target_is_refused_and_its_ridge_is_no_linear_form():
    numbers = Features(("a", "b"), (), ("a", "b"))
    for settings in (RIDGE, TREES):
        model = fitted(dataclasses.replace(settings, transform="log1p"), features=numbers)
        with pytest.raises(ModelError, match="the inverse of log1p"):
            contributions(model, asked())
        assert linear_form(model) is None


def test_no_rows_have_no_contributions():
    for settings in (RIDGE, TREES):
        assert check(fitted(settings), asked()[:0], 1e-9)["a"].shape == (0,)
