"""What pooling changes of a plan, and what a spec says of it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from group_models.errors import SpecError
from group_models.loading import load_spec
from group_models.planning.deciding import Costs, plan_keys
from group_models.planning.leveling import parent_sizes, plan_levels
from group_models.planning.plans import Plan
from group_models.planning.pooled import reserved_bytes
from group_models.spec import ParentSpec, Spec
from tests.unit.test_leveling import COSTS, LEVELS, WORLD, key, sizes, spec

VERSIONS = {"numpy": "2.3.1"}
BIG = {"min_rows": 10, "max_key_rows": 35}


def planned(of_spec: Spec, world: pa.Table = WORLD, costs: Costs = COSTS) -> Plan:
    every = pa.concat_tables([world, parent_sizes(world, LEVELS, ())[0]])

    def plan_level(keys: pa.Table, its: Spec, reserved: float) -> Plan:
        return plan_keys(keys, its, costs, slots=2, reserved_bytes=reserved)

    return plan_levels(every, of_spec, LEVELS, plan_level)


def rows_of(plan: Plan) -> dict[tuple[object, ...], dict[str, object]]:
    return {tuple(dict(row["key"]).items()): row for row in plan.keys.to_pylist()}


def test_the_parent_of_all_rows_is_trained_in_parts_and_no_other_is():
    rows = rows_of(planned(spec(pooling="residual")))
    assert (rows[()]["decision"], rows[()]["n_parts"]) == ("salted", 4)
    assert rows[()]["reason"] == "trained in 4 parts, for what its keys learn of it"
    assert {row["decision"] for columns, row in rows.items() if columns} == {"whole", "too_small"}
    assert rows_of(planned(spec()))[()]["decision"] == "whole"


def test_parents_of_the_level_that_is_named_and_above_it_have_parts_with_rows_for_them():
    rows = rows_of(planned(spec(pooling={"mode": "residual", "parent": ["carrier"], "parts": 9})))
    found = {columns: row["n_parts"] for columns, row in rows.items() if row["decision"] == "salted"}
    # 52, 13 and 102 usable rows, of which each part is to have ten; but two parts it are in any case.
    assert found == {key("UA"): 5, key(None): 2, (): 9}


def test_waves_of_parts_end_before_their_keys_begin():
    plan = planned(spec(pooling="residual"))
    waves = {name: {row["wave"] for row in plan.at(name).keys.to_pylist()} - {None} for name in LEVELS.names}
    # The parts of the global one are put together in a wave of their own.
    assert waves == {"global": {0}, "carrier": {2}, "carrier,depot": {3}, LEVELS.own: {4}}


@pytest.mark.parametrize("oversize", ["salt", "distribute", "sample"])
def test_an_oversize_key_that_builds_on_a_parent_is_sampled_never_salted(oversize: str):
    of_spec = spec(pooling="residual", oversize=oversize, limits={**BIG, "max_parent_rows": 100})
    rows = rows_of(planned(of_spec))
    row = rows[key("AA", "E", "1")]
    assert (row["decision"], row["n_parts"]) == ("sampled", 1)
    assert 0 < row["sample_share"] < 1
    assert rows[()]["decision"] == "salted"


def test_an_oversize_parent_has_as_many_parts_as_it_needs_where_these_are_more():
    of_spec = spec(pooling={"mode": "residual", "parts": 2}, oversize="distribute", limits=BIG)
    plan = rows_of(planned(of_spec))[()]
    assert plan["decision"] == "salted"
    assert plan["n_parts"] > 2


def test_the_models_of_parents_count_in_the_units_of_their_keys():
    world = sizes(*[(f"C{i % 3}", "E", i, 1000) for i in range(12)])
    costs = Costs(COSTS.seconds, lambda rows, _: rows * 0 + 6_000.0)
    limits = {"max_unit_bytes": 100_000, "min_rows": 10}
    plain, pooled = (
        planned(spec(limits=limits, pooling=pooling), world, costs).own() for pooling in ("none", "residual")
    )
    # The global parent has 4 parts, each with a measured and a refitted model.
    parents = planned(spec(limits=limits, pooling="residual"), world, costs).at("global").keys
    assert reserved_bytes([parents], spec(limits=limits, pooling="residual")) == 48_000
    assert reserved_bytes([parents], spec(limits=limits)) == 0
    assert pooled.units()["bytes"].to_numpy().max() <= 52_000
    assert plain.units()["bytes"].to_numpy().max() <= 100_000


def test_pooling_is_a_mode_or_a_mapping_and_none_by_default():
    assert not spec().is_pooled
    assert spec().pooled_levels == ()
    short, long = spec(pooling="residual"), spec(pooling={"mode": "residual", "estimator": "median", "half_rows": 10})
    assert short.pooled_levels == ((),)
    assert (short.pooling.estimator.name, short.pooling.half_rows) == ("ridge", 50)
    assert (long.pooling.estimator.name, long.pooling.half_rows) == ("median", 10)


def test_pooling_decides_fits_of_keys_and_parents_and_a_spec_without_is_as_before():
    plain, none, pooled = spec(), spec(pooling="none"), spec(pooling="residual")
    for of in (lambda each: each, ParentSpec.of):
        assert of(none).fingerprint(VERSIONS) == of(plain).fingerprint(VERSIONS)
        assert of(pooled).fingerprint(VERSIONS) != of(plain).fingerprint(VERSIONS)
    assert "pooling" not in plain.to_json()
    assert '"mode": "residual"' in pooled.to_json()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pooling": "residual", "levels": []}, r"its parent \[\] is no level; write `levels: \[..., \[\]\]`"),
        ({"pooling": {"mode": "residual", "parent": ["depot"]}}, r"its parent \[depot\] is no level"),
        ({"pooling": "residual", "gates": {"fleet": {}}, "time_column": "at"}, "builds on a parent's"),
        ({"pooling": "residual", "candidates": ["median"]}, "it does not go with candidates"),
        ({"pooling": "residual", "sample_weight": "w"}, "it does not go with sample_weight"),
        ({"pooling": "all"}, "should be 'none', 'residual' or 'shrink', got 'all'"),
        ({"pooling": {"mode": "residual", "parts": 1}}, "pooling.parts"),
        ({"pooling": {"mode": "residual", "estimator": {"object": "a:b"}}}, "needs the name of a family"),
    ],
)
def test_a_mistake_in_pooling_is_named(changes: dict[str, object], said: str):
    with pytest.raises(SpecError, match=said):
        spec(**changes)


def test_pooling_is_checked_whoever_loads_it():
    assert load_spec(spec(pooling="residual")).is_pooled
