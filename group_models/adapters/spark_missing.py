"""Watch, while the source is measured, where features are missing, and which are the target: no pass of its own."""

from __future__ import annotations

import contextlib
import threading

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_errors import SPARK_ERRORS
from group_models.adapters.spark_labels import label_of
from group_models.frames import ColumnKind, Roles

_ROWS, _LOW, _HIGH, _OTHER = "rows", "lowest target", "highest target", "other than the target "
_USABLE = "usable"
_FEWEST = 100
"""Rows with a usable target from which a feature that equals it is no chance."""

_WAIT_S = 60.0
"""How long a finished query's metrics may take to arrive; they come by Spark's listener bus, which may drop events."""


class MissingShares:
    """The share of rows in which each feature is null or NaN, seen by the first query over the watched rows.

    The same query tells which features are the target in every row that has one.
    """

    def __init__(self, roles: Roles) -> None:
        self._labels = roles.labels
        self._names = dict(zip(sc.feature_names(len(roles.features)), roles.features.items(), strict=True))
        self._observation = Observation()
        self._counts: dict[str, int] | None = None

    def watch(self, rows: DataFrame) -> DataFrame:
        """Return the rows, watched; of `spark_columns.fit_columns`."""
        missing = [_is_missing(short, kind).alias(short) for short, (_, kind) in self._names.items()]
        usable = F.when(sc.is_usable(), F.col(sc.TARGET))
        ends = [F.min(usable).alias(_LOW), F.max(usable).alias(_HIGH), F.count(usable).alias(_USABLE)]
        others = [
            F.count_if(sc.is_usable() & ~F.col(short).eqNullSafe(target)).alias(_OTHER + short)
            for short, (_, kind) in self._names.items()
            if (target := self._target(kind)) is not None
        ]
        return rows.observe(self._observation, F.count(F.lit(1)).alias(_ROWS), *missing, *ends, *others)

    def _target(self, kind: ColumnKind) -> Column | None:
        """Return the target as a feature of a kind would have it; None where none of that kind can be the target."""
        if self._labels is None:
            return F.col(sc.TARGET) if kind == "numeric" else None
        if not self._labels.names or (kind == "numeric") != (self._labels.kind != "text"):
            return None
        label = label_of(F.col(sc.TARGET), self._labels)
        return label if kind == "text" else label.cast(self._labels.spark_type).cast("double")

    def targets(self) -> list[str]:
        """Return the features that are the target in every row with a usable one, where it is no constant."""
        counts = self._seen()
        if counts.get(_USABLE, 0) < _FEWEST or counts[_LOW] == counts[_HIGH]:
            return []
        return [name for short, (name, _) in self._names.items() if counts.get(_OTHER + short) == 0]

    def shares(self) -> dict[str, float]:
        """Return the shares by feature, after the query has given rows; none where Spark lost the metrics."""
        counts = self._seen()
        rows = counts.get(_ROWS, 0)
        return {name: counts[short] / rows for short, (name, _) in self._names.items()} if rows else {}

    def _seen(self) -> dict[str, int]:
        """Return what the query saw, asked for once.

        A classic session waits for them without end, and there are none at all where Spark saw without running it
        that a query has no rows (seen in Spark 4.2): hence the thread, and ask only where rows came.
        """
        if self._counts is not None:
            return self._counts
        found: dict[str, int] = {}

        def ask() -> None:
            with contextlib.suppress(*SPARK_ERRORS):
                found.update(self._observation.get)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_WAIT_S)
        self._counts = dict(found)
        return self._counts


def _is_missing(short: str, kind: str) -> Column:
    column = F.col(short)
    return F.count_if(column.isNull() | F.isnan(column) if kind == "numeric" else column.isNull())
