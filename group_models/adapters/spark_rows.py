"""A few rows of one key from a Spark frame."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_errors import failing
from group_models.errors import DataError
from group_models.keys import KeyTexts


def rows_of_key(frame: DataFrame, key: KeyTexts, columns: Sequence[str], most: int) -> pd.DataFrame:
    """Return these columns of so many rows of a key at most, in no order.

    Raises
    ------
    DataError
        The frame lacks a column.
    """
    types = sc.column_types(frame)
    if lacking := [name for name in columns if name not in types]:
        raise DataError(f"the input lacks the column(s) {', '.join(map(repr, lacking))}")
    is_key = [sc.named(name).eqNullSafe(F.lit(text).cast(types[name])) for name, text in key.items()]
    chosen = frame.where(functools.reduce(operator.and_, is_key, F.lit(True))).limit(most)  # noqa: FBT003
    with failing("reading the rows of a key"):
        return pd.DataFrame(chosen.select(*[sc.named(name) for name in columns]).toPandas())
