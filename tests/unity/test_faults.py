"""What a real Unity Catalog lacks or refuses is one sentence, before anything is trained."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

import group_models
from group_models.adapters.delta_ddl import COMMITS
from group_models.adapters.spark_tables import SparkTables
from group_models.errors import GroupModelsError, StateError
from group_models.ports import SparkSession
from group_models.tables import RELEASE, TABLES
from tests import unities
from tests.deltas import new_schema
from tests.nightly import make_source, source_versions_of, spec_of
from tests.servers import InFront
from tests.unities import NAME

secured = pytest.mark.skipif(not unities.is_secured(), reason=unities.WHY_NOT_SECURED)


def refusal(spark: SparkSession, schema: str, source: str) -> str:
    """Return what `train` says of a place for its tables that is not fit."""
    told: list[str] = []
    with pytest.raises(GroupModelsError) as caught:
        group_models.train(spec_of(schema, source={"table": source}), spark=spark, say=told.append)
    assert not [line for line in told if "wave" in line]
    return str(caught.value)


@pytest.fixture(scope="module")
def source(spark: SparkSession, catalog: str) -> str:
    return make_source(spark, new_schema(spark, catalog))


def test_a_schema_that_is_not_there(any_spark: SparkSession, source: str):
    said = refusal(any_spark, f"{NAME}.nosuch", source)
    assert said == f"there is no schema {NAME}.nosuch; create it first: `CREATE SCHEMA {NAME}.nosuch`"


def test_a_catalog_that_the_server_has_not(any_spark: SparkSession, source: str):
    said = refusal(any_spark, f"{NAME}_missing.s", source)
    assert said.startswith(f"looking for schema {NAME}_missing.s failed")
    assert f"Catalog not found: {NAME}_missing" in said
    assert "The way out: this session knows no such catalog; create it" in said


def test_a_catalog_that_the_session_does_not_know(any_spark: SparkSession, source: str):
    said = refusal(any_spark, f"{NAME}_unknown.s", source)
    assert f"{NAME}_unknown.s" in said
    assert "configure it with spark.sql.catalog.NAME" in said


def test_a_server_that_is_down(any_spark: SparkSession, source: str):
    said = refusal(any_spark, f"{NAME}_down.s", source)
    assert said.startswith(f"looking for schema {NAME}_down.s failed")
    assert "the catalog's server does not answer" in said


def test_a_catalog_without_a_managed_location(spark: SparkSession, source: str):
    unities.server().post("catalogs", {"name": f"{NAME}_bare"})
    schema = new_schema(spark, f"{NAME}_bare")
    said = refusal(spark, schema, source)
    assert said.startswith(f"making {schema}.group_model_plan failed")
    assert "no managed location" in said
    assert "`warehouse: delta:LOCATION`" in said


@secured
def test_a_token_that_the_server_does_not_know(spark: SparkSession, source: str):
    said = refusal(spark, f"{NAME}_denied.s", source)
    assert said.startswith(f"looking for schema {NAME}_denied.s failed")
    assert "set spark.sql.catalog.NAME.token" in said


@pytest.fixture(scope="module")
def owner() -> unities.Server:
    """Who owns the catalog `NAME_user` of the secured server; the session knows it by the user's token."""
    there = unities.Server(os.environ[unities.SECURED[0]], os.environ[unities.SECURED[1]])
    there.post("catalogs", {"name": f"{NAME}_user"})
    return there


def granted(owner: unities.Server, *privileges: tuple[str, str]) -> None:
    """Give the user privileges on a securable, told as kind and name."""
    for name, privilege in privileges:
        kind = ("catalog", "schema", "table")[name.count(".")]
        owner.grant(kind, name, os.environ[unities.SECURED[2]], privilege)


@secured
def test_f10_each_privilege_that_is_missing_is_named_until_all_are_there(
    spark: SparkSession, source: str, owner: unities.Server
):
    catalog, schema = f"{NAME}_user", f"{NAME}_user.s"
    owner.post("schemas", {"name": "s", "catalog_name": catalog})
    for name, privilege in ((catalog, "USE CATALOG"), (schema, "USE SCHEMA"), (schema, "CREATE TABLE")):
        said = refusal(spark, schema, source)
        assert "ask the owner for" in said
        assert privilege in said
        granted(owner, (name, privilege))
    run = group_models.train(spec_of(schema, source={"table": source}), spark=spark)
    assert dict(run.counts) == {"trained": 3}


@secured
def test_f10_a_data_scientist_trains_and_is_told_before_a_night_that_releasing_is_not_allowed(
    spark: SparkSession, source: str, owner: unities.Server
):
    catalog, schema = f"{NAME}_user", f"{NAME}_user.shared"
    owner.post("schemas", {"name": "shared", "catalog_name": catalog})
    as_owner = spark.newSession()
    as_owner.conf.set(f"spark.sql.catalog.{catalog}.token", owner.token)
    SparkTables(schema, session=lambda: as_owner).check()
    names = [f"{schema}.{table.name}" for table in (*TABLES, COMMITS)]
    granted(owner, (catalog, "USE CATALOG"), (schema, "USE SCHEMA"), *((name, "SELECT") for name in names))
    said = refusal(spark, schema, source)
    assert f"SELECT and MODIFY on {schema}.group_model_plan" in said
    granted(owner, *((name, "MODIFY") for name in names if not name.endswith(RELEASE.name)))
    said = refusal(spark, schema, source)
    assert f"SELECT and MODIFY on {schema}.group_model_release" in said
    run = group_models.train(spec_of(schema, source={"table": source}), spark=spark, release=False)
    assert dict(run.counts) == {"trained": 3}


@pytest.fixture
def standing(front: InFront) -> Iterator[InFront]:
    yield front
    front.dies_after = 0


def test_a_run_whose_server_went_away_is_told_so_and_goes_on_when_it_is_back(
    spark: SparkSession, catalog: str, standing: InFront, managed: str
):
    unities.server().post("catalogs", {"name": f"{NAME}_front", "storage_root": managed})
    schema = new_schema(spark, f"{NAME}_front")
    make_source(spark, schema)
    spec = spec_of(schema, compute={"slots": 1, "wave_s": 1e-6})

    def say(line: str) -> None:
        if line.startswith("wave 1 of 3 done"):
            standing.dies_after = standing.calls

    with pytest.raises(StateError, match=r"(reading|writing) \S+group_model_\w+ failed: .*server does not answer"):
        group_models.train(spec, spark=spark, run_id="r1", say=say)
    standing.dies_after = 0
    told: list[str] = []
    run = group_models.train(spec, spark=spark, resume="r1", say=told.append)
    assert dict(run.counts) == {"trained": 3}
    assert run.release_id
    assert not [line for line in told if line.startswith("wave 1 ")]
    assert source_versions_of(spec) == ["1"]


def test_of_those_that_make_the_tables_at_once_all_find_them_made(spark: SparkSession, catalog: str):
    schema = new_schema(spark, catalog)
    failed: list[BaseException] = []
    start = threading.Barrier(4)

    def make() -> None:
        start.wait()
        try:
            SparkTables(schema, session=lambda: spark).check()
        except Exception as e:  # noqa: BLE001 - of a thread it would be lost
            failed.append(e)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert spark.sql(f"SHOW TABLES IN {schema}").count() == len(TABLES) + 1
