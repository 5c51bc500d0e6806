"""The sides of the targets: ten times the keys, very many keys planned, one huge key, a night of few changes."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fixtures.shipments import shipments, shipments_table
from tests.benchmarks.sides import Job, Outcome, measured, warm_session
from tests.benchmarks.workloads import FEATURES, KEYS, TARGET, Data, Workload

PLAN_SLOTS = 16
FITTED_ROWS = 1_000
"""Rows per key of sizes that no Spark measures: nearly all keys are fitted, which costs planning most."""

LARGEST_SHARE = 0.5
CHANGED_SHARE = 0.01
SALTED = {"oversize": "salt"}


def plan_synthetic(job: Job) -> Outcome:
    """Plan sizes that no Spark measured: all that planning itself takes of the driver's Python."""
    from group_models.estimators.base import EstimatorSettings, Features
    from group_models.estimators.registry import make_family
    from group_models.loading import load_spec
    from group_models.planning.deciding import Costs, plan_keys
    from group_models.planning.skew import describe_skew

    measured_sizes = sizes(job.workload.keys, FITTED_ROWS * job.workload.keys)
    spec = load_spec(job.workload.spec(job.data.rows, job.out))
    family = make_family(
        EstimatorSettings(name=job.workload.estimator, params=job.workload.params),
        Features(tuple(FEATURES), (), tuple(FEATURES)),
    )
    family.load()
    costs = Costs(family.predicted_seconds, family.predicted_model_bytes)

    def replan(key_ids: pa.Array, other: Any) -> pa.Table:
        of_keys = measured_sizes.filter(pc.is_in(measured_sizes["key_id"], key_ids))
        return plan_keys(of_keys, other, costs, slots=PLAN_SLOTS).keys

    with measured() as outcome:
        start = time.perf_counter()
        plan = plan_keys(measured_sizes, spec, costs, slots=PLAN_SLOTS)
        planned = time.perf_counter()
        describe_skew(plan.keys, spec, slots=PLAN_SLOTS, replan=replan)
        described = time.perf_counter()
        plan.rows(spec.model_set, "r1")
        ended = time.perf_counter()
    outcome.phases = {"plan": planned - start, "skew": described - planned, "rows": ended - described}
    return outcome


def sizes(keys: int, rows: int, seed: int = 7) -> pa.Table:
    """Return sizes of so many keys as measuring gives them, their rows spread like real traffic.

    Built in columns and without a Python object per key, so that the peak memory is that of planning.
    """
    from group_models.planning.deciding import SIZES

    rng = np.random.default_rng(seed)
    weights = rng.pareto(1.2, keys) + 0.05
    count = np.maximum(1, (weights / weights.sum() * rows).astype(np.int64))
    number = pa.array(np.arange(keys)).cast(pa.string())
    ids = pc.utf8_lpad(pc.cast(pa.array(rng.permutation(keys)), pa.string()), 32, "0")
    values = pa.concat_arrays([pc.binary_join_element_wise(name, number, "-") for name in KEYS])
    by_key = values.take(pa.array(np.arange(3 * keys).reshape(3, keys).T.ravel()))
    names = pa.array(KEYS).take(pa.array(np.tile(np.arange(3), keys)))
    offsets = pa.array(np.arange(0, 3 * keys + 1, 3, dtype=np.int32))
    at = pa.array(np.full(keys, 1_700_000_000_000_000), pa.timestamp("us", tz="UTC"))
    columns = {
        "key_id": ids,
        "key": pa.MapArray.from_arrays(offsets, names, by_key),
        "level": pa.array([",".join(KEYS)]).take(pa.array(np.zeros(keys, np.int64))),
        "rows": count,
        "usable_rows": count,
        "bytes": count * (8 * len(FEATURES) + 29),
        "data_fingerprint": pc.binary_join_element_wise(pa.array(count).cast(pa.string()), number, "-"),
        "train_from": at,
        "train_to": at,
    }
    nothing_left_out = {field.name: pa.nulls(keys, field.type) for field in SIZES if field.name not in columns}
    return pa.table(columns | nothing_left_out).select([field.name for field in SIZES]).cast(pa.schema(list(SIZES)))


def plan_measured(job: Job) -> Outcome:
    """Plan keys that Spark measures first: `group_models.plan` on a generated frame, everything in its time."""
    from pyspark.sql import functions as F

    from group_models import api

    spark = warm_session(job)
    number = F.col("id") % job.workload.keys
    names = [F.concat(F.lit(f"{name}-"), number).alias(name) for name in KEYS]
    numbers = [(F.col("id") % (7 + place)).cast("double").alias(name) for place, name in enumerate([TARGET, *FEATURES])]
    spec = job.workload.spec(job.data.rows, job.out)
    spec |= {"source": spark.range(job.workload.rows).select(*names, *numbers), "limits": {"min_rows": 1}}
    del spec["time_column"]
    spec["holdout"] = {"by": "hash", "share": 0.2}
    with measured() as outcome:
        plan = api.plan(spec, spark=spark)
    if plan.keys.num_rows != job.workload.keys:
        raise RuntimeError(f"{plan.keys.num_rows} keys planned of {job.workload.keys}")
    return outcome


def make_both_data(job: Job) -> Outcome:
    """Write the rows of both sizes, here, so that the rows are in the memory of neither side."""
    for workload in (job.workload, _tenth(job)):
        data = data_beside(job, workload)
        if not data.is_made:
            data.make(workload)
    return Outcome()


def train_many(job: Job) -> Outcome:
    """Train all keys."""
    return _train_keys(job, job.workload)


def train_few(job: Job) -> Outcome:
    """Train a tenth of the keys, on as many rows."""
    return _train_keys(job, _tenth(job))


def _tenth(job: Job) -> Workload:
    return dataclasses.replace(job.workload, keys=job.workload.keys // 10)


def data_beside(job: Job, workload: Workload) -> Data:
    """Return where the rows of a workload are kept, whichever target they are for."""
    # Beside the data of the other workloads: the full size has a tenth that is W1.
    return Data(job.data.folder.parent / workload.folder)


def _train_keys(job: Job, workload: Workload) -> Outcome:
    return train(dataclasses.replace(job, workload=workload), workload.spec(data_beside(job, workload).rows, job.out))


def train_skewed(job: Job) -> Outcome:
    """Train keys of which the first one holds half of all rows, salted."""
    return train(job, job.workload.spec(_skewed(job), job.out) | SALTED)


def train_skewed_floor(job: Job) -> Outcome:
    """The same run without fits: the median per key, split and salted alike."""
    return train(job, job.workload.spec(_skewed(job), job.out) | SALTED | {"estimator": "median"})


def _skewed(job: Job) -> Path:
    file = job.data.folder / "skewed.parquet"
    if not file.exists():
        frame = shipments(job.workload.keys, job.workload.rows, largest_share=LARGEST_SHARE)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(shipments_table(frame), file, compression="zstd")
    return file


def train(job: Job, spec: dict[str, Any]) -> Outcome:
    """Train by a spec and see that each key was."""
    from group_models import api

    spark = warm_session(job)
    with measured() as outcome:
        run = api.train(spec, spark=spark)
    if dict(run.counts) != {"trained": job.workload.keys}:
        raise RuntimeError(f"not all keys were trained: {run!r}")
    timing = run.timing()
    outcome.phases = {**run.seconds, "fits": timing.fit_s if timing else 0.0}
    return outcome


def train_changed(job: Job) -> Outcome:
    """Train all keys, then again when one in a hundred has other rows; `full` is the first night's time."""
    from group_models import api

    spark = warm_session(job)
    before, after, changed = _two_nights(job)
    start = time.perf_counter()
    first = api.train(job.workload.spec(before, job.out), spark=spark)
    full = time.perf_counter() - start
    with measured() as outcome:
        second = api.train(job.workload.spec(after, job.out), spark=spark)
    if dict(first.counts) != {"trained": job.workload.keys}:
        raise RuntimeError(f"not all keys were trained: {first!r}")
    if dict(second.counts) != {"unchanged": job.workload.keys - changed, "trained": changed}:
        raise RuntimeError(f"not the {changed} changed keys alone were trained: {second!r}")
    outcome.phases = {**second.seconds, "full": full}
    return outcome


def _two_nights(job: Job) -> tuple[Path, Path, int]:
    """Write both nights' rows; return the files and how many keys have other rows in the second."""
    frame = shipments(job.workload.keys, job.workload.rows)
    number = frame.groupby(KEYS, sort=True).ngroup().to_numpy()
    changed = max(1, round(job.workload.keys * CHANGED_SHARE))
    files = [job.data.folder / f"night{night}.parquet" for night in (1, 2)]
    job.data.folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(shipments_table(frame), files[0], compression="zstd")
    other = pd.Series(np.where(number < changed, frame[TARGET] + 1.0, frame[TARGET]), frame.index)
    pq.write_table(shipments_table(frame.assign(**{TARGET: other})), files[1], compression="zstd")
    return files[0], files[1], changed
