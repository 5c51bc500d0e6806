"""What the two sides of a row have in common: the session, the clock, and what a side says when it is done."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.memory import ProcessWatch
from tests.benchmarks.workloads import Data, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"
"""Heap of the driver's JVM on every Spark side; `SPARK_DRIVER_MEMORY` says otherwise."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What a side is told.

    Attributes
    ----------
    out
        Folder of this side's results; it does not exist yet.
    packed, looped
        For scoring: the warehouse of the product's models, and the Parquet file of the loop's.
    """

    workload: Workload
    data: Data
    out: Path
    cores: int
    packed: Path
    looped: Path


@dataclasses.dataclass
class Outcome:
    """What a side measured, and what it found for the rows and keys of the sample.

    Attributes
    ----------
    sampled_keys, sampled_rows
        Keys or rows that the seconds were extrapolated from; None where all was done.
    values
        What else was measured, by what it is.
    predictions
        By the row's id.
    metrics
        By the key's values, joined.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    peaks_mb: dict[str, float] = dataclasses.field(default_factory=dict)
    sampled_keys: int | None = None
    sampled_rows: int | None = None
    values: dict[str, float] = dataclasses.field(default_factory=dict)
    predictions: dict[str, float] = dataclasses.field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def measured() -> Iterator[Outcome]:
    """Time the block and watch its processes."""
    outcome = Outcome()
    with ProcessWatch() as watch:
        start = time.perf_counter()
        yield outcome
        outcome.seconds = time.perf_counter() - start
    outcome.cpu_s, outcome.peaks_mb = watch.cpu_s, watch.peaks_mb


def warm_session(job: Job) -> SparkSession:
    """Return the session of every Spark side, after a trivial job that started a Python worker per core."""
    from pyspark.sql import SparkSession

    _event_folder(job).mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": os.environ.get("SPARK_DRIVER_MEMORY", DRIVER_MEMORY),
        "spark.local.dir": str(job.data.folder.parent / "spark"),
        # What crosses exchanges is read from here: one plain file per application.
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": _event_folder(job).as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(job.data.folder.parent / "spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master(f"local[{job.cores}]").appName("benchmarks").config(map=options).getOrCreate()
    spark.range(0, job.cores, 1, job.cores).mapInPandas(lambda batches: batches, "id long").collect()
    return spark


def _event_folder(job: Job) -> Path:
    return job.data.folder.parent.absolute() / "spark-events"


def exchanged_bytes(job: Job, spark: SparkSession) -> int:
    """Return the bytes that the stage wrote to its exchange that wrote most: with the product, the training rows."""
    (log,) = _event_folder(job).glob(f"{spark.sparkContext.applicationId}*")
    return largest_exchange(log.read_text().splitlines())


def largest_exchange(events: Iterable[str]) -> int:
    """Return the most bytes that one stage wrote to an exchange, by the lines of Spark's event log."""
    written: Counter[int] = Counter()
    for line in events:
        if line.startswith('{"Event":"SparkListenerTaskEnd"'):
            event = json.loads(line)
            metrics = event.get("Task Metrics") or {}
            written[event["Stage ID"]] += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
    return max(written.values(), default=0)


def key_name(key: Any) -> str:
    """Return a key's values as one text."""
    return "/".join(map(str, key))
