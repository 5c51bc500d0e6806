"""The views in a catalog that has them."""

from __future__ import annotations

import pandas as pd
import pytest

import group_models
from group_models.errors import StateError
from group_models.ports import SparkSession
from tests.delta.test_end_to_end import rows
from tests.deltas import new_schema

_VIEWS = ["live", "last_outcome", "worst", "failure", "last_run"]


def test_views_are_made_and_made_again_and_show_what_serves(spark: SparkSession, tmp_path):
    schema, file = new_schema(spark, "spark_catalog"), tmp_path / "rows.parquet"
    frame = rows()
    pd.concat([frame, frame.head(3).assign(carrier="HA")]).to_parquet(file)
    spec = {
        "model_set": f"{schema}.eta", "source": {"path": str(file)}, "keys": ["carrier"], "target": "y",
        "features": ["x"], "estimator": {"name": "linear"}, "warehouse": "delta", "holdout": {"by": "hash"},
    }  # fmt: skip
    names = [f"{schema}.group_model_{name}" for name in _VIEWS]
    assert group_models.create_views(spec, spark=spark) == names
    assert spark.table(names[0]).count() == 0
    run = group_models.train(spec, spark=spark)
    assert group_models.create_views(spec, spark=spark) == names
    live = {(row["alias"], row["key"]["carrier"]): row["model_run_id"] for row in spark.table(names[0]).collect()}
    assert live == {(alias, carrier): run.run_id for alias in ("champion", "challenger") for carrier in ("AA", "UA")}
    last = {row["key"]["carrier"]: row["status"] for row in spark.table(names[1]).collect()}
    assert last == {"AA": "trained", "UA": "trained", "HA": "too_small"}
    worst = spark.table(names[2]).orderBy("place").collect()
    assert [(row["place"], row["metric"], row["error"] < 1e-9) for row in worst] == [(1, "mae", True), (2, "mae", True)]
    (newest,) = spark.table(names[4]).collect()
    assert (newest["run_id"], newest["refusal"], newest["finished_at"] is None) == (run.run_id, None, False)
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


def test_a_schema_that_is_not_there_is_told(spark: SparkSession):
    with pytest.raises(StateError, match=r"there is no schema spark_catalog\.nowhere; create it first"):
        group_models.create_views("spark_catalog.nowhere.eta", warehouse="delta", spark=spark)
