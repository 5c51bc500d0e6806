"""Spark's models are those of a plain pandas loop, whatever the estimator, the partitions, units and waves."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import group_models
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import make_family
from group_models.loading import load_spec
from group_models.ports import SparkSession
from tests import worlds
from tests.worlds import FITTED, SAMPLES, SIZES, Sample

AXES = (
    tuple(SAMPLES),
    (1, 7, 50),
    ("packed", "alone"),
    ("one wave", "many waves"),
    ("spark", "connect_spark"),
)
PAIRWISE = worlds.pairwise(*AXES)
REST = [case for case in itertools.product(*AXES) if case not in PAIRWISE]

TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)


def case(values: tuple[Any, ...], *marks: pytest.MarkDecorator) -> Any:
    kind = pytest.mark.connect if values[-1] == "connect_spark" else pytest.mark.spark
    return pytest.param(*values, marks=(kind, *marks), id="-".join(map(str, values)))


def waves_of(spec: dict[str, Any], *, slots: int, waves: int) -> float:
    """Return the seconds per wave with which the world's keys make so many waves."""
    estimator = EstimatorSettings(**dict(load_spec(spec).estimator))
    family = make_family(estimator, Features(tuple(spec["features"]), (), tuple(spec["features"])))
    sizes = np.array([SIZES[key] for key in FITTED])
    return float(family.predicted_seconds(sizes, len(spec["features"])).sum()) / (slots * waves)


def train(spark: SparkSession, spec: dict[str, Any]) -> tuple[dict[Any, dict[str, Any]], pd.Series]:
    """Return what a run wrote of each key, and its models' prediction per `row_id`."""
    run = group_models.train(spec, spark=spark, release=False)
    rows = {worlds.key_of(row): row for row in group_models.show(spec, run_id=run.run_id)}
    scored = group_models.score(FRAME, spec, run_id=run.run_id)
    assert scored["row_id"].tolist() == FRAME["row_id"].tolist()
    return rows, scored.set_index("row_id")["prediction"]


def check_equal(
    rows: dict[Any, dict[str, Any]],
    predictions: pd.Series,
    sample: Sample,
    is_holdout: pd.Series | None,
    *,
    refit: bool = True,
) -> None:
    expected = worlds.loop(FRAME, sample, is_holdout=is_holdout, refit=refit)
    assert set(expected) == set(FITTED)
    assert set(rows) == set(SIZES)
    wanted = worlds.predictions(FRAME, expected, sample)
    assert wanted.notna().sum() == sum(SIZES[key] + 1 for key in FITTED)
    pd.testing.assert_series_equal(predictions, wanted, check_names=False, rtol=0, atol=1e-9)
    assert rows["AA", 1]["status"] == "too_small"
    for key, model in expected.items():
        row = rows[key]
        assert (row["status"], row["serves"], row["error_message"]) == ("trained", "new", None), key
        assert (row["rows_used"], row["holdout_rows"]) == (model.rows_used, model.holdout_rows), key
        for name in ("metrics", "baseline_metrics"):
            assert row[name] == rounded(getattr(model, name)), (key, name)


def rounded(metrics: dict[str, float] | None) -> Any:
    """Return metrics such that they are equal to others within 1e-9."""
    return metrics if metrics is None else pytest.approx(metrics, rel=1e-9, abs=1e-9)


def check_case(spark: SparkSession, path: Path, estimator: str, partitions: int, units: str, waves: str) -> None:
    sample = SAMPLES[estimator]
    slots = len(FITTED) if units == "alone" else 2
    spec = worlds.spec(worlds.spark_rows(spark, TABLE, partitions), path, estimator=sample.estimator)
    seconds = waves_of(spec, slots=slots, waves=2) if waves == "many waves" else 600.0
    rows, predictions = train(spark, spec | {"compute": {"slots": slots, "wave_s": seconds}})
    fitted = [row for row in rows.values() if row["status"] == "trained"]
    assert (len({row["unit"] for row in fitted}) == len(FITTED)) == (units == "alone")
    assert (len({row["wave"] for row in fitted}) > 1) == (waves == "many waves")
    check_equal(rows, predictions, sample, worlds.time_holdout(FRAME))


def test_the_pairwise_cases_have_each_value_beside_each_other_value():
    for first, second in itertools.combinations(range(len(AXES)), 2):
        together = {(case[first], case[second]) for case in PAIRWISE}
        assert together == set(itertools.product(AXES[first], AXES[second]))
    assert len(PAIRWISE) < 30


def test_the_world_has_keys_with_a_holdout_without_one_and_with_nothing_else():
    held = worlds.loop(FRAME, SAMPLES["median"], is_holdout=worlds.time_holdout(FRAME))
    assert held["old", 9].holdout_rows == 0
    assert held["new", 9].holdout_rows == SIZES["new", 9]
    assert all(0 < held[key].holdout_rows < SIZES[key] for key in FITTED if key[0] not in ("old", "new"))


@pytest.mark.parametrize(("estimator", "partitions", "units", "waves", "kind"), [case(values) for values in PAIRWISE])
def test_models_equal_those_of_the_loop(
    request: pytest.FixtureRequest, tmp_path: Path, estimator: str, partitions: int, units: str, waves: str, kind: str
):
    check_case(request.getfixturevalue(kind), tmp_path, estimator, partitions, units, waves)


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "partitions", "units", "waves", "kind"), [case(values) for values in REST])
def test_models_equal_those_of_the_loop_in_every_other_combination(
    request: pytest.FixtureRequest, tmp_path: Path, estimator: str, partitions: int, units: str, waves: str, kind: str
):
    check_case(request.getfixturevalue(kind), tmp_path, estimator, partitions, units, waves)


@pytest.mark.parametrize("name", list(worlds.TEXT_SAMPLES))
def test_models_with_a_text_feature_equal_those_of_the_loop(spark: SparkSession, tmp_path: Path, name: str):
    sample = worlds.TEXT_SAMPLES[name]
    spec = worlds.spec(
        worlds.spark_rows(spark, TABLE), tmp_path, estimator=sample.estimator, features=list(sample.features)
    )
    rows, predictions = train(spark, spec)
    check_equal(rows, predictions, sample, worlds.time_holdout(FRAME))


def test_models_after_early_stopping_equal_those_of_the_loop(spark: SparkSession, tmp_path: Path):
    sample = worlds.EARLY_STOPPING
    spec = worlds.spec(worlds.spark_rows(spark, TABLE), tmp_path, estimator=sample.estimator)
    rows, predictions = train(spark, spec)
    check_equal(rows, predictions, sample, worlds.time_holdout(FRAME))
    stopped = worlds.loop(FRAME, sample, is_holdout=worlds.time_holdout(FRAME), refit=False)
    for key in FITTED:
        best = stopped[key].model.best_iteration
        assert rows[key]["params"]["best_iteration"] == str(best)
        assert int(rows[key]["params"]["stopped_round"]) == min(best + 1 + 3, 60)


def test_models_that_are_not_refitted_equal_those_of_the_loop(connect_spark: SparkSession, tmp_path: Path):
    sample = SAMPLES["random_forest"]
    source = worlds.spark_rows(connect_spark, TABLE)
    rows, predictions = train(connect_spark, worlds.spec(source, tmp_path, estimator=sample.estimator, refit=False))
    check_equal(rows, predictions, sample, worlds.time_holdout(FRAME), refit=False)
    assert rows["UA", 1]["rows_used"] < SIZES["UA", 1]


def test_models_without_a_holdout_equal_those_of_the_loop_and_have_no_metrics(spark: SparkSession, tmp_path: Path):
    spec = worlds.spec(worlds.spark_rows(spark, TABLE), tmp_path, holdout={"by": "none"})
    rows, predictions = train(spark, spec)
    check_equal(rows, predictions, SAMPLES["ridge"], None)
    assert all(row["metrics"] is None and row["holdout_from"] is None for row in rows.values())


def test_models_with_a_hash_holdout_equal_those_of_the_loop(connect_spark: SparkSession, tmp_path: Path):
    source = worlds.spark_rows(connect_spark, TABLE, 7)
    spec = worlds.spec(source, tmp_path, holdout={"by": "hash", "share": 0.3})
    rows, predictions = train(connect_spark, spec)
    check_equal(rows, predictions, SAMPLES["ridge"], hash_holdout(connect_spark, share=0.3))
    assert rows["old", 9]["holdout_rows"] > 0


def hash_holdout(spark: SparkSession, *, share: float) -> pd.Series:
    """Return the flags by the definition written as SQL: each fit column with its null flag, hashed anew."""
    columns = ["y", "unix_micros(at)", "double(a)", "double(b)", "double(is_fragile)"]
    pairs = ", ".join(f"isnull({column}), {column}" for column in columns)
    flag = f"pmod(xxhash64(xxhash64({pairs}), 'holdout', {worlds.SEED}), 2147483647) < {share} * 2147483647"
    flags = spark.createDataFrame(TABLE).selectExpr("row_id", f"{flag} as flag").toPandas()
    return flags.set_index("row_id")["flag"]


def test_a_source_without_a_time_column_is_held_out_by_hash_and_says_so(spark: SparkSession, tmp_path: Path):
    source = spark.createDataFrame(TABLE.drop_columns(["at"]))
    spec = worlds.spec(source, tmp_path, time_column=None)
    assert group_models.plan(spec, spark=spark).holdout == "20% of the rows by hash (the spec has no time_column)"
