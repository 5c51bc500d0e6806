"""Which model serves each key: the manifest rows of the runs that count, laid over each other. Pure.

A row *decides* its key where a new model serves, or where a gate rejected the new model and hands the key to
its parent. Per key the decision of the run that started last wins. Every other row decides nothing: it
repeats what served, pins apart, when its run started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.errors import StateError
from group_models.live.releases import FoldPlan, Release, RunInfo, base_counted, counted, newer_runs
from group_models.texts import some_of


def live_set(rows: pd.DataFrame, plan: FoldPlan, pinned: Mapping[str, str]) -> pd.DataFrame:
    """Return which model serves each key.

    Parameters
    ----------
    rows
        Manifest rows of the runs of the plan and of the pins: `run_id`, `key_id`, `status`, `serves`,
        `model_run_id`. A row that is there twice counts once.
    plan
        From `runs_to_read`.
    pinned
        From `pins`.

    Returns
    -------
    pandas.DataFrame
        One row per key: `key_id`; `model_run_id`, the run that trained the model that serves, None where the
        key has no model of its own; `newest_run_id`, the run that started last and has a row for the key, and
        `status`, that row's (both None for a key that none but pinned runs know); `is_pinned`.

    Raises
    ------
    StateError
        A pinned run has no row for its key.
    """
    run_ids, models = rows["run_id"].to_numpy(object), own_models(rows)
    rank = _ranks(run_ids, plan.run_ids)
    keys, key_ids = pd.factorize(rows["key_id"].to_numpy(object))
    decides = _decides(rows)
    repeats = ~decides & (run_ids == plan.base_run_id)
    newest = _last_of_each(keys, rank, rank >= 0)
    deciding = _last_of_each(keys, np.where(decides, rank, -1), (rank >= 0) & (decides | repeats))
    held = _pin_places(rows, pinned)

    result = pd.DataFrame({"key_id": key_ids})
    result["model_run_id"] = _spread(len(key_ids), keys, models, deciding, held)
    result["newest_run_id"] = _spread(len(key_ids), keys, run_ids, newest)
    result["status"] = _spread(len(key_ids), keys, rows["status"].to_numpy(object), newest)
    result["is_pinned"] = np.isin(np.arange(len(key_ids)), keys[held])
    return result[result["newest_run_id"].notna() | result["is_pinned"]].reset_index(drop=True)


def publish_refusal(
    releases: Sequence[Release],
    runs: Mapping[str, RunInfo],
    alias: str,
    run_id: str,
    rows: pd.DataFrame,
    *,
    is_forced: bool = False,
) -> str | None:
    """Return why a run may not be published to an alias, or None.

    Parameters
    ----------
    rows
        Manifest rows `run_id, key_id, status, serves` of this run and of `newer_runs`. Where those are none,
        nothing is looked up: an empty frame will do.
    is_forced
        Publish it also where its base no longer counts.
    """
    newer = newer_runs(releases, runs, alias, run_id)
    deciding = rows[_decides(rows)]
    own = set(deciding.loc[deciding["run_id"] == run_id, "key_id"])
    if own and own <= set(deciding.loc[deciding["run_id"].isin(newer), "key_id"]):
        return (
            f"every key that this run decides ({len(own)}) is decided by a run that started later "
            f"({some_of(newer)}), so that publishing it changes nothing. To go back to its models use "
            "`release rollback`, to hold one key at them `release pin`"
        )
    gone = sorted(base_counted(releases, runs[run_id]) - counted(releases, alias))
    if gone and not is_forced:
        return (
            f"this run started from release {runs[run_id].base_release}, where {some_of(gone)} counted "
            "and now does not: keys that it left alone are not served as it saw them. Train again, or "
            f"publish it all the same with `group-models release publish SPEC --run-id {run_id} --force`"
        )
    return None


def pin_refusal(rows: pd.DataFrame, run_id: str) -> str | None:
    """Return why a key may not be pinned to a run, or None.

    Parameters
    ----------
    rows
        Manifest rows `run_id, status, reason, serves, model_run_id` of the key, of any run.
    """
    has_model = pd.Series(own_models(rows), rows.index).notna()
    others = some_of(sorted(set(rows.loc[has_model, "run_id"]), reverse=True))
    instead = f"runs that left it with a model of its own: {others}"
    own = rows[rows["run_id"] == run_id]
    if own.empty:
        return f"run {run_id} has no row of it: it was not among the keys of that run; {instead}"
    if not has_model[own.index].any():
        row = own.iloc[0]
        reason = f" ({row['reason']})" if row["reason"] else ""
        return (
            f"run {run_id} left it without a model of its own: its status there is {row['status']}{reason}; {instead}"
        )
    return None


def _ranks(run_ids: npt.NDArray[np.object_], order: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return per row the place of its run in the order, -1 for a run that is not in it."""
    ranks = pd.Series(run_ids, dtype=object).map({run_id: rank for rank, run_id in enumerate(order)})
    return np.asarray(ranks.fillna(-1), dtype=np.int64)


def _decides(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    status, serves = rows["status"].to_numpy(object), rows["serves"].to_numpy(object)
    return np.asarray((serves == "new") | ((status == "rejected") & (serves == "parent")), dtype=np.bool_)


def own_models(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return per row the run of the model of its own that serves the key after it, None without one."""
    serves = rows["serves"].to_numpy(object)
    models = np.full(len(rows), None, dtype=object)
    for origin, column in (("new", "run_id"), ("previous", "model_run_id")):
        models = np.where(serves == origin, rows[column].to_numpy(object), models)
    return models


def _last_of_each(
    keys: npt.NDArray[np.intp], rank: npt.NDArray[np.int64], among: npt.NDArray[np.bool_]
) -> npt.NDArray[np.intp]:
    """Return, per key, the place of the row with the highest rank among these rows."""
    places = np.flatnonzero(among)
    places = places[np.lexsort((rank[places], keys[places]))]
    return np.compress(np.diff(keys[places], append=-1) != 0, places)


def _pin_places(rows: pd.DataFrame, pinned: Mapping[str, str]) -> npt.NDArray[np.intp]:
    """Return the places of the rows that pins name: of the pinned key, in the pinned run."""
    key_ids = rows["key_id"].to_numpy(object)
    held_at = pd.Series(key_ids, dtype=object).map(pinned).to_numpy(object)
    places = np.flatnonzero(held_at == rows["run_id"].to_numpy(object))
    missing = sorted(set(pinned) - set(key_ids[places]))
    if missing:
        raise StateError(
            f"key {missing[0]} is pinned to run {pinned[missing[0]]}, whose manifest has no row for it "
            f"({len(missing)} such pins); end the pin with `release unpin`"
        )
    return places


def _spread(
    size: int, keys: npt.NDArray[np.intp], values: npt.NDArray[np.object_], *places: npt.NDArray[np.intp]
) -> npt.NDArray[np.object_]:
    """Return one value per key, taken from the rows at these places, the later ones laid over the earlier."""
    spread = np.full(size, None, dtype=object)
    for chosen in places:
        spread[keys[chosen]] = values[chosen]
    return spread
