"""The last wave of a run with salted keys: their parts become one ensemble each, measured and stored."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_combine, spark_train
from group_models.errors import StateError
from group_models.fitting import FitSettings
from group_models.keys import key_json
from group_models.manifest import first_rows
from group_models.mlmodel import MlmodelTemplate, requirements
from group_models.parts import PART_COLUMNS, PartsOutcome, judge_parts, with_metrics
from group_models.plans import Plan
from group_models.ports import Commit, SparkFrame, Where
from group_models.preparing import Prepared
from group_models.registry import make_family
from group_models.tables import STORE, WHOLE
from group_models.wave_jobs import NUMBERS_PER_WAVE, Say, failing_wave, free_numbers, planned_keys


def combine_parts(prepared: Prepared, plan: Plan, rows: SparkFrame, settings: FitSettings, say: Say) -> None:
    """Commit one row per salted key, if the run does not have them yet.

    Raises
    ------
    StateError
        The wave's job failed; the same run id goes on.
    """
    run_id, wave = settings.run_id, plan.waves
    planned = {row["key_id"]: row for row in plan.keys.filter(pc.equal(plan.keys["decision"], "salted")).to_pylist()}
    where: Where = {"model_set": [settings.model_set], "run_id": [run_id], "key_id": list(planned)}
    stored = first_rows(prepared.tables.read(STORE, columns=PART_COLUMNS, where=where))
    whole = stored.filter(pc.equal(stored["part"], WHOLE))["key_id"].to_pylist()
    owed = {key_id: row for key_id, row in planned.items() if key_id not in set(whole)}
    if not owed:
        return
    start = time.perf_counter()
    outcomes = [judge_parts(_rows_of(stored, key_id), row, settings) for key_id, row in owed.items()]
    number = free_numbers(prepared, run_id, wave)[0]
    models = _models_that_count(prepared, stored, where)
    with failing_wave(run_id, f"combining the parts of {len(owed)} salted keys"):
        columns = _measured(prepared, rows, models, outcomes, settings)
        frame = _combined(prepared, models, columns, owed, settings)
        attempt = number % NUMBERS_PER_WAVE
        rows_of_store = spark_train.store_rows(frame, settings, wave=wave, number=number, attempt=attempt)
        prepared.tables.append(STORE, rows_of_store.repartition(1), Commit(settings.model_set, run_id, number))
    parts = sum(row["n_parts"] for row in owed.values())
    say(f"{len(owed)} salted keys made of {parts} parts, {time.perf_counter() - start:.1f} s")


def _rows_of(stored: pa.Table, key_id: str) -> list[dict[str, Any]]:
    rows = stored.filter(pc.and_(pc.equal(stored["key_id"], key_id), pc.not_equal(stored["part"], WHOLE)))
    if not rows.num_rows:
        raise StateError(f"salted key {key_id} has no parts in the store")
    return rows.to_pylist()  # type: ignore[no-any-return]


def _models_that_count(prepared: Prepared, stored: pa.Table, where: Where) -> SparkFrame:
    """Return the parts' models: of two commits with the same part, those of the lower number."""
    names = ["key_id", "part", "number"]
    counting = stored.filter(pc.not_equal(stored["part"], WHOLE)).select(names)
    models = prepared.tables.scan(prepared.spark, STORE, columns=[*names, "data", "data_file"], where=where)
    return spark_combine.of_these(models, counting)


def _measured(
    prepared: Prepared,
    rows: SparkFrame,
    models: SparkFrame,
    outcomes: list[PartsOutcome],
    settings: FitSettings,
) -> list[dict[str, Any]]:
    """Return the columns of each key's row, with metrics where there is a holdout."""
    ensembles = [
        spark_combine.Ensemble(o.key_id, o.measured, o.columns["holdout_rows"], o.baseline)
        for o in outcomes
        if o.has_holdout
    ]
    if not ensembles:
        return [outcome.columns for outcome in outcomes]
    plan = planned_keys(prepared, settings.run_id, decisions=["salted"])
    sums = spark_combine.measure_ensembles(
        rows, plan, models, ensembles, roles=prepared.roles, key_types=prepared.key_types, settings=settings
    )
    return [with_metrics(o, *sums[o.key_id]) if o.key_id in sums else o.columns for o in outcomes]


def _combined(
    prepared: Prepared,
    models: SparkFrame,
    columns: list[dict[str, Any]],
    planned: dict[str, dict[str, Any]],
    settings: FitSettings,
) -> SparkFrame:
    """Return the rows of all keys: those that are trained with their model."""
    trained = {row["key_id"]: row for row in columns if row["status"] == "trained"}
    failed = [row for row in columns if row["status"] != "trained"]
    names = list(prepared.roles.keys)
    keys = {key_id: key_json(names, tuple(dict(row["key"])[name] for name in names)) for key_id, row in planned.items()}
    n_parts = {key_id: row["n_parts"] for key_id, row in planned.items()}
    frame = spark_combine.combine(models, trained, _template(prepared, settings), keys, n_parts)
    return spark_combine.with_failed(frame, failed) if failed else frame


def _template(prepared: Prepared, settings: FitSettings) -> MlmodelTemplate:
    family = make_family(prepared.estimator, prepared.features)
    return MlmodelTemplate.build(
        model_set=settings.model_set,
        run_id=settings.run_id,
        features=prepared.features,
        flavor="ensemble",
        estimator=family.name,
        extra_requirements=requirements(family.flavor),
    )
