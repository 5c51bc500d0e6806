"""Delta tables as a catalog shows them, of older and newer versions, and with many at once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from group_models.adapters import delta_ddl
from group_models.adapters.spark_tables import SparkTables
from group_models.errors import StateError
from group_models.ports import Commit, SparkSession
from group_models.tables import MANIFEST, RELEASE, RUN, STORE, TABLES
from tests.contract.test_tables import MODEL_SET, commit, models, runs
from tests.deltas import new_schema


def at_once(acts: Sequence[Callable[[], None]]) -> list[BaseException]:
    """Do several things at the same time; return what they raised."""
    failed: list[BaseException] = []
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], None]) -> None:
        start.wait()
        try:
            act()
        except Exception as e:  # noqa: BLE001 - of a thread it would be lost
            failed.append(e)

    threads = [threading.Thread(target=run, args=[act]) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


@pytest.fixture
def schema(spark: SparkSession) -> str:
    return new_schema(spark, "spark_catalog")


@pytest.fixture
def tables(spark: SparkSession, schema: str) -> SparkTables:
    return SparkTables(schema, session=lambda: spark)


def test_tables_and_columns_have_their_comments(spark: SparkSession, tables: SparkTables, schema: str):
    tables.check()
    for table in TABLES:
        rows = spark.sql(f"DESCRIBE EXTENDED {schema}.{table.name}").collect()
        said = {row["col_name"]: row["comment"] for row in rows}
        assert {column.name: said[column.name] for column in table.columns} == {
            c.name: c.comment for c in table.columns
        }
        assert {row["col_name"]: row["data_type"] for row in rows}["Comment"] == table.comment


def test_trying_whether_tables_can_be_written_makes_no_version(spark: SparkSession, tables: SparkTables, schema: str):
    tables.check()
    SparkTables(schema, session=lambda: spark).check_writable(RELEASE)
    assert {spark.sql(f"DESCRIBE HISTORY {schema}.{table.name}").count() for table in TABLES} == {1}


def test_a_table_of_an_older_version_gets_the_columns_and_one_of_a_newer_keeps_its_own(
    spark: SparkSession, tables: SparkTables, schema: str
):
    older = dataclasses.replace(RUN, columns=tuple(c for c in RUN.columns if c.name != "source_version"))
    name = f"{schema}.{RUN.name}"
    spark.sql(delta_ddl.create(delta_ddl.stored(older), name))
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (newer string)")
    assert tables.append(RUN, runs("r1", source_version="3"), commit())
    assert tables.read(RUN)["source_version"].to_pylist() == ["3"]
    assert {"source_version", "newer"} <= set(spark.table(name).columns)


def test_a_table_of_another_shape_is_refused_with_the_difference(spark: SparkSession, tables: SparkTables, schema: str):
    spark.sql(f"CREATE TABLE {schema}.{RUN.name} (model_set string, run_id int) USING delta")
    with pytest.raises(StateError, match=rf"table {schema}.group_model_run exists with another shape: run_id is int"):
        tables.append(RUN, runs("r1"), commit())


def test_external_tables_are_where_they_shall_be(spark: SparkSession, schema: str, tmp_path: Path):
    tables = SparkTables(schema, location=f"file://{tmp_path}", session=lambda: spark)
    assert tables.append(RUN, runs("r1"), commit())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*(t.name for t in TABLES), "group_model_commit"])
    assert SparkTables(schema, session=lambda: spark).read(RUN)["run_id"].to_pylist() == ["r1"]


def test_of_those_that_make_the_tables_at_once_all_find_them_made(spark: SparkSession, schema: str):
    assert at_once([SparkTables(schema, session=lambda: spark).check for _ in range(4)]) == []
    assert spark.sql(f"SHOW TABLES IN {schema}").count() == len(TABLES) + 1


def test_h5_runs_that_write_one_manifest_at_once_lose_nothing(spark: SparkSession, schema: str):
    SparkTables(schema, session=lambda: spark).check()
    row = {"level": "k", "key": {}, "status": "trained", "serves": "new"}

    def write(run_id: str) -> None:
        own = SparkTables(schema, session=lambda: spark)
        rows = MANIFEST.rows({**row, "model_set": MODEL_SET, "run_id": run_id, "key_id": f"k{i}"} for i in range(20))
        assert own.append(MANIFEST, rows, Commit(MODEL_SET, run_id, 0))
        assert not own.append(MANIFEST, rows, Commit(MODEL_SET, run_id, 0))

    assert at_once([lambda name=f"r{i}": write(name) for i in range(4)]) == []
    found = SparkTables(schema, session=lambda: spark).read(MANIFEST, columns=["run_id", "key_id"])
    assert found.num_rows == found.group_by(["run_id", "key_id"]).aggregate([]).num_rows == 80


def test_h6_rows_that_are_there_twice_are_removed_and_the_second_time_nothing_is(tables: SparkTables):
    twice = pa.concat_tables([models("a", "b"), models("a", number=1)])
    tables.append(STORE, twice, commit())
    for _ in range(3):
        tables.keep_only(STORE, {"r1": ["b"]}, model_set=MODEL_SET)
        assert tables.read(STORE)["key_id"].to_pylist() == ["b"]


def test_h12_an_append_of_many_rows_is_few_files_and_a_sweep_makes_them_fewer(
    spark: SparkSession, tables: SparkTables, schema: str
):
    def files() -> int:
        return int(spark.sql(f"DESCRIBE DETAIL {schema}.{STORE.name}").collect()[0]["numFiles"])

    for number in range(3):
        tables.append(STORE, models(*(f"k{number}-{i}" for i in range(5000)), number=number), commit(number))
    assert files() <= 6
    assert tables.sweep(model_set=MODEL_SET, idle=dt.timedelta(0)) == 0
    assert files() == 1
    assert tables.read(STORE).num_rows == 15_000


def test_an_earlier_state_is_a_query_away(spark: SparkSession, tables: SparkTables, schema: str):
    tables.append(RUN, runs("r1"), commit())
    before = spark.sql(f"DESCRIBE HISTORY {schema}.{RUN.name} LIMIT 1").collect()[0]["version"]
    tables.append(RUN, runs("r2"), commit(0, "r2"))
    said = spark.sql(f"SELECT run_id FROM {schema}.{RUN.name} VERSION AS OF {before}").collect()  # noqa: S608
    assert [row[0] for row in said] == ["r1"]


def test_a_read_that_fails_is_one_sentence_with_the_table(spark: SparkSession, schema: str, tmp_path: Path):
    tables = SparkTables(schema, location=f"file://{tmp_path}", session=lambda: spark)
    tables.append(RUN, runs("r1"), commit())
    for file in (tmp_path / RUN.name).glob("*.parquet"):
        file.unlink()
    with pytest.raises(StateError, match=rf"^reading {schema}.group_model_run failed: "):
        SparkTables(schema, session=lambda: spark).read(RUN)
