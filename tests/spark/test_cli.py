"""The command line over a session: what each command prints, writes and ends with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from group_models import api, releasing
from group_models.cli import main
from group_models.ports import SparkSession
from tests import worlds

TRAINED = len(worlds.FITTED)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line and return its exit code, what it printed, and what it said beside it."""

    def of(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return of


@pytest.fixture
def run_json(run: Any) -> Any:
    """Run a command line with `--json`, which must end well, and return what it printed."""

    def of(*arguments: Any) -> Any:
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return of


def write_spec(folder: Path, **changes: Any) -> Path:
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(worlds.spec({"path": "rows.parquet"}, "house", **changes)), encoding="utf-8")
    return file


@pytest.fixture
def new(any_spark: SparkSession, tmp_path: Path) -> Path:
    """A spec and its rows, nothing trained yet."""
    pq.write_table(worlds.rows(), tmp_path / "rows.parquet")
    return write_spec(tmp_path)


@pytest.fixture(scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained(spark: SparkSession, _folder: Path) -> Path:
    """A spec of which runs `one` (all keys) and `two` (UA alone) are published; not to be changed."""
    file = _folder / "spec.yaml"
    if not file.exists():
        pq.write_table(worlds.rows(), _folder / "rows.parquet")
        file = write_spec(_folder)
        assert main(["train", str(file), "--run-id", "one"]) == 0
        assert main(["train", str(file), "--run-id", "two", "--where", "carrier = 'UA'", "--retrain-all"]) == 0
    return file


def test_plan_prints_the_plan_and_writes_nothing(new: Path, run: Any, run_json: Any):
    code, out, _ = run("plan", new)
    assert code == 0
    for fact in (f"9 ({TRAINED} whole, 1 too_small)", "carrier=UA, stop=1: 90 rows", "rows from 2025-"):
        assert fact in out
    told = run_json("plan", new, "--where", "carrier = 'UA'")
    assert told["summary"]["decisions"] == {"whole": 2}
    assert [key["key"] for key in sorted(told["keys"], key=lambda key: -key["rows"])] == [
        {"carrier": "UA", "stop": "1"},
        {"carrier": "UA", "stop": "2"},
    ]
    assert not (new.parent / "house").exists()


def test_train_prints_progress_a_summary_and_the_worst_keys(new: Path, run: Any):
    code, out, err = run("train", new, "--run-id", "night")
    assert code == 0
    assert "wave 1 of 1 done: 8 keys in " in err
    assert "Run night of zrl.ml.eta" in out
    assert f"{TRAINED} trained, 1 too_small" in out
    assert "to champion as " in out
    assert "Worst keys on the holdout" in out


def test_train_as_json_tells_the_run_and_a_repetition_of_it(new: Path, run_json: Any):
    told = run_json("train", new, "--run-id", "night", "--no-release")
    assert told["counts"] == {"trained": TRAINED, "too_small": 1}
    assert (told["run_id"], told["release_id"], told["refusal"], told["is_repeated"]) == ("night", None, None, False)
    again = run_json("train", new, "--run-id", "night")
    assert again["is_repeated"] is True
    assert again["timing"]["slots"] == told["timing"]["slots"]


def test_a_run_whose_release_is_refused_ends_with_4_and_says_why(connect_spark: SparkSession, tmp_path: Path, run: Any):
    table = worlds.rows({("UA", 1): 25, ("UA", 2): 25})
    is_bad = pa.compute.equal(table["stop"], 2)
    endless = pa.compute.if_else(is_bad, float("inf"), table["a"])
    table = table.set_column(table.column_names.index("a"), "a", endless)
    pq.write_table(table, tmp_path / "rows.parquet")
    spec = write_spec(tmp_path, limits={"min_rows": 10, "max_failed_keys": 0, "max_failed_share": 0.1})
    code, out, _ = run("train", spec, "--run-id", "night")
    assert code == 4
    assert "1 of 2 keys failed (1 failed): over max_failed_share 10% and max_failed_keys 0" in out
    assert run("release", "list", spec)[1].startswith("0 release(s)")
    assert run("train", spec, "--run-id", "later", "--no-release")[0] == 0
    code, _, err = run("release", "publish", spec, "--run-id", "night")
    assert (code, "--force` does" in err) == (1, True)
    assert run("release", "publish", spec, "--run-id", "night", "--force", "--note", "known")[0] == 0
    assert releasing.list_releases(spec)[0].note == "known"


def test_refused_input_ends_with_1_before_anything_is_written(new: Path, run: Any):
    for arguments, said in [
        (("--where", "a > 1"), "a scope is a SQL predicate on the key columns (carrier, stop)"),
        (("--run-id", "7th"), "a run id has letters, digits"),
    ]:
        code, _, err = run("train", new, *arguments)
        assert code == 1
        assert said in err
    assert not list((new.parent / "house").rglob("*.parquet"))


def test_a_column_that_the_source_lacks_ends_with_1_and_a_hint(any_spark: SparkSession, tmp_path: Path, run: Any):
    pq.write_table(worlds.rows(), tmp_path / "rows.parquet")
    code, _, err = run("plan", write_spec(tmp_path, features=["a", "is_fragil"], keys=["carrier", "a_stop"]))
    assert code == 1
    assert "2 mistakes" in err
    assert "no column 'is_fragil'; did you mean 'is_fragile'?" in err
    assert "no column 'a_stop'" in err


def test_show_lists_every_known_key_once(trained: Path, run: Any, run_json: Any):
    rows = {worlds.key_of(row): row for row in run_json("show", trained)}
    assert set(rows) == set(worlds.SIZES)
    assert {key: row["model_run_id"] for key, row in rows.items()} == {
        key: None if key == ("AA", 1) else "two" if key[0] == "UA" else "one" for key in worlds.SIZES
    }
    assert (rows["AA", 1]["status"], rows["AA", 1]["serves"]) == ("too_small", "none")
    assert "data" not in rows["UA", 1]
    code, out, _ = run("show", trained)
    assert code == 0
    assert out.startswith(f"9 key(s) of {trained}")
    assert "carrier=null, stop=1" in out


def test_show_can_be_narrowed_to_a_key_a_status_the_worst_and_a_run(trained: Path, run: Any, run_json: Any):
    (row,) = run_json("show", trained, "--key", "carrier=UA,stop=2")
    assert (row["key"], row["run_id"]) == ({"carrier": "UA", "stop": "2"}, "two")
    for key in (row["key_id"], '{"carrier": "UA", "stop": 2}'):
        assert run_json("show", trained, "--key", key) == [row]
    (null,) = run_json("show", trained, "--key", '{"carrier": null, "stop": 1}')
    assert null["key"] == {"carrier": None, "stop": "1"}
    assert [r["key"]["carrier"] for r in run_json("show", trained, "--status", "too_small")] == ["AA"]
    worst = run_json("show", trained, "--worst", "3")
    errors = [r["metrics"]["mae"] for r in run_json("show", trained) if r["metrics"]]
    assert [r["metrics"]["mae"] for r in worst] == sorted(errors, reverse=True)[:3]
    assert [worlds.key_of(r) for r in run_json("show", trained, "--run-id", "two")] == [("UA", 1), ("UA", 2)]
    code, out, _ = run("show", trained, "--key", "carrier=UA,stop=2")
    assert (code, "carrier=UA, stop=2" in out, "mae " in out) == (0, True, True)
    code, _, err = run("show", trained, "--key", "carrier=Q,stop=2")
    assert (code, "no published run knows key 'carrier=Q,stop=2'" in err) == (1, True)


def test_releases_are_listed_rolled_back_and_published_again(
    spark: SparkSession, tmp_path: Path, run: Any, run_json: Any
):
    pq.write_table(worlds.rows({("UA", 1): 25}), tmp_path / "rows.parquet")
    spec = write_spec(tmp_path)
    for run_id in ("one", "two"):
        assert run("train", spec, "--run-id", run_id, "--retrain-all")[0] == 0

    def serving() -> str:
        (row,) = run_json("show", spec)
        return row["model_run_id"]

    assert serving() == "two"
    code, _, err = run("release", "rollback", spec)
    first = releasing.list_releases(spec)[0].release_id
    assert (code, err.startswith(f"champion is back at release {first}")) == (0, True)
    assert serving() == "one"
    assert run("release", "publish", spec, "--run-id", "two", "--force")[0] == 0
    assert serving() == "two"
    assert run("release", "rollback", spec, "--to", first, "--note", "again")[0] == 0
    assert serving() == "one"
    code, out, _ = run("train", spec, "--run-id", "held", "--retrain-all")
    assert (code, "brought champion back to release" in out, "release publish SPEC" in out) == (4, True, True)
    assert serving() == "one"
    log = run_json("release", "list", spec)
    assert [entry["action"] for entry in log] == ["publish", "publish", "rollback", "publish", "rollback"]
    assert [entry["run_id"] for entry in log] == ["one", "two", None, "two", None]
    assert log[-1]["note"] == "again"
    assert [entry["at"] for entry in log] == sorted(entry["at"] for entry in log)


def test_a_key_is_pinned_shown_and_let_go_and_a_clean_is_told_before_it_is_done(
    spark: SparkSession, tmp_path: Path, run: Any, run_json: Any
):
    pq.write_table(worlds.rows({("UA", 1): 25, ("UA", 2): 25}), tmp_path / "rows.parquet")
    spec = write_spec(tmp_path)
    for run_id in ("one", "two", "three"):
        assert run("train", spec, "--run-id", run_id, "--retrain-all")[0] == 0
    code, _, err = run("release", "pin", spec, "--key", "carrier=UA,stop=1", "--run-id", "one", "--note", "better")
    assert (code, err.startswith("carrier=UA,stop=1 is pinned to run one for champion")) == (0, True)
    (row,) = run_json("show", spec, "--key", "carrier=UA,stop=1")
    assert (row["serves"], row["model_run_id"], row["pinned_run_id"]) == ("previous", "one", "one")
    assert "previous, pinned" in run("show", spec)[1]
    assert "key carrier=UA, stop=1 to run one" in run("release", "list", spec)[1]
    code, out, err = run("clean", spec, "--keep", "1")
    assert (code, "4 plan, 3 store, 3 manifest rows" in out, "nothing was removed" in err) == (0, True, True)
    assert run_json("clean", spec, "--keep", "1")["is_done"] is False
    told = run_json("clean", spec, "--keep", "1", "--yes")
    assert (told["is_done"], list(told["removed"]), told["kept_keys"]) == (True, ["one", "two"], {"one": {"pinned": 1}})
    assert run_json("clean", spec, "--keep", "1")["removed"] == {}
    assert {row["model_run_id"] for row in run_json("show", spec)} == {"one", "three"}
    code, _, err = run("release", "rollback", spec, "--to", releasing.list_releases(spec)[0].release_id)
    assert (code, "is before the oldest release of champion that is left" in err) == (1, True)
    code, _, err = run("release", "publish", spec, "--run-id", "two", "--force")
    assert (code, "only what still served is left of run two" in err) == (1, True)
    assert run("release", "unpin", spec, "--key", '{"carrier": "UA", "stop": 1}')[0] == 0
    assert {row["model_run_id"] for row in run_json("show", spec)} == {"three"}


def test_an_exported_model_is_loaded_by_mlflow_and_predicts_as_scoring_does(trained: Path, tmp_path: Path, run: Any):
    import mlflow.sklearn

    target = tmp_path / "model"
    code, _, err = run("export", trained, "--key", "carrier=UA,stop=1", target)
    assert code == 0
    assert f"wrote {target}" in err
    frame = worlds.pandas_rows(worlds.rows())
    ua = frame[(frame["carrier"] == "UA") & (frame["stop"] == 1)]
    predicted = mlflow.sklearn.load_model(str(target)).predict(worlds.inputs(ua, worlds.NUMERIC))
    assert predicted == pytest.approx(api.score(ua, trained)["prediction"].to_numpy(), abs=1e-9)
    code, _, err = run("export", trained, "--key", "carrier=UA,stop=1", target)
    assert (code, "is not an empty directory" in err) == (1, True)
    code, _, err = run("export", trained, "--key", "carrier=AA,stop=1", tmp_path / "none")
    assert (code, "has no model: its status is too_small" in err) == (1, True)


def test_score_writes_errors_on_appends_to_and_overwrites_its_output(
    any_spark: SparkSession, trained: Path, tmp_path: Path, run: Any, run_json: Any
):
    rows, output = trained.parent / "rows.parquet", tmp_path / "scored"
    ask = ("score", trained, "--input", rows, "--output", output)
    count = worlds.rows().num_rows
    told = run_json(*ask)
    assert told == {
        "output": str(output),
        "rows": count,
        "score_status": {"scored": count - worlds.SIZES["AA", 1] - 1, "no_model": worlds.SIZES["AA", 1] + 1},
    }
    found = pd.read_parquet(output).set_index("row_id").sort_index()
    direct = api.score(worlds.pandas_rows(worlds.rows()), trained).set_index("row_id").sort_index()
    pd.testing.assert_series_equal(found["prediction"], direct["prediction"], rtol=0, atol=1e-9)
    code, _, err = run(*ask)
    assert (code, f"{output} exists; say --mode append or --mode overwrite" in err) == (1, True)
    appended = run_json(*ask, "--mode", "append")
    assert (appended["rows"], appended["score_status"]) == (count, told["score_status"])
    assert len(pd.read_parquet(output)) == 2 * count
    assert run(*ask, "--mode", "overwrite", "--run-id", "two")[0] == 0
    again = pd.read_parquet(output)
    assert len(again) == count
    assert again["prediction"].notna().sum() == worlds.SIZES["UA", 1] + worlds.SIZES["UA", 2] + 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scored"]


def test_score_never_writes_over_its_input(trained: Path, run: Any):
    rows = trained.parent / "rows.parquet"
    code, _, err = run("score", trained, "--input", rows, "--output", rows, "--mode", "overwrite")
    assert (code, f"error: {rows} " in err) == (1, True)
    assert pq.read_table(rows).num_rows == worlds.rows().num_rows


def test_score_can_refuse_rows_without_a_model_and_add_a_prefix(trained: Path, tmp_path: Path, run: Any):
    ask = ("score", trained, "--input", trained.parent / "rows.parquet", "--output", tmp_path / "scored")
    code, _, err = run(*ask, "--on-missing", "raise")
    assert (code, "1 key(s) of the input, 8 rows, have no model" in err) == (1, True)
    assert not (tmp_path / "scored").exists()
    assert run(*ask, "--prefix", "p_")[0] == 0
    assert {"p_prediction", "p_score_status", "p_model_run_id"} < set(pd.read_parquet(tmp_path / "scored").columns)


def test_score_reads_and_writes_tables(any_spark: SparkSession, trained: Path, run_json: Any):
    table = f"default.rows_{type(any_spark).__module__.count('connect')}"
    any_spark.createDataFrame(worlds.rows()).write.mode("overwrite").saveAsTable(table)
    told = run_json("score", trained, "--input", table, "--output", f"{table}_scored", "--mode", "overwrite")
    assert told["rows"] == worlds.rows().num_rows
    assert any_spark.table(f"{table}_scored").where("prediction is not null").count() == told["score_status"]["scored"]


def test_a_source_without_rows_or_without_a_file_is_told(any_spark: SparkSession, tmp_path: Path, run: Any):
    spec = write_spec(tmp_path)
    code, _, err = run("plan", spec)
    assert (code, f"there is no {tmp_path / 'rows.parquet'}" in err) == (1, True)
    pq.write_table(worlds.rows().slice(0, 0), tmp_path / "rows.parquet")
    code, out, _ = run("plan", spec)
    assert (code, "0 (none)" in out) == (0, True)
