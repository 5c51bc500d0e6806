"""The pieces of a wave whose worker dies of a key."""

import datetime as dt

import pyarrow as pa

from group_models.estimators.base import EstimatorSettings, Features
from group_models.fitting.deaths import FitLimits
from group_models.fitting.outcomes import RESULT, FitSettings
from group_models.fitting.pieces import crashed_row, halves
from group_models.keys import key_seed
from group_models.mlmodel import MlmodelTemplate
from group_models.tables import STORE, WHOLE, micros

HOLDOUT_FROM = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def parts(*units):
    """Parts of keys k0, k1, ... in these units."""
    ids = [f"k{place}" for place in range(len(units))]
    return pa.table({"key_id": ids, "part": pa.array([WHOLE] * len(units), pa.int32()), "unit": list(units)})


def ids(pieces):
    return [piece["key_id"].to_pylist() for piece in pieces]


def test_units_are_halved_first_and_stay_whole():
    assert ids(halves(parts(7, 7, 3, 5, 3))) == [["k2", "k4"], ["k0", "k1", "k3"]]


def test_one_unit_is_halved_by_its_keys():
    assert ids(halves(parts(3, 3, 3))) == [["k0"], ["k1", "k2"]]


def test_halving_ends_at_single_keys_and_loses_none():
    found, todo, steps = [], [parts(*[unit // 3 for unit in range(20)])], 0
    while todo:
        piece = todo.pop()
        steps += 1
        if piece.num_rows == 1:
            found.append(piece["key_id"][0].as_py())
        else:
            todo += halves(piece)
    assert sorted(found) == sorted(parts(*range(20))["key_id"].to_pylist())
    assert steps == 39


def settings(limits):
    features = Features(("x",), (), ("x",))
    return FitSettings(
        model_set="c.s.m",
        run_id="r1",
        features={"x": "numeric"},
        estimator=EstimatorSettings("ridge"),
        template=MlmodelTemplate.build(
            model_set="c.s.m", run_id="r1", features=features, flavor="sklearn", estimator="ridge"
        ),
        refit=True,
        seed=7,
        max_model_bytes=10,
        holdout_by="time",
        holdout_share=0.2,
        holdout_from_us=micros(HOLDOUT_FROM),
        limits=limits,
    )


def test_the_row_of_a_key_that_kills_its_worker_says_what_can_be_known():
    part = {"key_id": "k", "part": 2, "unit": 5, "wave": 1}
    row = crashed_row(part, settings(FitLimits(timeout_s=90.0)), "ridge")
    assert (row["status"], row["part"], row["unit"]) == ("crashed", 2, 5)
    assert row["seed"] == key_seed(7, "k", 2)
    assert row["holdout_from"] == HOLDOUT_FROM
    assert "or took longer than timeout_s, 90 s" in row["reason"]
    assert set(row) - {"model_set", "run_id"} <= set(RESULT)
    stored = STORE.rows([{**row, "wave": 1, "number": 1002, "attempt": 2}])
    assert stored.num_rows == 1
    assert "timeout_s" not in crashed_row(part, settings(FitLimits()), "ridge")["reason"]
