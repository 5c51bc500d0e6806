"""Measure: one aggregate pass over the source, no data on the driver."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_columns import upload
from group_models.evaluation import holdout_cutoff
from group_models.frames import Roles
from group_models.keys import level_name
from group_models.planning.deciding import SIZES
from group_models.planning.windows import LEFT_OUT

_HOUR_US = 3_600_000_000
_FINER_US = (60_000_000, 1_000_000, 1_000, 1)
_MIN_BUCKETS, _MAX_BUCKETS = 100, 100_000
_ROW_OVERHEAD = 8 * 3 + 4 + 1
"""Bytes of target, time, hash, key index and holdout flag."""

_TEXT_OVERHEAD = 57
"""Bytes of a Python text beside its characters, pointer included (CPython 3.11 and 3.12)."""


def measure(rows: DataFrame, roles: Roles) -> pa.Table:
    """Return one row per key: columns `SIZES` of planning.

    Parameters
    ----------
    rows
        The source as `spark_columns.fit_columns` gives it, filtered to the scope.
    """
    keys = sc.key_names(len(roles.keys))
    sums = rows.groupBy(*keys).agg(*_aggregates(roles), *_left_out(rows))
    columns = [F.col(k) for k in keys]
    fixed = 8 * sum(kind == "numeric" for kind in roles.features.values()) + _ROW_OVERHEAD
    fixed += 8 * (roles.weight is not None)
    sizes = sums.select(
        sc.key_id_column(columns, list(roles.keys.values())).alias("key_id"),
        sc.key_map(columns, list(roles.keys)).alias("key"),
        F.lit(level_name(list(roles.keys))).alias("level"),
        "rows",
        "usable_rows",
        (F.col("usable_rows") * fixed + F.col("text_bytes")).alias("bytes"),
        *LEFT_OUT,
        F.concat_ws("-", "usable_rows", "hash_high", "hash_low").alias("data_fingerprint"),
        "train_from",
        "train_to",
    )
    return sizes.toArrow().cast(pa.schema(list(SIZES)))


def _aggregates(roles: Roles) -> list[Column]:
    """Return what is summed per key.

    The fingerprint is the exact sum of the row hashes, kept as the sums of their high and low 32 bits: a sum of
    the 64-bit hashes overflows (ANSI is on by default in Spark 4), and a decimal sum costs several times more.
    """
    usable = sc.is_usable()
    row_hash = F.when(usable, F.col(sc.HASH))
    texts = [short for short, kind in zip(sc.feature_names(len(roles.features)), roles.features.values(), strict=True)
             if kind == "text"]  # fmt: skip
    text_bytes = sum((F.coalesce(F.octet_length(name), F.lit(0)) + _TEXT_OVERHEAD for name in texts), F.lit(0))
    time = F.when(usable & (F.col(sc.TIME) != sc.NO_TIME), F.col(sc.TIME)) if roles.time else F.lit(None)
    return [
        F.count(F.lit(1)).alias("rows"),
        F.count_if(usable).alias("usable_rows"),
        F.sum(F.when(usable, text_bytes).otherwise(F.lit(0)).cast("bigint")).alias("text_bytes"),
        F.coalesce(F.sum(F.shiftright(row_hash, 32)), F.lit(0)).alias("hash_high"),
        F.coalesce(F.sum(row_hash.bitwiseAND(F.lit(0xFFFFFFFF))), F.lit(0)).alias("hash_low"),
        F.timestamp_micros(F.min(time.cast("bigint"))).alias("train_from"),
        F.timestamp_micros(F.max(time.cast("bigint"))).alias("train_to"),
    ]


def _left_out(rows: DataFrame) -> list[Column]:
    """Return how many rows are left out for which reason; null where nothing is."""
    if sc.LEFT_OUT not in rows.columns:
        return [F.first(F.lit(None).cast("bigint")).alias(name) for name in LEFT_OUT]
    return [F.count_if(F.col(sc.LEFT_OUT) == name).alias(name) for name in LEFT_OUT]


def measure_newest(rows: DataFrame) -> int | None:
    """Return the time (micros since 1970) of the newest row with a finite target; None where no such row has a time.

    Parameters
    ----------
    rows
        The whole source as `spark_columns.fit_columns` gives it, without bounds.
    """
    labelled = rows.where(sc.is_usable() & (F.col(sc.TIME) != sc.NO_TIME))
    newest: int | None = labelled.agg(F.max(sc.TIME).alias("newest")).toArrow()["newest"][0].as_py()
    return newest


def measure_largest_parts(rows: DataFrame, salted: pa.Table, key_types: Mapping[str, str], seed: int) -> dict[str, int]:
    """Return, by key id, the rows of the largest part of each salted key: identical rows are all in one.

    Parameters
    ----------
    rows
        The source as `spark_columns.fit_columns` gives it.
    salted
        Rows of a plan: `key_id, key, n_parts`.
    """
    keys = upload(rows.sparkSession, salted).select("key_id", "n_parts", *sc.typed_keys(key_types))
    usable = rows.where(sc.is_usable())
    joined = usable.join(F.broadcast(keys), sc.same_key(usable, keys, len(key_types)))
    part = sc.part_of("salt", seed, F.col("n_parts"))
    counts = joined.groupBy("key_id", part.alias("part")).count().groupBy("key_id").agg(F.max("count").alias("rows"))
    return {row["key_id"]: row["rows"] for row in counts.toArrow().to_pylist()}


def measure_cutoff(rows: DataFrame, share: float) -> int | None:
    """Return the moment (micros since 1970) from which rows are the holdout, for all keys and levels.

    Counted over the whole source, whatever the scope: a carrier's model is the same in its own run and in a
    full one. Counts per hour are exact however the rows are partitioned; a short history is counted finer.

    Parameters
    ----------
    rows
        The whole source as `spark_columns.fit_columns` gives it.
    share
        Share of the usable rows that should be held out.
    """
    timed = rows.where(sc.is_usable() & (F.col(sc.TIME) != sc.NO_TIME)).select(sc.TIME)
    width = _HOUR_US
    counts = _bucket_counts(timed, width)
    while 0 < counts.num_rows < _MIN_BUCKETS and (finer := _finer_width(counts, width)) < width:
        width = finer
        counts = _bucket_counts(timed, width)
    return holdout_cutoff(counts["bucket"].to_numpy(), counts["rows"].to_numpy(), share)


def _finer_width(counts: pa.Table, width_us: int) -> int:
    """Return the finest width of which the counted span has not too many."""
    starts = counts["bucket"].to_numpy()
    span = int(starts.max() - starts.min()) + width_us
    return min((finer for finer in _FINER_US if finer < width_us and span // finer <= _MAX_BUCKETS), default=width_us)


def _bucket_counts(timed: DataFrame, width_us: int) -> pa.Table:
    start = F.col(sc.TIME) - F.pmod(F.col(sc.TIME), F.lit(width_us))
    return timed.groupBy(start.alias("bucket")).agg(F.count(F.lit(1)).alias("rows")).toArrow()


def count_slots(frame: DataFrame) -> int:
    """Return how many tasks run at the same time, as far as a session tells: the partitions of a range."""
    spark = frame.sparkSession
    return max(1, spark.range(10_000).select(F.spark_partition_id()).distinct().count())
