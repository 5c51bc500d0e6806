"""The tables as Delta tables of a catalog's schema, through SQL and DataFrame writers only.

Each row has the number of its append and the id of the attempt that made it beside its columns. An append is one
Delta commit with a `txnAppId` of its own, so that of two with one number one goes in, whatever their order; whose it
was is read back. Numbers of which no row is left are kept in `group_model_commit`. Nothing depends on OPTIMIZE,
VACUUM, access by path or `DeltaTable`: some catalog refuses each.
"""

from __future__ import annotations

import datetime as dt
import functools
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from group_models.adapters import delta_making
from group_models.adapters.delta_ddl import APPEND, COMMITS, NUMBER
from group_models.adapters.delta_errors import explaining, is_same_commit, retried
from group_models.adapters.delta_making import quoted
from group_models.adapters.delta_rows import all_of, check_names, selected, taken
from group_models.adapters.spark_columns import upload
from group_models.adapters.spark_errors import SPARK_ERRORS
from group_models.adapters.spark_session import get_session
from group_models.errors import SpecError
from group_models.ports import Commit, SparkFrame, SparkSession, Where
from group_models.tables import TABLES, Table


class SparkTables:
    """The tables of one schema (`catalog.schema`) as Delta tables.

    Parameters
    ----------
    schema
        An existing schema; `spark_catalog.schema` is that of a session without other catalogs.
    location
        Folder or URI of external tables; None for tables that the catalog manages.
    session
        Gives the Spark session when one is needed.

    Raises
    ------
    SpecError
        The schema is not two names.
    """

    def __init__(
        self, schema: str, *, location: str | None = None, session: Callable[[], SparkSession] = get_session
    ) -> None:
        if len(schema.split(".")) != 2:
            raise SpecError([f"schema {schema!r} is not of the form catalog.schema"], where="the warehouse")
        self.schema = schema
        self.location = location
        self._session = session
        self._is_there = False
        self._ready = False

    def describe(self) -> str:
        """Return where the tables are, for people."""
        return f"Delta tables in {self.schema}" + (f", external under {self.location}" if self.location else "")

    def local_paths(self) -> list[str]:
        """Return no folder: the catalog knows where the tables are."""
        return []

    def append(self, table: Table, rows: pa.Table | SparkFrame, commit: Commit) -> bool:
        """Append rows unless the commit is there already; return whether these rows went in.

        Raises
        ------
        StateError
            Something of the catalog is missing, or a table has another shape; before the first append of all.
        ValueError
            A column that may not be null holds a null (Arrow rows).
        """
        given = table.conform(rows) if isinstance(rows, pa.Table) else rows
        self.check()
        if commit.number in self.numbers(table, model_set=commit.model_set, owner=commit.owner):
            return False
        attempt = uuid.uuid4().hex
        # A frame is also what trains: what its query fails of is its caller's to judge.
        is_query = not isinstance(rows, pa.Table)
        with self._writing(table, is_query=is_query):
            numbered = self._frame(table, given).withColumn(NUMBER.name, F.lit(commit.number).cast("bigint"))
            write = functools.partial(self._write, table, numbered, _app_id(table, commit), attempt)
            write() if is_query else retried(write)
        with self._writing(table):
            winner = self._winner(self._rows_of(table, commit.model_set, commit.owner), commit.number)
            return (winner or self._without_rows(table, commit, attempt)) == attempt

    def numbers(self, table: Table, *, model_set: str, owner: str) -> list[int]:
        """Return the numbers that an owner has committed, ascending."""
        with self._reading(table):
            sources = [self._rows_of(table, model_set, owner), self._emptied(table, model_set, owner)]
            found = [frame.select(NUMBER.name) for frame in sources if frame is not None]
            if not found:
                return []
            rows = functools.reduce(lambda a, b: a.unionAll(b), found).distinct().collect()
        return sorted(row[0] for row in rows)

    def read(self, table: Table, *, columns: Sequence[str] | None = None, where: Where | None = None) -> pa.Table:
        """Return rows (the given columns, all by default) in the table's Arrow schema, in no order."""
        names = list(table.names if columns is None else columns)
        with self._reading(table):
            found = self._found(self._session(), table)
            if found is None:
                check_names(table, names, where)
                return table.empty().select(names)
            rows = selected(found, table, names, where).toArrow()
        return rows.cast(pa.schema([table.arrow_schema.field(name) for name in names]))

    def scan(
        self, spark: SparkSession, table: Table, *, columns: Sequence[str] | None = None, where: Where | None = None
    ) -> SparkFrame:
        """Return the same rows as a Spark frame, as of the version that the table has at the time of this call."""
        names = list(table.names if columns is None else columns)
        with self._reading(table):
            if self._found(spark, table) is None:
                check_names(table, names, where)
                return spark.createDataFrame([], table.spark_schema(names))
            name = self._name(table)
            version = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("version").collect()[0][0]
            pinned = spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}")  # noqa: S608 - a number and our names
            return selected(pinned, table, names, where)

    def keep_only(
        self, table: Table, keys: Mapping[str, Collection[str]], *, model_set: str, where: Where | None = None
    ) -> None:
        """Remove, of the owners named, all rows but those of these keys; the numbers of their commits stay taken."""
        with self._writing(table):
            names = ["run_id", "key_id", *(where or {})]
            rows = self.read(table, columns=names, where={"model_set": [model_set], "run_id": list(keys)})
            kept = [
                row["key_id"] in keys[row["run_id"]] and all(row[n] in values for n, values in (where or {}).items())
                for row in rows.to_pylist()
            ]
            gone = rows.filter(pc.invert(pa.array(kept, pa.bool_()))).group_by(names).aggregate([])
            if not gone.num_rows:
                return
            owners = gone["run_id"].unique().to_pylist()
            taken = [(o, number) for o in owners for number in self.numbers(table, model_set=model_set, owner=o)]
            attempt = uuid.uuid4().hex
            self._keep_numbers(table, model_set, taken, attempt, attempt)
            self._delete(table, model_set, gone)

    def sweep(self, *, model_set: str, idle: dt.timedelta) -> int:  # noqa: ARG002 - the port's signature
        """Let the catalog compact and remove files, where it allows that; files have no count here."""
        for table in TABLES:
            delta_making.tidy(self._session(), self._plain(table))
        return 0

    def check_writable(self, table: Table) -> None:
        """Refuse a table that rows cannot be appended to.

        Raises
        ------
        StateError
            Something of the catalog is missing, or the privilege to write.
        """
        self.check()
        delta_making.check_writable(self._session(), self._plain(table))

    def check(self) -> None:
        """Make what tables are missing, add missing columns, and refuse tables of another shape; once.

        Raises
        ------
        StateError
            Something of the catalog is missing, or a table has another shape.
        """
        if self._ready:
            return
        self._reach(self._session())
        delta_making.make_tables(self._session(), self.schema, (*TABLES, COMMITS), self.location)
        self._ready = True

    def _reach(self, spark: SparkSession) -> None:
        """Find out once whether the schema is there, before anything else is asked."""
        if not self._is_there:
            delta_making.check_schema(spark, self.schema)
            self._is_there = True

    def _reading(self, table: Table) -> AbstractContextManager[None]:
        return explaining(f"reading {self._plain(table)}", needs=f"SELECT on {self._plain(table)}")

    def _writing(self, table: Table, *, is_query: bool = False) -> AbstractContextManager[None]:
        needs = f"SELECT and MODIFY on {self._plain(table)}"
        return explaining(f"writing {self._plain(table)}", needs=needs, is_query=is_query)

    def _frame(self, table: Table, rows: pa.Table | SparkFrame) -> SparkFrame:
        if isinstance(rows, pa.Table):
            spark = self._session()
            rows = upload(spark, rows) if rows.num_rows else spark.createDataFrame([], table.spark_schema())
        return rows.select(*[taken(rows, column.name, column.type) for column in table.columns])

    def _write(self, table: Table, frame: SparkFrame, app_id: str, attempt: str) -> None:
        """Append a frame with its numbers, unless an append of this app id is there."""
        writer = frame.withColumn(APPEND.name, F.lit(attempt)).write.format("delta").mode("append")
        try:
            writer.option("txnAppId", app_id).option("txnVersion", "0").saveAsTable(self._name(table))
        except SPARK_ERRORS as error:
            if not is_same_commit(error):
                raise

    def _winner(self, rows: SparkFrame | None, number: int) -> str | None:
        """Return the attempt whose append of a number went in, where a row says so."""
        if rows is None:
            return None
        found = rows.where(F.col(NUMBER.name) == number).select(APPEND.name).limit(1).collect()
        return found[0][0] if found else None

    def _without_rows(self, table: Table, commit: Commit, attempt: str) -> str | None:
        """Keep the number of an append that had no rows; return whose it is."""
        app_id = _app_id(COMMITS, commit, of=table.name)
        self._keep_numbers(table, commit.model_set, [(commit.owner, commit.number)], app_id, attempt)
        return self._winner(self._emptied(table, commit.model_set, commit.owner), commit.number)

    def _keep_numbers(
        self, table: Table, model_set: str, taken: Sequence[tuple[str, int]], app_id: str, attempt: str
    ) -> None:
        """Write that numbers of owners are taken, in one append."""
        owners, numbers = zip(*taken, strict=True)
        same = {"model_set": [model_set] * len(taken), "of_table": [table.name] * len(taken)}
        rows = pa.table({**same, "owner": list(owners), NUMBER.name: pa.array(numbers, pa.int64())})
        self._write(COMMITS, upload(self._session(), rows), app_id, attempt)

    def _delete(self, table: Table, model_set: str, gone: pa.Table) -> None:
        spark, view = self._session(), f"group_models_gone_{uuid.uuid4().hex}"
        upload(spark, gone).createOrReplaceTempView(view)
        is_gone = " AND ".join(f"t.{name} <=> g.{name}" for name in gone.column_names)
        statement = (
            f"MERGE INTO {self._name(table)} t USING {view} g ON t.model_set = '{model_set}' "
            f"AND {is_gone} WHEN MATCHED THEN DELETE"
        )
        try:
            retried(lambda: spark.sql(statement).collect())
        finally:
            spark.catalog.dropTempView(view)

    def _rows_of(self, table: Table, model_set: str, owner: str) -> SparkFrame | None:
        rows = self._found(self._session(), table)
        if rows is None:
            return None
        rows = rows.where(F.col("model_set") == model_set)
        return rows if table.is_log else rows.where(F.col("run_id") == owner)

    def _emptied(self, table: Table, model_set: str, owner: str) -> SparkFrame | None:
        rows = self._found(self._session(), COMMITS)
        wanted = {"model_set": model_set, "of_table": table.name, "owner": owner}
        return None if rows is None else rows.where(all_of([F.col(name) == value for name, value in wanted.items()]))

    def _found(self, spark: SparkSession, table: Table) -> SparkFrame | None:
        self._reach(spark)
        name = self._name(table)
        return spark.table(name) if self._ready or spark.catalog.tableExists(name) else None

    def _name(self, table: Table) -> str:
        return quoted(self._plain(table))

    def _plain(self, table: Table) -> str:
        return f"{self.schema}.{table.name}"


def _app_id(table: Table, commit: Commit, of: str = "") -> str:
    """Return the app id of one append: of one id for many Delta silently drops what comes after a higher number."""
    return "/".join(["group-models", commit.model_set, commit.owner, table.name, of, str(commit.number)])
