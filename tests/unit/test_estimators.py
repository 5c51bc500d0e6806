"""Families: equal to plain scikit-learn and xgboost, at home with missing values, text and tiny keys."""

import dataclasses
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import threadpoolctl
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    VotingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from group_models.errors import SpecError
from group_models.estimators import boosters, families
from group_models.estimators.base import EstimatorSettings, Features, one_thread, take_control
from group_models.estimators.registry import FAMILIES, check_settings, make_family

xgboost = pytest.importorskip("xgboost")

NUMERIC = Features(("a", "b", "c"), (), ("a", "b", "c"))
MIXED = Features(("a", "b"), ("color",), ("a", "color", "b"))
SMALL = {
    "ridge": {"alpha": 0.5},
    "gradient_boosting": {"n_estimators": 8, "subsample": 0.7},
    "hist_gradient_boosting": {"max_iter": 8},
    "random_forest": {"n_estimators": 8},
    "xgboost": {"n_estimators": 8, "max_depth": 3, "subsample": 0.7},
    "linear": {},
    "median": {},
    "mean": {},
}


def numeric_rows(rows=120, *, seed=0):
    """Rows of a, b, c with some missing, and a target that depends on them."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, 3))
    y = 3 * values[:, 0] - 2 * values[:, 1] + rng.normal(scale=0.1, size=rows)
    values[rng.random((rows, 3)) < 0.1] = np.nan
    return pd.DataFrame(values, columns=list("abc")), y


def mixed_rows(rows=120):
    """Rows of a, color, b: red adds 10, blue takes 10, a missing color adds 5."""
    x, y = numeric_rows(rows)
    colors = np.array(["red", "blue", None, "grün"], dtype=object)[np.arange(rows) % 4]
    effect = {"red": 10.0, "blue": -10.0, None: 5.0, "grün": 0.0}
    frame = pd.DataFrame({"a": x["a"], "color": pd.Series(colors, dtype=object), "b": x["b"]})
    return frame, y + np.array([effect[color] for color in colors])


def family_of(name, features=NUMERIC, **settings):
    return make_family(EstimatorSettings(name, SMALL[name], **settings), features)


def of_object(made, features=NUMERIC, **settings):
    return make_family(EstimatorSettings(object=made, **settings), features)


def imputed(estimator):
    return make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), estimator)


PLAIN = {
    "ridge": lambda _: make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), Ridge(alpha=0.5)),
    "gradient_boosting": lambda seed: imputed(
        GradientBoostingRegressor(n_estimators=8, subsample=0.7, random_state=seed)
    ),
    "hist_gradient_boosting": lambda seed: HistGradientBoostingRegressor(max_iter=8, random_state=seed),
    "random_forest": lambda seed: imputed(RandomForestRegressor(n_estimators=8, random_state=seed)),
    "xgboost": lambda seed: xgboost.XGBRegressor(
        n_estimators=8, max_depth=3, subsample=0.7, n_jobs=1, random_state=seed
    ),
    "linear": lambda _: make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), LinearRegression()),
    "median": lambda _: DummyRegressor(strategy="median"),
    "mean": lambda _: DummyRegressor(strategy="mean"),
}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_predicts_what_the_plain_library_does(name):
    x, y = numeric_rows()
    expected = PLAIN[name](11).fit(x, y).predict(x)
    prediction = family_of(name).fit(x, y, seed=11).predict(x)
    assert prediction.dtype == np.float64
    assert prediction.shape == (120,)
    np.testing.assert_allclose(prediction, expected, rtol=1e-9, atol=1e-9)


LOSSES = {
    "gradient_boosting": {"mae": {"loss": "absolute_error"}, "rmse": {"loss": "squared_error"}},
    "hist_gradient_boosting": {"mae": {"loss": "absolute_error"}, "rmse": {"loss": "squared_error"}},
    "xgboost": {"mae": {"objective": "reg:absoluteerror"}, "rmse": {"objective": "reg:squarederror"}},
}


@pytest.mark.parametrize("metric", ["mae", "rmse"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_that_can_minimises_the_metric(name, metric):
    x, y = numeric_rows()
    loss = LOSSES.get(name, {}).get(metric, {})
    plain = PLAIN[name](11)
    (plain[-1] if hasattr(plain, "steps") else plain).set_params(**loss)
    expected = plain.fit(x, y).predict(x)
    fitted = family_of(name, metric=metric).fit(x, y, seed=11)
    np.testing.assert_allclose(fitted.predict(x), expected, rtol=1e-9, atol=1e-9)
    assert loss.items() <= fitted.params.items()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_that_the_user_names_comes_before_the_metric(name):
    x, y = numeric_rows()
    params = {**SMALL[name], **LOSSES[name]["rmse"]}
    asked, unasked = (
        make_family(EstimatorSettings(name, given, metric=metric), NUMERIC).fit(x, y, seed=3)
        for given, metric in ((params, "mae"), (SMALL[name], "mae"))
    )
    plain = make_family(EstimatorSettings(name, params), NUMERIC).fit(x, y, seed=3)
    np.testing.assert_array_equal(asked.predict(x), plain.predict(x))
    assert not np.array_equal(unasked.predict(x), plain.predict(x))


def test_every_family_is_compared_with_the_plain_library():
    assert set(PLAIN) == set(FAMILIES) == set(SMALL)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_pickled_family_fits_the_same_model(name):
    x, y = numeric_rows()
    family = family_of(name)
    again = pickle.loads(pickle.dumps(family))
    np.testing.assert_array_equal(again.fit(x, y, seed=1).predict(x), family.fit(x, y, seed=1).predict(x))


@pytest.mark.parametrize("name", ["gradient_boosting", "random_forest", "xgboost"])
def test_another_seed_gives_another_model(name):
    x, y = numeric_rows()
    family = family_of(name)
    first, second = (family.fit(x, y, seed=seed).predict(x) for seed in (1, 2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize(
    ("what", "rows"),
    [
        ("one row", pd.DataFrame({"a": [1.0], "b": [2.0], "c": [3.0]})),
        ("a column without any value", pd.DataFrame({"a": np.arange(9.0), "b": np.nan, "c": 1.0})),
        ("no value at all", pd.DataFrame({"a": [np.nan] * 4, "b": np.nan, "c": np.nan})),
        ("constant columns", pd.DataFrame({"a": [7.0] * 9, "b": 8.0, "c": 9.0})),
    ],
)
def test_d1_odd_small_keys_are_fitted_without_warnings(name, what, rows, recwarn):
    y = np.full(len(rows), 4.25)
    prediction = make_family(EstimatorSettings(name), NUMERIC).fit(rows, y, seed=0).predict(rows)
    np.testing.assert_allclose(prediction, 4.25, atol=1e-5, err_msg=what)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_rows_give_no_predictions(name):
    x, y = numeric_rows()
    assert family_of(name).fit(x, y, seed=0).predict(x[:0]).shape == (0,)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"median", "mean"}))
def test_text_is_learned_and_unseen_text_is_treated_like_missing_text(name):
    x, y = mixed_rows(400)
    settings = EstimatorSettings(name, {})
    fitted = make_family(settings, MIXED).fit(x, y, seed=0)
    new = pd.DataFrame({"a": 0.0, "color": pd.Series(["red", "blue", None, "pink", ""], dtype=object), "b": 0.0})
    red, blue, missing, pink, empty = fitted.predict(new)
    assert red == pytest.approx(10, abs=2.5)
    assert blue == pytest.approx(-10, abs=2.5)
    assert missing == pytest.approx(5, abs=3)
    assert missing == pink == empty


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("values", [[None] * 10, ["only"] * 10, ["x", None] * 5])
def test_text_columns_with_one_or_no_value_are_fitted(name, values):
    x = pd.DataFrame({"a": np.arange(10.0), "color": pd.Series(values, dtype=object), "b": 1.0})
    prediction = family_of(name, MIXED).fit(x, np.arange(10.0), seed=0).predict(x)
    assert np.isfinite(prediction).all()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_model_on_text_alone_is_fitted(name):
    x = pd.DataFrame({"color": pd.Series(["red", "blue"] * 20, dtype=object)})
    fitted = family_of(name, Features((), ("color",), ("color",))).fit(x, np.tile([1.0, 3.0], 20), seed=0)
    assert np.isfinite(fitted.predict(x)).all()


def test_more_values_than_bins_keep_the_most_frequent_ones():
    values = [f"v{n:03d}" for n in range(300)] + ["v299"] * 5
    x = pd.DataFrame({"a": 0.0, "color": pd.Series(values, dtype=object), "b": 1.0})
    family = make_family(EstimatorSettings("hist_gradient_boosting", {"max_bins": 16}), MIXED)
    fitted = family.fit(x, np.arange(len(x), dtype=float), seed=0)
    kept = fitted.native.named_steps["columns"].named_transformers_["text"].categories_[0]
    assert len(kept) == 16
    assert "v299" in kept


def test_one_hot_columns_of_a_long_key_are_bounded(monkeypatch):
    monkeypatch.setattr(families, "MAX_ONE_HOT_CELLS", 40 * 12)
    x = pd.DataFrame({"a": 0.0, "color": pd.Series([f"v{n:02d}" for n in range(40)], dtype=object), "b": 1.0})
    fitted = family_of("ridge", MIXED).fit(x, np.arange(40.0), seed=0)
    kept = fitted.native.named_steps["columns"].named_transformers_["text"].categories_[0]
    assert list(kept) == [f"v{n:02d}" for n in range(12)]


def test_text_in_xgboost_equals_its_wrapper_on_pandas_categories():
    x, y = mixed_rows()
    settings = EstimatorSettings("xgboost", {"n_estimators": 10, "max_depth": 3})
    prediction = make_family(settings, MIXED).fit(x, y, seed=3).predict(x)
    coded = x.assign(color=pd.Categorical(x["color"], categories=sorted(x["color"].dropna().unique())))
    plain = xgboost.XGBRegressor(n_estimators=10, max_depth=3, n_jobs=1, random_state=3, enable_categorical=True)
    np.testing.assert_allclose(prediction, plain.fit(coded, y).predict(coded), rtol=1e-9)


def test_c8_columns_in_another_order_and_extra_ones_do_not_change_predictions():
    x, y = mixed_rows()
    moved = x[["b", "color", "a"]].assign(z=1.0)
    for name in ("ridge", "gradient_boosting", "hist_gradient_boosting", "xgboost"):
        fitted = family_of(name, MIXED).fit(x, y, seed=0)
        np.testing.assert_array_equal(fitted.predict(moved), fitted.predict(x))


def test_c11_names_that_xgboost_refuses_are_mapped_and_the_model_is_the_same():
    x, y = numeric_rows()
    odd = ("size (cm)", "x<3", "v[0]")
    fitted = family_of("xgboost", Features(odd, (), odd)).fit(x.set_axis(list(odd), axis=1), y, seed=0)
    assert fitted.native.feature_names == ["f0", "f1", "f2"]
    assert boosters.Columns.from_booster(fitted.native).names == odd
    expected = family_of("xgboost").fit(x, y, seed=0).predict(x)
    np.testing.assert_array_equal(fitted.predict(x.set_axis(list(odd), axis=1)), expected)


def test_plain_names_stay_as_they_are_in_the_booster():
    x, y = numeric_rows()
    fitted = family_of("xgboost").fit(x, y, seed=0)
    assert fitted.native.feature_names == ["a", "b", "c"]
    assert fitted.native.attr(boosters.ATTRIBUTE) is None


@pytest.mark.parametrize("params", [{"tree_method": "exact"}, {"booster": "dart"}, {"max_bin": 8}])
def test_other_ways_to_grow_trees_equal_the_wrapper_too(params):
    params = {**params, "n_estimators": 5}
    x, y = numeric_rows()
    prediction = make_family(EstimatorSettings("xgboost", params), NUMERIC).fit(x, y, seed=3).predict(x)
    plain = xgboost.XGBRegressor(**params, n_jobs=1, random_state=3).fit(x, y)
    np.testing.assert_allclose(prediction, plain.predict(x), rtol=1e-9)


EARLY = {"n_estimators": 300, "max_depth": 2, "learning_rate": 0.3, "early_stopping_rounds": 5}


def test_early_stopping_equals_the_wrapper_that_watches_the_last_rows():
    x, y = numeric_rows(200)
    fitted = make_family(EstimatorSettings("xgboost", EARLY), NUMERIC).fit(x, y, seed=3)
    plain = xgboost.XGBRegressor(**EARLY, n_jobs=1, random_state=3)
    plain.fit(x[:160], y[:160], eval_set=[(x[160:], y[160:])], verbose=False)
    np.testing.assert_allclose(fitted.predict(x), plain.predict(x), rtol=1e-9)
    assert fitted.params["best_iteration"] == str(plain.best_iteration)
    assert int(fitted.params["stopped_round"]) == plain.best_iteration + 1 + 5
    assert fitted.rounds == plain.best_iteration + 1 == fitted.native.num_boosted_rounds()
    assert fitted.rows_used == 160


def test_a_refit_after_early_stopping_takes_all_rows_and_the_best_number_of_rounds():
    x, y = numeric_rows(200)
    family = make_family(EstimatorSettings("xgboost", EARLY), NUMERIC)
    fitted = family.fit(x, y, seed=3)
    again = family.refit(fitted, x, y, seed=3)
    params = {**EARLY, "n_estimators": fitted.rounds, "early_stopping_rounds": None}
    plain = xgboost.XGBRegressor(**params, n_jobs=1, random_state=3).fit(x, y)
    np.testing.assert_allclose(again.predict(x), plain.predict(x), rtol=1e-9)
    assert again.rows_used == 200
    assert again.params["best_iteration"] == fitted.params["best_iteration"]
    assert again.params["stopped_round"] == fitted.params["stopped_round"]


@pytest.mark.parametrize("rows", [1, 4, 7, 9])
def test_d11_a_key_too_small_to_watch_rows_is_fitted_without_early_stopping(rows):
    x, y = numeric_rows(rows)
    for family in (
        make_family(EstimatorSettings("xgboost", EARLY), NUMERIC),
        of_object(xgboost.XGBRegressor(**EARLY)),
    ):
        fitted = family.fit(x, y, seed=3)
        assert fitted.params["early_stopping"] == f"off: {rows} rows are too few"
        assert fitted.rows_used == rows
        again = family.refit(fitted, x, y, seed=3)
        assert again.params["early_stopping"] == f"off: {rows} rows are too few"
        np.testing.assert_array_equal(again.predict(x), fitted.predict(x))


def test_d11_early_stopping_inside_a_users_pipeline_watches_rows_through_the_fitted_steps():
    x, y = mixed_rows(200)
    encode = ColumnTransformer([("color", OneHotEncoder(handle_unknown="ignore"), ["color"])], remainder="passthrough")
    pipeline = Pipeline([("encode", encode), ("model", xgboost.XGBRegressor(**EARLY))])
    family = of_object(pipeline, MIXED)
    fitted = family.fit(x, y, seed=3)
    steps = OneHotEncoder(handle_unknown="ignore"), xgboost.XGBRegressor(**EARLY, n_jobs=1, random_state=3)
    first = ColumnTransformer([("color", steps[0], ["color"])], remainder="passthrough")
    train, rest = first.fit_transform(x[:160], y[:160]), first.transform(x[160:])
    steps[1].fit(train, y[:160], eval_set=[(rest, y[160:])], verbose=False)
    np.testing.assert_allclose(fitted.predict(x[160:]), steps[1].predict(rest), rtol=1e-9)
    assert fitted.params["best_iteration"] == str(steps[1].best_iteration)
    again = family.refit(fitted, x, y, seed=3)
    assert again.native.steps[-1][1].get_booster().num_boosted_rounds() == fitted.rounds
    assert again.rows_used == 200


def test_the_spec_gets_back_the_rounds_at_which_scikit_learn_stopped_by_itself():
    x, y = numeric_rows(200)
    settings = EstimatorSettings("gradient_boosting", {"n_estimators": 400, "n_iter_no_change": 3})
    fitted = make_family(settings, NUMERIC).fit(x, y, seed=0)
    assert 1 <= int(fitted.params["stopped_round"]) < 400


@pytest.mark.parametrize(("threads", "text"), [(1, "1"), (2, "2")])
def test_threads_come_from_the_settings_and_are_recorded(threads, text):
    x, y = numeric_rows()
    params = {**SMALL["random_forest"], "n_jobs": -1}
    fitted = make_family(EstimatorSettings("random_forest", params, threads=threads), NUMERIC).fit(x, y, seed=5)
    assert fitted.native.steps[-1][1].n_jobs == threads
    assert fitted.params == {"n_estimators": "8", "n_jobs": text, "random_state": "5"}


@pytest.mark.parametrize(
    ("estimator", "found"),
    [
        (RandomForestRegressor(n_jobs=-1), {"n_jobs"}),
        (make_pipeline(SimpleImputer(), RandomForestRegressor(n_jobs=-1)), {"randomforestregressor__n_jobs"}),
        (
            GridSearchCV(RandomForestRegressor(n_jobs=8), {"max_depth": [2]}, n_jobs=-1),
            {"n_jobs", "estimator__n_jobs"},
        ),
        (VotingRegressor([("f", RandomForestRegressor(n_jobs=4))], n_jobs=3), {"n_jobs", "f__n_jobs"}),
        (make_pipeline(xgboost.XGBRegressor(n_jobs=4)), {"xgbregressor__n_jobs"}),
    ],
    ids=["plain", "pipeline", "grid search", "voting", "xgboost"],
)
def test_a11_nested_threads_are_found_and_capped(estimator, found):
    params = take_control(estimator, seed=3, threads=1)
    assert {name for name, value in params.items() if name.endswith("n_jobs") and value == "1"} == found
    assert {estimator.get_params()[name] for name in found} == {1}


def test_seeds_reach_nested_estimators_and_splitters_but_not_over_a_users_own():
    forest = RandomForestRegressor(random_state=99)
    search = GridSearchCV(make_pipeline(forest, memory=None), {}, cv=KFold(3, shuffle=True))
    voting = VotingRegressor([("own", forest), ("free", RandomForestRegressor())])
    assert take_control(voting, seed=3, threads=1)["free__random_state"] == "3"
    assert voting.get_params()["own__random_state"] == 99
    take_control(search, seed=3, threads=1)
    assert search.cv.random_state == 3


class ThreadCount(RegressorMixin, BaseEstimator):
    """Predicts the largest number of threads that a native library may use while it is fitted."""

    def fit(self, x, y):
        self.threads_ = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
        return self

    def predict(self, x):
        return np.full(len(x), float(self.threads_))


@pytest.mark.parametrize("threads", [1, 2])
def test_a11_native_libraries_use_the_familys_threads_inside_a_fit(threads):
    x, y = numeric_rows()
    family = of_object(ThreadCount, threads=threads)
    with one_thread(family):
        assert set(family.fit(x, y, seed=0).predict(x)) == {float(threads)}


def test_a10_the_booster_predicts_with_one_thread_also_after_it_was_read_back():
    x, y = numeric_rows()
    fitted = family_of("xgboost").fit(x, y, seed=0)
    read = boosters.BoosterPredictor.parse(fitted.predictor.dump())
    for booster in (fitted.native, read.native):
        assert '"nthread":"1"' in booster.save_config()


def fit_and_predict(name, data):
    x, y = numeric_rows()
    family = family_of(name)
    with one_thread(family):
        model = boosters.BoosterPredictor.parse(data) if data else family.fit(x, y, seed=1)
        return float(model.predict(x).sum())


@pytest.mark.parametrize("name", ["xgboost", "hist_gradient_boosting"])
def test_a10_a_forked_worker_trains_and_scores_after_its_parent_used_all_cores(name):
    x, y = numeric_rows(5_000)
    xgboost.XGBRegressor(n_estimators=5, n_jobs=4).fit(x, y)
    HistGradientBoostingRegressor(max_iter=5).fit(x, y)
    data = family_of(name).fit(*numeric_rows(), seed=1).predictor.dump() if name == "xgboost" else b""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        sums = [pool.apply_async(fit_and_predict, (name, stored)).get(60) for stored in (b"", data, data)]
    assert sums == pytest.approx([sums[0]] * 3, rel=1e-9)


def make_ridge(alpha=1.0, seed=None):
    model = make_pipeline(SimpleImputer(), Ridge(alpha=alpha))
    model.seed = seed
    return model


def test_a_callable_gets_the_params_and_the_keys_seed():
    x, y = numeric_rows()
    fitted = of_object(make_ridge, params={"alpha": 3.0}).fit(x, y, seed=17)
    assert fitted.native.seed == 17
    assert fitted.native.steps[-1][1].alpha == 3.0
    assert fitted.params == {"alpha": "3.0", "ridge__random_state": "17"}


def test_a_dotted_path_a_class_and_an_estimator_give_the_same_model():
    x, y = numeric_rows()
    made = "sklearn.ensemble:HistGradientBoostingRegressor", HistGradientBoostingRegressor
    expected = HistGradientBoostingRegressor(random_state=4).fit(x, y).predict(x)
    for source in (*made, HistGradientBoostingRegressor()):
        np.testing.assert_array_equal(of_object(source).fit(x, y, seed=4).predict(x), expected)


def test_an_estimator_is_cloned_for_each_key():
    x, y = numeric_rows()
    own = Ridge()
    first = of_object(own).fit(x.fillna(0), y, seed=0)
    second = of_object(own).fit(x.fillna(0), -y, seed=0)
    assert not hasattr(own, "coef_")
    np.testing.assert_allclose(first.predict(x.fillna(0)), -second.predict(x.fillna(0)))


def test_d9_missing_values_reach_a_users_estimator_as_they_are():
    x, y = numeric_rows()
    assert np.isfinite(of_object(HistGradientBoostingRegressor).fit(x, y, seed=0).predict(x)).all()
    family = of_object(LinearRegression)
    with pytest.raises(ValueError, match="contains NaN"):
        family.fit(x, y, seed=0)


class TwoColumns(RegressorMixin, BaseEstimator):
    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.zeros((len(x), 2))


def test_an_estimator_that_does_not_answer_one_number_per_row_is_refused():
    x, y = numeric_rows(6)
    fitted = of_object(TwoColumns).fit(x, y, seed=0)
    with pytest.raises(ValueError, match="12 values for 6 rows"):
        fitted.predict(x)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_costs_grow_with_rows_and_columns(name):
    family, rows = family_of(name), np.array([10, 1_000, 100_000])
    seconds, size = family.predicted_seconds(rows, 5), family.predicted_model_bytes(rows, 5)
    assert seconds.shape == size.shape == (3,)
    assert (np.diff(seconds) > 0).all()
    assert (np.diff(size) >= 0).all()
    assert (seconds <= family.predicted_seconds(rows, 50)).all()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_expected_model_bytes_are_near_the_real_ones(name):
    x, y = numeric_rows(1_000)
    family = make_family(EstimatorSettings(name, {}), NUMERIC)
    expected = family.predicted_model_bytes(np.array([1_000]), 3)[0]
    assert 0.3 < expected / len(family.fit(x, y, seed=0).predictor.dump()) < 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (EstimatorSettings(), "give either a name"),
        (EstimatorSettings("ridge", object=Ridge), "give either a name"),
        (EstimatorSettings("rigde"), r"'rigde' is unknown \(did you mean ridge\?\)"),
        (EstimatorSettings("ridge", {"alpa": 1}), r"ridge has no 'alpa' \(did you mean alpha\?\)"),
        (EstimatorSettings("ridge", {"alpha": "big"}), "'alpha' parameter of Ridge must be"),
        (EstimatorSettings("median", {"strategy": "mean"}), "median has no 'strategy'; it takes none"),
        (EstimatorSettings("gradient_boosting", {"n_estimators": 2.5}), "'n_estimators' parameter"),
        (EstimatorSettings("xgboost", {"max_dept": 3}), r"no 'max_dept' \(did you mean max_depth\?\)"),
        (EstimatorSettings("xgboost", {"eta": 0.3}), "write learning_rate for eta"),
        (EstimatorSettings("xgboost", {"max_depth": "deep"}), "max_depth expect int"),
        (EstimatorSettings("xgboost", {"objective": "reg:nothing"}), "Unknown objective"),
        (EstimatorSettings("xgboost", {"n_estimators": 0}), "n_estimators is 0"),
        (EstimatorSettings("xgboost", {"early_stopping_rounds": "5"}), "early_stopping_rounds is '5'"),
        (EstimatorSettings("xgboost", {"booster": "gblinear"}), "use the estimator ridge"),
        (EstimatorSettings("xgboost", {"objective": max}), "objective must be a name"),
        (EstimatorSettings("xgboost", {"missing": 0}), "no 'missing'"),
        (EstimatorSettings("ridge", threads=0), "threads is 0"),
        (EstimatorSettings("xgboost", validation_share=1.0), "validation_share is 1.0"),
        (
            EstimatorSettings(object="no_such_pkg.mod:factory"),
            "module no_such_pkg.mod cannot be imported here",
        ),
        (EstimatorSettings(object="json:factory"), "module json has no factory"),
        (EstimatorSettings(object="factory"), "no dotted path; write package.module:attribute"),
        (EstimatorSettings(object="json:dumps"), "'json:dumps' fails when called with no arguments"),
        (EstimatorSettings(object="json:__name__"), "is a str; it must be callable or an estimator"),
        (EstimatorSettings(object=dict), "gives a dict without fit and predict"),
        (EstimatorSettings(object=Ridge, params={"alpa": 1}), "called with alpa: TypeError"),
    ],
)
def test_each_mistake_in_the_settings_is_one_sentence(settings, message):
    mistakes = check_settings(settings, NUMERIC)
    assert len(mistakes) == 1
    with pytest.raises(SpecError, match=message):
        raise SpecError(mistakes)


def test_all_mistakes_are_found_at_once():
    settings = EstimatorSettings("xgboost", {"max_dept": 3, "eta": 1, "n_estimators": -1}, threads=0)
    assert len(check_settings(settings, NUMERIC)) == 4


@pytest.mark.parametrize("features", [NUMERIC, MIXED])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_right_settings_have_no_mistakes(name, features):
    assert check_settings(EstimatorSettings(name, SMALL[name]), features) == []


def test_an_unknown_name_makes_no_family():
    with pytest.raises(SpecError, match="it is one of gradient_boosting"):
        make_family(EstimatorSettings("nothing"), NUMERIC)


def test_xgboost_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    mistakes = check_settings(EstimatorSettings("xgboost"), NUMERIC)
    assert mistakes == ["estimator xgboost needs the xgboost package: pip install 'group-models[xgboost]'"]


def test_c6_text_handed_to_an_estimator_for_numbers_is_found_before_any_fit():
    mistakes = check_settings(EstimatorSettings(object="xgboost:XGBRegressor"), MIXED)
    assert len(mistakes) == 1
    assert "cannot take the text features color (string)" in mistakes[0]
    assert "return a Pipeline that encodes them" in mistakes[0]


def test_c6_a_pipeline_that_encodes_is_accepted():
    encode = ColumnTransformer([("color", OneHotEncoder(), ["color"])], remainder="passthrough")
    assert check_settings(EstimatorSettings(object=make_pipeline(encode, Ridge())), MIXED) == []


def test_a_users_estimator_is_not_tried_where_all_features_are_numbers():
    class Never(Ridge):
        def fit(self, x, y):
            raise AssertionError

    assert check_settings(EstimatorSettings(object=Never), NUMERIC) == []


def test_settings_are_named_after_their_family_or_object():
    assert EstimatorSettings("ridge").label == "ridge"
    assert EstimatorSettings(object="my.pkg:make").label == "my.pkg:make"
    assert EstimatorSettings(object=Ridge()).label == "sklearn.linear_model._ridge:Ridge"


def test_importing_the_modules_imports_neither_scikit_learn_nor_xgboost():
    code = (
        "import sys, group_models.estimators.registry, group_models.artifacts, group_models.evaluation;"
        "print([name for name in ('sklearn', 'xgboost', 'mlflow', 'scipy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_fitted_model_says_what_it_is():
    x, y = numeric_rows()
    fitted = family_of("xgboost").fit(x, y, seed=8)
    assert fitted.params == {
        "max_depth": "3",
        "n_estimators": "8",
        "n_jobs": "1",
        "random_state": "8",
        "subsample": "0.7",
    }
    assert dataclasses.replace(fitted, params={}).rows_used == 120
