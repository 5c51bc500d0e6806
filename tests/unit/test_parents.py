"""Which parent serves a key of a live set: shown, resolved for scoring, and counted."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from group_models.errors import DataError
from group_models.fakes import MemoryTables
from group_models.keys import texts_id
from group_models.live.parents import read_parents, serving_key
from group_models.live.sets import Live, read_levels, read_live, read_run
from group_models.ports import LOG_OWNER, Commit
from group_models.reporting.showing import newest_rows
from group_models.serving.bundles import Bundle, write_bundle
from group_models.serving.resolving import check_missing, plan_scores
from group_models.serving.statuses import SCORE_STATUSES
from group_models.spec import Scoring
from group_models.tables import MANIFEST, RELEASE, RUN, STORE

SET = "c.s.m"
KINDS = {"k": "string", "s": "integer"}
NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
UA, AA, ALL = {"k": "UA"}, {"k": "AA"}, {}
OWN, SMALL, FAILED = {"k": "UA", "s": "1"}, {"k": "UA", "s": "2"}, {"k": "AA", "s": "1"}


def id_of(texts: dict[str, Any]) -> str:
    return texts_id(texts, KINDS)


def tables_of(levels: Any = (("k",), ()), lost: dict[str, Any] | None = None) -> MemoryTables:
    """Return tables of one published run: a key and two parents with a model, and two keys and a parent without.

    Of one that is `lost`, the store has no model.
    """
    tables = MemoryTables()
    shared = {"model_set": SET, "run_id": "r1"}
    started = {**shared, "event": "started", "at": NOW, "key_kinds": KINDS, "feature_kinds": {"x": "numeric"}}
    add(tables, RUN, [{**started, "spec": json.dumps({"levels": levels})}])
    rows = [
        (OWN, "trained"),
        (SMALL, "too_small"),
        (FAILED, "failed"),
        (UA, "trained"),
        (AA, "failed"),
        (ALL, "trained"),
    ]
    for table in (MANIFEST, STORE):
        add(tables, table, [row_of(key, status, table) for key, status in rows if table is MANIFEST or key != lost])
    publish = {"model_set": SET, "release_id": "x", "alias": "champion", "action": "publish", "run_id": "r1", "at": NOW}
    tables.append(RELEASE, RELEASE.rows([publish]), Commit(SET, LOG_OWNER, 0))
    return tables


def row_of(key: dict[str, Any], status: str, table: Any) -> dict[str, Any]:
    row = {"model_set": SET, "run_id": "r1", "key_id": id_of(key), "status": status}
    if table is STORE:
        return {**row, "wave": 0, "number": 0, "part": -1, "format": 1}
    serves = "new" if status == "trained" else "none"
    level = ",".join(key) or "global"
    run_id = "r1" if status == "trained" else None
    return {
        **row,
        "level": level,
        "key": key,
        "serves": serves,
        "model_run_id": run_id,
        "finished_at": NOW,
        "sha256": level,
    }


def add(tables: MemoryTables, table: Any, rows: list[dict[str, Any]]) -> None:
    mapped = [{n: list(v.items()) if isinstance(v, dict) else v for n, v in row.items()} for row in rows]
    tables.append(table, table.rows(mapped), Commit(SET, "r1", 0))


def counts(*keys: dict[str, Any]) -> pa.Table:
    return pa.table({
        "k0": [key["k"] for key in keys], "k1": [key["s"] for key in keys], "key_id": [id_of(key) for key in keys],
        "key": pa.array([list(key.items()) for key in keys], pa.map_(pa.string(), pa.string())),
        "rows": [1] * len(keys),
    })  # fmt: skip


def statuses(live: Live, *keys: dict[str, Any], **options: Any) -> list[tuple[str, str | None]]:
    plan = plan_scores(counts(*keys), live, now=NOW, max_age_days=None, **options)
    planned = [SCORE_STATUSES[code] for code in plan.keys["planned"].to_pylist()]
    return list(zip(planned, plan.keys["model_level"].to_pylist(), strict=True))


STRANGER, NEW, NULL = {"k": "UA", "s": "9"}, {"k": "B", "s": "1"}, {"k": "UA", "s": None}


def test_g1_keys_without_a_model_are_scored_by_the_most_specific_parent_that_has_one() -> None:
    live = read_live(tables_of(), SET)
    asked = (OWN, SMALL, FAILED, STRANGER, NEW, NULL)
    assert statuses(live, *asked, with_parents=True) == [
        ("scored", "k,s"), ("parent", "k"), ("parent", "global"), ("parent", "k"), ("parent", "global"),
        ("parent", "k"),
    ]  # fmt: skip
    assert statuses(live, *asked) == [
        ("scored", "k,s"), ("no_model", None), ("no_model", None), ("unseen_key", None), ("unseen_key", None),
        ("null_key", None),
    ]  # fmt: skip


def test_g1_the_status_of_the_key_itself_is_told_beside_that_of_its_parent() -> None:
    plan = plan_scores(
        counts(SMALL, FAILED, NEW), read_live(tables_of(), SET), now=NOW, max_age_days=None, with_parents=True
    )
    assert plan.keys["model_status"].to_pylist() == ["too_small", "failed", None]
    assert plan.keys["model_key"].to_pylist() == ['{"k":"UA"}', "{}", "{}"]


def test_g1_raise_names_keys_that_a_parent_could_serve() -> None:
    plan = plan_scores(counts(OWN, SMALL, NEW), read_live(tables_of(), SET), now=NOW, max_age_days=None)
    with pytest.raises(DataError, match=r"2 key\(s\) .*k=UA, s=2 \(no_model\); k=B, s=1 \(unseen_key\)"):
        check_missing(plan)


def test_a_model_that_serves_many_keys_is_one_model() -> None:
    plan = plan_scores(
        counts(SMALL, OWN, STRANGER, NULL), read_live(tables_of(), SET), now=NOW, max_age_days=None, with_parents=True
    )
    assert plan.models["key_id"].to_pylist() == [id_of(UA), id_of(OWN)]
    assert plan.keys["model_ix"].to_pylist() == [0, 1, 0, 0]
    assert plan.models["sha256"].to_pylist() == ["k", "k,s"]


def test_a_parent_that_is_too_old_or_lost_says_so() -> None:
    live = read_live(tables_of(lost=UA), SET)
    assert statuses(live, SMALL, NEW, with_parents=True) == [("model_failed", "k"), ("parent", "global")]
    later = NOW + dt.timedelta(days=9)
    plan = plan_scores(counts(NEW), live, now=later, max_age_days=5.0, with_parents=True)
    assert plan.keys["planned"].to_pylist() == [SCORE_STATUSES.index("too_old")]


def test_only_levels_of_the_newest_run_serve() -> None:
    live = read_live(tables_of(levels=[[]]), SET)
    assert statuses(live, SMALL, with_parents=True) == [("parent", "global")]
    assert statuses(read_live(tables_of(levels=[]), SET), SMALL, with_parents=True) == [("no_model", None)]
    assert read_levels(tables_of(), SET, ["r1"]).parents == (("k",), ())


def test_a_scoped_run_does_not_say_which_levels_serve_all_other_keys() -> None:
    tables = tables_of()
    for run_id, levels, scope in (("r2", [], "k = 'B'"), ("r3", [["k"]], None)):
        started = {"model_set": SET, "run_id": run_id, "event": "started", "key_kinds": list(KINDS.items())}
        at = NOW + dt.timedelta(hours=int(run_id[1]))
        started |= {"at": at, "spec": json.dumps({"levels": levels}), "scope": scope, "base_release": "x"}
        tables.append(RUN, RUN.rows([started]), Commit(SET, run_id, 0))
        row = {**row_of(NEW, "failed", MANIFEST), "run_id": run_id, "key": list(NEW.items())}
        tables.append(MANIFEST, MANIFEST.rows([row]), Commit(SET, run_id, 0))
        publish = {"model_set": SET, "release_id": run_id, "alias": "champion", "action": "publish", "run_id": run_id}
        tables.append(RELEASE, RELEASE.rows([{**publish, "at": at}]), Commit(SET, LOG_OWNER, int(run_id[1])))
        wanted = (("k",), ()) if run_id == "r2" else (("k",),)
        assert read_live(tables, SET).parents == wanted
    before = read_live(tables, SET, as_of="r2")
    assert statuses(before, SMALL, NEW, with_parents=True) == [("parent", "k"), ("parent", "global")]
    assert read_run(tables, SET, "r2").parents == ()


def test_what_is_shown_is_what_serves() -> None:
    tables = tables_of()
    rows = {row["key_id"]: row for row in newest_rows(tables, SET, read_live(tables, SET))}
    names = ("serves", "model_run_id", "parent_key_id", "parent_run_id")
    assert {
        name: tuple(rows[id_of(key)][column] for column in names)
        for name, key in (("own", OWN), ("small", SMALL), ("aa", AA))
    } == {
        "own": ("new", "r1", None, None),
        "small": ("parent", None, id_of(UA), "r1"),
        "aa": ("parent", None, id_of(ALL), "r1"),
    }


def test_the_key_that_serves_a_key_is_found_by_id_where_the_key_is_known_and_else_by_its_values() -> None:
    live = read_live(tables_of(), SET)
    assert [serving_key(live, id_of(key), None) for key in (OWN, SMALL, ALL)] == [id_of(OWN), id_of(UA), id_of(ALL)]
    assert serving_key(live, id_of(STRANGER), STRANGER) == id_of(UA)
    assert serving_key(live, id_of(STRANGER), None) is None


def test_a_run_is_scored_with_the_parents_that_its_manifest_names() -> None:
    tables = tables_of()
    scoped = {"model_set": SET, "run_id": "r2"}
    started = {
        **scoped,
        "event": "started",
        "at": NOW,
        "key_kinds": list(KINDS.items()),
        "spec": json.dumps({"levels": [["k"], []]}),
    }
    tables.append(RUN, RUN.rows([started]), Commit(SET, "r2", 0))
    row = {**row_of(SMALL, "too_small", MANIFEST), **scoped, "key": list(SMALL.items()), "serves": "parent"}
    row |= {"parent_key_id": id_of(UA), "parent_run_id": "r1"}
    tables.append(MANIFEST, MANIFEST.rows([row]), Commit(SET, "r2", 0))
    live = read_run(tables, SET, "r2")
    assert statuses(live, SMALL, STRANGER, NEW, with_parents=True) == [
        ("parent", "k"),
        ("parent", "k"),
        ("unseen_key", None),
    ]
    assert live.models() == {id_of(UA): "r1"}


def test_what_came_of_parents_is_counted_apart_from_keys() -> None:
    found = read_parents(tables_of(), SET, "r1")
    assert found.statuses == {"k": {"failed": 1, "trained": 1}, "global": {"trained": 1}}
    assert found.served == {"none": 2, "their own model": 1}
    assert found.facts() == {
        "parents": "k 2 (1 failed, 1 trained); global 1 (1 trained)", "keys served by": "2 none, 1 their own model",
    }  # fmt: skip


def test_keys_that_share_a_model_share_its_units() -> None:
    from group_models.adapters.spark_score import _of_keys, _served_alike, _Units

    plan = plan_scores(
        counts(SMALL, OWN, STRANGER, {"k": "?", "s": "1"}),
        read_live(tables_of(levels=[["k"]]), SET),
        now=NOW,
        max_age_days=None,
        with_parents=True,
    )
    one_of, groups = _served_alike(plan)
    assert (one_of.tolist(), groups.tolist()) == ([0, 1, 3], [0, 1, 0, 2])
    units = _of_keys(_Units(5, np.array([0, 2, 3, 4]), np.array([7, 8, 9, 4])), groups, np.array([4, 1, 4, 1]))
    assert lists(units) == [[7], [9], [8], [4]]


def lists(units: Any) -> list[list[int]]:
    """Return the units of each key."""
    return [units.values[a:b].tolist() for a, b in zip(units.offsets, units.offsets[1:], strict=False)]


def test_a_key_has_as_many_units_of_its_parent_as_its_rows_need() -> None:
    from group_models.adapters.spark_score import _of_keys, _Units

    of_group = _Units(14, np.array([0, 10, 14]), np.arange(14))
    rows = np.array([250, 400, 100, 700, 1, 49])
    assert lists(_of_keys(of_group, np.array([0, 1, 0, 0, 0, 0]), rows)) == [
        [0, 1, 2], [10, 11, 12, 13], [2], [3, 4, 5, 6, 7, 8, 9], [9], [9],
    ]  # fmt: skip


def test_keys_that_share_a_hot_parent_are_not_told_all_its_units_and_use_all_of_them() -> None:
    from group_models.adapters.spark_score import _of_keys, _Units

    keys, salts = 5000, 64
    rows = np.random.default_rng(0).integers(1, 1000, keys)
    groups = np.zeros(keys, dtype=np.intp)
    units = _of_keys(_Units(salts, np.array([0, salts]), np.arange(salts)), groups, rows)
    assert keys <= len(units.values) <= keys + salts
    counts = np.diff(units.offsets)
    loads = np.bincount(units.values, np.repeat(rows / counts, counts))
    assert len(loads) == salts
    assert loads.max() < 1.1 * rows.sum() / salts
    none = _of_keys(_Units(1, np.array([0]), np.array([], dtype=np.int64)), groups[:0], rows[:0])
    assert (len(none.values), none.offsets.tolist()) == (0, [0])


def test_a_predicate_is_decided_by_a_level_where_it_reads_no_other_column_or_no_null_makes_it_true() -> None:
    from group_models.adapters.spark_source import decides

    names = ["carrier", "stop", "odd `name`", "2nd_leg"]
    decided = [
        "carrier = 'UA' or stop > 3", "not (Carrier in ('stop IS NULL', 'b') and `stop` between 1 and 2)", "true",
        "carrier is null", "carrier = '2nd_leg' and stop > 30",
        "coalesce(`carrier`, 'stop') = 'stop'", "true or `odd ``name```= 1",
    ]  # fmt: skip
    left_open = [
        "stop is null", "Stop <=> 3", "coalesce(`stop`, 3) = 3", "carrier = 'UA' and if(stop = 1, true, true)",
        "`odd ``name``` is null", "2nd_leg is null", "carrier = 'UA' and 2nd_leg <=> 3",
        '"stop" is null', """carrier = "it's" or stop is null or carrier = 'its'""",
    ]  # fmt: skip
    assert [decides(where, ["carrier"], names) for where in decided] == [True] * len(decided)
    assert [decides(where, ["carrier"], names) for where in left_open] == [False] * len(left_open)
    assert all(decides(where, names, names) for where in left_open)


def test_a_router_serves_by_the_same_parents(tmp_path: Path) -> None:
    live = read_live(tables_of(), SET)
    write_bundle(tmp_path / "router.sqlite", live, Scoring(), [])
    router = Bundle(tmp_path / "router.sqlite")
    assert router.live.levels == live.levels
    frame = pd.DataFrame({"k": ["UA", "UA", "B"], "s": [1, 9, 1], "x": 1.0})
    assert router.predict(frame)["model_level"].tolist() == ["k,s", "k", "global"]
