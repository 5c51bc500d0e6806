"""Which override of a spec holds for which key or parent: the first whose predicate is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_models.adapters.spark_columns import named, named_keys, upload
from group_models.adapters.spark_source import decides

_ID, _LEVEL = "group_models key_id", "group_models level"


def places_of(spark: SparkSession, wheres: Sequence[str], key_types: Mapping[str, str], sizes: pa.Table) -> pa.Array:
    """Return per key the place of the first predicate that is true for it, null for none.

    For a parent a predicate is true where the parent's own columns decide that, as for a scope.

    Parameters
    ----------
    sizes
        Columns `key_id, key, level`, one row per key or parent.
    """
    if not sizes.num_rows:
        return pa.nulls(0, pa.int32())
    levels = {row["level"]: tuple(dict(row["key"])) for row in sizes.select(["level", "key"]).to_pylist()}
    keys = upload(spark, sizes.select(["key_id", "key", "level"]))
    rows = keys.select(F.col("key_id").alias(_ID), F.col("level").alias(_LEVEL), *named_keys(key_types))
    holds = []
    for place, where in enumerate(wheres):
        decided = [name for name, columns in levels.items() if decides(where, columns, list(key_types))]
        holds.append(F.when(named(_LEVEL).isin(decided) & F.expr(where), F.lit(place)))
    found = rows.select(named(_ID).alias("id"), F.coalesce(*holds).alias("place")).toArrow()
    places = dict(zip(found["id"].to_pylist(), found["place"].to_pylist(), strict=True))
    return pa.array([places[key_id] for key_id in sizes["key_id"].to_pylist()], pa.int32())
