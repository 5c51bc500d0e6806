"""The waves of a run: one Spark job and one commit each; what an attempt leaves missing goes out again."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_train
from group_models.adapters.spark_errors import SPARK_ERRORS, cause
from group_models.errors import StateError
from group_models.fitting import FitSettings
from group_models.manifest import missing_keys
from group_models.mlmodel import MlmodelTemplate
from group_models.plans import FITTED, Plan
from group_models.ports import Commit, SparkFrame, Where
from group_models.preparing import Prepared
from group_models.registry import make_family
from group_models.tables import PLAN, STORE, micros

NUMBERS_PER_WAVE = 1000
"""Commit numbers that a wave reserves, for what its first attempt leaves missing."""

_ATTEMPTS = 3
"""Attempts of a wave before the run is given back to whoever started it."""

Say = Callable[[str], None]
"""Where progress goes, a line each."""


def train_waves(prepared: Prepared, plan: Plan, run_id: str, say: Say) -> None:
    """Commit every wave of a plan; of an unfinished run only what has no row yet is trained.

    Raises
    ------
    StateError
        A wave failed as a whole, or left keys without a row; the same run id goes on.
    """
    settings = fit_settings(prepared, run_id, plan.holdout_from)
    rows = prepared.rows()
    say(f"run {run_id}: {plan!r}")
    for wave in range(plan.waves):
        start = time.perf_counter()
        of_wave = plan.keys.filter(pc.equal(plan.keys["wave"], wave))
        _train_wave(prepared, wave, of_wave, rows, settings)
        took = time.perf_counter() - start
        units = len(plan.units_of_wave(wave))
        say(f"wave {wave + 1} of {plan.waves} done: {of_wave.num_rows:,} keys in {units} units, {took:.1f} s")


def _train_wave(prepared: Prepared, wave: int, of_wave: pa.Table, rows: SparkFrame, settings: FitSettings) -> None:
    """Commit one wave, each attempt under the next free number."""
    model_set, run_id = settings.model_set, settings.run_id
    taken = set(prepared.tables.numbers(STORE, model_set=model_set, owner=run_id))
    free = [a for a in range(NUMBERS_PER_WAVE) if wave * NUMBERS_PER_WAVE + a not in taken]
    for attempt in free[:_ATTEMPTS]:
        missing = _missing(prepared, of_wave, run_id)
        if not missing.num_rows:
            return
        job = spark_train.Wave(
            number=wave,
            commit=wave * NUMBERS_PER_WAVE + attempt,
            attempt=attempt,
            units=tuple(sorted(pc.unique(missing["unit"]).to_pylist())),
            model_bytes=pc.sum(missing["predicted_model_bytes"]).as_py() or 0.0,
        )
        frame = spark_train.train_wave(
            rows,
            _plan_frame(prepared, wave, run_id),
            job,
            roles=prepared.roles,
            key_types=prepared.key_types,
            settings=settings,
        )
        with _failing_wave(run_id, job):
            prepared.tables.append(STORE, frame, Commit(model_set, run_id, job.commit))
    if (left := _missing(prepared, of_wave, run_id)).num_rows:
        first = ", ".join(left["key_id"].slice(0, 5).to_pylist())
        raise StateError(
            f"run {run_id}: wave {wave} left {left.num_rows} keys without an outcome ({first}); "
            f"`--run-id {run_id}` tries them again"
        )


def _missing(prepared: Prepared, of_wave: pa.Table, run_id: str) -> pa.Table:
    where = {"model_set": [prepared.spec.model_set], "run_id": [run_id]}
    ids = missing_keys(of_wave, prepared.tables.read(STORE, columns=["key_id"], where=where))
    return of_wave.filter(pc.is_in(of_wave["key_id"], pa.array(ids, pa.string())))


def _plan_frame(prepared: Prepared, wave: int, run_id: str) -> SparkFrame:
    """Return the plan's rows of a wave as they are in the table: no local relation of a million keys is uploaded."""
    where: Where = {"model_set": [prepared.spec.model_set], "run_id": [run_id]}
    columns = ["key_id", "key", "unit", "key_index", "decision", "sample_share"]
    of_wave: Where = {**where, "wave": [wave], "decision": FITTED}
    keys = prepared.tables.scan(prepared.spark, PLAN, columns=columns, where=of_wave)
    done = prepared.tables.scan(prepared.spark, STORE, columns=["key_id"], where=where)
    return keys.join(done, "key_id", "left_anti")


@contextmanager
def _failing_wave(run_id: str, job: spark_train.Wave) -> Iterator[None]:
    """Say of a wave that failed as a whole which run to go on with."""
    try:
        yield
    except SPARK_ERRORS as e:
        raise StateError(
            f"run {run_id}: wave {job.number} with units {job.units[0]} to {job.units[-1]} failed: {cause(e)}. "
            f"What was committed before stays; `--run-id {run_id}` goes on."
        ) from e


def fit_settings(prepared: Prepared, run_id: str, holdout_from: dt.datetime | None) -> FitSettings:
    """Return what the units of a run must know."""
    spec = prepared.spec
    family = make_family(prepared.estimator, prepared.features)
    template = MlmodelTemplate.build(
        model_set=spec.model_set,
        run_id=run_id,
        features=prepared.features,
        flavor=family.flavor,
        estimator=family.name,
    )
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
