"""A spec against its source: everything that is checked and planned before anything is written."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import (
    source_versions,
    spark_columns,
    spark_distribute,
    spark_missing,
    spark_overrides,
    spark_probe,
    spark_sizes,
    spark_source,
)
from group_models.adapters.spark_errors import failing
from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, Features, features_of
from group_models.estimators.batched_children import child_family
from group_models.estimators.children import ChildFamily, with_parent
from group_models.estimators.registry import check_settings, make_family
from group_models.frames import Roles, check_columns, column_kind, roles
from group_models.keys import KeyKind, show_key
from group_models.levels import Levels
from group_models.live.history import read_history
from group_models.live.sets import Live, newest_release, read_key_kinds, read_without_pins
from group_models.planning.deciding import SIZES, Costs, plan_keys, thin_parts
from group_models.planning.incremental import History, library_note
from group_models.planning.leveling import parent_sizes, plan_levels
from group_models.planning.overriding import OVERRIDE, overrides_notes, plan_overrides
from group_models.planning.plans import Plan
from group_models.planning.scopes import Ask, Scope
from group_models.planning.skew import describe_skew
from group_models.planning.source_checks import leak_stats, source_stats
from group_models.planning.windows import NO_BOUNDS, Bounds
from group_models.ports import SparkFrame, SparkSession, Tables
from group_models.runs.scoping import find_scope
from group_models.runs.spec_estimators import (
    costs_of,
    estimator_mistakes,
    estimator_settings,
    other_settings,
    override_settings,
)
from group_models.spec import ParentSpec, Spec
from group_models.tables import moment, utc_now
from group_models.texts import counts_text

_SHOWN = 5
"""Keys that a note names."""

_NOT_TRIED = "not tried"
"""Why no key is distributed before it is known that a key would be."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A spec against its source, checked: all that is needed before the first Spark job."""

    spec: Spec
    scope: Scope
    tables: Tables
    spark: SparkSession
    roles: Roles
    key_types: Mapping[str, str]
    features: Features
    estimator: EstimatorSettings
    source: source_versions.Pinned
    bounds: Bounds = NO_BOUNDS
    override_estimators: tuple[EstimatorSettings, ...] = ()
    others: tuple[EstimatorSettings, ...] = ()

    @property
    def frame(self) -> SparkFrame:
        """The rows of the source, at the version that the run reads."""
        return self.source.frame

    def overridden(self, place: int | None) -> Prepared:
        """Return what is prepared for the keys of an override; as it is for those of none."""
        if place is None:
            return self
        spec = self.spec.overridden(place)
        kinds = {name: self.roles.features[name] for name in spec.features}
        estimator = self.override_estimators[place]
        others = self.others if spec.others else ()
        return dataclasses.replace(self, spec=spec, features=features_of(kinds), estimator=estimator, others=others)

    @property
    def levels(self) -> Levels:
        """The levels of the spec."""
        return Levels(self.roles.keys, self.spec.levels)

    def rows(self, *, scoped: bool = True, level: Sequence[str] | None = None) -> SparkFrame:
        """Return the fit's columns of the source, those of the scope only where `scoped`.

        With the columns of a `level`, the rows are as its parents find them.
        """
        frame = spark_source.in_scope(self.frame, self.scope, list(self.roles.keys)) if scoped else self.frame
        rows = spark_columns.fit_columns(frame, self.roles, self.bounds)
        return rows if level is None else spark_columns.at_level(rows, self.key_types, level)


def prepare(spec: Spec, tables: Tables, spark: SparkSession, ask: Ask | None = None) -> Prepared:
    """Open the source and check everything that can be checked without a Spark job.

    Parameters
    ----------
    ask
        Which keys and which run; by default all keys and a new run.

    Raises
    ------
    SpecError
        Every mistake at once: columns, types, estimator, scope.
    DataError
        The source cannot be opened.
    """
    estimator = estimator_settings(spec)
    frame = spark_source.open_source(spark, spec.source)
    source = source_versions.pin(spark, spec.source, frame)
    columns = spark_columns.column_types(source.frame)
    mistakes = check_columns(
        columns, keys=spec.keys, features=spec.features, target=spec.target, time_column=spec.time_column,
        sample_weight=spec.sample_weight,
    )  # fmt: skip
    kinds = {name: kind for name in spec.features if name in columns and (kind := column_kind(columns[name]))}
    features = features_of(kinds)
    mistakes += estimator_mistakes(spec, kinds) + spec.needs_time()
    if spec.pooling.mode == "residual":
        added = check_settings(pooled_settings(spec, estimator), with_parent(features))
        mistakes += [f"pooling.{said}" for said in added]
    if mistakes:
        raise SpecError(mistakes)
    checked = roles(
        columns, keys=spec.keys, features=spec.features, target=spec.target, time_column=spec.time_column,
        sample_weight=spec.sample_weight,
    )  # fmt: skip
    check_keys_kept(tables, spec, dict(checked.keys))
    key_types = {name: columns[name] for name in spec.keys}
    scope = find_scope(
        ask or Ask(), tables, spec.model_set, checked.keys, lambda w: spark_source.check_predicate(spark, w, key_types)
    )
    for place, override in enumerate(spec.overrides):
        spark_source.check_predicate(spark, override.where, key_types, named=f"overrides.{place}.where")
    return Prepared(
        spec, scope, tables, spark, checked, key_types, features, estimator, source,
        override_estimators=override_settings(spec), others=other_settings(spec),
    )  # fmt: skip


def pooled_settings(spec: Spec, estimator: EstimatorSettings) -> EstimatorSettings:
    """Return the estimator of a key's own part: what it adds to its parent's, or what is mixed with it."""
    if spec.pooling.mode == "shrink":
        return estimator
    return EstimatorSettings(**dict(spec.pooling.estimator), metric=spec.metric)


def family_of_children(spec: Spec, estimator: EstimatorSettings, features: Features) -> ChildFamily:
    """Return the family of the models that build on parents."""
    settings, is_residual = pooled_settings(spec, estimator), spec.pooling.mode == "residual"
    return child_family(settings, features, spec.pooling.half_rows, is_residual=is_residual)


def _costs_of_children(prepared: Prepared) -> Costs:
    """Return what the models of keys are expected to cost that build on parents."""
    child = family_of_children(prepared.spec, prepared.estimator, prepared.features)
    return Costs(child.predicted_seconds, child.predicted_model_bytes)


def make_plan(prepared: Prepared, base_release: str | None, *, retrain_all: bool = False) -> Plan:
    """Measure the source and plan; nothing is written.

    Parameters
    ----------
    retrain_all
        Train also keys of which data and spec are those of their model.
    """
    spec = prepared.spec
    live = read_without_pins(prepared.tables, spec.model_set, base_release)
    history = read_history(
        prepared.tables,
        spec.model_set,
        live,
        versions=spark_probe.versions(),
        now=utc_now(),
        retrain_all=retrain_all,
    )
    with failing("measuring the source"):
        prepared = dataclasses.replace(prepared, bounds=_measure_bounds(prepared))
    sizes, stats, left_out = measure(prepared, live)
    with failing("measuring the source"):
        sizes = _with_overrides(prepared, sizes)
        cutoff = _measure_cutoff(prepared)
    slots = spec.compute.slots or spark_sizes.count_slots(prepared.frame)
    why_not: str | None = _NOT_TRIED

    def plan_level(of_keys: pa.Table, its_spec: Spec, reserved_bytes: float) -> Plan:
        is_child = spec.is_pooled and not isinstance(its_spec, ParentSpec)

        def plan_alike(of_place: pa.Table, spec_of_place: Spec, place: int | None) -> Plan:
            costs = _costs_of_children(prepared) if is_child else _costs(prepared.overridden(place))
            why = why_not if place is None else "no key of an override is"
            return plan_keys(
                of_place, spec_of_place, costs, slots=slots, history=history, why_not=why, reserved_bytes=reserved_bytes
            )

        return plan_overrides(of_keys, its_spec, plan_alike)

    def plan_of(of_keys: pa.Table, its_spec: Spec) -> Plan:
        return plan_levels(of_keys, its_spec, prepared.levels, plan_level)

    def replan(key_ids: pa.Array, other: Spec) -> pa.Table:
        return plan_of(sizes.filter(pc.is_in(sizes["key_id"], key_ids)), other).keys

    plan = plan_of(sizes, spec)
    # Trying takes seconds: only where a key would be distributed.
    if spec.oversize == "distribute" and plan.has_salted:
        why_not = spec.why_not_distributed or spark_distribute.why_not(
            prepared.spark, prepared.estimator, prepared.features, slots
        )
        plan = plan_of(sizes, spec)
    plan = _thinned(prepared, plan)
    holdout_from = None if cutoff is None else moment(cutoff)
    return dataclasses.replace(
        plan,
        holdout=_holdout_words(spec, holdout_from),
        holdout_from=holdout_from,
        bounds=prepared.bounds,
        source_stats=stats,
        skew=describe_skew(plan.keys, spec, slots=slots, replan=replan, own_level=plan.own_level),
        notes=(
            *_notes(prepared.scope, plan, history, left_out, prepared.source.why_not),
            *overrides_notes(plan.keys, spec),
        ),
    )


def _costs(prepared: Prepared) -> Costs:
    families = [make_family(each, prepared.features) for each in (prepared.estimator, *prepared.others)]
    return costs_of(families, prepared.spec.candidates.folds if prepared.spec.candidates else 0)


def _with_overrides(prepared: Prepared, sizes: pa.Table) -> pa.Table:
    """Return sizes with the column `override`, where the spec has any."""
    if not prepared.spec.overrides:
        return sizes
    wheres = [override.where for override in prepared.spec.overrides]
    places = spark_overrides.places_of(prepared.spark, wheres, prepared.key_types, sizes)
    return sizes.append_column(OVERRIDE, places)


def measure(prepared: Prepared, live: Live) -> tuple[pa.Table, dict[str, float], dict[str, int]]:
    """Return the sizes of the keys and parents in scope, those that are gone included, and what else is to be told.

    Returns
    -------
    tuple
        Sizes; what tells a half-loaded source; by level, how many parents are left out for they have one child.
    """
    watched = spark_missing.MissingShares(prepared.roles)
    models = live.models()
    with failing("measuring the source"):
        found = spark_sizes.measure(watched.watch(prepared.rows()), prepared.roles)
        known = live.keys.index[live.keys["model_run_id"].notna() & (live.keys["level"] != prepared.levels.own)]
        parents, left_out = parent_sizes(found, prepared.levels, known)
        sizes = pa.concat_tables([_in_scope(prepared, found), _in_scope(prepared, parents)])
        sizes = _with_vanished(prepared, sizes, live)
        missing, leaking = (watched.shares(), watched.targets()) if found.num_rows else ({}, [])
    own = sizes.filter(pc.equal(sizes["level"], prepared.levels.own))
    return sizes, source_stats(own, missing, prepared.spec.target, models) | leak_stats(leaking), left_out


def check_scope(prepared: Prepared) -> None:
    """Refuse a scope that a caller gave and that holds no key: its run would be an empty release.

    Raises
    ------
    SpecError
        It names the scope and the way out.
    """
    if prepared.scope.text is None:
        return
    with failing("looking for the scope's rows"):
        if not spark_source.is_empty(prepared.rows()):
            return
    live = read_without_pins(
        prepared.tables, prepared.spec.model_set, newest_release(prepared.tables, prepared.spec.model_set)
    )
    if _with_vanished(prepared, pa.schema(SIZES).empty_table(), live).num_rows:
        return
    raise SpecError([empty_scope_text(prepared.scope)], where="the call")


def empty_scope_text(scope: Scope) -> str:
    """Return what is said of a scope without a key."""
    given = f"where {scope.where!r}" if scope.where is not None else "keys"
    return f"{given}: it names no key that is in the data or has a model; correct it, or leave it out for all keys"


def _in_scope(prepared: Prepared, sizes: pa.Table) -> pa.Table:
    """Return the sizes of what is in scope: of keys the rows of a predicate are there alone, of parents more may be."""
    is_parent = bool(sizes.num_rows) and sizes["level"][0].as_py() != prepared.levels.own
    if prepared.scope.keys is None and not (is_parent and prepared.scope.where):
        return sizes
    keys = sizes.select(["key_id", "key"]).to_pandas(maps_as_pydicts="strict")
    ids = spark_source.ids_in_scope(prepared.spark, prepared.scope, prepared.key_types, keys)
    return sizes.filter(pc.is_in(sizes["key_id"], pa.array(sorted(ids), pa.string())))


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


def _thinned(prepared: Prepared, plan: Plan) -> Plan:
    """Return the plan with those salted keys sampled whose rows are so alike that a part stays too big."""
    if not plan.has_salted:
        return plan
    spec = prepared.spec
    salted = plan.keys.filter(pc.equal(plan.keys["decision"], "salted"))
    for name, level in plan.levels().items():
        of_level = salted.filter(pc.equal(salted["level"], name)).select(["key_id", "key", "n_parts"])
        if not of_level.num_rows:
            continue
        with failing("measuring the parts of the salted keys"):
            rows = prepared.rows(level=level)
            largest = spark_sizes.measure_largest_parts(rows, of_level, prepared.key_types, spec.seed)
        plan = thin_parts(plan, largest, spec if name == prepared.levels.own else ParentSpec.of(spec))
    return plan


def _measure_bounds(prepared: Prepared) -> Bounds:
    """Return the moments between which rows are trained on: from the whole source, whatever the scope."""
    spec = prepared.spec
    if spec.window_days is None and spec.label_delay_hours is None:
        return NO_BOUNDS
    newest = spark_sizes.measure_newest(prepared.rows(scoped=False))
    return Bounds.of(newest, window_days=spec.window_days, label_delay_hours=spec.label_delay_hours)


def _measure_cutoff(prepared: Prepared) -> int | None:
    if prepared.spec.holdout_by != "time":
        return None
    return spark_sizes.measure_cutoff(prepared.rows(scoped=False), prepared.spec.holdout.share)


def check_keys_kept(tables: Tables, spec: Spec, now: Mapping[str, KeyKind]) -> None:
    """Refuse a spec whose key columns are others, or in another order, than those of the runs that are published.

    Raises
    ------
    SpecError
        It names both.
    """
    before = read_key_kinds(tables, spec.model_set)
    # In order too: the ids of keys depend on it.
    if before and list(before.items()) != list(now.items()):
        said, meant = (", ".join(f"{name} ({kind})" for name, kind in kinds.items()) for kinds in (before, now))
        rule = f"keys: model set {spec.model_set} is published with {said}, the spec has {meant}"
        raise SpecError([f"{rule}; write them so and in this order, or give it a name of its own"])


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


def _with_vanished(prepared: Prepared, sizes: pa.Table, live: Live) -> pa.Table:
    """Add keys and parents in scope that had a model and have no rows now."""
    known = live.keys[live.keys["model_run_id"].notna()]
    gone = known[~known.index.isin(sizes["key_id"].to_pandas())].reset_index()
    if len(gone) and prepared.scope.text is not None:
        gone = gone[
            gone["key_id"].isin(spark_source.ids_in_scope(prepared.spark, prepared.scope, prepared.key_types, gone))
        ]
    if gone.empty:
        return sizes
    columns = {name: pa.array(gone[name]) for name in ("key_id", "level")}
    columns["key"] = pa.array([list(key.items()) for key in gone["key"]], sizes.schema.field("key").type)
    columns |= {name: pa.array([0] * len(gone), pa.int64()) for name in ("rows", "usable_rows", "bytes")}
    nulls = {f.name: pa.nulls(len(gone), f.type) for f in SIZES if f.name not in columns}
    return pa.concat_tables([sizes, pa.table(columns | nulls).select(sizes.column_names).cast(sizes.schema)])
