"""Train the units of one wave in one Spark job with one exchange."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.fitting import RESULT, FitSettings, fit_unit
from group_models.frames import Roles
from group_models.packing import place
from group_models.plans import FITTED
from group_models.tables import STORE

KEY_ID, KEY, PLAN_UNIT = "key_id", "key", "plan_unit"
_CANDIDATES_PER_PARTITION = 30
_FILE_BYTES = 128 * 2**20


@dataclasses.dataclass(frozen=True)
class Wave:
    """One wave: its number in the plan, the commit number, and its units, largest first."""

    number: int
    commit: int
    attempt: int
    units: tuple[int, ...]
    model_bytes: float


def train_wave(
    rows: DataFrame,
    plan: DataFrame,
    wave: Wave,
    *,
    roles: Roles,
    key_types: Mapping[str, str],
    settings: FitSettings,
) -> DataFrame:
    """Return the store rows of a wave, lazily: write them once and read them back.

    Parameters
    ----------
    rows
        The source as `spark_columns.fit_columns` gives it.
    plan
        Rows of the plan table to train in this wave: `key_id, key, unit, key_index, decision, sample_share`.
    key_types
        Spark types of the key columns in the source.

    Notes
    -----
    Unit ids are chosen so that Spark's hash puts one unit in each partition, the largest in the first.
    `repartition(n, column)` is not coalesced by AQE and is reused by the grouping, so there is one exchange
    (seen in Spark 4.0 to 4.2, classic and Connect).
    """
    assigned = _assigned(plan, wave, key_types)
    count = len(wave.units)
    unit_rows = _data_rows(rows, assigned, roles, settings).unionByName(_key_rows(assigned), allowMissingColumns=True)

    def fit(frame: pd.DataFrame) -> pd.DataFrame:
        # One parameter and no default: Spark would take a second one for (key, frame).
        return _fit(frame, settings)

    fitted = (
        unit_rows.repartition(count, sc.UNIT).groupBy(sc.UNIT).applyInPandas(fit, schema=STORE.spark_schema(RESULT))
    )
    return fitted.select(
        F.lit(settings.model_set).alias("model_set"),
        F.lit(settings.run_id).alias("run_id"),
        F.lit(wave.number).cast("int").alias("wave"),
        F.lit(wave.commit).cast("bigint").alias("number"),
        F.lit(wave.attempt).cast("int").alias("attempt"),
        *RESULT,
    ).repartition(max(1, int(wave.model_bytes // _FILE_BYTES)))


def _assigned(plan: DataFrame, wave: Wave, key_types: Mapping[str, str]) -> DataFrame:
    """Return one row per key of the wave: typed keys, the placed unit, and what the key's rows must know."""
    spark = plan.sparkSession
    placed = spark.createDataFrame(
        pa.table(
            {
                PLAN_UNIT: pa.array(wave.units, pa.int32()),
                sc.UNIT: pa.array(placed_units(spark, len(wave.units)), pa.int32()),
            }
        )
    )
    keys = plan.where(F.col("decision").isin(*FITTED)).withColumnRenamed(sc.UNIT, PLAN_UNIT)
    return keys.join(F.broadcast(placed), PLAN_UNIT).select(
        *sc.typed_keys(key_types), sc.UNIT, PLAN_UNIT, sc.INDEX, KEY_ID, KEY, "decision", "sample_share"
    )


def placed_units(spark: SparkSession, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ask Spark's own hash which ids land in which of `count` partitions, and choose one for each."""
    candidates = _CANDIDATES_PER_PARTITION * count
    asked = (
        spark.range(candidates)
        .select(F.col("id").cast("int").alias("id"))
        .select("id", F.pmod(F.hash("id"), F.lit(count)).alias("partition"))
        .toArrow()
    )
    return place(asked["id"].to_numpy().astype(np.int64), asked["partition"].to_numpy().astype(np.int64), count)


def _data_rows(rows: DataFrame, assigned: DataFrame, roles: Roles, settings: FitSettings) -> DataFrame:
    """Return the usable rows of the wave's keys with unit, key index, holdout flag and the fit's columns."""
    narrow = assigned.select(*sc.key_names(len(roles.keys)), sc.UNIT, sc.INDEX, "sample_share")
    usable = rows.where(sc.is_usable())
    joined = usable.join(F.broadcast(narrow), sc.same_key(usable, narrow, len(roles.keys)))
    share = F.col("sample_share")
    kept = joined.where(share.isNull() | sc.is_chosen("sample", settings.seed, share))
    return kept.select(
        sc.UNIT,
        sc.INDEX,
        sc.TIME,
        sc.HASH,
        _is_holdout(settings).alias(sc.HOLDOUT),
        sc.TARGET,
        *sc.feature_names(len(roles.features)),
    )


def _is_holdout(settings: FitSettings) -> Column:
    if settings.holdout_by == "hash":
        return sc.is_chosen("holdout", settings.seed, settings.holdout_share)
    if settings.holdout_by == "time" and settings.holdout_from_us is not None:
        return F.col(sc.TIME) >= F.lit(settings.holdout_from_us)
    return F.lit(False)  # noqa: FBT003


def _key_rows(assigned: DataFrame) -> DataFrame:
    """Return one row per key that tells its unit which key has which index; the data rows carry only the index."""
    return assigned.select(sc.UNIT, PLAN_UNIT, sc.INDEX, KEY_ID, F.to_json(KEY).alias(KEY))


def _fit(frame: pd.DataFrame, settings: FitSettings) -> pd.DataFrame:
    """Split what a unit got into its keys and its rows, and fit it."""
    is_key = frame[KEY_ID].notna().to_numpy()
    references = frame.loc[is_key, [sc.INDEX, KEY_ID, KEY, PLAN_UNIT]].rename(columns={PLAN_UNIT: sc.UNIT})
    return fit_unit(frame.loc[~is_key], references, settings)
