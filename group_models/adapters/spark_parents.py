"""The most specific parent of each key, among a few that stand on the driver."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from group_models.adapters.spark_columns import upload


def with_nearest(
    keys: DataFrame, parents: Sequence[Mapping[str, Any]], levels: Sequence[Sequence[str]], names: Sequence[str]
) -> DataFrame:
    """Return keys (with their `key` map) with numbers of the most specific parent of each, null without one.

    Parameters
    ----------
    parents
        Of each its `key` by column, and whole numbers of these names.
    levels
        Columns of the levels of the parents, from specific to general.
    """
    found: list[int] = []
    for place, level in enumerate(levels):
        of_level = [row for row in parents if set(row["key"]) == set(level)]
        if of_level:
            keys = _joined(keys, of_level, level, {name: f"{name}_{place}" for name in names})
            found.append(place)
    for name in names:
        of_levels = [f"{name}_{place}" for place in found]
        nearest = F.coalesce(*of_levels, F.lit(None)).cast("int")
        keys = keys.withColumn(name, nearest).drop(*of_levels)
    return keys


def _joined(
    keys: DataFrame, parents: Sequence[Mapping[str, Any]], level: Sequence[str], names: Mapping[str, str]
) -> DataFrame:
    """Return keys with the numbers of their parents of one level, under other names."""
    if not level:
        (row,) = parents
        return keys.select("*", *[F.lit(row[name]).alias(own) for name, own in names.items()])
    texts = {f"parent_key_{place}": column for place, column in enumerate(level)}
    rows = [
        {short: row["key"][column] for short, column in texts.items()}
        | {own: row[name] for name, own in names.items()}
        for row in parents
    ]  # fmt: skip
    types = dict.fromkeys(texts, pa.string()) | dict.fromkeys(names.values(), pa.int32())
    table = F.broadcast(upload(keys.sparkSession, pa.Table.from_pylist(rows, pa.schema(types))))
    is_of = [F.col("key").getItem(column).eqNullSafe(F.col(short)) for short, column in texts.items()]
    return keys.join(table, functools.reduce(operator.and_, is_of), "left").drop(*texts)
