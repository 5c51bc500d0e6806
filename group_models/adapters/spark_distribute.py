"""Train ONE oversize key over the whole cluster with `xgboost.spark`, where the session can; see `why_not`.

What is stored is the form that the per-key family writes, so that nothing that reads models knows the difference.

The same rows give the same model, bit for bit, however they were partitioned when they came, as long as the number of
workers, the library and `spark.sql.execution.arrow.maxRecordsPerBatch` stay the same: rows are dealt out by their hash
and ordered by time and hash on each worker, and xgboost adds up in the order of the workers. Another number of workers
gives another model of the same quality: bins come from a sketch of each worker's rows, and `subsample` draws on each.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_boost import WORKER, Boosting, spread
from group_models.adapters.spark_errors import SPARK_ERRORS, cause
from group_models.adapters.spark_ranks import exact_median
from group_models.adapters.spark_sizes import count_slots
from group_models.adapters.spark_train import is_in_gap
from group_models.artifacts import serialize
from group_models.errors import StateError
from group_models.estimators.base import EstimatorSettings, Features, Fitted, features_of
from group_models.estimators.boosters import BoosterPredictor, booster_family
from group_models.estimators.registry import synthetic_rows
from group_models.evaluation import MAX_MESSAGE, ErrorSummary, Stage, error_summary, printable, why_no_metrics
from group_models.fitting import comparisons
from group_models.fitting.deaths import FitError
from group_models.fitting.intervals import Residuals
from group_models.fitting.measured import MEASURED_TYPES, Measured
from group_models.fitting.measures import TRAIN_MEDIAN
from group_models.fitting.measuring import Reference, references_of
from group_models.fitting.outcomes import (
    MEASURED,
    FitSettings,
    identity,
    result_table,
    stored_columns,
)
from group_models.fitting.reasons import MAX_SHUFFLED_ROWS, Seen, TrainErrors, importance_columns
from group_models.fitting.references import NO_REFERENCE
from group_models.fitting.summing import RegressionSums
from group_models.frames import none_where
from group_models.keys import key_seed
from group_models.payloads import unpack
from group_models.planning.distributing import refusal
from group_models.spec import Metric
from group_models.tables import WHOLE, utc_now

_TRIAL_ROWS_PER_WORKER = 32

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class PlannedKey:
    """The key to train: its id, the key as JSON, its unit in the plan, and what it is compared with.

    `models` are packed `ModelRow`s, of which `links` names the parent and the global one.
    """

    key_id: str
    key: str
    unit: int | None = None
    models: Sequence[bytes] = ()
    links: tuple[int, int] = (NO_REFERENCE, NO_REFERENCE)


@dataclasses.dataclass(frozen=True)
class _Census:
    """A key's rows counted: all, those held out, those in the gap before, which numeric features hold infinity."""

    rows: int
    held: int
    gap: int
    infinite: tuple[str, ...]


def why_not(spark: SparkSession, estimator: EstimatorSettings, features: Features, slots: int) -> str | None:
    """Return in a sentence why this session cannot train this estimator over so many slots; None if it can.

    Nothing is concluded from versions or the kind of session: one round is trained on a few made-up rows, with as many
    workers as a key would get. (xgboost 3.2 trains in classic sessions only.)
    """
    if said := refusal(estimator, slots):
        return said
    if said := _too_few_slots(spark.range(1), slots):
        return said
    tried = _attempt(lambda _: _try(spark, estimator, features, slots))
    if isinstance(tried, ErrorSummary):
        said, _, _ = tried.error_message.partition("\n")
        return f"xgboost.spark does not train in this session: {tried.error_type}: {said}"
    return None


def distribute_key(rows: DataFrame, key: PlannedKey, settings: FitSettings, slots: int) -> pa.Table:
    """Train one key over `slots` workers and return its outcome: columns `fitting.RESULT`, one row.

    Where the settings say `keeps_measured` a second row has the model that has not seen the holdout.

    The row means what a row of `fitting.fit_unit` means, with two differences: `params` has `num_workers`, and
    `cpu_seconds` is null, since the workers' CPU time does not reach the driver.

    The rows never come to one place: the holdout is measured by the workers, batch by batch, with the model as it is
    stored. The training median is exact; it takes two more passes over the key's rows.

    Parameters
    ----------
    rows
        The key's usable rows: `time_us bigint, row_hash bigint, is_holdout boolean, y double`, and the features as
        `f0.. double or string` in the order of `settings.features`.

    Raises
    ------
    StateError
        The session has fewer slots now: that says nothing of the key.
    """
    if said := _too_few_slots(rows, slots):
        raise StateError(said)
    started, clock = utc_now(), time.perf_counter()
    seed = key_seed(settings.seed, key.key_id)
    census = _Census(0, 0, 0, ())

    def train(progress: _Progress) -> list[dict[str, Any]]:
        nonlocal census
        census = _census(rows, settings)
        return _train_key(rows, key, settings, census, _boosting(settings, seed, slots), progress)

    tried = _attempt(train)
    shared = {
        **identity(key.key_id, WHOLE, key.unit, seed, settings.estimator.label, settings),
        "holdout_rows": census.held,
        "fit_seconds": time.perf_counter() - clock,
        "started_at": started,
        "finished_at": utc_now(),
    }
    outcomes = [_failed(tried)] if isinstance(tried, ErrorSummary) else tried
    return result_table([{**shared, **outcome} for outcome in outcomes])


def _too_few_slots(frame: DataFrame, slots: int) -> str | None:
    """Return that the session has fewer slots: Spark would look for them for ten minutes before it gives up."""
    there = count_slots(frame)
    if there >= slots:
        return None
    return f"distributing over {slots} task slots needs them at the same time, and the session has {there}"


@dataclasses.dataclass
class _Progress:
    """The stage that the fit is in, for the outcome of one that fails."""

    stage: Stage = "prepare"


def _attempt(do: Callable[[_Progress], T]) -> T | ErrorSummary:
    """Return what came of a fit, or what it raised: of Spark's errors the cause, not the JVM's stack."""
    progress = _Progress()
    try:
        return do(progress)
    except Exception as error:  # noqa: BLE001 - around one key's fit, as in `fitting`
        summary = error_summary(error, progress.stage)
        if isinstance(error, SPARK_ERRORS):
            return dataclasses.replace(summary, error_message=printable(cause(error), MAX_MESSAGE))
        return summary


def _failed(summary: ErrorSummary) -> dict[str, Any]:
    kind = "" if summary.error_type == FitError.__qualname__ else f"{summary.error_type}: "
    reason = f"{summary.error_stage}: {kind}{summary.error_message}"
    return {"status": "failed", **dataclasses.asdict(summary), "reason": reason}


def _boosting(settings: FitSettings, seed: int, slots: int) -> Boosting:
    features = features_of(settings.features)
    return Boosting(booster_family(settings.estimator, features), seed, slots)


def _try(spark: SparkSession, estimator: EstimatorSettings, features: Features, slots: int) -> None:
    """Train one round on made-up rows, in the way in which a key is trained."""
    count = _TRIAL_ROWS_PER_WORKER * slots
    x, y = synthetic_rows(features, rows=count)
    shorts = dict(zip(sc.feature_names(len(features.names)), features.names, strict=True))
    columns = {short: pa.array(x[name]) for short, name in shorts.items()}
    numbers = np.arange(count)
    columns |= {sc.TIME: pa.array(numbers), sc.HASH: pa.array(numbers), sc.TARGET: pa.array(y)}
    params = {**estimator.params, "n_estimators": 1}
    family = booster_family(dataclasses.replace(estimator, params=params), features)
    Boosting(family, 0, slots).fit(spark.createDataFrame(pa.table(columns)), count)


def _census(rows: DataFrame, settings: FitSettings) -> _Census:
    """Count a key's rows in one pass."""
    numeric = {short: name for short, name in _shorts(settings).items() if settings.features[name] == "numeric"}
    # xgboost computes in single precision: a double beyond it becomes infinite.
    is_infinite = [F.max(F.abs(F.col(short).cast("float")) == F.lit(float("inf"))).alias(short) for short in numeric]
    counts = [F.count("*").alias("rows"), F.count_if(F.col(sc.HOLDOUT)).alias("held")]
    counts.append(F.count_if(is_in_gap(settings)).alias("gap"))
    (row,) = rows.agg(*counts, *is_infinite).collect()
    return _Census(row["rows"], row["held"], row["gap"], tuple(name for short, name in numeric.items() if row[short]))


def _shorts(settings: FitSettings) -> dict[str, str]:
    return dict(zip(sc.feature_names(len(settings.features)), settings.features, strict=True))


def _train_key(
    rows: DataFrame, key: PlannedKey, settings: FitSettings, census: _Census, boosting: Boosting, progress: _Progress
) -> list[dict[str, Any]]:
    _check(census)
    is_measured, reason = _is_measured(census, settings)
    train = rows.where(~F.col(sc.HOLDOUT) & ~is_in_gap(settings)) if is_measured else rows
    count = census.rows - census.held - census.gap if is_measured else census.rows
    progress.stage = "fit"
    fitted = boosting.fit(train, count)
    measured: dict[str, Any] = {}
    kept: list[dict[str, Any]] = []
    if is_measured:
        progress.stage = "evaluate"
        median = exact_median(train, sc.TARGET, count)
        measured = _measure(fitted, median, rows.where(sc.HOLDOUT), settings, boosting.workers, key)
        if settings.keeps_measured:
            stored = stored_columns(fitted, key.key_id, key.key, settings)
            kept = [{**stored, "part": MEASURED, "baseline_metrics": {TRAIN_MEDIAN: median}}]
        # The median of all training rows, the errors of both on some of them.
        errors = TrainErrors.of(fitted, _sampled(train, settings), None, {TRAIN_MEDIAN: median})
        measured |= {} if errors is None else errors.columns(measured, settings, held_rows=census.held)
    first = fitted
    if settings.refit and fitted.rows_used < census.rows:
        progress.stage = "refit"
        fitted = boosting.refit(fitted, rows, census.rows)
    progress.stage = "serialize"
    if settings.importance != "none":
        is_shuffled = is_measured and settings.importance == "permutation"
        seen = _sampled(rows.where(sc.HOLDOUT) if is_shuffled else rows, settings)
        measured |= importance_columns(fitted, first, seen, settings, key_seed(settings.seed, key.key_id))
    return [{"reason": reason, **measured, **stored_columns(fitted, key.key_id, key.key, settings)}, *kept]


def _sampled(rows: DataFrame, settings: FitSettings) -> Seen:
    """Return some rows of a key, those with the lowest hashes, here on the driver."""
    names = _shorts(settings)
    few = rows.select(sc.HASH, sc.TARGET, *names).orderBy(sc.HASH).limit(MAX_SHUFFLED_ROWS).toPandas()
    x = few[list(names)].rename(columns=names)
    for name in (name for name, kind in settings.features.items() if kind == "text"):
        x[name] = none_where(x[name].to_numpy(dtype=object), x[name].isna().to_numpy())
    return Seen(x, few[sc.TARGET].to_numpy(np.float64), None, slice(0, len(few)), None)


def _check(census: _Census) -> None:
    if not census.rows:
        raise FitError("no row of the key reached the fit")
    if census.infinite:
        said = ", ".join(map(repr, census.infinite))
        raise FitError(f"infinite values in {said}; make them null or finite in the source")


def _is_measured(census: _Census, settings: FitSettings) -> tuple[bool, str | None]:
    """Return whether there is a holdout to measure on, and why there is none."""
    if settings.holdout_by == "none":
        return False, None
    reason = why_no_metrics(census.held, census.rows, census.gap)
    return reason is None, reason


def _measure(
    fitted: Fitted, median: float, holdout: DataFrame, settings: FitSettings, workers: int, key: PlannedKey
) -> dict[str, Any]:
    """Return metrics of the stored form, of the training median and of references, summed up by the workers."""
    stored = serialize(fitted)
    names = _shorts(settings)
    text = [name for name, kind in settings.features.items() if kind == "text"]
    models, links, metric = list(key.models), key.links, settings.metric
    keeps = bool(settings.intervals)

    def sums(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        references = references_of(models, links, 0)
        yield from _sums(batches, stored, names, text, median, references, metric, keeps_residuals=keeps)

    dealt = spread(holdout.select(sc.TIME, sc.HASH, sc.TARGET, *names), workers)
    schema = ", ".join(f"{name} {kind}" for name, kind in {WORKER: "int", **MEASURED_TYPES}.items())
    found = Measured.of_rows(dealt.mapInPandas(sums, schema).toArrow().sort_by(WORKER).to_pylist())
    if found.model.not_finite:
        raise FitError(f"{found.model.not_finite} of {found.model.count} predictions on the holdout are not finite")
    baselines = found.baseline.metrics() | comparisons.entries(found.compared, found.model.count)
    metrics = {"metrics": found.model.metrics(), "baseline_metrics": baselines}
    return {**metrics, **found.residuals.columns(settings.intervals)}


def _sums(
    batches: Iterator[pd.DataFrame],
    stored: tuple[bytes, str],
    names: dict[str, str],
    text: list[str],
    median: float,
    references: Mapping[str, Reference],
    metric: Metric,
    *,
    keeps_residuals: bool,
) -> Iterator[pd.DataFrame]:
    """Yield the sums of one partition of the holdout: those of the model, of the median and of the references."""
    model, worker = BoosterPredictor.parse(unpack(*stored)[0]), -1
    measured = Measured()
    for batch in batches:
        if not len(batch):
            continue
        x = batch[list(names)].rename(columns=names)
        for name in text:
            x[name] = none_where(x[name].to_numpy(dtype=object), x[name].isna().to_numpy())
        y, worker = batch[sc.TARGET].to_numpy(np.float64), int(batch[WORKER].iloc[0])
        prediction, time_us = model.predict(x), batch[sc.TIME].to_numpy(np.int64)
        others = {name: reference.predict_newer(x, time_us, y) for name, reference in references.items()}
        found = {name: comparisons.Comparison.of(y, prediction, other, metric) for name, other in others.items()}
        row_hash = batch[sc.HASH].to_numpy(np.int64)
        residuals = Residuals(np.abs(prediction - y), row_hash) if keeps_residuals else Residuals()
        sums = RegressionSums.of(y, prediction), RegressionSums.of(y, np.full(len(y), median))
        measured = measured.merge(Measured(*sums, compared=found, residuals=residuals))
    yield measured.row({WORKER: worker})
