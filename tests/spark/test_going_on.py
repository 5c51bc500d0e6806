"""Runs that go on, lists of keys, and sources that look half-loaded, on real sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from group_models import api, releasing, targets
from group_models.cli import main
from group_models.errors import DataError, SpecError, StateError
from group_models.fakes import MemoryTables
from group_models.keys import key_id
from group_models.loading import load_spec
from group_models.ports import SparkSession
from group_models.tables import MANIFEST, PLAN, RUN, STORE

MODEL_SET = "zrl.ml.going"
TWO_WAVES = {"slots": 1, "wave_s": 0.0001}


def rows(factors: Mapping[str | None, float], count: int = 10, missing: int = 0) -> pa.Table:
    """Return rows on the line y = factor * x per carrier; of so many of them feature `z` is missing."""
    keys = [(carrier, i) for carrier in factors for i in range(count)]
    return pa.table(
        {
            "carrier": pa.array([carrier for carrier, _ in keys], pa.string()),
            "stop": pa.array([1 for _ in keys], pa.int32()),
            "x": pa.array([float(i) for _, i in keys], pa.float64()),
            "z": pa.array([None if i < missing else 1.0 for _, i in keys], pa.float64()),
            "y": pa.array([factors[carrier] * i for carrier, i in keys], pa.float64()),
        }
    )


def spec(source: Any, warehouse: Any, **changes: Any) -> dict[str, Any]:
    return {
        "model_set": MODEL_SET,
        "source": source,
        "keys": ["carrier", "stop"],
        "target": "y",
        "features": ["x", "z"],
        "estimator": "ridge",
        "holdout": {"by": "none"},
        "limits": {"min_rows": 5},
        "compute": {"slots": 2},
        "warehouse": str(warehouse),
        **changes,
    }


def statuses(found: list[dict[str, Any]]) -> dict[str | None, str]:
    return {row["key"]["carrier"]: row["status"] for row in found}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tables in memory, of which the appends of one's choice fail."""

    def of(**fail_on: Any) -> MemoryTables:
        tables = MemoryTables(**fail_on)
        monkeypatch.setattr(targets, "tables_of", lambda *_: tables)
        return tables

    return of


def died_after_one_wave(spark: SparkSession, memory: Any, source: Any, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Return the tables of a run `night` of two keys that died after its first wave, and its spec."""
    tables = memory(fail_on={5: "raise"})
    asked = spec(source, "unused", compute=TWO_WAVES, **changes)
    with pytest.raises(StateError, match="append 5 was told to"):
        api.train(asked, spark=spark, run_id="night")
    assert tables.read(STORE).num_rows == 1
    return tables, asked


def events(tables: Any) -> list[str]:
    return tables.read(RUN).sort_by("at")["event"].to_pylist()


def test_other_data_stop_a_run_that_goes_on_until_they_are_accepted(any_spark: SparkSession, memory: Any):
    tables, asked = died_after_one_wave(any_spark, memory, any_spark.createDataFrame(rows({"A": 1.0, "B": 2.0})))
    (done,) = tables.read(STORE)["key_id"].to_pylist()
    other = {**asked, "source": any_spark.createDataFrame(rows({"A": 3.0, "B": 4.0, "C": 5.0}))}
    with pytest.raises(
        StateError, match=r"other data: 1 of 1 keys still .* \(carrier=.*\); 1 keys are new \(carrier=C"
    ):
        api.train(other, spark=any_spark, resume="night")
    assert (events(tables), tables.read(STORE).num_rows) == (["started", "planned"], 1)
    run = api.train(other, spark=any_spark, resume="night", accept_changes=True)
    assert run.counts == {"trained": 2}
    assert events(tables) == ["started", "planned", "accepted", "finished"]
    (accepted,) = tables.read(RUN, where={"event": ["accepted"]}).to_pylist()
    assert accepted["changes"].startswith("1 of 1 keys still to be trained have other data (carrier=")
    known = tables.read(MANIFEST).to_pylist()
    assert {row["key_id"]: row["data_fingerprint"] is not None for row in known if row["key_id"] == done} == {
        done: True
    }
    assert [row["data_fingerprint"] for row in known if row["key_id"] != done] == [None]
    # The first wave's key has other data by now, the second one's model is of unknown data.
    night = api.train(other, spark=any_spark, accept_changes=True)
    assert night.counts == {"trained": 3}
    assert api.train(other, spark=any_spark).counts == {"unchanged": 3}


def test_the_same_data_let_a_run_go_on_and_its_models_are_known(spark: SparkSession, memory: Any):
    tables, asked = died_after_one_wave(spark, memory, spark.createDataFrame(rows({"A": 1.0, "B": 2.0})))
    api.train(asked, spark=spark, resume="night")
    assert events(tables) == ["started", "planned", "finished"]
    (stats,) = (dict(s) for s in tables.read(RUN, where={"event": ["finished"]})["source_stats"].to_pylist())
    assert (stats["keys"], stats["keys with a model"]) == (2.0, 0.0)
    assert {name for name in stats if name.startswith("missing")} == {"missing x", "missing y", "missing z"}
    assert api.train(asked, spark=spark).counts == {"unchanged": 2}


def test_another_spec_stops_a_run_that_goes_on_and_can_be_accepted_but_for_its_columns(
    spark: SparkSession, memory: Any
):
    tables, asked = died_after_one_wave(spark, memory, spark.createDataFrame(rows({"A": 1.0, "B": 2.0})))
    with pytest.raises(StateError, match=r"\(features was .*\); give another run id: all models of a run share"):
        api.train({**asked, "features": ["x"]}, spark=spark, run_id="night", accept_changes=True)
    other = {**asked, "seed": 8}
    with pytest.raises(
        StateError, match=r"\(seed was 7, is 8\); give another run id, or go on with `--accept-changes`"
    ):
        api.train(other, spark=spark, run_id="night")
    guards = {"min_rows": 5, "max_failed_keys": 9}
    api.train({**other, "limits": guards}, spark=spark, run_id="night", accept_changes=True)
    assert events(tables) == ["started", "planned", "accepted", "finished"]
    fingerprints = tables.read(MANIFEST)["spec_fingerprint"]
    assert (fingerprints.null_count, len(fingerprints)) == (1, 2)
    assert api.train(other, spark=spark, run_id="night").is_repeated
    with pytest.raises(StateError, match=r"\(seed was 8, is 7\); give another run id$"):
        api.train(asked, spark=spark, run_id="night", accept_changes=True)


def test_only_a_run_that_started_is_resumed_and_one_that_committed_nothing_is_started(spark: SparkSession, memory: Any):
    tables = memory(fail_on={3: "raise"})
    asked = spec(spark.createDataFrame(rows({"A": 1.0})), "unused")
    with pytest.raises(StateError, match=r"has no run 'night' to resume \(it has none\)"):
        api.train(asked, spark=spark, resume="night")
    with pytest.raises(StateError, match="append 3 was told to"):
        api.train(asked, spark=spark, run_id="night", where="carrier = 'A'")
    assert tables.read(PLAN).num_rows == 0
    with pytest.raises(StateError, match=r"has no run 'nigth' to resume \(the newest are night\)"):
        api.train(asked, spark=spark, resume="nigth")
    run = api.train(asked, spark=spark, resume="night")
    assert (run.counts, run.is_repeated) == ({"trained": 1}, False)
    assert tables.read(RUN)["scope"].to_pylist() == ["carrier = 'A'"] * 4
    said: list[str] = []
    again = api.train(asked, spark=spark, resume="night", say=said.append)
    assert (again.counts, again.is_repeated) == ({"trained": 1}, True)
    assert "run night finished before: nothing is trained" in said


def test_a_resumed_run_ends_on_the_command_line_as_it_did(spark: SparkSession, tmp_path: Path, capsys: Any):
    table = rows({"A": 1.0, "B": 1.0})
    endless = pa.compute.if_else(pa.compute.equal(table["carrier"], "B"), float("inf"), table["x"])
    pq.write_table(table.set_column(table.column_names.index("x"), "x", endless), tmp_path / "rows.parquet")
    limits = {"min_rows": 5, "max_failed_keys": 0}
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec({"path": "rows.parquet"}, "warehouse", limits=limits)), encoding="utf-8")
    assert main(["train", str(file), "--run-id", "night"]) == 4
    assert main(["train", str(file), "--resume", "night"]) == 4
    assert "finished before: nothing is trained" in capsys.readouterr().err
    assert main(["train", str(file), "--resume", "night", "--failed-only"]) == 1
    assert "leave out failed_only" in capsys.readouterr().err
    (tmp_path / "keys.csv").write_text("carrier,stop\nA,1\nQ,9\n", encoding="utf-8")
    assert main(["train", str(file), "--keys", str(tmp_path / "keys.csv"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["counts"] == {"trained": 1}
    assert "1 of 2 keys asked for are not in the data and have no model: carrier=Q, stop=9\n" in err
    assert main(["plan", str(file), "--failed-only", "--retrain-all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == []


LISTED = [(None, 1), ("null", 1), ("", 1), ("Ünï", 1), ("absent", 1), ("UA", 2**40)]


def test_a_list_of_keys_is_a_scope_nulls_included(any_spark: SparkSession, tmp_path: Path):
    carriers = ["UA", "AA", None, "null", "", "Ünï"]
    asked = spec(any_spark.createDataFrame(rows(dict.fromkeys(carriers, 1.0))), tmp_path)
    said: list[str] = []
    run = api.train(asked, keys=LISTED, spark=any_spark, run_id="some", say=said.append)
    assert statuses(api.show(asked, run_id="some")) == dict.fromkeys([None, "null", "", "Ünï"], "trained")
    absent = "carrier=absent, stop=1; carrier=UA, stop=1099511627776"
    assert f"2 of 6 keys asked for are not in the data and have no model: {absent}" in said
    assert run.release_id is not None
    again = api.train(asked, keys=list(reversed(LISTED)), spark=any_spark, run_id="some")
    assert again.is_repeated
    with pytest.raises(StateError, match=r"was used for the scope keys: 6 .*, now it is keys: 1 "):
        api.train(asked, keys=LISTED[:1], spark=any_spark, run_id="some")
    ids = [key_id(("null", 1)), key_id((None, 1))]
    assert api.plan(asked, keys=ids, spark=any_spark).decisions() == {"unchanged": 2}
    assert api.plan(asked, keys=ids, retrain_all=True, spark=any_spark).decisions() == {"whole": 2}
    with pytest.raises(SpecError, match="no published run knows a key of this id"):
        api.plan(asked, keys=[key_id(("AA", 1))], spark=any_spark)


def test_a_run_of_a_list_goes_on_from_its_plan_without_the_list(spark: SparkSession, memory: Any):
    tables = memory(fail_on={5: "raise"})
    asked = spec(spark.createDataFrame(rows({"A": 1.0, "B": 2.0, "C": 3.0})), "unused", compute=TWO_WAVES)
    with pytest.raises(StateError, match="append 5 was told to"):
        api.train(asked, keys=[("A", 1), ("B", 1)], spark=spark, run_id="night")
    run = api.train(asked, spark=spark, resume="night")
    assert run.counts == {"trained": 2}
    assert {dict(key)["carrier"] for key in tables.read(MANIFEST)["key"].to_pylist()} == {"A", "B"}
    assert tables.read(RUN)["scope"].unique().to_pylist() == [tables.read(RUN)["scope"][0].as_py()]


def test_a_source_that_looks_half_loaded_is_refused_by_name_and_the_same_run_id_trains_later(
    any_spark: SparkSession, tmp_path: Path
):
    def of(table: pa.Table, **limits: Any) -> dict[str, Any]:
        return spec(any_spark.createDataFrame(table), tmp_path, limits={"min_rows": 5, **limits})

    whole = dict.fromkeys("ABCDE", 1.0)
    api.train(of(rows(whole)), spark=any_spark, run_id="one")
    tables = targets.open_tables(load_spec(of(rows(whole))))
    (stats,) = (dict(s) for s in tables.read(RUN, where={"event": ["finished"]})["source_stats"].to_pylist())
    wanted = {"rows": 50.0, "usable rows": 50.0, "keys": 5.0, "keys with a model": 0.0}
    assert stats == {**wanted, "missing x": 0.0, "missing y": 0.0, "missing z": 0.0}
    half = rows(dict.fromkeys("ABC", 2.0), count=5, missing=2)
    notes = api.plan(of(half), spark=any_spark).notes
    assert [note.partition(": it")[0] for note in notes][1:2] == ["`train` refuses the source"]
    assert len(notes) == 3
    with pytest.raises(DataError, match=r"max_vanished_share 20%; .* 70.0% fewer .*; 'z' is missing in 40.0%"):
        api.train(of(half), spark=any_spark, run_id="two")
    with pytest.raises(DataError, match=r"looks half-loaded: 'z' is missing in 40.0% of the rows, in run one in 0.0%"):
        api.train(of(half, max_vanished_share=1, max_lost_rows_share=1), spark=any_spark, run_id="two")
    assert (tables.read(PLAN, where={"run_id": ["two"]}).num_rows, len(releasing.list_releases(of(half)))) == (0, 1)
    run = api.train(of(rows(dict.fromkeys("ABCDE", 2.0))), spark=any_spark, run_id="two")
    assert (run.counts, run.release_id is not None) == ({"trained": 5}, True)
    accepted = api.train(of(half), spark=any_spark, run_id="three", accept_changes=True)
    assert accepted.counts == {"trained": 3, "vanished": 2}
    (row,) = tables.read(RUN, where={"event": ["accepted"]}).to_pylist()
    assert (row["run_id"], "max_vanished_share" in row["changes"]) == ("three", True)
    assert api.train(of(half), spark=any_spark).counts == {"unchanged": 3, "vanished": 2}


def test_a_scope_is_compared_with_the_last_run_of_its_own(spark: SparkSession, tmp_path: Path):
    for factor in (1.0, 2.0):
        asked = spec(spark.createDataFrame(rows(dict.fromkeys("ABCDE", factor))), tmp_path)
        for where in (None, "carrier = 'A'"):
            api.train(asked, where=where, spark=spark, retrain_all=True)
    empty = spec(spark.createDataFrame(rows({"B": 3.0})), tmp_path)
    with pytest.raises(DataError, match=r"it has no rows, and 1 keys had models before"):
        api.train(empty, where="carrier = 'A'", spark=spark)


def test_an_age_limit_of_the_newest_row_needs_a_time_column(spark: SparkSession, tmp_path: Path):
    frame = spark.createDataFrame(rows({"A": 1.0})).selectExpr("*", "timestamp'2020-01-01' at")
    asked = spec(frame, tmp_path, limits={"min_rows": 5, "max_staleness_hours": 24})
    with pytest.raises(SpecError, match="max_staleness_hours: needs a time_column"):
        api.train(asked, spark=spark)
    with pytest.raises(DataError, match=r"its newest row \(2020-01-01 00:00:00\) is .* hours old: over limits"):
        api.train({**asked, "time_column": "at"}, spark=spark)
