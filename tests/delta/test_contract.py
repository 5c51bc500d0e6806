"""The contract of every place for tables, kept by Delta tables on classic and on Connect sessions."""

from __future__ import annotations

import pytest

from group_models.ports import SparkSession
from tests.deltas import Schemas, WatchedTables, contract_tests


@pytest.fixture(scope="session")
def schemas() -> Schemas:
    return Schemas("spark_catalog")


@pytest.fixture
def tables(any_spark: SparkSession, schemas: Schemas, request: pytest.FixtureRequest) -> WatchedTables:
    return schemas.tables_for(request.node.originalname, any_spark)


globals().update(contract_tests())
