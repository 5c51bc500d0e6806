"""Views over the tables of a catalog's schema: their statements, and making them."""

from __future__ import annotations

from group_models.adapters.delta_errors import explaining
from group_models.adapters.delta_making import check_schema, quoted
from group_models.adapters.spark_tables import SparkTables
from group_models.adapters.view_sql import VIEWS, names_in
from group_models.ports import SparkSession


def statements(schema: str) -> dict[str, str]:
    """Return view to the statement that makes it, or makes it anew, in the order in which they are run."""
    names = names_in(lambda name: quoted(f"{schema}.{name}"))
    return {f"{schema}.{view.name}": view.statement(names) for view in VIEWS}


def make_views(spark: SparkSession, tables: SparkTables) -> list[str]:
    """Make the views of a schema, and its tables where they are missing; return their names.

    Raises
    ------
    StateError
        The schema is missing, or the catalog has no views, or gives nobody here the right to make them.
    """
    check_schema(spark, tables.schema)
    tables.check()
    made = statements(tables.schema)
    for name, statement in made.items():
        with explaining(f"making the view {name}", needs=f"CREATE TABLE on {tables.schema}, which is also for views"):
            spark.sql(statement).collect()
    return list(made)
