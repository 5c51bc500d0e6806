"""Overrides on Spark: each key is trained, stored and scored by the first rule that is true for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import group_models
from group_models.errors import SpecError
from group_models.ports import SparkSession
from tests import worlds

TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)
RULES: list[dict[str, Any]] = [
    {"where": "carrier = 'UA' and stop = 2", "exclude": True},
    {"where": "carrier = 'UA'", "estimator": {"name": "xgboost", "params": {"n_estimators": 3}} },
    {"where": "stop is null", "estimator": "random_forest", "features": ["a", "b"]},
]  # fmt: skip


def told(spark: SparkSession, spec: dict[str, Any], **how: Any) -> dict[Any, dict[str, Any]]:
    run = group_models.train(spec, spark=spark, **how)
    rows = group_models.show(spec, run_id=run.run_id)
    return {(row["level"], *row["key"].values()): row for row in rows}


@pytest.mark.spark
def test_each_key_is_trained_and_scored_by_its_rule_and_a_changed_rule_trains_its_keys_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whole and salted keys and a parent that the rule's columns decide; keys of no rule are as without any."""
    changes = {"levels": [["carrier"]], "limits": {"min_rows": worlds.MIN_ROWS, "max_key_rows": 70,
                                                   "max_parent_rows": 10_000}}  # fmt: skip
    source = worlds.spark_rows(spark, TABLE, 3)
    spec = worlds.spec(source, tmp_path / "a", **changes, overrides=RULES)
    rows = told(spark, spec)
    estimators = {key: row["estimator"] for key, row in rows.items()}
    own = "carrier,stop"
    assert (estimators[own, "UA", "1"], rows[own, "UA", "1"]["policy"]) == ("xgboost", "salted")
    assert (estimators["carrier", "UA"], estimators[own, "null", None]) == ("xgboost", "random_forest")
    assert (rows[own, "UA", "2"]["status"], rows[own, "UA", "2"]["serves"]) == ("deferred", "parent")
    plain = told(spark, worlds.spec(source, tmp_path / "b", **changes))
    untouched = [key for key in plain if key[1] != "UA" and key != (own, "null", None)]
    names = ("status", "sha256", "metrics", "spec_fingerprint")
    assert {key: [rows[key][n] for n in names] for key in untouched} == {
        key: [plain[key][n] for n in names] for key in untouched
    }
    scored = group_models.score(FRAME, spec)
    is_known = (FRAME["carrier"] == "null") & FRAME["stop"].isna()
    assert scored.loc[is_known, "prediction"].notna().all()
    assert (scored["score_status"] != "model_failed").all()
    other = [*RULES[:2], {**RULES[2], "params": {}, "estimator": "median"}]
    again = told(spark, spec | {"overrides": other})
    trained = {key for key, row in again.items() if row["status"] == "trained"}
    assert trained == {(own, "null", None)}


@pytest.mark.spark
def test_a_rule_reads_key_columns_only(spark: SparkSession, tmp_path: Path) -> None:
    spec = worlds.spec(worlds.spark_rows(spark, TABLE, 1), tmp_path, overrides=[{"where": "a > 1", "exclude": True}])
    with pytest.raises(SpecError, match=r"overrides\.0\.where 'a > 1'.*a SQL predicate on the key columns"):
        group_models.plan(spec, spark=spark)
