"""Classes: each family beside a plain scikit-learn loop, keys of few labels, metrics beside scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier

from group_models.artifacts import load_model
from group_models.class_metrics import auc, class_metrics, confusion_of, without_confusion
from group_models.estimators.base import EstimatorSettings, features_of
from group_models.estimators.registry import check_settings
from group_models.keys import key_id, key_seed
from group_models.labels import Labels, aligned, ordered, union
from tests.cases.worlds import fit_keys

LABELS = Labels(("early", "late", "lost", "on time"))
FEATURES = features_of({"a": "numeric", "b": "numeric"})
TREES = {"n_estimators": 8, "max_depth": 3}


def settings(name: str | None, obj: Any = None, labels: Labels = LABELS, **given: Any) -> EstimatorSettings:
    return EstimatorSettings(name=name, object=obj, metric="log_loss", labels=labels, **given)


def a_world(rows: int = 120, labels: int = 3, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Return features, some missing, and codes that they decide with noise."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame(rng.normal(size=(rows, 2)), columns=["a", "b"])
    y = np.digitize(x["a"] + rng.normal(scale=0.5, size=rows), np.linspace(-0.8, 0.8, labels - 1))
    x.loc[rng.random(rows) < 0.1, "b"] = np.nan
    return x, y.astype(float)


def loaded(row: dict[str, Any]) -> Any:
    return load_model(row["data"], format=row["format"], data_file=row["data_file"], sha256=row["sha256"])


def imputed(model: Any) -> Any:
    return make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), model)


PLAIN: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "logistic": (
        {"C": 0.5},
        lambda seed: make_pipeline(
            SimpleImputer(strategy="median"), StandardScaler(), LogisticRegression(C=0.5, random_state=seed)
        ),
    ),
    "gradient_boosting": (
        {"n_estimators": 8},
        lambda seed: imputed(GradientBoostingClassifier(n_estimators=8, random_state=seed)),
    ),
    "hist_gradient_boosting": (
        {"max_iter": 8},
        lambda seed: HistGradientBoostingClassifier(max_iter=8, random_state=seed),
    ),
    "random_forest": (
        {"n_estimators": 8},
        lambda seed: imputed(RandomForestClassifier(n_estimators=8, random_state=seed)),
    ),
    "xgboost": (TREES, lambda seed: XGBClassifier(**TREES, random_state=seed, n_jobs=1)),
}


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("name", PLAIN)
def test_each_family_gives_the_probabilities_of_a_plain_loop(name: str, labels: int) -> None:
    params, plain = PLAIN[name]
    x, y = a_world(labels=labels)
    held = np.arange(len(y)) >= 96
    (row,) = fit_keys(x, y, is_holdout=held, estimator=settings(name, params=params))
    assert row["status"] == "trained", row["reason"]
    seed = key_seed(7, key_id(("one",)))
    known = [LABELS.names[code] for code in range(labels)]
    first, last = plain(seed), plain(seed)
    codes = y.astype(int)
    probabilities = first.fit(x[~held], codes[~held]).predict_proba(x[held])
    assert row["metrics"]["log_loss"] == pytest.approx(log_loss(codes[held], probabilities), abs=1e-9)
    assert row["metrics"]["accuracy"] == accuracy_score(codes[held], first.predict(x[held]))
    found = loaded(row).predict(x)
    np.testing.assert_allclose(found[:, :labels], last.fit(x, codes).predict_proba(x), atol=1e-9)
    assert (found[:, labels:] == 0).all()
    assert known == [LABELS.names[code] for code in sorted(set(codes))]


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("name", PLAIN)
def test_the_importance_of_features_and_the_log_loss_of_training_rows_are_told(name: str, labels: int) -> None:
    params, plain = PLAIN[name]
    x, y = a_world(labels=labels)
    held = np.arange(len(y)) >= 96
    (row,) = fit_keys(x, y, is_holdout=held, estimator=settings(name, params=params))
    model = plain(key_seed(7, key_id(("one",)))).fit(x[~held], y[~held].astype(int))
    expected = log_loss(y[~held], model.predict_proba(x[~held]))
    assert row["train_metrics"] == pytest.approx({"train_log_loss": expected}, abs=1e-9)
    if name == "hist_gradient_boosting":
        assert row["importance"] is None
        return
    assert sum(row["importance"].values()) == pytest.approx(1.0)
    assert row["importance"]["a"] > 0.6
    if name == "logistic":
        fitted = plain(key_seed(7, key_id(("one",)))).fit(x, y.astype(int))
        sizes = np.abs(fitted[-1].coef_).mean(axis=0)
        assert row["importance"]["a"] == pytest.approx(sizes[0] / sizes.sum(), abs=1e-9)


def test_a_users_classifier_is_fitted_as_it_is() -> None:
    x, y = a_world()
    x = x.fillna(0.0)
    (row,) = fit_keys(x, y, estimator=settings(None, ExtraTreesClassifier(n_estimators=5, random_state=3)))
    plain = ExtraTreesClassifier(n_estimators=5, random_state=3, n_jobs=1).fit(x, y)
    np.testing.assert_allclose(loaded(row).predict(x)[:, :3], plain.predict_proba(x), atol=1e-12)


def test_the_prior_says_the_shares_of_the_labels_and_is_the_baseline_of_every_family() -> None:
    x, y = a_world()
    held = np.arange(len(y)) >= 96
    prior, other = (
        fit_keys(x, y, is_holdout=held, estimator=settings(name), refit=False)[0] for name in ("prior", "logistic")
    )
    shares = np.bincount(y[~held].astype(int), minlength=4) / 96
    np.testing.assert_allclose(loaded(prior).predict(x[:1])[0], shares, atol=1e-12)
    assert without_confusion(prior["metrics"]) == pytest.approx(prior["baseline_metrics"])
    assert other["baseline_metrics"] == prior["baseline_metrics"]
    assert other["metrics"]["log_loss"] < prior["metrics"]["log_loss"]


@pytest.mark.parametrize("rule", ["balanced", {"late": 5.0}])
@pytest.mark.parametrize("name", ["logistic", "random_forest"])
def test_class_weights_are_those_of_scikit_learn(name: str, rule: Any) -> None:
    params, plain = PLAIN[name]
    x, y = a_world()
    y = np.where((y == 2) & (np.arange(len(y)) % 3 > 0), 0.0, y)
    (row,) = fit_keys(x, y, estimator=settings(name, params=params, class_weight=rule))
    model = plain(key_seed(7, key_id(("one",))))
    given = "balanced" if rule == "balanced" else {0: 1.0, 1: 5.0, 2: 1.0}
    if name == "random_forest":
        weight = {c: len(y) / (3 * (y == c).sum()) for c in range(3)} if given == "balanced" else given
        each = np.array([weight[c] for c in y.astype(int)])
        model.fit(x, y.astype(int), randomforestclassifier__sample_weight=each)
    else:
        model[-1].set_params(class_weight=given)
        model.fit(x, y.astype(int))
    np.testing.assert_allclose(loaded(row).predict(x)[:, :3], model.predict_proba(x), atol=1e-9)
    assert row["params"]["class_weight"] == str(rule)


def test_a_key_of_one_label_has_a_model_that_says_it_and_a_status_of_its_own() -> None:
    x, _ = a_world(30)
    for name in (*PLAIN, "prior"):
        (row,) = fit_keys(x, np.full(30, 2.0), estimator=settings(name))
        assert row["status"] == "one_class"
        assert row["reason"] == "all its rows have the label 'lost': its model says nothing else"
        assert loaded(row).predict(x).tolist() == [[0.0, 0.0, 1.0, 0.0]] * 30


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("xgboost", {**TREES, "early_stopping_rounds": 2}),
        ("gradient_boosting", {"n_estimators": 5, "n_iter_no_change": 2}),
        ("hist_gradient_boosting", {"max_iter": 5, "early_stopping": True}),
    ],
)
@pytest.mark.parametrize("at", [0, 10, 19])
def test_a_label_of_one_row_stops_neither_a_fit_nor_early_stopping(name: str, params: dict[str, Any], at: int) -> None:
    x, _ = a_world(20)
    y = np.where(np.arange(20) == at, 1.0, 0.0)
    (row,) = fit_keys(x, y, is_holdout=np.arange(20) >= 16, estimator=settings(name, params=params))
    assert row["status"] == "trained", row["reason"]
    assert np.isfinite(row["metrics"]["log_loss"])
    if name != "xgboost":
        assert row["params"]["early_stopping"] == "off: a label has 1 row"


def test_a_users_classifier_stops_early_only_where_the_rows_that_are_not_watched_have_all_labels() -> None:
    x, y = a_world(40, labels=2)
    stopping = XGBClassifier(n_estimators=9, early_stopping_rounds=2)
    (row,) = fit_keys(x, y, estimator=settings(None, stopping))
    assert "best_iteration" in row["params"]
    (row,) = fit_keys(x, np.where(np.arange(40) == 39, 1.0, 0.0), estimator=settings(None, stopping))
    assert row["status"] == "trained", row["reason"]
    assert "best_iteration" not in row["params"]


def test_a_measured_model_of_one_label_is_measured_and_the_refitted_one_knows_both() -> None:
    x, _ = a_world(40)
    y = np.where(np.arange(40) >= 38, 1.0, 0.0)
    (row,) = fit_keys(x, y, is_holdout=np.arange(40) >= 32, estimator=settings("xgboost", params=TREES))
    assert row["status"] == "trained"
    assert row["metrics"]["accuracy"] == 0.75
    assert row["metrics"]["log_loss"] == pytest.approx(-2 / 8 * np.log(np.finfo(float).eps), abs=1e-9)
    assert (loaded(row).predict(x)[:, :2] > 0).all()


def test_text_features_and_rows_that_a_model_refuses_are_as_in_a_regression() -> None:
    x, y = a_world()
    x["color"] = np.where(y == 1, "red", "blue")
    for name in ("logistic", "hist_gradient_boosting", "xgboost"):
        (row,) = fit_keys(x, y, estimator=settings(name), text=("color",))
        assert loaded(row).predict(x).argmax(axis=1).tolist().count(1) >= 0.9 * (y == 1).sum()
    (row,) = fit_keys(x[["a", "b"]], y, estimator=settings("random_forest"))
    given = x[["a", "b"]].assign(a=[np.inf, *x["a"][1:]])
    found = loaded(row).predict(given)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()


def test_the_metrics_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    for labels in (2, 4):
        y, weight = rng.integers(0, labels, 60), rng.uniform(0.5, 2.0, 60)
        matrix = rng.dirichlet(np.ones(labels), 60).round(2) + 1e-3
        matrix /= matrix.sum(axis=1, keepdims=True)
        for each in (None, weight):
            found = class_metrics(y.astype(float), matrix, LABELS.names[:labels], each)
            predicted, score = matrix.argmax(axis=1), matrix[:, 1] if labels == 2 else matrix
            expected = {
                "log_loss": log_loss(y, matrix, sample_weight=each),
                "accuracy": accuracy_score(y, predicted, sample_weight=each),
                "f1": f1_score(y, predicted, average="macro", sample_weight=each),
                "auc": roc_auc_score(y, score, multi_class="ovr", sample_weight=None if labels == 4 else each),
            }
            if labels == 4 and each is not None:
                one = [roc_auc_score(y == c, matrix[:, c], sample_weight=each) for c in range(4)]
                expected["auc"] = np.mean(one)
            assert without_confusion(found) == pytest.approx(expected, abs=1e-12)
            assert sum(confusion_of(found).values()) == 60


def test_rows_of_one_label_have_no_auc() -> None:
    assert auc(np.zeros(3, dtype=int), np.ones((3, 2)), np.ones(3)) is None
    assert class_metrics(np.empty(0), np.empty((0, 2)), ["a", "b"]) == {}


def test_confusion_counts_keep_any_label_apart() -> None:
    names = ['a", "b', "a", 'b"', "", "é|>,"]
    codes = np.arange(5.0)
    found = confusion_of(class_metrics(codes, np.roll(np.eye(5), 1, axis=1), names))
    assert found == {(names[code], names[(code + 1) % 5]): 1 for code in range(5)}


TEXTS = st.lists(st.text(max_size=3), min_size=1, max_size=5, unique=True)


@given(TEXTS, TEXTS)
def test_aligning_moves_each_probability_under_its_own_label(own: list[str], other: list[str]) -> None:
    to = union([Labels(tuple(own)), Labels(tuple(other))])
    assert to is not None
    matrix = np.arange(1.0, len(own) + 1)[None, :]
    found = dict(zip(to.names, aligned(matrix, Labels(tuple(own)), to)[0], strict=True))
    assert found == {name: float(own.index(name) + 1) if name in own else 0.0 for name in to.names}
    assert set(to.names) == {*own, *other}


def test_the_order_of_labels_is_that_of_numbers_of_the_alphabet_or_of_bins() -> None:
    assert ordered(["10", "9", "-1"], "integer").names == ("-1", "9", "10")
    assert ordered(["b", "B", "a"], "text").names == ("B", "a", "b")
    assert ordered(["high", "low"], "text", ["low", "high"]).names == ("low", "high")


def test_families_that_cannot_classify_are_refused_by_name() -> None:
    (said,) = check_settings(settings("ridge"), FEATURES)
    assert said.startswith("estimator.name 'ridge' fits numbers, and the task is classification; take one of ")
    (said,) = check_settings(EstimatorSettings(name="logistic"), FEATURES)
    assert said.startswith("estimator.name 'logistic' fits classes: say `task: classification`")
    (said,) = check_settings(settings("xgboost", params={"objective": "reg:squarederror"}), FEATURES)
    assert "decide the objective" in said
    from sklearn.svm import LinearSVC

    (said,) = check_settings(settings(None, LinearSVC()), FEATURES)
    assert said.endswith("gives a LinearSVC without predict_proba; it must have fit and predict_proba")
    for name, (params, _) in PLAIN.items():
        assert check_settings(settings(name, params=params, labels=Labels(())), FEATURES) == []
    assert check_settings(settings("prior", params={"x": 1}), FEATURES) != []


class Seconds:
    """A regressor whose prediction is the mean of what it was fitted to."""

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> Seconds:
        self.mean_ = float(y.mean())
        return self

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return np.full(len(x), self.mean_)


def test_a_transformed_target_is_fitted_as_logarithm_and_measured_in_its_own_units() -> None:
    x, _ = a_world(10)
    y = np.array([0.0, 9.0] * 5)
    estimator = EstimatorSettings(object=Seconds(), transform="log1p")
    (row,) = fit_keys(x, y, is_holdout=np.arange(10) >= 8, estimator=estimator)
    middle = np.sqrt(10.0) - 1
    assert row["metrics"]["mae"] == pytest.approx((middle + 9 - middle) / 2)
    assert row["baseline_metrics"]["mae"] == 4.5
    assert loaded(row).predict(x) == pytest.approx(np.full(10, middle))
    assert row["params"]["target_transform"] == "log1p"
    assert row["format"] == 3


@pytest.mark.parametrize("name", ["ridge", "xgboost", "random_forest", "median"])
def test_a_transformed_target_of_each_kind_of_family_is_that_of_a_plain_loop(name: str) -> None:
    x, _ = a_world()
    y = np.exp(x["a"].to_numpy())
    estimator = EstimatorSettings(name=name, transform="log1p")
    plain = fit_keys(x, np.log1p(y), estimator=EstimatorSettings(name=name))[0]
    (row,) = fit_keys(x, y, estimator=estimator)
    np.testing.assert_allclose(loaded(row).predict(x), np.expm1(loaded(plain).predict(x)), rtol=1e-12)


def test_a_target_without_a_logarithm_is_a_failed_key_that_says_so() -> None:
    x, _ = a_world(10)
    (row,) = fit_keys(x, np.full(10, -1.0), estimator=EstimatorSettings(name="ridge", transform="log1p"))
    assert row["status"] == "failed"
    assert "10 of 10 targets are -1 or less and have no logarithm" in row["reason"]
