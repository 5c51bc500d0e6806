"""Read what is to be scored and write what was scored: a path or a table each."""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from group_models.adapters import spark_columns
from group_models.adapters.delta_errors import answer
from group_models.adapters.spark_errors import SPARK_ERRORS, failing
from group_models.adapters.spark_source import open_path
from group_models.errors import DataError, StateError
from group_models.spec import is_uri

_WAREHOUSE = Path("spark-warehouse")
"""Where a session without another setting keeps its tables."""

_TABLE = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*){0,2}")
_REFUSED_BY_DELTA = re.compile(r"[ ,;{}()\n\t=]")


def is_table(name: str) -> bool:
    """Return whether a name is a table's: one to three identifiers, and no file or folder of that name.

    Examples
    --------
    >>> is_table("zrl.ml.scored"), is_table("out/scored"), is_table("scored.parquet")
    (True, False, False)
    """
    is_file = name.endswith((".parquet", ".csv", ".json", ".jsonl", ".orc"))
    return bool(_TABLE.fullmatch(name)) and "." in name and not is_file and not Path(name).exists()


def read_input(spark: SparkSession, name: str) -> DataFrame:
    """Return the rows of a path or a table.

    Raises
    ------
    DataError
        It is not there or cannot be read.
    """
    had_warehouse = _WAREHOUSE.exists()
    try:
        return spark.table(name) if is_table(name) else open_path(spark, name)
    except SPARK_ERRORS as e:
        if not had_warehouse:
            # Spark makes it when it looks for the first table; it stays where something is in it.
            with contextlib.suppress(OSError):
                _WAREHOUSE.rmdir()
        raise DataError(f"cannot read {name}: {answer(e, needs=f'SELECT on {name}')}") from e


def check_output(spark: SparkSession, output: str, mode: str, kept: Mapping[str, str]) -> None:
    """Refuse an output before anything is scored: it exists, or writing it would remove something else.

    Parameters
    ----------
    kept
        What must stay, by what it is: input, spec, warehouse, working directory.

    Raises
    ------
    StateError
        The message names the output and the way out.
    """
    with failing(f"looking for {output}"):
        exists = spark.catalog.tableExists(output) if is_table(output) else _exists(output)
    if mode == "error" and exists:
        raise StateError(f"{output} exists; say --mode append or --mode overwrite, or name another output")
    if mode != "overwrite" or not exists:
        return
    if is_table(output):
        if output == kept.get("input"):
            raise StateError(f"{output} is the input; writing over it would lose it. Name another output.")
        return
    _check_replaceable(Path(output).resolve(), kept)


def _check_replaceable(target: Path, kept: Mapping[str, str]) -> None:
    """Refuse to replace a folder that is not an earlier output, or with which something would go that must stay."""
    for what, place in kept.items():
        path = Path(place).resolve()
        if is_uri(place) or not path.exists():
            continue
        is_inside = target.is_relative_to(path) and what != "working directory"
        if is_inside or path.is_relative_to(target):
            said = "is" if path == target else "lies in" if is_inside else "holds"
            raise StateError(f"{target} {said} the {what}; writing over it would lose it. Name another output.")
    strange = [entry.name for entry in target.iterdir() if not _is_output(entry)] if target.is_dir() else []
    if strange:
        raise StateError(
            f"{target} holds {', '.join(sorted(strange)[:3])}, so it is no earlier output and is not replaced; "
            "name another output, or remove it yourself"
        )


def _is_output(entry: Path) -> bool:
    return entry.is_file() and entry.name.startswith(("part-", "_", ".part-", "._"))


def _exists(output: str) -> bool:
    return not is_uri(output) and Path(output).exists()


def write_output(frame: DataFrame, output: str, mode: str) -> None:
    """Write scored rows. A new local folder appears whole or not at all.

    Raises
    ------
    DataError
        A table cannot have a column of this name, or the query failed.
    """
    with failing(f"scoring into {output}"):
        if is_table(output):
            _check_table_names(frame, output)
            frame.write.mode(mode).saveAsTable(output)
        elif is_uri(output) or (mode == "append" and Path(output).exists()):
            _writer(frame, output).mode(mode).save(_spark_path(output))
        else:
            _write_folder(frame, Path(output).absolute())


def _check_table_names(frame: DataFrame, output: str) -> None:
    refused = ", ".join(repr(name) for name in frame.columns if _REFUSED_BY_DELTA.search(name))
    if refused:
        rule = "a table refuses ` ,;{}()=` in column names"
        raise DataError(f"{output}: {rule} ({refused}); rename them, or write a path")


def _write_folder(frame: DataFrame, target: Path) -> None:
    """Write beside the target, then rename: what was there stays until all is written, and comes back on failure.

    Only between the two renames is there neither; the old one is then beside the target under a hidden name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    attempt, old = (target.parent / f".{target.name}.{uuid.uuid4().hex}{end}" for end in ("", ".old"))
    try:
        _writer(frame, target.name).save(str(attempt))
        if target.exists():
            target.rename(old)
        try:
            attempt.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        _remove(old)
    finally:
        _remove(attempt)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _writer(frame: DataFrame, output: str) -> DataFrameWriter:
    """Return a writer of the format that an output's ending names, else Parquet; CSV has its column names."""
    formats = {".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}
    return frame.write.format(formats.get(Path(output).suffix, "parquet")).option("header", "true")


def _spark_path(output: str) -> str:
    return output if is_uri(output) else str(Path(output).absolute())


def _is_absent(error: PySparkException) -> bool:
    return error.getCondition() == "PATH_NOT_FOUND"


def count_statuses(spark: SparkSession, output: str, column: str) -> dict[str, int]:
    """Return the rows of an output by score status, most first; none of one that is not there."""
    if not (spark.catalog.tableExists(output) if is_table(output) else is_uri(output) or Path(output).exists()):
        return {}
    try:
        frame = read_input(spark, output)
    except DataError as e:
        if is_uri(output) and isinstance(e.__cause__, PySparkException) and _is_absent(e.__cause__):
            return {}
        raise
    if column not in frame.columns:  # a CSV without rows has no columns
        return {}
    rows = frame.groupBy(spark_columns.named(column).alias("status")).count().collect()
    return {row["status"]: row["count"] for row in sorted(rows, key=lambda row: -row["count"])}
