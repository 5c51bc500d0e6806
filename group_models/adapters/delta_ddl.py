"""The tables as Delta tables: their DDL, and how one that exists differs from what this version writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from group_models.tables import Column, Table

SCHEMA_VERSION = 1
"""Raised with each column that is added; kept as a property of each table."""

NUMBER = Column("append_number", "bigint", "number of the append that the row came with", nullable=False)
APPEND = Column("append_id", "string", "the attempt whose append it was", nullable=False)

COMMITS = Table(
    "group_model_commit",
    "one row: an append of which no row is left in its table, or never was one; its number stays taken",
    (
        Column("model_set", "string", "name of the model set, catalog.schema.name", nullable=False),
        Column("of_table", "string", "table of the append", nullable=False),
        Column("owner", "string", "run whose number it is, or log", nullable=False),
    ),
)


def stored(table: Table) -> Table:
    """Return a table with the columns that tell whose append a row came with."""
    return dataclasses.replace(table, columns=(*table.columns, NUMBER, APPEND))


def create(table: Table, name: str, location: str | None = None) -> str:
    """Return the statement that makes a table unless it is there.

    Parameters
    ----------
    table
        With the columns of `stored`.
    name
        Full name, quoted.
    location
        Folder of an external table; None for one that the catalog manages.
    """
    place = f" LOCATION '{location.rstrip('/')}/{table.name}'" if location else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {name} ({table.ddl()}) USING delta{place} COMMENT '{_escaped(table.comment)}' "
        f"TBLPROPERTIES ('group_models.schema_version' = '{SCHEMA_VERSION}')"
    )


def add_columns(table: Table, name: str, found: Mapping[str, str]) -> str | None:
    """Return the statement that adds what an older version's table has not, or None.

    A column that may not be null is added as one that may: the rows that are there have no value.
    """
    names = {each.lower() for each in found}
    absent = [dataclasses.replace(c, nullable=True).ddl() for c in table.columns if c.name not in names]
    return f"ALTER TABLE {name} ADD COLUMNS ({', '.join(absent)})" if absent else None


def differences(table: Table, found: Mapping[str, str]) -> list[str]:
    """Return how the columns of an existing table (name to Spark type) contradict what is written here.

    Columns that are absent are none: they are added. Nor are further ones that may be null: they stay null.
    """
    types = {name.lower(): kind for name, kind in found.items()}
    wrong = [
        f"{column.name} is {types[column.name]}, not {column.type}"
        for column in table.columns
        if types.get(column.name, column.type) != column.type
    ]
    required = [column.name for column in table.columns if not column.nullable and column.name not in types]
    return wrong + [f"it has no {name}" for name in required]


def _escaped(text: str) -> str:
    return text.replace("'", "\\'")
