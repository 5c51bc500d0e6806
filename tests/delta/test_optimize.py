"""OPTIMIZE of a run's own tables while the run writes them: files change under it, rows do not."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import group_models
from group_models.adapters.spark_tables import SparkTables
from group_models.ports import SparkSession
from group_models.tables import MANIFEST, PLAN, RELEASE, RUN, STORE
from tests.deltas import new_schema

WRITTEN = (STORE, PLAN, RUN, STORE, MANIFEST, RELEASE)
"""What a run writes; the store, which its waves read and write, twice as often."""

CARRIERS = [f"c{place}" for place in range(4)]


@contextlib.contextmanager
def optimized(spark: SparkSession, schema: str, counted: Counter[str], failed: list[str]) -> Iterator[None]:
    """Compact every table of a schema, over and over until the block ends; count what that replaced."""
    is_done = threading.Event()

    def compact(name: str) -> None:
        metrics = spark.sql(f"OPTIMIZE {schema}.{name}").collect()[0]["metrics"]
        counted.update({f"OPTIMIZE of {name}": 1, f"files of {name} replaced": metrics["numFilesRemoved"]})

    def run() -> None:
        while not is_done.is_set():
            for table in WRITTEN:
                try:
                    compact(table.name)
                except Exception as error:  # noqa: BLE001 - of a thread it would be lost
                    failed.append(f"{table.name}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def test_h5_a_run_whose_tables_are_optimized_meanwhile_loses_nothing_and_ends_well(
    spark: SparkSession, tmp_path: Path, counted: Counter[str]
):
    """A wave for each key, each of which reads the store and appends to it."""
    schema, file = new_schema(spark, "spark_catalog"), tmp_path / "rows.parquet"
    tables = SparkTables(schema, session=lambda: spark)
    tables.check()
    spec = {
        "model_set": f"{schema}.eta", "source": {"path": str(file)}, "keys": ["carrier"], "target": "y",
        "features": ["x"], "estimator": {"name": "linear"}, "holdout": {"by": "none"}, "limits": {"min_rows": 1},
        "compute": {"slots": 2, "wave_s": 1e-6}, "warehouse": "delta",
    }  # fmt: skip
    rows = [(carrier, float(i), 2.0 * i) for carrier in CARRIERS for i in range(10)]
    pd.DataFrame(rows, columns=["carrier", "x", "y"]).to_parquet(file)
    failed: list[str] = []
    with optimized(spark, schema, counted, failed):
        run = group_models.train(spec, spark=spark)
    assert (run.counts, run.refusal) == ({"trained": len(CARRIERS)}, None)
    for table in (PLAN, STORE, MANIFEST):
        found = tables.read(table, columns=["key_id"])["key_id"]
        assert len(found) == len(found.unique()) == len(CARRIERS)
    assert [row["event"] for row in tables.read(RUN).to_pylist()].count("finished") == 1
    assert tables.read(RELEASE).num_rows == 1
    scored = group_models.score(spark.read.parquet(str(file)), spec).toPandas()
    assert scored["prediction"].tolist() == pytest.approx((2 * scored["x"]).tolist())
    assert failed == []
    assert counted[f"files of {STORE.name} replaced"] > 0
    spark.sql(f"DROP SCHEMA {schema} CASCADE")
