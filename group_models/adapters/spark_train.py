"""Train the units of one wave in one Spark job with one exchange."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_pool import PARENT_PARTS, Pool, model_rows, part_of_parent, with_parents
from group_models.adapters.spark_references import (
    LINKS,
    MODEL,
    NO_REFERENCES,
    References,
    links_column,
    with_links,
)
from group_models.adapters.spark_references import (
    model_rows as reference_rows,
)
from group_models.fitting.outcomes import RESULT, FitSettings
from group_models.fitting.pooled import PARENT_IX, PARENT_MODEL, fit_pooled_unit
from group_models.fitting.units import fit_unit
from group_models.frames import Roles
from group_models.planning.packing import place
from group_models.tables import STORE, WHOLE

KEY_ID, KEY, PLAN_UNIT, PART, N_PARTS = "key_id", "key", "plan_unit", "part", "n_parts"
OVERRIDE = "override"
_CANDIDATES_PER_PARTITION = 30
_FILE_BYTES = 128 * 2**20


@dataclasses.dataclass(frozen=True)
class Wave:
    """One wave: its number in the plan, the commit number, and its units, largest first.

    `has_copies`: some of its salted keys are thinned, for they have many identical rows. `references`: what its keys
    are compared with. `pool`: the parents that its keys build on, where the settings say `pooling`.
    """

    number: int
    commit: int
    attempt: int
    units: tuple[int, ...]
    model_bytes: float
    has_copies: bool = False
    references: References = NO_REFERENCES
    pool: Pool | None = None


def train_wave(
    rows: DataFrame,
    plan: DataFrame,
    done: DataFrame,
    wave: Wave,
    *,
    roles: Roles,
    key_types: Mapping[str, str],
    settings: FitSettings,
    may_isolate: bool = False,
) -> DataFrame:
    """Return the store rows of a wave, lazily: write them once and read them back.

    Parameters
    ----------
    rows
        The source as `spark_columns.fit_columns` gives it.
    plan
        The fitted keys of this wave, as rows of the plan table: columns `PLANNED`.
    done
        Rows of the store that the run has: `key_id, part`; those are left out.
    key_types
        Spark types of the key columns in the source.
    may_isolate
        A unit that Spark tries again, since its first task died, is fitted in child processes: the key that killed
        the first worker would kill the next three, and then the job.

    Notes
    -----
    Unit ids are chosen so that Spark's hash puts one unit in each partition, the largest in the first.
    `repartition(n, column)` is not coalesced by AQE and is reused by the grouping, so there is one exchange
    (seen in Spark 4.0 to 4.2, classic and Connect).
    """
    assigned = _assigned(plan, done, wave, key_types)
    count = len(wave.units)
    data_rows = _data_rows(rows, assigned, wave, roles, settings)
    unit_rows = data_rows.unionByName(_key_rows(assigned, wave.references), allowMissingColumns=True)
    if not wave.references.is_empty:
        unit_rows = unit_rows.unionByName(reference_rows(assigned, wave.references), allowMissingColumns=True)
    if wave.pool is not None and (models := model_rows(assigned, wave.pool)) is not None:
        unit_rows = unit_rows.unionByName(models, allowMissingColumns=True)

    def fit(frame: pd.DataFrame) -> pd.DataFrame:
        # One parameter and no default: Spark would take a second one for (key, frame).
        is_isolated = settings.is_isolated or (may_isolate and _is_retry())
        return _fit(frame, dataclasses.replace(settings, is_isolated=is_isolated))

    fitted = (
        unit_rows.repartition(count, sc.UNIT).groupBy(sc.UNIT).applyInPandas(fit, schema=STORE.spark_schema(RESULT))
    )
    rows = store_rows(fitted, settings, wave=wave.number, number=wave.commit, attempt=wave.attempt)
    return rows.repartition(count_files(wave.model_bytes))


def count_files(model_bytes: float) -> int:
    """Return in how many files models of so many bytes are written."""
    return max(1, int(model_bytes // _FILE_BYTES))


def store_rows(fitted: DataFrame, settings: FitSettings, *, wave: int, number: int, attempt: int) -> DataFrame:
    """Return what units returned (columns `RESULT`) as rows of the store."""
    return fitted.select(
        F.lit(settings.model_set).alias("model_set"),
        F.lit(settings.run_id).alias("run_id"),
        F.lit(wave).cast("int").alias("wave"),
        F.lit(number).cast("bigint").alias("number"),
        F.lit(attempt).cast("int").alias("attempt"),
        *RESULT,
    )


def _assigned(plan: DataFrame, done: DataFrame, wave: Wave, key_types: Mapping[str, str]) -> DataFrame:
    """Return one row per key, or part of one, to train: typed keys, the placed unit, and what its rows must know."""
    spark = plan.sparkSession
    placed = spark.createDataFrame(
        pa.table(
            {
                PLAN_UNIT: pa.array(wave.units, pa.int32()),
                sc.UNIT: pa.array(placed_units(spark, len(wave.units)), pa.int32()),
            }
        )
    )
    each = F.when(F.col(N_PARTS) > 1, F.sequence(F.lit(0), F.col(N_PARTS) - 1)).otherwise(F.array(F.lit(WHOLE)))
    parts = plan.withColumn(PART, F.explode(each)).join(done, [KEY_ID, PART], "left_anti")
    placing = parts.withColumn(PLAN_UNIT, F.col(sc.UNIT) + F.greatest(PART, F.lit(0))).drop(sc.UNIT)
    assigned = placing.join(F.broadcast(placed), PLAN_UNIT)
    of_parents = [] if wave.pool is None else [PARENT_IX, PARENT_PARTS]
    return (assigned if wave.pool is None else with_parents(assigned, wave.pool)).select(
        *sc.typed_keys(key_types),
        sc.UNIT,
        PLAN_UNIT,
        sc.INDEX,
        KEY_ID,
        KEY,
        PART,
        N_PARTS,
        OVERRIDE,
        "sample_share",
        *of_parents,
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


def _data_rows(rows: DataFrame, assigned: DataFrame, wave: Wave, roles: Roles, settings: FitSettings) -> DataFrame:
    """Return the usable rows of the wave's keys with unit, key index, holdout flag and the fit's columns."""
    of_parents = [] if settings.pooling is None else [PARENT_PARTS]
    narrow = assigned.select(
        *sc.key_names(len(roles.keys)), sc.UNIT, sc.INDEX, PART, N_PARTS, "sample_share", *of_parents
    )
    usable = rows.where(sc.is_usable())
    is_of_part = (F.col(PART) == WHOLE) | (F.col(PART) == sc.part_of("salt", settings.seed, F.col(N_PARTS)))
    joined = usable.join(F.broadcast(narrow), sc.same_key(usable, narrow, len(roles.keys)) & is_of_part)
    share = F.col("sample_share")
    columns: list[Column | str] = [
        sc.UNIT,
        sc.INDEX,
        sc.TIME,
        sc.HASH,
        is_holdout(settings).alias(sc.HOLDOUT),
        sc.TARGET,
        *sc.weight_columns(rows),
        *_folds(settings),
        *sc.feature_names(len(roles.features)),
        *([] if settings.pooling is None else [part_of_parent(settings.seed)]),
    ]
    is_thinned = share.isNotNull() & (F.col(PART) != WHOLE)
    kept = joined.where(~is_thinned & (share.isNull() | sc.is_chosen("sample", settings.seed, share))).select(*columns)
    if not wave.has_copies:
        return kept
    # A sample by hash keeps all copies of a row or none: here so many of each are kept.
    counts = joined.where(is_thinned).select(*columns, "sample_share").groupBy(*kept.columns, "sample_share").count()
    times = sc.copies_kept(settings.seed, F.col("count"), F.col("sample_share"))
    thinned = counts.where(times > 0).withColumn("copy", F.explode(F.sequence(F.lit(1), times))).select(*kept.columns)
    return kept.unionByName(thinned)


def _folds(settings: FitSettings) -> list[Column]:
    """Return the fold of each row, where estimators are chosen on folds by hash."""
    counts = {each.folds for each in (settings, *settings.overrides) if each.is_choosing}
    if settings.is_in_time or not counts:
        return []
    return [sc.part_of("fold", settings.seed, F.lit(max(counts))).alias("fold")]


def rows_of_key(
    rows: DataFrame, key: Mapping[str, str | None], key_types: Mapping[str, str], settings: FitSettings
) -> DataFrame:
    """Return the usable rows of one key or parent, given as its `key` map: `time_us, row_hash, is_holdout, y, f0..`.

    The key is compared with literals, so that a source that is partitioned or sorted by it is read in part.
    """
    is_of_key = [
        F.col(short).eqNullSafe(F.lit(key.get(name)).cast(spark_type))
        for short, (name, spark_type) in zip(sc.key_names(len(key_types)), key_types.items(), strict=True)
    ]
    of_key = rows.where(functools.reduce(operator.and_, is_of_key, sc.is_usable()))
    features = sc.feature_names(len(settings.features))
    return of_key.select(sc.TIME, sc.HASH, is_holdout(settings).alias(sc.HOLDOUT), sc.TARGET, *features)


def is_holdout(settings: FitSettings) -> Column:
    """Return whether a row is held out: one flag for all levels and parts."""
    if settings.holdout_by == "hash":
        return sc.is_chosen("holdout", settings.seed, settings.holdout_share)
    if settings.holdout_by == "time" and settings.holdout_from_us is not None:
        return F.col(sc.TIME) >= F.lit(settings.holdout_from_us)
    return F.lit(False)  # noqa: FBT003


def is_in_gap(settings: FitSettings) -> Column:
    """Return whether a row is in the gap before the holdout; as `FitSettings.is_in_gap` says of arrays."""
    if settings.holdout_from_us is None or not settings.gap_us:
        return F.lit(False)  # noqa: FBT003
    first = F.lit(settings.holdout_from_us - settings.gap_us)
    return (F.col(sc.TIME) < F.lit(settings.holdout_from_us)) & (F.col(sc.TIME) >= first)


def _key_rows(assigned: DataFrame, references: References) -> DataFrame:
    """Return one row per key that tells its unit which key has which index; the data rows carry only the index."""
    key = F.to_json(KEY).alias(KEY)
    names: list[Column | str] = [sc.UNIT, PLAN_UNIT, sc.INDEX, KEY_ID, key, PART, N_PARTS, OVERRIDE]
    names += [PARENT_IX] if PARENT_IX in assigned.columns else []
    if references.is_empty:
        return assigned.select(*names)
    return with_links(assigned, references).select(*names, links_column().alias(MODEL))


def _is_retry() -> bool:
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _fit(frame: pd.DataFrame, settings: FitSettings) -> pd.DataFrame:
    """Split what a unit got into its keys and its rows, and fit it."""
    is_key = frame[KEY_ID].notna().to_numpy()
    named = [sc.INDEX, KEY_ID, KEY, PLAN_UNIT, PART, N_PARTS, OVERRIDE]
    if settings.pooling is not None:
        named.append(PARENT_IX)
    has_models, has_parents = MODEL in frame, PARENT_MODEL in frame
    if has_models:
        named.append(MODEL)
    references = frame.loc[is_key, named].rename(columns={PLAN_UNIT: sc.UNIT, MODEL: LINKS})
    is_model = frame[MODEL].notna().to_numpy() & ~is_key if has_models else np.zeros_like(is_key)
    is_parent = frame[PARENT_MODEL].notna().to_numpy() if has_parents else np.zeros_like(is_key)
    rows = frame.loc[~(is_key | is_model | is_parent)]
    models = frame.loc[is_model, MODEL].tolist() if has_models else []
    if settings.pooling is None:
        return fit_unit(rows, references, settings, models)
    parents = frame.loc[is_parent, [PARENT_IX, PARENT_MODEL]] if has_parents else frame.iloc[:0]
    return fit_pooled_unit(rows, references, parents, settings, models)
