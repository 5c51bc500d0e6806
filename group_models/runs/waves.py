"""The waves of a run, one after the other, and what their units must know."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time

import pyarrow.compute as pc

from group_models.adapters.spark_references import NO_REFERENCES
from group_models.estimators.registry import make_family
from group_models.fitting.deaths import FitLimits
from group_models.fitting.outcomes import FitSettings
from group_models.mlmodel import MlmodelTemplate
from group_models.planning.plans import Plan
from group_models.ports import SparkFrame
from group_models.reporting.progress import Show, show_nothing
from group_models.runs.combining import combine_parts
from group_models.runs.distributed_waves import distribute_wave, distributed_keys
from group_models.runs.one_wave import OneWave
from group_models.runs.pooling import find_pool, pool_settings
from group_models.runs.preparing import Prepared
from group_models.runs.referencing import Comparing
from group_models.runs.trial_rows import append_trials
from group_models.runs.watching import Watch
from group_models.runs.wave_jobs import Say
from group_models.tables import micros
from group_models.texts import number_text


def train_waves(prepared: Prepared, plan: Plan, run_id: str, say: Say, show: Show = show_nothing) -> None:
    """Commit every wave of a plan; of an unfinished run only what has no row yet is trained.

    Raises
    ------
    StateError
        A wave failed as a whole, or left keys without a row; the same run id goes on.
    """
    prepared = dataclasses.replace(prepared, bounds=plan.bounds)
    settings = fit_settings(prepared, run_id, plan.holdout_from)
    comparing = Comparing.of(prepared, plan, settings, say)
    say(f"run {run_id}: {plan!r}")
    watch = Watch(prepared.tables, plan, (prepared.spec.model_set, run_id), say, show)
    for level, columns in plan.levels().items():
        is_own = len(columns) == len(prepared.roles.keys)
        rows = prepared.rows(level=None if is_own else columns)
        of_level = dataclasses.replace(settings, keeps_measured=not is_own)
        _train_level(prepared, plan, level, rows, of_level, watch, comparing)


def _train_level(
    prepared: Prepared,
    plan: Plan,
    level: str,
    rows: SparkFrame,
    settings: FitSettings,
    watch: Watch,
    comparing: Comparing | None,
) -> None:
    """Commit every wave of one level, and what its salted keys become."""
    of_level, pool, say = plan.at(level), None, watch.say
    parts = of_level.parts()
    references = comparing.of_level(level) if comparing else NO_REFERENCES
    # Who pools has parents, and who has parents compares with them.
    if prepared.spec.is_pooled and comparing and level == prepared.levels.own:
        settings, pool = pool_settings(prepared, settings), find_pool(prepared, plan, settings, comparing.live)
        say(f"keys build on {number_text(len(pool.parents), 'parent')}")
    distributed = distributed_keys(of_level)
    for wave in sorted(pc.unique(parts["wave"]).to_pylist()):
        start = time.perf_counter()
        of_wave = parts.filter(pc.equal(parts["wave"], wave))
        if wave in distributed:
            distribute_wave(prepared, distributed[wave], rows, settings, plan.slots, references)
        else:
            OneWave(prepared, plan, wave, rows, settings, say, references, pool).train(of_wave)
        append_trials(prepared, run_id=settings.run_id, wave=wave)
        watch.wave_done(wave, of_wave, time.perf_counter() - start)
    if of_level.has_salted:
        combine_parts(prepared, of_level, rows, settings, say, references)
        watch.combined(of_level)


def fit_settings(prepared: Prepared, run_id: str, holdout_from: dt.datetime | None) -> FitSettings:
    """Return what the units of a run must know, those of overrides too."""
    places = range(len(prepared.spec.overrides))
    of_overrides = tuple(_with_others(prepared.overridden(place), run_id, holdout_from) for place in places)
    return dataclasses.replace(_with_others(prepared, run_id, holdout_from), overrides=of_overrides)


def _with_others(prepared: Prepared, run_id: str, holdout_from: dt.datetime | None) -> FitSettings:
    """Return settings with those of the other candidates."""
    alone = [dataclasses.replace(prepared, estimator=each, others=()) for each in prepared.others]
    others = tuple(_settings_of(each, run_id, holdout_from) for each in alone)
    asked = prepared.spec.candidates or prepared.spec.tune
    return dataclasses.replace(
        _settings_of(prepared, run_id, holdout_from),
        alternatives=others,
        folds=asked.folds if asked else 0,
        min_fold_rows=asked.min_fold_rows if asked else 0,
        is_in_time=prepared.spec.time_column is not None,
        tuning=prepared.spec.tune,
    )


def _settings_of(prepared: Prepared, run_id: str, holdout_from: dt.datetime | None) -> FitSettings:
    spec = prepared.spec
    family = make_family(prepared.estimator, prepared.features)
    template = MlmodelTemplate.build(
        labels=prepared.estimator.labels,
        model_set=spec.model_set,
        run_id=run_id,
        features=prepared.features,
        flavor=family.flavor,
        estimator=family.name,
        intervals=spec.intervals,
    )
    return FitSettings(
        model_set=spec.model_set,
        run_id=run_id,
        features={name: prepared.roles.features[name] for name in prepared.features.names},
        estimator=prepared.estimator,
        template=template,
        refit=spec.refit,
        seed=spec.seed,
        max_model_bytes=spec.limits.max_model_bytes,
        holdout_by=spec.holdout_by,
        holdout_share=spec.holdout.share,
        holdout_from_us=None if holdout_from is None else micros(holdout_from),
        gap_us=round((spec.holdout.gap_hours or 0.0) * 3_600_000_000),
        limits=FitLimits(timeout_s=spec.limits.timeout_s, memory_bytes=spec.compute.memory_per_worker),
        is_isolated=spec.isolation == "always",
        metric=spec.metric,
        importance=spec.importance,
        intervals=spec.intervals,
    )
