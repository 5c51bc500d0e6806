"""Sizes and plans of parents: what their keys come to, added up, and which waves train them before their keys. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from group_models.keys import KeyTexts, level_name, texts_id
from group_models.levels import Levels
from group_models.planning.deciding import SIZES
from group_models.planning.plans import Plan, count_units, moved
from group_models.planning.pooled import reserved_bytes
from group_models.planning.windows import LEFT_OUT
from group_models.spec import ParentSpec, Spec

PlanLevel: TypeAlias = Callable[[pa.Table, Spec, float], Plan]
"""(sizes of the keys of one level, the spec as it is for them, bytes of a unit that are taken) -> their plan."""

_FINGERPRINT = r"^(?P<usable_rows>\d+)-(?P<hash_high>-?\d+)-(?P<hash_low>-?\d+)$"
"""What is in a fingerprint: sums over rows, so that a parent's is the sum of those of its keys."""

_SUMS = ("rows", "usable_rows", "bytes", *LEFT_OUT, "hash_high", "hash_low")
_COUNT = "children"


def parent_sizes(sizes: pa.Table, levels: Levels, known: Collection[str]) -> tuple[pa.Table, dict[str, int]]:
    """Return the sizes of the parents of keys, without another pass over the rows, and how many were left out.

    A parent with one child is left out: it has the rows of that child.

    Parameters
    ----------
    sizes
        Columns `SIZES` of all keys that have rows of a parent, as measured.
    known
        Ids of parents that have a model already; those stay, or their model would age.

    Returns
    -------
    tuple
        Columns `SIZES`, one row per parent, and by level the number of parents that were left out.
    """
    if not levels.parents or not sizes.num_rows:
        return sizes.slice(0, 0), {}
    found, left_out = [sizes.slice(0, 0)], {}
    finer, places = _columns(sizes, levels), {name: f"k{i}" for i, name in enumerate(levels.kinds)}
    for names in levels.parents:
        columns = [places[name] for name in names]
        finer = _added_up(finer, columns)
        of_level = _as_sizes(finer, columns, names, levels)
        has_model = pc.is_in(of_level["key_id"], pa.array(sorted(known), pa.string()))
        found.append(of_level.filter(pc.or_(pc.greater(finer[_COUNT], 1), has_model)))
        left_out[level_name(names)] = of_level.num_rows - found[-1].num_rows
    return pa.concat_tables(found), {name: count for name, count in left_out.items() if count}


def _columns(sizes: pa.Table, levels: Levels) -> pa.Table:
    """Return one row per key: its values as text in `k0, k1, ...`, and what is added up."""
    parts = pc.extract_regex(sizes["data_fingerprint"], _FINGERPRINT).combine_chunks()
    columns = {f"k{i}": pc.map_lookup(sizes["key"], pa.scalar(name), "first") for i, name in enumerate(levels.kinds)}
    columns |= {name: sizes[name] for name in ("rows", "usable_rows", "bytes", *LEFT_OUT, "train_from", "train_to")}
    return pa.table(columns | {name: parts.field(name).cast(pa.int64()) for name in ("hash_high", "hash_low")})


def _added_up(finer: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return one row per value of these columns: what its rows come to, and how many they are (`children`)."""
    ends = [("train_from", "min"), ("train_to", "max")]
    grouped = finer.group_by(list(columns)).aggregate([*((name, "sum") for name in _SUMS), *ends, ([], "count_all")])
    names = {f"{name}_sum": name for name in _SUMS} | {f"{name}_{how}": name for name, how in ends}
    return grouped.rename_columns([{**names, "count_all": _COUNT}.get(name, name) for name in grouped.column_names])


def _as_sizes(added: pa.Table, columns: Sequence[str], names: Sequence[str], levels: Levels) -> pa.Table:
    """Return what parents come to as sizes; `columns` are where their key columns `names` are."""
    texts: list[KeyTexts] = [
        dict(zip(names, values, strict=True))
        for values in zip(*(added[column].to_pylist() for column in columns), strict=True)
    ] or [{}] * added.num_rows
    parts = [added[name].cast(pa.string()) for name in ("usable_rows", "hash_high", "hash_low")]
    made = {
        "key_id": pa.array([texts_id(of_key, levels.kinds) for of_key in texts], pa.string()),
        "key": pa.array([list(of_key.items()) for of_key in texts], pa.map_(pa.string(), pa.string())),
        "level": pa.array([level_name(names)] * added.num_rows, pa.string()),
        "data_fingerprint": pc.binary_join_element_wise(*parts, "-"),
    }
    schema = pa.schema(list(SIZES))
    return pa.table([made.get(name, added[name] if name in added.column_names else None) for name in schema.names],
                    names=schema.names).cast(schema)  # fmt: skip


def plan_levels(sizes: pa.Table, spec: Spec, levels: Levels, plan_level: PlanLevel) -> Plan:
    """Return one plan for keys and parents: the waves of general levels come before those of specific ones.

    A level with salted keys has one more wave after its own, which puts their parts together.

    Parameters
    ----------
    sizes
        Columns `SIZES`, those of parents too.
    plan_level
        Plans the keys of one level.
    """
    if not levels.parents and pc.all(pc.equal(sizes["level"], levels.own), min_count=0).as_py():
        return plan_level(sizes, spec, 0.0)
    parts: list[pa.Table] = []
    unit, wave = 0, 0
    for name in levels.names:
        its_spec = spec if name == levels.own else ParentSpec.of(spec)
        reserved = reserved_bytes(parts, spec) if name == levels.own else 0.0
        plan = plan_level(sizes.filter(pc.equal(sizes["level"], name)), its_spec, reserved)
        parts.append(moved(plan.keys, unit, wave))
        unit, wave = unit + count_units(plan), wave + plan.waves + plan.has_salted
    parts.append(_retired(sizes, levels, spec, plan_level))
    return dataclasses.replace(plan, keys=pa.concat_tables(parts).sort_by("key_id"), own_level=levels.own)


def _retired(sizes: pa.Table, levels: Levels, spec: Spec, plan_level: PlanLevel) -> pa.Table:
    """Return the rows of parents that had a model before, of levels that the spec has no more: nothing is fitted."""
    others = sizes.filter(pc.invert(pc.is_in(sizes["level"], pa.array(levels.names))))
    keys = plan_level(others, spec, 0.0).keys
    said = [f"the spec has no level {name} any more" for name in keys["level"].to_pylist()]
    return keys.set_column(keys.column_names.index("reason"), keys.schema.field("reason"), pa.array(said, pa.string()))
