"""A source that is a Delta table is read at one version: in all waves of a run, and when it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import group_models
from group_models.adapters import source_versions
from group_models.adapters.spark_source import open_source
from group_models.errors import DataError
from group_models.ports import SparkSession
from group_models.spec import Source
from tests.deltas import new_schema
from tests.nightly import make_source, source_versions_of, spec_of, write_source


class Stopped(Exception):  # noqa: N818 - what ends a test's run halfway
    """The run ends here."""


def one_by_one(schema: str, tmp_path: Path) -> dict[str, Any]:
    """Return a spec with a wave per key; its tables are folders, which are faster."""
    return spec_of(schema, warehouse=str(tmp_path / "warehouse"), compute={"slots": 1, "wave_s": 1e-6})


def test_what_is_written_meanwhile_is_no_wave_s_and_a_resumed_run_s_neither(any_spark: SparkSession, tmp_path: Path):
    schema = new_schema(any_spark, "spark_catalog")
    source = make_source(any_spark, schema)
    spec = one_by_one(schema, tmp_path)

    def say(line: str) -> None:
        if line.startswith("wave 1 of 3 done"):
            write_source(any_spark, source, offset=1000.0)
            raise Stopped

    with pytest.raises(Stopped):
        group_models.train(spec, spark=any_spark, run_id="r1", say=say)
    run = group_models.train(spec, spark=any_spark, resume="r1")
    assert dict(run.counts) == {"trained": 3}
    shown = group_models.show(spec)
    assert {row["rows"] for row in shown} == {100}
    assert all(row["metrics"]["mae"] < 1e-9 for row in shown if row["metrics"])
    assert dict(group_models.train(spec, spark=any_spark).counts) == {"trained": 3}
    assert source_versions_of(spec) == ["1", "2"]


def test_a_version_that_can_be_read_no_more_is_told_with_the_run(spark: SparkSession):
    schema = new_schema(spark, "spark_catalog")
    source = Source(table=make_source(spark, schema))
    with pytest.raises(DataError, match=r"run r1 started on version 99 of the source \(table: .*can be read no more"):
        source_versions.pin_at(spark, source, "99", "r1")


def test_a_delta_folder_has_versions_and_views_and_parquet_have_none(any_spark: SparkSession, tmp_path: Path):
    schema = new_schema(any_spark, "spark_catalog")
    table = make_source(any_spark, schema)
    any_spark.table(table).write.format("delta").save(str(tmp_path / "delta"))
    any_spark.table(table).write.parquet(str(tmp_path / "parquet"))
    any_spark.sql(f"CREATE VIEW {schema}.v AS SELECT * FROM {table}")  # noqa: S608
    found = [
        Source(path=str(tmp_path / "delta"), format="delta"),
        Source(table=f"{schema}.v"),
        Source(path=str(tmp_path / "parquet")),
        Source(sql=f"SELECT * FROM {table}"),  # noqa: S608
    ]
    pinned = [source_versions.pin(any_spark, source, open_source(any_spark, source)) for source in found]
    assert [each.version for each in pinned] == ["0", None, None, None]
    assert [each.why_not for each in pinned] == [None] * 4
    assert {each.frame.count() for each in pinned} == {300}


def test_a_table_that_lets_nobody_travel_is_read_as_it_is_and_says_so(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    """Row filters exist on Databricks alone: here the version that the history tells is one that is not there."""
    schema = new_schema(spark, "spark_catalog")
    source = Source(table=make_source(spark, schema))
    monkeypatch.setattr(source_versions, "_newest", lambda *_: "99")
    pinned = source_versions.pin(spark, source, open_source(spark, source))
    assert pinned.version is None
    assert pinned.frame.count() == 300
    assert "cannot be read at a version, so each wave reads it as it then is: " in str(pinned.why_not)
