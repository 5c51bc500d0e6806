"""An ensemble that raises, hangs or answers nonsense while it is measured is told of with type, message and reason."""

import time

import numpy as np
import pandas as pd
import pytest

from group_models.fitting.deaths import FitLimits
from group_models.fitting.measured import FAILURE, Measured
from group_models.fitting.measuring import Meter

X, Y = pd.DataFrame({"x": [1.0, 2.0, 3.0]}), np.array([1.0, 2.0, 4.0])


class Model:
    native = None

    def __init__(self, answer):
        self.answer, self.calls = answer, 0

    def predict(self, x):
        self.calls += 1
        return self.answer(x)


def metered(answer, *, batches=2, timeout_s=None, rounds=1):
    model = Model(answer)
    meter = Meter(lambda: model, FitLimits(timeout_s=timeout_s), rounds=rounds)
    for _ in range(batches):
        meter.add(X, Y, np.zeros(len(Y)))
    return meter.measured, model


def raising(_):
    raise ValueError("no such colour")


def leaving(_):
    raise SystemExit(3)


def dropping(_):
    raise GeneratorExit("enough")


def hanging(_):
    while True:
        time.sleep(0.01)


def test_batches_add_up_to_the_metrics_of_model_and_baseline():
    measured, model = metered(lambda x: x["x"])
    assert (measured.failure, model.calls, measured.model.count) == (None, 2, 6)
    assert measured.model.metrics()["mae"] == pytest.approx(1 / 3)
    assert measured.baseline.metrics()["mae"] == pytest.approx(7 / 3)


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (raising, "ValueError", "evaluate: ValueError: no such colour"),
        (leaving, "SystemExit", "evaluate: SystemExit: 3"),
        (dropping, "GeneratorExit", "evaluate: GeneratorExit: enough"),
        (lambda _: np.zeros(2), "ValueError", "evaluate: ValueError: 3 rows got predictions of shape (2,)"),
    ],
)
def test_what_the_ensemble_raised_first_is_the_row(answer, kind, reason):
    measured, model = metered(answer)
    assert set(measured.failure) == set(FAILURE)
    wanted = {"status": "failed", "error_type": kind, "error_stage": "evaluate", "reason": reason}
    assert {name: measured.failure[name] for name in wanted} == wanted
    assert model.calls == 1


def test_an_ensemble_that_hangs_has_timed_out():
    measured, model = metered(hanging, timeout_s=0.1)
    assert (measured.failure["status"], measured.failure["error_type"]) == ("timed_out", "TimedOut")
    assert measured.failure["reason"].startswith("evaluate: the ensemble took longer than timeout_s, 0.1 s, to predict")
    assert "hanging" in measured.failure["traceback"]
    assert model.calls == 1


def test_all_batches_of_an_ensemble_share_one_limit():
    measured, model = metered(lambda x: (time.sleep(0.15), x["x"])[1], batches=9, timeout_s=0.5)
    assert measured.failure["status"] == "timed_out"
    assert model.calls < 9


def test_meters_that_follow_one_another_share_one_limit_and_name_it_whole():
    measured, model = metered(lambda x: (time.sleep(0.15), x["x"])[1], batches=9, timeout_s=30.0, rounds=100)
    assert measured.failure["reason"].startswith("evaluate: the ensemble took longer than timeout_s, 30 s, to predict")
    assert model.calls < 9


def test_memory_that_runs_out_is_its_own_status():
    def greedy(_):
        raise MemoryError

    measured, _ = metered(greedy)
    assert measured.failure["status"] == "out_of_memory"
    assert "memory_per_worker" in measured.failure["reason"]


def test_a_model_that_cannot_be_read_is_told_of():
    def load():
        raise RuntimeError("torn")

    meter = Meter(load, FitLimits())
    meter.add(X, Y, Y)
    assert meter.measured.failure["reason"] == "evaluate: RuntimeError: torn"


def test_of_two_failures_the_first_counts():
    first, second = (dict.fromkeys(FAILURE, text) for text in "ab")
    assert Measured(failure=first).merge(Measured(failure=second)).failure == first
    assert Measured().merge(Measured(failure=second)).failure == second
