"""Keys that learn what their parent gets wrong: one unit on a laptop, beside a plain loop over the keys."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from group_models.adapters import spark_train
from group_models.artifacts import digest, load_model, pooled_row, write_model
from group_models.errors import ModelError
from group_models.estimators.base import EstimatorSettings, features_of
from group_models.estimators.children import PARENT, ChildPredictor
from group_models.estimators.contributions import OF_PARENT
from group_models.estimators.mixing import mixing_weight
from group_models.fitting import pooled
from group_models.fitting.measures import TRAIN_MEDIAN
from group_models.fitting.outcomes import FitSettings, PoolSettings
from group_models.fitting.pooled import fit_pooled_unit
from group_models.fitting.references import ModelRow, links
from group_models.fitting.units import fit_unit
from group_models.mlmodel import MlmodelTemplate

KINDS = {"a": "numeric", "b": "numeric"}
PARTS = 3
ALPHA, HALF = 5.0, 50.0


def world(sizes: tuple[int, ...] = (120, 60, 20), *, noise: float = 0.3, seed: int = 1) -> pd.DataFrame:
    """Return rows of keys with a slope in common and a level and a slope of their own; a third is in each part."""
    rng = np.random.default_rng(seed)
    key = np.repeat(np.arange(len(sizes)), sizes)
    rows = len(key)
    a, b = rng.normal(size=(2, rows))
    b[rng.random(rows) < 0.1] = np.nan
    y = 2 * a + 3 * (key - 1) + key * np.nan_to_num(b) + noise * rng.normal(size=rows)
    frame = pd.DataFrame(
        {"key_index": key.astype(np.int32), "time_us": rng.permutation(rows), "f0": a, "f1": b, "y": y}
    )
    frame["row_hash"] = rng.permutation(rows)
    frame["parent_part"] = pd.array(rng.integers(0, PARTS, rows), dtype="Int32")
    return frame.assign(is_holdout=frame["time_us"] >= 0.75 * rows)


def settings_of(parent: Any, child: EstimatorSettings | None = None, **changes: Any) -> FitSettings:
    features = features_of(KINDS)

    def template(flavor: Any) -> MlmodelTemplate:
        return MlmodelTemplate.build(model_set="c.s.m", run_id="r1", estimator="e", flavor=flavor, features=features)

    estimator = EstimatorSettings(name=parent) if isinstance(parent, str) else EstimatorSettings(object=parent)
    pooling = PoolSettings(
        child or EstimatorSettings("ridge", {"alpha": ALPHA}, metric="mae"), HALF, template("pooled")
    )
    values = {
        "model_set": "c.s.m", "run_id": "r1", "features": KINDS, "estimator": estimator,
        "template": template("sklearn"),
        "refit": True, "seed": 7, "max_model_bytes": 10**6, "holdout_by": "time", "holdout_share": 0.25,
        "holdout_from_us": 150, "pooling": pooling,
    }  # fmt: skip
    return FitSettings(**{**values, **changes})


def keys_of(frame: pd.DataFrame, parent_ix: Mapping[int, int | None] | None = None) -> pd.DataFrame:
    index = np.arange(int(frame["key_index"].max()) + 1)
    of = parent_ix or {}
    parents = pd.array([of.get(int(i), 0) for i in index], dtype="Int32")
    return pd.DataFrame(
        {"key_index": index, "key_id": [f"k{i}" for i in index], "key": "{}", "unit": 0, "parent_ix": parents}
    )


def part_rows(frame: pd.DataFrame, settings: FitSettings) -> list[dict[str, Any]]:
    """Return the store rows of the parts of the one parent of all rows."""
    rows = []
    for part in range(PARTS):
        own = frame[frame["parent_part"] == part].assign(key_index=0)
        references = pd.DataFrame(
            {"key_index": [0], "key_id": ["all"], "key": "{}", "unit": 0, "part": [part], "n_parts": PARTS}
        )
        rows += fit_unit(own, references, settings).to_dict("records")
    return rows


def packed(rows: list[dict[str, Any]], **changes: Any) -> pd.DataFrame:
    """Return the models of parts as they travel to a unit."""
    models = []
    for row in rows:
        said = {
            "key_id": "all", "run_id": "r0", "part": row["part"], "n_parts": PARTS, "is_newer": False,
            "is_measured": TRAIN_MEDIAN in (row["baseline_metrics"] or {}), "is_final": row["part"] < PARTS,
            **{name: row[name] for name in ("format", "data_file", "sha256")}, **changes,
        }  # fmt: skip
        models.append(json.dumps(said).encode() + b"\n" + row["data"])
    return pd.DataFrame({"parent_ix": 0, "parent_model": models})


def trained(frame: pd.DataFrame, settings: FitSettings, **changes: Any) -> list[dict[str, Any]]:
    models = packed(part_rows(frame, settings))
    return fit_pooled_unit(frame, keys_of(frame), models, dataclasses.replace(settings, **changes)).to_dict("records")


def scaled_ridge() -> Any:
    return make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler(), Ridge(ALPHA))


def scaled_linear() -> Any:
    return make_pipeline(
        SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler(), LinearRegression()
    )


class Loop:
    """The same by a loop: parents without a row's part predict it, and each key's ridge takes what is left."""

    def __init__(self, frame: pd.DataFrame, make_parent: Any = scaled_linear) -> None:
        self.frame = frame.sort_values(["time_us", "row_hash"], ignore_index=True)
        self.x = self.frame[["f0", "f1"]].set_axis(list(KINDS), axis=1)
        held = self.frame["is_holdout"].to_numpy()
        part = self.frame["parent_part"].to_numpy(int)
        self.measured, self.final = (
            [make_parent().fit(self.x[rows & (part == p)], self.frame["y"][rows & (part == p)]) for p in range(PARTS)]
            for rows in (~held, np.ones_like(held))
        )
        self.before = np.where(held, self.mean(self.measured), self.out_of_part(self.measured, part))
        self.after = self.out_of_part(self.final, part)

    def mean(self, models: Any) -> np.ndarray:
        return np.mean([model.predict(self.x) for model in models], axis=0)

    def out_of_part(self, models: Any, part: np.ndarray) -> np.ndarray:
        found = np.array([model.predict(self.x) for model in models])
        return np.array([np.delete(found[:, i], part[i]).mean() for i in range(len(part))])

    def child(self, rows: np.ndarray, parent: np.ndarray, others: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Return what a child of these rows predicts for others, whose parent's prediction is `given`."""
        y = self.frame["y"].to_numpy()
        weight = rows.sum() / (rows.sum() + HALF)
        x, wrong = self.x[rows].assign(p=parent[rows]), y[rows] - parent[rows]
        model = scaled_ridge().fit(x, wrong)
        shift = np.median(wrong - model.predict(x))
        return given[others] + weight * (model.predict(self.x[others].assign(p=given[others])) + shift)


def test_a_childs_metrics_and_model_are_those_of_a_plain_loop():
    frame, settings = world(), settings_of("linear")
    rows, loop = trained(frame, settings), Loop(frame)
    held, index = loop.frame["is_holdout"].to_numpy(), loop.frame["key_index"].to_numpy()
    served = loop.mean(loop.final)
    for key, row in enumerate(rows):
        own = index == key
        assert (row["status"], row["rows_used"], row["holdout_rows"]) == ("trained", own.sum(), (own & held).sum())
        expected = loop.child(own & ~held, loop.before, own & held, loop.before)
        error = np.abs(expected - loop.frame["y"].to_numpy()[own & held])
        assert row["metrics"]["mae"] == pytest.approx(error.mean(), rel=1e-9)
        model = load_model(row["data"], format=row["format"], data_file=row["data_file"], sha256=row["sha256"])
        found = model.predict(loop.x[own].assign(**{PARENT: served[own]}))
        np.testing.assert_allclose(found, loop.child(own, loop.after, own, served), rtol=0, atol=1e-9)
        assert {"pooling", "weight", "parent_key_id", "parent_run_id"} <= set(row["params"])
        assert (row["params"]["parent_key_id"], row["params"]["parent_run_id"]) == ("all", "r0")


def test_fitted_one_by_one_children_are_the_same_as_all_at_once(monkeypatch: pytest.MonkeyPatch):
    frame, settings = world(), settings_of("linear")
    together = trained(frame, settings)
    monkeypatch.setattr("group_models.fitting.units._fit_together", lambda *_: {})
    for one, other in zip(together, trained(frame, settings), strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-9)
        x = pd.DataFrame({"a": [1.0, np.nan], "b": [0.5, -2.0], PARENT: [3.0, 4.0]})
        models = [load_model(r["data"], format=r["format"], data_file=r["data_file"]) for r in (one, other)]
        np.testing.assert_allclose(*[model.predict(x) for model in models], rtol=1e-9)


@tries(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_order_in_which_rows_and_models_come_does_not_matter(seed: int):
    frame, settings = world((40, 30)), settings_of("linear")
    models = packed(part_rows(frame, settings))
    rng = np.random.default_rng(seed)
    mixed = frame.iloc[rng.permutation(len(frame))], models.iloc[rng.permutation(len(models))]
    one, other = (
        fit_pooled_unit(rows, keys_of(frame), parts, settings)["data"].tolist()
        for rows, parts in ((frame, models), mixed)
    )
    assert one == other


def test_a_child_learns_nothing_from_rows_that_its_parent_has_seen():
    """The targets are noise, and a tree without limits knows each row that it has seen: in-sample nothing is left."""
    frame = world((400,), noise=0.0)
    frame["y"] = np.random.default_rng(3).normal(size=len(frame))
    settings = settings_of(DecisionTreeRegressor(random_state=0))
    models = part_rows(frame, settings)
    (row,) = fit_pooled_unit(frame, keys_of(frame), packed(models), settings).to_dict("records")
    held = frame["is_holdout"]
    median = np.abs(frame["y"][held] - frame["y"][~held].median()).mean()
    assert row["baseline_metrics"]["mae"] == pytest.approx(median)
    # What the parent says of noise is noise: the child takes most of it back, and is no better than the median.
    assert 0.95 * median < row["metrics"]["mae"] < 1.15 * median
    leaking = [{**each, "part": (each["part"] + 1) % PARTS + PARTS * (each["part"] >= PARTS)} for each in models]
    (cheated,) = fit_pooled_unit(frame, keys_of(frame), packed(leaking), settings).to_dict("records")
    child = load_model(cheated["data"], format=cheated["format"], data_file=cheated["data_file"]).predictor
    honest = load_model(row["data"], format=row["format"], data_file=row["data_file"]).predictor
    slopes = [each.own.vectors[3][-1] / each.own.vectors[2][-1] for each in (honest, child)]
    assert slopes[0] < -0.8
    assert slopes[1] > slopes[0] + 0.2


def test_a_holdout_that_the_parents_may_have_seen_is_predicted_out_of_part():
    frame, settings = world((60, 60)), settings_of(DecisionTreeRegressor(random_state=0))
    parts = [{**row, "part": row["part"]} for row in part_rows(frame, settings)]
    # The models of all rows stand for those of an earlier run with a later holdout.
    seen = [row for row in parts if row["part"] < PARTS]
    clean, newer = (
        fit_pooled_unit(frame, keys_of(frame), packed(seen, is_measured=True, is_newer=is_newer), settings)
        for is_newer in (False, True)
    )
    assert all(one["mae"] < other["mae"] for one, other in zip(clean["metrics"], newer["metrics"], strict=True))


def test_a_key_without_a_parent_is_trained_alone_and_says_so():
    frame, settings = world(), settings_of("linear")
    models = packed(part_rows(frame, settings))
    rows = fit_pooled_unit(frame, keys_of(frame, {1: None}), models, settings).to_dict("records")
    alone = fit_unit(frame[frame["key_index"] == 1], keys_of(frame)[1:2], settings).to_dict("records")[0]
    assert [row["key_id"] for row in rows] == ["k0", "k1", "k2"]
    assert (rows[1]["data"], rows[1]["metrics"], rows[1]["reason"]) == (alone["data"], alone["metrics"], pooled.ALONE)
    assert "parent_key_id" not in rows[1]["params"]
    assert [row["data_file"] for row in rows] == ["child.bin", "linear.bin", "child.bin"]


def test_without_any_parent_a_unit_has_no_models():
    frame, settings = world((40,)), settings_of("linear")
    (row,) = fit_pooled_unit(frame, keys_of(frame, {0: None}), pd.DataFrame(), settings).to_dict("records")
    assert (row["status"], row["reason"]) == ("trained", pooled.ALONE)


@pytest.mark.parametrize("holdout", ["none", "all", "no"])
def test_a_key_that_is_not_measured_builds_on_the_models_that_serve(holdout: str):
    frame = world((60, 50))
    own = frame["key_index"] == 1
    if holdout == "none":
        frame["is_holdout"] = False
    else:
        frame.loc[own, "is_holdout"] = holdout == "all"
    settings = settings_of("linear", holdout_by="none" if holdout == "none" else "time")
    row = trained(frame, settings)[1]
    assert row["metrics"] is None
    loop = Loop(frame)
    mine = loop.frame["key_index"].to_numpy() == 1
    served = loop.mean(loop.final)
    model = load_model(row["data"], format=row["format"], data_file=row["data_file"])
    found = model.predict(loop.x[mine].assign(**{PARENT: served[mine]}))
    np.testing.assert_allclose(found, loop.child(mine, loop.after, mine, served), rtol=0, atol=1e-9)


def test_a_parent_that_cannot_be_read_fails_its_children_by_name_and_no_other_key():
    frame, settings = world(), settings_of("linear")
    models = packed(part_rows(frame, settings), sha256="0")
    rows = fit_pooled_unit(frame, keys_of(frame, {0: None}), models, settings).to_dict("records")
    assert [row["status"] for row in rows] == ["trained", "failed", "failed"]
    assert "of the parent all of run r0 is altered" in rows[1]["reason"]


class Deadly:
    """A model that ends the process when it predicts."""

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> Deadly:
        return self

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        os._exit(3)


def test_isolated_a_parent_that_kills_whoever_asks_it_costs_its_children_alone():
    frame, settings = world((40, 30)), settings_of(Deadly(), is_isolated=True)
    models = packed(part_rows(frame, dataclasses.replace(settings, pooling=None)))
    plain = dataclasses.replace(settings, estimator=EstimatorSettings("linear"))
    rows = fit_pooled_unit(frame, keys_of(frame, {1: None}), models, plain).to_dict("records")
    assert [row["status"] for row in rows] == ["crashed", "trained"]
    assert rows[0]["reason"].endswith("(predicting by its parent)")


@pytest.mark.parametrize("name", ["xgboost", "median", "random_forest"])
def test_what_a_key_adds_may_be_any_named_family(name: str):
    frame = world((80, 60))
    params = {"n_estimators": 5} if name != "median" else {}
    rows = trained(frame, settings_of("linear", EstimatorSettings(name, params)))
    assert [row["status"] for row in rows] == ["trained", "trained"]
    model = load_model(rows[0]["data"], format=rows[0]["format"], data_file=rows[0]["data_file"])
    assert isinstance(model.predictor, ChildPredictor)
    x = pd.DataFrame({"a": [0.0, 1.0], "b": [1.0, np.nan], PARENT: [1.0, 2.0]})
    assert np.isfinite(model.predict(x)).all()


def best_mixture(metric: str, wrong: np.ndarray, apart: np.ndarray) -> float:
    """Return the weight by trying: which of many is wrong by least."""
    tried = np.linspace(0, 1, 2001)
    errors = wrong[None, :] - tried[:, None] * apart[None, :]
    return float(tried[np.argmin(np.abs(errors).sum(axis=1) if metric == "mae" else (errors**2).sum(axis=1))])


@tries(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["mae", "rmse"]), st.integers(1, 30))
def test_no_other_weight_mixes_two_models_better(seed: int, metric: Any, rows: int):
    rng = np.random.default_rng(seed)
    apart = rng.normal(size=rows)
    wrong = rng.uniform(-0.5, 1.5) * apart + rng.normal(size=rows) * rng.uniform(0, 2)
    found, tried = mixing_weight(metric, wrong, apart), best_mixture(metric, wrong, apart)
    power = 1 if metric == "mae" else 2
    losses = [float((np.abs(wrong - weight * apart) ** power).sum()) for weight in (found, tried)]
    assert 0 <= found <= 1
    assert losses[0] <= losses[1] + 1e-9


@pytest.mark.parametrize("metric", ["mae", "rmse"])
def test_a_mixture_is_that_of_a_plain_loop(metric: Any):
    frame, settings = world((120, 60, 8)), settings_of("linear")
    is_small = frame["key_index"] == 2
    frame["is_holdout"] = np.where(is_small, is_small.cumsum() <= 2, frame["is_holdout"])
    mixed = dataclasses.replace(
        settings.pooling, estimator=EstimatorSettings("linear", metric=metric), is_residual=False
    )
    rows, loop = trained(frame, settings, pooling=mixed), Loop(frame)
    held, index = loop.frame["is_holdout"].to_numpy(), loop.frame["key_index"].to_numpy()
    y, served = loop.frame["y"].to_numpy(), loop.mean(loop.final)
    for key, row in enumerate(rows):
        own = np.flatnonzero(index == key)
        train, test = own[~held[own]], own[held[own]]
        watched = max(5, round(0.2 * len(train)))
        weight = 1.0
        if len(train) - watched >= 5:
            first, last = train[:-watched], train[-watched:]
            apart = scaled_linear().fit(loop.x.iloc[first], y[first]).predict(loop.x.iloc[last]) - loop.before[last]
            weight = mixing_weight(metric, y[last] - loop.before[last], apart)
        weights = [n / (n + HALF) * weight for n in (len(train), len(own))]
        found = scaled_linear().fit(loop.x.iloc[train], y[train]).predict(loop.x.iloc[test])
        error = np.abs(weights[0] * found + (1 - weights[0]) * loop.before[test] - y[test])
        assert row["metrics"]["mae"] == pytest.approx(error.mean(), rel=1e-9)
        final = scaled_linear().fit(loop.x.iloc[own], y[own]).predict(loop.x.iloc[own])
        model = load_model(row["data"], format=row["format"], data_file=row["data_file"])
        np.testing.assert_allclose(
            model.predict(loop.x.iloc[own].assign(**{PARENT: served[own]})),
            weights[1] * final + (1 - weights[1]) * served[own],
            rtol=0,
            atol=1e-9,
        )
        assert row["params"]["pooling"] == "shrink"


def test_a_key_that_its_parent_knows_better_is_left_to_it():
    """All keys are one line: a tree of one key's rows is further from it than a line through all."""
    frame = world((200, 200))
    frame["y"] = 2 * frame["f0"] + 0.05 * np.random.default_rng(5).normal(size=len(frame))
    settings = settings_of("linear")
    tree = EstimatorSettings(object=DecisionTreeRegressor(random_state=0), metric="mae")
    mixed = dataclasses.replace(settings.pooling, estimator=tree, is_residual=False)
    rows = trained(frame, settings, pooling=mixed)
    assert [float(row["params"]["weight"]) < 0.1 for row in rows] == [True, True]


def test_a_child_and_its_parent_are_one_model_of_raw_columns(tmp_path):
    frame, settings = world(), settings_of("linear")
    row = trained(frame, settings)[0]
    final = next(each for each in part_rows(frame, settings) if each["part"] == 0)
    parent = {**final, "run_id": "r0"}
    one = pooled_row({**row, "run_id": "r1"}, parent)
    x = pd.DataFrame({"a": [0.5, -1.0], "b": [np.nan, 2.0]})
    model = load_model(one["data"], format=one["format"], data_file=one["data_file"], sha256=one["sha256"])
    above = load_model(parent["data"], format=2, data_file=parent["data_file"]).predict(x)
    child = load_model(row["data"], format=2, data_file=row["data_file"])
    np.testing.assert_array_equal(model.predict(x), child.predict(x.assign(**{PARENT: above})))
    write_model(tmp_path / "model", one["mlmodel"], one["data"], one["data_file"])
    mlflow = pytest.importorskip("mlflow")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    assert model.predictor.dump() == one["data"]


def test_an_altered_parent_is_named_before_anything_is_read():
    frame, settings = world((40,)), settings_of("linear")
    row = {**trained(frame, settings)[0], "run_id": "r1"}
    parent = {"key_id": "all", "run_id": "r0", "data": b"x", "sha256": digest(b"y"), "data_file": "linear.bin"}
    with pytest.raises(ModelError, match="key all of run r0 is altered"):
        pooled_row(row, parent)


def test_children_are_compared_with_their_parent_as_other_keys_are():
    frame, settings = world(), settings_of("linear")
    rows = part_rows(frame, settings)
    seen_nothing = [
        ModelRow("parent", 0, r["part"], 0, r["format"], r["data_file"], r["sha256"], r["data"]).pack()
        for r in rows
        if TRAIN_MEDIAN in (r["baseline_metrics"] or {})
    ]
    keys = keys_of(frame, {1: None}).assign(links=links(0, 0))
    found = fit_pooled_unit(frame, keys, packed(rows), settings, seen_nothing).to_dict("records")
    loop = Loop(frame)
    held, index = loop.frame["is_holdout"].to_numpy(), loop.frame["key_index"].to_numpy()
    for key, row in enumerate(found):
        own = held & (index == key)
        expected = np.abs(loop.before[own] - loop.frame["y"].to_numpy()[own]).mean()
        assert row["baseline_metrics"]["parent_mae"] == pytest.approx(expected, rel=1e-9)
        assert row["baseline_metrics"]["global_mae"] == row["baseline_metrics"]["parent_mae"]


def test_what_spark_unites_for_a_unit_is_told_apart():
    """Rows, keys, models that keys are compared with and models that they build on come in one frame, in any order."""
    frame, settings = world(), settings_of("linear")
    rows = part_rows(frame, settings)
    keys = (
        keys_of(frame, {1: None})
        .assign(plan_unit=0, part=-1, n_parts=1, model=links(0, 0), override=np.nan)
        .drop(columns="unit")
    )
    row = next(r for r in rows if TRAIN_MEDIAN in (r["baseline_metrics"] or {}))
    seen_nothing = ModelRow("parent", 0, 0, 0, row["format"], row["data_file"], row["sha256"], row["data"]).pack()
    compared = pd.DataFrame({"key_index": [0], "model": [seen_nothing]})
    mixed = pd.concat([packed(rows), compared, frame, keys], ignore_index=True)
    mixed = mixed.iloc[np.random.default_rng(2).permutation(len(mixed))].assign(unit=5)
    found = spark_train._fit(mixed, settings)
    references = keys_of(frame, {1: None}).assign(links=links(0, 0), part=-1, n_parts=1)
    expected = fit_pooled_unit(frame, references, packed(rows), settings, [seen_nothing])
    for name in ("key_id", "status", "data", "metrics", "baseline_metrics", "reason"):
        assert found[name].tolist() == expected[name].tolist(), name


@pytest.mark.parametrize("child", [None, EstimatorSettings("xgboost", {"n_estimators": 20}, metric="mae")])
@pytest.mark.parametrize("importance", ["auto", "permutation"])
def test_the_importance_of_a_child_has_its_parents_prediction_beside_the_features(child: Any, importance: str):
    frame, settings = world(), settings_of("ridge", child, importance=importance, intervals=(0.5,))
    for row in trained(frame, settings):
        assert set(row["importance"]) == {"a", "b", OF_PARENT}
        assert sum(row["importance"].values()) == pytest.approx(1.0)
        if importance == "auto" or row["key_id"] == "k0":  # of the few held rows of the others shuffles tell little
            # The slope in common is what the parent knows of.
            assert row["importance"][OF_PARENT] > row["importance"]["a"]
        assert row["train_metrics"]["train_mae"] > 0.0
        assert set(row["interval"]) == {"0.5"}
