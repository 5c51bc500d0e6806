"""Fitting small, odd groups: one bad key among many, values that are not finite, single rows, repeated runs."""

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from xgboost import XGBRegressor

from group_models import api
from group_models.artifacts import load_model
from group_models.errors import DataError
from group_models.estimators.base import EstimatorSettings
from group_models.frames import feature_frame
from group_models.live.manifest import release_refusal
from group_models.spec import Limits
from tests.cases.worlds import ENGINES, FAULTS, GOOD, by_key, fit_keys, scored, trained, values


def test_d1_short_and_failing_keys_cost_no_other_key_its_model(fates):
    rows = by_key(api.show(fates.spec))
    assert fates.run.counts == {"trained": len(GOOD), "failed": len(FAULTS), "too_small": 2}
    assert {rows[key]["status"] for key in GOOD} == {"trained"}
    assert {key: (rows[key]["status"], rows[key]["reason"]) for key in ("one", "two")} == {
        "one": ("too_small", "1 usable rows; min_rows is 5"),
        "two": ("too_small", "2 usable rows; min_rows is 5"),
    }
    failed = rows["fit"]
    assert (failed["status"], failed["serves"]) == ("failed", "none")
    assert failed["reason"].startswith("fit: ValueError: bad")
    assert "in fit" in failed["traceback"]
    assert fates.run.release_id


def test_d1_a_run_of_which_too_many_keys_failed_is_not_released_by_itself():
    counts = {"trained": 20, "failed": 3, "too_small": 5}
    assert release_refusal(counts, Limits(max_failed_share=0.2)) is None
    assert release_refusal(counts, Limits(max_failed_keys=3)) is None
    assert release_refusal(counts, Limits(max_failed_share=0.1, max_failed_keys=2)) == (
        "3 of 23 keys failed (3 failed): over max_failed_share 10% and max_failed_keys 2"
    )


class Never(LinearRegression):
    def fit(self, x, y):
        raise RuntimeError("never")


def test_d2_a_model_that_always_fails_is_hidden_by_no_limit_and_by_no_older_model():
    keys = np.repeat(["a", "b", "c"], 10)
    x = pd.DataFrame({"x": np.arange(30.0)})
    rows = fit_keys(x, x["x"].to_numpy(), keys=keys, estimator=EstimatorSettings(object=Never()))
    assert [(row["status"], row["reason"], row["data"]) for row in rows] == [
        ("failed", "fit: RuntimeError: never", None)
    ] * 3
    limitless = Limits(max_failed_share=1.0, max_failed_keys=9)
    for others in ({}, {"too_small": 5}):
        assert release_refusal({"failed": 3, **others}, limitless) == "none of 3 keys could be trained (3 failed)"
    # Also where one poison key is all that was not unchanged: the message says why each night will end so.
    said = release_refusal({"failed": 1, "unchanged": 40}, limitless)
    assert said.startswith("none of 1 keys could be trained (1 failed); 40 unchanged keys keep their models")
    assert "Each night ends so until" in said


def picky(most):
    """An estimator that refuses more rows than that, or fewer where it is negative; a local class, taken by value."""

    class Picky(LinearRegression):
        def fit(self, X, y):
            if len(X) > most > 0 or len(X) < -most:
                raise RuntimeError("never")
            return super().fit(X, y)

    return Picky


@pytest.mark.parametrize(
    ("most", "refusal", "served_by"),
    [
        (-11, "level carrier,stop: none of 6 keys could be trained (6 failed)", "6 a parent's"),
        (15, "level carrier: none of 3 keys could be trained (3 failed)", "6 their own model"),
        (25, "level global: none of 1 keys could be trained (1 failed)", "6 their own model"),
    ],
)
def test_d2_a_level_of_which_every_model_fails_is_hidden_by_no_other(spark, tmp_path, most, refusal, served_by):
    rows = [(carrier, stop, float(i), float(i)) for carrier in "ABC" for stop in (1, 2) for i in range(10)]
    frame = spark.createDataFrame(rows, "carrier string, stop int, x double, y double")
    world = trained(
        frame, tmp_path, keys=["carrier", "stop"], levels=[["carrier"], []],
        estimator={"object": picky(most), "version": "1"},
        limits={"min_rows": 1, "max_failed_share": 1.0, "max_failed_keys": 99},
    )  # fmt: skip
    assert world.run.refusal.startswith(f"{refusal};")
    assert world.run.release_id is None
    assert world.run.facts()["keys served by"] == served_by
    shown = api.show(world.spec, run_id=world.run.run_id)
    assert {row["serves"] for row in shown if row["level"] == "carrier,stop"} == {"parent" if most < 0 else "new"}


@pytest.fixture(scope="module")
def unfinite(spark, tmp_path_factory):
    """Keys with values that are not finite, and one of a single row; xgboost, a fifth of the rows held out."""
    pytest.importorskip("xgboost")
    inf, nan = float("inf"), float("nan")
    rows = {
        "whole": [(float(i), float(i)) for i in range(10)],
        "one null": [(float(i), None if i == 0 else float(i)) for i in range(10)],
        "odd targets": [(float(i), [nan, inf, -inf][i] if i < 3 else float(i)) for i in range(10)],
        "all null": [(float(i), None) for i in range(10)],
        "inf": [(inf if i == 0 else float(i), float(i)) for i in range(10)],
        "1e39": [(1e39 if i == 0 else float(i), float(i)) for i in range(10)],
        "nan": [(nan if i < 3 else float(i), float(i)) for i in range(10)],
        "single": [(1.0, 5.0)],
    }
    given = [(carrier, *row) for carrier, of_key in rows.items() for row in of_key]
    frame = spark.createDataFrame(given, "carrier string, x double, y double")
    estimator = {"name": "xgboost", "params": {"n_estimators": 5}}
    folder = tmp_path_factory.mktemp("unfinite")
    return by_key(api.show(trained(frame, folder, estimator=estimator, holdout={"by": "hash"}).spec))


def test_d8_rows_without_a_finite_target_are_counted_and_left_out(unfinite):
    sizes = {
        key: tuple(unfinite[key][name] for name in ("status", "rows", "usable_rows", "rows_used")) for key in unfinite
    }
    assert sizes["whole"] == ("trained", 10, 10, 10)
    assert sizes["one null"] == ("trained", 10, 9, 9)
    assert sizes["odd targets"] == ("trained", 10, 7, 7)
    assert sizes["all null"] == ("no_target", 10, 0, None)
    assert unfinite["all null"]["reason"] == "none of 10 rows has a finite target"


@pytest.mark.parametrize("key", ["inf", "1e39"])
def test_d8_a_feature_that_overflows_is_named_in_the_reason(unfinite, key):
    row = unfinite[key]
    assert (row["status"], row["error_stage"]) == ("failed", "prepare")
    assert "infinite values in 'x'" in row["reason"]


@pytest.mark.parametrize("name", ["ridge", "gradient_boosting", "random_forest", "xgboost"])
def test_d8_every_family_that_cannot_take_infinity_names_the_column(name):
    x = pd.DataFrame({"weight": [np.inf, *range(1, 10)], "distance": np.arange(10.0)})
    row = fit_keys(x, np.arange(10.0), estimator=EstimatorSettings(name))[0]
    assert row["status"] == "failed"
    assert "infinite values in 'weight'" in row["reason"]


def test_d9_missing_features_are_left_to_an_estimator_that_takes_them(unfinite):
    assert (unfinite["nan"]["status"], unfinite["nan"]["rows_used"]) == ("trained", 10)
    x = pd.DataFrame({"x": [np.nan, np.nan, *range(2, 40)]})
    row = fit_keys(x, np.arange(40.0), estimator=EstimatorSettings("hist_gradient_boosting"))[0]
    assert (row["status"], row["rows_used"]) == ("trained", 40)


def test_d9_an_estimator_that_refuses_missing_features_fails_its_own_key_with_its_own_words():
    x = pd.DataFrame({"x": [np.nan, *range(1, 10), *range(10)]})
    keys = ["gap"] * 10 + ["whole"] * 10
    settings = EstimatorSettings(object=LinearRegression())
    gap, whole = fit_keys(x, x["x"].fillna(0).to_numpy(), keys=keys, estimator=settings)
    assert (gap["status"], gap["error_type"], gap["error_stage"]) == ("failed", "ValueError", "fit")
    assert "NaN" in gap["error_message"]
    assert whole["status"] == "trained"


ABC = "carrier string, row_id int, a double, b int, c int"


@pytest.mark.parametrize("engine", ENGINES)
def test_d9_rows_that_the_estimator_refuses_get_a_status_and_the_others_their_prediction(spark, lines, engine):
    rows = [
        ("A", 1, 1.0, 2, 3),
        ("A", 2, None, 2, 3),
        ("A", 3, float("nan"), 2, 3),
        ("A", 4, float("inf"), 2, 3),
        ("B", 5, 1.0, 2, 3),
    ]
    out = scored(engine, spark.createDataFrame(rows, ABC), lines.spec)
    assert values(out) == {1: pytest.approx(123), 2: None, 3: None, 4: None, 5: pytest.approx(-123)}
    assert values(out, "score_status") == dict.fromkeys([1, 5], "scored") | dict.fromkeys([2, 3, 4], "bad_input")


def test_d12_a_key_of_one_row_is_fitted_without_a_split_and_says_so(unfinite):
    row = unfinite["single"]
    assert (row["status"], row["rows"], row["rows_used"]) == ("trained", 1, 1)
    assert row["metrics"] is None
    assert row["reason"].startswith("no metrics: ")


@pytest.mark.parametrize("is_held", [True, False])
def test_d12_a_split_that_leaves_one_side_empty_is_no_split(is_held):
    x = pd.DataFrame({"x": np.arange(4.0)})
    row = fit_keys(x, np.arange(4.0), is_holdout=[is_held] * 4, estimator=EstimatorSettings("ridge"))[0]
    said = "all rows of the key fall into the holdout" if is_held else "no row of the key falls into the holdout"
    assert (row["status"], row["rows_used"], row["metrics"]) == ("trained", 4, None)
    assert row["reason"].startswith(f"no metrics: {said}")


def test_d12_keys_with_no_usable_row_are_outcomes_and_not_fits(unfinite):
    row = unfinite["all null"]
    assert (row["policy"], row["unit"], row["fit_seconds"], row["serves"]) == (None, None, None, "none")


def test_d14_the_partitions_of_the_source_do_not_change_a_model(spark, tmp_path):
    """Subsamples, seeds and the holdout are drawn alike, so that the stored bytes are the same."""
    x = F.col("id") % 97
    frame = spark.range(300).select(
        F.concat(F.lit("k"), F.col("id") % 3).alias("carrier"),
        F.col("id").alias("row_id"),
        x.cast("double").alias("x"),
        (F.col("id") * 37 % 101).cast("double").alias("z"),
        (x * 2 + F.col("id") % 7).cast("double").alias("y"),
    )
    estimator = {"name": "gradient_boosting", "params": {"n_estimators": 10, "subsample": 0.5}}
    changes = {"features": ["x", "z"], "estimator": estimator, "holdout": {"by": "hash", "share": 0.3}}
    digests, predictions, metrics = [], [], []
    for partitions in (1, 7, 50):
        world = trained(frame.repartition(partitions), tmp_path / str(partitions), **changes)
        rows = by_key(api.show(world.spec))
        assert {row["status"] for row in rows.values()} == {"trained"}
        digests.append({key: row["sha256"] for key, row in rows.items()})
        metrics.append({key: (row["holdout_rows"], row["metrics"]) for key, row in rows.items()})
        predictions.append(values(scored("pandas", frame, world.spec)))
    assert len(set(predictions[0].values())) > 50
    assert predictions[1] == predictions[2] == predictions[0]
    assert metrics[1] == metrics[2] == metrics[0]
    assert digests[1] == digests[2] == digests[0]


EARLY = {"n_estimators": 40, "max_depth": 2, "learning_rate": 0.5, "early_stopping_rounds": 3}
STOPPING = {
    "family": EstimatorSettings(name="xgboost", params=EARLY, validation_share=0.2),
    "object": EstimatorSettings(object=lambda: XGBRegressor(**EARLY), validation_share=0.2),
    "pipeline": EstimatorSettings(object=lambda: make_pipeline(SimpleImputer(), XGBRegressor(**EARLY))),
}
"""xgboost that stops early, as a named family, as an object and as the last step of one; none has an eval set."""


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("kind", STOPPING)
def test_d11_early_stopping_is_off_for_a_key_too_small_to_watch_rows_of_and_says_so(kind, rows):
    x = pd.DataFrame({"x": np.arange(float(rows))})
    held = np.arange(rows) >= rows - 1 if rows > 1 else None
    (row,) = fit_keys(x, x["x"], is_holdout=held, estimator=STOPPING[kind])
    fitted = rows - 1 if rows > 1 else rows
    assert row["status"] == "trained", row["reason"]
    assert row["params"]["early_stopping"] == f"off: {fitted} rows are too few"
    assert "best_iteration" not in row["params"]
    assert row["rows_used"] == rows


@pytest.mark.parametrize("kind", STOPPING)
def test_d11_the_last_rows_alone_decide_when_to_stop_and_the_best_round_is_stored(kind):
    x = pd.DataFrame({"x": np.arange(100.0) % 10})
    y = np.where(np.arange(100) < 80, x["x"], -100.0)
    (row,) = fit_keys(x, y, estimator=STOPPING[kind], refit=False)
    # Each round is worse on the last 20 rows; by the error on the others it would go on to the end.
    assert (row["params"]["best_iteration"], row["params"]["stopped_round"]) == ("0", "4")
    assert row["rows_used"] == 80
    (even,) = fit_keys(x, x["x"].to_numpy(), estimator=STOPPING[kind], refit=False)
    assert int(even["params"]["best_iteration"]) > 4


@pytest.mark.parametrize("kind", ["family", "object"])
def test_d11_the_refit_takes_all_rows_and_the_rounds_that_were_found(kind):
    x = pd.DataFrame({"x": np.arange(100.0) % 10})
    y = np.where(np.arange(100) < 80, x["x"], -100.0)
    (row,) = fit_keys(x, y, estimator=STOPPING[kind])
    assert (row["rows_used"], row["params"]["best_iteration"]) == (100, "0")
    native = load_model(row["data"], format=row["format"], data_file=row["data_file"]).native
    booster = native if kind == "family" else native.get_booster()
    assert booster.num_boosted_rounds() == 1


EDGES = [-np.inf, 3.0, 6.0, np.inf]


class Binned(LinearRegression):
    """An estimator that bins its feature, in training and in scoring alike."""

    def fit(self, x, y):
        return super().fit(self._codes(x), y)

    def predict(self, x):
        return super().predict(self._codes(x))

    def _codes(self, x):
        return x.assign(x=pd.cut(x["x"], EDGES, labels=False))


class Labelled(Binned):
    """One that answers with the bin itself."""

    def predict(self, x):
        return pd.cut(x["x"], EDGES)


def test_d16_a_hook_that_bins_is_the_same_in_training_and_scoring_and_bins_are_no_predictions():
    x = pd.DataFrame({"x": np.tile(np.arange(10.0), 4)})
    y = pd.cut(x["x"], EDGES, labels=False).to_numpy(dtype=float) * 2.0
    how = {"keys": ["a"] * 40, "is_holdout": np.arange(40) >= 30}
    (row,) = fit_keys(x, y, estimator=EstimatorSettings(object=Binned()), **how)
    assert row["metrics"]["mae"] == pytest.approx(0.0, abs=1e-9)
    stored = load_model(row["data"], format=row["format"], data_file=row["data_file"])
    np.testing.assert_allclose(stored.predict(x), y, atol=1e-9)
    (row,) = fit_keys(x, y, estimator=EstimatorSettings(object=Labelled()), **how)
    assert (row["status"], row["error_stage"]) == ("failed", "evaluate")


@pytest.mark.parametrize("kind", ["numeric", "text"])
def test_d16_a_column_of_bins_is_refused_by_its_name_where_it_is_scored(kind):
    binned = pd.DataFrame({"x": [1.0, 2.0], "bin": pd.cut(pd.Series([1.0, 7.0]), EDGES)})
    with pytest.raises(DataError, match="'bin' holds category values; cast it first"):
        feature_frame(binned, {"x": "numeric", "bin": kind})
    coded = binned.assign(bin=pd.cut(pd.Series([1.0, 7.0]), EDGES, labels=False))
    assert feature_frame(coded, {"x": "numeric", "bin": "numeric"})["bin"].tolist() == [0.0, 2.0]
