"""Spark columns that mean the same in measuring, training and scoring.

Feature columns travel as `f0`, `f1`, ... and key columns as `k0`, `k1`, ...: so names with dots, blanks,
backticks or brackets never reach a SQL parser or a model library, and no user column meets an internal one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from group_models.adapters.spark_labels import code_of
from group_models.frames import ColumnKind, Roles
from group_models.keys import KEY_ID_LENGTH, KeyKind, key_tag
from group_models.planning.windows import NO_BOUNDS, Bounds
from group_models.ports import known_values

TIME, TARGET, HASH, HOLDOUT, UNIT, INDEX = "time_us", "y", "row_hash", "is_holdout", "unit", "key_index"
LEFT_OUT, WEIGHT = "left_out", "w"

NO_TIME = -(2**63)
"""Time of a row whose time is null: before all others, so such rows are ordered first and never held out."""

_SHARE_STEPS = 2**31 - 1
_UPLOAD_ROWS = 200_000


def named(name: str) -> Column:
    """Return the column of exactly this name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def column_types(frame: DataFrame) -> dict[str, str]:
    """Return name to Spark type; nested and parametrised types as Spark prints them."""
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def micros(column: Column, spark_type: str) -> Column:
    """Return a time as whole microseconds since 1970, without the session's zone for types that have none."""
    if spark_type == "date":
        return F.unix_date(column).cast("bigint") * F.lit(86_400_000_000)
    if spark_type == "timestamp":
        return F.unix_micros(column)
    day = F.unix_date(column.cast("date")).cast("bigint") * F.lit(86_400_000_000)
    seconds = F.hour(column).cast("bigint") * 3600 + F.minute(column).cast("bigint") * 60
    fraction = (F.extract(F.lit("SECOND"), column) * 1_000_000).cast("bigint")
    return day + seconds * F.lit(1_000_000) + fraction


def feature(name: str, kind: ColumnKind) -> Column:
    """Return a feature as the fit takes it: double, or text."""
    return named(name).cast("double" if kind == "numeric" else "string")


def feature_names(count: int) -> list[str]:
    """Return the names that features travel under."""
    return [f"f{i}" for i in range(count)]


def key_names(count: int) -> list[str]:
    """Return the names that key columns travel under."""
    return [f"k{i}" for i in range(count)]


def fit_columns(frame: DataFrame, roles: Roles, bounds: Bounds = NO_BOUNDS) -> DataFrame:
    """Return key columns, time, target, row hash and features, and of the rows those with a usable target or not.

    One row per row of the source: `k0.. , time_us bigint, y double, f0.. double or string, row_hash bigint`, and where
    the spec names a sample weight `w double`. Nothing else of the source is read. Where rows are left out, there is one
    more column, `left_out`: of those with a finite target the name of the count (`windows.LEFT_OUT`) that they go into.
    Their `y` is null: a row that is not usable here is not usable anywhere.
    """
    time = F.lit(0).cast("bigint") if roles.time is None else micros(named(roles.time[0]), roles.time[1])
    features = [
        feature(name, kind).alias(short)
        for short, (name, kind) in zip(feature_names(len(roles.features)), roles.features.items(), strict=True)
    ]
    keys = [named(name).alias(short) for short, name in zip(key_names(len(roles.keys)), roles.keys, strict=True)]
    time = F.coalesce(time, F.lit(NO_TIME)).alias(TIME)
    weight = [] if roles.weight is None else [named(roles.weight).cast("double").alias(WEIGHT)]
    # A label is hashed as text: its code changes where the set gets another label.
    target = named(roles.target).cast("double" if roles.labels is None else "string").alias(TARGET)
    selected = frame.select(*keys, time, target, *weight, *features)
    weighted = [WEIGHT] if weight else []
    hashed = selected.withColumn(HASH, row_hash([TARGET, TIME, *weighted, *feature_names(len(features))]))
    if roles.labels is not None:
        hashed = hashed.withColumn(TARGET, code_of(F.col(TARGET), roles.labels))
    return _without(hashed, _why_left_out(roles, bounds))


def weight_columns(rows: DataFrame) -> list[str]:
    """Return the column of sample weights as a list, empty where rows have none."""
    return [WEIGHT] if WEIGHT in rows.columns else []


def _why_left_out(roles: Roles, bounds: Bounds) -> list[tuple[str, Column]]:
    """Return, by the name of its count, when a row is left out; the first that is true says why."""
    found = []
    if roles.weight is not None:
        # Spark takes NaN for larger than infinity.
        is_weight = (F.col(WEIGHT) > F.lit(0.0)) & (F.col(WEIGHT) < F.lit(float("inf")))
        found.append(("unweighted_rows", ~F.coalesce(is_weight, F.lit(False))))  # noqa: FBT003 - a literal column
    if bounds.after_us is not None:
        found.append(("old_rows", F.col(TIME) <= F.lit(bounds.after_us)))
    if bounds.until_us is not None:
        found.append(("immature_rows", F.col(TIME) > F.lit(bounds.until_us)))
    return found


def _without(rows: DataFrame, why: Sequence[tuple[str, Column]]) -> DataFrame:
    """Return the rows with `left_out`, and without a target where that is set; as they are where there is no why."""
    if not why:
        return rows
    said = F.coalesce(*(F.when(is_out, F.lit(name)) for name, is_out in why))
    marked = rows.withColumn(LEFT_OUT, F.when(is_usable(), said))
    return marked.withColumn(TARGET, F.when(F.col(LEFT_OUT).isNull(), F.col(TARGET)))


def at_level(rows: DataFrame, key_types: Mapping[str, str], level: Sequence[str]) -> DataFrame:
    """Return what `fit_columns` gives as the rows of the parents of a level: null in the key columns left open.

    So rows find their parent as they find their key, by all key columns, which of a parent are null where it has none.
    """
    left_open = {
        short: F.lit(None).cast(spark_type)
        for short, (name, spark_type) in zip(key_names(len(key_types)), key_types.items(), strict=True)
        if name not in level
    }
    return rows.withColumns(left_open) if left_open else rows


def row_hash(names: Sequence[str]) -> Column:
    """Return the hash of these columns, each with its null flag.

    Plain `xxhash64` skips nulls, so that `(null, 1)` and `(1, null)` would be equal (seen in Spark 4.0 to 4.2).
    """
    pairs = [(F.col(name).isNull(), F.col(name)) for name in names]
    return F.xxhash64(*functools.reduce(operator.add, pairs))


def is_chosen(purpose: str, seed: int, share: Column | float) -> Column:
    """Return whether a row is in the share of rows that is chosen for a purpose.

    Each purpose hashes the row hash anew: with one hash for all, a holdout would empty whole samples.
    """
    again = F.xxhash64(F.col(HASH), F.lit(purpose), F.lit(seed))
    chosen = share if isinstance(share, Column) else F.lit(share)
    return F.pmod(again, F.lit(_SHARE_STEPS)) < chosen * F.lit(float(_SHARE_STEPS))


def copies_kept(seed: int, copies: Column, share: Column) -> Column:
    """Return how many of a row's copies are in a share of the rows: the share of them, one more or less by its hash."""
    again = F.xxhash64(F.col(HASH), F.lit("sample"), F.lit(seed))
    fraction = F.pmod(again, F.lit(_SHARE_STEPS)) / F.lit(float(_SHARE_STEPS))
    return F.floor(copies * share + fraction).cast("int")


def part_of(purpose: str, seed: int, count: Column) -> Column:
    """Return which of `count` parts a row is in for a purpose, from 0; identical rows are in one part."""
    return F.pmod(F.xxhash64(F.col(HASH), F.lit(purpose), F.lit(seed)), count).cast("int")


def is_usable() -> Column:
    """Return whether a row has a finite target."""
    return F.col(TARGET).isNotNull() & ~F.isnan(TARGET) & (F.abs(F.col(TARGET)) < F.lit(float("inf")))


def key_id_column(columns: Sequence[Column], kinds: Sequence[KeyKind]) -> Column:
    """Return the key id, equal to `keys.key_id` of the same values."""
    parts = [_canonical(column.cast("string"), kind) for column, kind in zip(columns, kinds, strict=True)]
    return F.substring(F.sha2(F.concat(F.lit(""), *parts), 256), 1, KEY_ID_LENGTH)


def _canonical(text: Column, kind: KeyKind) -> Column:
    value = F.concat(F.lit(key_tag(kind)), F.octet_length(text).cast("string"), F.lit(":"), text)
    return F.coalesce(value, F.lit("n"))


def key_map(columns: Sequence[Column], names: Sequence[str]) -> Column:
    """Return the key as a map from column name to text."""
    pairs = [(F.lit(name), column.cast("string")) for name, column in zip(names, columns, strict=True)]
    return F.create_map(*functools.reduce(operator.add, pairs, ()))


def is_one_of(column: Column, values: Collection[str | int | None]) -> Column:
    """Return whether a column has one of these values, null among them."""
    known = known_values(values)
    is_known = column.isin(known) if known else F.lit(False)  # noqa: FBT003 - a literal
    return is_known | column.isNull() if None in values else is_known


def packed(lines: Sequence[Column]) -> Column:
    """Return a model as one value that crosses to Python: a line for each of these, then the column `data`."""
    text = F.concat_ws("\n", *lines, F.lit(""))
    return F.concat(text.cast("binary"), F.coalesce("data", F.lit(b"")))


def named_keys(types: Mapping[str, str]) -> list[Column]:
    """Return the key columns under their own names, read back from a `key` map, in the given Spark types."""
    return [F.col("key").getItem(name).cast(spark_type).alias(name) for name, spark_type in types.items()]


def typed_keys(types: Mapping[str, str]) -> list[Column]:
    """Return the columns `k0, k1, ...` read back from a `key` map, in the given Spark types."""
    return [
        F.col("key").getItem(name).cast(spark_type).alias(short)
        for short, (name, spark_type) in zip(key_names(len(types)), types.items(), strict=True)
    ]


def same_key(left: DataFrame, right: DataFrame, count: int) -> Column:
    """Return the null-safe join condition on the key columns of two frames."""
    return functools.reduce(operator.and_, [left[k].eqNullSafe(right[k]) for k in key_names(count)])


def upload(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return an Arrow table as a frame, uploaded in chunks: one large local relation fails on Connect.

    Of a table with an empty chunk a classic session takes nothing after that chunk and says nothing (seen in Spark
    4.2): each piece is one chunk.
    """
    if not table.num_rows:
        # Connect takes no schema from an empty Arrow table (seen in Spark 4.2).
        return spark.createDataFrame([], from_arrow_schema(table.schema))
    pieces = [
        spark.createDataFrame(table.slice(start, _UPLOAD_ROWS).combine_chunks())
        for start in range(0, table.num_rows, _UPLOAD_ROWS)
    ]
    return functools.reduce(DataFrame.unionAll, pieces)
