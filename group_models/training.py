"""One training run from its plan to its manifest; a retry with the same run id does what is missing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from group_models.adapters import spark_probe, spark_sizes
from group_models.errors import StateError
from group_models.live import check_not_cleaned, read_releases, read_without_pins
from group_models.manifest import STORE_COLUMNS, RunIdentity, compose, count_statuses, release_refusal
from group_models.plans import Plan, summarise
from group_models.ports import Commit, Tables
from group_models.preparing import Prepared, make_plan
from group_models.showing import failures, worst_of_run
from group_models.spec import check_run_id, is_uri
from group_models.tables import MANIFEST, PLAN, RUN, STORE, utc_now
from group_models.texts import counts_text, facts_html
from group_models.waves import Say, train_waves

STARTED, FINISHED = 0, 1
"""Commit numbers of a run's two rows."""


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """What a run did.

    Attributes
    ----------
    counts
        Keys by status.
    seconds
        Wall seconds by phase.
    refusal
        Why the run must not be published by itself, or None.
    is_repeated
        The run was finished before; nothing was trained now.
    """

    model_set: str
    run_id: str
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    tables: Tables
    refusal: str | None = None
    release_id: str | None = None
    is_repeated: bool = False

    def facts(self) -> dict[str, str]:
        """Return the run as fact and text."""
        released = f"to champion as {self.release_id}" if self.release_id else f"no: {self.refusal or 'not asked to'}"
        seconds = ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())
        again = {"repeated": "it was finished before; nothing was trained now"} if self.is_repeated else {}
        return {
            **again,
            "keys": f"{sum(self.counts.values()):,} ({counts_text(self.counts)})",
            **self._failure_facts(),
            "released": released,
            "seconds": seconds,
            "tables": self.tables.describe(),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the run as plain values, for JSON."""
        names = ("model_set", "run_id", "counts", "seconds", "refusal", "release_id", "is_repeated")
        return {**{name: getattr(self, name) for name in names}, "tables": self.tables.describe()}

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
        released = (
            f"released as {self.release_id}" if self.release_id else f"not released: {self.refusal or 'not asked'}"
        )
        return f"Run({self.run_id} of {self.model_set}: {counts_text(self.counts)}; {released})"

    def _repr_html_(self) -> str:
        return facts_html(f"Run {self.run_id} of {self.model_set}", self.facts())


@dataclasses.dataclass(frozen=True)
class _Started:
    """What a run's `started` row fixes for all its attempts."""

    run_id: str
    base_release: str | None
    spec_fingerprint: str


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


def train_run(prepared: Prepared, run_id: str | None, *, say: Say, release: Callable[[Run], Run]) -> Run:
    """Train what a run owes and return what it did.

    Parameters
    ----------
    run_id
        Of a new run, or of an earlier one of the same spec and scope: unfinished, it goes on; finished, it is
        only told again.
    release
        Called between manifest and the row `finished`, so that a run that died before it is released by a retry.

    Raises
    ------
    StateError
        The run id was used by another spec or scope, or a wave failed.
    """
    run_id = check_run_id(run_id) if run_id else new_run_id()
    rows = _run_rows(prepared, run_id)
    _check_same(prepared, run_id, rows)
    if "finished" in rows:
        return _told_again(prepared, run_id, rows["finished"])
    check_not_cleaned(prepared.tables, prepared.spec.model_set, run_id)
    if (threads := prepared.spec.estimator.threads) > 1:
        say(f"each fit uses {threads} threads, beside the other tasks of its machine")
    clock = _Clock()
    with clock.phase("probe"):
        dotted = prepared.estimator.object if isinstance(prepared.estimator.object, str) else None
        spark_probe.check_workers(prepared.spark, _shared_paths(prepared), dotted)
    started, plan = _start(prepared, run_id, rows.get("started"), clock, say)
    with clock.phase("train"):
        train_waves(prepared, plan, run_id, say)
    with clock.phase("manifest"):
        counts = _write_manifest(prepared, plan, started)
    refusal = release_refusal(counts, prepared.spec.limits)
    run = Run(prepared.spec.model_set, run_id, counts, clock.seconds, prepared.tables, refusal)
    with clock.phase("release"):
        run = release(run)
    summary = summarise(plan)
    if not summary.rows:
        say("the source has no rows in this run's scope: nothing is trained, and what served goes on serving")
    _append_run(
        prepared, run_id, FINISHED, "finished", counts=counts, seconds=clock.seconds, refusal=run.refusal,
        rows=summary.rows, keys=summary.keys, waves=summary.waves,
    )  # fmt: skip
    return run


def _run_rows(prepared: Prepared, run_id: str) -> dict[str, dict[str, Any]]:
    where = {"model_set": [prepared.spec.model_set], "run_id": [run_id]}
    return {row["event"]: row for row in prepared.tables.read(RUN, where=where).to_pylist()}


def _check_same(prepared: Prepared, run_id: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    if "started" not in rows:
        return
    started = rows["started"]
    if started["scope"] != prepared.where:
        raise StateError(
            f"run id {run_id!r} was used for the scope {started['scope'] or 'all keys'}, now it is "
            f"{prepared.where or 'all keys'}; give another run id"
        )
    if changed := _changed_fields(json.loads(started["spec"]), json.loads(prepared.spec.to_json())):
        raise StateError(f"run id {run_id!r} was used by another spec ({', '.join(changed)}); give another run id")


def _changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = sorted({*before, *now} - {"warehouse", "compute", "scoring"})
    return [f"{name} was {before.get(name)!r}" for name in names if before.get(name) != now.get(name)]


def _told_again(prepared: Prepared, run_id: str, finished: Mapping[str, Any]) -> Run:
    return Run(
        prepared.spec.model_set,
        run_id,
        dict(finished["counts"]),
        dict(finished["seconds"]),
        prepared.tables,
        finished["refusal"],
        is_repeated=True,
    )


def _shared_paths(prepared: Prepared) -> list[str]:
    """Return the local paths that the workers' machines must see too."""
    path = prepared.spec.source.path
    source = [path] if path and not is_uri(path) else []
    return [path for path in [*source, *prepared.tables.local_paths()] if Path(path).exists()]


def _start(
    prepared: Prepared, run_id: str, row: Mapping[str, Any] | None, clock: _Clock, say: Say
) -> tuple[_Started, Plan]:
    """Return the run's plan: the one in the table where there is one, else a new one, written before any wave."""
    if row is None:
        row = _write_started(prepared, run_id)
        # Of two at the same time the first one's row is there: it may be of another spec.
        _check_same(prepared, run_id, {"started": row})
    started = _Started(run_id, row["base_release"], row["spec_fingerprint"])
    if (plan := _read_plan(prepared, run_id)) is not None:
        say(f"run {run_id} goes on where it stopped")
        return started, plan
    with clock.phase("plan"):
        plan = make_plan(prepared, started.base_release)
    model_set = prepared.spec.model_set
    prepared.tables.append(PLAN, plan.rows(model_set, run_id), Commit(model_set, run_id, 0))
    # Of two attempts at the same time the first one's plan counts.
    written = _read_plan(prepared, run_id)
    return started, plan if written is None else written


def _write_started(prepared: Prepared, run_id: str) -> dict[str, Any]:
    """Write that the run started, and on which release; of two at the same time the first one's row counts."""
    versions = spark_probe.versions()
    values = {
        "base_release": _newest_release(prepared),
        "spec": prepared.spec.to_json(),
        "spec_fingerprint": prepared.spec.fingerprint(versions),
        "versions": versions,
        "key_kinds": dict(prepared.roles.keys),
        "feature_kinds": dict(prepared.roles.features),
    }
    _append_run(prepared, run_id, STARTED, "started", **values)
    return _run_rows(prepared, run_id)["started"]


def _newest_release(prepared: Prepared) -> str | None:
    log = read_releases(prepared.tables, prepared.spec.model_set)
    return log[-1].release_id if log else None


def _append_run(prepared: Prepared, run_id: str, number: int, event: str, **values: Any) -> None:
    spec = prepared.spec
    row = {
        "model_set": spec.model_set,
        "run_id": run_id,
        "event": event,
        "at": utc_now(),
        "scope": prepared.where,
        "source": spec.source.describe(),
        "code_version": importlib.metadata.version("group-models"),
        **values,
    }
    prepared.tables.append(RUN, RUN.rows([row]), Commit(spec.model_set, run_id, number))


def _read_plan(prepared: Prepared, run_id: str) -> Plan | None:
    """Return the plan that the run's first attempt wrote; a resumed run never plans again."""
    owner = prepared.spec.model_set
    if not prepared.tables.numbers(PLAN, model_set=owner, owner=run_id):
        return None
    rows = prepared.tables.read(PLAN, where={"model_set": [owner], "run_id": [run_id]}).sort_by("key_id")
    return Plan.of_rows(rows, slots=prepared.spec.compute.slots or spark_sizes.count_slots(prepared.frame))


def _write_manifest(prepared: Prepared, plan: Plan, started: _Started) -> dict[str, int]:
    """Compose the manifest, write it once, and return the keys by status as they are in the table."""
    tables, model_set = prepared.tables, prepared.spec.model_set
    where = {"model_set": [model_set], "run_id": [started.run_id]}
    store = tables.read(STORE, columns=STORE_COLUMNS, where=where)
    live = read_without_pins(tables, model_set, started.base_release)
    max_age_days = prepared.spec.scoring.max_age_days
    identity = RunIdentity(model_set, started.run_id, started.spec_fingerprint, max_age_days)
    manifest = compose(plan.keys, store, live.models(), identity, ages=live.ages(utc_now()))
    tables.append(MANIFEST, manifest, Commit(model_set, started.run_id, 0))
    return count_statuses(tables.read(MANIFEST, columns=["status"], where=where))
