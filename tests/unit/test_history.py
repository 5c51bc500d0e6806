"""What the tables know of earlier runs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd

from group_models.fakes import MemoryTables
from group_models.live.history import read_history, read_last_run
from group_models.live.manifest import STORE_COLUMNS, RunIdentity, compose
from group_models.live.sets import Live
from group_models.ports import Commit
from group_models.tables import MANIFEST, PLAN, RUN, STORE

NOW = dt.datetime(2026, 3, 10, tzinfo=dt.UTC)


def write(tables: MemoryTables, run_id: str, day: int, rows: list[dict[str, Any]], **finished: Any) -> None:
    """Write a run of these manifest rows that started and finished on a day of March."""
    at = dt.datetime(2026, 3, day, tzinfo=dt.UTC)
    usual = {"model_set": "m", "run_id": run_id, "level": "k", "serves": "none", "finished_at": at}
    manifest = MANIFEST.rows({**usual, "key": [("k", row["key_id"])], **row} for row in rows)
    tables.append(MANIFEST, manifest, Commit("m", run_id, 0))
    for number, event in enumerate(("started", "finished")):
        row = {"model_set": "m", "run_id": run_id, "event": event, "at": at, "versions": {"numpy": f"2.{day}"}}
        tables.append(RUN, RUN.rows([{**row, **finished}]), Commit("m", run_id, number))


def trained(key_id: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "key_id": key_id, "status": "trained", "data_fingerprint": f"{key_id} {seconds}", "spec_fingerprint": "s",
        "usable_rows": 100, "rows_used": 90, "fit_seconds": seconds, "model_bytes": 5, "rows": 110,
        "policy": "salted", "n_parts": 3, **more,
    }  # fmt: skip


def test_a_model_is_known_from_its_own_run_and_costs_from_the_newest_fit():
    tables = MemoryTables()
    write(tables, "r1", 1, [trained("a", 1.0), trained("b", 1.0), trained("c", 1.0)])
    late = {"status": "timed_out", "data_fingerprint": "later", "rows_used": None}
    write(tables, "r2", 2, [trained("a", 2.0), trained("b", 9.0, **late), {**trained("c", 3.0), "status": "failed"}])
    keys = pd.DataFrame(
        {"model_run_id": ["r2", "r1", "r1", None], "newest_run_id": ["r2", "r2", "r2", "r2"]}, index=list("abcd")
    )
    found = read_history(tables, "m", Live(keys, {}, {}), versions={}, now=NOW)
    known = found.keys.astype(object).where(found.keys.notna(), None)
    assert known["data_fingerprint"].to_dict() == {"a": "a 2.0", "b": "b 1.0", "c": "c 1.0", "d": None}
    assert known["trained_rows"].to_dict() == {"a": 100, "b": 100, "c": 100, "d": None}
    assert known["trained_at"]["b"] == pd.Timestamp(2026, 3, 1, tz="UTC")
    assert known["fit_seconds"].to_dict() == {"a": 2.0, "b": 1.0, "c": 1.0, "d": None}
    assert known["fit_rows"].to_dict() == {"a": 90, "b": 90, "c": 90, "d": None}
    assert known["fit_policy"].to_dict() == {"a": "salted", "b": "salted", "c": "salted", "d": None}
    assert known["fit_parts"].to_dict() == {"a": 3, "b": 3, "c": 3, "d": None}
    assert known["fit_run_id"].to_dict() == {"a": "r2", "b": "r1", "c": "r1", "d": None}
    assert found.run_versions == {"r1": {"numpy": "2.1"}, "r2": {"numpy": "2.2"}}


def test_what_a_run_took_that_was_not_published_is_known_too_and_nothing_else_of_it():
    tables = MemoryTables()
    write(tables, "r1", 1, [trained("a", 1.0)])
    write(tables, "r2", 2, [trained("a", 2.0), trained("b", 3.0)])
    keys = pd.DataFrame({"model_run_id": ["r1"], "newest_run_id": ["r1"]}, index=["a"])
    known = read_history(tables, "m", Live(keys, {}, {}), versions={}, now=NOW).keys
    assert known["fit_seconds"].to_dict() == {"a": 2.0, "b": 3.0}
    assert known["data_fingerprint"].fillna("").to_dict() == {"a": "a 1.0", "b": ""}
    assert known["model_run_id"].fillna("").to_dict() == {"a": "r1", "b": ""}


def test_a_night_that_was_not_published_is_known_through_scoped_runs_after_it():
    tables = MemoryTables()
    write(tables, "r1", 1, [trained("a", 1.0), trained("b", 1.0)], counts=[("trained", 2)])
    write(tables, "r2", 2, [trained("a", 2.0), trained("b", 2.0)], counts=[("trained", 2)])
    write(tables, "r3", 3, [trained("b", 3.0)], counts=[("trained", 1)])
    keys = pd.DataFrame({"model_run_id": ["r1", "r1"], "newest_run_id": ["r1", "r1"]}, index=["a", "b"])
    known = read_history(tables, "m", Live(keys, {}, {}), versions={}, now=NOW).keys
    assert known["fit_seconds"].to_dict() == {"a": 2.0, "b": 3.0}
    # What has more fits than two of each key is not read: a million keys and a year of nights fit into no memory.
    write(tables, "r4", 4, [trained("b", 4.0)], counts=[("trained", 2)])
    known = read_history(tables, "m", Live(keys, {}, {}), versions={}, now=NOW).keys
    assert known["fit_seconds"].to_dict() == {"a": 1.0, "b": 4.0}


def test_without_runs_nothing_is_known():
    keys = pd.DataFrame({"model_run_id": [None], "newest_run_id": [None]}, index=["a"])
    assert read_history(MemoryTables(), "m", Live(keys, {}, {}), versions={}, now=NOW).keys.empty


def test_the_last_run_of_a_scope_is_the_one_of_that_scope_that_finished_last():
    tables = MemoryTables()
    gone = {"key_id": "z", "status": "vanished", "rows": 0}
    write(tables, "r2", 2, [trained("a", 1.0), trained("b", 1.0), gone], source_stats={"rows": 220.0})
    write(tables, "r1", 1, [trained("a", 1.0)], source_stats={"rows": 110.0})
    write(tables, "r3", 3, [trained("a", 1.0)], scope="k = 'a'")
    last, scoped = read_last_run(tables, "m", None), read_last_run(tables, "m", "k = 'a'")
    assert (last.run_id, last.stats, last.keys) == ("r2", {"rows": 220.0}, {"a", "b"})
    assert (scoped.run_id, scoped.stats, scoped.keys) == ("r3", {}, {"a"})
    assert read_last_run(tables, "m", "k = 'b'") is None


def test_models_of_accepted_changes_claim_no_data_and_no_spec():
    plan = PLAN.rows(
        {"model_set": "m", "run_id": "r", "key_id": key, "key": [("k", key)], "level": "k", "decision": decision,
         "data_fingerprint": f"data of {key}"}
        for key, decision in {"before": "whole", "after": "whole", "kept": "unchanged"}.items()
    )  # fmt: skip
    usual = {"model_set": "m", "run_id": "r", "wave": 0, "part": -1, "format": 1, "status": "trained"}
    numbers = {"before": 0, "after": 1000}
    store = STORE.rows({**usual, "key_id": key, "number": number} for key, number in numbers.items())
    store = store.select(list(STORE_COLUMNS))
    claims = {}
    for stored_before in (None, frozenset({0}), frozenset()):
        run = RunIdentity("m", "r", "spec", stored_before=stored_before)
        rows = compose(plan, store, {"kept": "older"}, run, ages={"kept": 2.0}).to_pylist()
        claims[stored_before] = {
            row["key_id"]
            for row in rows
            if row["status"] == "trained" and row["data_fingerprint"] and row["spec_fingerprint"]
        }
    assert claims == {None: {"before", "after"}, frozenset({0}): {"before"}, frozenset(): set()}
    (kept,) = (row for row in rows if row["key_id"] == "kept")
    assert (kept["status"], kept["serves"], kept["model_run_id"]) == ("unchanged", "previous", "older")
    assert kept["reason"] == "its model is 2.0 days old"
