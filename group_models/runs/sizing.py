"""Measure a source for one run: the sizes of the keys and parents in scope, and the moments that cut its rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_missing, spark_overrides, spark_sizes, spark_source
from group_models.adapters.spark_errors import failing
from group_models.errors import SpecError
from group_models.live.sets import Live, newest_release, read_without_pins
from group_models.planning.deciding import SIZES, thin_parts
from group_models.planning.leveling import parent_sizes
from group_models.planning.overriding import OVERRIDE
from group_models.planning.plans import Plan
from group_models.planning.scopes import Scope
from group_models.planning.source_checks import leak_stats, source_stats
from group_models.planning.windows import NO_BOUNDS, Bounds
from group_models.runs.preparing import Prepared
from group_models.spec import ParentSpec


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


def with_overrides(prepared: Prepared, sizes: pa.Table) -> pa.Table:
    """Return sizes with the column `override`, where the spec has any."""
    if not prepared.spec.overrides:
        return sizes
    wheres = [override.where for override in prepared.spec.overrides]
    places = spark_overrides.places_of(prepared.spark, wheres, prepared.key_types, sizes)
    return sizes.append_column(OVERRIDE, places)


def thinned(prepared: Prepared, plan: Plan) -> Plan:
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


def measure_bounds(prepared: Prepared) -> Bounds:
    """Return the moments between which rows are trained on: from the whole source, whatever the scope."""
    spec = prepared.spec
    if spec.window_days is None and spec.label_delay_hours is None:
        return NO_BOUNDS
    newest = spark_sizes.measure_newest(prepared.rows(scoped=False))
    return Bounds.of(newest, window_days=spec.window_days, label_delay_hours=spec.label_delay_hours)


def measure_cutoff(prepared: Prepared) -> int | None:
    """Return the first moment of the holdout in microseconds, for all levels and whatever the scope."""
    if prepared.spec.holdout_by != "time":
        return None
    return spark_sizes.measure_cutoff(prepared.rows(scoped=False), prepared.spec.holdout.share)


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
