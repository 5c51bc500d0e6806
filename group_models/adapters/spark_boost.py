"""Fit one key's xgboost over the workers of a session: the distributed twin of `boosters.BoosterFamily`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_ranks import Cut, cut_last
from group_models.adapters.spark_train import placed_units
from group_models.estimators.base import Fitted
from group_models.estimators.boosters import (
    MIN_PART_ROWS,
    BoosterFamily,
    Columns,
    internal_names,
    too_few,
    watched_rows,
)
from group_models.planning.distributing import regressor_params, stopped, stored_form

WORKER, WATCHED = "worker", "is_watched"
_CODE = "code"
_LOGGERS = ("XGBoost-PySpark", "SparkXGBRegressor")
"""Loggers on which `xgboost.spark` prints its parameters at level INFO (xgboost 3.2)."""


@dataclasses.dataclass(frozen=True)
class Boosting:
    """How one key is fitted over a cluster.

    Rows are read as `time_us bigint, row_hash bigint, y double, f0.. double or string`; all other columns are ignored.
    """

    family: BoosterFamily
    seed: int
    workers: int

    def fit(self, rows: DataFrame, count: int) -> Fitted:
        """Fit a key's rows; with `early_stopping_rounds` the last of them are only watched."""
        if self.family.params.get("early_stopping_rounds") is None:
            return self._fit_all(rows, count, self.family.rounds)
        watched = watched_rows(count, self.family.validation_share)
        cut = None if watched is None else cut_last(rows, watched, count)
        if cut is None or count - cut.rows < MIN_PART_ROWS:
            fitted = self._fit_all(rows, count, self.family.rounds)
            return dataclasses.replace(fitted, params=fitted.params | too_few(count))
        return self._fit_watched(rows, count, cut)

    def refit(self, fitted: Fitted, rows: DataFrame, count: int) -> Fitted:
        """Fit all rows, after early stopping with the rounds that it chose."""
        again = self._fit_all(rows, count, fitted.rounds or self.family.rounds)
        return dataclasses.replace(again, params={**fitted.params, **again.params}, rounds=fitted.rounds)

    def _fit_all(self, rows: DataFrame, count: int, rounds: int) -> Fitted:
        columns = self._columns(rows)
        booster = self._boost(rows, columns, rounds)
        return self._stored_form(booster, columns, count)

    def _fit_watched(self, rows: DataFrame, count: int, cut: Cut) -> Fitted:
        columns = self._columns(rows.where(~cut.is_after()))
        booster = self._boost(rows.withColumn(WATCHED, cut.is_after()), columns, self.family.rounds)
        best, last = booster.best_iteration, booster.num_boosted_rounds()
        # Sliced, as on one machine: unsliced, ways to predict would use different numbers of trees (xgboost 3.2).
        return stopped(self._stored_form(booster[: best + 1], columns, count - cut.rows), best, last)

    def _stored_form(self, booster: Any, columns: Columns, rows: int) -> Fitted:
        return stored_form(self.family, booster, columns, seed=self.seed, rows=rows, workers=self.workers)

    def _columns(self, rows: DataFrame) -> Columns:
        """Return the columns of training rows, with the values that occur in each text column."""
        features = self.family.features
        values = {name: rows.select(short).distinct() for short, name in self._shorts() if name in features.text}
        found = {name: frame.toArrow().column(0).drop_null().to_pylist() for name, frame in values.items()}
        return Columns(features.names, {name: tuple(sorted(texts)) for name, texts in found.items()})

    def _shorts(self) -> list[tuple[str, str]]:
        names = self.family.features.names
        return list(zip(sc.feature_names(len(names)), names, strict=True))

    def _boost(self, rows: DataFrame, columns: Columns, rounds: int) -> Any:
        """Return the booster of all workers; rows with a true `is_watched` decide when it stops."""
        from xgboost.spark import SparkXGBRegressor

        is_watched = WATCHED in rows.columns
        options: dict[str, Any] = {"validation_indicator_col": WATCHED} if is_watched else {}
        if columns.categories:
            options["feature_types"] = ["c" if name in columns.categories else "q" for name in columns.names]
        with _quiet():
            regressor = SparkXGBRegressor(
                features_col=sc.feature_names(len(columns.names)),
                label_col=sc.TARGET,
                num_workers=self.workers,
                feature_names=internal_names(columns.names),
                **options,
                **regressor_params(self.family, seed=self.seed, rounds=rounds, is_watched=is_watched),
            )
            return regressor.fit(spread(self._numbers(rows, columns), self.workers)).get_booster()

    def _numbers(self, rows: DataFrame, columns: Columns) -> DataFrame:
        """Return rows whose features are all doubles: text as its place among the values, missing as NaN."""
        for short, name in self._shorts():
            if name in columns.categories:
                rows = _coded(rows, short, columns.categories[name])
            else:
                rows = rows.withColumn(short, F.coalesce(short, F.lit(float("nan"))))
        return rows


def _coded(rows: DataFrame, column: str, values: tuple[str, ...]) -> DataFrame:
    codes = pa.table(
        {column: pa.array(values, pa.string()), _CODE: pa.array(map(float, range(len(values))), pa.float64())}
    )
    joined = rows.join(F.broadcast(rows.sparkSession.createDataFrame(codes)), column, "left")
    return joined.withColumn(column, F.coalesce(_CODE, F.lit(float("nan")))).drop(_CODE)


def spread(rows: DataFrame, workers: int) -> DataFrame:
    """Return rows dealt out to the workers by their hash, ordered in each, with the `worker` they are for.

    What a worker gets and in which order does not depend on how the rows came. Ids are placed as those of units are, so
    that each worker has one partition; `xgboost.spark` deals out anew, and at random, what has another number of them.
    """
    ids = [int(unit) for unit in placed_units(rows.sparkSession, workers)]
    turn = F.pmod(F.xxhash64(F.col(sc.HASH), F.lit("distribute")), F.lit(workers)).cast("int")
    dealt = rows.withColumn(WORKER, F.element_at(F.array(*map(F.lit, ids)), turn + 1))
    return dealt.repartition(workers, WORKER).sortWithinPartitions(sc.TIME, sc.HASH)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep `xgboost.spark` from printing its parameters."""
    before = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name in before:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
