"""The targets check what they say they check; whether they are met is for the benchmark to find out."""

import io

import pytest
from rich.console import Console

from group_models.planning import SIZES
from tests.benchmarks import target_sides
from tests.benchmarks.__main__ import main
from tests.benchmarks.child import SIDES
from tests.benchmarks.runner import Options, SideError
from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.targets import (
    Check,
    Judged,
    all_targets,
    check_night,
    check_planning,
    check_skew,
    run_targets,
    show_targets,
    targets_json,
)
from tests.benchmarks.workloads import RIDGE, Data, Workload


def test_each_side_of_a_target_is_known_to_the_child():
    for is_small in (True, False):
        targets = all_targets(is_small=is_small)
        assert [target.name for target in targets] == ["planning/keys", "skew/half", "night/changed"]
        assert {side for target in targets for side in target.sides} <= set(SIDES)


def test_planning_is_checked_for_its_seconds_and_for_the_memory_of_both_ways():
    outcomes = {
        "plan/synthetic": Outcome(seconds=11.0, peaks_mb={"driver_python": 900.0}),
        "plan/measured": Outcome(seconds=90.0, peaks_mb={"driver_python": 1_600.0}),
    }
    assert [check.is_met for check in check_planning(outcomes, 2)] == [False, True, False]


def test_a_huge_key_may_cost_its_fits_on_all_cores_and_a_quarter_more_beside_the_run_without_fits():
    floor = Outcome(seconds=20.0)
    for seconds, is_met in ((70.0, True), (71.0, False)):
        salted = Outcome(seconds=seconds, phases={"fits": 80.0}, peaks_mb={"worker": 700.0})
        wall, worker = check_skew({"skew/salted": salted, "skew/floor": floor}, 2)
        assert (wall.is_met, worker.is_met) == (is_met, True)


def test_a_night_of_few_changes_is_compared_with_the_full_run():
    (check,) = check_night({"night/changed": Outcome(seconds=6.0, phases={"full": 50.0})}, 2)
    assert (check.value, check.is_met) == (0.12, True)


def test_a_missed_and_a_failed_target_are_told():
    target = all_targets(is_small=True)[0]
    judged = [Judged(target, (Check("seconds", 11.0, 10.0),)), Judged(target, failure="plan/synthetic: MemoryError")]
    console = Console(width=200, file=io.StringIO())
    show_targets(judged, console)
    text = console.file.getvalue()
    assert "MISSED" in text
    assert "MemoryError" in text
    assert [one["is_met"] for one in targets_json(judged)] == [False, False]


def test_a_side_that_fails_ends_its_target_alone(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise SideError("out of memory")

    monkeypatch.setattr("tests.benchmarks.targets.run_side", fail)
    judged = run_targets(all_targets(is_small=True), Options(tmp_path), lambda _: None)
    assert [one.failure for one in judged] == [f"{one.target.sides[0]}: out of memory" for one in judged]


def test_synthetic_sizes_are_those_of_so_many_keys():
    found = target_sides.sizes(1_000, 50_000)
    assert found.schema.names == [field.name for field in SIZES]
    assert len(set(found["key_id"].to_pylist())) == 1_000
    assert set(map(len, found["key_id"].to_pylist())) == {32}
    assert [len(dict(key)) for key in found["key"].to_pylist()[:3]] == [3, 3, 3]
    assert found["rows"].to_numpy().sum() == pytest.approx(50_000, rel=0.05)
    assert found["rows"].to_numpy().max() > 20 * found["rows"].to_numpy().mean()


def test_planning_alone_needs_no_spark_and_tells_its_phases(tmp_path):
    job = Job(Workload("ridge", RIDGE, 500, 50_000), Data(tmp_path), tmp_path / "out", 2, tmp_path, tmp_path)
    outcome = target_sides.plan_synthetic(job)
    assert set(outcome.phases) == {"plan", "skew", "rows"}
    assert outcome.peaks_mb["driver_python"] > 0


@pytest.mark.slow
@pytest.mark.spark
def test_the_small_targets_of_planning_and_skew_run(tmp_path, capsys):
    assert main(["--small", "--only", "planning", "--only", "skew", "--work", str(tmp_path)]) in (0, 1)
    text = capsys.readouterr().out
    assert "FAILED" not in text
    assert text.count("seconds of planning") == 1
    assert text.count("run without fits") == 1
