"""Which trials of a training run become MLflow runs under its own: of the model of all rows, and of keys asked for.

Of all keys they would be hundreds of thousands of runs; the trials table has them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from group_models.keys import GLOBAL, given_texts, show_key, texts_id
from group_models.ports import Tables, Where
from group_models.tables import TRIALS, WHOLE


@dataclasses.dataclass(frozen=True)
class TrialRecord:
    """One trial as an MLflow run: its name, which is unique in its run, and what is logged."""

    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    is_failed: bool


def read_trials(
    tables: Tables, run: tuple[str, str], spec: Mapping[str, Any], kinds: Mapping[str, Any]
) -> tuple[TrialRecord, ...]:
    """Return the trials of a run (model set and run id) that its spec asks for; none where nothing was tuned.

    Parameters
    ----------
    kinds
        The key columns and what their values are.
    """
    tune, levels = spec.get("tune"), [tuple(level) for level in spec.get("levels", ())]
    if tune is None:
        return ()
    asked = [*([GLOBAL] if () in levels else []), *tune["track_keys"]]
    texts = [given_texts(key, kinds, levels) for key in asked]
    names = {texts_id(each, kinds): show_key(each) for each in texts}
    where: Where = {"model_set": [run[0]], "run_id": [run[1]], "key_id": list(names)}
    rows = tables.read(TRIALS, where=where).sort_by([(name, "ascending") for name in ("key_id", "part", "trial")])
    return tuple(_record(row, names[row["key_id"]], spec["metric"]) for row in rows.to_pylist())


def _record(row: Mapping[str, Any], key: str, metric: str) -> TrialRecord:
    part = "" if row["part"] == WHOLE else f" part {row['part']}"
    measured = {} if row["error"] is None else {f"cv_{metric}": row["error"]}
    told = {"group_models_key": key, "group_models_key_id": row["key_id"], "group_models_trial_state": row["state"]}
    return TrialRecord(
        name=f"{key}{part} trial {row['trial']}",
        params=dict(row["params"]),
        metrics={**measured, "seconds": row["seconds"]},
        tags={**told, **({"group_models_error": row["error_message"]} if row["error_message"] else {})},
        is_failed=row["state"] == "failed",
    )
