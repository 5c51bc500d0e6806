"""What a plan says of its skew: who decides the time, and what other settings would change."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group_models.planning.deciding import plan_keys
from group_models.planning.plans import Plan, summarise
from group_models.planning.skew import (
    Skew,
    describe_skew,
    forecast,
    job_seconds,
    oversize,
    unit_seconds,
    wave_forecasts,
)
from group_models.spec import Spec
from group_models.tables import PLAN
from tests.unit.test_planning import COSTS, sizes, spec

LIMIT = {"max_key_rows": 5_000}


def skew_of(measured: pa.Table, of_spec: Spec, slots: int = 2) -> tuple[Plan, Skew]:
    plan = plan_keys(measured, of_spec, COSTS, slots=slots)

    def replan(key_ids: pa.Array, other: Spec) -> pa.Table:
        of_keys = measured.filter(pc.is_in(measured["key_id"], key_ids))
        why_not = None if of_spec.oversize == "distribute" else "not tried"
        return plan_keys(of_keys, other, COSTS, slots=slots, why_not=why_not).keys

    return plan, describe_skew(plan.keys, of_spec, slots=slots, replan=replan)


def world(*rows: int) -> pa.Table:
    return sizes(*[(f"k{i}", n, n, 10 * n) for i, n in enumerate(rows)])


def planned(*rows: dict[str, Any]) -> pa.Table:
    """Return rows of a plan given as what matters here."""
    shared = {"model_set": "a.b.c", "run_id": "r1", "level": "k", "rows": 1, "usable_rows": 1, "bytes": 1}
    return PLAN.rows([{**shared, "key_id": str(i), "key": [("k", str(i))], **row} for i, row in enumerate(rows)])


SALTED = planned(
    {"decision": "salted", "n_parts": 3, "unit": 0, "wave": 0, "predicted_seconds": 30.0, "usable_rows": 90},
    {"decision": "whole", "n_parts": 1, "unit": 3, "wave": 1, "predicted_seconds": 2.0, "usable_rows": 10},
    {"decision": "whole", "n_parts": 1, "unit": 3, "wave": 1, "predicted_seconds": 3.0, "usable_rows": 10},
    {"decision": "too_small"},
)
"""A key of three parts in wave 0, two small keys in one unit of wave 1, and one that is not fitted."""


def test_the_parts_of_a_salted_key_are_jobs_and_units_of_their_own():
    assert job_seconds(SALTED).tolist() == [10.0, 10.0, 10.0, 2.0, 3.0]
    unit, wave, seconds = unit_seconds(SALTED)
    assert unit.tolist() == [0, 1, 2, 3]
    assert wave.tolist() == [0, 0, 0, 1]
    assert seconds.tolist() == [10.0, 10.0, 10.0, 5.0]


def test_each_wave_is_told_with_its_makespan_and_its_ideal():
    first, second = wave_forecasts(SALTED, slots=2)
    assert (first.units, first.seconds, first.ideal_seconds) == (3, 20.0, 15.0)
    assert (second.units, second.seconds, second.ideal_seconds) == (1, 5.0, 2.5)


def test_the_seconds_of_a_plan_are_those_of_its_summary():
    plan, skew = skew_of(world(4_000, 3_000, *[100] * 200), spec())
    assert skew.seconds == pytest.approx(summarise(plan).predicted_seconds)
    assert skew.ideal_seconds == pytest.approx(summarise(plan).ideal_seconds)
    assert skew.seconds_by_slots[2] == skew.seconds


def test_times_are_told_for_half_the_slots_the_same_and_two_and_four_times_as_many():
    _, skew = skew_of(world(*[1_000] * 64), spec(), slots=4)
    assert {n: round(s) for n, s in skew.seconds_by_slots.items()} == {2: 320, 4: 160, 8: 80, 16: 40}
    assert skew.facts()["fit time by slots"] == "about 5.3 min on 2, 2.7 min on 4, 80.0 s on 8, 40.0 s on 16"
    _, alone = skew_of(world(100), spec(), slots=1)
    assert list(alone.seconds_by_slots) == [1, 2, 4]


def test_more_slots_do_not_hurry_one_key():
    _, skew = skew_of(world(4_000, 100), spec(), slots=2)
    assert skew.seconds_by_slots[8] == skew.seconds_by_slots[2] == 40.0


@given(
    rows=st.lists(st.integers(10, 20_000), min_size=1, max_size=300),
    slots=st.sampled_from([1, 2, 5, 16]),
    wave_s=st.sampled_from([5.0, 60.0, 600.0]),
)
@settings(max_examples=60, deadline=None)
def test_a_forecast_is_near_what_planning_again_would_say(rows, slots, wave_s):
    again = spec(compute={"wave_s": wave_s})
    plan = plan_keys(world(*rows), again, COSTS, slots=slots)
    exact = sum(wave.seconds for wave in wave_forecasts(plan.keys, slots))
    jobs = job_seconds(plan.keys)
    told = forecast(jobs, slots=slots, wave_s=wave_s)
    assert told >= max(jobs.max(), jobs.sum() / slots) * (1 - 1e-9)
    waves = plan.waves
    assert abs(told - exact) <= waves * jobs.max() + 0.25 * exact


def test_a_plan_that_trains_nothing_tells_no_units():
    facts = summarise(Plan.of_rows(PLAN.empty(), slots=2)).facts()
    assert (facts["keys"], facts["units"]) == ("0 (none)", "none to train")
    assert not {"largest unit", "predicted fit time"} & set(facts)


def test_no_keys_and_no_fits_have_a_skew_too():
    for rows in ((), (5, 3)):
        _, skew = skew_of(world(*rows), spec())
        assert (skew.seconds, skew.ideal_seconds, skew.waves, skew.warnings) == (0.0, 0.0, (), ())
        assert skew.facts() == {"fit time by slots": "about 0.0 s on 1, 0.0 s on 2, 0.0 s on 4, 0.0 s on 8"}


@given(
    keys=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20_000)), max_size=40),
    policy=st.sampled_from(["salt", "sample", "skip", "distribute"]),
)
@settings(max_examples=60, deadline=None)
def test_the_oversize_keys_are_those_that_the_plan_does_not_train_whole(keys, policy):
    measured = sizes(*[(f"k{i}", n, n, b) for i, (n, b) in enumerate(keys)])
    of_spec = spec({"max_key_rows": 30, "max_key_bytes": 9_000}, oversize=policy)
    plan = plan_keys(measured, of_spec, COSTS, slots=2)
    decision = plan.keys["decision"].to_numpy(zero_copy_only=False)
    assert oversize(plan.keys, of_spec).tolist() == (~np.isin(decision, ["whole", "too_small", "vanished"])).tolist()


def test_every_policy_says_what_it_would_do_with_the_oversize_keys():
    _, skew = skew_of(world(20_000, 8_000, *[100] * 20), spec(LIMIT, oversize="sample"))
    assert (skew.oversize_keys, round(skew.oversize_share, 3)) == (2, 0.933)
    facts = skew.facts()
    assert facts["oversize keys"] == "2 with 93.3% of all rows"
    assert facts["oversize: sample"].startswith("2 sampled to 9,57")
    assert "of 28,000 rows (34." in facts["oversize: sample"]
    assert facts["oversize: sample"].endswith("(the spec's)")
    assert facts["oversize: skip"] == "2 too_big, no new model; about 10.0 s"
    assert facts["oversize: fail"] == (
        "the run is refused before training, naming k=k0 (20,000 rows); k=k1 (8,000 rows)"
    )
    assert facts["oversize: salt"].startswith("2 salted in 7 parts, all rows used; about ")
    assert facts["oversize: distribute"] == f"only xgboost can be distributed: {facts['oversize: salt']}"


def test_distributed_keys_are_told_and_nobody_waits_for_them():
    plan, skew = skew_of(world(20_000, *[100] * 20), spec(LIMIT, oversize="distribute", estimator="xgboost"))
    assert "distributed" in plan.decisions()
    assert skew.policies["distribute"].startswith("1 distributed over the whole cluster, one after another; about ")
    assert skew.warnings == ()


def test_a_large_key_that_keeps_its_model_needs_no_policy():
    kept = planned({"decision": "unchanged", "usable_rows": 90_000})
    assert oversize(kept, spec(LIMIT)).tolist() == [False]


def test_salting_is_told_by_its_parts():
    keys = planned({"decision": "whole", "n_parts": 1, "unit": 0, "wave": 0, "predicted_seconds": 60.0,
                    "usable_rows": 9_000})  # fmt: skip
    salted = planned({"decision": "salted", "n_parts": 3, "predicted_seconds": 60.0, "usable_rows": 9_000})
    skew = describe_skew(keys, spec(LIMIT), slots=4, replan=lambda ids, other: salted)
    assert skew.policies["salt"] == "1 salted in 3 parts, all rows used; about 20.0 s (the spec's)"


def test_without_oversize_keys_nothing_is_planned_again():
    plan = plan_keys(world(100, 200), spec(), COSTS, slots=2)
    skew = describe_skew(plan.keys, spec(), slots=2, replan=lambda ids, other: pytest.fail("planned again"))
    assert skew.policies == {}
    assert not [name for name in skew.facts() if "oversize" in name]


def test_a_key_that_all_others_wait_for_is_a_warning_with_the_way_out():
    _, skew = skew_of(world(8_000, *[100] * 20), spec({"max_key_rows": 10_000}), slots=4)
    (warning,) = skew.warnings
    assert warning == (
        "one key decides how long the run takes: k=k0 with 80.0% of all rows needs 80.0 s of 80.0 s, ideally it would "
        "be 25.0 s; salt it: lower limits.max_key_rows (now 10,000; about 2,500 would do)"
    )
    assert skew.facts()["warning"] == warning


@pytest.mark.parametrize("policy", ["salt", "sample"])
def test_of_a_key_that_is_salted_or_sampled_the_advice_is_a_lower_limit_that_helps(policy: str):
    measured = world(16_000, *[100] * 20)
    _, skew = skew_of(measured, spec({"max_key_rows": 4_000}, oversize=policy), slots=16)
    advised = re.search(r"lower limits\.max_key_rows \(now 4,000; about ([\d,]+) would do\)", skew.warnings[0])
    assert advised is not None
    limit = int(advised[1].replace(",", ""))
    assert limit < 4_000
    assert skew_of(measured, spec({"max_key_rows": limit}), slots=16)[1].seconds < skew.seconds
    assert (" salt it more: lower" in skew.warnings[0]) == (policy == "salt")


def test_where_the_spec_does_not_salt_the_way_out_begins_with_it():
    _, skew = skew_of(world(8_000, *[100] * 20), spec({"max_key_rows": 10_000}, oversize="skip"), slots=4)
    assert "salt it: say `oversize: salt` and lower limits.max_key_rows" in skew.warnings[0]


@pytest.mark.parametrize("rows", [(1_000,) * 40, (300, *[10] * 5)], ids=["even", "a few seconds"])
def test_even_plans_and_short_ones_warn_of_nothing(rows):
    assert skew_of(world(*rows), spec(), slots=4)[1].warnings == ()


def test_oversize_keys_without_a_new_model_are_a_warning():
    _, skew = skew_of(world(20_000, *[100] * 20), spec(LIMIT, oversize="skip"))
    assert skew.warnings == (
        "1 key(s) with 90.9% of all rows get no new model: k=k0 (20,000 rows); `oversize: salt` would train them",
    )


def test_a_plan_shows_its_skew_in_its_facts_and_as_html():
    plan, skew = skew_of(world(8_000, *[100] * 20), spec({"max_key_rows": 10_000}), slots=4)
    facts = summarise(Plan(plan.keys, plan.slots, skew=skew)).facts()
    assert facts["warning"] == skew.warnings[0]
    assert "fit time by slots" in Plan(plan.keys, plan.slots, skew=skew)._repr_html_()
