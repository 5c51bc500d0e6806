"""The manifest as `show` lists it: every known key, one row each, and what serves it now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from group_models.keys import KeyKind, parse_key_value
from group_models.live.metrics import first_metric, metric_first, read_metric
from group_models.live.parents import serving_parents
from group_models.live.sets import Live
from group_models.ports import Tables, Where
from group_models.tables import MANIFEST, NEW_MODEL

OF_MODEL = ("estimator", "params", "metrics", "baseline_metrics", "train_metrics", "fit_flag", "importance",
            "interval", "coverage", "holdout_from", "holdout_rows", "model_bytes", "sha256")  # fmt: skip
"""What a row tells of the model that serves, whichever run trained that."""


def newest_rows(tables: Tables, model_set: str, live: Live) -> list[dict[str, Any]]:
    """Return the newest published manifest row of each key, `serves` and `model_run_id` as the live set has them.

    `pinned_run_id` is added: the run that the key is pinned to, or None. A key that no published run knows has the
    row of that run. Where an earlier run's model serves, what is told of the model is of that one. The first of its
    metrics is that of the spec of the newest run.
    """
    pinned = pd.Series(dict(live.pinned), dtype=object).reindex(live.keys.index)
    newest = live.keys["newest_run_id"].where(live.keys["newest_run_id"].notna(), pinned)
    rows = _without_doubles(_of_runs(tables, model_set, sorted(set(newest))))
    at = _index(rows).get_indexer(pd.MultiIndex.from_arrays([newest, live.keys.index]))
    shown = _plain(rows.take(pa.array(at)) if len(at) else rows.slice(0, 0))
    held = [live.pinned.get(key_id) for key_id in live.keys.index]
    bases = live.bases()
    # A key has its own model, which may build on a parent, or a parent serves it.
    above = [bases.get(key_id, parent) for key_id, parent in zip(live.keys.index, _parents(live), strict=True)]
    serving = zip(live.keys["model_run_id"], held, above, strict=True)
    as_live = [_as_live(row, *served) for row, served in zip(shown, serving, strict=True)]
    return _metric_first(tables, model_set, _with_models(tables, model_set, as_live, OF_MODEL), sorted(set(newest)))


def run_rows(tables: Tables, model_set: str, run_id: str) -> list[dict[str, Any]]:
    """Return the manifest rows of one run; where an earlier run's model serves, with what is known of that model."""
    rows = _plain(_without_doubles(_of_runs(tables, model_set, [run_id])))
    return _metric_first(tables, model_set, _with_models(tables, model_set, rows, OF_MODEL), [run_id])


def _metric_first(
    tables: Tables, model_set: str, rows: Sequence[dict[str, Any]], runs: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows with the metric of the newest of these runs before their other metrics."""
    metric = read_metric(tables, model_set, runs)
    names = ("metrics", "baseline_metrics")
    return [{**row, **{name: metric_first(row[name], metric) for name in names if row.get(name)}} for row in rows]


def by_key(rows: Sequence[dict[str, Any]], kinds: Mapping[str, KeyKind]) -> list[dict[str, Any]]:
    """Return rows in the order of their keys' values, numbers by size and nulls last."""

    def place(row: dict[str, Any]) -> list[tuple[str, bool, Any]]:
        # Beside its name a value is compared with those of its own column only, whatever columns a level has.
        return [(name, text is None, parse_key_value(text, kinds[name])) for name, text in row["key"].items()]

    return sorted(rows, key=place)


def _with_models(
    tables: Tables, model_set: str, rows: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows with these columns of the model's own row, where an earlier run's model serves.

    A run that left a key as it was, or failed on it, has nothing of its own to tell of the model.
    """
    runs = sorted({row["model_run_id"] for row in rows if row["serves"] == "previous"})
    if not runs:
        return list(rows)
    where: Where = {"model_set": [model_set], "run_id": runs, "status": NEW_MODEL}
    trained = _plain(tables.read(MANIFEST, columns=("run_id", "key_id", *names), where=where))
    models = {(row["run_id"], row["key_id"]): {name: row[name] for name in names} for row in trained}
    nothing = dict.fromkeys(names)
    return [
        {**row, **models.get((row["model_run_id"], row["key_id"]), nothing)} if row["serves"] == "previous" else row
        for row in rows
    ]


def _of_runs(tables: Tables, model_set: str, runs: Sequence[str]) -> pa.Table:
    return tables.read(MANIFEST, where={"model_set": [model_set], "run_id": list(runs)}) if runs else MANIFEST.empty()


def _index(rows: pa.Table) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows.select(["run_id", "key_id"]).to_pandas())


def _without_doubles(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(~_index(rows).duplicated()))


def _parents(live: Live) -> list[tuple[str | None, str | None]]:
    """Return of each key the parent that serves it, where it has no model, and the run of that one's model."""
    lacks, models = live.keys["model_run_id"].isna(), live.models()
    found = iter(serving_parents(live, live.keys["key"][lacks]))
    parents = [next(found) if is_lacking else None for is_lacking in lacks]
    return [(key_id, None if key_id is None else models[key_id]) for key_id in parents]


def _as_live(
    row: dict[str, Any], model_run_id: Any, pinned_run_id: str | None, parent: tuple[str | None, str | None]
) -> dict[str, Any]:
    key_id, run_id = parent
    if pd.isna(model_run_id):
        serves, model_run_id = "none" if key_id is None else "parent", None
    else:
        serves = "new" if model_run_id == row["run_id"] else "previous"
    live = {"serves": serves, "model_run_id": model_run_id, "pinned_run_id": pinned_run_id}
    return {**row, **live, "parent_key_id": key_id, "parent_run_id": run_id}


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    return [
        {name: dict(value) if name in MANIFEST.maps and value is not None else value for name, value in row.items()}
        for row in rows.to_pylist()
    ]


def failures(tables: Tables, model_set: str, run_id: str) -> dict[str, int]:
    """Return a run's keys with an error, counted by its class and its stage where that is known, most first."""
    where = {"model_set": [model_set], "run_id": [run_id]}
    rows = tables.read(MANIFEST, columns=["error_stage", "error_type"], where=where).to_pylist()
    named = [(row["error_type"], row["error_stage"]) for row in rows if row["error_type"]]
    counts = Counter(f"{kind} in {stage}" if stage else kind for kind, stage in named)
    return dict(counts.most_common())


def worst(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the rows with the highest error on their holdout, worst first; rows without one are left out.

    What counts is the first metric of the rows.
    """
    metric = first_metric(rows)
    measured = [row for row in rows if row["metrics"] and metric in row["metrics"]]
    values = np.array([row["metrics"][metric] for row in measured])
    return [measured[i] for i in np.argsort(-values, kind="stable")[:count]]


def worst_of_run(tables: Tables, model_set: str, run_id: str, count: int) -> list[Mapping[str, Any]]:
    """Return the worst rows of a run, read from the columns that decide and only then whole."""
    where: Where = {"model_set": [model_set], "run_id": [run_id]}
    deciding = _plain(tables.read(MANIFEST, columns=["key_id", "serves", "model_run_id", "metrics"], where=where))
    measured = _metric_first(tables, model_set, _with_models(tables, model_set, deciding, ["metrics"]), [run_id])
    ids = [row["key_id"] for row in worst(measured, count)]
    whole = _plain(tables.read(MANIFEST, where={**where, "key_id": ids})) if ids else []
    described = _with_models(tables, model_set, whole, OF_MODEL)
    found = {row["key_id"]: row for row in _metric_first(tables, model_set, described, [run_id])}
    return [found[key_id] for key_id in ids]
