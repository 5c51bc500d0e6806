"""How a run starts or goes on: its row, its plan, and what speaks against training on the source as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from group_models.adapters import source_versions, spark_probe, spark_sizes
from group_models.errors import DataError, StateError
from group_models.labels import Labels
from group_models.live.history import read_last_run
from group_models.live.sets import newest_release
from group_models.planning.plans import Plan
from group_models.planning.source_checks import keys_with_rows, leaks, source_mistakes, source_stats
from group_models.ports import Commit
from group_models.runs.labelling import find_labels, with_labels
from group_models.runs.plan_making import make_plan
from group_models.runs.preparing import Prepared
from group_models.runs.resuming import (
    PLANNED,
    STARTED,
    Events,
    accept,
    append_event,
    check_same,
    data_changes,
    read_events,
)
from group_models.runs.wave_jobs import Say
from group_models.tables import PLAN, utc_now


def start(
    prepared: Prepared, run_id: str, say: Say, *, retrain_all: bool, accept_changes: bool
) -> tuple[Prepared, Plan]:
    """Return the source at the run's version, and its plan: the one in the table, else one written before any wave."""
    events = read_events(prepared.tables, prepared.spec.model_set, run_id)
    if events.started is None:
        events = _write_started(prepared, run_id)
    prepared = at_its_version(prepared, run_id, events)
    if (labels := started_row(events)["labels"]) is not None:
        prepared = with_labels(prepared, Labels.parse(labels))
    # Of two at the same time the first one's row is there: it may be of another spec.
    changes = check_same(prepared, run_id, events, accept_changes=accept_changes)
    plan = _read_plan(prepared, run_id)
    if plan is not None:
        say(f"run {run_id} goes on where it stopped")
        changes += _other_data(prepared, run_id, plan, accept_changes=accept_changes)
    if changes:
        _accept(prepared, run_id, changes, say, has_started=True)
    if plan is None:
        plan = _new_plan(prepared, run_id, events, say, retrain_all=retrain_all, accept_changes=accept_changes)
    return prepared, plan


def at_its_version(prepared: Prepared, run_id: str, events: Events) -> Prepared:
    """Return what was prepared, with the source at the version of the run's row `started`.

    Raises
    ------
    DataError
        That version can be read no more.
    """
    version = started_row(events)["source_version"]
    if version in (None, prepared.source.version):
        return prepared
    source = source_versions.pin_at(prepared.spark, prepared.spec.source, version, run_id)
    return dataclasses.replace(prepared, source=source)


def _other_data(prepared: Prepared, run_id: str, plan: Plan, *, accept_changes: bool) -> list[str]:
    changes = data_changes(prepared, run_id, plan)
    if changes and not accept_changes:
        raise StateError(
            f"run {run_id} was planned with other data: {'; '.join(changes)}. Train on the data as they are now with "
            "`--accept-changes`, or give another run id"
        )
    return changes


def _accept(prepared: Prepared, run_id: str, changes: list[str], say: Say, *, has_started: bool) -> None:
    accept(prepared, run_id, "; ".join(changes), has_started=has_started)
    say(f"run {run_id} goes on although {'; '.join(changes)}")


def _new_plan(
    prepared: Prepared, run_id: str, events: Events, say: Say, *, retrain_all: bool, accept_changes: bool
) -> Plan:
    model_set = prepared.spec.model_set
    plan = make_plan(prepared, started_row(events)["base_release"], retrain_all=retrain_all)
    _check_source(prepared, run_id, plan, say, accept_changes=accept_changes)
    for note in plan.notes:
        say(note)
    for warning in plan.skew.warnings if plan.skew else ():
        say(f"warning: {warning}")
    # Before the plan: an attempt that finds it plans no more, and cannot measure again what this one saw.
    append_event(prepared, run_id, PLANNED, source_stats=plan.source_stats)
    prepared.tables.append(PLAN, plan.rows(model_set, run_id), Commit(model_set, run_id, 0))
    # Of two attempts at the same time the first one's plan counts.
    return _read_plan(prepared, run_id) or plan


def _check_source(prepared: Prepared, run_id: str, plan: Plan, say: Say, *, accept_changes: bool) -> None:
    """Refuse a source that looks half-loaded, or whose features know the target."""
    known = leaks(plan.source_stats, prepared.spec.target)
    if known and not accept_changes:
        raise DataError(
            f"{'; '.join(known)}: no model of it tells anything of rows whose target is not known yet. Nothing was "
            "trained. Leave it out of `features`, or train on it all the same with `--accept-changes`"
        )
    if known:
        _accept(prepared, run_id, known, say, has_started=False)
    mistakes = half_loaded(prepared, plan)
    if mistakes and not accept_changes:
        limit = "raise the limit that is named, or " if any("limits." in said for said in mistakes) else ""
        raise DataError(
            f"the source ({prepared.spec.source.describe()}) looks half-loaded: {'; '.join(mistakes)}. Nothing was "
            f"trained. If it is as it should be, {limit}train all the same with `--accept-changes`"
        )
    if mistakes:
        _accept(prepared, run_id, [f"the source looks half-loaded: {'; '.join(mistakes)}"], say, has_started=False)


def half_loaded(prepared: Prepared, plan: Plan) -> list[str]:
    """Return how the source falls short, by the spec's limits, of what the last run of the same scope saw."""
    last = read_last_run(prepared.tables, prepared.spec.model_set, prepared.scope.text, prepared.levels.own)
    keys = keys_with_rows(plan.own().keys)
    return source_mistakes(plan.source_stats, keys, last, prepared.spec.limits, utc_now())


def stats_of(prepared: Prepared, plan: Plan) -> dict[str, float]:
    """Return what tells a half-loaded source; all but missing features where a plan has no row `planned`."""
    return dict(plan.source_stats) or source_stats(plan.own().keys, {}, prepared.spec.target, ())


def started_row(events: Events) -> Mapping[str, Any]:
    """Return the row `started` of a run that wrote it.

    Raises
    ------
    StateError
        It is not there.
    """
    if events.started is None:
        raise StateError("the row `started` was written and is not there: the tables lose what is appended to them")
    return events.started


def _write_started(prepared: Prepared, run_id: str) -> Events:
    """Write that the run started, and on which release; of two at the same time the first one's row counts."""
    versions, labels = spark_probe.versions(), find_labels(prepared)
    append_event(
        prepared,
        run_id,
        STARTED,
        base_release=newest_release(prepared.tables, prepared.spec.model_set),
        source_version=prepared.source.version,
        spec=prepared.spec.to_json(),
        spec_fingerprint=prepared.spec.fingerprint(versions),
        versions=versions,
        key_kinds=dict(prepared.roles.keys),
        feature_kinds=dict(prepared.roles.features),
        labels=None if labels is None else labels.to_json(),
    )
    return read_events(prepared.tables, prepared.spec.model_set, run_id)


def _read_plan(prepared: Prepared, run_id: str) -> Plan | None:
    """Return the plan that the run's first attempt wrote; a resumed run never plans again."""
    owner = prepared.spec.model_set
    if not prepared.tables.numbers(PLAN, model_set=owner, owner=run_id):
        return None
    rows = prepared.tables.read(PLAN, where={"model_set": [owner], "run_id": [run_id]}).sort_by("key_id")
    slots = prepared.spec.compute.slots or spark_sizes.count_slots(prepared.frame)
    plan = Plan.of_rows(rows, slots=slots, own_level=prepared.levels.own)
    planned = read_events(prepared.tables, owner, run_id).planned or {}
    return dataclasses.replace(plan, source_stats=dict(planned.get("source_stats") or {}))
