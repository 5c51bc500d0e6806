"""Many keys fitted at once are what scikit-learn fits one by one."""

import itertools
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from group_models.estimators.base import EstimatorSettings, Features, PickledPredictor
from group_models.estimators.batched import MAX_TEXT_VALUES, BatchedFamily, fit_ridge, medians
from group_models.estimators.linear import LinearForm, LinearForms, Table, linear_form
from group_models.estimators.registry import make_family
from group_models.evaluation import grouped_metrics, regression_metrics

NUMERIC = Features(("a", "b"), (), ("a", "b"))
MIXED = Features(("a", "b"), ("color", "size"), ("a", "color", "b", "size"))


def plain(model, text=()):
    numeric = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    if not text:
        return make_pipeline(numeric, model)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(ColumnTransformer([("text", encoder, list(text)), ("numeric", numeric, ["a", "b"])]), model)


def rows(count, *, seed, text=False):
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"a": rng.normal(3, 2, count), "b": rng.normal(-50, 10, count)})
    x.loc[rng.random(count) < 0.1, "a"] = np.nan
    y = 3 * x["a"].fillna(0).to_numpy() - x["b"].to_numpy() + rng.normal(size=count)
    if text:
        x["color"] = rng.choice(np.array(["red", "blue", "green"], dtype=object), count)
        x["size"] = rng.choice(np.array(["s", "m"], dtype=object), count)
        y = y + 20 * (x["color"] == "red").to_numpy()
        x = x[list(MIXED.names)]
    return x, y


def groups(sizes, *, text=False, seed=0):
    found = [rows(size, seed=seed + place, text=text) for place, size in enumerate(sizes)]
    x = pd.concat([one for one, _ in found], ignore_index=True)
    return x, np.concatenate([y for _, y in found]), np.concatenate([[0], np.cumsum(sizes)])


def fitted_alone(model, x, y, offsets, text=()):
    predictions = []
    for start, end in itertools.pairwise(offsets):
        own = x.iloc[start:end]
        predictions.append(plain(model, text).fit(own, y[start:end]).predict(own))
    return np.concatenate(predictions)


def family(name, params=None, features=NUMERIC):
    return make_family(EstimatorSettings(name, params or {}), features)


def fit(name, x, y, offsets, params=None, features=NUMERIC):
    closed = family(name, params, features)
    table = Table.of(x, closed.shape.numeric, tuple(closed.shape.text))
    return closed.fit_groups(table, y, offsets), table


@pytest.mark.parametrize(("name", "model"), [("ridge", Ridge(alpha=0.5)), ("linear", LinearRegression())])
def test_all_keys_predict_what_the_pipeline_of_each_does(name, model):
    x, y, offsets = groups([200, 17, 30, 1000])
    fitted, table = fit(name, x, y, offsets, {"alpha": 0.5} if name == "ridge" else {})
    assert fitted.holds.all()
    np.testing.assert_allclose(fitted.predict(table, offsets), fitted_alone(model, x, y, offsets), rtol=1e-11)


def test_text_is_one_hot_encoded_by_the_values_of_each_key():
    x, y, offsets = groups([60, 40, 80], text=True)
    x.loc[60:99, "size"] = "xl"  # a value that no other key has
    fitted, table = fit("ridge", x, y, offsets, {"alpha": 1.0}, MIXED)
    expected = fitted_alone(Ridge(alpha=1.0), x, y, offsets, ["color", "size"])
    assert fitted.holds.all()
    np.testing.assert_allclose(fitted.predict(table, offsets), expected, rtol=1e-11)
    one = fitted.fitted(1, seed=3)
    assert one.predictor.shape.text["size"] == ("xl",)
    np.testing.assert_allclose(one.predict(x.iloc[60:100]), expected[60:100], rtol=1e-11)


@pytest.mark.parametrize("name", ["median", "mean"])
def test_constants_are_those_of_numpy(name):
    x, y, offsets = groups([5, 8, 1])
    fitted, table = fit(name, x, y, offsets)
    expected = [getattr(np, name)(y[start:end]) for start, end in itertools.pairwise(offsets)]
    np.testing.assert_allclose(fitted.predict(table, offsets), np.repeat(expected, [5, 8, 1]), rtol=1e-15)


ODD = {
    "one row": lambda x: x.iloc[:1],
    "a constant column": lambda x: x.assign(a=0.1),
    "an empty column": lambda x: x.assign(a=np.nan),
    "fewer rows than columns": lambda x: x.iloc[:2],
    "collinear columns": lambda x: x.assign(a=x["b"] * 2 + 1),
}


@pytest.mark.parametrize("name", sorted(ODD))
def test_ridge_of_odd_keys_is_that_of_the_pipeline(name):
    x = ODD[name](rows(40, seed=1)[0]).reset_index(drop=True)
    y = rows(40, seed=1)[1][: len(x)]
    fitted, table = fit("ridge", x, y, np.array([0, len(x)]))
    assert fitted.holds.all()
    expected = plain(Ridge()).fit(x, y).predict(x)
    np.testing.assert_allclose(fitted.predict(table, np.array([0, len(x)])), expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["collinear columns", "fewer rows than columns"])
def test_least_squares_near_to_singular_is_left_to_the_usual_solver(name):
    odd = ODD[name](rows(40, seed=1)[0]).reset_index(drop=True)
    good, y = rows(40, seed=2)
    x, offsets = pd.concat([good, odd], ignore_index=True), np.array([0, 40, 40 + len(odd)])
    fitted, _ = fit("linear", x, np.concatenate([y, y[: len(odd)]]), offsets)
    assert fitted.holds.tolist() == [True, False]
    alone = family("linear").fit(odd, y[: len(odd)], seed=0)
    expected = plain(LinearRegression()).fit(odd, y[: len(odd)]).predict(odd)
    np.testing.assert_allclose(alone.predict(odd), expected, rtol=1e-8)


def test_values_whose_squares_overflow_are_left_to_the_usual_solver():
    x, y, offsets = groups([30, 30])
    x.loc[3, "b"] = 1e200
    fitted, _ = fit("ridge", x, y, offsets)
    assert fitted.holds.tolist() == [False, True]


def test_a_key_of_many_text_values_is_left_to_the_usual_way():
    x, y, offsets = groups([100, 30], text=True)
    x.loc[:99, "color"] = [f"c{i}" for i in range(100)]
    fitted, _ = fit("ridge", x, y, offsets, features=MIXED)
    assert MAX_TEXT_VALUES < 100
    assert fitted.holds.tolist() == [False, True]
    alone = family("ridge", features=MIXED).fit(x.iloc[:100], y[:100], seed=0)
    expected = plain(Ridge(), ["color", "size"]).fit(x.iloc[:100], y[:100]).predict(x.iloc[:100])
    np.testing.assert_allclose(alone.predict(x.iloc[:100]), expected, rtol=1e-9)


def test_parameters_that_the_batch_does_not_know_go_to_the_usual_way():
    x, y, offsets = groups([50])
    fitted, _ = fit("ridge", x, y, offsets, {"positive": True})
    assert not fitted.holds.any()
    alone = family("ridge", {"positive": True}).fit(x, y, seed=0)
    np.testing.assert_allclose(alone.predict(x), plain(Ridge(positive=True)).fit(x, y).predict(x), rtol=1e-9)


def test_a_key_fitted_alone_or_with_others_is_the_same_to_the_bit():
    x, y, offsets = groups([50, 70, 20], text=True)
    fitted, _ = fit("ridge", x, y, offsets, features=MIXED)
    alone = family("ridge", features=MIXED).fit(x.iloc[50:120], y[50:120], seed=9)
    assert alone.predictor.dump() == fitted.fitted(1, seed=9).predictor.dump()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_medians_are_those_of_numpy_whatever_is_missing(sizes, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, (2, sum(sizes))).astype(float)
    values[rng.random(values.shape) < 0.3] = np.nan
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    expected = [
        [np.nan if np.isnan(own).all() else np.nanmedian(own) for own in np.split(column, offsets[1:-1])]
        for column in values
    ]
    np.testing.assert_array_equal(medians(values, offsets), expected)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 10_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_metrics_of_many_keys_are_those_of_each(sizes, seed, is_constant):
    rng = np.random.default_rng(seed)
    y = np.full(sum(sizes), 0.1) if is_constant else rng.integers(0, 3, sum(sizes)).astype(float)
    prediction = y + rng.choice([0.0, 1.0], len(y))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    found = grouped_metrics(y, prediction, starts)
    for place, (own, guess) in enumerate(zip(np.split(y, starts[1:]), np.split(prediction, starts[1:]), strict=True)):
        expected = regression_metrics(own, guess)
        assert {name: values[place] for name, values in found.items()} == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("features", [NUMERIC, MIXED])
@pytest.mark.parametrize("name", ["ridge", "linear", "median", "mean"])
def test_a_form_is_read_back_and_is_an_ordinary_pipeline(name, features):
    x, y = rows(50, seed=4, text=bool(features.text))
    fitted = family(name, features=features).fit(x, y, seed=1)
    data = fitted.predictor.dump()
    again = LinearForm.parse(data)
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    assert again.dump() == data
    native = pickle.loads(pickle.dumps(again.native))
    assert isinstance(native, Pipeline) == (name in ("ridge", "linear"))
    np.testing.assert_allclose(native.predict(x), fitted.predict(x), rtol=1e-12)


def test_a_form_cut_short_is_refused():
    x, y = rows(50, seed=4)
    data = family("ridge").fit(x, y, seed=1).predictor.dump()
    with pytest.raises(ValueError, match="a form of 8 numbers; its first line says 9"):
        LinearForm.parse(data[:-8])


def test_forms_with_other_text_values_predict_side_by_side():
    x, y, _ = groups([60, 60], text=True)
    x.loc[:59, "color"] = "only"
    forms = [
        family("ridge", features=MIXED).fit(x.iloc[s:e], y[s:e], seed=0).predictor for s, e in ((0, 60), (60, 120))
    ]
    new = x.assign(color=x["color"].where(x.index % 7 != 0, "unseen"))
    table = Table.of(new, ("a", "b"), ("color", "size"))
    together = LinearForms.of(forms, table).predict(table, np.repeat([0, 1], 60))
    alone = np.concatenate([forms[0].predict(new.iloc[:60]), forms[1].predict(new.iloc[60:])])
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert np.isfinite(together).all()


def test_a_pipeline_that_an_earlier_version_stored_has_a_form():
    x, y = rows(50, seed=4)
    native = family("ridge").fit_native(x, y, seed=0)
    form = linear_form(PickledPredictor(native))
    np.testing.assert_allclose(form.predict(x), native.predict(x), rtol=1e-13)
    assert linear_form(PickledPredictor(Ridge().fit(x.fillna(0), y))) is None


def test_named_families_in_closed_form_are_batched_and_others_are_not():
    batched = {
        n
        for n in ("ridge", "linear", "median", "mean", "xgboost", "random_forest")
        if isinstance(family(n), BatchedFamily)
    }
    assert batched == {"ridge", "linear", "median", "mean"}


def test_no_text_and_no_numbers_is_the_mean():
    table = Table(np.empty((0, 4)))
    forms, holds = fit_ridge(table, np.array([1.0, 3.0, 5.0, 5.0]), np.array([0, 2, 4]), alpha=1.0)
    assert holds.tolist() == [True, True]
    assert forms.predict(table, np.array([0, 0, 1, 1])).tolist() == [2.0, 2.0, 5.0, 5.0]
