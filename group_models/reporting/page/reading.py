"""What a page is made of, read from the tables: a run, its keys, the run before it, and the past of some keys."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from group_models.errors import StateError
from group_models.keys import KeyKind, level_name, show_key
from group_models.live.metrics import spec_metric
from group_models.live.releases import Release
from group_models.live.sets import check_not_cleaned, read_releases, read_runs
from group_models.ports import Tables, Where
from group_models.reporting import showing
from group_models.reporting.timing import Timing, read_timing
from group_models.spec import Metric
from group_models.tables import MANIFEST, RUN

_OF_HISTORY = ("run_id", "key_id", "status", "serves", "rows", "rows_used", "metrics", "baseline_metrics",
               "fit_seconds", "model_run_id")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Before:
    """The run that a run is compared with: its id, its `started` row, and its keys."""

    run_id: str
    started: Mapping[str, Any]
    keys: pd.DataFrame


@dataclasses.dataclass(frozen=True)
class PageData:
    """What a page is made of.

    Attributes
    ----------
    started, finished
        The run's rows in the run table; `finished` is empty where it has not finished.
    keys
        One row per key and parent, the manifest's columns, `label` and `parent` (the label of `parent_key_id`), in the
        order of the keys' values; where an earlier model serves, with what is known of that one. Maps are dicts, {}
        for none.
    kinds
        The key columns and what their values are.
    before
        The run of the same scope that finished last before this one started, if any.
    releases
        The rows of the release log that publish this run.
    """

    model_set: str
    run_id: str
    started: Mapping[str, Any]
    finished: Mapping[str, Any]
    keys: pd.DataFrame
    kinds: Mapping[str, KeyKind]
    before: Before | None
    timing: Timing | None
    releases: Sequence[Release]

    @property
    def spec(self) -> dict[str, Any]:
        """The spec that the run was started with, as a mapping."""
        return dict(json.loads(self.started["spec"] or "{}"))

    @property
    def metric(self) -> Metric:
        """The metric that the run is judged by."""
        return spec_metric(self.spec)

    @property
    def own(self) -> pd.DataFrame:
        """The rows of the keys, without those of their parents."""
        return self.keys[self.keys["level"] == level_name(list(self.kinds))]


def read_page(tables: Tables, model_set: str, run_id: str) -> PageData:
    """Return what the page of a run is made of.

    Raises
    ------
    StateError
        There is no such run, it has written no manifest yet, or a clean has removed rows of it.
    """
    check_not_cleaned(tables, model_set, run_id)
    events = _events(tables, model_set, run_id)
    rows = showing.run_rows(tables, model_set, run_id)
    if not rows and "finished" not in events:
        said = f"run {run_id} of model set {model_set} has no manifest yet"
        raise StateError(f"{said}; `train SPEC --run-id {run_id}` goes on with it")
    started = events["started"]
    kinds: dict[str, KeyKind] = dict(started["key_kinds"] or ())
    return PageData(
        model_set,
        run_id,
        started,
        events.get("finished", {}),
        keys_frame(rows, kinds),
        kinds,
        _before(tables, model_set, started),
        read_timing(tables, model_set, run_id),
        [row for row in read_releases(tables, model_set) if row.run_id == run_id and row.action == "publish"],
    )


def _events(tables: Tables, model_set: str, run_id: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a run in the run table by event, the newest of each."""
    rows = tables.read(RUN, where={"model_set": [model_set], "run_id": [run_id]}).sort_by("at").to_pylist()
    if not any(row["event"] == "started" for row in rows):
        raise StateError(f"model set {model_set} has no run {run_id!r}; `show` lists keys and their runs")
    return {row["event"]: row for row in rows}


def keys_frame(rows: Sequence[dict[str, Any]], kinds: Mapping[str, KeyKind]) -> pd.DataFrame:
    """Return manifest rows as `PageData.keys`, the keys before their parents."""
    ordered = sorted(showing.by_key(rows, kinds), key=lambda row: -len(row["key"]))
    frame = pd.DataFrame(ordered, columns=list(MANIFEST.names) if not ordered else None)
    for name in MANIFEST.maps:
        frame[name] = pd.Series([v if isinstance(v, dict) else {} for v in frame[name]], frame.index, dtype=object)
    frame["label"] = [show_key(key) for key in frame["key"]]
    labels = dict(zip(frame["key_id"], frame["label"], strict=True))
    frame["parent"] = pd.Series([labels.get(key_id) for key_id in frame["parent_key_id"]], frame.index, dtype=object)
    return frame


def _before(tables: Tables, model_set: str, started: Mapping[str, Any]) -> Before | None:
    """Return the run of the same scope that finished last before a run started; one that was cleaned is none."""
    where: Where = {"model_set": [model_set], "event": ["finished"], "scope": [started["scope"]]}
    finished = tables.read(RUN, columns=["run_id", "at"], where=where).sort_by([("at", "descending")]).to_pylist()
    for row in finished:
        if row["at"] > started["at"] or row["run_id"] == started["run_id"]:
            continue
        try:
            check_not_cleaned(tables, model_set, row["run_id"])
        except StateError:
            return None
        return _read_before(tables, model_set, row["run_id"])
    return None


def _read_before(tables: Tables, model_set: str, run_id: str) -> Before:
    where: Where = {"model_set": [model_set], "run_id": [run_id], "event": ["started"]}
    started = tables.read(RUN, where=where).to_pylist()[0]
    rows = showing.run_rows(tables, model_set, run_id)
    return Before(run_id, started, keys_frame(rows, dict(started["key_kinds"] or ())).set_index("key_id"))


def read_histories(tables: Tables, model_set: str, key_ids: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Return of each key its rows of all runs, oldest first: the manifest's columns, and `at`, when the run started."""
    where: Where = {"model_set": [model_set], "key_id": list(key_ids)}
    rows: pd.DataFrame = tables.read(MANIFEST, columns=_OF_HISTORY, where=where).to_pandas()
    rows = rows.drop_duplicates(["run_id", "key_id"])
    for name in ("metrics", "baseline_metrics"):
        rows[name] = pd.Series([{} if v is None else dict(v) for v in rows[name]], rows.index, dtype=object)
    runs = read_runs(tables, model_set).select(["run_id", "at"]).to_pandas().drop_duplicates("run_id")
    dated = rows.merge(runs, on="run_id").sort_values("at", kind="stable")
    return {str(key_id): of_key for key_id, of_key in dated.groupby("key_id")}
