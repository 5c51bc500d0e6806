"""The contract of every place for tables, kept by Delta tables on classic and on Connect sessions."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterator

import pytest

from group_models.adapters.spark_tables import SparkTables
from group_models.ports import SparkSession
from tests.contract import test_tables as contract

_ELSEWHERE = ("test_arrow_and_spark_read_what_spark_wrote",)  # about Parquet files that another engine wrote


@pytest.fixture
def tables(any_spark: SparkSession) -> Iterator[SparkTables]:
    schema = f"s{uuid.uuid4().hex[:8]}"
    any_spark.sql(f"CREATE SCHEMA spark_catalog.{schema}")
    yield SparkTables(f"spark_catalog.{schema}", session=lambda: any_spark)
    any_spark.sql(f"DROP SCHEMA spark_catalog.{schema} CASCADE")


for _name, _test in vars(contract).items():
    if _name.startswith("test_") and _name not in _ELSEWHERE and "tables" in inspect.signature(_test).parameters:
        globals()[_name] = _test
TestEveryTable = contract.TestEveryTable
