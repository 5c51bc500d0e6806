"""The sides that train: this package, plain `applyInPandas`, a joblib loop, and MLflow per key."""

from __future__ import annotations

import itertools
import pickle
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.benchmarks import usual
from tests.benchmarks.sides import Job, Outcome, exchanged_bytes, key_name, measured, warm_session
from tests.benchmarks.usual import TIME_US, Fit, Form, key_row
from tests.benchmarks.workloads import FEATURES, ID, KEYS, MODEL_SET, TARGET, TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODELS = "models.parquet"
"""File or folder with one row `usual.COLUMNS` per key, in a side's folder."""

CHUNKS_PER_CORE = 8


def train_packed(job: Job) -> Outcome:
    """Train with this package: `group_models.train` on the Parquet file, everything at its default."""
    from group_models import api
    from group_models.loading import load_spec
    from group_models.targets import open_tables

    spark = warm_session(job)
    spec = job.workload.spec(job.data.rows, job.out)
    with measured() as outcome:
        run = api.train(spec, spark=spark)
    if dict(run.counts) != {"trained": job.workload.keys} or run.release_id is None:
        raise RuntimeError(f"the product did not train and release all keys: {run!r}")
    outcome.phases = {**run.seconds, "other": outcome.seconds - sum(run.seconds.values())}
    outcome.values = {
        "exchanged bytes per row": exchanged_bytes(job, spark) / job.workload.rows,
        "stored bytes per model": _stored_bytes(open_tables(load_spec(spec))),
    }
    sample = job.data.sample
    scored = api.score(sample, spec)
    outcome.predictions = dict(zip(map(str, scored[ID]), map(float, scored["prediction"]), strict=True))
    outcome.metrics = _manifest_metrics(open_tables(load_spec(spec)), sample)
    return outcome


def _stored_bytes(tables: Any) -> float:
    from group_models.tables import MANIFEST

    sizes = tables.read(MANIFEST, columns=["model_bytes"], where={"model_set": [MODEL_SET]})["model_bytes"]
    return float(np.mean(sizes.to_numpy()))


def _manifest_metrics(tables: Any, sample: pd.DataFrame) -> dict[str, dict[str, float]]:
    from group_models.keys import key_id
    from group_models.tables import MANIFEST

    ids = {key_id(key): key for key, _ in sample.groupby(KEYS)}
    where = {"model_set": [MODEL_SET], "key_id": list(ids)}
    rows = tables.read(MANIFEST, columns=["key_id", "metrics", "baseline_metrics"], where=where).to_pylist()
    return {key_name(ids[row["key_id"]]): _metrics(row["metrics"], row["baseline_metrics"]) for row in rows}


def _metrics(of_model: Any, baseline: Any) -> dict[str, float]:
    return dict(of_model) | {f"baseline_{name}": value for name, value in dict(baseline).items()}


def train_plain(job: Job) -> Outcome:
    """Train with `groupBy(keys).applyInPandas` as people write it: models fitted on the frames that Spark gives."""
    return _train_plain(job, "frames")


def train_plain_arrays(job: Job) -> Outcome:
    """The same by somebody who minds the time: models fitted on arrays."""
    return _train_plain(job, "arrays")


def _train_plain(job: Job, form: Form) -> Outcome:
    """Train with one call of `applyInPandas` per key, pickles written as Parquet."""
    spark = warm_session(job)
    fit = Fit(job.workload, job.data.cutoff_us, form)

    def fit_group(key: tuple[str, ...], frame: pd.DataFrame) -> pd.DataFrame:
        # Spark does not keep the order of rows inside a group.
        return pd.DataFrame([key_row(key, frame.sort_values(TIME_US), fit)], columns=usual.COLUMNS)

    with measured() as outcome:
        rows = _fit_rows(spark, job)
        rows.groupBy(*KEYS).applyInPandas(fit_group, usual.DDL).write.parquet(str(job.out / MODELS))
    return _with_sample(outcome, job, form)


def _fit_rows(spark: SparkSession, job: Job) -> DataFrame:
    """Return what a fit needs of the source, lazily: keys, time, target and features, numbers as double."""
    from pyspark.sql import functions as F

    return spark.read.parquet(str(job.data.rows)).select(
        *KEYS,
        F.unix_micros(TIME).alias(TIME_US),
        TARGET,
        *[F.col(name).cast("double").alias(name) for name in FEATURES],
    )


def train_joblib(job: Job) -> Outcome:
    """Train in a loop as people write it: models fitted on the frames that `groupby` gives."""
    return _train_joblib(job, "frames")


def train_joblib_arrays(job: Job) -> Outcome:
    """The same by somebody who minds the time: models fitted on arrays."""
    return _train_joblib(job, "arrays")


def _train_joblib(job: Job, form: Form) -> Outcome:
    """Train in a loop: all data in memory by pandas, grouped, chunks of keys to one process per core."""
    import joblib

    fit = Fit(job.workload, job.data.cutoff_us, form)
    job.out.mkdir(parents=True)
    with joblib.Parallel(n_jobs=job.cores) as pool:
        pool(joblib.delayed(abs)(number) for number in range(job.cores))
        with measured() as outcome:
            chunks = grouped_chunks(load_rows(job.data.rows), job.cores * CHUNKS_PER_CORE)
            rows = pool(joblib.delayed(_fit_chunk)(chunk, fit) for chunk in chunks)
            table = pa.Table.from_pylist(list(itertools.chain.from_iterable(rows)))
            pq.write_table(table, job.out / MODELS, compression="zstd")
    return _with_sample(outcome, job, form)


def load_rows(path: Path) -> pd.DataFrame:
    """Return the Parquet file's rows: id, keys, time, target and features, numbers as float64."""
    frame = pd.read_parquet(path, columns=[ID, *KEYS, TIME, TARGET, *FEATURES])
    frame[TIME_US] = frame.pop(TIME).astype("int64")
    return frame.astype(dict.fromkeys(FEATURES, "float64"))


def grouped_chunks(frame: pd.DataFrame, count: int) -> Iterator[pd.DataFrame]:
    """Yield the rows by key, in their order within a key, in about `count` frames of whole keys."""
    group = frame.groupby(KEYS, sort=False).ngroup().to_numpy()
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    cuts = [*starts[:: -(-len(starts) // count)].tolist(), len(frame)]
    for start, end in itertools.pairwise(cuts):
        yield frame.iloc[order[start:end]]


def _fit_chunk(chunk: pd.DataFrame, fit: Fit) -> list[dict[str, Any]]:
    return [key_row(key, frame, fit) for key, frame in chunk.groupby(KEYS, sort=False)]


def train_mlflow(job: Job) -> Outcome:
    """Train the sample's keys with `applyInPandas`, metrics and model logged to MLflow per key; extrapolate.

    Only the time inside the call counts (the median key, imports and connections made before), times all keys,
    over all cores: less than such a run would take.
    """
    spark = warm_session(job)
    uri, experiment = _tracking_store(job)
    fit = Fit(job.workload, job.data.cutoff_us)
    log_group = _mlflow_group(uri, experiment, fit)
    sample = job.data.sample
    keys = spark.createDataFrame(sample[KEYS].drop_duplicates())
    with measured() as outcome:
        rows = _fit_rows(spark, job).join(keys, KEYS, "left_semi")
        names = usual.COLUMNS[len(KEYS) + 1 : -1]
        schema = [*[f"{name} string" for name in KEYS], *[f"{name} double" for name in names]]
        schema += ["uri string", "seconds double"]
        logged = rows.groupBy(*KEYS).applyInPandas(log_group, ", ".join(schema)).toPandas()
    outcome.sampled_keys = len(logged)
    outcome.seconds = statistics.median(logged["seconds"]) * job.workload.keys / job.cores
    outcome.metrics = {key_name(row[KEYS]): row[names].astype(float).to_dict() for _, row in logged.iterrows()}
    models = {tuple(row[KEYS]): _logged_model(job, row["uri"]) for _, row in logged.iterrows()}
    outcome.predictions = usual.predict_sample(sample, models, fit.form)
    return outcome


def _tracking_store(job: Job) -> tuple[str, str]:
    """Make a local MLflow store: sqlite for what is tracked, a folder for the models."""
    import mlflow

    job.out.mkdir(parents=True)
    uri = f"sqlite:///{job.out / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    return uri, mlflow.create_experiment("benchmarks", artifact_location=(job.out / "artifacts").as_uri())


def _mlflow_group(uri: str, experiment: str, fit: Fit) -> Callable[[tuple[str, ...], pd.DataFrame], pd.DataFrame]:
    """Return the function of one key: fit, log metrics and model in a run of its own."""
    requirements = _requirements(fit.workload.estimator)

    def log_group(key: tuple[str, ...], frame: pd.DataFrame) -> pd.DataFrame:
        import mlflow

        mlflow.set_tracking_uri(uri)
        mlflow.get_experiment(experiment)
        start = time.perf_counter()
        model, metrics = usual.fit_key(frame.sort_values(TIME_US), fit)
        with mlflow.start_run(experiment_id=experiment, run_name=key_name(key)):
            mlflow.log_metrics(metrics)
            stored = _log_model(model, fit.workload.estimator, requirements)
        seconds = time.perf_counter() - start
        return pd.DataFrame([dict(zip(KEYS, key, strict=True)) | metrics | {"uri": stored, "seconds": seconds}])

    return log_group


def _log_model(model: Any, estimator: str, requirements: list[str]) -> str:
    """Log one model with its requirements given: without them MLflow starts a process per model to find them."""
    if estimator == "xgboost":
        import mlflow.xgboost

        return str(mlflow.xgboost.log_model(model, name="model", pip_requirements=requirements).model_uri)
    import mlflow.sklearn

    info = mlflow.sklearn.log_model(
        model, name="model", pip_requirements=requirements, serialization_format="cloudpickle"
    )
    return str(info.model_uri)


def _logged_model(job: Job, uri: str) -> Any:
    import mlflow.sklearn
    import mlflow.xgboost

    return (mlflow.xgboost if job.workload.estimator == "xgboost" else mlflow.sklearn).load_model(uri)


def _requirements(estimator: str) -> list[str]:
    from group_models.mlmodel import requirements

    return list(requirements("xgboost" if estimator == "xgboost" else "sklearn"))


def _with_sample(outcome: Outcome, job: Job, form: Form) -> Outcome:
    """Add what the pickles of the sample's keys predict, and count the keys."""
    models = ds.dataset(job.out / MODELS)
    if (found := models.count_rows()) != job.workload.keys:
        raise RuntimeError(f"{found} models of {job.workload.keys} keys")
    sample = job.data.sample
    wanted = ds.field(KEYS[1]).isin(sample[KEYS[1]].unique().tolist())
    rows = {tuple(row[name] for name in KEYS): row for row in models.to_table(filter=wanted).to_pylist()}
    keys = [key for key, _ in sample.groupby(KEYS)]
    outcome.metrics = {key_name(key): {name: rows[key][name] for name in usual.COLUMNS[4:-1]} for key in keys}
    loaded = {key: pickle.loads(rows[key]["model"]) for key in keys}
    outcome.predictions = usual.predict_sample(sample, loaded, form)
    return outcome
