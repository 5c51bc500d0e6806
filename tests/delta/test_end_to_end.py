"""Plan, train, release and score with the tables in a catalog, on classic and on Connect sessions."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import group_models
from group_models.errors import StateError
from group_models.ports import SparkSession


def rows(count: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"carrier": rng.choice(["AA", "UA"], count), "x": rng.normal(size=count)})
    return frame.assign(y=3 * frame["x"] + (frame["carrier"] == "UA"))


def test_a_night_is_trained_released_scored_and_found_unchanged(any_spark: SparkSession, tmp_path: Path):
    schema, file = f"s{uuid.uuid4().hex[:8]}", tmp_path / "rows.parquet"
    rows().to_parquet(file)
    spec = {
        "model_set": f"spark_catalog.{schema}.eta", "source": {"path": str(file)}, "keys": ["carrier"], "target": "y",
        "features": ["x"], "estimator": {"name": "linear"}, "warehouse": "delta",
    }  # fmt: skip
    with pytest.raises(StateError, match=rf"{schema}.*CREATE SCHEMA"):
        group_models.train(spec, spark=any_spark)
    any_spark.sql(f"CREATE SCHEMA spark_catalog.{schema}")
    run = group_models.train(spec, spark=any_spark)
    assert dict(run.counts) == {"trained": 2}
    scored = group_models.score(any_spark.read.parquet(str(file)), spec).toPandas()
    np.testing.assert_allclose(scored["prediction"], scored["y"], atol=1e-9)
    assert set(scored["score_status"]) == {"scored"}
    assert dict(group_models.train(spec, spark=any_spark).counts) == {"unchanged": 2}
    any_spark.sql(f"DROP SCHEMA spark_catalog.{schema} CASCADE")
