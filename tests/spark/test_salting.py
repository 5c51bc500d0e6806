"""A salted key is one model: the mean of its parts' models, which equal those of a plain pandas loop over the parts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import threadpoolctl

import group_models
from group_models.keys import key_id, key_seed
from group_models.planning import sample_share
from group_models.ports import SparkSession
from tests import worlds
from tests.worlds import FITTED, SAMPLES, SIZES, Sample

MAX_ROWS = 40
"""Rows over which a key of the world is oversize: three of them are, one with null in its key."""

OVERSIZE = tuple(key for key in FITTED if SIZES[key] > MAX_ROWS)
TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)
LIMITS = {"min_rows": worlds.MIN_ROWS, "max_key_rows": MAX_ROWS}

AXES = (tuple(SAMPLES), (1, 7, 50), ("one wave", "many waves"), ("spark", "connect_spark"))
PAIRWISE = worlds.pairwise(*AXES)


def case(values: tuple[Any, ...], *marks: pytest.MarkDecorator) -> Any:
    kind = pytest.mark.connect if values[-1] == "connect_spark" else pytest.mark.spark
    return pytest.param(*values, marks=(kind, *marks), id="-".join(map(str, values)))


@dataclasses.dataclass
class Expected:
    """What the loop makes of a salted key."""

    models: list[Any]
    rows_used: int
    metrics: dict[str, float] | None
    baseline: dict[str, float] | None

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return np.mean([model.predict(x) for model in self.models], axis=0)


def parts_of_rows(spark: SparkSession, n_parts: int, features: Sequence[str]) -> pd.Series:
    """Return the part of each row by the definition written as SQL: the fit's columns, each with its null flag."""
    columns = ["y", "unix_micros(at)", *[name if name == "color" else f"double({name})" for name in features]]
    pairs = ", ".join(f"isnull({column}), {column}" for column in columns)
    part = f"pmod(xxhash64(xxhash64({pairs}), 'salt', {worlds.SEED}), {n_parts})"
    found = spark.createDataFrame(TABLE).selectExpr("row_id", f"{part} as part").toPandas()
    return found.set_index("row_id")["part"]


def count_parts(key: tuple[Any, ...]) -> int:
    rows = np.array([SIZES[key]])
    return int(np.ceil(1 / sample_share(rows, np.array([float(MAX_ROWS)]))[0]))


def loop(
    spark: SparkSession, key: tuple[Any, ...], sample: Sample, is_holdout: pd.Series | None, *, refit: bool = True
) -> Expected:
    """Return the parts' models of one key, fitted one after the other, and the ensemble's metrics on the holdout."""
    usable = FRAME[np.isfinite(FRAME["y"])].sort_values("at")
    rows = next(rows for name, rows in worlds.by_key(usable) if name == key)
    held = np.zeros(len(rows), bool) if is_holdout is None else is_holdout.loc[rows["row_id"]].to_numpy()
    part = parts_of_rows(spark, count_parts(key), sample.features).loc[rows["row_id"]].to_numpy()
    x, y = worlds.inputs(rows, sample.features), rows["y"].to_numpy()
    measured, final, medians, used = [], [], [], 0
    with threadpoolctl.threadpool_limits(1):
        for number in range(count_parts(key)):
            own, seed = part == number, key_seed(worlds.SEED, key_id(key), number)
            trained = own if held[own].all() else own & ~held
            model, fitted = worlds.first_fit(sample, x[trained], y[trained], seed)
            if not held[own].all() or is_holdout is None:
                measured.append(model)
                medians.append(np.median(y[trained]))
            if refit and fitted < own.sum():
                model = (
                    sample.refit(model, x[own], y[own], seed) if sample.refit else sample.make(seed).fit(x[own], y[own])
                )
                fitted = int(own.sum())
            final.append(model)
            used += fitted
    if not held.any() or held.all():
        return Expected(final, used, None, None)
    mean = np.mean([model.predict(x[held]) for model in measured], axis=0)
    baseline = np.full(int(held.sum()), np.mean(medians))
    return Expected(final, used, worlds.metrics(y[held], mean), worlds.metrics(y[held], baseline))


def check_case(
    spark: SparkSession,
    path: Path,
    sample: Sample,
    *,
    partitions: int = 2,
    waves: str = "one wave",
    refit: bool = True,
    **changes: Any,
) -> dict[tuple[Any, ...], dict[str, Any]]:
    compute = {"slots": 2, "wave_s": 600.0 if waves == "one wave" else 1e-4}
    spec = worlds.spec(
        worlds.spark_rows(spark, TABLE, partitions), path, estimator=sample.estimator, features=list(sample.features),
        limits=LIMITS, compute=compute, refit=refit, **changes,
    )  # fmt: skip
    run = group_models.train(spec, spark=spark, release=False)
    rows = {worlds.key_of(row): row for row in group_models.show(spec, run_id=run.run_id)}
    scored = group_models.score(FRAME, spec, run_id=run.run_id).set_index("row_id")
    is_holdout = None if changes.get("holdout") else worlds.time_holdout(FRAME)
    assert len(OVERSIZE) == 3
    assert len({row["wave"] for row in rows.values() if row["wave"] is not None}) > (waves == "many waves")
    for key in OVERSIZE:
        expected, row = loop(spark, key, sample, is_holdout, refit=refit), rows[key]
        assert (row["status"], row["policy"], row["n_parts"]) == ("trained", "salted", len(expected.models)), row
        assert row["rows_used"] == expected.rows_used
        for name, wanted in (("metrics", expected.metrics), ("baseline_metrics", expected.baseline)):
            assert row[name] == (wanted and pytest.approx(wanted, rel=1e-9, abs=1e-9)), (key, name)
        own = next(own for name, own in worlds.by_key(FRAME) if name == key)
        wanted = expected.predict(worlds.inputs(own, sample.features))
        np.testing.assert_allclose(scored.loc[own["row_id"], "prediction"], wanted, rtol=0, atol=1e-9)
    return rows


@pytest.mark.parametrize(("estimator", "partitions", "waves", "kind"), [case(values) for values in PAIRWISE])
def test_ensembles_equal_those_of_the_loop(
    request: pytest.FixtureRequest, tmp_path: Path, estimator: str, partitions: int, waves: str, kind: str
):
    spark = request.getfixturevalue(kind)
    check_case(spark, tmp_path, SAMPLES[estimator], partitions=partitions, waves=waves)


REST = [values for values in itertools.product(*AXES) if values not in PAIRWISE]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "partitions", "waves", "kind"), [case(values) for values in REST])
def test_ensembles_equal_those_of_the_loop_in_every_other_combination(
    request: pytest.FixtureRequest, tmp_path: Path, estimator: str, partitions: int, waves: str, kind: str
):
    spark = request.getfixturevalue(kind)
    check_case(spark, tmp_path, SAMPLES[estimator], partitions=partitions, waves=waves)


def test_ensembles_with_a_text_feature_equal_those_of_the_loop(connect_spark: SparkSession, tmp_path: Path):
    check_case(connect_spark, tmp_path, worlds.TEXT_SAMPLES["xgboost"])


def test_ensembles_after_early_stopping_equal_those_of_the_loop(spark: SparkSession, tmp_path: Path):
    rows = check_case(spark, tmp_path, worlds.EARLY_STOPPING)
    # Each part has rounds of its own: the key's row says none of them.
    assert all("best_iteration" not in rows[key]["params"] for key in OVERSIZE)


def test_ensembles_that_are_not_refitted_equal_those_of_the_loop(spark: SparkSession, tmp_path: Path):
    check_case(spark, tmp_path, SAMPLES["random_forest"], refit=False)


def test_ensembles_without_a_holdout_have_no_metrics(spark: SparkSession, tmp_path: Path):
    rows = check_case(spark, tmp_path, SAMPLES["ridge"], holdout={"by": "none"})
    assert all(rows[key]["metrics"] is None for key in OVERSIZE)
