"""A driver to be killed: trains what a spec says, under a run id, on a Spark of its own or as a client of Connect.

python tests/spark/killed_run.py SPEC.json RUN_ID [--failed-only] [sc://HOST:PORT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import group_models


def main(spec: str, run_id: str, *more: str) -> None:
    """Train and release."""
    remote = [each for each in more if each.startswith("sc://")]
    spark = SparkSession.builder.remote(*remote).getOrCreate() if remote else _own()
    asked = json.loads(Path(spec).read_text(encoding="utf-8"))
    run = group_models.train(asked, run_id=run_id, failed_only="--failed-only" in more, spark=spark)
    sys.stdout.write(json.dumps({"counts": dict(run.counts), "release_id": run.release_id}))
    spark.stop()


def _own() -> SparkSession:
    options = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master("local[2]").config(map=options).getOrCreate()


if __name__ == "__main__":
    main(*sys.argv[1:])
