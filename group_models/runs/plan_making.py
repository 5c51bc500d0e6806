"""The plan of one run: a source measured, its keys decided, packed and told of; nothing is written."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_distribute, spark_probe, spark_sizes
from group_models.adapters.spark_errors import failing
from group_models.estimators.registry import make_family
from group_models.keys import show_key
from group_models.live.history import read_history
from group_models.live.sets import read_without_pins
from group_models.planning.deciding import Costs, plan_keys
from group_models.planning.incremental import History, library_note
from group_models.planning.leveling import plan_levels
from group_models.planning.overriding import overrides_notes, plan_overrides
from group_models.planning.plans import Plan
from group_models.planning.scopes import Scope
from group_models.planning.skew import describe_skew
from group_models.runs.preparing import Prepared
from group_models.runs.sizing import measure, measure_bounds, measure_cutoff, thinned, with_overrides
from group_models.runs.spec_estimators import costs_of, family_of_children, tuning_costs
from group_models.spec import ParentSpec, Spec
from group_models.tables import moment, utc_now
from group_models.texts import counts_text

_SHOWN = 5
"""Keys that a note names."""

_NOT_TRIED = "not tried"
"""Why no key is distributed before it is known that a key would be."""


def make_plan(prepared: Prepared, base_release: str | None, *, retrain_all: bool = False) -> Plan:
    """Measure the source and plan; nothing is written.

    Parameters
    ----------
    retrain_all
        Train also keys of which data and spec are those of their model.
    """
    spec, tables = prepared.spec, prepared.tables
    live = read_without_pins(tables, spec.model_set, base_release)
    history = read_history(
        tables, spec.model_set, live, versions=spark_probe.versions(), now=utc_now(), retrain_all=retrain_all
    )
    with failing("measuring the source"):
        prepared = dataclasses.replace(prepared, bounds=measure_bounds(prepared))
    sizes, stats, left_out = measure(prepared, live)
    with failing("measuring the source"):
        sizes = with_overrides(prepared, sizes)
        cutoff = measure_cutoff(prepared)
    planner = _Planner(prepared, sizes, history, spec.compute.slots or spark_sizes.count_slots(prepared.frame))
    plan = thinned(prepared, planner.plan())
    holdout_from = None if cutoff is None else moment(cutoff)
    notes = _notes(prepared.scope, plan, history, left_out, prepared.source.why_not)
    return dataclasses.replace(
        plan,
        holdout=_holdout_words(spec, holdout_from),
        holdout_from=holdout_from,
        bounds=prepared.bounds,
        source_stats=stats,
        skew=describe_skew(plan.keys, spec, slots=planner.slots, replan=planner.replan, own_level=plan.own_level),
        notes=(*notes, *overrides_notes(plan.keys, spec)),
    )


@dataclasses.dataclass
class _Planner:
    """Plans the keys of one source: all of them, or a few by another spec, to tell what that would change."""

    prepared: Prepared
    sizes: pa.Table
    history: History
    slots: int
    why_not: str | None = _NOT_TRIED

    def plan(self) -> Plan:
        """Return the plan of all keys and parents."""
        spec = self.prepared.spec
        plan = self._plan(self.sizes, spec)
        # Trying takes seconds: only where a key would be distributed.
        if spec.oversize == "distribute" and plan.has_salted:
            self.why_not = spec.why_not_distributed or spark_distribute.why_not(
                self.prepared.spark, self.prepared.estimator, self.prepared.features, self.slots
            )
            plan = self._plan(self.sizes, spec)
        return plan

    def replan(self, key_ids: pa.Array, other: Spec) -> pa.Table:
        """Return some keys as they would be planned by another spec."""
        return self._plan(self.sizes.filter(pc.is_in(self.sizes["key_id"], key_ids)), other).keys

    def _plan(self, sizes: pa.Table, spec: Spec) -> Plan:
        return plan_levels(sizes, spec, self.prepared.levels, self._plan_level)

    def _plan_level(self, sizes: pa.Table, spec: Spec, reserved_bytes: float) -> Plan:
        """Return the plan of the keys of one level, by the spec as it is for them."""
        is_child = self.prepared.spec.is_pooled and not isinstance(spec, ParentSpec)

        def plan_alike(of_place: pa.Table, spec_of_place: Spec, place: int | None) -> Plan:
            costs = _costs_of_children(self.prepared) if is_child else _costs(self.prepared.overridden(place))
            why_not = self.why_not if place is None else "no key of an override is"
            return plan_keys(
                of_place, spec_of_place, costs,
                slots=self.slots, history=self.history, why_not=why_not, reserved_bytes=reserved_bytes,
            )  # fmt: skip

        return plan_overrides(sizes, spec, plan_alike)


def _costs(prepared: Prepared) -> Costs:
    families = [make_family(each, prepared.features) for each in (prepared.estimator, *prepared.others)]
    if prepared.spec.tune is not None:
        return tuning_costs(families[0], prepared.spec.tune)
    return costs_of(families, prepared.spec.candidates.folds if prepared.spec.candidates else 0)


def _costs_of_children(prepared: Prepared) -> Costs:
    """Return what the models of keys are expected to cost that build on parents."""
    child = family_of_children(prepared.spec, prepared.estimator, prepared.features)
    return Costs(child.predicted_seconds, child.predicted_model_bytes)


def _notes(
    scope: Scope, plan: Plan, history: History, left_out: Mapping[str, int], of_source: str | None = None
) -> tuple[str, ...]:
    unchanged = plan.keys.filter(pc.equal(plan.keys["decision"], "unchanged"))
    notes = [library_note(unchanged["key_id"], history), of_source]
    # Parents are counted before the scope is: of a few keys the number would tell nothing.
    if left_out and scope.text is None:
        named = counts_text(left_out)
        notes.append(f"parents with one child are left out, for they have the same rows: {named}")
    planned = set(plan.keys["key_id"].to_pylist())
    if absent := [show_key(key) for identity, key in (scope.keys or {}).items() if identity not in planned]:
        said = f"{len(absent):,} of {len(scope.keys or ()):,} keys asked for are not in the data and have no model"
        notes.append(f"{said}: {'; '.join(absent[:_SHOWN])}{'; ...' if len(absent) > _SHOWN else ''}")
    return tuple(note for note in notes if note)


def _holdout_words(spec: Spec, holdout_from: dt.datetime | None) -> str:
    if spec.holdout_by == "none":
        return "none: no metrics"
    if spec.holdout_by == "hash":
        why = " (the spec has no time_column)" if spec.holdout.by == "time" else ""
        return f"{spec.holdout.share:.0%} of the rows by hash{why}"
    if holdout_from is None:
        return "none: all rows have one time, or there are none"
    gap = f"; measured models see no row of the {hours:g} hours before" if (hours := spec.holdout.gap_hours) else ""
    return f"rows from {holdout_from:%Y-%m-%d %H:%M:%S} on, about {spec.holdout.share:.0%} of all{gap}"
