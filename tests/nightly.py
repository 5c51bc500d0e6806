"""A small night that is the same in each catalog: rows of three carriers, a spec, and what must come of it."""

from __future__ import annotations

from typing import Any

import numpy as np

import group_models
from group_models.cli import main
from group_models.ports import SparkSession
from group_models.tables import RUN
from group_models.targets import find_target
from tests.deltas import new_schema

SOURCE_DDL = "carrier string, x double, y double"


def write_source(spark: SparkSession, name: str, *, offset: float = 0.0) -> None:
    """Append 300 rows of three carriers to a table: y = 3x + carrier + offset."""
    where = "SELECT id % 3 carrier, sin(id) x FROM range(300)"
    spark.sql(
        f"INSERT INTO {name} SELECT concat('C', carrier), x, 3 * x + carrier + {offset} FROM ({where})"  # noqa: S608
    )


def make_source(spark: SparkSession, schema: str) -> str:
    """Make a Delta table of rows in a schema and return its name."""
    name = f"{schema}.shipments"
    spark.sql(f"CREATE TABLE {name} ({SOURCE_DDL}) USING delta")
    write_source(spark, name)
    return name


def spec_of(schema: str, **changes: Any) -> dict[str, Any]:
    """Return the spec of a set whose source and tables are in one schema."""
    return {
        "model_set": f"{schema}.eta",
        "source": {"table": f"{schema}.shipments"},
        "keys": ["carrier"],
        "target": "y",
        "features": ["x"],
        "estimator": {"name": "linear"},
        "limits": {"min_rows": 5},
        "compute": {"slots": 2},
        "warehouse": "delta",
        **changes,
    }


def night(spark: SparkSession, catalog: str, **changes: Any) -> dict[str, Any]:
    """Train, release, score and show in a schema of its own, and check what each said; return the spec."""
    schema = new_schema(spark, catalog)
    source = make_source(spark, schema)
    spec = spec_of(schema, **changes)
    run = group_models.train(spec, spark=spark)
    assert dict(run.counts) == {"trained": 3}
    assert run.release_id
    scored = group_models.score(spark.table(source), spec)
    scored.write.saveAsTable(f"{schema}.scored", format="delta")
    found = spark.table(f"{schema}.scored").toPandas()
    assert len(found) == 300
    assert set(found["score_status"]) == {"scored"}
    np.testing.assert_allclose(found["prediction"], found["y"], atol=1e-9)
    assert {row["status"] for row in group_models.show(spec)} == {"trained"}
    assert dict(group_models.train(spec, spark=spark).counts) == {"unchanged": 3}
    return spec


def source_versions_of(spec: dict[str, Any]) -> list[str | None]:
    """Return the versions of the source that the runs of a set started with, oldest first."""
    model_set, tables, _ = find_target(spec, None)
    rows = tables.read(RUN, where={"model_set": [model_set], "event": ["started"]}).sort_by("at")
    return rows["source_version"].to_pylist()


def on_the_command_line(spec_file: str, schema: str) -> None:
    """Train, score into a table and show, by the commands; each must say that all went well."""
    assert main(["train", spec_file]) == 0
    assert main(["score", spec_file, "--input", f"{schema}.shipments", "--output", f"{schema}.told"]) == 0
    assert main(["show", spec_file]) == 0
