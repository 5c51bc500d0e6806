"""Rows of a few keys from a source of Parquet files, read without Spark."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from group_models.errors import DataError
from group_models.keys import KeyKind, KeyTexts, parse_key_value
from group_models.spec import is_uri

MAX_BYTES = 4 * 2**30
"""Bytes of files over which a source is left to Spark."""


def read_rows(
    path: str, keys: Sequence[KeyTexts], kinds: Mapping[str, KeyKind], columns: Sequence[str]
) -> pd.DataFrame:
    """Return these columns of all rows of some keys.

    Parameters
    ----------
    path
        A Parquet file, or a folder of such files.
    keys
        Each with the key columns that it names; others are left open.

    Raises
    ------
    DataError
        The source is not a local one of Parquet files, is too large, or lacks a column; the message says which.
    """
    if is_uri(path) or not Path(path).exists():
        raise DataError(f"{path} is no file or folder of this machine")
    if (Path(path) / "_delta_log").exists():
        raise DataError(f"{path} is a Delta table, which only Spark reads")
    try:
        found = ds.dataset(path, format="parquet", partitioning="hive" if Path(path).is_dir() else None)
        size = sum(Path(file).stat().st_size for file in found.files)
        if size > MAX_BYTES:
            raise DataError(f"{path} has {size / 2**30:.1f} GiB; up to {MAX_BYTES / 2**30:.0f} GiB are read here")
        one_of = functools.reduce(operator.or_, [_is_key(key, kinds, found.schema) for key in keys])
        rows: pd.DataFrame = found.to_table(columns=list(columns), filter=one_of).to_pandas()
    except (pa.ArrowException, OSError, KeyError) as e:
        raise DataError(f"{path} cannot be read as Parquet: {str(e).partition(chr(10))[0]}") from e
    return rows


def _is_key(key: KeyTexts, kinds: Mapping[str, KeyKind], schema: pa.Schema) -> ds.Expression:
    parts = [_is_value(name, text, kinds[name], schema.field(name).type) for name, text in key.items()]
    return functools.reduce(operator.and_, parts, ds.scalar(True))  # noqa: FBT003 - Arrow's literal


def _is_value(name: str, text: str | None, kind: KeyKind, type_: pa.DataType) -> ds.Expression:
    if text is None:
        return ds.field(name).is_null()
    plain = type_.value_type if pa.types.is_dictionary(type_) else type_
    return ds.field(name) == pa.scalar(parse_key_value(text, kind), plain)
