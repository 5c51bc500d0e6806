"""Make the Delta tables of a schema, or say in one sentence why not, before anything is trained."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator

from group_models.adapters import delta_ddl
from group_models.adapters.delta_errors import explaining, retried
from group_models.adapters.spark_errors import SPARK_ERRORS
from group_models.adapters.unity_asking import check_may_write
from group_models.errors import StateError
from group_models.ports import SparkSession
from group_models.tables import Table

_NO_SCHEMA = re.compile(r"SCHEMA_NOT_FOUND|NoSuchNamespace|NAMESPACE_NOT_FOUND|[Ss]chema not found")


def quoted(name: str) -> str:
    """Return a dotted name with each part in backquotes."""
    return ".".join(f"`{part}`" for part in name.split("."))


def check_schema(spark: SparkSession, schema: str) -> None:
    """Refuse a `catalog.schema` that is not there or that cannot be used.

    Asked first, since a catalog whose server is down lets other statements wait half a minute (Unity Catalog's
    connector 0.6.0), and answers `no such table` where the catalog itself is missing.

    Raises
    ------
    StateError
        It says what is missing and how to get it.
    """
    catalog = schema.split(".", maxsplit=1)[0]
    with explaining(f"looking for schema {schema}", needs=f"USE CATALOG on {catalog} and USE SCHEMA on {schema}"):
        try:
            spark.sql(f"DESCRIBE SCHEMA {quoted(schema)}").collect()
        except SPARK_ERRORS as error:
            if not _NO_SCHEMA.search(str(error)):
                raise
        else:
            return
        # A missing catalog is told like a missing schema; only its list of schemas tells them apart.
        spark.sql(f"SHOW SCHEMAS IN {quoted(catalog)}").collect()
    raise StateError(f"there is no schema {schema}; create it first: `CREATE SCHEMA {schema}`")


def make_tables(spark: SparkSession, schema: str, tables: Iterable[Table], location: str | None) -> None:
    """Make what tables are missing, and check those that are there: their columns, and that they can be written.

    Raises
    ------
    StateError
        A table cannot be made or written, or has another shape; it names the table.
    """
    for table in tables:
        make = functools.partial(_make, spark, f"{schema}.{table.name}", delta_ddl.stored(table), location)
        with explaining(f"making {schema}.{table.name}", needs=f"CREATE TABLE on {schema}"):
            is_new = retried(make)
        # Who trains need not be allowed to release: the log is checked by those who do.
        if not is_new and not table.is_log:
            check_writable(spark, f"{schema}.{table.name}")


def _make(spark: SparkSession, name: str, table: Table, location: str | None) -> bool:
    """Make or complete one table; return whether it was not there."""
    is_new = not spark.catalog.tableExists(quoted(name))
    if is_new:
        spark.sql(delta_ddl.create(table, quoted(name), location))
    found = dict(spark.table(quoted(name)).dtypes)
    if wrong := delta_ddl.differences(table, found):
        raise StateError(
            f"table {name} exists with another shape: {'; '.join(wrong)}. Rename or drop it, or use another schema"
        )
    if statement := delta_ddl.add_columns(table, quoted(name), found):
        spark.sql(statement)
        version = delta_ddl.SCHEMA_VERSION
        spark.sql(f"ALTER TABLE {quoted(name)} SET TBLPROPERTIES ('group_models.schema_version' = '{version}')")
    return is_new


def check_writable(spark: SparkSession, name: str) -> None:
    """Delete no row: what a catalog says to that, it says before a night is trained. It makes no version.

    Raises
    ------
    StateError
        The table cannot be written.
    """
    check_may_write(spark, name)
    with explaining(f"writing {name}", needs=f"SELECT and MODIFY on {name}"):
        retried(lambda: spark.sql(f"DELETE FROM {quoted(name)} WHERE false").collect())  # noqa: S608 - our names


def tidy(spark: SparkSession, name: str) -> None:
    """Compact a table and remove files that no version needs, where the catalog allows it; else leave it.

    Unity Catalog refuses both for its managed tables (0.6.0) or does them by itself (Databricks).
    """
    for statement in (f"OPTIMIZE {quoted(name)}", f"VACUUM {quoted(name)}"):
        with contextlib.suppress(*SPARK_ERRORS), _few_tasks(spark):
            spark.sql(statement).collect()


@contextlib.contextmanager
def _few_tasks(spark: SparkSession) -> Iterator[None]:
    """Let a VACUUM list one table's folder in few tasks: by default they are 10,000, minutes on a small machine."""
    name, before, is_set = "spark.sql.sources.parallelPartitionDiscovery.parallelism", None, False
    with contextlib.suppress(*SPARK_ERRORS):
        before = spark.conf.get(name, None)
        spark.conf.set(name, "8")
        is_set = True
    try:
        yield
    finally:
        if is_set:
            spark.conf.unset(name) if before is None else spark.conf.set(name, before)
