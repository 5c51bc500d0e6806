"""Views over the tables for alerts and dashboards, where a catalog has the tables."""

from __future__ import annotations

from group_models.adapters.delta_views import make_views, statements
from group_models.adapters.spark_tables import SparkTables
from group_models.errors import SpecError
from group_models.ports import SparkSession, Tables
from group_models.targets import SpecLike, find_target


def views(spec: SpecLike, *, warehouse: str | None = None) -> dict[str, str]:
    """Return view to the statement that makes it, or makes it anew; nothing is run.

    Parameters
    ----------
    spec
        A spec, or the name of a model set. All model sets of its schema share the views, as they share the tables.

    Raises
    ------
    SpecError
        The tables are in no catalog.
    """
    _, tables, _ = find_target(spec, warehouse)
    return statements(_in_catalog(tables).schema)


def create_views(spec: SpecLike, *, warehouse: str | None = None, spark: SparkSession | None = None) -> list[str]:
    """Make the views, or make them anew, and return their names; tables that are missing are made first.

    Raises
    ------
    SpecError
        The tables are in no catalog.
    StateError
        The catalog has no views, or the schema or a privilege is missing.
    """
    from group_models.adapters.spark_session import get_session

    _, tables, _ = find_target(spec, warehouse)
    return make_views(spark or get_session(), _in_catalog(tables))


def _in_catalog(tables: Tables) -> SparkTables:
    if isinstance(tables, SparkTables):
        return tables
    rule = "have no catalog that views could be in; they are for `warehouse: delta`"
    raise SpecError([f"{tables.describe()} {rule}"], where="the call")
