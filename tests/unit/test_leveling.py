"""Sizes and plans of parents."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from group_models.errors import DataError, SpecError
from group_models.keys import texts_id
from group_models.levels import Levels
from group_models.loading import load_spec
from group_models.planning.deciding import SIZES, Costs, plan_keys
from group_models.planning.incremental import History
from group_models.planning.leveling import parent_sizes, plan_levels
from group_models.planning.plans import Plan, summarise
from group_models.planning.scopes import Scope
from group_models.planning.skew import describe_skew
from group_models.spec import ParentSpec, Spec, parent_fingerprint

KINDS = {"carrier": "string", "depot": "string", "stop": "integer"}
LEVELS = Levels(KINDS, (("carrier", "depot"), ("carrier",), ()))
COSTS = Costs(seconds=lambda rows, columns: rows * 0.01, model_bytes=lambda rows, columns: rows * 10.0)
DAY = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)


def spec(**changes: Any) -> Spec:
    fields = {
        "model_set": "a.b.c", "source": {"path": "x"}, "keys": list(KINDS), "target": "y", "features": ["x"],
        "estimator": "ridge", "levels": [["carrier", "depot"], ["carrier"], []], "limits": {"min_rows": 10},
    }  # fmt: skip
    return load_spec(fields | changes)


def sizes(*keys: tuple[str | None, str | None, int | None, int]) -> pa.Table:
    """Return sizes of keys with so many rows, of which one has no target; day and hashes come from the rows."""
    rows = []
    for carrier, depot, stop, count in keys:
        texts = {"carrier": carrier, "depot": depot, "stop": None if stop is None else str(stop)}
        at = DAY + dt.timedelta(days=count)
        rows.append({
            "key_id": texts_id(texts, KINDS), "key": list(texts.items()), "level": LEVELS.own, "rows": count,
            "usable_rows": count - 1, "bytes": 8 * count, "data_fingerprint": f"{count - 1}-{-count}-{3 * count}",
            "train_from": at, "train_to": at if count > 1 else None,
        })  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(list(SIZES)))


WORLD = sizes(
    ("UA", "E", 1, 20),
    ("UA", "E", 2, 30),
    ("UA", "F", 1, 5),
    ("AA", "E", 1, 40),
    (None, "E", None, 6),
    (None, None, 1, 7),
)


def by_key(rows: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(dict(row["key"]).items()): row for row in rows.to_pylist()}


def key(*values: str | None, columns: Sequence[str] = tuple(KINDS)) -> tuple[Any, ...]:
    return tuple(zip(columns, values, strict=False))


def test_a_parent_has_what_its_keys_have_together():
    found, _ = parent_sizes(WORLD, LEVELS, ())
    row = by_key(found)[key("UA")]
    assert {name: row[name] for name in ("level", "rows", "usable_rows", "bytes", "data_fingerprint")} == {
        "level": "carrier", "rows": 55, "usable_rows": 52, "bytes": 440, "data_fingerprint": "52--55-165",
    }  # fmt: skip
    assert (row["train_from"], row["train_to"]) == (DAY + dt.timedelta(days=5), DAY + dt.timedelta(days=30))
    assert row["key_id"] == texts_id({"carrier": "UA"}, KINDS)
    assert by_key(found)[()]["rows"] == 108
    assert found.schema == WORLD.schema


def test_a_parent_with_one_child_is_left_out_unless_it_has_a_model():
    found, left_out = parent_sizes(WORLD, LEVELS, ())
    assert set(by_key(found)) == {key("UA", "E"), key("UA"), key(None), ()}
    assert left_out == {"carrier,depot": 4, "carrier": 1}
    known = texts_id({"carrier": "AA"}, KINDS)
    assert key("AA") in by_key(parent_sizes(WORLD, LEVELS, {known})[0])


def test_one_key_has_no_parents_and_no_key_has_none():
    for world in (WORLD.slice(0, 1), WORLD.slice(0, 0)):
        assert parent_sizes(world, LEVELS, ())[0].num_rows == 0
    assert parent_sizes(WORLD, Levels(KINDS), ()) == (WORLD.slice(0, 0), {})


def planned(world: pa.Table, of_spec: Spec) -> Plan:
    found, _ = parent_sizes(world, LEVELS, ())
    every = pa.concat_tables([world, found])
    return plan_levels(every, of_spec, LEVELS, lambda keys, its, _: plan_keys(keys, its, COSTS, slots=2))


def test_general_levels_are_trained_before_specific_ones():
    plan = planned(WORLD, spec())
    rows = {name: plan.at(name).keys.to_pylist() for name in LEVELS.names}
    waves = {name: {row["wave"] for row in of_level} - {None} for name, of_level in rows.items()}
    assert waves == {"global": {0}, "carrier": {1}, "carrier,depot": {2}, LEVELS.own: {3}}
    assert plan.levels() == {
        "global": (),
        "carrier": ("carrier",),
        "carrier,depot": ("carrier", "depot"),
        LEVELS.own: tuple(KINDS),
    }
    units = [row["unit"] for of_level in rows.values() for row in of_level if row["unit"] is not None]
    assert sorted(set(units)) == list(range(len(plan.units())))
    assert plan.own().keys.num_rows == WORLD.num_rows
    assert plan.keys["key_id"].to_pylist() == sorted(plan.keys["key_id"].to_pylist())


def test_a_salted_parent_leaves_a_wave_free_for_putting_its_parts_together():
    plan = planned(WORLD, spec(limits={"min_rows": 10, "max_parent_rows": 60}))
    rows = by_key(plan.keys)
    assert (rows[()]["decision"], rows[()]["n_parts"], rows[()]["wave"]) == ("salted", 3, 0)
    assert rows[()]["reason"] == "102 usable rows are over max_parent_rows 60; trained in 3 parts"
    assert (rows[key("UA")]["decision"], rows[key("UA")]["unit"], rows[key("UA")]["wave"]) == ("whole", 3, 2)
    assert plan.at("global").waves == 1
    assert plan.parts().filter(pa.compute.equal(plan.parts()["wave"], 1)).num_rows == 0
    assert summarise(plan).waves == 5
    assert " in 5 wave(s) on " in repr(plan)


def test_salted_keys_of_the_last_level_have_a_wave_that_puts_their_parts_together():
    plan = planned(WORLD, spec(limits={"min_rows": 10, "max_key_rows": 35, "max_parent_rows": 200}))
    assert by_key(plan.keys)[key("AA", "E", "1")]["decision"] == "salted"
    assert (plan.waves, summarise(plan).waves) == (4, 5)
    served = planned(WORLD.slice(2, 1), spec(limits={"min_rows": 100}))
    assert summarise(served).waves == 0


def test_a_plan_counts_keys_and_parents_apart():
    summary = summarise(planned(WORLD, spec()))
    assert (summary.keys, summary.rows, summary.usable_rows) == (6, 108, 102)
    assert summary.decisions == {"too_small": 3, "whole": 3}
    assert summary.parents == {"carrier,depot": {"whole": 1}, "carrier": {"whole": 2}, "global": {"whole": 1}}
    assert summary.largest_key == "carrier=AA, depot=E, stop=1"
    said = "carrier,depot 1 (1 whole); carrier 2 (2 whole); global 1 (1 whole)"
    assert summary.facts()["parents"] == said


def test_parents_have_no_part_in_what_skew_says_of_keys():
    of_spec = spec(limits={"min_rows": 10, "max_key_rows": 35})
    plan = planned(WORLD, of_spec)

    def replan(ids: pa.Array, other: Spec) -> pa.Table:
        return planned(WORLD, other).keys.filter(pa.compute.is_in(plan.keys["key_id"], ids))

    skew = describe_skew(plan.keys, of_spec, slots=2, replan=replan, own_level=LEVELS.own)
    assert skew.oversize_keys == 1
    assert skew.oversize_share == pytest.approx(39 / 102)
    assert skew.seconds == pytest.approx(summarise(plan).predicted_seconds)


def test_parents_that_are_over_the_limit_of_parents_are_refused_by_its_name():
    with pytest.raises(
        DataError, match=r"carrier=UA \(52 usable rows are over max_parent_rows 50\).*limits.max_parent_rows"
    ):
        planned(
            WORLD.slice(0, 3),
            spec(limits={"min_rows": 10, "max_parent_rows": 50}, oversize="fail", levels=[["carrier"]]),
        )


def test_parents_that_are_left_out_are_told_where_all_are_looked_at():
    from group_models.runs.plan_making import _notes

    _, left_out = parent_sizes(WORLD, LEVELS, ())
    plan = planned(WORLD, spec())
    (said,) = _notes(Scope(), plan, History.none(), left_out)
    assert said.endswith("they have the same rows: 4 carrier,depot, 1 carrier")
    assert _notes(Scope.of_where("carrier = 'UA'"), plan, History.none(), left_out) == ()


@pytest.mark.parametrize("parents", [LEVELS.parents, ()])
def test_of_a_level_that_the_spec_has_no_more_nothing_is_trained(parents: tuple[tuple[str, ...], ...]):
    retired = {"key_id": "x", "level": "depot", "rows": 0, "usable_rows": 0, "bytes": 0, "key": [("depot", "E")]}
    gone = pa.Table.from_pylist([retired], schema=WORLD.schema)
    plan = plan_levels(
        pa.concat_tables([WORLD, gone]),
        spec(levels=[list(level) for level in parents]),
        Levels(KINDS, parents),
        lambda keys, its, _: plan_keys(keys, its, COSTS, slots=2),
    )
    row = by_key(plan.keys)[("depot", "E"),]
    assert (row["decision"], row["reason"], row["wave"]) == ("vanished", "the spec has no level depot any more", None)
    assert (plan.own().keys.num_rows, summarise(plan).keys) == (WORLD.num_rows, WORLD.num_rows)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([["stop"], ["carrier"]], r"levels: \[carrier\] is not a part of \[stop\]; write levels from specific"),
        ([list(KINDS)], r"levels: \[carrier, depot, stop\] is the keys themselves"),
        ([["lane"]], r"levels: \[lane\] has 'lane'; a level has some of the key columns"),
        ([["carrier", "carrier"]], r"levels: \[carrier, carrier\] has a column twice"),
        ([[], ["carrier"]], r"levels: \[carrier\] is not a part of \[\]"),
        ("carrier", "levels: input should be a valid list|levels: "),
    ],
)
def test_levels_that_are_none_are_refused(levels: Any, said: str):
    with pytest.raises(SpecError, match=said):
        spec(levels=levels)


def test_columns_of_a_level_stand_in_the_order_of_the_keys():
    assert spec(levels=[["depot", "carrier"], []]).levels == (("carrier", "depot"), ())


def test_a_spec_without_levels_reads_as_one_of_before_there_were_levels():
    assert "levels" not in json.loads(spec(levels=[]).to_json())
    assert json.loads(spec().to_json())["levels"] == [["carrier", "depot"], ["carrier"], []]


def test_parents_are_like_keys_but_for_their_rows():
    plain, other = spec(), spec(limits={"min_rows": 10, "max_parent_rows": 99})
    assert ParentSpec.of(plain).max_rows == plain.max_rows == (2_000_000, "max_key_rows")
    assert (ParentSpec.of(other).max_rows, other.max_rows) == ((99, "max_parent_rows"), plain.max_rows)
    assert spec(levels=[]).fingerprint({}) == plain.fingerprint({})


def test_the_limit_of_parents_makes_other_models_of_parents_alone():
    limits = [None, 99, 98]
    specs = [spec(limits={"min_rows": 10, "max_parent_rows": limit}) for limit in limits]
    (of_keys,) = {each.fingerprint({}) for each in specs}
    of_parents = [ParentSpec.of(each).fingerprint({}) for each in specs]
    assert of_parents[0] == of_keys
    assert len(set(of_parents)) == 3
    assert of_parents == [parent_fingerprint(of_keys, limit) for limit in limits]
