"""Keys that would kill what fits them: rows that say how it ended, with all other keys trained."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import make_family
from group_models.evaluation import MAX_TRACEBACK
from group_models.fitting.deaths import FitLimits
from group_models.fitting.isolation import NoChildError
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.units import fit_unit
from group_models.mlmodel import MlmodelTemplate

MIB = 2**20
ABORT, SLEEP, ALLOCATE, RAISE, EXIT, BAD_ALLOC, HANG = range(1, 8)
LIMITS = FitLimits(timeout_s=60.0, memory_bytes=400 * MIB)


class Wild(BaseEstimator, RegressorMixin):
    """Its end is the value of its feature; the mean where that is 0."""

    def fit(self, X: Any, y: Any) -> Wild:
        fate = int(np.asarray(X)[0, 0])
        if fate == ABORT:
            os.abort()
        if fate == SLEEP:
            while True:
                time.sleep(0.01)
        if fate == ALLOCATE:
            np.ones(16 * 2**30 // 8)
        if fate == RAISE:
            raise ValueError("no")
        if fate == EXIT:
            os._exit(3)
        if fate == BAD_ALLOC:
            raise RuntimeError("[01:02:03] src/tree.cc:7: std::bad_alloc")
        if fate == HANG:
            sum(itertools.repeat(0))
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.mean_)


def settings(*, is_isolated: bool, limits: FitLimits = LIMITS, threads: int = 1) -> FitSettings:
    estimator = EstimatorSettings(object=Wild(), threads=threads)
    features = Features(("fate",), (), ("fate",))
    family = make_family(estimator, features)
    return FitSettings(
        model_set="c.s.m",
        run_id="r1",
        features={"fate": "numeric"},
        estimator=estimator,
        template=MlmodelTemplate.build(
            model_set="c.s.m", run_id="r1", features=features, flavor=family.flavor, estimator=family.name
        ),
        refit=True,
        seed=7,
        max_model_bytes=MIB,
        holdout_by="hash",
        holdout_share=0.2,
        holdout_from_us=None,
        limits=limits,
        is_isolated=is_isolated,
    )


def fitted(*fates: int, given: FitSettings, **references: Any) -> list[dict[str, Any]]:
    """Fit a unit of one key per fate, ten rows each."""
    rows = range(10 * len(fates))
    frame = pd.DataFrame(
        {
            "key_index": np.repeat(np.arange(len(fates)), 10),
            "time_us": rows,
            "row_hash": rows,
            "is_holdout": np.tile(np.arange(10) >= 8, len(fates)),
            "y": np.arange(10.0 * len(fates)),
            "f0": np.repeat(np.array(fates, dtype=float), 10),
        }
    )
    keys = pd.DataFrame(
        {
            "key_index": range(len(fates)),
            "key_id": [f"k{i}" for i in range(len(fates))],
            "key": "{}",
            "unit": 3,
            **references,
        }
    )
    return fit_unit(frame, keys, given).to_dict("records")


def test_in_child_processes_each_poison_key_is_a_row_and_the_others_are_trained():
    limits = dataclasses.replace(LIMITS, timeout_s=2.0)
    rows = fitted(0, ABORT, SLEEP, ALLOCATE, RAISE, EXIT, BAD_ALLOC, 0, given=settings(is_isolated=True, limits=limits))
    rows[3]["error_type"] = rows[3]["error_type"].rpartition(".")[2]  # numpy moves it about
    assert [(row["status"], row["error_type"]) for row in rows] == [
        ("trained", None),
        ("crashed", "SIGABRT"),
        ("timed_out", "TimedOut"),
        ("out_of_memory", "_ArrayMemoryError"),
        ("failed", "ValueError"),
        ("crashed", "exit code 3"),
        ("out_of_memory", "RuntimeError"),
        ("trained", None),
    ]
    dead = rows[1]
    assert dead["reason"].startswith("the fit ended its process (SIGABRT)")
    assert dead["traceback"].startswith("Fatal Python error: Aborted")
    assert "in fit" in dead["traceback"]
    assert "Extension modules" not in dead["traceback"]
    assert len(dead["traceback"]) <= MAX_TRACEBACK
    assert (dead["key_id"], dead["part"], dead["unit"], dead["holdout_rows"]) == ("k1", -1, 3, 2)
    assert dead["started_at"] <= dead["finished_at"]
    assert dead["fit_seconds"] > 0
    assert (dead["data"], dead["rows_used"]) == (None, None)
    assert "timeout_s, 2 s; raise limits.timeout_s" in rows[2]["reason"]
    assert "400 MiB" in rows[3]["reason"]
    assert rows[4]["reason"] == "fit: ValueError: no"


def test_in_this_process_what_can_be_stopped_is_a_row_too():
    limits = dataclasses.replace(LIMITS, timeout_s=1.0)
    rows = fitted(0, SLEEP, ALLOCATE, BAD_ALLOC, 0, given=settings(is_isolated=False, limits=limits))
    statuses = ["trained", "timed_out", "out_of_memory", "out_of_memory", "trained"]
    assert [row["status"] for row in rows] == statuses
    assert [row["error_stage"] for row in rows] == [None, "fit", "fit", "fit", None]
    assert "in fit" in rows[1]["traceback"]


def test_without_limits_memory_that_runs_out_still_has_its_own_status():
    (row,) = fitted(BAD_ALLOC, given=settings(is_isolated=False, limits=FitLimits()))
    assert row["status"] == "out_of_memory"
    assert "compute.memory_per_worker is not set" in row["reason"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_from_a_child_process_is_the_same_as_from_this_one(threads):
    def models(*, is_isolated: bool) -> list[tuple[Any, ...]]:
        rows = fitted(0, 0, given=settings(is_isolated=is_isolated, threads=threads))
        return [(row["status"], row["sha256"], row["data"], row["metrics"], row["rows_used"]) for row in rows]

    assert models(is_isolated=True) == models(is_isolated=False)
    assert models(is_isolated=True)[0][0] == "trained"


def test_a_dead_part_of_a_salted_key_is_a_row_of_that_part():
    rows = fitted(0, ABORT, given=settings(is_isolated=True), part=[0, 1], n_parts=2)
    assert [(row["part"], row["status"]) for row in rows] == [(2, "trained"), (0, "trained"), (1, "crashed")]


def test_where_no_child_can_be_made_the_unit_says_so_and_no_key_is_blamed(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(NoChildError, match="this system has no fork"):
        fitted(0, given=settings(is_isolated=True))
