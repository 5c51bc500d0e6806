"""The waves of a run: one Spark job and one commit each; what an attempt leaves missing goes out again."""

from __future__ import annotations

import datetime as dt
import time

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_train
from group_models.combining import combine_parts
from group_models.distributed_waves import distribute_wave, distributed_keys
from group_models.errors import StateError
from group_models.fitting import FitSettings
from group_models.mlmodel import MlmodelTemplate
from group_models.plans import Plan
from group_models.ports import Commit, SparkFrame, Where
from group_models.preparing import Prepared
from group_models.registry import make_family
from group_models.tables import STORE, micros
from group_models.wave_jobs import NUMBERS_PER_WAVE, Say, failing_wave, free_numbers, planned_keys

_ATTEMPTS = 3
"""Attempts of a wave before the run is given back to whoever started it."""


def train_waves(prepared: Prepared, plan: Plan, run_id: str, say: Say) -> None:
    """Commit every wave of a plan; of an unfinished run only what has no row yet is trained.

    Raises
    ------
    StateError
        A wave failed as a whole, or left keys without a row; the same run id goes on.
    """
    settings = fit_settings(prepared, run_id, plan.holdout_from)
    rows = prepared.rows()
    parts = plan.parts()
    say(f"run {run_id}: {plan!r}")
    distributed = distributed_keys(plan)
    for wave in range(plan.waves):
        start = time.perf_counter()
        of_wave = parts.filter(pc.equal(parts["wave"], wave))
        if wave in distributed:
            distribute_wave(prepared, distributed[wave], rows, settings, plan.slots)
        else:
            _train_wave(prepared, wave, of_wave, rows, settings)
        keys, units = (pc.count_distinct(of_wave[name]).as_py() for name in ("key_id", "unit"))
        took = time.perf_counter() - start
        say(f"wave {wave + 1} of {plan.waves} done: {keys:,} keys in {units} units, {took:.1f} s")
    if plan.has_salted:
        combine_parts(prepared, plan, rows, settings, say)


def _train_wave(prepared: Prepared, wave: int, of_wave: pa.Table, rows: SparkFrame, settings: FitSettings) -> None:
    """Commit one wave, each attempt under the next free number."""
    model_set, run_id = settings.model_set, settings.run_id
    for number in free_numbers(prepared, run_id, wave)[:_ATTEMPTS]:
        missing = _missing(prepared, of_wave, run_id)
        if not missing.num_rows:
            return
        job = spark_train.Wave(
            number=wave,
            commit=number,
            attempt=number % NUMBERS_PER_WAVE,
            units=tuple(sorted(pc.unique(missing["unit"]).to_pylist())),
            model_bytes=pc.sum(missing["predicted_model_bytes"]).as_py() or 0.0,
            has_copies=bool(pc.any(missing["is_thinned"]).as_py()),
        )
        where: Where = {"model_set": [model_set], "run_id": [run_id]}
        frame = spark_train.train_wave(
            rows,
            planned_keys(prepared, run_id, wave=wave),
            prepared.tables.scan(prepared.spark, STORE, columns=["key_id", "part"], where=where),
            job,
            roles=prepared.roles,
            key_types=prepared.key_types,
            settings=settings,
        )
        with failing_wave(run_id, f"wave {wave} with units {job.units[0]} to {job.units[-1]}"):
            prepared.tables.append(STORE, frame, Commit(model_set, run_id, job.commit))
    if (left := _missing(prepared, of_wave, run_id)).num_rows:
        first = ", ".join(left["key_id"].slice(0, 5).to_pylist())
        raise StateError(
            f"run {run_id}: wave {wave} left {left.num_rows} keys without an outcome ({first}); "
            f"`--run-id {run_id}` tries them again"
        )


def _missing(prepared: Prepared, of_wave: pa.Table, run_id: str) -> pa.Table:
    """Return the parts of a wave that the store has no row of."""
    where: Where = {"model_set": [prepared.spec.model_set], "run_id": [run_id]}
    done = prepared.tables.read(STORE, columns=["key_id", "part"], where=where)
    return of_wave.join(done, ["key_id", "part"], join_type="left anti")


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
