"""A salted key is one model: the mean of its parts' models, which equal those of a plain pandas loop over the parts."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import threadpoolctl
from pyspark.sql import functions as F
from sklearn.linear_model import LinearRegression

import group_models
from group_models import targets
from group_models.adapters import spark_combine
from group_models.keys import key_id, key_seed
from group_models.live.cleaning import clean, plan_clean
from group_models.loading import load_spec
from group_models.planning.deciding import sample_share
from group_models.ports import SparkSession
from group_models.runs import waves
from group_models.tables import STORE
from tests import worlds
from tests.worlds import FITTED, SAMPLES, SIZES, Sample

MAX_ROWS = 40
"""Rows over which a key of the world is oversize: three of them are, one with null in its key."""

TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)

AXES = (tuple(SAMPLES), (1, 7, 50), ("one wave", "many waves"), ("spark", "connect_spark"))
FEW = ("ridge", "xgboost", "object")
"""Of the estimators, one that is fitted in closed form, one in a format of its own and one that is pickled."""

PAIRWISE = worlds.pairwise(FEW, *AXES[1:])


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
        return mean_of(self.models, x)


def mean_of(models: Sequence[Any], x: pd.DataFrame) -> np.ndarray:
    """Return the mean of predictions as double: xgboost's are single."""
    return np.mean([np.asarray(model.predict(x), dtype=np.float64) for model in models], axis=0)


PARTS: dict[tuple[Any, ...], pd.Series] = {}
"""What was asked of Spark before."""


def parts_of_rows(spark: SparkSession, n_parts: int, features: Sequence[str]) -> pd.Series:
    """Return the part of each row by the definition written as SQL: the fit's columns, each with its null flag."""
    asked = (n_parts, *features)
    if asked in PARTS:
        return PARTS[asked]
    columns = ["y", "unix_micros(at)", *[name if name == "color" else f"double({name})" for name in features]]
    pairs = ", ".join(f"isnull({column}), {column}" for column in columns)
    part = f"pmod(xxhash64(xxhash64({pairs}), 'salt', {worlds.SEED}), {n_parts})"
    found = spark.createDataFrame(TABLE).selectExpr("row_id", f"{part} as part").toPandas()
    PARTS[asked] = found.set_index("row_id")["part"]
    return PARTS[asked]


def count_parts(key: tuple[Any, ...], max_rows: int) -> int:
    return int(np.ceil(1 / sample_share(np.array([SIZES[key]]), np.array([float(max_rows)]))[0]))


def loop(
    part: pd.Series, key: tuple[Any, ...], sample: Sample, is_holdout: pd.Series | None, *, refit: bool = True
) -> Expected:
    """Return the parts' models of one key, fitted one after the other, and the ensemble's metrics on the holdout."""
    usable = FRAME[np.isfinite(FRAME["y"])].sort_values("at")
    rows = next(rows for name, rows in worlds.by_key(usable) if name == key)
    held = np.zeros(len(rows), bool) if is_holdout is None else is_holdout.loc[rows["row_id"]].to_numpy()
    part_of = part.loc[rows["row_id"]].to_numpy()
    x, y = worlds.inputs(rows, sample.features), rows["y"].to_numpy()
    measured, final, medians, used = [], [], [], 0
    with threadpoolctl.threadpool_limits(1):
        for number in range(part.max() + 1):
            own, seed = part_of == number, key_seed(worlds.SEED, key_id(key), number)
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
    baseline = np.full(int(held.sum()), np.mean(medians))
    return Expected(final, used, worlds.metrics(y[held], mean_of(measured, x[held])), worlds.metrics(y[held], baseline))


def check_case(
    spark: SparkSession,
    path: Path,
    sample: Sample,
    *,
    partitions: int = 2,
    waves: str = "one wave",
    max_rows: int = MAX_ROWS,
    refit: bool = True,
    **changes: Any,
) -> dict[tuple[Any, ...], dict[str, Any]]:
    compute = {"slots": 2, "wave_s": 600.0 if waves == "one wave" else 1e-4}
    spec = worlds.spec(
        worlds.spark_rows(spark, TABLE, partitions), path, estimator=sample.estimator, features=list(sample.features),
        limits={"min_rows": worlds.MIN_ROWS, "max_key_rows": max_rows}, compute=compute, refit=refit, **changes,
    )  # fmt: skip
    run = group_models.train(spec, spark=spark, release=False)
    rows = {worlds.key_of(row): row for row in group_models.show(spec, run_id=run.run_id)}
    scored = group_models.score(FRAME, spec, run_id=run.run_id).set_index("row_id")
    is_holdout = None if changes.get("holdout") else worlds.time_holdout(FRAME)
    oversize = [key for key in FITTED if SIZES[key] > max_rows]
    assert len(oversize) == (3 if max_rows == MAX_ROWS else 1)
    assert len({row["wave"] for row in rows.values() if row["wave"] is not None}) > (waves == "many waves")
    for key in oversize:
        parts = parts_of_rows(spark, count_parts(key, max_rows), sample.features)
        expected, row = loop(parts, key, sample, is_holdout, refit=refit), rows[key]
        assert (row["status"], row["policy"], row["n_parts"]) == ("trained", "salted", len(expected.models)), row
        assert row["rows_used"] == expected.rows_used
        for name, wanted in (("metrics", expected.metrics), ("baseline_metrics", expected.baseline)):
            assert row[name] == (wanted and pytest.approx(wanted, rel=1e-9, abs=1e-9)), (key, name)
        own = next(own for name, own in worlds.by_key(FRAME) if name == key)
        wanted = expected.predict(worlds.inputs(own, sample.features))
        np.testing.assert_allclose(scored.loc[own["row_id"], "prediction"], wanted, rtol=0, atol=1e-9)
    return {key: rows[key] for key in oversize}


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
    # In parts of ten rows nothing would be left to stop on.
    (row,) = check_case(spark, tmp_path, worlds.EARLY_STOPPING, max_rows=80).values()
    assert "random_state" not in row["params"]


def test_ensembles_that_are_not_refitted_equal_those_of_the_loop(spark: SparkSession, tmp_path: Path):
    check_case(spark, tmp_path, SAMPLES["random_forest"], refit=False)


def test_ensembles_without_a_holdout_have_no_metrics(spark: SparkSession, tmp_path: Path):
    rows = check_case(spark, tmp_path, SAMPLES["ridge"], holdout={"by": "none"})
    assert all(row["metrics"] is None for row in rows.values())


def hot(spark: SparkSession, rows: int = 300, *, infinite: int = -1, distinct: int | None = None) -> Any:
    """Return a key `hot` of so many rows (of them one infinite, or only so many distinct) and a key `cold` of 30."""
    x = (F.col("id") % (distinct or rows + 30)).cast("double")
    carrier = F.when(F.col("id") < rows, "hot").otherwise("cold")
    infinity = F.when(F.col("id") == infinite, float("inf")).otherwise(x)
    return spark.range(rows + 30).select(carrier.alias("carrier"), infinity.alias("x"), (2 * x).alias("y"))


def night(frame: Any, path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model_set": worlds.MODEL_SET,
        "source": frame,
        "keys": ["carrier"],
        "target": "y",
        "features": ["x"],
        "estimator": "ridge",
        "limits": {"min_rows": 1, "max_key_rows": 150, "max_failed_share": 1.0},
        "warehouse": str(path),
        **changes,
    }


def by_carrier(spec: dict[str, Any], run_id: str) -> dict[str, dict[str, Any]]:
    return {row["key"]["carrier"]: row for row in group_models.show(spec, run_id=run_id)}


@pytest.mark.parametrize("isolation", ["auto", "always"])
def test_a_salted_key_of_which_one_part_fails_is_one_failed_row(
    any_spark: SparkSession, tmp_path: Path, isolation: str
):
    spec = night(hot(any_spark, infinite=7), tmp_path, isolation=isolation)
    run = group_models.train(spec, spark=any_spark)
    assert run.counts == {"failed": 1, "trained": 1}
    row = by_carrier(spec, run.run_id)["hot"]
    assert (row["status"], row["policy"], row["n_parts"], row["serves"]) == ("failed", "salted", 3, "none")
    assert re.fullmatch(r"300 usable .*; part [123] of 3: prepare: .*infinite values in 'x'.*", row["reason"])
    assert row["error_type"].endswith("FitError")


def test_an_ensemble_that_is_too_big_is_a_row_without_a_model(spark: SparkSession, tmp_path: Path):
    limits = {"min_rows": 1, "max_key_rows": 150, "max_failed_share": 1.0, "max_model_bytes": 250}
    spec = night(hot(spark), tmp_path, limits=limits)
    row = by_carrier(spec, group_models.train(spec, spark=spark).run_id)["hot"]
    assert row["status"] == "model_too_big"
    assert "the 3 parts have " in row["reason"]


def test_a_part_that_no_row_falls_into_is_left_out(spark: SparkSession, tmp_path: Path):
    # Two distinct rows fill at most two of three parts; the limit counts rows, not what is distinct of them.
    spec = night(hot(spark, distinct=2), tmp_path, holdout={"by": "none"})
    row = by_carrier(spec, group_models.train(spec, spark=spark).run_id)["hot"]
    assert (row["status"], row["n_parts"]) == ("trained", 3)
    assert 0 < row["rows_used"] <= 300
    assert group_models.score(pd.DataFrame({"carrier": ["hot"], "x": [1.0]}), spec)["score_status"].tolist() == [
        "scored"
    ]


def test_a_run_that_died_between_its_parts_and_their_ensembles_goes_on(
    any_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = night(hot(any_spark), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(waves, "combine_parts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            group_models.train(spec, spark=any_spark, run_id="one")
    stored = targets.open_tables(load_spec(spec)).read(STORE, columns=["part", "number", "sha256"])
    assert sorted(stored["part"].to_pylist()) == [-1, 0, 1, 2, 3, 4, 5]
    run = group_models.train(spec, spark=any_spark, run_id="one")
    assert run.counts == {"trained": 2}
    again = targets.open_tables(load_spec(spec)).read(STORE, columns=["part", "number", "sha256"])
    assert again.num_rows == stored.num_rows + 1
    other = night(hot(any_spark), tmp_path / "other")
    undisturbed = by_carrier(other, group_models.train(other, spark=any_spark).run_id)["hot"]
    row = by_carrier(spec, "one")["hot"]
    assert row["sha256"] == undisturbed["sha256"]
    assert row["metrics"] == undisturbed["metrics"]


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


class Awkward(LinearRegression):
    """Fits well; what it does when it predicts depends on its mood."""

    def __init__(self, mood: str) -> None:
        super().__init__()
        self.mood = mood

    def predict(self, x: pd.DataFrame) -> Any:
        while self.mood == "hangs":
            time.sleep(0.01)
        raise ValueError("the moon is full")


@pytest.mark.parametrize(
    ("mood", "status", "kind", "reason"),
    [
        ("raises", "failed", "ValueError", "evaluate: ValueError: the moon is full"),
        ("hangs", "timed_out", "TimedOut", "evaluate: the ensemble took longer than timeout_s, 1 s"),
    ],
)
def test_an_ensemble_that_fails_its_holdout_is_one_row_that_says_why(
    any_spark: SparkSession, tmp_path: Path, mood: str, status: str, kind: str, reason: str
):
    cloudpickle.register_pickle_by_value(sys.modules[Awkward.__module__])
    limits = {"min_rows": 31, "max_key_rows": 150, "max_failed_share": 1.0, "timeout_s": 1}
    spec = night(hot(any_spark), tmp_path, estimator=Awkward(mood), limits=limits)
    row = by_carrier(spec, group_models.train(spec, spark=any_spark).run_id)["hot"]
    assert (row["status"], row["error_type"], row["error_stage"]) == (status, kind, "evaluate")
    assert reason in row["reason"]
    assert row["traceback"]


def test_the_partitions_of_the_source_change_no_bit_of_an_ensembles_metrics(
    any_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spark_combine, "ROWS_PER_UNIT", 50)
    noisy = hot(any_spark, rows=2000).withColumn("y", F.col("y") + F.sin(F.col("x") * 7))
    found = []
    for count in (1, 7):
        spec = night(noisy.repartition(count), tmp_path / str(count))
        found.append(by_carrier(spec, group_models.train(spec, spark=any_spark).run_id)["hot"])
    assert found[0]["metrics"]["rmse"] > 0.1
    for name in ("metrics", "baseline_metrics", "sha256"):
        assert found[0][name] == found[1][name]


def test_a_score_that_has_begun_ends_beside_a_clean_that_takes_the_parts(any_spark: SparkSession, tmp_path: Path):
    spec = night(hot(any_spark), tmp_path)
    group_models.train(spec, spark=any_spark, run_id="one")
    tables = targets.open_tables(load_spec(spec))
    begun = group_models.score(hot(any_spark), spec)
    planned = plan_clean(tables, worlds.MODEL_SET, keep=1)
    assert {run_id: loss.rows for run_id, loss in planned.parts.items()} == {"one": {STORE.name: 6}}
    clean(tables, worlds.MODEL_SET, keep=1)
    assert sorted(tables.read(STORE, columns=["part"])["part"].to_pylist()) == [-1, -1]
    columns = ["carrier", "x", "prediction"]
    before, after = (
        scored.toPandas().sort_values(["carrier", "x"], ignore_index=True)
        for scored in (begun, group_models.score(hot(any_spark), spec))
    )
    assert set(before["score_status"]) == {"scored"}
    pd.testing.assert_frame_equal(before[columns], after[columns])
    # What the run tells again needs no parts.
    assert group_models.train(spec, spark=any_spark, run_id="one").counts == {"trained": 2}
