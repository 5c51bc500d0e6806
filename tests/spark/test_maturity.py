"""Windows, label delays, weights and rules on Spark: what a run trains is what a source without those rows gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import group_models
from group_models.ports import SparkSession
from tests import worlds

TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)
WINDOW, DELAY = pd.Timedelta(days=120), pd.Timedelta(hours=200)
COMPARED = ("status", "usable_rows", "rows_used", "holdout_rows", "metrics", "baseline_metrics", "sha256", "n_parts")


def told(spark: SparkSession, spec: dict[str, Any]) -> dict[Any, dict[str, Any]]:
    run = group_models.train(spec, spark=spark, release=False)
    rows = group_models.show(spec, run_id=run.run_id)
    return {(row["level"], *row["key"].values()): row for row in rows}


def compared(rows: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {key: {name: row[name] for name in COMPARED} for key, row in rows.items() if row["status"] == "trained"}


@pytest.mark.spark
def test_a_window_and_a_delay_give_the_models_of_a_source_without_the_rows_they_leave_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whole and salted keys and the parent of all alike; the rows left out are counted, key by key."""
    labelled = FRAME[FRAME["y"].abs() < float("inf")]
    until = labelled["at"].max() - DELAY
    is_old, is_immature = labelled["at"] <= until - WINDOW, labelled["at"] > until
    kept = labelled[~is_old & ~is_immature]
    limits = {"limits": {"min_rows": worlds.MIN_ROWS, "max_key_rows": 60, "max_parent_rows": 10_000}, "levels": [[]]}
    asked = {"window_days": WINDOW / pd.Timedelta(days=1), "label_delay_hours": DELAY / pd.Timedelta(hours=1)}
    rows = told(spark, worlds.spec(worlds.spark_rows(spark, TABLE, 3), tmp_path / "a", **limits, **asked))
    source = pa.Table.from_pandas(kept, schema=worlds.SCHEMA, preserve_index=False)
    expected = told(spark, worlds.spec(worlds.spark_rows(spark, source, 2), tmp_path / "b", **limits))
    assert compared(rows) == compared(expected)
    assert {row["n_parts"] for row in compared(rows).values()} >= {1, 2}
    whole = rows["global",]
    assert (whole["old_rows"], whole["immature_rows"]) == (is_old.sum(), is_immature.sum())
    assert whole["rows"] == len(FRAME)
    small = rows["carrier,stop", "old", "9"]
    old = is_old[(labelled["carrier"] == "old") & (labelled["stop"] == 9)].sum()
    left = worlds.SIZES["old", 9] - old
    assert (small["status"], small["usable_rows"], small["old_rows"]) == ("too_small", left, old)
    assert small["reason"] == f"{left} usable rows; min_rows is 20; left out: {old} rows before the window"


@pytest.mark.spark
@pytest.mark.slow
def test_weights_of_one_give_the_metrics_of_no_weights_and_rows_without_a_weight_are_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The same for whole and salted keys: rows that have no weight count as left out and are in no model."""
    source = FRAME.assign(w=1.0)
    bad = (source["a"] > 1.0).to_numpy()
    wrong = pd.Series([None, float("nan"), 0.0, -1.0, float("inf")] * len(source))
    source.loc[bad, "w"] = wrong[: bad.sum()].to_numpy()
    limits = {"limits": {"min_rows": worlds.MIN_ROWS, "max_key_rows": 60}}
    schema = worlds.SCHEMA.append(pa.field("w", pa.float64()))
    weighted = pa.Table.from_pandas(source, schema=schema, preserve_index=False)
    kept = pa.Table.from_pandas(FRAME[~bad], schema=worlds.SCHEMA, preserve_index=False)
    spec = worlds.spec(worlds.spark_rows(spark, weighted, 3), tmp_path / "a", **limits, sample_weight="w")
    rows = told(spark, spec | {"estimator": "median", "holdout": {"by": "time"}})
    expected = told(spark, worlds.spec(worlds.spark_rows(spark, kept, 2), tmp_path / "b", **limits, estimator="median"))
    names = ("status", "usable_rows", "holdout_rows")
    assert {key: [row[name] for name in names] for key, row in rows.items()} == {
        key: [row[name] for name in names] for key, row in expected.items()
    }
    whole = {key for key, row in expected.items() if row["n_parts"] == 1}
    assert whole
    for key in whole:
        assert (rows[key]["metrics"] or {}) == pytest.approx(expected[key]["metrics"] or {}, rel=1e-9)
    labelled = FRAME["y"].abs() < float("inf")
    assert sum(row["unweighted_rows"] for row in rows.values()) == (labelled & bad).sum()
