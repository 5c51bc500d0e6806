"""The targets check what they say they check; whether they are met is for the benchmark to find out."""

import io

import pytest
from rich.console import Console

from group_models.planning.deciding import SIZES
from tests.benchmarks import target_sides
from tests.benchmarks.__main__ import main
from tests.benchmarks.bounds import bound_of
from tests.benchmarks.child import SIDES
from tests.benchmarks.runner import Options, SideError
from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.targets import (
    Judged,
    all_targets,
    measure_keys,
    measure_levels,
    measure_night,
    measure_planning,
    measure_reasons,
    measure_report,
    measure_skew,
    run_targets,
    show_targets,
    targets_json,
)
from tests.benchmarks.workloads import RIDGE, Data, Workload

TARGETS = [
    "W3/keys/tenfold",
    "W4/skew/half",
    "W5/night/changed",
    "W7/planning/keys",
    "W8/serving/router",
    "W9/report/page",
    "W10/levels/gated",
    "W11/reasons/told",
]


def judged(name, measured):
    (target,) = [target for target in all_targets(is_small=False) if target.name == name]
    return Judged(target, measured)


def test_each_side_of_a_target_is_known_to_the_child():
    for is_small in (True, False):
        targets = all_targets(is_small=is_small)
        assert [target.name for target in targets] == TARGETS
        assert {side for target in targets for side in target.sides} <= set(SIDES)


def test_planning_is_measured_in_seconds_and_in_the_memory_of_both_ways():
    outcomes = {
        "plan/synthetic": Outcome(seconds=9.0, peaks_mb={"driver_python": 900.0}),
        "plan/measured": Outcome(seconds=90.0, peaks_mb={"driver_python": 1_600.0}),
    }
    assert list(measure_planning(outcomes, 2).values()) == [9.0, 900.0, 1_600.0]
    assert not judged("W7/planning/keys", measure_planning(outcomes, 2)).is_met


def test_a_huge_key_may_cost_its_fits_on_all_cores_and_a_quarter_more_beside_the_run_without_fits():
    floor = Outcome(seconds=20.0)
    for seconds, is_met in ((70.0, True), (71.0, False)):
        salted = Outcome(seconds=seconds, phases={"fits": 80.0}, peaks_mb={"worker": 700.0})
        found = measure_skew({"skew/salted": salted, "skew/floor": floor}, 2)
        assert judged("W4/skew/half", found).is_met is is_met


def test_a_page_may_take_half_a_minute_and_ten_megabytes():
    for seconds, size, is_met in ((29.0, 9.0, True), (31.0, 9.0, False), (29.0, 11.0, False)):
        found = measure_report({"report/page": Outcome(seconds=seconds, values={"size, MB": size})}, 2)
        assert judged("W9/report/page", found).is_met is is_met


def test_parents_and_gates_may_cost_a_pass_over_the_rows_and_a_seventh_of_the_run():
    beside = {"levels/none": Outcome(seconds=20.0), "levels/floor": Outcome(seconds=10.0)}
    for seconds, is_met in ((33.0, True), (33.1, False)):
        found = measure_levels(beside | {"levels/gated": Outcome(seconds=seconds)}, 2)
        assert judged("W10/levels/gated", found).is_met is is_met


def test_importance_and_intervals_may_cost_a_tenth_of_the_run():
    for seconds, is_met in ((11.0, True), (11.1, False)):
        found = measure_reasons({"reasons/told": Outcome(seconds=seconds), "reasons/none": Outcome(seconds=10.0)}, 2)
        assert judged("W11/reasons/told", found).is_met is is_met


def test_ten_times_the_keys_are_compared_with_a_tenth_on_as_many_rows():
    for seconds, is_met in ((15.0, True), (16.0, False)):
        found = measure_keys({"keys/many": Outcome(seconds=seconds), "keys/few": Outcome(seconds=10.0)}, 2)
        assert judged("W3/keys/tenfold", found).is_met is is_met


def test_a_night_of_few_changes_is_compared_with_the_full_run():
    found = measure_night({"night/changed": Outcome(seconds=6.0, phases={"full": 50.0})}, 2)
    assert found == {"wall over that of the full run": 0.12}
    assert judged("W5/night/changed", found).is_met


def test_every_measured_value_of_a_target_has_a_bound():
    watched = Outcome(1.0, phases={"fits": 1.0, "full": 1.0}, peaks_mb={"driver_python": 1.0, "worker": 1.0})
    told = {"serve/router": ("one row p50, ms", "one row p95, ms", "cold start, s"), "report/page": ("size, MB",)}
    for target in all_targets(is_small=False):
        watched.values = dict.fromkeys(told.get(target.sides[0], ()), 1.0)
        found = Judged(target, target.measure(dict.fromkeys(target.sides, watched), 2))
        assert found.values
        assert all(bound_of(name) for name in found.values)


@pytest.mark.parametrize(("is_full", "said"), [(True, True), (False, False)])
def test_a_missed_target_is_told_in_full_size_only_and_a_failed_one_always(is_full, said):
    missed = judged("W7/planning/keys", {"seconds of planning": 11.0})
    failed = Judged(missed.target, failure="plan/synthetic: MemoryError")
    console = Console(width=200, file=io.StringIO())
    show_targets([missed, failed], console, is_full=is_full)
    text = console.file.getvalue()
    assert ("MISSED" in text) is said
    assert "MemoryError" in text
    assert [one["is_met"] for one in targets_json([missed, failed])] == [False, False]


def test_a_side_that_fails_ends_its_target_alone(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise SideError("out of memory")

    monkeypatch.setattr("tests.benchmarks.targets.run_side", fail)
    found = run_targets(all_targets(is_small=True), Options(tmp_path), lambda _: None)
    assert [one.failure for one in found] == [f"{one.target.sides[0]}: out of memory" for one in found]


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
def test_the_small_targets_of_planning_skew_and_serving_run(tmp_path, capsys):
    asked = ["--only", "planning", "--only", "skew", "--only", "serving"]
    assert main(["--small", *asked, "--work", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "FAILED" not in text
    assert text.count("seconds of planning") == 1
    assert text.count("run without fits") == 1
    assert text.count("one row p50") == 1
