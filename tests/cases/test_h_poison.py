"""Keys that kill what fits them: a row each, every other key trained, the run finished."""

import itertools
import os
import signal
import time

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from group_models import api
from group_models.errors import StateError
from group_models.tables import STORE
from tests.cases.worlds import by_key, spec_of, tables_of

GOOD = [f"good{i}" for i in range(10)]
KILL, SLEEP, ALLOCATE, HANG = 1, 2, 3, 4
LIMITS = {"min_rows": 1, "max_failed_share": 1.0}


def wild():
    """An estimator whose end stands in its rows; a local class, so that workers get it by value."""

    class Wild(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            fate = int(X["fate"].iloc[0])
            if fate == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if fate == 2:
                while True:
                    time.sleep(0.01)
            if fate == 3:
                np.ones(16 * 2**30 // 8)
            if fate == 4:
                sum(itertools.repeat(0))
            self.mean_ = float(np.mean(y))
            return self

        def predict(self, X):
            return np.full(len(X), self.mean_)

    return Wild


def world(spark, folder, fates, *, good=GOOD, **changes):
    """The spec of ten good keys and of some that end as they are fated, and where to write down what is said."""
    keys = dict.fromkeys(good, 0) | fates
    rows = [(key, float(fate), float(place)) for place, (key, fate) in enumerate(keys.items()) for _ in range(4)]
    frame = spark.createDataFrame(rows, "carrier string, fate double, y double")
    usual = {"estimator": {"object": wild(), "version": "1"}, "limits": LIMITS, "features": ["fate"]}
    return spec_of(frame, folder, **{**usual, **changes})


def outcomes(spec, **options):
    rows = by_key(api.show(spec, **options))
    assert {key: rows[key]["status"] for key in GOOD} == dict.fromkeys(GOOD, "trained")
    return {key: row for key, row in rows.items() if key not in GOOD}


def test_h3_a_key_whose_fit_kills_its_process_is_crashed_and_all_others_are_trained(any_spark, tmp_path, counted):
    spec, said = world(any_spark, tmp_path, {"bad": KILL}), []
    run = api.train(spec, spark=any_spark, say=said.append)
    counted.update(run.counts)
    assert run.counts == {"trained": 10, "crashed": 1}
    bad = outcomes(spec)["bad"]
    assert (bad["status"], bad["serves"], bad["error_type"]) == ("crashed", "none", "SIGKILL")
    assert "the fit ended its process (SIGKILL; the kernel kills so when the memory is full)" in bad["reason"]
    assert "wave 1: a worker died; its 11 keys are fitted again in child processes" in said
    assert tables_of(spec).read(STORE, columns=["number"])["number"].unique().to_pylist() == [1]


def test_h3_isolated_from_the_start_no_job_dies_and_a_run_of_many_dead_keys_is_not_released(spark, tmp_path, counted):
    limits = {"min_rows": 1, "max_failed_share": 0.1, "timeout_s": 2.0}
    compute = {"slots": 2, "memory_per_worker": "1GiB"}
    fates = {"bad": KILL, "endless": SLEEP, "huge": ALLOCATE, "deaf": HANG}
    spec, said = world(spark, tmp_path, fates, limits=limits, compute=compute, isolation="always"), []
    run = api.train(spec, spark=spark, say=said.append)
    counted.update(run.counts)
    assert run.release_id is None
    assert "4 of 14 keys failed (1 crashed, 2 timed_out, 1 out_of_memory)" in run.refusal
    assert "1 SIGKILL" in run.facts()["failures"]
    assert {key: row["status"] for key, row in outcomes(spec, run_id=run.run_id).items()} == {
        "bad": "crashed", "endless": "timed_out", "huge": "out_of_memory", "deaf": "timed_out",
    }  # fmt: skip
    assert [line for line in said if "died" in line] == []
    assert tables_of(spec).read(STORE, columns=["number"])["number"].unique().to_pylist() == [0]


def test_h3_an_endless_fit_and_a_huge_one_are_rows_without_any_death(any_spark, tmp_path, counted):
    limits, compute = {**LIMITS, "timeout_s": 1.5}, {"slots": 2, "memory_per_worker": "1GiB"}
    spec, said = world(any_spark, tmp_path, {"endless": SLEEP, "huge": ALLOCATE}, limits=limits, compute=compute), []
    counted.update(api.train(spec, spark=any_spark, say=said.append).counts)
    rows = outcomes(spec)
    assert {key: row["status"] for key, row in rows.items()} == {"endless": "timed_out", "huge": "out_of_memory"}
    assert "fit: the fit took longer than timeout_s, 1.5 s; raise limits.timeout_s" in rows["endless"]["reason"]
    assert "fit: the fit asked for more than the 1,024 MiB" in rows["huge"]["reason"]
    assert [line for line in said if "died" in line] == []


def test_h3_a_fit_that_hangs_in_c_code_costs_a_worker_and_has_timed_out(spark, tmp_path, counted):
    spec, said = world(spark, tmp_path, {"deaf": HANG}, limits={**LIMITS, "timeout_s": 1.5}), []
    counted.update(api.train(spec, spark=spark, say=said.append).counts)
    assert outcomes(spec)["deaf"]["status"] == "timed_out"
    assert "wave 1: a worker died; its 11 keys are fitted again in child processes" in said


def halved(spark, folder, said, counted, **changes):
    """Train four good keys and a poison key, and return its row."""
    spec = world(spark, folder, {"bad": KILL}, good=GOOD[:4], **changes)
    counted.update(api.train(spec, spark=spark, say=said).counts)
    assert counted == {"trained": 4, "crashed": 1}
    store = tables_of(spec).read(STORE, columns=["key_id", "number"])
    assert store.num_rows == 5
    numbers = sorted(store["number"].unique().to_pylist())
    counted["commits"] += len(numbers)
    assert 2 <= len(numbers) <= 5
    assert 0 < numbers[0] < numbers[-1] < 1000
    return by_key(api.show(spec))["bad"]


def test_h3_without_isolation_the_wave_is_halved_until_the_poison_key_is_alone(either_spark, tmp_path, counted):
    said = []
    bad = halved(either_spark, tmp_path, said.append, counted, isolation="never")
    assert "wave 1: a worker died; its 5 keys are halved until the one that kills its worker is alone" in said
    assert "wave 1: carrier=bad kills its worker; it is a row of status crashed" in said
    assert "or took longer than timeout_s, 600 s; the standard error of the executor says how" in bad["reason"]
    assert (bad["error_type"], bad["seed"] is not None) == ("dead worker", True)


@pytest.mark.slow
def test_h3_where_no_child_can_be_made_the_wave_is_halved_too(spark, tmp_path, counted):
    said, flag = [], tmp_path / "childless"

    def say(line):
        said.append(line)
        if "child processes" in line:
            flag.touch()
        if "halved" in line:
            flag.unlink()

    halved(spark, tmp_path, say, counted, estimator={"object": Childless(str(flag)), "version": "1"})
    assert "wave 1: a worker died; its 5 keys are fitted again in child processes" in said
    why = "wave 1: no child process can be made; its 5 keys are halved until the one that kills its worker is alone"
    assert why in said
    assert not flag.exists()


class Childless:
    """A factory of wild estimators. A worker that gets it while the flag is there cannot make its next child."""

    def __init__(self, flag):
        self.flag = flag
        self.estimator = wild()

    def __call__(self):
        return self.estimator()

    def __reduce__(self):
        def arrive(estimator, flag):
            import os
            import pathlib

            fork = os.fork

            def refuse():
                os.fork = fork
                raise BlockingIOError(11, "Resource temporarily unavailable")

            if pathlib.Path(flag).exists():
                os.fork = refuse
            return estimator

        return arrive, (self.estimator, self.flag)


def test_h3_a_wave_that_fails_for_another_reason_names_its_units_keys_and_the_way_on(spark, tmp_path, counted):
    spec = world(spark, tmp_path, {})
    unreadable = spark.createDataFrame([], "carrier string, fate double, y double").mapInPandas(
        fail_in_workers(str(tmp_path / "broken")), "carrier string, fate double, y double"
    )
    spec["source"] = unreadable.unionByName(spec["source"])
    (tmp_path / "broken").write_text("no")
    (tmp_path / "broken").unlink()
    said = []

    def break_then_say(line):
        said.append(line)
        if line.startswith("run r1:"):
            (tmp_path / "broken").write_text("yes")

    with pytest.raises(StateError, match=r"wave 1 with units 0 to \d+ \(keys carrier=good") as raised:
        api.train(spec, run_id="r1", spark=spark, say=break_then_say)
    message = str(raised.value)
    assert "and 7 more" in message
    assert "the disk of the source is gone" in message
    assert "`group-models train SPEC --run-id r1` goes on" in message
    (tmp_path / "broken").unlink()
    counted.update({"waves that failed": 1, **api.train(spec, run_id="r1", spark=spark).counts})
    assert counted["trained"] == 10


def fail_in_workers(file):
    """A function over partitions that fails while a file is there."""

    def read(batches):
        import pathlib

        if pathlib.Path(file).exists():
            raise OSError("the disk of the source is gone")
        yield from batches

    return read
