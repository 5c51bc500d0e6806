"""One training run from its plan to its manifest; a retry with the same run id does what is missing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.metadata
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_probe, spark_source, spark_train
from group_models.errors import StateError
from group_models.fitting import FitSettings
from group_models.live import read_releases, read_without_pins
from group_models.manifest import (
    STORE_COLUMNS,
    RunIdentity,
    compose,
    count_statuses,
    missing_keys,
    release_refusal,
)
from group_models.mlmodel import MlmodelTemplate
from group_models.plans import FITTED, Plan, summarise
from group_models.ports import Commit, SparkFrame, Tables
from group_models.preparing import Prepared, make_plan
from group_models.registry import make_family
from group_models.showing import worst_of_run
from group_models.spec import check_run_id
from group_models.tables import MANIFEST, PLAN, RUN, STORE, micros, utc_now
from group_models.texts import counts_text, facts_html

STARTED, FINISHED = 0, 1
"""Commit numbers of a run's two rows."""

NUMBERS_PER_WAVE = 1000
"""Commit numbers that a wave reserves, for what its first attempt leaves missing."""

_ATTEMPTS = 3

Say = Callable[[str], None]
"""Where progress goes, a line each."""


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
            "released": released,
            "seconds": seconds,
            "tables": self.tables.describe(),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the run as plain values, for JSON."""
        names = ("model_set", "run_id", "counts", "seconds", "refusal", "release_id", "is_repeated")
        return {**{name: getattr(self, name) for name in names}, "tables": self.tables.describe()}

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
    if (threads := prepared.spec.estimator.threads) > 1:
        say(f"each fit uses {threads} threads, beside the other tasks of its machine")
    clock = _Clock()
    with clock.phase("probe"):
        spark_probe.check_workers(prepared.spark, _shared_paths(prepared))
    started, plan = _start(prepared, run_id, rows.get("started"), clock, say)
    with clock.phase("train"):
        _train_waves(prepared, plan, started, say)
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
    path = prepared.spec.source.path
    return [path] if path and "://" not in path and Path(path).exists() else []


def _start(
    prepared: Prepared, run_id: str, row: Mapping[str, Any] | None, clock: _Clock, say: Say
) -> tuple[_Started, Plan]:
    """Return the run's plan: the one in the table where there is one, else a new one, written before any wave."""
    if row is None:
        row = _write_started(prepared, run_id)
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
    return started, plan if written is None else dataclasses.replace(written, slots=plan.slots)


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
    return Plan.of_rows(rows, slots=prepared.spec.compute.slots or 1)


def _train_waves(prepared: Prepared, plan: Plan, started: _Started, say: Say) -> None:
    settings = fit_settings(prepared, started.run_id, plan.holdout_from)
    rows = prepared.rows()
    say(f"run {started.run_id}: {plan!r}")
    for wave in range(plan.waves):
        start = time.perf_counter()
        of_wave = plan.keys.filter(pc.equal(plan.keys["wave"], wave))
        _train_wave(prepared, wave, of_wave, rows, settings)
        took = time.perf_counter() - start
        units = len(plan.units_of_wave(wave))
        say(f"wave {wave + 1} of {plan.waves} done: {of_wave.num_rows:,} keys in {units} units, {took:.1f} s")


def _train_wave(prepared: Prepared, wave: int, of_wave: pa.Table, rows: SparkFrame, settings: FitSettings) -> None:
    """Commit a wave; what an attempt leaves missing goes out under the next number."""
    owner = Commit(settings.model_set, settings.run_id, 0)
    taken = set(prepared.tables.numbers(STORE, model_set=owner.model_set, owner=owner.owner))
    for attempt in range(_ATTEMPTS):
        number = wave * NUMBERS_PER_WAVE + attempt
        if number in taken:
            continue
        missing = of_wave.filter(
            pc.is_in(of_wave["key_id"], pa.array(_missing(prepared, of_wave, settings.run_id), pa.string()))
        )
        if not missing.num_rows:
            return
        units = tuple(sorted(pc.unique(missing["unit"]).to_pylist()))
        job = spark_train.Wave(wave, number, attempt, units, _model_bytes(prepared, missing))
        frame = spark_train.train_wave(
            rows, _plan_frame(prepared, wave, settings.run_id), job, roles=prepared.roles,
            key_types=prepared.key_types, settings=settings,
        )  # fmt: skip
        with _failing_wave(settings.run_id, wave, units):
            prepared.tables.append(STORE, frame, dataclasses.replace(owner, number=number))
    if left := _missing(prepared, of_wave, settings.run_id):
        raise StateError(f"run {settings.run_id}: wave {wave} left {len(left)} keys without an outcome, {left[:5]}")


def _missing(prepared: Prepared, of_wave: pa.Table, run_id: str) -> list[str]:
    where = {"model_set": [prepared.spec.model_set], "run_id": [run_id]}
    return missing_keys(of_wave, prepared.tables.read(STORE, columns=["key_id"], where=where))


def _model_bytes(prepared: Prepared, keys: pa.Table) -> float:
    rows = keys["usable_rows"].to_numpy().astype(np.int64)
    family = make_family(prepared.estimator, prepared.features)
    return float(family.predicted_model_bytes(rows, len(prepared.spec.features)).sum())


def _plan_frame(prepared: Prepared, wave: int, run_id: str) -> SparkFrame:
    """Return the plan's rows of a wave as they are in the table: no local relation of a million keys is uploaded."""
    where = {"model_set": [prepared.spec.model_set], "run_id": [run_id]}
    columns = ["key_id", "key", "unit", "key_index", "decision", "sample_share"]
    keys = prepared.tables.scan(
        prepared.spark, PLAN, columns=columns, where={**where, "wave": [wave], "decision": FITTED}
    )
    done = prepared.tables.scan(prepared.spark, STORE, columns=["key_id"], where=where)
    return keys.join(done, "key_id", "left_anti")


@contextmanager
def _failing_wave(run_id: str, wave: int, units: tuple[int, ...]) -> Iterator[None]:
    """Say of a wave that failed as a whole which run to go on with."""
    try:
        yield
    except spark_source.SPARK_ERRORS as e:
        raise StateError(
            f"run {run_id}: wave {wave} with units {units[0]} to {units[-1]} failed: {spark_source.cause(e)}. "
            f"Nothing of it was stored, earlier waves were; `--run-id {run_id}` goes on."
        ) from e


def fit_settings(prepared: Prepared, run_id: str, holdout_from: dt.datetime | None) -> FitSettings:
    """Return what the units of a run must know."""
    spec = prepared.spec
    family = make_family(prepared.estimator, prepared.features)
    template = MlmodelTemplate.build(
        model_set=spec.model_set, run_id=run_id, features=prepared.features, flavor=family.flavor,
        estimator=family.name,
    )  # fmt: skip
    return FitSettings(
        model_set=spec.model_set,
        run_id=run_id,
        features=dict(prepared.roles.features),
        estimator=prepared.estimator,
        template=template,
        refit=spec.refit,
        seed=spec.seed,
        max_model_bytes=spec.limits.max_model_bytes,
        holdout_by=spec.holdout_by,
        holdout_share=spec.holdout.share,
        holdout_from_us=None if holdout_from is None else micros(holdout_from),
    )


def _write_manifest(prepared: Prepared, plan: Plan, started: _Started) -> dict[str, int]:
    """Compose the manifest, write it once, and return the keys by status as they are in the table."""
    tables, model_set = prepared.tables, prepared.spec.model_set
    where = {"model_set": [model_set], "run_id": [started.run_id]}
    store = tables.read(STORE, columns=STORE_COLUMNS, where=where)
    live = read_without_pins(tables, model_set, started.base_release)
    max_age_days = prepared.spec.scoring.max_age_days
    identity = RunIdentity(model_set, started.run_id, started.spec_fingerprint, max_age_days)
    manifest = compose(plan.keys, store, live.models(), identity, ages=live.ages(utc_now()))
    if manifest.num_rows != plan.keys.num_rows:
        raise StateError(f"run {started.run_id}: {plan.keys.num_rows} keys in, {manifest.num_rows} rows out")
    tables.append(MANIFEST, manifest, Commit(model_set, started.run_id, 0))
    return count_statuses(tables.read(MANIFEST, columns=["status"], where=where))
