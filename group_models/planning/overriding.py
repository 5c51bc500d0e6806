"""Keys that a spec treats by rules of their own: each is planned as by a spec of its own. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from group_models.planning.plans import Plan, count_units, moved
from group_models.spec import Spec

OVERRIDE = "override"
"""Column of sizes and plan: place of the first override that holds for the key; null for none."""

PlanKeys: TypeAlias = Callable[[pa.Table, Spec, int | None], Plan]
"""(sizes of the keys of one override, the spec as it is for them, its place) -> their plan."""


def plan_overrides(sizes: pa.Table, spec: Spec, plan_keys: PlanKeys) -> Plan:
    """Return one plan for the keys of each override and those of none: side by side, in the same waves.

    A unit holds keys of one override: so what a unit fits is of one family.

    Parameters
    ----------
    sizes
        Columns `SIZES`, and `override` where the spec has any.
    """
    if OVERRIDE not in sizes.column_names:
        return plan_keys(sizes, spec, None)
    whole = plan_keys(sizes.filter(pc.is_null(sizes[OVERRIDE])), spec, None)
    parts, unit = [whole.keys], count_units(whole)
    # A distributed key has its wave for itself.
    wave = whole.waves if "distributed" in whole.decisions() else 0
    for place, override in enumerate(spec.overrides):
        of_place = sizes.filter(pc.equal(sizes[OVERRIDE], place))
        if override.exclude:
            parts.append(_excluded(of_place, whole.keys.schema, f"overrides[{place}] ({override.where}): exclude"))
            continue
        plan = plan_keys(of_place, spec.overridden(place), place)
        parts.append(moved(plan.keys, unit, wave))
        unit += count_units(plan)
    return dataclasses.replace(whole, keys=pa.concat_tables(parts).sort_by("key_id"))


def _excluded(sizes: pa.Table, schema: pa.Schema, reason: str) -> pa.Table:
    """Return the rows of keys that no model is trained for."""
    is_gone = sizes["rows"].to_numpy() == 0
    decided = {
        "decision": pa.array(np.where(is_gone, "vanished", "deferred").tolist(), pa.string()),
        "reason": pa.array([reason] * sizes.num_rows, pa.string()),
    }
    known = {name: sizes[name] for name in sizes.column_names} | decided
    columns = [known.get(field.name, pa.nulls(sizes.num_rows, field.type)) for field in schema]
    return pa.table(columns, schema=schema)


def overrides_notes(plan: pa.Table, spec: Spec) -> list[str]:
    """Return how many keys each override holds for, for people; nothing without overrides."""
    if not spec.overrides:
        return []
    counts = {row["values"]: row["counts"] for row in pc.value_counts(plan[OVERRIDE]).to_pylist()}
    said = [f"{counts.get(place, 0):,} by {override.where!r}" for place, override in enumerate(spec.overrides)]
    return [f"overrides hold for keys and parents: {', '.join(said)}"]
