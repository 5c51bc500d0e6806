"""Candidates on Spark: the same choices however the rows are partitioned, and those of a plain loop over the folds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyRegressor

import group_models
from group_models.ports import SparkSession
from tests import worlds

TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)
FOLDS, MIN_FOLD_ROWS = 3, 8
ASKED = {"candidates": {"estimators": ["ridge"], "folds": FOLDS, "min_fold_rows": MIN_FOLD_ROWS}, "estimator": "median"}


def chosen(spark: SparkSession, path: Path, partitions: int, **changes: Any) -> dict[Any, dict[str, Any]]:
    spec = worlds.spec(worlds.spark_rows(spark, TABLE, partitions), path, **ASKED, **changes)
    run = group_models.train(spec, spark=spark, release=False)
    return {worlds.key_of(row): row for row in group_models.show(spec, run_id=run.run_id) if row["status"] == "trained"}


def loop(of_key: pd.DataFrame) -> str:
    """Choose by a plain loop over the folds of a key's rows before the holdout."""
    edges = np.linspace(0, len(of_key), FOLDS + 2).astype(int)
    if edges[1] < MIN_FOLD_ROWS:
        return "median"
    errors: dict[str, list[float]] = {"median": [], "ridge": []}
    for start, end in itertools.pairwise(edges[1:]):
        seen, new = of_key.iloc[:start], of_key.iloc[start:end]
        x, names = seen[list(worlds.NUMERIC)].astype(float), list(worlds.NUMERIC)
        for name, model in (("median", DummyRegressor(strategy="median")), ("ridge", worlds.SAMPLES["ridge"].make(0))):
            if name == "ridge":
                model.set_params(ridge__alpha=1.0)
            model.fit(x, seen["y"])
            errors[name].append(float(np.abs(model.predict(new[names].astype(float)) - new["y"]).mean()))
    means = {name: np.mean(each) for name, each in errors.items()}
    best = min(means, key=means.__getitem__)
    return next(n for n in errors if means[n] <= means[best] + np.std(errors[best], ddof=1) / np.sqrt(FOLDS))


@pytest.mark.spark
def test_choices_are_those_of_a_plain_loop_whatever_the_partitions(spark: SparkSession, tmp_path: Path) -> None:
    rows = chosen(spark, tmp_path / "a", 1)
    again = chosen(spark, tmp_path / "b", 7, compute={"slots": 9})
    names = ("estimator", "params", "metrics", "sha256")
    assert {key: [row[n] for n in names] for key, row in rows.items()} == {
        key: [row[n] for n in names] for key, row in again.items()
    }
    usable = FRAME[FRAME["y"].abs() < float("inf")].sort_values("at")
    looped = {}
    for key, of_key in worlds.by_key(usable):
        if key in rows:
            held = rows[key]["holdout_rows"] if rows[key]["metrics"] else 0
            looped[key] = loop(of_key.iloc[: len(of_key) - held])
    assert looped == {key: row["estimator"] for key, row in rows.items()}
    assert {row["estimator"] for row in rows.values()} == {"median", "ridge"}


@pytest.mark.spark
@pytest.mark.slow
def test_without_a_time_column_folds_are_by_hash_and_parts_of_a_salted_key_choose_on_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    limits = {"limits": {"min_rows": worlds.MIN_ROWS, "max_key_rows": 85}}
    rows = chosen(spark, tmp_path / "a", 1, time_column=None, holdout={"by": "hash"}, **limits)
    again = chosen(spark, tmp_path / "b", 7, time_column=None, holdout={"by": "hash"}, **limits)
    assert {key: (row["estimator"], row["sha256"]) for key, row in rows.items()} == {
        key: (row["estimator"], row["sha256"]) for key, row in again.items()
    }
    salted = rows["UA", 1]
    assert salted["n_parts"] == 2
    assert set(salted["estimator"].split(" + ")) <= {"median", "ridge"}
    assert "ridge" in {row["estimator"] for row in rows.values()}
