"""What the test of poison keys on a cluster runs in a process of its own: workers and an executor that die.

python tests/spark/poisoned_cluster.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import group_models

GOOD = [f"good{i}" for i in range(6)]
FATES = {"killed": 1, "aborted": 2, "endless": 3, "huge": 4, "deaf": 5}


def wild(folder: str):
    """Return an estimator whose end stands in its rows."""
    import itertools
    import os
    import signal
    import time

    import numpy as np
    from sklearn.base import BaseEstimator, RegressorMixin

    def parent(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])

    def kill_executor_once() -> None:
        flag = Path(folder, "executor-killed")
        if not flag.exists():
            flag.write_text("yes", encoding="utf-8")
            os.kill(parent(os.getppid()), signal.SIGKILL)
            time.sleep(60)

    def sleep() -> None:
        while True:
            time.sleep(0.01)

    fates = (
        lambda: None,
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        os.abort,
        sleep,
        lambda: np.ones(16 * 2**30 // 8),
        lambda: sum(itertools.repeat(0)),
        kill_executor_once,
    )

    class Wild(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            fates[int(X["fate"].iloc[0])]()
            self.mean_ = float(np.mean(y))
            return self

        def predict(self, X):
            return np.full(len(X), self.mean_)

    return Wild


def train(spark: SparkSession, folder: str, name: str, fates: dict[str, int]) -> dict[str, object]:
    """Train good keys and these, and return what came of them and what was said meanwhile."""
    keys = dict.fromkeys(GOOD, 0) | fates
    rows = [(key, float(fate), float(place)) for place, (key, fate) in enumerate(keys.items()) for _ in range(4)]
    spec = {
        "model_set": f"zrl.ml.{name}",
        "source": spark.createDataFrame(rows, "carrier string, fate double, y double"),
        "keys": ["carrier"],
        "target": "y",
        "features": ["fate"],
        "estimator": {"object": wild(folder), "version": "1"},
        "holdout": {"by": "none"},
        "limits": {"min_rows": 1, "max_failed_share": 1.0, "timeout_s": 3.0},
        "compute": {"slots": 2, "memory_per_worker": "1GiB"},
        "warehouse": f"{folder}/warehouse",
    }
    said: list[str] = []
    run = group_models.train(spec, spark=spark, say=said.append)
    rows = group_models.show(spec)
    return {
        "counts": dict(run.counts),
        "statuses": {row["key"]["carrier"]: [row["status"], row["reason"], row["attempt"]] for row in rows},
        "said": said,
    }


def main(folder: str) -> None:
    """Train with poison keys, and with a key that kills its executor once."""
    options = {
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{folder}/spark-warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=options).getOrCreate()
    told = {
        "poisoned": train(spark, folder, "poisoned", FATES),
        "executor": train(spark, folder, "executor", {"victim": 6}),
    }
    Path(folder, "done.json").write_text(json.dumps(told), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
