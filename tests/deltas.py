"""What the tests of Delta tables share: Spark's options, whether the jars can be had, and the contract's tests."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import pyspark
import pytest

from group_models.adapters.spark_tables import SparkTables
from group_models.ports import SparkFrame, SparkSession
from group_models.tables import Table
from tests.contract import test_tables as contract

DELTA = f"io.delta:delta-spark_{'.'.join(pyspark.__version__.split('.')[:2])}_2.13:4.4.0"
OPTIONS = {
    "spark.jars.packages": DELTA,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
}

_ELSEWHERE = ("test_arrow_and_spark_read_what_spark_wrote",)
"""Tests of the contract that are about Parquet files which another engine wrote."""


def require_jars(options: Mapping[str, str]) -> None:
    """Skip where a Spark with these options does not start, and fail in CI."""
    if why_not := _why_no_jars(options):
        said = f"the jars of Delta cannot be had: {why_not}"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)


def _why_no_jars(options: Mapping[str, str]) -> str | None:
    """Return why a Spark with the jars does not start, or None; tried in a process of its own."""
    code = (
        "from pyspark.sql import SparkSession; "
        f"SparkSession.builder.master('local[1]').config(map={dict(options)!r})"
        ".config('spark.ui.enabled', 'false').getOrCreate().stop()"
    )
    # A classic session of its own, also where the test that asks first is one of Connect.
    around = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=around)
    return None if done.returncode == 0 else done.stderr.strip()[-500:]


def contract_tests() -> dict[str, Any]:
    """Return the tests of the contract that take `tables`, by name."""
    found: dict[str, Any] = {
        name: test
        for name, test in vars(contract).items()
        if name.startswith("test_") and name not in _ELSEWHERE and "tables" in inspect.signature(test).parameters
    }
    return found | {"TestEveryTable": contract.TestEveryTable}


class WatchedTables(SparkTables):
    """Tables that know which of them were written, and whose commits are no other test's."""

    def __init__(self, schema: str, spark: SparkSession, *, are_made: bool = False) -> None:
        super().__init__(schema, session=lambda: spark)
        self.written: set[Table] = set()
        self._is_there = self._ready = are_made
        self._test = uuid.uuid4().hex

    def _write(self, table: Table, frame: SparkFrame, app_id: str, attempt: str) -> None:
        self.written.add(table)
        # Delta keeps the ids of commits when rows are deleted.
        super()._write(table, frame, f"{self._test}/{app_id}", attempt)


class Schemas:
    """One schema per kind of session for all tests: making and checking six tables takes many seconds.

    What one test wrote is deleted before another test; tests of one name that differ in parameters share it.
    """

    def __init__(self, catalog: str) -> None:
        self.catalog = catalog
        self._latest: dict[str, tuple[str, WatchedTables]] = {}

    def tables_for(self, test: str, spark: SparkSession) -> WatchedTables:
        """Return the tables for a test, empty unless the one before had its name."""
        kind = type(spark).__module__
        name, tables = self._latest.get(kind, ("", None))
        if tables is None:
            tables = WatchedTables(new_schema(spark, self.catalog), spark)
        elif name != test:
            for table in tables.written:
                spark.sql(f"DELETE FROM {tables._name(table)}")  # noqa: S608
            tables = WatchedTables(tables.schema, spark, are_made=tables._ready)
        self._latest[kind] = (test, tables)
        return tables


def new_schema(spark: SparkSession, catalog: str) -> str:
    """Make a schema that nobody else has and return its name."""
    schema = f"{catalog}.s{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA {schema}")
    return schema
