"""A source that has versions is read at one of them, in every wave of a run and when it goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from group_models.adapters.delta_errors import said
from group_models.adapters.delta_making import quoted
from group_models.adapters.spark_errors import SPARK_ERRORS
from group_models.errors import DataError
from group_models.spec import Source, is_uri


@dataclasses.dataclass(frozen=True)
class Pinned:
    """A source as a run reads it.

    Attributes
    ----------
    frame
        Its rows.
    version
        The version that they are of; None of a source that has none, or cannot be read at one.
    why_not
        Why a source that has versions is not read at one, or None.
    """

    frame: DataFrame
    version: str | None = None
    why_not: str | None = None


def pin(spark: SparkSession, source: Source, frame: DataFrame) -> Pinned:
    """Return a Delta table at its newest version, any other source as it is.

    A table with row filters or column masks has versions and lets nobody read one (Unity Catalog): it is read as it
    is, and why is told.
    """
    name = _delta_name(source)
    version = None if name is None else _newest(spark, name)
    if name is None or version is None:
        return Pinned(frame)
    try:
        return Pinned(_at(spark, name, version), version)
    except SPARK_ERRORS as e:
        why_not = f"the source ({source.describe()}) cannot be read at a version, so each wave reads it as it then is"
        return Pinned(frame, None, f"{why_not}: {said(e)}")


def pin_at(spark: SparkSession, source: Source, version: str, run_id: str) -> Pinned:
    """Return a source at the version that a run started with.

    Raises
    ------
    DataError
        That version cannot be read any more.
    """
    name = _delta_name(source)
    if name is None:
        raise DataError(f"run {run_id} started on version {version} of a Delta table; {source.describe()} is none")
    try:
        return Pinned(_at(spark, name, version), version)
    except SPARK_ERRORS as e:
        raise DataError(
            f"run {run_id} started on version {version} of the source ({source.describe()}), which can be read no "
            f"more: {said(e)}. Start a new run"
        ) from e


def _delta_name(source: Source) -> str | None:
    """Return what names a source in SQL where it may be a Delta table, else None."""
    if source.table is not None:
        return source.table if "`" in source.table else quoted(source.table)
    if source.path is not None and source.format == "delta":
        path = source.path if is_uri(source.path) else str(Path(source.path).absolute())
        return f"delta.`{path}`"
    return None


def _newest(spark: SparkSession, name: str) -> str | None:
    """Return the newest version of a Delta table; None of a view, or of a table of another format."""
    try:
        found = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("version").collect()
    except SPARK_ERRORS:
        return None
    return str(found[0][0]) if found else None


def _at(spark: SparkSession, name: str, version: str) -> DataFrame:
    frame = spark.sql(f"SELECT * FROM {name} VERSION AS OF {int(version)}")  # noqa: S608 - a number and a table's name
    _ = frame.schema
    return frame
