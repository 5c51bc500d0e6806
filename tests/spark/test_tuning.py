"""Tuning on Spark: the same trials however the rows are partitioned, each a row of the trials table, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import group_models
from group_models import api
from group_models.keys import texts_id
from group_models.loading import load_spec
from group_models.ports import SparkSession
from group_models.tables import STORE, TRIALS, WHOLE
from tests import worlds

TABLE = worlds.rows()
SPACE = {"alpha": {"low": 1e-3, "high": 1e3, "log": True}}
TUNE = {"space": SPACE, "trials": 4, "min_rows": 40, "min_fold_rows": 8}
ASKED = {"estimator": {"name": "ridge", "params": {"alpha": 1e4}}, "tune": TUNE, "levels": [[]]}


def tuned(spark: SparkSession, path: Path, partitions: int, **changes: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    """Train and return the run's tables, its manifest rows by key id, and its trials without their seconds."""
    spec = worlds.spec(worlds.spark_rows(spark, TABLE, partitions), path, **ASKED | changes)
    run = group_models.train(spec, spark=spark, release=False)
    tables = api.open_tables(load_spec(spec))
    trials = [{name: value for name, value in row.items() if name not in ("seconds", "run_id")}
              for row in tables.read(TRIALS, where={"run_id": [run.run_id]}).to_pylist()]  # fmt: skip
    rows = {row["key_id"]: row for row in group_models.show(spec, run_id=run.run_id) if row["status"] == "trained"}
    return tables, rows, sorted(trials, key=lambda row: (row["key_id"], row["part"], row["trial"]))


def test_trials_are_the_same_whatever_the_partitions_and_stand_there_once(spark: SparkSession, tmp_path: Path):
    tables, rows, trials = tuned(spark, tmp_path / "a", 1)
    large = {
        row["key_id"] for row in rows.values() if "tuned" in row["params"] and (row["metrics"] or {}).get("cv_mae")
    }
    assert texts_id({}, {"carrier": "string", "stop": "integer"}) in large, "the model of all rows"
    assert len(large) >= 3
    assert {(row["key_id"], row["part"]) for row in trials} == {(key_id, WHOLE) for key_id in large}
    assert len(trials) == 5 * len(large)
    small = [row for row in rows.values() if row["key_id"] not in large]
    assert small
    assert all(row["params"]["tuned"].startswith("as the spec says: ") for row in small)
    for key_id in large:
        of_key = [row for row in trials if row["key_id"] == key_id]
        params = [dict(row["params"]).get("alpha", "10000.0") for row in of_key]
        assert rows[key_id]["params"]["alpha"] in params
    run_id = next(iter(rows.values()))["run_id"]
    written, stored = (set(tables.numbers(t, model_set=worlds.MODEL_SET, owner=run_id)) for t in (TRIALS, STORE))
    assert written <= stored
    _, again, same = tuned(spark, tmp_path / "b", 5, compute={"slots": 7})
    assert same == trials
    assert {key_id: again[key_id]["sha256"] for key_id in again} == {key_id: rows[key_id]["sha256"] for key_id in rows}


@pytest.mark.slow
def test_parts_of_a_salted_key_are_tuned_on_their_own_on_folds_by_hash(either_spark: SparkSession, tmp_path: Path):
    limits, tune = {"min_rows": 20, "max_key_rows": 60}, {**TUNE, "min_rows": 20, "min_fold_rows": 2}
    changes = {"time_column": None, "levels": [], "limits": limits, "tune": tune}
    _, rows, trials = tuned(either_spark, tmp_path, 2, **changes)
    salted = {row["key_id"] for row in rows.values() if row["policy"] == "salted"}
    assert salted
    assert {row["part"] for row in trials if row["key_id"] in salted} >= {0, 1}
    assert all(row["part"] == -1 for row in trials if row["key_id"] not in salted)
