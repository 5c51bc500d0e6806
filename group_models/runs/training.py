"""One training run from its plan to its manifest; a retry with the same run id does what is missing."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from group_models.adapters import spark_probe, spark_ship, spark_sizes
from group_models.live.manifest import STORE_COLUMNS, RunIdentity, compose, count_levels, manifest_refusal
from group_models.live.parents import Parents, read_parents
from group_models.live.sets import check_not_cleaned, read_without_pins
from group_models.planning.plans import Plan, summarise
from group_models.ports import Commit, Tables
from group_models.reporting.covering import coverage_facts, read_coverage
from group_models.reporting.progress import Show
from group_models.reporting.showing import failures, worst_of_run
from group_models.reporting.timing import Timing, read_timing
from group_models.reporting.verdict import read_verdict, verdict_facts
from group_models.runs.preparing import Prepared
from group_models.runs.resuming import FINISHED, append_event, check_same, read_events
from group_models.runs.scoping import no_failed_text
from group_models.runs.sizing import check_scope
from group_models.runs.starting import start, started_row, stats_of
from group_models.runs.wave_jobs import Say, failing_wave
from group_models.runs.waves import train_waves
from group_models.spec import ParentSpec, is_uri, parent_fingerprint
from group_models.tables import MANIFEST, STORE, utc_now
from group_models.texts import counts_text, facts_html
from group_models.verdicts import Verdict


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """What a run did.

    Attributes
    ----------
    counts
        Keys by status, without parents.
    seconds
        Wall seconds by phase.
    refusal
        Why the run must not be published by itself, or None.
    is_repeated
        The run was finished before; nothing was trained now.
    has_started
        False of a run of the failed keys where none failed: it is in no table.
    slots
        Tasks that ran at the same time, where that is known.
    """

    model_set: str
    run_id: str
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    tables: Tables
    refusal: str | None = None
    release_id: str | None = None
    is_repeated: bool = False
    has_started: bool = True
    slots: int | None = None

    def verdict(self) -> Verdict | None:
        """Return whether models per key pay, as this run's holdouts tell it; None where nothing was measured."""
        return read_verdict(self.tables, self.model_set, self.run_id)

    def coverage(self) -> dict[str, float]:
        """Return by level the share of all keys' held out rows inside the intervals that other rows made."""
        return read_coverage(self.tables, self.model_set, self.run_id)

    def facts(self) -> dict[str, str]:
        """Return the run as fact and text."""
        released = f"to champion as {self.release_id}" if self.release_id else f"no: {self._why_not_released()}"
        seconds = ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())
        again = {"repeated": "it was finished before; nothing was trained now"} if self.is_repeated else {}
        timing = self.timing()
        return {
            **again,
            "keys": f"{sum(self.counts.values()):,} ({counts_text(self.counts)})",
            **self.parents().facts(),
            **verdict_facts(self.verdict()),
            **coverage_facts(self.coverage()),
            **self._failure_facts(),
            "released": released,
            "seconds": seconds,
            **(timing.facts() if timing else {}),
            "tables": self.tables.describe(),
        }

    def _why_not_released(self) -> str:
        return self.refusal or ("not asked to" if self.has_started else "there was nothing to train")

    def as_dict(self) -> dict[str, Any]:
        """Return the run as plain values, for JSON."""
        names = ("model_set", "run_id", "counts", "seconds", "refusal", "release_id", "is_repeated")
        timing, verdict = self.timing(), self.verdict()
        more = {
            "parents": dataclasses.asdict(self.parents()),
            "verdict": verdict.as_dict() if verdict else None,
            "coverage": self.coverage(),
            "timing": timing.as_dict() if timing else None,
            "tables": self.tables.describe(),
        }
        return {**{name: getattr(self, name) for name in names}, **more}

    def task_values(self) -> dict[str, Any]:
        """Return what the tasks of a job after this one may ask for."""
        return {name: getattr(self, name) for name in ("run_id", "counts", "release_id", "refusal")}

    def timing(self) -> Timing | None:
        """Return how the time of the fits was spent, against the plan; None where nothing was fitted."""
        return read_timing(self.tables, self.model_set, self.run_id, slots=self.slots)

    def parents(self) -> Parents:
        """Return what came of the parents, and how many keys each level serves."""
        return read_parents(self.tables, self.model_set, self.run_id)

    def _failure_facts(self) -> dict[str, str]:
        failed = self.failures()
        if not failed:
            return {}
        look = f"`group-models show SPEC --run-id {self.run_id} --status failed` lists them"
        return {"failures": f"{counts_text(failed)}; {look}"}

    def failures(self) -> dict[str, int]:
        """Return the keys that failed, counted by stage and class of the exception, most first."""
        return failures(self.tables, self.model_set, self.run_id)

    def worst(self, count: int = 5) -> list[Mapping[str, Any]]:
        """Return the manifest rows of the keys with the highest error on their holdout."""
        return worst_of_run(self.tables, self.model_set, self.run_id, count)

    def __repr__(self) -> str:
        """Return the run in one line."""
        why_not = self._why_not_released()
        released = f"released as {self.release_id}" if self.release_id else f"not released: {why_not}"
        return f"Run({self.run_id} of {self.model_set}: {counts_text(self.counts)}; {released})"

    def _repr_html_(self) -> str:
        return facts_html(f"Run {self.run_id} of {self.model_set}", self.facts())


@dataclasses.dataclass
class _Clock:
    """Wall seconds by phase."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def new_run_id() -> str:
    """Return a run id that sorts by time."""
    return f"r{utc_now():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def train_run(
    prepared: Prepared,
    run_id: str,
    *,
    say: Say,
    show: Show,
    release: Callable[[Run], Run],
    retrain_all: bool = False,
    accept_changes: bool = False,
) -> Run:
    """Train what a run owes and return what it did.

    Parameters
    ----------
    run_id
        Of a new run, or of an earlier one of the same spec and scope: unfinished, it goes on; finished, it is
        only told again. A new run of the failed keys where none failed writes nothing and has no counts.
    say, show
        Where each line of progress goes, and how far the run is, whenever that changes.
    release
        Called between manifest and the row `finished`, so that a run that died before it is released by a retry.
    retrain_all
        A run that is planned now also trains keys of which data and spec are those of their model.
    accept_changes
        Go on with another spec, other data or a source that looks half-loaded, and keep that in the run table.

    Raises
    ------
    StateError
        The run id was used by another spec or scope, the data of an unfinished run changed, or a wave failed.
    DataError
        The source looks half-loaded.
    SpecError
        No key is in the scope.
    """
    events = read_events(prepared.tables, prepared.spec.model_set, run_id)
    check_same(prepared, run_id, events, accept_changes=accept_changes)
    if events.finished:
        say(f"run {run_id} finished before: nothing is trained")
        return _told_again(prepared, run_id, events.finished)
    check_not_cleaned(prepared.tables, prepared.spec.model_set, run_id)
    if events.started is None:
        if prepared.scope.has_no_failed_key:
            told = no_failed_text(prepared.tables, prepared.spec.model_set)
            say(f"{told}: there is nothing to train, and nothing is written")
            return Run(prepared.spec.model_set, run_id, {}, {}, prepared.tables, has_started=False)
        check_scope(prepared)
    if (threads := prepared.spec.estimator.threads) > 1:
        say(f"each fit uses {threads} threads, beside the other tasks of its machine")
    clock = _Clock()
    with clock.phase("probe"):
        spark_probe.check_workers(prepared.spark, _shared_paths(prepared))
        prepared = _shipped(prepared)
    with clock.phase("plan"):
        prepared, plan = start(prepared, run_id, say, retrain_all=retrain_all, accept_changes=accept_changes)
    with clock.phase("train"):
        train_waves(prepared, plan, run_id, say, show)
    with clock.phase("manifest"), failing_wave(run_id, "writing its manifest"):
        manifest = _write_manifest(prepared, plan, run_id)
    counts = count_levels(manifest).get(prepared.levels.own, {})
    refusal = manifest_refusal(manifest, prepared.spec.limits)
    run = Run(prepared.spec.model_set, run_id, counts, clock.seconds, prepared.tables, refusal, slots=plan.slots)
    with clock.phase("release"):
        run = release(run)
    summary = summarise(plan)
    if not summary.rows and not plan.waves:
        say("the source has no rows in this run's scope: nothing is trained, and what served goes on serving")
    append_event(
        prepared, run_id, FINISHED, counts=counts, seconds=clock.seconds, refusal=run.refusal, rows=summary.rows,
        keys=summary.keys, waves=summary.waves, source_stats=stats_of(prepared, plan),
        coverage=(run.coverage() or None) if prepared.spec.intervals else None,
    )  # fmt: skip
    return run


def _shipped(prepared: Prepared) -> Prepared:
    """Return what is prepared with estimators that every worker can read."""
    ship = functools.partial(spark_ship.ship, prepared.spark)
    of_overrides, others = (tuple(map(ship, each)) for each in (prepared.override_estimators, prepared.others))
    return dataclasses.replace(
        prepared, estimator=ship(prepared.estimator), override_estimators=of_overrides, others=others
    )


def _told_again(prepared: Prepared, run_id: str, finished: Mapping[str, Any]) -> Run:
    return Run(
        prepared.spec.model_set,
        run_id,
        dict(finished["counts"]),
        dict(finished["seconds"]),
        prepared.tables,
        finished["refusal"],
        is_repeated=True,
        slots=prepared.spec.compute.slots or spark_sizes.count_slots(prepared.frame),
    )


def _shared_paths(prepared: Prepared) -> list[str]:
    """Return the local paths that the workers' machines must see too."""
    path = prepared.spec.source.path
    source = [path] if path and not is_uri(path) else []
    return [path for path in [*source, *prepared.tables.local_paths()] if Path(path).exists()]


def _override_fingerprints(prepared: Prepared, started: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """Return the fingerprints of keys and parents of each override; None where the run began with another spec."""
    if started["spec"] != prepared.spec.to_json():
        return None
    versions = dict(started["versions"] or {})
    specs = [prepared.spec.overridden(place) for place in range(len(prepared.spec.overrides))]
    return tuple((spec.fingerprint(versions), ParentSpec.of(spec).fingerprint(versions)) for spec in specs)


def _write_manifest(prepared: Prepared, plan: Plan, run_id: str) -> pa.Table:
    """Compose the manifest, write it once, and return what came of each key as it is in the table."""
    tables, model_set = prepared.tables, prepared.spec.model_set
    events = read_events(tables, model_set, run_id)
    started = started_row(events)
    where = {"model_set": [model_set], "run_id": [run_id]}
    store = tables.read(STORE, columns=STORE_COLUMNS, where=where)
    live = read_without_pins(tables, model_set, started["base_release"])
    max_age_days = prepared.spec.scoring.max_age_days
    limits = json.loads(started["spec"])["limits"]
    identity = RunIdentity(
        model_set, run_id, started["spec_fingerprint"], max_age_days, stored_before=events.stored_before(),
        parent_fingerprint=parent_fingerprint(started["spec_fingerprint"], limits.get("max_parent_rows")),
        overrides=_override_fingerprints(prepared, started),
        gates=prepared.spec.gates, metric=prepared.spec.metric,
    )  # fmt: skip
    ages, levels = live.ages(utc_now()), prepared.levels
    manifest = compose(plan.keys, store, live.models(), identity, ages=ages, levels=levels, bases=live.bases())
    tables.append(MANIFEST, manifest, Commit(model_set, run_id, 0))
    return tables.read(MANIFEST, columns=["level", "status", "serves"], where=where)
