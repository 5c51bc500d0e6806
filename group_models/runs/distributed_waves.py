"""The waves of a run with distributed keys: one key, one Spark job after another over the whole cluster, one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from group_models.adapters import spark_distribute, spark_train
from group_models.adapters.spark_references import NO_REFERENCES, References, collect_models
from group_models.fitting.outcomes import FitSettings
from group_models.keys import key_json, show_key
from group_models.planning.plans import Plan
from group_models.ports import Commit, SparkFrame, Where
from group_models.runs.preparing import Prepared
from group_models.runs.wave_jobs import NUMBERS_PER_WAVE, failing_wave, free_numbers
from group_models.tables import STORE


def distributed_keys(plan: Plan) -> dict[int, dict[str, Any]]:
    """Return wave to the row of the plan of the one key that is distributed in it."""
    keys = plan.keys.filter(pc.equal(plan.keys["decision"], "distributed"))
    return {row["wave"]: row for row in keys.to_pylist()}


def distribute_wave(
    prepared: Prepared,
    planned: Mapping[str, Any],
    rows: SparkFrame,
    settings: FitSettings,
    slots: int,
    references: References = NO_REFERENCES,
) -> None:
    """Commit the one row of a distributed key, if the run does not have it yet.

    Raises
    ------
    StateError
        The session has too few slots now, or the row could not be written; the same run id goes on.
    """
    run_id, wave = settings.run_id, planned["wave"]
    where: Where = {"model_set": [settings.model_set], "run_id": [run_id], "key_id": [planned["key_id"]]}
    if prepared.tables.read(STORE, columns=["key_id"], where=where).num_rows:
        return
    key = dict(planned["key"])
    key_id, text, links = planned["key_id"], key_json(list(key), tuple(key.values())), references.links_of(key)
    number = free_numbers(prepared, run_id, wave)[0]
    place = {
        "model_set": settings.model_set,
        "run_id": run_id,
        "wave": wave,
        "number": number,
        "attempt": number % NUMBERS_PER_WAVE,
    }
    with failing_wave(run_id, f"wave {wave + 1} with the distributed key {show_key(key)}"):
        models = collect_models(key_id, links, references)
        named = spark_distribute.PlannedKey(key_id, text, planned["unit"], models, links)
        of_key = spark_train.rows_of_key(rows, key, prepared.key_types, settings)
        outcome = spark_distribute.distribute_key(of_key, named, settings, slots)
        stored = STORE.rows([{**row, **place} for row in outcome.to_pylist()])
        prepared.tables.append(STORE, stored, Commit(settings.model_set, run_id, number))
