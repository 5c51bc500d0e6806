"""Open the source of a spec, and check a scope's predicate, without starting a job."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_models.adapters.delta_errors import answer
from group_models.adapters.spark_columns import named, named_keys, upload
from group_models.adapters.spark_errors import SPARK_ERRORS, first_line
from group_models.errors import DataError, SpecError
from group_models.estimators.objects import resolve
from group_models.keys import KeyTexts
from group_models.loading import is_missing
from group_models.planning.scopes import Scope
from group_models.spec import Source, is_uri

_QUOTED = re.compile(r"'(?:[^'\\\\]|\\\\.)*'|\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")
_UNSTABLE = re.compile(r"\b(select|rand|randn|random|uuid|now|current_\w+|shuffle|monotonically_\w+)\b", re.IGNORECASE)
"""What makes a predicate true for other keys the next time it is asked, or reads other tables."""

_NAMES = re.compile(r"'(?:[^'\\]|\\.)*'|\"((?:[^\"\\]|\\.)*)\"|`((?:[^`]|``)*)`")
"""Texts and quoted names of a predicate; the groups are what may be a name (in double quotes: a setting of Spark)."""

_STRICT = {"and", "or", "not", "in", "between", "like", "true", "false"}
"""Words of predicates that are null where what decides them is."""

_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}


def open_source(spark: SparkSession, source: Source) -> DataFrame:
    """Return the rows of a source, lazily.

    Raises
    ------
    DataError
        It is not there, or cannot be read; the message names it.
    """
    try:
        return _open(spark, source)
    except SPARK_ERRORS as e:
        needs = "SELECT on it, USE CATALOG and USE SCHEMA"
        raise DataError(f"cannot open the source ({source.describe()}): {answer(e, needs=needs)}") from e


def _open(spark: SparkSession, source: Source) -> DataFrame:
    if source.path is not None:
        return open_path(spark, source.path, source.format)
    if source.table is not None:
        return spark.table(source.table)
    if source.sql is not None:
        return spark.sql(source.sql)
    if source.python is not None:
        return _as_frame(spark, _called(spark, source.python))
    return _as_frame(spark, source.frame)


def _called(spark: SparkSession, path: str) -> Any:
    """Return what the user's function makes of the session."""
    function = resolve(path, where="the source")
    try:
        return function(spark)
    except Exception as e:
        raise DataError(f"the source python: {path} raised {type(e).__name__}: {first_line(e)}") from e


def open_path(spark: SparkSession, path: str, format_: str | None = None) -> DataFrame:
    """Return the rows of a file or folder; the format is known from its ending, else Parquet.

    Raises
    ------
    DataError
        There is no such local path.
    """
    if is_missing(path):
        raise DataError(
            f"there is no {path} (a path in a spec is relative to the spec's file, others to where you are)"
        )
    format_ = format_ or _FORMATS.get(Path(path).suffix.lower(), "parquet")
    reader = spark.read.format(format_)
    if format_ == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    frame = reader.load(path if is_uri(path) else str(Path(path).absolute()))
    _ = frame.schema
    return frame


def _as_frame(spark: SparkSession, frame: Any) -> DataFrame:
    """Return a Spark frame of what a user gave; classic and Connect frames are told apart from pandas by methods."""
    if isinstance(frame, pd.DataFrame):
        return spark.createDataFrame(frame) if len(frame) else _without_rows(spark, frame)
    if not hasattr(frame, "groupBy") or not hasattr(frame, "schema"):
        raise DataError(f"the source is a {type(frame).__name__}; give a Spark or pandas DataFrame")
    return frame  # type: ignore[no-any-return]


def _without_rows(spark: SparkSession, frame: pd.DataFrame) -> DataFrame:
    """Return a frame of the same columns; Spark infers no types from an empty one, and objects are taken for text."""
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    text = [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema]
    return upload(spark, pa.schema(text).empty_table())


def check_predicate(spark: SparkSession, where: str, key_types: Mapping[str, str], *, named: str = "where") -> None:
    """Refuse a scope, or what `named` says in messages, that reads other columns than keys, or is no predicate.

    Raises
    ------
    SpecError
        It says what the scope may use.
    """
    what = "a scope" if named == "where" else "a rule"
    if not where:
        said = "where is empty; leave it out for all keys, or write a predicate on the key columns"
        raise SpecError([said], where="the call")
    if unstable := _UNSTABLE.search(_QUOTED.sub("''", where)):
        said = f"{named} {where!r}: {unstable[0]} is not allowed; {what} must name the same keys whenever it is asked"
        raise SpecError([said], where="the call")
    columns = ", ".join(f"`{name.replace('`', '``')}` {spark_type}" for name, spark_type in key_types.items())
    try:
        _ = spark.createDataFrame([], columns).where(where).schema
    except PySparkException as e:
        columns = ", ".join(key_types)
        rule = f"{what} is a SQL predicate on the key columns ({columns}); filter rows by other columns in `source`"
        raise SpecError([f"{named} {where!r}: {first_line(e)}; {rule}"], where="the call") from e


def in_scope(frame: DataFrame, scope: Scope, keys: Sequence[str]) -> DataFrame:
    """Return the rows of a scope's keys.

    A list of keys is joined by the texts of their values: a value that the column's type cannot hold is in no row,
    while a cast of it could become null and meet the null keys.
    """
    if scope.where is not None:
        return frame.where(scope.where)
    if scope.keys is None:
        return frame
    levels = sorted({tuple(name for name in keys if name in key) for key in scope.keys.values()}, key=len)
    if levels and not levels[0]:
        return frame
    if len(levels) < 2:
        level = levels[0] if levels else tuple(keys)
        return frame.join(*_listed(frame, scope.keys.values(), level, 0), "left_semi")
    marked = frame
    for place, level in enumerate(levels):
        of_level = [key for key in scope.keys.values() if set(key) == set(level)]
        marked = marked.join(*_listed(frame, of_level, level, place), "left")
    is_listed = [named(_mark(place)).isNotNull() for place in range(len(levels))]
    return marked.where(functools.reduce(operator.or_, is_listed)).select(*map(named, frame.columns))


def _listed(frame: DataFrame, keys: Iterable[KeyTexts], level: Sequence[str], place: int) -> tuple[DataFrame, Column]:
    """Return keys or parents of one level as a frame to join, and what makes a row one of theirs."""
    names = {name: f"group_models scope {place} {i}" for i, name in enumerate(level)}
    rows = list(keys)
    columns = {short: pa.array([key[name] for key in rows], pa.string()) for name, short in names.items()}
    listed = upload(frame.sparkSession, pa.table(columns | {_mark(place): pa.array([True] * len(rows), pa.bool_())}))
    same = [named(name).cast("string").eqNullSafe(named(short)) for name, short in names.items()]
    return F.broadcast(listed), functools.reduce(operator.and_, same)


def _mark(place: int) -> str:
    return f"group_models scope {place}"


def ids_in_scope(spark: SparkSession, scope: Scope, key_types: Mapping[str, str], keys: pd.DataFrame) -> set[str]:
    """Return the ids of the keys and parents (columns `key_id`, `key` as dict) that a scope holds.

    Of a predicate, a parent is in scope where it is true whatever the columns are that the parent leaves open: it
    reads none of them, or it would be null where they are null and is true all the same.
    """
    if scope.where is None:
        return set(keys["key_id"][scope.holds(keys["key_id"].tolist())])
    levels = [tuple(key) for key in keys["key"]]
    decided = {level for level in set(levels) if decides(scope.where, level, list(key_types))}
    return set(keys_in_scope(spark, scope.where, key_types, keys[[level in decided for level in levels]]))


def decides(where: str, level: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a predicate that is true where the columns besides a level are null is true whatever they are.

    Parameters
    ----------
    names
        All columns that the predicate may read.

    Examples
    --------
    >>> decides("carrier = 'UA' or stop > 3", ["carrier"], ["carrier", "stop"])
    True
    >>> [decides(f"stop {said}", [], ["stop"]) for said in ("is null", "<=> 3")]
    [False, False]
    """
    found = (match[1] or match[2] for match in _NAMES.finditer(where))
    quoted = {name.replace("``", "`").lower() for name in found if name}
    # Spark takes `2nd` for a name without quotes, and `2` for a number.
    words = {*quoted, *(word for word in re.findall(r"\w+", _NAMES.sub(" ", where).lower()) if not word.isdigit())}
    columns = {name.lower() for name in names}
    reads_no_other = words.isdisjoint(columns - {name.lower() for name in level})
    return reads_no_other or ("<=>" not in where and words <= columns | _STRICT)


def is_empty(rows: DataFrame) -> bool:
    """Return whether there is no row; Spark stops at the first one."""
    return not rows.take(1)


def keys_in_scope(spark: SparkSession, where: str, key_types: Mapping[str, str], keys: pd.DataFrame) -> list[str]:
    """Return the ids of the keys (columns `key_id`, `key` as dict) for which a scope's predicate is true."""
    if keys.empty:
        return []
    given = spark.createDataFrame(
        [(key_id, dict(key)) for key_id, key in zip(keys["key_id"], keys["key"], strict=True)],
        "key_id string, key map<string,string>",
    )
    typed = given.select("key_id", *named_keys(key_types))
    return [row["key_id"] for row in typed.where(where).select("key_id").collect()]
