"""Plans: one decision per key, nothing lost or doubled, no budget broken."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group_models.errors import DataError
from group_models.keys import key_id
from group_models.loading import load_spec
from group_models.planning.deciding import SIZES, Costs, plan_keys, sample_share
from group_models.planning.plans import FITTED, Plan, summarise
from group_models.spec import Spec

COSTS = Costs(seconds=lambda rows, columns: rows * 0.01, model_bytes=lambda rows, columns: rows * 10.0)
"""A hundredth of a second and ten model bytes per row."""


def spec(limits: dict[str, Any] | None = None, **changes: Any) -> Spec:
    fields = {
        "model_set": "a.b.c",
        "source": {"path": "x"},
        "keys": ["k"],
        "target": "y",
        "features": ["x"],
        "estimator": "ridge",
    }
    return load_spec(fields | {"limits": {"min_rows": 10, **(limits or {})}} | changes)


def sizes(*keys: tuple[str, int, int, int]) -> pa.Table:
    """Return sizes of keys given as name, rows, usable rows and bytes."""
    at = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    rows = [
        {
            "key_id": key_id((name,)),
            "key": [("k", name)],
            "level": "k",
            "rows": count,
            "usable_rows": usable,
            "bytes": nbytes,
            "data_fingerprint": f"{usable}-0-0",
            "train_from": at,
            "train_to": at,
        }
        for name, count, usable, nbytes in keys
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(SIZES)))


def by_name(plan: Plan) -> dict[str, dict[str, Any]]:
    return {dict(row["key"])["k"]: row for row in plan.keys.to_pylist()}


def test_each_key_gets_the_decision_that_its_size_asks_for():
    measured = sizes(
        ("good", 100, 90, 9000), ("few", 9, 9, 90), ("no target", 40, 0, 0), ("one target", 40, 1, 8), ("gone", 0, 0, 0)
    )
    found = by_name(plan_keys(measured, spec(), COSTS, slots=2))
    assert {name: row["decision"] for name, row in found.items()} == {
        "good": "whole",
        "few": "too_small",
        "no target": "no_target",
        "one target": "too_small",
        "gone": "vanished",
    }
    assert found["few"]["reason"] == "9 usable rows; min_rows is 10"
    assert found["no target"]["reason"] == "none of 40 rows has a finite target"
    assert found["gone"]["reason"] == "no rows in the data; it had a model before"
    assert found["good"]["reason"] is None
    place = [(row["unit"], row["wave"], row["key_index"], row["n_parts"]) for row in found.values()]
    assert sorted(place, key=str) == [(0, 0, 0, 1), *[(None,) * 4] * 4]


def test_exactly_min_rows_is_enough():
    assert by_name(plan_keys(sizes(("k", 10, 10, 80)), spec(), COSTS, slots=1))["k"]["decision"] == "whole"


def test_an_oversize_key_is_sampled_so_far_that_its_rows_stay_below_the_limit():
    wanted = spec({"max_key_rows": 1000}, oversize="sample")
    row = by_name(plan_keys(sizes(("big", 5000, 4000, 400)), wanted, COSTS, slots=1))["big"]
    # 1,000 - 3 * sqrt(1,000) = 905 of 4,000 rows.
    assert row["sample_share"] == pytest.approx(905.13 / 4000, abs=1e-5)
    assert row["decision"] == "sampled"
    assert row["reason"] == "4,000 usable rows are over max_key_rows 1,000; a sample of 22.63% is used"
    assert row["predicted_seconds"] == pytest.approx(9.06)


def test_distributed_keys_have_a_unit_and_a_wave_of_their_own_after_all_others():
    measured = sizes(("big", 5000, 4000, 400), ("huge", 9000, 9000, 900), ("s", 20, 20, 2), ("few", 2, 2, 2))
    plan = plan_keys(measured, spec({"max_key_rows": 1000}, oversize="distribute"), COSTS, slots=4)
    found = by_name(plan)
    place = {name: (row["decision"], row["unit"], row["wave"], row["key_index"]) for name, row in found.items()}
    others = sorted(place.pop(name) for name in ("big", "huge"))
    assert others == [("distributed", 1, 1, 0), ("distributed", 2, 2, 0)]
    assert place == {"s": ("whole", 0, 0, 0), "few": ("too_small", None, None, None)}
    said = "4,000 usable rows are over max_key_rows 1,000; trained over the whole cluster"
    assert (found["big"]["reason"], found["big"]["n_parts"]) == (said, 1)
    assert found["big"]["predicted_seconds"] == pytest.approx(40.0 / 4)
    assert summarise(plan).predicted_seconds == pytest.approx(10.0 + 22.5 + 0.2)


def test_a_plan_of_distributed_keys_alone_starts_with_the_first_of_them():
    plan = plan_keys(sizes(("big", 50, 50, 5)), spec({"max_key_rows": 20}, oversize="distribute"), COSTS, slots=2)
    row = by_name(plan)["big"]
    assert (row["decision"], row["unit"], row["wave"], plan.waves) == ("distributed", 0, 0, 1)


def test_keys_that_cannot_be_distributed_are_salted_and_say_why():
    wanted = spec({"max_key_rows": 1000}, oversize="distribute")
    row = by_name(plan_keys(sizes(("big", 5000, 4000, 400)), wanted, COSTS, slots=4, why_not="no slots"))["big"]
    assert (row["decision"], row["n_parts"]) == ("salted", 5)
    said = "4,000 usable rows are over max_key_rows 1,000; trained in 5 parts, not distributed: no slots"
    assert row["reason"] == said


def test_an_oversize_key_is_salted_into_so_many_parts_that_each_stays_below_the_limit():
    plan = plan_keys(sizes(("big", 5000, 4000, 400), ("s", 20, 20, 2)), spec({"max_key_rows": 1000}), COSTS, slots=1)
    row = by_name(plan)["big"]
    # 1,000 - 3 * sqrt(1,000) = 905 of 4,000 rows a part.
    assert (row["decision"], row["n_parts"], row["unit"], row["sample_share"]) == ("salted", 5, 0, None)
    assert row["reason"] == "4,000 usable rows are over max_key_rows 1,000; trained in 5 parts"
    assert row["predicted_seconds"] == pytest.approx(40.0)
    parts = plan.parts().to_pylist()
    assert [(p["part"], p["unit"], p["usable_rows"]) for p in parts if p["key_id"] == row["key_id"]] == [
        (part, part, 800.0) for part in range(5)
    ]
    assert [(p["part"], p["unit"]) for p in parts if p["key_id"] != row["key_id"]] == [(-1, 5)]
    assert plan.units()["rows"].to_pylist() == [800.0] * 5 + [20.0]
    assert plan.has_salted


def test_bytes_make_a_key_oversize_too_and_a_unit_bounds_a_key():
    plan = plan_keys(
        sizes(("big", 400, 400, 80_000)),
        spec({"max_key_bytes": 90_000, "max_unit_bytes": 40_000}, oversize="skip"),
        COSTS,
        slots=1,
    )
    row = by_name(plan)["big"]
    assert (row["decision"], row["unit"]) == ("too_big", None)
    assert row["reason"] == "80,000 bytes are over max_key_bytes 40,000; oversize: skip"


@pytest.mark.parametrize("policy", ["salt", "sample"])
def test_a_key_of_few_rows_that_are_too_wide_for_a_part_is_left_out_and_says_why(policy):
    measured = sizes(("wide", 50, 50, 500_000), ("narrow", 5_000, 5_000, 500_000))
    limits = {"max_key_bytes": 90_000, "min_rows": 30}
    found = by_name(plan_keys(measured, spec(limits, oversize=policy), COSTS, slots=2))
    wide, narrow = found["wide"], found["narrow"]
    assert wide["decision"] == "too_big"
    assert wide["reason"].startswith("500,000 bytes are over max_key_bytes 90,000; within max_key_bytes are ")
    assert "of its wide rows, fewer than min_rows 30: raise max_key_bytes and max_unit_bytes" in wide["reason"]
    assert narrow["decision"] == {"salt": "salted", "sample": "sampled"}[policy]


def test_an_oversize_key_can_stop_the_run_and_is_named():
    measured = sizes(("big", 400, 400, 80_000), ("good", 100, 100, 9000))
    with pytest.raises(DataError, match=r"1 oversize key\(s\).*k=big \(400 usable rows .* Nothing was trained"):
        plan_keys(measured, spec({"max_key_rows": 200}, oversize="fail"), COSTS, slots=1)


def test_a_small_key_is_too_small_even_where_it_has_too_many_bytes():
    plan = plan_keys(sizes(("fat", 9, 9, 10**9)), spec(oversize="fail"), COSTS, slots=1)
    assert by_name(plan)["fat"]["decision"] == "too_small"


def test_a_share_leaves_three_standard_deviations_below_and_never_nothing():
    share = sample_share(np.array([10_000, 100]), np.array([900.0, 2.0]))
    assert share.tolist() == [pytest.approx(0.081), pytest.approx(0.01)]


def test_no_keys_are_a_plan_without_units():
    plan = plan_keys(sizes(), spec(), COSTS, slots=2)
    assert (plan.keys.num_rows, plan.waves, plan.units().num_rows) == (0, 0, 0)
    assert repr(plan) == "Plan(0 keys: none; 0 units in 0 wave(s) on 2 slot(s); about 0.0 s of fits)"
    assert "<td" in plan._repr_html_()


def test_a_plan_tells_its_largest_key_and_unit():
    plan = plan_keys(sizes(("b", 60, 60, 600), ("s", 20, 20, 200)), spec(), COSTS, slots=2)
    summary = summarise(plan)
    assert (summary.keys, summary.rows, summary.units, summary.waves) == (2, 80, 2, 1)
    assert (summary.largest_key, summary.largest_rows, summary.largest_share) == ("k=b", 60, 0.75)
    assert (summary.predicted_seconds, summary.ideal_seconds) == (pytest.approx(0.6), pytest.approx(0.4))
    assert plan.units_of_wave(0) == [0, 1]
    assert plan.units().select(["unit", "keys", "rows", "bytes"]).to_pylist() == [
        {"unit": 0, "keys": 1, "rows": 60, "bytes": 600},
        {"unit": 1, "keys": 1, "rows": 20, "bytes": 200},
    ]


def test_the_order_of_the_sizes_does_not_matter():
    given_ = [("a", 50, 50, 500), ("b", 20, 20, 900), ("c", 90, 90, 100), ("d", 3, 3, 30)]
    plans = [plan_keys(sizes(*order), spec(), COSTS, slots=2).keys for order in (given_, given_[::-1])]
    assert plans[0].equals(plans[1])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[pa.Table, Spec, int]:
    """Keys of any size, limits that some of them meet, and a number of slots."""
    usable = draw(st.lists(st.integers(0, 400), max_size=30))
    more = draw(st.lists(st.integers(0, 5), min_size=len(usable), max_size=len(usable)))
    width = draw(st.lists(st.integers(1, 60), min_size=len(usable), max_size=len(usable)))
    keys = [(str(i), n + m, n, n * w) for i, (n, m, w) in enumerate(zip(usable, more, width, strict=True))]
    limits = {
        "max_key_rows": draw(st.integers(50, 500)),
        "max_key_bytes": draw(st.integers(2000, 30_000)),
        "max_unit_bytes": draw(st.integers(2000, 40_000)),
        "max_unit_model_bytes": draw(st.integers(500, 20_000)),
    }
    compute = {"wave_s": draw(st.floats(0.2, 60))}
    oversize = draw(st.sampled_from(["salt", "sample", "skip"]))
    return sizes(*keys), spec(limits, compute=compute, oversize=oversize), draw(st.integers(1, 5))


@settings(deadline=None)
@given(worlds())
def test_no_key_is_lost_or_doubled_and_the_fitted_ones_alone_have_a_place(world):
    measured, wanted, slots = world
    plan = plan_keys(measured, wanted, COSTS, slots=slots)
    assert plan.keys["key_id"].to_pylist() == sorted(measured["key_id"].to_pylist())
    for row in plan.keys.to_pylist():
        place = [row[name] for name in ("unit", "wave", "key_index", "n_parts", "predicted_seconds")]
        assert all(value is None for value in place) == (row["decision"] not in FITTED)
        assert (row["sample_share"] is not None) == (row["decision"] == "sampled")
        assert (row["reason"] is None) == (row["decision"] == "whole")


@settings(deadline=None)
@given(worlds())
def test_no_unit_is_over_its_bytes_or_its_model_bytes_but_a_single_key(world):
    measured, wanted, slots = world
    plan = plan_keys(measured, wanted, COSTS, slots=slots)
    share = {row["key_id"]: row["sample_share"] or 1.0 for row in plan.keys.to_pylist()}
    parts = plan.parts().to_pylist()
    for unit in {row["unit"] for row in parts}:
        own = [row for row in parts if row["unit"] == unit]
        assert sum(row["bytes"] * share[row["key_id"]] for row in own) <= wanted.limits.max_unit_bytes
        model_bytes = sum(row["predicted_model_bytes"] for row in own)
        assert model_bytes <= wanted.limits.max_unit_model_bytes or len(own) == 1


@settings(deadline=None)
@given(worlds())
def test_units_waves_and_places_are_numbered_from_zero_without_gaps(world):
    measured, wanted, slots = world
    plan = plan_keys(measured, wanted, COSTS, slots=slots)
    parts = plan.parts().to_pylist()
    units = sorted({row["unit"] for row in parts})
    assert units == list(range(len(units)))
    wave_of = {row["unit"]: row["wave"] for row in parts}
    assert [wave_of[unit] for unit in units] == sorted(wave_of.values())
    assert set(wave_of.values()) == set(range(plan.waves))
    index_of = {row["key_id"]: row["key_index"] for row in plan.keys.to_pylist()}
    for unit in units:
        index = sorted(index_of[row["key_id"]] for row in parts if row["unit"] == unit)
        assert index == list(range(len(index)))
    assert [unit for wave in range(plan.waves) for unit in plan.units_of_wave(wave)] == units


@settings(deadline=None)
@given(worlds())
def test_the_parts_of_a_key_are_alone_in_consecutive_units_of_one_wave(world):
    measured, wanted, slots = world
    plan = plan_keys(measured, wanted, COSTS, slots=slots)
    parts = plan.parts().to_pylist()
    for row in plan.keys.to_pylist():
        own = [part for part in parts if part["key_id"] == row["key_id"]]
        assert len(own) == (row["n_parts"] or 0)
        if row["decision"] == "salted":
            assert [part["part"] for part in own] == list(range(row["n_parts"]))
            assert [part["unit"] for part in own] == list(range(row["unit"], row["unit"] + row["n_parts"]))
            assert len({part["wave"] for part in own}) == 1
            assert not [p for p in parts if p["key_id"] != row["key_id"] and p["unit"] in {o["unit"] for o in own}]
