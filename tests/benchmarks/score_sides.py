"""The sides that score: this package, `mapInPandas` with all models in the closure, and joblib loops.

Each reads the rows of the Parquet file, and writes id, keys and prediction of every row as Parquet. The models are
those that the same bench trained before, each side's in its own form: what they predict was compared there.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.benchmarks.sides import Job, Outcome, measured, warm_session
from tests.benchmarks.train_sides import CHUNKS_PER_CORE, grouped_chunks, load_rows
from tests.benchmarks.workloads import FEATURES, ID, KEYS

Predict: TypeAlias = Callable[[pd.DataFrame, Mapping[tuple[str, ...], Any]], pd.DataFrame]

DIRECT_KEYS, DIRECT_ROWS = 10, 1_000

CLOSURE_SHARES = (20, 10)
"""One row in so many is scored with the closure, in each of its two runs."""

SCORED = "scored.parquet"
DDL = ", ".join([f"{ID} bigint", *[f"{name} string" for name in KEYS], "prediction double"])


def score_streamed(job: Job) -> Outcome:
    """Score with this package: `group_models.score` on the Spark frame, with its provenance columns."""
    from group_models import api

    spark = warm_session(job)
    spec = job.workload.spec(job.data.rows, job.packed)
    with measured() as outcome:
        start = time.perf_counter()
        scored = api.score(spark.read.parquet(str(job.data.rows)), spec, columns=[ID, *KEYS])
        outcome.phases["resolve"] = time.perf_counter() - start
        scored.write.parquet(str(job.out / SCORED))
    outcome.phases["stream and write"] = outcome.seconds - outcome.phases["resolve"]
    outcome.values["direct, s"] = _direct_seconds(job, spec)
    return _with_sample(outcome, job)


def _direct_seconds(job: Job, spec: dict[str, Any]) -> float:
    """Return the seconds of the second of two calls with a pandas frame, as in a warm notebook."""
    from group_models import api

    few = job.data.sample.groupby(KEYS, sort=False)
    own = job.data.sample[few.ngroup() < DIRECT_KEYS]
    frame = own.iloc[np.arange(DIRECT_ROWS) % len(own)].reset_index(drop=True)
    api.score(frame, spec)
    start = time.perf_counter()
    api.score(frame, spec)
    return time.perf_counter() - start


def score_closure(job: Job) -> Outcome:
    """Score with `mapInPandas`: a dictionary of all models in the closure, each batch grouped by key.

    A batch has hardly two rows of a key, so that all rows would take most of the bench's time: a twentieth and a
    tenth of them are scored, models predicting arrays, and a line through the two times tells that of all.
    """
    from pyspark.sql import functions as F

    spark = warm_session(job)
    counted: list[tuple[int, float]] = []
    with measured() as outcome:
        start = time.perf_counter()
        models = {key: pickle.loads(data) for key, data in _looped_models(job)}
        loading = time.perf_counter() - start
        sample = job.data.sample[ID].tolist()
        rows = spark.read.parquet(str(job.data.rows)).select(
            ID, *KEYS, *[F.col(name).cast("double").alias(name) for name in FEATURES]
        )

        def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for batch in batches:
                yield _predict_groups(batch, models)

        for share in CLOSURE_SHARES:
            chosen = rows.where((F.col(ID) % share == 0) | F.col(ID).isin(sample))
            start = time.perf_counter()
            chosen.mapInPandas(predict, DDL).write.mode("overwrite").parquet(str(job.out / SCORED))
            seconds = time.perf_counter() - start
            counted.append((ds.dataset(job.out / SCORED).count_rows(), seconds))
    outcome.sampled_rows = counted[-1][0]
    outcome.phases["load"] = loading
    outcome.seconds = loading + extrapolated(counted, job.workload.rows)
    return _sampled(outcome, job)


def extrapolated(counted: Sequence[tuple[int, float]], rows: int) -> float:
    """Return the seconds of all rows by the line through two (rows, seconds), at least those of the longer run."""
    (few, short), (many, long) = counted
    slope = max(0.0, (long - short) / max(1, many - few))
    return long + slope * (rows - many)


def score_joblib(job: Job) -> Outcome:
    """Score in a loop as people write it: each model predicts the frame that `groupby` gives."""
    return _score_joblib(job, _predict_frames)


def score_joblib_arrays(job: Job) -> Outcome:
    """The same by somebody who minds the time: models predict arrays, cut out by place."""
    return _score_joblib(job, _predict_groups)


def _score_joblib(job: Job, predict: Predict) -> Outcome:
    """Score in a loop: all rows and models in memory, chunks of keys with their models to one process per core."""
    import joblib

    job.out.mkdir(parents=True)
    with joblib.Parallel(n_jobs=job.cores) as pool:
        pool(joblib.delayed(abs)(number) for number in range(job.cores))
        with measured() as outcome:
            models = dict(_looped_models(job))
            chunks = grouped_chunks(load_rows(job.data.rows), job.cores * CHUNKS_PER_CORE)
            tasks = ((chunk, {key: models[key] for key in _keys(chunk)}) for chunk in chunks)
            scored = pool(joblib.delayed(_score_chunk)(chunk, own, predict) for chunk, own in tasks)
            table = pa.Table.from_pandas(pd.concat(scored), preserve_index=False)
            pq.write_table(table, job.out / SCORED, compression="zstd")
    return _with_sample(outcome, job)


def _looped_models(job: Job) -> Iterator[tuple[tuple[str, ...], bytes]]:
    table = pq.read_table(job.looped, columns=[*KEYS, "model"])
    keys = zip(*[table[name].to_pylist() for name in KEYS], strict=True)
    yield from zip(keys, table["model"].to_pylist(), strict=True)


def _keys(chunk: pd.DataFrame) -> list[tuple[str, ...]]:
    return list(chunk[KEYS].drop_duplicates().itertuples(index=False, name=None))


def _score_chunk(chunk: pd.DataFrame, models: Mapping[tuple[str, ...], bytes], predict: Predict) -> pd.DataFrame:
    return predict(chunk, {key: pickle.loads(data) for key, data in models.items()})


def _predict_frames(frame: pd.DataFrame, models: Mapping[tuple[str, ...], Any]) -> pd.DataFrame:
    """Return id, keys and prediction of each row, by key."""
    groups = frame.groupby(KEYS, sort=False)
    return pd.concat([rows[[ID, *KEYS]].assign(prediction=models[key].predict(rows[FEATURES])) for key, rows in groups])


def _predict_groups(frame: pd.DataFrame, models: Mapping[tuple[str, ...], Any]) -> pd.DataFrame:
    """Return id, keys and prediction of each row, in order."""
    x = frame[FEATURES].to_numpy()
    prediction = np.empty(len(frame))
    for key, rows in frame.groupby(KEYS, sort=False).indices.items():
        prediction[rows] = models[key].predict(x[rows])
    return frame[[ID, *KEYS]].assign(prediction=prediction)


def _with_sample(outcome: Outcome, job: Job) -> Outcome:
    """Add the predictions of the sample's rows, and count the rows."""
    scored = ds.dataset(job.out / SCORED)
    if (found := scored.count_rows()) != job.workload.rows:
        raise RuntimeError(f"{found} rows out of {job.workload.rows}")
    return _sampled(outcome, job)


def _sampled(outcome: Outcome, job: Job) -> Outcome:
    scored = ds.dataset(job.out / SCORED)
    wanted = ds.field(ID).isin(job.data.sample[ID].tolist())
    rows = scored.to_table(columns=[ID, "prediction"], filter=wanted).to_pylist()
    outcome.predictions = {str(row[ID]): row["prediction"] for row in rows}
    return outcome
