"""Worlds that several letters share, each trained once for all of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression

from group_models import api
from tests.cases.worlds import FAULTS, GOOD, World, spec_of, trained

LINES = "carrier string, row_id bigint, a double, b int, c bigint, y double"
FATES = "carrier string, row_id bigint, at timestamp, fate double, row double, y double"


def line(row_id, carrier):
    """A row of digits a, b, c of its id; A's target is the id, B's is minus the id."""
    a, b, c = row_id // 100, row_id // 10 % 10, row_id % 10
    return (carrier, row_id, float(a), b, c, float(row_id if carrier == "A" else -row_id))


@pytest.fixture(scope="session")
def lines(spark, tmp_path_factory):
    """Carriers A and B in turn: exactly linear in a, b and c, so that a prediction is the row's own id."""
    rows = [line(row_id, "AB"[row_id % 2]) for row_id in range(120)] + [line(999, "A"), line(998, "B")]
    frame = spark.createDataFrame(rows, LINES)
    changes = {"features": ["a", "b", "c"], "estimator": {"object": LinearRegression(), "version": "1"}}
    return trained(frame, tmp_path_factory.mktemp("lines"), **changes)


def fateful():
    """An estimator whose end stands in its rows; a local class, so that workers get it by value."""

    class Fateful(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            fate = int(X["fate"].iloc[0])
            if fate == 1:
                raise ValueError("bad \x00\x1b[31m bytes \udcff")
            if fate == 3 and X["row"].max() >= 16:
                raise KeyError("a row of the holdout")
            if fate == 4:
                self.lock_ = threading.Lock()
            if fate == 5:
                raise RuntimeError("long " * 200_000)
            self.fate_, self.mean_ = fate, float(np.mean(y))
            return self

        def predict(self, X):
            return np.full(len(X), self.mean_ / (0 if self.fate_ == 2 else 1))

    return Fateful


@pytest.fixture(scope="session")
def fates(spark, tmp_path_factory):
    """Twenty good keys whose mean is their number, keys of one and of two rows, and one key per fault."""
    sizes = dict.fromkeys([*GOOD, *FAULTS], 20) | {"one": 1, "two": 2}
    rows = [
        (carrier, 1000 * number + row, dt.datetime(2024, 5, 1, row, tzinfo=dt.UTC),
         float(FAULTS.get(carrier, 0)), float(row), float(number))
        for number, (carrier, size) in enumerate(sizes.items())
        for row in range(size)
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, FATES)
    changes = {
        "features": ["fate", "row"],
        "time_column": "at",
        "holdout": {"by": "time", "share": 0.2},
        "estimator": {"object": fateful(), "version": "1"},
        "limits": {"min_rows": 5, "max_failed_share": 0.5},
    }
    return trained(frame, tmp_path_factory.mktemp("fates"), **changes)


@dataclasses.dataclass(frozen=True)
class Nights:
    """Two nights of one model set, and what was scored after each."""

    first: World
    second: World
    scored: tuple[pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="session")
def nights(spark, tmp_path_factory):
    """Night 1 has A and B with y = x; night 2 has A alone with y = 10 x. Scored with x = 5 after each."""
    folder = tmp_path_factory.mktemp("nights")
    question = spark.createDataFrame([("A", 1, 5.0), ("B", 2, 5.0)], "carrier string, row_id int, x double")
    worlds, answers = [], []
    for carriers, factor in (("AB", 1.0), ("A", 10.0)):
        rows = [(carrier, float(x), factor * x) for carrier in carriers for x in range(10)]
        frame = spark.createDataFrame(rows, "carrier string, x double, y double")
        spec = spec_of(frame, folder, estimator={"object": LinearRegression(), "version": "1"})
        worlds.append(World(spec, frame, api.train(spec, spark=spark, accept_changes=True)))
        answers.append(api.score(question, spec).toPandas())
    return Nights(*worlds, scored=tuple(answers))
