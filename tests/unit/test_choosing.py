"""Candidates: folds of the training rows choose a key's estimator, the simplest of those they cannot tell apart."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression

from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, features_of
from group_models.fitting.folds import choose, hash_folds, time_folds
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.parts import PART_COLUMNS, judge_parts
from group_models.fitting.units import fit_unit
from group_models.loading import load_spec
from group_models.mlmodel import MlmodelTemplate
from group_models.spec import Candidates

FEATURES = {"a": "numeric", "b": "numeric"}
ROWS, HELD = 80, 60


def test_each_fold_in_time_is_validated_on_by_earlier_rows_alone():
    times = np.repeat(np.arange(40), 2)
    folds = time_folds(times, 3, min_rows=5)
    assert len(folds) == 3
    for fit, validate in folds:
        assert times[fit].max() < times[validate].min()
    assert np.concatenate([validate for _, validate in folds]).tolist() == list(range(20, 80))
    gapped = time_folds(times, 3, min_rows=5, gap_us=4)
    assert all(times[fit].max() < times[validate].min() - 4 for fit, validate in gapped)


@pytest.mark.parametrize("times", [np.arange(30), np.zeros(400, dtype=np.int64), np.arange(3)])
def test_a_key_of_which_a_fold_has_too_few_rows_has_none(times):
    assert time_folds(times, 3, min_rows=10) == []


def test_folds_by_hash_hold_each_row_once():
    fold = np.array([0, 2, 1, 1, 0, 2])
    folds = hash_folds(fold, min_rows=2)
    assert sorted(np.concatenate([validate for _, validate in folds]).tolist()) == list(range(6))
    assert all(set(fit).isdisjoint(validate) and len(fit) + len(validate) == 6 for fit, validate in folds)
    assert hash_folds(fold, min_rows=3) == []
    assert hash_folds(np.zeros(50, dtype=np.int64), min_rows=2) == []


@pytest.mark.parametrize(
    ("errors", "place"),
    [
        ([[2.0, 2.2], [1.0, 1.2]], 1),  # the best is better by far
        ([[1.05, 1.25], [1.0, 1.2]], 0),  # within a standard error (0.1) of the best: the simpler
        ([[1.0, 1.2], [1.0, 1.2]], 0),  # alike: the simpler
        ([[np.nan, np.nan], [5.0, 5.2], [9.0, 9.1]], 1),  # one that failed is none
        ([[1.0, np.inf], [5.0, 5.2]], 1),
    ],
)
def test_the_simplest_within_one_standard_error_of_the_best_is_chosen(errors, place):
    chosen = choose(errors)
    assert chosen is not None
    assert chosen.place == place


def test_nothing_is_chosen_where_all_failed():
    assert choose([[np.nan, 1.0], [np.inf, 1.0]]) is None


def settings(names: list[Any], **changes: Any) -> FitSettings:
    def of(name: Any) -> FitSettings:
        estimator = EstimatorSettings(name) if isinstance(name, str) else EstimatorSettings(object=name)
        template = MlmodelTemplate.build(
            model_set="c.s.m", run_id="r1", estimator=str(name), flavor="sklearn", features=features_of(FEATURES)
        )
        shared = {"refit": True, "max_model_bytes": 10**6, "holdout_by": "time", "holdout_share": 0.2}
        more = {**shared, "holdout_from_us": HELD, "folds": 3, "min_fold_rows": 10, **changes}
        return FitSettings("c.s.m", "r1", FEATURES, estimator, template, seed=7, **more)  # type: ignore[arg-type]

    first, *others = map(of, names)
    return dataclasses.replace(first, alternatives=tuple(others))


def world(key_index: int, slope: float, *, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng([seed, key_index])
    at = np.arange(ROWS)
    a, b = rng.normal(size=(2, ROWS))
    return pd.DataFrame(
        {"key_index": key_index, "time_us": at, "row_hash": at * 31 % 101, "is_holdout": at >= HELD,
         "y": slope * a + rng.normal(size=ROWS), "f0": a, "f1": b}
    )  # fmt: skip


def keys_of(count: int) -> pd.DataFrame:
    return pd.DataFrame({"key_index": range(count), "key_id": [f"k{i}" for i in range(count)], "key": "{}", "unit": 0})


WORLD = pd.concat([world(0, 5.0), world(1, 0.0), world(2, 2.0)])


def loop(rows: pd.DataFrame) -> tuple[str, list[float]]:
    """Choose by a plain loop over folds: median or least squares, by mean absolute error."""
    train = rows[~rows["is_holdout"]].sort_values("time_us")
    edges = np.linspace(0, len(train), 5).astype(int)
    errors: dict[str, list[float]] = {"median": [], "linear": []}
    for start, end in itertools.pairwise(edges[1:]):
        seen, new = train.iloc[:start], train.iloc[start:end]
        for name, model in (("median", DummyRegressor(strategy="median")), ("linear", LinearRegression())):
            model.fit(seen[["f0", "f1"]], seen["y"])
            errors[name].append(float(np.abs(model.predict(new[["f0", "f1"]]) - new["y"]).mean()))
    means = {name: float(np.mean(each)) for name, each in errors.items()}
    best = min(means, key=means.__getitem__)
    bound = means[best] + np.std(errors[best], ddof=1) / np.sqrt(3)
    return next(name for name in errors if means[name] <= bound), list(means.values())


def test_the_choice_is_that_of_a_plain_loop_whatever_the_order_of_rows():
    rows = fit_unit(WORLD, keys_of(3), settings(["median", "linear"])).to_dict("records")
    mixed = fit_unit(WORLD.sample(frac=1, random_state=3), keys_of(3), settings(["median", "linear"]))
    assert [row["estimator"] for row in rows] == ["linear", "median", "linear"]
    for row, shuffled, (_, own) in zip(rows, mixed.to_dict("records"), WORLD.groupby("key_index"), strict=True):
        name, means = loop(own)
        assert row["estimator"] == name
        assert row["metrics"]["cv_mae"] == pytest.approx(means[["median", "linear"].index(name)], rel=1e-9)
        assert (row["sha256"], row["params"]) == (shuffled["sha256"], shuffled["params"])
    assert rows[0]["params"]["candidates"].endswith("(best, chosen)")


def test_what_is_chosen_is_what_that_estimator_alone_would_be():
    rows = fit_unit(WORLD, keys_of(3), settings(["median", "linear"])).to_dict("records")
    for name in ("median", "linear"):
        alone = fit_unit(WORLD, keys_of(3), settings([name])).to_dict("records")
        for row, other in zip(rows, alone, strict=True):
            if row["estimator"] == name:
                assert row["sha256"] == other["sha256"]
                assert row["baseline_metrics"] == pytest.approx(other["baseline_metrics"])
                own = {each: row["metrics"][each] for each in other["metrics"]}
                assert own == pytest.approx(other["metrics"])


def test_the_holdout_never_changes_a_choice():
    """Targets and features of held rows that would turn it are in no fold."""
    names = ["median", "linear", "random_forest"]
    poisoned = WORLD.copy()
    poisoned.loc[poisoned["is_holdout"], ["y", "f0", "f1"]] = [1e6, -1e6, 1e3]
    clean, poison = (fit_unit(each, keys_of(3), settings(names, refit=False)) for each in (WORLD, poisoned))
    assert clean["params"].tolist() == poison["params"].tolist()
    assert clean["sha256"].tolist() == poison["sha256"].tolist()


def test_a_key_with_few_rows_gets_the_first_and_says_so():
    told = settings(["linear", "random_forest"], min_fold_rows=16)
    (row,) = fit_unit(world(0, 5.0), keys_of(1), told).to_dict("records")
    assert row["estimator"] == "linear"
    assert row["params"]["candidates"] == "the first: 60 rows are too few for 3 folds of 16"
    assert "cv_mae" not in row["metrics"]


class Broken:
    """An estimator that cannot be fitted."""

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> "Broken":
        raise ZeroDivisionError("it was told to")

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return np.zeros(len(x))


def test_a_candidate_that_fails_is_none_and_where_all_fail_the_key_does():
    (row,) = fit_unit(world(0, 5.0), keys_of(1), settings([Broken(), "linear"])).to_dict("records")
    assert (row["status"], row["estimator"]) == ("trained", "linear")
    assert "failed (ZeroDivisionError)" in row["params"]["candidates"]
    (all_fail,) = fit_unit(world(0, 5.0), keys_of(1), settings([Broken(), Broken()])).to_dict("records")
    assert (all_fail["status"], all_fail["error_type"]) == ("failed", "ZeroDivisionError")


def test_without_a_time_column_folds_are_by_hash():
    timeless = WORLD.assign(time_us=0, fold=np.arange(len(WORLD)) % 3)
    told = settings(["median", "linear"], holdout_by="hash", is_in_time=False)
    rows = fit_unit(timeless, keys_of(3), told).to_dict("records")
    assert [row["estimator"] for row in rows] == ["linear", "median", "linear"]


def test_folds_are_fitted_and_measured_by_weights():
    """Every other row follows `a`, and the rest nothing; by weight almost all do, or almost none."""
    is_noise = np.arange(ROWS) % 2 == 1
    rows = world(0, 5.0)
    rows["y"] = np.where(is_noise, 50 * np.sin(np.arange(ROWS) * 7.0), rows["y"])
    names = ["median", "linear"]
    chosen = [
        fit_unit(rows.assign(w=np.where(is_noise, noise, 1.0)), keys_of(1), settings(names))["estimator"][0]
        for noise in (1e-6, 1e3)
    ]
    assert chosen == ["linear", "median"]


BASE = {
    "model_set": "c.s.m", "source": {"path": "x"}, "keys": ["k"], "target": "y", "features": ["a", "b"],
    "estimator": "median",
}  # fmt: skip


def test_a_list_stands_for_candidates_and_they_are_in_the_fingerprint():
    spec = load_spec({**BASE, "candidates": ["ridge", {"name": "xgboost", "params": {"max_depth": 3}}]})
    assert isinstance(spec.candidates, Candidates)
    assert [each.name for each in spec.others] == ["ridge", "xgboost"]
    plain = load_spec(BASE)
    assert "candidates" not in plain.to_json()
    assert spec.fingerprint({}) != plain.fingerprint({})
    ruled = load_spec({**BASE, "candidates": ["ridge"], "overrides": [
        {"where": "k = 'a'", "estimator": "linear"}, {"where": "k = 'b'", "features": ["a"]},
    ]})  # fmt: skip
    assert (ruled.overridden(0).others, len(ruled.overridden(1).others)) == ((), 1)


@pytest.mark.parametrize(("given", "said"), [([], "at least"), ({"estimators": ["ridge"], "folds": 1}, "folds")])
def test_candidates_that_are_none_are_refused(given, said):
    with pytest.raises(SpecError, match=said):
        load_spec({**BASE, "candidates": given})


def test_in_a_child_process_the_choice_is_the_same():
    names = ["median", "linear"]
    here, apart = (
        fit_unit(WORLD, keys_of(3), settings(names, is_isolated=isolated)).to_dict("records")
        for isolated in (False, True)
    )
    for row, other in zip(here, apart, strict=True):
        assert [row[n] for n in ("estimator", "params", "sha256")] == [
            other[n] for n in ("estimator", "params", "sha256")
        ]


def test_parts_of_a_key_choose_on_their_own_and_say_so_together():
    parts = pd.DataFrame(
        {"key_index": [0, 1], "key_id": "k0", "key": "{}", "unit": [0, 1], "part": [0, 1], "n_parts": 2}
    )  # fmt: skip
    told = settings(["median", "linear"])
    rows = fit_unit(pd.concat([world(0, 0.0), world(1, 5.0)]), parts, told).to_dict("records")
    assert {(row["part"], row["estimator"]) for row in rows} == {
        (0, "median"), (2, "median"), (1, "linear"), (3, "linear"),
    }  # fmt: skip
    planned = {"key_id": "k0", "n_parts": 2, "unit": 0}
    of_parts = [{name: row.get(name) for name in PART_COLUMNS} | {"number": 0} for row in rows]
    assert judge_parts(of_parts, planned, told).columns["estimator"] == "median + linear"
    assert judge_parts(of_parts, planned, settings(["median"])).columns["estimator"] == "median"
