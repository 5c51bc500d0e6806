"""What a wave's searches have tried, as rows of the trials table: committed under the numbers of the wave's commits."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from group_models.live.manifest import first_rows
from group_models.ports import Commit, Where
from group_models.runs.preparing import Prepared
from group_models.tables import STORE, TRIALS


def append_trials(prepared: Prepared, *, run_id: str, wave: int) -> None:
    """Append the trials of a wave's keys unless they are there; of a key that two commits have, those that count."""
    if prepared.spec.tune is None:
        return
    model_set, tables = prepared.spec.model_set, prepared.tables
    where: Where = {"model_set": [model_set], "run_id": [run_id], "wave": [wave]}
    names = ["key_id", "part", "number", "trials"]
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in first_rows(tables.read(STORE, columns=names, where=where)).to_pylist():
        place = {"model_set": model_set, "run_id": run_id, "key_id": row["key_id"], "part": row["part"]}
        for trial in json.loads(row["trials"] or "[]"):
            rows[row["number"]].append({**place, **trial, "params": list(trial["params"].items())})
    for number, trials in rows.items():
        tables.append(TRIALS, TRIALS.rows(trials), Commit(model_set, run_id, number))
