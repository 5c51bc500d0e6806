"""Parquet files of the embedded tables: written into one folder and read back, by Arrow or by Spark."""

from __future__ import annotations

import contextlib
import errno
import functools
import operator
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from group_models.errors import StateError
from group_models.ports import SparkFrame, SparkSession, Where, known_values
from group_models.tables import Table

_ROW_GROUP_BYTES = 16 * 2**20
"""Small row groups: one model is read out of a store without decoding a hundred megabytes of others."""

_FULL = "the disk is full"

_LOCAL = fs.LocalFileSystem()
# Spark writes timestamps as int96; as nanoseconds those would end in the year 2262.
_PARQUET = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
# Parquet looks at a row group's size after 100 rows, if not told otherwise: 500 MB of models of 5 MB.
_WRITE_OPTIONS = {
    "compression": "zstd",
    "parquet.block.size": str(_ROW_GROUP_BYTES),
    "parquet.page.size.row.check.min": "4",
}
_READ_OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
"""A session may be set to skip damaged files or to shift old dates; no row of ours may be lost like that."""


def write(table: Table, rows: pa.Table | SparkFrame, folder: Path) -> None:
    """Write rows into a folder that does not exist yet; a Spark frame is evaluated once.

    Raises
    ------
    StateError
        The folder cannot be written, or Spark wrote to another machine's disk.
    """
    if isinstance(rows, pa.Table):
        _write_arrow(table.conform(rows), folder)
    else:
        _write_frame(table, rows, folder)


def read(table: Table, folders: Sequence[Path], names: Sequence[str], where: Where) -> pa.Table:
    """Return these columns of the rows in these folders, where they match.

    Raises
    ------
    StateError
        A file cannot be read; the message names it.
    """
    schema = pa.schema([table.arrow_schema.field(name) for name in names])
    condition = _condition(table, where)
    files = [str(file) for folder in folders for file in sorted(folder.glob("part-*.parquet"))]
    if not files:
        return schema.empty_table()
    try:
        return _read_files(files, table, names, condition)
    except (pa.ArrowException, OSError) as error:
        raise StateError(_damage(files, table, names, error)) from error


def scan(spark: SparkSession, table: Table, folders: Sequence[Path], names: Sequence[str], where: Where) -> SparkFrame:
    """Return the same as a Spark frame."""
    from group_models.adapters.spark_columns import is_one_of

    if not folders:
        return spark.createDataFrame([], table.spark_schema(names))
    paths = [_escaped(_spark_path(folder)) for folder in folders]
    frame = spark.read.options(**_READ_OPTIONS).schema(table.spark_schema()).parquet(*paths)
    for name, values in where.items():
        frame = frame.where(is_one_of(frame[name], values))
    return frame.select(*names)


def copy(table: Table, source: Path, target: Path, where: Where) -> None:
    """Write the rows of a folder that match into a new one, a row group at a time.

    Raises
    ------
    StateError
        The folder cannot be written.
    """
    files = [str(file) for file in sorted(source.glob("part-*.parquet"))]
    dataset = ds.dataset(files, schema=table.arrow_schema, format=_PARQUET, filesystem=_LOCAL)
    scanner = dataset.scanner(filter=_condition(table, where), batch_size=64, batch_readahead=1, fragment_readahead=1)
    with writing(target.parent):
        target.mkdir()
        with pq.ParquetWriter(str(target / "part-0.parquet"), table.arrow_schema, compression="zstd") as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in scanner.to_batches():
                waiting.append(batch)
                if sum(each.nbytes for each in waiting) >= _ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting = []
            writer.write_table(pa.Table.from_batches(waiting, table.arrow_schema))


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an error of the file system into one that says what to do."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StateError(_not_written(folder, _FULL if is_full else error.strerror or str(error))) from error


@contextlib.contextmanager
def _spark_writing(folder: Path) -> Iterator[None]:
    """Do the same for a full or read-only disk under Spark, whose errors tell it by their text or not at all."""
    from group_models.adapters.spark_errors import SPARK_ERRORS

    try:
        yield
    except SPARK_ERRORS as error:
        if "No space left on device" in str(error):
            reason = f"{_FULL} (this one, or Spark's spark.local.dir)"
        elif folder.exists() and not os.access(folder, os.W_OK):
            reason = "the disk or the folder is read-only"
        else:
            raise
        raise StateError(_not_written(folder, reason)) from error


def _not_written(folder: Path, reason: str) -> str:
    return (
        f"cannot write {folder}: {reason}. Nothing of this append is visible. Make room, give the right to "
        "write or choose another warehouse (--warehouse, GROUP_MODELS_WAREHOUSE, the spec), then run it again"
    )


def _write_arrow(rows: pa.Table, folder: Path) -> None:
    group_rows = max(1, rows.num_rows * _ROW_GROUP_BYTES // max(1, rows.nbytes))
    file = str(folder / "part-0.parquet")
    with writing(folder.parent):
        folder.mkdir()
        pq.write_table(rows, file, filesystem=_LOCAL, compression="zstd", row_group_size=group_rows)


def _write_frame(table: Table, frame: SparkFrame, folder: Path) -> None:
    given = set(frame.columns)
    columns = [
        f"cast({f'`{column.name}`' if column.name in given else 'null'} as {column.type}) as `{column.name}`"
        for column in table.columns
    ]
    with _spark_writing(folder.parent):
        frame.selectExpr(*columns).write.mode("error").options(**_WRITE_OPTIONS).parquet(_spark_path(folder))
    if not any(folder.glob("part-*.parquet")):
        raise StateError(
            f"Spark wrote table {table.name} but nothing arrived in {folder.parent}: its server has another "
            "file system than this process. Use a folder that both share, or tables in a catalog"
        )
    # Without Hadoop's checksums an altered model costs its own key (its digest is in the manifest), not the query.
    for checksum in folder.glob(".*.crc"):
        checksum.unlink()


def _condition(table: Table, where: Where) -> ds.Expression | None:
    terms = [_is_one_of(table, name, values) for name, values in where.items()]
    return functools.reduce(operator.and_, terms) if terms else None


def _is_one_of(table: Table, name: str, values: Collection[str | int | None]) -> ds.Expression:
    kind = table.arrow_schema.field(name).type
    term = ds.field(name).isin(pa.array(known_values(values), kind))
    return term | ds.field(name).is_null() if None in values else term


def _read_files(files: list[str], table: Table, names: Sequence[str], condition: ds.Expression | None) -> pa.Table:
    dataset = ds.dataset(files, schema=table.arrow_schema, format=_PARQUET, filesystem=_LOCAL)
    has_models = any(pa.types.is_binary(table.arrow_schema.field(name).type) for name in names)
    if condition is not None and has_models:
        dataset = _only_matching(dataset, condition)
    return dataset.to_table(columns=list(names), filter=condition)


def _only_matching(dataset: ds.Dataset, condition: ds.Expression) -> ds.Dataset:
    """Leave out row groups without a match, found by reading the filter's columns alone.

    Arrow decodes all columns of a row group before it filters: the models of a whole run for one key.
    """
    groups = [
        group
        for fragment in dataset.get_fragments(condition)
        for group in fragment.split_by_row_group(condition, dataset.schema)
        if group.scanner(schema=dataset.schema, columns=[], filter=condition).count_rows()
    ]
    return ds.FileSystemDataset(groups, dataset.schema, _PARQUET, _LOCAL)


def _damage(files: list[str], table: Table, names: Sequence[str], error: Exception) -> str:
    """Return the sentence that names the first file that cannot be read."""
    for file in files:
        try:
            _read_files([file], table, names, None)
        except (pa.ArrowException, OSError) as cause:
            return (
                f"table {table.name}: file {file} cannot be read ({cause}). It is missing, cut off or "
                "altered: restore it from a backup, or take its folder away and run again what it held"
            )
    return f"table {table.name} cannot be read: {error}"


def _spark_path(folder: Path) -> str:
    # Without the scheme a cluster looks on its default file system. Volumes are paths that Spark knows.
    return str(folder) if folder.parts[1:2] == ("Volumes",) else f"file:{folder}"


def _escaped(path: str) -> str:
    """Escape what Spark would take for a glob when it reads (it does not when it writes)."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)
