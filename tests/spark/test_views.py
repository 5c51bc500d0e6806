"""The views, as queries over rows that Spark holds: the live set is that of the fold, the rest worked out by hand."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from group_models.adapters.view_sql import VIEWS, names_in
from group_models.live.releases import runs_to_read
from group_models.ports import SparkSession
from group_models.tables import MANIFEST, RELEASE, RUN
from tests.unit.histories import COLUMNS, EPOCH, KEYS, OUTCOMES, happen
from tests.unit.test_retention import Cleaned, models_of

HISTORIES = 20
ALIASES = ("champion", "challenger")
ACTS = ("start", "night", "night", "begin", "end", "publish", "publish", "rollback", "adopt", "pin", "unpin", "clean")


def some_history(seed: int) -> Cleaned:
    """Return what one model set may have gone through."""
    rng, history = random.Random(seed), Cleaned()  # noqa: S311 - a test's
    for act in rng.choices(ACTS, k=rng.randint(5, 40)):
        scope, alias = rng.choice([None, None, "ua", "dl"]), rng.choice(["champion", *ALIASES])
        if act == "clean":
            history.clean(rng.randint(1, 3), dt.timedelta(days=rng.choice([0, 8])))
        elif act in ("start", "night", "begin", "end"):
            happen(history, (act, scope, tuple(rng.choice(OUTCOMES) for _ in KEYS)))
        else:
            happen(history, (act, alias, rng.choice([rng.randint(-4, -1), rng.randint(0, 99)])))
    return history


def rows_of(history: Cleaned, model_set: str) -> dict[str, list[dict[str, Any]]]:
    """Return a history as rows of the tables."""
    started = [
        {"run_id": run.run_id, "event": "started", "at": run.started_at, "base_release": run.base_release,
         "scope": None if run.is_full else "carrier"}
        for run in history.runs.values()
    ]  # fmt: skip
    outcomes = [{**dict(zip(COLUMNS, row, strict=True)), "level": "k", "key": [("k", row[1])]} for row in history.rows]
    log = [release.row() for release in history.log]
    rows = {RUN.name: started, MANIFEST.name: outcomes, RELEASE.name: log}
    return {name: [{**row, "model_set": model_set} for row in of_table] for name, of_table in rows.items()}


@pytest.fixture
def query(either_spark: SparkSession) -> Iterator[Any]:
    """Return what the views give over tables with these rows."""
    made: list[str] = []

    def make(name: str, frame: Any) -> None:
        frame.createOrReplaceTempView(name)
        made.append(name)

    def given(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
        for table in (RUN, MANIFEST, RELEASE):
            make(table.name, either_spark.createDataFrame(table.rows(rows.get(table.name, []))))
        names = names_in(str)
        for view in VIEWS:
            make(view.name, either_spark.sql(view.query(names)))
        return lambda name: [row.asDict() for row in either_spark.table(name).collect()]

    yield given
    for name in made:
        either_spark.catalog.dropTempView(name)


def test_the_live_set_is_that_of_the_fold_whatever_happened(query: Any):
    histories = {f"m{seed}": some_history(seed) for seed in range(HISTORIES)}
    rows: dict[str, list[dict[str, Any]]] = {}
    for model_set, history in histories.items():
        for name, more in rows_of(history, model_set).items():
            rows.setdefault(name, []).extend(more)
    found = {(row["model_set"], row["alias"], row["key_id"]): row for row in query(rows)("group_model_live")}
    expected: dict[tuple[str, str, str], tuple[str, bool]] = {}
    for model_set, history in histories.items():
        for alias in ALIASES:
            if history.is_kept(alias, None):
                live = history.folded(alias, None, runs_to_read(history.log, history.runs, alias))
                pinned = dict(zip(live["key_id"], live["is_pinned"], strict=True))
                of_alias = {(model_set, alias, key): (run, pinned[key]) for key, run in models_of(live).items()}
                expected |= of_alias
            else:
                found = {place: row for place, row in found.items() if place[:2] != (model_set, alias)}
    assert len(expected) > 3 * HISTORIES
    assert any(is_pinned for _, is_pinned in expected.values())
    assert {place: (row["model_run_id"], row["is_pinned"]) for place, row in found.items()} == expected


def outcome(run_id: str, key: str, status: str, serves: str, **more: Any) -> dict[str, Any]:
    model = {"new": run_id, "previous": "r1"}.get(serves)
    return {"model_set": "m", "run_id": run_id, "key_id": key, "key": [("k", key)], "level": "k", "status": status,
            "serves": serves, "model_run_id": model, **more}  # fmt: skip


def test_dashboards_find_the_worst_keys_the_failures_by_cause_and_the_newest_outcomes_and_run(query: Any):
    day = {name: EPOCH + dt.timedelta(days=i) for i, name in enumerate(("r1", "r2", "r3"))}
    run = {"model_set": "m", "scope": None, "spec": json.dumps({"metric": "rmse"})}
    runs = [{**run, "run_id": name, "event": "started", "at": at} for name, at in day.items()]
    ended = {**run, "run_id": "r2", "event": "finished", "at": day["r3"], "counts": [("trained", 1)], "refusal": "no"}
    publish = {"model_set": "m", "alias": "champion", "action": "publish"}
    log = [{**publish, "release_id": name, "run_id": name, "at": day["r3"]} for name in ("r1", "r2")]
    raised = {"error_type": "ValueError", "error_stage": "fit"}
    measured = [
        {"metrics": [("mae", 9.0), ("rmse", error)], "baseline_metrics": [("rmse", 7.0), ("parent_rmse", 6.0)]}
        for error in (2.0, 5.0, 3.0)
    ]
    outcomes = [
        outcome("r1", "a", "trained", "new", **measured[0]),
        outcome("r1", "b", "trained", "new", **measured[1]),
        outcome("r1", "c", "trained", "new"),
        outcome("r2", "a", "trained", "new", **measured[2]),
        outcome("r2", "b", "failed", "previous", **raised, error_message="b is odd"),
        outcome("r2", "c", "failed", "previous", **raised, error_message="c is odd"),
        outcome("r2", "d", "timed_out", "none", reason="took 9 s"),
    ]
    view = query({RUN.name: [*runs, ended], RELEASE.name: log, MANIFEST.name: outcomes})
    worst = sorted((row["place"], row["key"]["k"], row["metric"], row["error"]) for row in view("group_model_worst"))
    assert worst == [(1, "b", "rmse", 5.0), (2, "a", "rmse", 3.0)]
    assert {(row["median_error"], row["parent_error"]) for row in view("group_model_worst")} == {(7.0, 6.0)}
    names = ("status", "error_type", "error_stage", "keys", "example_key_id", "example_message")
    failures = {tuple(row[name] for name in names) for row in view("group_model_failure")}
    assert failures == {
        ("failed", "ValueError", "fit", 2, "b", "b is odd"),
        ("timed_out", None, None, 1, "d", "took 9 s"),
    }
    last = {row["key_id"]: (row["run_id"], row["status"]) for row in view("group_model_last_outcome")}
    assert last == {
        "a": ("r2", "trained"), "b": ("r2", "failed"), "c": ("r2", "failed"), "d": ("r2", "timed_out"),
    }  # fmt: skip
    (newest,) = view("group_model_last_run")
    assert (newest["run_id"], newest["finished_at"]) == ("r3", None), "it has not ended"
