"""Whole nights on a real Unity Catalog: source, tables and output are its tables, managed and external."""

from __future__ import annotations

from pathlib import Path

import yaml

from group_models.ports import SparkSession
from tests.deltas import new_schema
from tests.nightly import make_source, night, on_the_command_line, source_versions_of, spec_of


def test_a_night_on_managed_tables(connect_spark: SparkSession, catalog: str):
    spec = night(connect_spark, catalog)
    assert source_versions_of(spec) == ["1", "1"]


def test_the_commands_train_score_and_show_on_external_tables(
    spark: SparkSession, catalog: str, location: str, tmp_path: Path
):
    schema = new_schema(spark, catalog)
    make_source(spark, schema)
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec_of(schema, warehouse=f"delta:{location}")))
    on_the_command_line(str(file), schema)
    assert spark.table(f"{schema}.told").count() == 300
    described = spark.sql(f"DESCRIBE EXTENDED {schema}.group_model_run").collect()
    assert {row["col_name"]: row["data_type"] for row in described}["Type"] == "EXTERNAL"
    assert (tmp_path / "group_model_run" / "_delta_log").is_dir()
