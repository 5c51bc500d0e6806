"""The models of parents, united with the rows of the units whose keys build on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_columns import upload
from group_models.adapters.spark_parents import with_nearest
from group_models.fitting.pooled import PARENT_IX, PARENT_MODEL, PARENT_PART

PARENT_PARTS = "parent_parts"
_PLACE = ("run_id", "key_id", "part", "number")
_HEADER = ("key_id", "run_id", "part", "n_parts", "is_measured", "is_final", "is_newer", "format", "data_file",
           "sha256")  # fmt: skip
_MODELS = pa.schema({
    PARENT_IX: pa.int32(), "run_id": pa.string(), "key_id": pa.string(), "part": pa.int32(), "number": pa.int64(),
    "n_parts": pa.int32(), "is_final": pa.bool_(), "is_measured": pa.bool_(), "is_newer": pa.bool_(),
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pool:
    """The parents that keys can build on.

    Attributes
    ----------
    store
        Rows of the store with the models of their parts, `spark_references.STORED`; None without parents.
    parents
        `parent_ix, key_id, run_id, key (dict), n_parts`.
    models
        The models of their parts that count: `parent_ix`, `_PLACE`, and what `PartModel` says of each.
    levels
        The levels of the parents, from specific to general: a key builds on its most specific one.
    """

    store: DataFrame | None
    parents: Sequence[Mapping[str, Any]]
    models: Sequence[Mapping[str, Any]]
    levels: Sequence[Sequence[str]]


def with_parents(keys: DataFrame, pool: Pool) -> DataFrame:
    """Return keys (with their `key` map) with `parent_ix` and `parent_parts` of the parent each builds on, or null."""
    parents = [{**row, PARENT_PARTS: row["n_parts"]} for row in pool.parents]
    return with_nearest(keys, parents, pool.levels, [PARENT_IX, PARENT_PARTS])


def part_of_parent(seed: int) -> Column:
    """Return the part of its key's parent that a row is in: the same hash salts the parent."""
    return sc.part_of("salt", seed, F.col(PARENT_PARTS)).alias(PARENT_PART)


def model_rows(assigned: DataFrame, pool: Pool) -> DataFrame | None:
    """Return `unit, parent_ix, parent_model` once for each model and unit whose keys build on it; None without parents.

    Parameters
    ----------
    assigned
        The keys of a wave with their units: `unit, parent_ix`.
    """
    if pool.store is None:
        return None
    wanted = upload(pool.store.sparkSession, pa.Table.from_pylist(list(pool.models), _MODELS))
    models = pool.store.join(F.broadcast(wanted), list(_PLACE))
    header = F.to_json(F.struct(*_HEADER))
    packed = models.select(PARENT_IX, F.concat(header.cast("binary"), F.lit(b"\n"), F.col("data")).alias(PARENT_MODEL))
    units = assigned.where(F.col(PARENT_IX).isNotNull()).select(sc.UNIT, PARENT_IX).distinct()
    return packed.join(F.broadcast(units), PARENT_IX).select(sc.UNIT, PARENT_IX, PARENT_MODEL)
