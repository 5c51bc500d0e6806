"""What the outside must provide: a place for the tables."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from group_models.tables import Table

SparkFrame: TypeAlias = Any
"""A Spark DataFrame, classic or Connect (the two share no base class before Spark 4)."""

SparkSession: TypeAlias = Any
"""A Spark session, classic or Connect."""

Where: TypeAlias = Mapping[str, Collection[str | int | None]]
"""A row filter: per column the values it may have."""

LOG_OWNER = "log"
"""Owner of the commits of a table that is one log per model set."""


def known_values(values: Collection[str | int | None]) -> list[str | int]:
    """Return a filter's values but null.

    Raises
    ------
    TypeError
        The filter is a text, whose letters would be taken for values.
    """
    if isinstance(values, str):
        raise TypeError(f"a filter is the text {values!r}; give a collection of values")
    return [value for value in values if value is not None]


@dataclasses.dataclass(frozen=True)
class Commit:
    """The identity of one append: one append is one number.

    `owner` is the run whose plan fixed the number, or `LOG_OWNER` in a table that is a log.
    """

    model_set: str
    owner: str
    number: int


class Tables(Protocol):
    """The tables of one schema: append-if-absent, and reads with column and row filters."""

    def append(self, table: Table, rows: pa.Table | SparkFrame, commit: Commit) -> bool:
        """Append rows unless a commit of this identity is there already; return whether these rows went in.

        All rows of an append become visible at once or never. A Spark frame is evaluated exactly once; its
        columns are taken by name. Of two appends at the same time with one identity, exactly one returns True.
        """

    def numbers(self, table: Table, *, model_set: str, owner: str) -> list[int]:
        """Return the numbers that an owner has committed, ascending."""

    def read(self, table: Table, *, columns: Sequence[str] | None = None, where: Where | None = None) -> pa.Table:
        """Return rows as an Arrow table in the table's schema (the given columns, all by default), in no order."""

    def scan(
        self,
        spark: SparkSession,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> SparkFrame:
        """Return the same rows as a Spark frame; nothing passes through the driver."""

    def keep_only(
        self, table: Table, keys: Mapping[str, Collection[str]], *, model_set: str, where: Where | None = None
    ) -> None:
        """Remove, of the owners named, all rows but those of these keys; the numbers of their commits stay taken.

        With `where` only those of their rows that it lets through stay. A reader sees each commit whole or what is
        left of it. A process that is killed meanwhile has lost nothing
        that should stay; the same call again does what is missing.
        """

    def sweep(self, *, model_set: str, idle: dt.timedelta) -> int:
        """Remove what no reader sees and nobody has touched for so long; return how many such things there were."""

    def check_writable(self, table: Table) -> None:
        """Refuse a table that rows cannot be appended to, where that can be known before.

        Raises
        ------
        StateError
            It names the table and what is missing.
        """

    def describe(self) -> str:
        """Return where the tables are, for people."""

    def local_paths(self) -> list[str]:
        """Return the folders of this machine that hold the tables, and that Spark's machines must see too."""


class ModelRegistry(Protocol):
    """One registered model of a registry: its versions, and the aliases that point at them.

    Each method raises `ServerError` where the registry cannot be reached or refuses.
    """

    has_aliases: bool

    def version_of(self, alias: str) -> str | None:
        """Return the version that an alias points at, None where there is none."""

    def move(self, alias: str, version: str) -> None:
        """Point an alias at a version."""

    def find(self, state: str) -> str | None:
        """Return the newest version that was made of a state, None where none is known."""

    def state_of(self, version: str) -> str | None:
        """Return the state that a version was made of, None where nothing is known of it."""

    def add(self, directory: Path, *, state: str, tags: Mapping[str, str], description: str) -> str:
        """Make a version of a model's directory and return its number once it can be loaded."""

    def describe(self) -> str:
        """Return which registered model this is and where, for people."""
