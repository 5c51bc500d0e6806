"""Plan, store rows and live set to manifest rows: exactly one row per key, and which model serves it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from group_models.errors import StateError
from group_models.frames import none_where
from group_models.gates import Gates
from group_models.levels import Levels, level_width
from group_models.live.gating import Gated, gate
from group_models.planning.plans import FITTED
from group_models.planning.windows import LEFT_OUT
from group_models.spec import Limits, Metric
from group_models.tables import MANIFEST, NEW_MODEL, WHOLE

FAILED = ("failed", "crashed", "timed_out", "out_of_memory", "model_too_big")
"""Statuses of keys that were tried and have no new model."""

FITTING = (*NEW_MODEL, "rejected")
"""Statuses of keys that have a new model, whether it serves or a gate rejected it."""

STATUSES = (
    "trained", "unchanged", "rejected", "vanished", "too_small", "too_big", "no_target", "one_class", "deferred",
    *FAILED,
)  # fmt: skip
"""All that can come of a key in a run."""

_FROM_PLAN = ("key_id", "level", "key", "rows", "usable_rows", "bytes", *LEFT_OUT, "data_fingerprint", "unit", "wave",
              "train_from", "train_to", "n_parts")  # fmt: skip
_FROM_STORE = ("error_type", "error_message", "error_stage", "traceback", "rows_used", "estimator", "params",
               "metrics", "baseline_metrics", "holdout_from", "holdout_rows", "fit_seconds", "cpu_seconds", "attempt",
               "model_bytes", "sha256", "seed", "started_at", "finished_at", "train_metrics", "fit_flag",
               "importance", "interval", "coverage")  # fmt: skip

STORE_COLUMNS = ("key_id", "part", "number", "status", "reason", *_FROM_STORE)
"""What a manifest needs of the store: everything but the models."""


@dataclasses.dataclass(frozen=True)
class RunIdentity:
    """What all manifest rows of a run share.

    Attributes
    ----------
    max_age_days
        Age from which the spec calls a model too old.
    stored_before
        Numbers of the store's commits that were trained on the data and the spec that the run says; None for all.
        The others' fingerprints are null, so that their keys are trained again.
    parent_fingerprint
        The `spec_fingerprint` of parents, by default that of keys.
    overrides
        Per override of the spec the two for the keys for which it holds; None where they are not known.
    gates
        What new models of keys must show before they serve; parents are not asked.
    metric
        What they are judged by.
    """

    model_set: str
    run_id: str
    spec_fingerprint: str
    max_age_days: float | None = None
    stored_before: frozenset[int] | None = None
    parent_fingerprint: str | None = None
    overrides: Sequence[tuple[str, str]] | None = ()
    gates: Gates | None = None
    metric: Metric = "mae"


def first_rows(store: pa.Table) -> pa.Table:
    """Return the store rows that count: per key and part the one with the lowest number."""
    ordered = store.take(
        pc.sort_indices(store, [("key_id", "ascending"), ("part", "ascending"), ("number", "ascending")])
    )
    frame = ordered.select(["key_id", "part"]).to_pandas()
    return ordered.filter(pa.array(~frame.duplicated().to_numpy()))


def missing_keys(plan: pa.Table, store: pa.Table) -> list[str]:
    """Return the ids of keys that the plan fits and the store has no whole outcome of; parts are none."""
    fitted = plan.filter(pc.is_in(plan.column("decision"), pa.array(FITTED)))
    whole = store.filter(pc.equal(store.column("part"), WHOLE))
    is_there = pc.is_in(fitted.column("key_id"), whole.column("key_id").combine_chunks())
    return fitted.filter(pc.invert(is_there)).column("key_id").to_pylist()  # type: ignore[no-any-return]


def compose(
    plan: pa.Table,
    store: pa.Table,
    live: Mapping[str, str],
    run: RunIdentity,
    *,
    ages: Mapping[str, float] = MappingProxyType({}),
    levels: Levels | None = None,
    bases: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> pa.Table:
    """Return the manifest rows of a run, one per row of the plan.

    Parameters
    ----------
    plan
        The plan table's rows of the run.
    store
        The run's rows of the store, columns `STORE_COLUMNS`.
    live
        Key id to the run whose model served the key when this run started, pins left out.
    ages
        Key id to the age in days of that model.
    levels
        Whose parents serve keys without a model of their own; none by default.
    bases
        Key id to the key and the run of the parent that the model which served the key builds on, where it does.

    Raises
    ------
    StateError
        A key that the plan fits has no outcome: nothing can be released.
    """
    if lost := missing_keys(plan, store):
        raise StateError(
            f"run {run.run_id}: {len(lost)} of {plan.num_rows} keys have no outcome (first: {', '.join(lost[:5])}); "
            f"run `group-models train SPEC --run-id {run.run_id}` again to train them"
        )
    store = first_rows(store.filter(pc.equal(store.column("part"), WHOLE)))
    at = pd.Index(store.column("key_id").to_pandas()).get_indexer(pd.Index(plan.column("key_id").to_pandas()))
    outcome = store.take(pa.array(at, mask=at < 0))
    decision = plan.column("decision").to_pandas().to_numpy(dtype=object)
    is_fitted = np.isin(decision.astype(str), FITTED)
    status = np.where(is_fitted, outcome.column("status").to_pandas().to_numpy(dtype=object), decision)
    columns = {name: plan.column(name) for name in _FROM_PLAN} | {name: outcome.column(name) for name in _FROM_STORE}
    gated = _gated(plan, outcome, status, live, run, levels)
    status[gated.is_rejected] = "rejected"
    columns |= _serving(plan, status, live, run.run_id, levels, gated.is_handed)
    columns |= _building_on(plan.column("key_id"), outcome.column("params"), columns, bases)
    columns["status"] = pa.array(status, pa.string())
    columns["policy"] = pa.array(none_where(decision, ~is_fitted), pa.string())
    notes = _age_notes(plan.column("key_id"), status, columns["serves"], ages, run.max_age_days)
    columns["reason"] = _reasons(
        plan.column("reason"), outcome.column("reason"), pa.array(gated.notes, pa.string()), notes
    )
    for name in ("model_set", "run_id"):
        columns[name] = pa.array([getattr(run, name)] * plan.num_rows, pa.string())
    columns["spec_fingerprint"] = _spec_fingerprints(plan, run, levels)
    if run.stored_before is not None:
        is_known = pc.is_in(outcome.column("number"), pa.array(sorted(run.stored_before), pa.int64()))
        for name in ("data_fingerprint", "spec_fingerprint"):
            columns[name] = pc.if_else(is_known, columns[name], pa.scalar(None, pa.string()))
    return MANIFEST.conform(pa.table(columns))


def _gated(
    plan: pa.Table,
    outcome: pa.Table,
    status: npt.NDArray[np.object_],
    live: Mapping[str, str],
    run: RunIdentity,
    levels: Levels | None,
) -> Gated:
    """Return which of the keys' new models gates reject."""
    is_own = pc.equal(plan.column("level"), levels.own) if levels is not None else pc.is_valid(plan.column("level"))
    is_tried = np.isin(status.astype(str), NEW_MODEL) & is_own.to_numpy()
    has_model = np.array([key_id in live for key_id in plan.column("key_id").to_pylist()], dtype=bool)
    maps = outcome.column("metrics"), outcome.column("baseline_metrics")
    return gate(*maps, is_tried, has_model, run.gates or Gates(), run.metric)


def _serving(
    plan: pa.Table,
    status: npt.NDArray[np.object_],
    live: Mapping[str, str],
    run_id: str,
    levels: Levels | None,
    is_handed: npt.NDArray[np.bool_],
) -> dict[str, pa.Array]:
    """Return what serves each key: the new model, the one that served before, that of a parent, or none.

    Of keys that a gate hands to their parent the model that served before serves no more.
    """
    key_ids = plan.column("key_id").to_pylist()
    before = np.array([live.get(key_id) for key_id in key_ids], dtype=object)
    before[is_handed] = None
    is_new = np.isin(status.astype(str), NEW_MODEL)
    model_run = np.where(is_new, run_id, before)
    has_none = pd.isna(model_run)
    serves = np.where(is_new, "new", np.where(has_none, "none", "previous")).astype(object)
    parent_key: npt.NDArray[np.object_] = np.full(len(serves), None, dtype=object)
    parent_run = parent_key.copy()
    if levels is not None and levels.parents and has_none.any():
        new = plan.filter(pa.array(is_new)).column("key_id").to_pylist()
        models = {**live, **dict.fromkeys(new, run_id)}
        lacking = map(dict, plan.filter(pa.array(has_none)).column("key").to_pylist())
        parent_key[has_none] = levels.nearest(lacking, models)
        parent_run = np.array([models.get(key_id) for key_id in parent_key], dtype=object)
        serves[~pd.isna(parent_run)] = "parent"
    columns = {"serves": serves, "model_run_id": model_run, "parent_key_id": parent_key, "parent_run_id": parent_run}
    return {name: pa.array(values, pa.string()) for name, values in columns.items()}


def _building_on(
    key_ids: pa.ChunkedArray,
    params: pa.ChunkedArray,
    serving: Mapping[str, pa.Array],
    bases: Mapping[str, tuple[str, str]],
) -> dict[str, pa.Array]:
    """Return `parent_key_id` and `parent_run_id`: of a key that a parent serves that one, of a child its own."""
    serves = serving["serves"].to_numpy(zero_copy_only=False)
    names = ("parent_key_id", "parent_run_id")
    found = {name: serving[name].to_numpy(zero_copy_only=False).copy() for name in names}
    for name in names:
        trained_on = pc.map_lookup(params, pa.scalar(name), "first").to_numpy(zero_copy_only=False)
        found[name] = np.where(serves == "new", trained_on, found[name])
    for place in np.flatnonzero(serves == "previous").tolist() if bases else ():
        found["parent_key_id"][place], found["parent_run_id"][place] = bases.get(key_ids[place].as_py(), (None, None))
    return {name: pa.array(values, pa.string(), from_pandas=True) for name, values in found.items()}


def _spec_fingerprints(plan: pa.Table, run: RunIdentity, levels: Levels | None) -> pa.ChunkedArray:
    level = plan["level"]
    is_own = pc.equal(level, levels.own) if levels is not None else pc.is_valid(level)
    of_parents = run.parent_fingerprint or run.spec_fingerprint
    found = pc.if_else(is_own, pa.scalar(run.spec_fingerprint), pa.scalar(of_parents))
    if "override" not in plan.column_names:
        return found
    for place in pc.unique(plan["override"].drop_null()).to_pylist():
        own, parent = run.overrides[place] if run.overrides is not None else (None, None)
        its = pc.if_else(is_own, pa.scalar(own, pa.string()), pa.scalar(parent, pa.string()))
        found = pc.if_else(pc.fill_null(pc.equal(plan["override"], place), False), its, found)  # noqa: FBT003
    return found


def _age_notes(
    key_ids: pa.ChunkedArray,
    status: npt.NDArray[np.object_],
    serves: pa.Array,
    ages: Mapping[str, float],
    max_age_days: float | None,
) -> list[str | None]:
    """Return, of keys that an earlier model goes on serving, its age where the key is gone or the model too old."""
    notes: list[str | None] = [None] * len(key_ids)
    for place in np.flatnonzero(serves.to_numpy(zero_copy_only=False) == "previous").tolist():
        age = ages.get(key_ids[place].as_py())
        if age is None:
            continue
        if max_age_days is not None and age > max_age_days:
            notes[place] = f"its model is {age:.1f} days old: too_old, max_age_days is {max_age_days:g}"
        elif status[place] in ("vanished", "unchanged"):
            notes[place] = f"its model is {age:.1f} days old"
    return notes


def _reasons(planned: pa.ChunkedArray, happened: pa.ChunkedArray, gated: pa.Array, notes: list[str | None]) -> pa.Array:
    all_said = [
        "; ".join(said for said in each if said) or None
        for each in zip(planned.to_pylist(), happened.to_pylist(), gated.to_pylist(), notes, strict=True)
    ]
    return pa.array(all_said, pa.string())


def count_statuses(manifest: pa.Table) -> dict[str, int]:
    """Return keys by status, most first."""
    counts = pc.value_counts(manifest.column("status").combine_chunks()).to_pylist()
    return {c["values"]: c["counts"] for c in sorted(counts, key=lambda c: (-c["counts"], c["values"]))}


def count_levels(manifest: pa.Table) -> dict[str, dict[str, int]]:
    """Return keys by level and status, specific levels first."""
    levels = sorted(pc.unique(manifest.column("level")).to_pylist(), key=level_width, reverse=True)
    return {name: count_statuses(manifest.filter(pc.equal(manifest["level"], name))) for name in levels}


def manifest_refusal(manifest: pa.Table, limits: Limits) -> str | None:
    """Return why a run with this manifest (columns `level`, `status`, `serves`) must not be published, or None."""
    is_kept = pc.and_(pc.is_in(manifest["status"], pa.array(FAILED)), pc.equal(manifest["serves"], "previous"))
    kept = set(manifest.filter(is_kept)["level"].to_pylist())
    return levels_refusal(count_levels(manifest), limits, kept)


def levels_refusal(counts: Mapping[str, Mapping[str, int]], limits: Limits, kept: Collection[str] = ()) -> str | None:
    """Return why a run with these outcomes by level must not be published by itself, or None.

    Each level by itself must have trained a key where it tried one: what another level serves instead would hide
    that all its models fail. A level of parents may fail while earlier models of it serve on: it has few parents,
    the global one has one, and they must not hold back all good keys.

    Parameters
    ----------
    counts
        Keys by level and status, the most specific level first.
    kept
        Levels of which something that failed has an earlier model.
    """
    total: Counter[str] = Counter()
    for place, (level, of_level) in enumerate(counts.items()):
        total.update(of_level)
        failed = sum(of_level.get(status, 0) for status in FAILED)
        is_asked = len(counts) > 1 and (place == 0 or level not in kept)
        if is_asked and failed and not any(of_level.get(status) for status in FITTING):
            return f"level {level}: {release_refusal(of_level, limits)}"
    return release_refusal(total, limits)


def release_refusal(counts: Mapping[str, int], limits: Limits) -> str | None:
    """Return why a run with these outcomes must not be published by itself, or None.

    Of the keys that were tried (trained, rejected or failed), the failed ones may be at most `max_failed_share`, unless
    they are no more than `max_failed_keys`; and at least one must have succeeded where one was tried.
    """
    failed = {status: counts[status] for status in FAILED if counts.get(status)}
    bad, good = sum(failed.values()), sum(counts.get(status, 0) for status in FITTING)
    named = ", ".join(f"{count} {status}" for status, count in failed.items())
    if bad and not good:
        kept = counts.get("unchanged", 0)
        more = (
            f"; {kept:,} unchanged keys keep their models and were not tried. Each night ends so until a key that is "
            "tried can be trained: mend those that fail, or leave them out of the source"
        )
        return f"none of {bad} keys could be trained ({named}){more if kept else ''}"
    if bad > limits.max_failed_keys and bad > limits.max_failed_share * (bad + good):
        return (
            f"{bad} of {bad + good} keys failed ({named}): over max_failed_share {limits.max_failed_share:.0%} "
            f"and max_failed_keys {limits.max_failed_keys}"
        )
    return None
