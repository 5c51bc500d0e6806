"""Read what is to be scored and write what was scored: a path or a table each."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from group_models.adapters import spark_columns
from group_models.adapters.spark_source import first_line, open_path
from group_models.errors import DataError, StateError

_TABLE = re.compile(r"^[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*){0,2}$")
_REFUSED_BY_DELTA = re.compile(r"[ ,;{}()\n\t=]")


def is_table(name: str) -> bool:
    """Return whether a name is a table's: one to three identifiers, and no file or folder of that name.

    Examples
    --------
    >>> is_table("zrl.ml.scored"), is_table("out/scored"), is_table("scored.parquet")
    (True, False, False)
    """
    is_file = name.endswith((".parquet", ".csv", ".json", ".jsonl", ".orc"))
    return bool(_TABLE.match(name)) and "." in name and not is_file and not Path(name).exists()


def read_input(spark: SparkSession, name: str) -> DataFrame:
    """Return the rows of a path or a table.

    Raises
    ------
    DataError
        It is not there or cannot be read.
    """
    try:
        return spark.table(name) if is_table(name) else open_path(spark, name)
    except PySparkException as e:
        raise DataError(f"cannot read {name}: {first_line(e)}") from e


def check_output(spark: SparkSession, output: str, mode: str, source: str) -> None:
    """Refuse an output before anything is scored: it exists, or is the input.

    Raises
    ------
    StateError
        The message names the output and the way out.
    """
    if mode == "overwrite" and (output == source or Path(output).absolute() == Path(source).absolute()):
        raise StateError(f"{output} is the input; writing over it would lose it. Name another output.")
    exists = spark.catalog.tableExists(output) if is_table(output) else _exists(output)
    if mode == "error" and exists:
        raise StateError(f"{output} exists; say --mode append or --mode overwrite, or name another output")


def _exists(output: str) -> bool:
    return "://" not in output and Path(output).exists()


def write_output(frame: DataFrame, output: str, mode: str) -> None:
    """Write scored rows. A local folder appears whole or not at all; `overwrite` swaps it with one rename.

    Raises
    ------
    DataError
        A table cannot have a column of this name.
    """
    if is_table(output):
        refused = [name for name in frame.columns if _REFUSED_BY_DELTA.search(name)]
        if refused:
            named = ", ".join(map(repr, refused))
            raise DataError(
                f"{output}: a table refuses ` ,;{{}}()=` in column names ({named}); rename them, or write a path"
            )
        frame.write.mode(mode).saveAsTable(output)
    elif "://" in output or (mode == "append" and Path(output).exists()):
        frame.write.mode(mode).format(_format(output)).save(_spark_path(output))
    else:
        _write_folder(frame, Path(output).absolute())


def _write_folder(frame: DataFrame, target: Path) -> None:
    """Write beside the target and rename: a killed write leaves the target as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    attempt = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    try:
        frame.write.format(_format(target.name)).save(str(attempt))
        old = target.parent / f".{target.name}.{uuid.uuid4().hex}.old"
        if target.exists():
            target.rename(old)
        attempt.rename(target)
        shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def _format(output: str) -> str:
    return {".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}.get(Path(output).suffix, "parquet")


def _spark_path(output: str) -> str:
    return output if "://" in output else str(Path(output).absolute())


def count_statuses(spark: SparkSession, output: str, column: str) -> dict[str, int]:
    """Return the rows of an output by score status, most first."""
    frame = read_input(spark, output)
    rows = frame.groupBy(spark_columns.named(column).alias("status")).count().collect()
    return {row["status"]: row["count"] for row in sorted(rows, key=lambda row: -row["count"])}
