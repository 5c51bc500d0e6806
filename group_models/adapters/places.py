"""Where the tables are: folders of this machine, or a catalog's schema."""

from __future__ import annotations

import os
from pathlib import Path

from group_models.adapters.path_tables import PathTables
from group_models.errors import StateError
from group_models.ports import Tables
from group_models.spec import is_catalog

WAREHOUSE = "GROUP_MODELS_WAREHOUSE"
"""Environment variable that says where the tables are, unless a call or the spec does."""


def tables_of(schema: str, warehouse: str | None = None, *, default: str | None = "warehouse") -> Tables:
    """Return the tables of a `catalog.schema`: where the call says, else the environment, else the default.

    Raises
    ------
    StateError
        None of them says it.
    """
    place = warehouse or os.environ.get(WAREHOUSE) or default
    if place is None:
        raise StateError(f"set the environment variable {WAREHOUSE} to the warehouse of {schema}")
    if is_catalog(place):
        from group_models.adapters.spark_tables import SparkTables

        return SparkTables(schema, location=place.partition(":")[2] or None)
    return PathTables(Path(place).absolute(), schema)
