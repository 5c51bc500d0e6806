"""The labels of a classification as the source has them, one Spark pass over its target."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from group_models.labels import Labels


def measure_labels(frame: DataFrame, target: Column, most: int) -> list[str]:
    """Return the distinct labels of a target as text, null left out; of more than `most` one more than that."""
    labels = frame.select(target.cast("string").alias("label")).where(F.col("label").isNotNull())
    return labels.distinct().limit(most + 1).toArrow()["label"].to_pylist()  # type: ignore[no-any-return]


def label_of(code: Column, labels: Labels) -> Column:
    """Return the label of a code as text; null of none of them."""
    return F.get(F.array(*[F.lit(name) for name in labels.names]), code.cast("int"))


def code_of(label: Column, labels: Labels) -> Column:
    """Return the place of a label (text) among those of the set as a double; null of none of them.

    Where they are not known yet, every label has the place 0: such rows can be counted.
    """
    if not labels.names:
        return F.when(label.isNotNull(), F.lit(0.0))
    place = F.array_position(F.array(*[F.lit(name) for name in labels.names]), label)
    return F.when(place > 0, (place - 1).cast("double"))
