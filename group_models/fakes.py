"""In-memory stand-ins for what the outside provides, for tests of this package and of those who use it."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from group_models.errors import StateError
from group_models.ports import Commit, SparkFrame, SparkSession, Where, known_values
from group_models.tables import Table

Fault: TypeAlias = Literal["raise", "write_then_raise", "write_then_false", "true_without_write"]
"""How an append goes wrong: nothing is written and it raises; it is written and its answer is lost; it is
written but said to have been there already; nothing is written but it is said to have been."""


class MemoryTables:
    """Tables that live in this object and end with it.

    Parameters
    ----------
    fail_on
        Which appends go wrong and how, counted from 1: `{3: "write_then_raise"}`.

    Attributes
    ----------
    appends
        How many appends were asked for, in vain or not.
    """

    def __init__(self, *, fail_on: Mapping[int, Fault] | None = None) -> None:
        self.appends = 0
        self._faults = dict(fail_on or {})
        self._commits: dict[tuple[str, Commit], pa.Table] = {}
        self._lock = threading.Lock()

    def check_writable(self, table: Table) -> None:
        """Refuse nothing: the first append tells, and it comes before anything is trained."""

    def describe(self) -> str:
        """Return where the tables are, for people."""
        return "memory of this process"

    def local_paths(self) -> list[str]:
        """Return no folder: memory is no place that Spark's machines could see."""
        return []

    def append(self, table: Table, rows: pa.Table | SparkFrame, commit: Commit) -> bool:
        """Append rows unless the commit is there already; return whether these rows went in.

        Raises
        ------
        StateError
            This append was told to fail.
        ValueError
            A column that may not be null holds a null.
        """
        fault = self._next_fault()
        if fault == "raise":
            raise StateError(f"append {self.appends} was told to fail before its rows were written")
        if (table.name, commit) in self._commits or fault == "true_without_write":
            return fault == "true_without_write"
        is_new = self._keep((table.name, commit), _arrow(table, rows))
        if fault == "write_then_raise":
            raise StateError(f"append {self.appends} was told to lose its answer; its rows are written")
        return is_new and fault != "write_then_false"

    def numbers(self, table: Table, *, model_set: str, owner: str) -> list[int]:
        """Return the numbers that an owner has committed, ascending."""
        commits = [commit for name, commit in list(self._commits) if name == table.name]
        return sorted(c.number for c in commits if (c.model_set, c.owner) == (model_set, owner))

    def read(self, table: Table, *, columns: Sequence[str] | None = None, where: Where | None = None) -> pa.Table:
        """Return rows (the given columns, all by default) in the table's Arrow schema, in no order."""
        commits = [rows for (name, _), rows in list(self._commits.items()) if name == table.name]
        rows = pa.concat_tables([table.empty(), *commits])
        for name, values in (where or {}).items():
            rows = rows.filter(_is_one_of(rows.column(name), values))
        return rows.select(list(table.names if columns is None else columns))

    def scan(
        self,
        spark: SparkSession,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> SparkFrame:
        """Return the same rows as a Spark frame, uploaded from here."""
        rows = self.read(table, columns=columns, where=where)
        if not rows.num_rows:
            # pyspark 4.2 cannot take an Arrow table whose rows have all been filtered out.
            return spark.createDataFrame([], table.spark_schema(rows.column_names))
        # One chunk: of several, pyspark 4.2 takes none after an empty one.
        return spark.createDataFrame(rows.combine_chunks(), table.spark_schema(rows.column_names))

    def keep_only(
        self, table: Table, keys: Mapping[str, Collection[str]], *, model_set: str, where: Where | None = None
    ) -> None:
        """Remove, of the owners named, all rows but those of these keys; the numbers of their commits stay taken."""
        with self._lock:
            for (name, commit), rows in list(self._commits.items()):
                if (name, commit.model_set) == (table.name, model_set) and commit.owner in keys:
                    kept = _is_one_of(rows.column("key_id"), keys[commit.owner])
                    for column, values in (where or {}).items():
                        kept = pc.and_(kept, _is_one_of(rows.column(column), values))
                    self._commits[name, commit] = rows.filter(kept)

    def sweep(self, *, model_set: str, idle: dt.timedelta) -> int:  # noqa: ARG002 - the port's signature
        """Find nothing: no append leaves anything behind here."""
        return 0

    def _next_fault(self) -> Fault | None:
        with self._lock:
            self.appends += 1
            return self._faults.get(self.appends)

    def _keep(self, key: tuple[str, Commit], rows: pa.Table) -> bool:
        with self._lock:
            return self._commits.setdefault(key, rows) is rows


def _arrow(table: Table, rows: pa.Table | SparkFrame) -> pa.Table:
    return table.conform(rows if isinstance(rows, pa.Table) else rows.toArrow())


def _is_one_of(column: pa.ChunkedArray, values: Collection[str | int | None]) -> pa.ChunkedArray:
    known = [*known_values(values), *([None] if None in values else [])]
    return pc.is_in(column, pa.array(known, column.type))
