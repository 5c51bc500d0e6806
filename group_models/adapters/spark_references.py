"""Models that units are compared with, as rows beside theirs: each travels once to every unit that has a key of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_columns import upload
from group_models.adapters.spark_parents import with_nearest
from group_models.fitting.references import HEADER, NO_REFERENCE, Role
from group_models.tables import WHOLE

MODEL, LINKS = "model", "links"
PARENT_TYPES = pa.schema({
    "reference": pa.int32(), "level": pa.string(), "key": pa.map_(pa.string(), pa.string()), "key_id": pa.string(),
})  # fmt: skip
PART_TYPES = pa.schema({
    "reference": pa.int32(), "run_id": pa.string(), "key_id": pa.string(), "part": pa.int32(), "number": pa.int64(),
})  # fmt: skip
CHAMPION_TYPES = pa.schema({
    "key_id": pa.string(), "run_id": pa.string(), "number": pa.int64(), "sha256": pa.string(),
    "seen_until_us": pa.int64(),
})  # fmt: skip

STORED = ("run_id", "key_id", "part", "number", "format", "data_file", "sha256", "data")
"""Columns of the store that are read of a reference."""


@dataclasses.dataclass(frozen=True)
class References:
    """The models that the keys of one level are compared with.

    Attributes
    ----------
    parents
        One row per parent above the level that serves after the run: `reference, level, key, key_id`.
    parts
        The store's rows of their models that have not seen the holdout: `reference, run_id, key_id, part, number`.
        A parent without such a row is no comparison, nor is a more general one in its place.
    champions
        One row per key of the level and the model that serves it now: `CHAMPION_TYPES`.
    levels
        The levels of `parents` and their columns, from specific to general.
    store
        Rows of the store, columns `STORED`, of at least these models.
    """

    parents: pa.Table
    parts: pa.Table
    champions: pa.Table
    levels: Mapping[str, Sequence[str]]
    store: DataFrame | None = None

    @classmethod
    def none(cls) -> References:
        """Return that keys are compared with nothing."""
        return cls(PARENT_TYPES.empty_table(), PART_TYPES.empty_table(), CHAMPION_TYPES.empty_table(), {})

    @property
    def is_empty(self) -> bool:
        """Whether nothing travels."""
        return self.store is None or not (self.parts.num_rows or self.champions.num_rows)

    @property
    def over_all(self) -> int:
        """The number of the global model."""
        of_all = [name for name, columns in self.levels.items() if not columns]
        found = self.parents.filter(pc.is_in(self.parents["level"], pa.array(of_all, pa.string())))
        return int(found["reference"][0].as_py()) if found.num_rows else NO_REFERENCE

    def links_of(self, key: Mapping[str, str | None]) -> tuple[int, int]:
        """Return the numbers of the references that are the parent and the global model of a key of the level."""
        over_all = self.over_all
        by_level = {
            name: self.parents.filter(pc.equal(self.parents["level"], name)).to_pylist() for name in self.levels
        }
        for name, columns in self.levels.items():
            wanted = {column: key[column] for column in columns}
            if found := [row["reference"] for row in by_level[name] if dict(row["key"]) == wanted]:
                return found[0], over_all
        return NO_REFERENCE, over_all


NO_REFERENCES = References.none()
"""Keys are compared with nothing but their median."""


def with_links(assigned: DataFrame, references: References) -> DataFrame:
    """Return keys (with a column `key`, a map) with `parent int` and `global int`, the numbers of their references."""
    parents = [{**row, "key": dict(row["key"]), "parent": row["reference"]} for row in references.parents.to_pylist()]
    nearest = with_nearest(assigned, parents, list(references.levels.values()), ["parent"])
    parent = F.coalesce("parent", F.lit(NO_REFERENCE))
    return nearest.withColumn("parent", parent).withColumn("global", F.lit(references.over_all).cast("int"))


def linked_keys(keys: Sequence[Mapping[str, Any]], spark: SparkSession) -> DataFrame:
    """Return few keys, as `unit, key_index, key_id, parent, global`, with the other column of `models_of`."""
    types = dict.fromkeys((sc.INDEX, "parent", "global", sc.UNIT, "part"), pa.int32()) | {"key_id": pa.string()}
    return upload(spark, pa.Table.from_pylist([{**key, "part": WHOLE} for key in keys], pa.schema(types)))


def collect_models(key_id: str, links: tuple[int, int], references: References) -> list[bytes]:
    """Return the models that one key is compared with, packed; its champion's row has the index 0."""
    if references.is_empty:
        return []
    key = {"key_id": key_id, sc.UNIT: 0, sc.INDEX: 0, "parent": links[0], "global": links[1]}
    found = models_of(linked_keys([key], session_of(references)), references).select(MODEL).toArrow()
    return list(found[MODEL].to_pylist())


def session_of(references: References) -> SparkSession:
    """Return the session in which the models are read."""
    if references.store is None:
        raise ValueError("references without the store that holds them")
    return references.store.sparkSession


def links_column() -> Column:
    """Return what a key says of its references, as one value to travel; see `references.links`."""
    return F.format_string("[%d, %d]", "parent", "global").cast("binary")


def model_rows(keys: DataFrame, references: References) -> DataFrame:
    """Return the models that units need as `unit, key_index, model`: a parent once per unit, a champion with its key.

    Parameters
    ----------
    keys
        Keys with `unit, key_index, key_id, key, part`.
    """
    return models_of(with_links(keys, references), references)


def models_of(linked: DataFrame, references: References) -> DataFrame:
    """Return what `model_rows` does of keys that have the columns of `with_links`."""
    if references.store is None:
        raise ValueError("references without the store that holds them")
    spark, store = linked.sparkSession, references.store
    whole = linked.where(F.col("part") == WHOLE)
    asked = whole.select(sc.UNIT, F.explode(F.array("parent", "global")).alias("reference")).distinct()
    parts = store.join(F.broadcast(upload(spark, references.parts)), ["run_id", "key_id", "part", "number"])
    packed = parts.select("reference", packed_model("parent", F.col("reference")))
    rows = packed.join(F.broadcast(asked), "reference").select(sc.UNIT, F.lit(0).alias(sc.INDEX), MODEL)
    if not references.champions.num_rows:
        return rows
    return rows.unionByName(_champion_rows(spark, whole, store, references))


def _champion_rows(spark: SparkSession, keys: DataFrame, store: DataFrame, references: References) -> DataFrame:
    named = upload(spark, references.champions.rename_columns(["key_id", "run_id", "number", "said", "seen_until_us"]))
    serving = keys.select(sc.UNIT, sc.INDEX, "key_id").join(named, "key_id")
    whole = store.where(F.col("part") == WHOLE)
    # The manifest's digest and not the store's: what was altered is not read.
    found = whole.join(serving, ["run_id", "key_id", "number"]).withColumn("sha256", F.col("said"))
    return found.select(sc.UNIT, sc.INDEX, packed_model("champion", F.col(sc.INDEX), F.col("seen_until_us")))


def packed_model(role: Role, reference: Column, seen_until_us: Column | None = None) -> Column:
    """Return the columns `STORED` of a model as one: a line for each of `references.HEADER`, then the data."""
    seen = F.lit(0) if seen_until_us is None else seen_until_us
    texts = {"role": F.lit(role), "reference": reference, "seen_until_us": seen}
    lines = [F.coalesce(texts.get(name, F.col(name)).cast("string"), F.lit("")) for name in HEADER]
    return sc.packed(lines).alias(MODEL)
