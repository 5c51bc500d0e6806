"""A wave and the jobs that it takes, with tables in memory and a Spark that dies when it is told to."""

import dataclasses
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from group_models.errors import StateError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.fakes import MemoryTables
from group_models.fitting.deaths import FitLimits
from group_models.fitting.outcomes import FitSettings
from group_models.mlmodel import MlmodelTemplate
from group_models.planning.plans import Plan
from group_models.runs.one_wave import OneWave
from group_models.tables import STORE, WHOLE, utc_now

LOST = "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: exit code 137"
CHILDLESS = "group_models.fitting.isolation.NoChildError: no child process can be made here"
FEATURES = Features(("x",), (), ("x",))
SETTINGS = FitSettings(
    model_set="c.s.m",
    run_id="r1",
    features={"x": "numeric"},
    estimator=EstimatorSettings("ridge"),
    template=MlmodelTemplate.build(
        model_set="c.s.m", run_id="r1", features=FEATURES, flavor="sklearn", estimator="ridge"
    ),
    refit=True,
    seed=7,
    max_model_bytes=10,
    holdout_by="none",
    holdout_share=0.2,
    holdout_from_us=None,
    limits=FitLimits(timeout_s=60.0),
)


class Told(OneWave):
    """A wave whose jobs die of poison keys, and note which keys they had and how."""

    def set_up(self, poison, *, holds_children=True, is_childless=False, lost=()):
        self.jobs = []
        self.poison, self.holds_children, self.is_childless, self.lost = poison, holds_children, is_childless, set(lost)

    def _frame(self, parts, settings, number, *, is_piece):
        keys = sorted(parts["key_id"].to_pylist())
        self.jobs.append(("apart" if settings.is_isolated else "here", len(keys), is_piece))
        if settings.is_isolated and self.is_childless:
            raise PySparkException(CHILDLESS)
        if self.poison & set(keys) and not (settings.is_isolated and self.holds_children):
            raise PySparkException(LOST)
        kept = [key for key in keys if key not in self.lost]
        self.lost.clear()
        return STORE.rows(row(key, "crashed" if key in self.poison else "trained", number) for key in kept)


def row(key, status, number):
    return {
        "model_set": "c.s.m", "run_id": "r1", "wave": 0, "number": number, "key_id": key, "part": WHOLE, "format": 1,
        "status": status, "started_at": utc_now(), "attempt": number,
    }  # fmt: skip


def parts(count, units):
    return pa.table(
        {
            "key_id": [f"k{place:02d}" for place in range(count)],
            "part": pa.array([WHOLE] * count, pa.int32()),
            "unit": pa.array([place % units for place in range(count)], pa.int32()),
        }
    )


def trained(poison, *, count=8, units=4, isolation="auto", of=Told, tables=None, **faults):
    """Train a wave and return it, its rows by key, and what it said."""
    said = []
    tables = tables or MemoryTables()
    spec = SimpleNamespace(model_set="c.s.m", isolation=isolation)
    prepared = SimpleNamespace(tables=tables, spec=spec, estimator=SETTINGS.estimator, features=FEATURES)
    keys = pa.table(
        {
            "key_id": parts(count, units)["key_id"],
            "key": pa.array([[("carrier", f"c{place}")] for place in range(count)], pa.map_(pa.string(), pa.string())),
        }
    )
    settings = dataclasses.replace(SETTINGS, is_isolated=isolation == "always")
    wave = of(prepared, Plan(keys, slots=2), 0, None, settings, said.append)
    wave.set_up(set(poison), **faults)
    wave.train(parts(count, units))
    rows = tables.read(STORE).to_pylist()
    assert len({row["key_id"] for row in rows}) == len(rows) == count
    return wave, {row["key_id"]: row for row in rows}, said


def crashed(rows):
    return sorted(key for key, row in rows.items() if row["status"] == "crashed")


def test_a_wave_without_poison_is_one_job():
    wave, rows, said = trained([])
    assert wave.jobs == [("here", 8, False)]
    assert (crashed(rows), said) == ([], [])


def test_a_wave_that_dies_is_fitted_again_in_child_processes():
    wave, rows, said = trained(["k03"])
    assert wave.jobs == [("here", 8, False), ("apart", 8, False)]
    assert crashed(rows) == ["k03"]
    assert {row["number"] for row in rows.values()} == {1}
    assert said == ["wave 1: a worker died; its 8 keys are fitted again in child processes"]


def test_a_wave_that_dies_in_child_processes_too_is_halved():
    wave, rows, said = trained(["k03"], holds_children=False)
    assert [how for how, *_ in wave.jobs] == ["here", "apart", "here", "here", "here", "here", "here", "here"]
    assert crashed(rows) == ["k03"]
    assert "dead worker" in {row["error_type"] for row in rows.values()}
    assert said[-1] == "wave 1: carrier=c3 kills its worker; it is a row of status crashed"


def test_halving_takes_units_first_and_then_the_keys_of_one():
    wave, rows, _ = trained(["k03"], isolation="never")
    assert [count for _, count, _ in wave.jobs] == [8, 4, 4, 2, 2, 1, 1]
    assert crashed(rows) == ["k03"]


def test_several_poison_keys_are_found_and_written_together():
    _, rows, _ = trained(["k00", "k03", "k07"], isolation="never")
    assert crashed(rows) == ["k00", "k03", "k07"]
    assert len({rows[key]["number"] for key in crashed(rows)}) == 1


def test_a_wave_of_one_poison_key_is_its_row_without_another_job():
    wave, rows, _ = trained(["k00"], count=1, units=1, isolation="never")
    assert len(wave.jobs) == 1
    assert crashed(rows) == ["k00"]


@pytest.mark.parametrize(("isolation", "jobs"), [("auto", ["here", "apart"]), ("always", ["apart", "here"])])
def test_where_no_child_can_be_made_a_wave_is_halved(isolation, jobs):
    wave, rows, said = trained(["k03"], isolation=isolation, is_childless=True)
    assert [how for how, *_ in wave.jobs][: len(jobs)] == jobs
    assert crashed(rows) == ["k03"]
    assert "wave 1: no child process can be made; its 8 keys are halved until the one that kills" in " ".join(said)


def test_where_every_fit_is_in_a_child_a_dead_worker_takes_none_out_of_it():
    wave, rows, said = trained(["k03"], isolation="always", holds_children=False)
    assert {how for how, *_ in wave.jobs} == {"apart"}
    assert [count for _, count, _ in wave.jobs] == [8, 8, 4, 4, 2, 2, 1, 1]
    assert crashed(rows) == ["k03"]
    assert said[-1] == "wave 1: carrier=c3 kills its worker; it is a row of status crashed"


def test_where_no_child_can_be_made_any_more_for_a_piece_no_key_is_blamed_for_it():
    class Later(Told):
        def _frame(self, parts, settings, number, *, is_piece):
            self.is_childless = is_piece
            return super()._frame(parts, settings, number, is_piece=is_piece)

    wave, rows, _ = trained(["k03"], isolation="always", holds_children=False, of=Later)
    assert [how for how, *_ in wave.jobs][:4] == ["apart", "apart", "apart", "here"]
    assert crashed(rows) == ["k03"]


def test_where_no_child_can_be_made_and_no_key_kills_the_wave_is_fitted_without():
    wave, rows, _ = trained([], isolation="always", is_childless=True)
    assert wave.jobs == [("apart", 8, False), ("here", 8, False)]
    assert crashed(rows) == []


def test_what_a_job_leaves_missing_goes_out_again():
    wave, rows, _ = trained([], lost=["k01", "k02"])
    assert wave.jobs == [("here", 8, False), ("here", 2, False)]
    assert rows["k01"]["number"] == 1


class Counting(MemoryTables):
    """Tables that note which rows of the store are asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def read(self, table, *, columns=None, where=None):
        self.asked.append(dict(where or {}))
        return super().read(table, columns=columns, where=where)


def test_a_wave_reads_its_own_rows_alone_and_none_before_it_has_any():
    tables = Counting()
    trained([], lost=["k01"], tables=tables)
    own = {"model_set": ["c.s.m"], "run_id": ["r1"], "wave": [0]}
    assert tables.asked == [own, own, {}]


@pytest.mark.parametrize(("poisoned", "trained_first", "said"), [(8, 0, 5), (24, 8, 20)])
def test_workers_that_die_of_key_after_key_are_said_to_be_ill(poisoned, trained_first, said):
    poison = [f"k{place:02d}" for place in range(trained_first, trained_first + poisoned)]
    with pytest.raises(StateError, match=rf"^run r1: {said} keys of wave 1 .* the workers themselves may be ill"):
        trained(poison, count=trained_first + poisoned, units=trained_first + poisoned, isolation="never")


def test_another_failure_is_said_at_once_with_units_keys_and_the_way_on():
    class Unreadable(Told):
        def _frame(self, parts, settings, number, *, is_piece):
            raise PySparkException("[PATH_NOT_FOUND] rows.parquet")

    prepared = SimpleNamespace(tables=MemoryTables(), spec=SimpleNamespace(model_set="c.s.m", isolation="auto"))
    keys = pa.table(
        {
            "key_id": parts(8, 4)["key_id"],
            "key": pa.array([[("carrier", f"c{place}")] for place in range(8)], pa.map_(pa.string(), pa.string())),
        }
    )
    wave = Unreadable(prepared, Plan(keys, slots=2), 2, None, SETTINGS, print)
    with pytest.raises(StateError) as raised:
        wave.train(parts(8, 4))
    assert str(raised.value) == (
        "run r1: wave 3 with units 0 to 3 (keys carrier=c0, carrier=c1, carrier=c2 and 5 more) failed: "
        "[PATH_NOT_FOUND] rows.parquet. What was committed before stays; `group-models train SPEC --run-id r1` goes on"
    )


def test_more_poison_keys_than_one_attempt_takes_are_found_by_those_that_go_on():
    tables, poison = MemoryTables(), [f"k{place:02d}" for place in range(8, 50)]
    again = {"count": 50, "units": 50, "isolation": "never", "tables": tables}
    for found in (20, 40):
        with pytest.raises(StateError, match=r"20 keys of .* may be ill: .*`isolation: auto`.*--run-id r1` goes on"):
            trained(poison, **again)
        assert tables.read(STORE, where={"status": ["crashed"]}).num_rows == found
    _, rows, _ = trained(poison, **again)
    assert crashed(rows) == poison


def test_where_nothing_is_trained_no_key_is_blamed():
    tables, keys = MemoryTables(), [f"k{place:02d}" for place in range(8)]
    for _ in range(2):
        with pytest.raises(StateError, match=r"5 keys of .* may be ill"):
            trained(keys, isolation="never", tables=tables)
        assert tables.read(STORE).num_rows == 0
