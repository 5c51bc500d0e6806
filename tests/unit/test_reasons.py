"""Importance of features, errors on training rows and the fit flag: of units without Spark, beside plain loops."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

from group_models.artifacts import load_model
from group_models.estimators.base import EstimatorSettings, features_of
from group_models.estimators.importances import SAMPLE_ROWS, shares, spread_rows
from group_models.estimators.registry import make_family
from group_models.fit_errors import MIN_FLAG_ROWS
from group_models.fitting.measured import Measured
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.parts import judge_parts, with_metrics
from group_models.fitting.summing import RegressionSums
from group_models.fitting.units import fit_unit
from group_models.mlmodel import MlmodelTemplate
from group_models.tables import WHOLE

KINDS = {"a": "numeric", "city": "text", "b": "numeric"}
KEYS, ROWS = 3, 80


def world(*, keys: int = KEYS, rows: int = ROWS, noise: float = 0.1) -> pd.DataFrame:
    """Return rows of keys of which `a` counts most in the first and `city` in the last; a tenth of `b` is missing."""
    rng = np.random.default_rng(3)
    key, count = np.repeat(np.arange(keys), rows), keys * rows
    a, b = rng.normal(size=(2, count)) * 4.0
    city = rng.choice(np.array(["x", "y", "z"], dtype=object), count)
    y = (keys - key) * a + 0.2 * b + key * 5.0 * (city == "x") + noise * rng.normal(size=count)
    b[rng.random(count) < 0.1] = np.nan
    frame = pd.DataFrame({"key_index": key.astype(np.int32), "f0": a, "f1": city, "f2": b, "y": y})
    frame["row_hash"] = rng.permutation(count)
    return frame.assign(time_us=np.tile(np.arange(rows), keys), is_holdout=np.tile(np.arange(rows) >= rows - 20, keys))


def settings_of(estimator: EstimatorSettings, **changes: Any) -> FitSettings:
    features = features_of(KINDS)
    family = make_family(estimator, features)
    template = MlmodelTemplate.build(
        model_set="c.s.m", run_id="r1", estimator=family.name, flavor=family.flavor, features=features
    )
    return FitSettings(
        "c.s.m", "r1", KINDS, estimator, template, refit=True, seed=7, max_model_bytes=10**7, holdout_by="hash",
        holdout_share=0.2, holdout_from_us=None, **changes,
    )  # fmt: skip


def keys_of(count: int = KEYS, **more: Any) -> pd.DataFrame:
    ids = [f"k{i}" for i in range(count)]
    return pd.DataFrame({"key_index": range(count), "key_id": ids, "key": "{}", "unit": 0, **more})


def fit(estimator: EstimatorSettings, frame: pd.DataFrame | None = None, **changes: Any) -> list[dict[str, Any]]:
    rows = world() if frame is None else frame
    found = fit_unit(rows, keys_of(rows["key_index"].nunique()), settings_of(estimator, **changes)).to_dict("records")
    assert [row["status"] for row in found] == ["trained"] * len(found), found[0]["reason"]
    return found


def features(frame: pd.DataFrame, key: int = 0) -> pd.DataFrame:
    own = frame[frame["key_index"] == key].sort_values(["time_us", "row_hash"])
    return own[["f0", "f1", "f2"]].set_axis(list(KINDS), axis=1).reset_index(drop=True)


def predictor(row: dict[str, Any]) -> Any:
    return load_model(row["data"], format=row["format"], data_file=row["data_file"]).predictor


NAMED = [
    EstimatorSettings("ridge", {"alpha": 1.0}),
    EstimatorSettings("linear"),
    EstimatorSettings("xgboost", {"n_estimators": 20, "max_depth": 3}),
    EstimatorSettings("random_forest", {"n_estimators": 10}),
    EstimatorSettings("gradient_boosting", {"n_estimators": 20}),
]


@pytest.mark.parametrize("estimator", NAMED, ids=lambda estimator: estimator.name)
def test_the_shares_of_a_keys_features_sum_to_one_and_the_feature_that_counts_most_is_first(estimator):
    rows = fit(estimator)
    for row in rows:
        assert list(row["importance"]) == list(KINDS)
        assert sum(row["importance"].values()) == pytest.approx(1.0)
        assert min(row["importance"].values()) >= 0.0
    assert max(rows[0]["importance"], key=rows[0]["importance"].get) == "a"
    assert rows[2]["importance"]["city"] > rows[0]["importance"]["city"]


@pytest.mark.parametrize("refit", [True, False])
def test_of_ridge_they_are_the_sizes_of_standardised_coefficients_as_a_loop_over_pipelines_finds_them(refit):
    frame = world()
    for key, row in enumerate(fit(NAMED[0], frame) if refit else _without_refit(frame)):
        pipeline, x = predictor(row).native, features(frame, key)
        x = x if refit else x.iloc[: ROWS - 20]
        encoded = pipeline[:-1].transform(x)
        sizes = np.abs(pipeline[-1].coef_) * np.std(encoded, axis=0)
        expected = {"a": sizes[-2], "city": sizes[:-2].sum(), "b": sizes[-1]}
        total = sum(expected.values())
        assert row["importance"] == pytest.approx({name: size / total for name, size in expected.items()}, rel=1e-9)


def _without_refit(frame: pd.DataFrame) -> list[dict[str, Any]]:
    settings = dataclasses.replace(settings_of(NAMED[0]), refit=False)
    return fit_unit(frame, keys_of(), settings).to_dict("records")


def test_keys_that_are_fitted_together_and_alone_have_the_same_importance_training_errors_and_flag():
    frame, estimator = world(), NAMED[0]
    together = fit(estimator, frame)
    # The solver asks for more than the batch knows: each key is fitted alone.
    alone = fit(EstimatorSettings("ridge", {"alpha": 1.0, "solver": "cholesky"}), frame)
    for one, other in zip(together, alone, strict=True):
        for name in ("importance", "train_metrics"):
            assert one[name] == pytest.approx(other[name], rel=1e-7)
        assert one["fit_flag"] == other["fit_flag"] == "ok"


def test_a_constant_model_has_shares_of_zero():
    for name in ("median", "mean"):
        assert fit(EstimatorSettings(name))[0]["importance"] == dict.fromkeys(KINDS, 0.0)


def test_of_xgboost_they_are_mean_sizes_of_its_own_contributions():
    frame = world()
    row = fit(NAMED[2], frame)[1]
    values = np.abs(predictor(row).contributions(spread_rows(features(frame, 1), SAMPLE_ROWS))).mean(axis=0)[:-1]
    assert row["importance"] == pytest.approx(dict(zip(KINDS, values / values.sum(), strict=True)))


@pytest.mark.parametrize("estimator", NAMED[3:], ids=lambda estimator: estimator.name)
def test_of_trees_they_are_their_own_with_one_hot_columns_summed(estimator):
    row = fit(estimator)[2]
    values = predictor(row).native[-1].feature_importances_
    assert len(values) == 5
    assert row["importance"] == pytest.approx({"a": values[3], "city": values[:3].sum(), "b": values[4]})


@pytest.mark.parametrize("name", ["ridge", "hist_gradient_boosting"])
def test_asked_for_by_permutation_any_family_has_them(name):
    rows = fit(EstimatorSettings(name), importance="permutation")
    assert [sum(row["importance"].values()) for row in rows] == pytest.approx([1.0] * KEYS)
    assert rows[0]["importance"]["a"] > 0.8
    again = fit(EstimatorSettings(name), importance="permutation")
    assert [row["importance"] for row in rows] == [row["importance"] for row in again]


def test_a_family_that_tells_none_has_none_and_none_are_told_where_none_are_asked_for():
    assert fit(EstimatorSettings("hist_gradient_boosting"))[0]["importance"] is None
    assert fit(NAMED[0], importance="none")[0]["importance"] is None


class Mute:
    """An estimator whose importance cannot be read."""

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> Mute:
        return self

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return np.zeros(len(x))

    @property
    def feature_importances_(self) -> Any:
        raise RuntimeError("not for you")


def test_an_estimator_of_ones_own_tells_what_it_has_and_one_that_raises_is_a_model_all_the_same():
    frame = world().drop(columns="f1").rename(columns={"f2": "f1"}).fillna(0.0)
    kinds = {"a": "numeric", "b": "numeric"}

    def importance(made: Any) -> Any:
        settings = dataclasses.replace(settings_of(EstimatorSettings(object=made)), features=kinds)
        (row, *_) = fit_unit(frame, keys_of(), settings).to_dict("records")
        assert row["status"] == "trained"
        return row["importance"]

    x = frame.loc[frame["key_index"] == 0, ["f0", "f1"]]
    y = frame.loc[frame["key_index"] == 0, "y"]
    sizes = np.abs(LinearRegression().fit(x, y).coef_) * x.std(ddof=0).to_numpy()
    assert importance(LinearRegression()) == pytest.approx(dict(zip(kinds, sizes / sizes.sum(), strict=True)))
    assert sum(importance(RandomForestRegressor(5)).values()) == pytest.approx(1.0)
    assert importance(Mute()) is None


def test_errors_on_training_rows_are_those_of_the_measured_model_on_the_rows_it_was_fitted_on():
    frame = world()
    for estimator in (NAMED[0], NAMED[2]):
        rows = fit_unit(frame, keys_of(), dataclasses.replace(settings_of(estimator), refit=False)).to_dict("records")
        for key, row in enumerate(rows):
            own = frame[frame["key_index"] == key].sort_values("time_us")
            train = ~own["is_holdout"].to_numpy()
            error = predictor(row).predict(features(frame, key))[train] - own["y"].to_numpy()[train]
            expected = {"train_mae": np.abs(error).mean(), "train_rmse": np.sqrt((error**2).mean())}
            assert row["train_metrics"] == pytest.approx(expected)


def test_trees_of_noise_are_over_fitted_a_median_under_fitted_and_a_line_is_fitted_well():
    noise = world(noise=50.0)
    deep = EstimatorSettings("gradient_boosting", {"max_depth": 8})
    assert {row["fit_flag"] for row in fit(deep, noise)} == {"over"}
    assert {row["fit_flag"] for row in fit(EstimatorSettings("median"))} == {"under"}
    assert {row["fit_flag"] for row in fit(EstimatorSettings("linear"))} == {"ok"}


def test_of_few_rows_or_without_a_holdout_nothing_is_said_of_the_fit():
    few = world(rows=2 * MIN_FLAG_ROWS - 1)
    assert {row["fit_flag"] for estimator in NAMED[:3] for row in fit(estimator, few)} == {None}
    without = world().assign(is_holdout=False)
    for estimator in NAMED[:3]:
        row = fit(estimator, without)[0]
        assert row["fit_flag"] is None
        assert row["train_metrics"]["train_mae"] > 0.0


def test_weights_count_in_training_errors():
    frame = world().assign(w=1.0)
    frame.loc[frame["time_us"] < 5, "w"] = 30.0
    frame.loc[frame["time_us"] < 5, "y"] += 40.0
    for estimator in (NAMED[0], NAMED[2]):
        plain = fit(estimator, frame.drop(columns="w"))[0]["train_metrics"]["train_mae"]
        assert fit(estimator, frame)[0]["train_metrics"]["train_mae"] != pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("refit", [True, False])
def test_a_salted_key_has_the_mean_of_its_parts_shares_and_its_parts_training_errors_beside_its_own(refit):
    frame, settings = world(keys=1, rows=300), dataclasses.replace(settings_of(NAMED[0]), refit=refit)
    parts = []
    for part in range(3):
        own = frame[frame["row_hash"] % 3 == part]
        parts += fit_unit(own, keys_of(1, part=[part], n_parts=3), settings).to_dict("records")
    final = [row for row in parts if row["part"] < 3]
    assert len(parts) == (6 if refit else 3)
    planned = {"key_id": "k0", "n_parts": 3, "unit": 0}
    outcome = judge_parts([{**row, "number": 0} for row in parts], planned, settings)
    expected = {name: np.mean([row["importance"][name] for row in final]) for name in KINDS}
    assert outcome.columns["importance"] == pytest.approx(expected)
    errors = [row["train_metrics"]["train_mae"] for row in parts if row["train_metrics"]]
    assert outcome.columns["train_metrics"]["train_mae"] == pytest.approx(np.mean(errors), rel=0.05)
    y = np.arange(100.0)
    measured = Measured(RegressionSums.of(y, y + 10.0), RegressionSums.of(y, np.full(100, 50.0)))
    columns = with_metrics(outcome, measured)
    assert columns["fit_flag"] == "over"
    assert columns["part"] == WHOLE


def test_huge_and_tiny_sizes_are_shares_too():
    found = shares({"a": np.array([1e308, 1e-308, np.inf]), "b": np.array([-1e308, 3e-308, 1.0])})
    np.testing.assert_allclose(found["a"], [0.5, 0.25, 0.0])
    np.testing.assert_allclose(found["b"], [0.5, 0.75, 1.0])


def test_a_tree_of_ones_own_on_raw_numbers_has_its_shares_by_name():
    tree = DecisionTreeRegressor(max_depth=2)
    frame = world().drop(columns="f1").rename(columns={"f2": "f1"})
    settings = dataclasses.replace(
        settings_of(EstimatorSettings(object=tree)), features={"a": "numeric", "b": "numeric"}
    )
    row = fit_unit(frame, keys_of(), settings).to_dict("records")[0]
    assert row["importance"]["a"] > 0.9
