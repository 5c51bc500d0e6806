"""Watch, while the source is measured, in how many rows each feature is missing: no pass of its own."""

from __future__ import annotations

import contextlib
import threading

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_errors import SPARK_ERRORS
from group_models.frames import Roles

_ROWS = "rows"
_WAIT_S = 60.0
"""How long a finished query's metrics may take to arrive; they come by Spark's listener bus, which may drop events."""


class MissingShares:
    """The share of rows in which each feature is null or NaN, seen by the first query over the watched rows."""

    def __init__(self, roles: Roles) -> None:
        self._names = dict(zip(sc.feature_names(len(roles.features)), roles.features.items(), strict=True))
        self._observation = Observation()

    def watch(self, rows: DataFrame) -> DataFrame:
        """Return the rows, watched; of `spark_columns.fit_columns`."""
        missing = [_is_missing(short, kind).alias(short) for short, (_, kind) in self._names.items()]
        return rows.observe(self._observation, F.count(F.lit(1)).alias(_ROWS), *missing)

    def shares(self) -> dict[str, float]:
        """Return the shares by feature, after the query has given rows; none where Spark lost the metrics.

        A classic session waits for them without end, and there are none at all where Spark saw without running it
        that a query has no rows (seen in Spark 4.2): hence the thread, and ask only where rows came.
        """
        found: dict[str, int] = {}

        def ask() -> None:
            with contextlib.suppress(*SPARK_ERRORS):
                found.update(self._observation.get)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_WAIT_S)
        counts = dict(found)
        rows = counts.get(_ROWS, 0)
        return {name: counts[short] / rows for short, (name, _) in self._names.items()} if rows else {}


def _is_missing(short: str, kind: str) -> Column:
    column = F.col(short)
    return F.count_if(column.isNull() | F.isnan(column) if kind == "numeric" else column.isNull())
