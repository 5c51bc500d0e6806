"""Training with `track` and `register`: the MLflow run, the router beside batch scoring, and the router in Spark."""

from __future__ import annotations

import datetime as dt
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.utils.autologging_utils import autologging_is_disabled
from pyspark.sql import functions as F

import group_models
from group_models.live.sets import read_releases
from group_models.loading import load_spec
from group_models.ports import SparkSession
from group_models.reporting import tracking
from group_models.serving.resolving import OUTPUTS
from group_models.targets import open_tables
from tests import worlds

TABLE = worlds.rows()
ALIKE = [name for name in OUTPUTS if name != "model_age_days"]
MIXED = (*worlds.NUMERIC, "color")


def asked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows as MLflow takes them: booleans and 64-bit integers as doubles."""
    return frame.assign(is_fragile=frame["is_fragile"].astype(float), b=frame["b"].astype(float))


def questions() -> pd.DataFrame:
    """All rows of the world, and keys that it does not have."""
    frame = worlds.pandas_rows(TABLE)
    unseen = frame.head(4).assign(carrier=["UA", "ZZ", None, "UA"], stop=pd.array([77, 1, 5, None], dtype="Int32"))
    return asked(pd.concat([frame, unseen.assign(row_id=[-1, -2, -3, -4])], ignore_index=True))


def spec(spark: SparkSession, folder: Any, uri: str, **changes: Any) -> dict[str, Any]:
    experiment = mlflow.create_experiment("nights", artifact_location=(folder / "artifacts").as_uri())
    assert experiment
    return worlds.spec(
        worlds.spark_rows(spark, TABLE), folder / "warehouse", track={"experiment": "nights", "tracking_uri": uri},
        register={}, **changes,
    )  # fmt: skip


def by_row(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_index("row_id")[ALIKE].sort_index()


@pytest.mark.parametrize("features", [worlds.NUMERIC, MIXED], ids=["numbers", "text too"])
def test_a_night_is_logged_and_registered_and_the_router_answers_as_batch_scoring(
    any_spark: SparkSession, tmp_path: Any, mlflow_db: str, features: tuple[str, ...]
):
    made = spec(any_spark, tmp_path, mlflow_db, features=list(features))
    said: list[str] = []
    run = group_models.train(made, spark=any_spark, say=said.append)
    assert run.release_id is not None
    tables = open_tables(load_spec(made))
    logged = tracking.mlflow_run_of(tables, worlds.MODEL_SET, run.run_id)
    assert f"MLflow run {logged}" in said
    measured = mlflow.get_run(logged).data.metrics
    assert measured["keys_trained"] == len(worlds.FITTED)
    assert measured["rows"] == TABLE.num_rows
    assert [row.action for row in read_releases(tables, worlds.MODEL_SET)] == ["publish", "mirror"]

    frame = questions()
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None) for name in ("carrier", "color")}
    spark_frame = any_spark.createDataFrame(
        worlds.pa.Table.from_pandas(frame.assign(**columns).drop(columns=["at", "y"]), preserve_index=False)
    )
    batch = group_models.score(spark_frame, made).toPandas()
    model = mlflow.pyfunc.load_model(f"models:/{worlds.MODEL_SET}@champion")
    answered = model.predict(frame).assign(row_id=frame["row_id"])
    pd.testing.assert_frame_equal(by_row(answered), by_row(batch), rtol=0, atol=1e-9, check_dtype=False)
    assert set(answered["score_status"]) == {"scored", "unseen_key", "no_model", "null_key"}
    assert answered["prediction"].notna().sum() == len(frame) - 4 - worlds.SIZES["AA", 1] - 1


@pytest.mark.slow
def test_a_finished_run_that_is_told_again_is_logged_where_it_was_not(
    spark: SparkSession, tmp_path: Any, mlflow_db: str
):
    made = spec(spark, tmp_path, mlflow_db)
    without = {name: value for name, value in made.items() if name not in ("track", "register")}
    run = group_models.train(without, spark=spark)
    assert mlflow.search_runs(experiment_names=["nights"]).empty
    again = group_models.train(made, spark=spark, run_id=run.run_id)
    assert again.is_repeated
    (name,) = mlflow.search_runs(experiment_names=["nights"])["tags.group_models_run"]
    assert name == run.run_id


def test_a_night_leaves_the_users_active_run_and_autologging_as_they_were(
    spark: SparkSession, tmp_path: Any, mlflow_db: str
):
    made = spec(spark, tmp_path, mlflow_db)
    mlflow.set_experiment("Default")
    mlflow.sklearn.autolog(silent=True)
    try:
        with mlflow.start_run() as own:
            group_models.train(made, spark=spark)
            assert mlflow.active_run().info.run_id == own.info.run_id
            assert not autologging_is_disabled("sklearn")
        kept = mlflow.get_run(own.info.run_id)
    finally:
        mlflow.sklearn.autolog(disable=True, silent=True)
    assert (kept.data.params, kept.data.metrics) == ({}, {})
    assert not any(name.startswith("group_models") for name in kept.data.tags)
    assert len(mlflow.search_runs(experiment_names=["nights"])) == 1


def test_a_night_after_an_alias_was_moved_back_by_hand_is_held(spark: SparkSession, tmp_path: Any, mlflow_db: str):
    made = spec(spark, tmp_path, mlflow_db)
    first = group_models.train(made, spark=spark)
    group_models.train({**made, "seed": 8, "estimator": "mean"}, spark=spark)
    client = mlflow.MlflowClient()
    assert str(client.get_model_version_by_alias(worlds.MODEL_SET, "champion").version) == "2"
    client.set_registered_model_alias(worlds.MODEL_SET, "champion", "1")
    third = group_models.train({**made, "estimator": "median"}, spark=spark)
    assert third.release_id is None
    assert "champion was moved to version 1" in (third.refusal or "")
    scored = group_models.score(worlds.pandas_rows(TABLE), made)
    assert set(scored["model_run_id"].dropna()) == {first.run_id}
    assert str(client.get_model_version_by_alias(worlds.MODEL_SET, "champion").version) == "1"


def test_the_router_is_a_spark_udf(spark: SparkSession, tmp_path: Any, mlflow_db: str):
    made = spec(spark, tmp_path, mlflow_db)
    group_models.train(made, spark=spark)
    frame = worlds.spark_rows(spark, TABLE).withColumn("is_fragile", F.col("is_fragile").cast("double"))
    frame = frame.withColumn("b", F.col("b").cast("double"))
    udf = mlflow.pyfunc.spark_udf(
        spark, f"models:/{worlds.MODEL_SET}@champion", env_manager="local",
        result_type="prediction double, model_run_id string, score_status string",
    )  # fmt: skip
    columns = [*worlds.KEYS, *worlds.NUMERIC]
    out = frame.select("row_id", udf(F.struct(*columns)).alias("answer")).select("row_id", "answer.*").toPandas()
    expected = group_models.score(worlds.pandas_rows(TABLE), made).set_index("row_id")
    found = out.set_index("row_id").loc[expected.index]
    assert len(out) == TABLE.num_rows
    np.testing.assert_allclose(found["prediction"], expected["prediction"], rtol=0, atol=1e-9)
    assert found["score_status"].tolist() == expected["score_status"].tolist()


@pytest.mark.slow
def test_keys_of_dates_booleans_and_integers_pass_through_mlflow(spark: SparkSession, tmp_path: Any, mlflow_db: str):
    days = [dt.date(2026, 1, 1), dt.date(1970, 1, 2), None]
    rows = [
        (day, flag, number, float(i), float(i * (n + 1)))
        for n, (day, flag, number) in enumerate(zip(days, [True, None, False], [2**40, None, -1], strict=True))
        for i in range(25)
    ]
    frame = spark.createDataFrame(rows, "day date, is_late boolean, number bigint, x double, y double")
    made = worlds.spec(frame, tmp_path / "warehouse", features=["x"], register={}, time_column=None)
    made |= {"keys": ["day", "is_late", "number"], "estimator": "linear", "holdout": {"by": "none"}}
    mlflow.create_experiment(worlds.MODEL_SET, artifact_location=(tmp_path / "artifacts").as_uri())
    group_models.train(made, spark=spark)
    asked_rows = pd.DataFrame(
        {
            "day": pd.to_datetime(pd.Series(days)),
            "is_late": pd.Series([True, None, False], dtype=object),
            "number": pd.array([2**40, None, -1], dtype="Int64"),
            "x": [1.0, 1.0, 1.0],
        }
    )
    model = mlflow.pyfunc.load_model(f"models:/{worlds.MODEL_SET}@champion")
    assert model.predict(asked_rows)["prediction"].tolist() == pytest.approx([1.0, 2.0, 3.0])
