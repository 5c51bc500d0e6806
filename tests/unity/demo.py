"""The demo of the flights on a Unity Catalog server that the environment names: `make demo-uc`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from group_models.cli import main
from group_models.ports import SparkSession
from tests import unities

ROOT = Path(__file__).parents[2]
CATALOG, SCHEMA = "group_models_demo", "group_models_demo.flights"
FOLDER = ROOT / "demo" / "unity"


def session() -> SparkSession:
    """Return a session that knows the catalog; the commands take it, since it is the active one."""
    from pyspark.sql import SparkSession

    there = unities.server()
    options = {
        **unities.jar_options(),
        **unities.catalog_options(CATALOG, there.uri, there.token),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    return SparkSession.builder.master("local[*]").config(map=options).getOrCreate()


def make_tables(spark: SparkSession) -> None:
    """Make the catalog unless it is there, and the schema with the flights anew."""
    storage = os.environ.get(unities.STORAGE) or FOLDER.as_uri()
    unities.server().ensure("catalogs", {"name": CATALOG, "storage_root": storage})
    spark.sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    spark.sql(f"CREATE SCHEMA {SCHEMA}")
    flights = spark.read.parquet(str(ROOT / "fixtures" / "flights.parquet"))
    flights.write.format("delta").saveAsTable(f"{SCHEMA}.flights")


def write_spec() -> str:
    """Write the demo's spec with a table as its source and the model set's tables in the catalog."""
    spec = yaml.safe_load((ROOT / "fixtures" / "flights.yaml").read_text())
    spec |= {"model_set": f"{SCHEMA}.air_time", "source": {"table": f"{SCHEMA}.flights"}, "warehouse": "delta"}
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "flights.yaml"
    file.write_text(yaml.safe_dump(spec))
    return str(file)


def run() -> int:
    """Plan, train, release, score and show; return the first exit code that is not 0."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    make_tables(session())
    spec = write_spec()
    score = ["score", spec, "--input", f"{SCHEMA}.flights", "--output", f"{SCHEMA}.scored"]
    for command in (["plan", spec], ["train", spec], score, ["show", spec, "--worst", "5"]):
        if code := main(command):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(run() if unities.is_named() else unities.WHY_NOT)
