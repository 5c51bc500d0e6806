"""What tests of a cluster run in a process of their own: train and score on executors that are processes.

python tests/spark/local_cluster.py ROWS.parquet FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import group_models


def main(rows: str, folder: str) -> None:
    """Train and release what `spec.json` says, score the rows, and write what came of it into the folder.

    Modules in the folder `beside` are those that the driver alone can import.
    """
    sys.path.insert(0, f"{folder}/beside")
    options = {
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": f"{folder}/spark-warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=options).getOrCreate()
    spec = json.loads(Path(folder, "spec.json").read_text(encoding="utf-8"))
    run = group_models.train(spec, spark=spark)
    scored = group_models.score(spark.read.parquet(rows), spec)
    scored.write.parquet(f"{folder}/scored")
    processes = spark.range(8, numPartitions=8).mapInPandas(_process, "process int").distinct().count()
    Path(folder, "done.json").write_text(
        json.dumps({"counts": run.counts, "release_id": run.release_id, "processes": processes}), encoding="utf-8"
    )
    spark.stop()


def _process(batches):
    """Return the process that started this worker's daemon: the executor."""
    import os

    import pandas as pd

    def parent(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])

    for _ in batches:
        yield pd.DataFrame({"process": [parent(os.getppid()) if Path("/proc").exists() else 0]})


if __name__ == "__main__":
    main(*sys.argv[1:])
