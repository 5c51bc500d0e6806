"""The bounds are judged by what was measured; what was not measured is not met."""

import json

import pytest

from tests.benchmarks import bounds
from tests.benchmarks.bounds import BOUNDS, Bound, judge, mistakes
from tests.benchmarks.runner import all_cases
from tests.benchmarks.workloads import FULL

GOOD = {"settings": {"is_full": True}, "rows": [], "targets": [], "values": {b.name: b.most for b in BOUNDS}}


def checked(tmp_path, found):
    file = tmp_path / "found.json"
    file.write_text(json.dumps(found))
    return bounds.main([str(file)])


def test_a_value_may_be_its_bound_but_not_over_it():
    met, over, missing = judge({"a": 0.4, "b": 0.5}, [Bound("a", 0.4), Bound("b", 0.4, aim=0.25), Bound("c", 1.0)])
    assert [met.is_met, over.is_met, missing.is_met] == [True, False, False]
    assert str(over) == "b: 0.5, at most 0.4 (aim 0.25)"
    assert str(missing) == "c: not measured, at most 1"


def test_each_name_is_bound_once_and_each_bound_ratio_is_one_that_the_bench_measures():
    names = [bound.name for bound in BOUNDS]
    assert len(names) == len(set(names))
    ratios = [name for name in names if name.endswith(("/joblib", "/plain", "/closure"))]
    assert len(ratios) == 6
    assert set(ratios) <= {case.name for case in all_cases(FULL)}


def test_a_result_within_all_bounds_passes(tmp_path, capsys):
    assert checked(tmp_path, GOOD) == 0
    assert "bounds are met" in capsys.readouterr().out


def test_each_missed_bound_is_named_with_value_and_bound(tmp_path, capsys):
    values = GOOD["values"] | {"W1/ridge/train/joblib": 0.7, "W6/ridge/score/direct, s": 3.0}
    assert checked(tmp_path, GOOD | {"values": values}) == 1
    assert capsys.readouterr().out.splitlines() == [
        "MISSED W1/ridge/train/joblib: 0.7, at most 0.4 (aim 0.25)",
        "MISSED W6/ridge/score/direct, s: 3, at most 2",
    ]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"rows": [{"name": "W1/a", "is_same": False, "failure": None}]}, "W1/a: the two sides differ"),
        ({"rows": [{"name": "W1/a", "is_same": False, "failure": "MemoryError"}]}, "W1/a: MemoryError"),
        ({"targets": [{"name": "W4/b", "failure": "too slow"}]}, "W4/b: too slow"),
    ],
)
def test_a_side_that_failed_or_found_something_else_is_a_mistake(part, said):
    assert mistakes(GOOD | part) == [said]


def test_a_result_of_small_workloads_is_not_judged(tmp_path, capsys):
    assert checked(tmp_path, GOOD | {"settings": {"is_full": False}}) == 2
    assert "--small" in capsys.readouterr().out
