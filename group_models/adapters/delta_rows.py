"""Rows and columns of a table as Spark frames, as the port of tables asks for them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from group_models.adapters.spark_columns import is_one_of
from group_models.ports import SparkFrame, Where
from group_models.tables import Table


def check_names(table: Table, names: Collection[str], where: Where | None) -> None:
    """Refuse a name that is no column of the table.

    Raises
    ------
    KeyError
        It names both.
    """
    for name in (*names, *(where or {})):
        if name not in table.names:
            raise KeyError(f"table {table.name} has no column {name}")


def selected(found: SparkFrame, table: Table, names: Sequence[str], where: Where | None) -> SparkFrame:
    """Return rows and columns asked for; a column that an older version's table does not have is null."""
    check_names(table, names, where)
    types = {column.name: column.type for column in table.columns}
    whole = found.select(*[taken(found, name, types[name]) for name in {**dict.fromkeys(names), **(where or {})}])
    for name, values in (where or {}).items():
        whole = whole.where(is_one_of(F.col(name), values))
    return whole.select(*names)


def taken(frame: SparkFrame, name: str, kind: str) -> SparkColumn:
    """Return a frame's column cast to a type; null where the frame has none of that name."""
    column = F.col(f"`{name}`") if name in frame.columns else F.lit(None)
    return column.cast(kind).alias(name)


def all_of(conditions: Sequence[SparkColumn]) -> SparkColumn:
    """Return the condition that holds where all do."""
    return functools.reduce(operator.and_, conditions)
