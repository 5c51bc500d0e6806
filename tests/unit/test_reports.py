"""The report as it is asked for: single keys beside their rows, the command, and the copy in MLflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from group_models import reports, targets
from group_models.adapters import parquet_rows
from group_models.adapters.path_tables import PathTables
from group_models.cli import main
from group_models.errors import DataError, PlatformError, ServerWarning, SpecError, StateError
from group_models.fakes import MemoryTables
from group_models.keys import key_id
from group_models.reporting import tracking
from group_models.reporting.page import page
from group_models.reporting.page.closeups import MAX_POINTS
from group_models.reporting.page.reading import read_page
from group_models.runs import logging_runs
from tests import fitted
from tests.fitted import SET

SLOPES = {"a": 1.0, "b": 2.0, "c": 3.0}
A, BROKEN = key_id(("a",)), key_id(("broken",))


def source(path: Path, count: int = 6) -> str:
    """Write rows of `a` (whose model is x -> x, off by one half), `broken`, and one of `b` without a target."""
    x = np.arange(float(count))
    times = pd.date_range("2026-01-01", periods=count, freq="D")
    rows = pd.DataFrame({"k": "a", "x": x, "noise": x[::-1], "y": x + 0.5, "at": times})
    other = rows[:3].assign(k="broken")
    pq.write_table(pa.Table.from_pandas(pd.concat([rows, other, rows[:1].assign(k="b", y=np.nan)])), path)
    return str(path)


def spec(path: str, **changes: Any) -> dict[str, Any]:
    return {
        "model_set": SET, "source": {"path": path}, "keys": ["k"], "features": ["x"], "target": "y",
        "time_column": "at", "refit": True, "estimator": {"name": "linear"}, **changes,
    }  # fmt: skip


def trained(path: str, tables: Any = None, **changes: Any) -> Any:
    tables = MemoryTables() if tables is None else tables
    columns = {name: changes.pop(name) for name in ("importance",) if name in changes}
    fitted.add_run(tables, "r1", 0, SLOPES, failed=["broken"], spec=json.dumps(spec(path, **changes)), columns=columns)
    return tables


def test_rows_of_a_key_stand_beside_what_its_model_predicts(tmp_path: Path):
    tables = trained(source(tmp_path / "rows.parquet"))
    seen = reports.observe(tables, read_page(tables, SET, "r1"), [A])[A]
    np.testing.assert_allclose(seen.rows["prediction"], np.arange(6.0), atol=1e-9)
    np.testing.assert_allclose(seen.rows["y"] - seen.rows["prediction"], 0.5, atol=1e-9)
    assert seen.rows["at"].min() == pd.Timestamp("2026-01-01", tz="UTC")
    assert dict(seen.importance) == {}


def test_importance_is_that_which_is_stored_and_shuffled_for_where_none_is(tmp_path: Path):
    path = source(tmp_path / "rows.parquet")
    data = read_page(trained(path), SET, "r1")
    assert data.own.set_index("key_id")["importance"][A] == {"x": 1.0}
    without = trained(path, importance={})
    seen = reports.observe(without, read_page(without, SET, "r1"), [A])[A]
    assert list(seen.importance) == ["x"]
    assert seen.importance["x"] > 0.5


def test_a_key_without_a_model_and_one_without_rows_say_so(tmp_path: Path):
    tables = trained(source(tmp_path / "rows.parquet"))
    seen = reports.observe(tables, read_page(tables, SET, "r1"), [A, BROKEN, key_id(("b",)), key_id(("c",))])
    assert seen[BROKEN].why_not == "No row of this key has a prediction."
    assert {seen[key_id((name,))].why_not for name in "bc"} == {"The source has no usable row of this key now."}
    assert seen[A].why_not == ""


def test_rows_of_a_parent_are_not_shown_as_if_it_predicted_them(tmp_path: Path):
    tables = trained(source(tmp_path / "rows.parquet"))
    data = read_page(tables, SET, "r1")
    data.keys.loc[data.keys["key_id"] == A, "level"] = "global"
    seen = reports.observe(tables, data, [A, key_id(("b",))])
    assert seen[A].why_not.startswith("A parent's rows are not shown")
    assert seen[key_id(("b",))].why_not == "The source has no usable row of this key now."
    assert reports.observe(tables, data, [A])[A].rows.empty


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"source": {"table": "c.s.rows"}}, "is not one of Parquet files, and Spark is not started"),
        ({"source": {"path": "x.csv", "format": "csv"}}, "is not one of Parquet files"),
        ({"source": {"path": "s3://bucket/rows"}}, "s3://bucket/rows is no file or folder of this machine"),
        ({"source": {"path": "gone.parquet"}}, "gone.parquet is no file or folder"),
        ({"target": "z"}, "cannot be read as Parquet"),
        ({"task": "classification"}, "only those of regressions are"),
    ],
    ids=["table", "csv", "s3", "gone", "column", "classes"],
)
def test_a_source_that_cannot_be_read_here_is_a_sentence_in_the_page(tmp_path: Path, changes: dict[str, Any], why: str):
    tables = trained(source(tmp_path / "rows.parquet"), **changes)
    html = reports.make_page(tables, SET, "r1", keys=["k=a"], worst=0).html
    assert "Its rows are not shown beside predictions: " in html
    assert why in html


def test_a_source_that_is_too_large_or_spark_s_own_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = source(tmp_path / "rows.parquet")
    monkeypatch.setattr(parquet_rows, "MAX_BYTES", 10)
    with pytest.raises(DataError, match=r"has 0\.0 GiB; up to 0 GiB are read here"):
        parquet_rows.read_rows(path, [{"k": "a"}], {"k": "string"}, ["x"])
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    with pytest.raises(DataError, match="is a Delta table, which only Spark reads"):
        parquet_rows.read_rows(str(tmp_path / "delta"), [{"k": "a"}], {"k": "string"}, ["x"])


def test_rows_are_found_by_keys_of_every_kind_and_by_null(tmp_path: Path):
    frame = pa.table({
        "s": ["a", None, "a"], "i": pa.array([1, 1, None], pa.int32()), "b": [True, False, True],
        "d": pa.array([0, 1, 2], pa.date32()), "x": [1.0, 2.0, 3.0],
    })  # fmt: skip
    folder = tmp_path / "rows" / "year=2026"
    folder.mkdir(parents=True)
    pq.write_table(frame, folder / "a.parquet")
    kinds = {"s": "string", "i": "integer", "b": "boolean", "d": "date", "year": "integer"}

    def found(**key: str | None) -> list[float]:
        return parquet_rows.read_rows(str(tmp_path / "rows"), [key], kinds, ["x"])["x"].tolist()

    assert found(s="a", i="1", b="true", d="1970-01-01", year="2026") == [1.0]
    assert (found(s=None), found(i=None), found(b="false"), found(d="1970-01-03")) == ([2.0], [3.0], [2.0], [3.0])
    assert (found(year="2025"), found(), found(s="z")) == ([], [1.0, 2.0, 3.0], [])


def test_of_many_rows_some_are_drawn_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tables = trained(source(tmp_path / "rows.parquet", count=MAX_POINTS * 3))
    html = reports.make_page(tables, SET, "r1", keys=["k=a"], worst=0).html
    assert f"{MAX_POINTS} of {MAX_POINTS * 3:,} rows, drawn by lot" in html
    assert "The model was fitted again on all these rows" in html
    monkeypatch.setattr(reports, "MAX_KEY_ROWS", 10)
    assert len(reports.observe(tables, read_page(tables, SET, "r1"), [A])[A].rows) == 10


def test_a_key_that_the_run_does_not_have_is_refused(tmp_path: Path):
    tables = trained(source(tmp_path / "rows.parquet"))
    with pytest.raises(StateError, match=r"run r1 .*: key 'k=z' .* was not among the keys of that run"):
        reports.make_page(tables, SET, "r1", keys=["k=z"])
    with pytest.raises(SpecError, match="k"):
        reports.make_page(tables, SET, "r1", keys=["lane=z"])


def test_keys_are_named_first_and_shown_once(tmp_path: Path):
    tables = trained(source(tmp_path / "rows.parquet"))
    html = reports.make_page(tables, SET, "r1", keys=[{"k": "broken"}, BROKEN, "k=c"], worst=3).html
    shown = [part[:32] for part in html.split('<article id="close-')[1:]]
    assert shown[:2] == [BROKEN, key_id(("c",))]
    assert len(shown) == len(set(shown)) == 4


def test_the_command_writes_the_newest_run_and_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trained(source(tmp_path / "rows.parquet"), PathTables(tmp_path / "house", "zrl.ml"))
    arguments = ["report", SET, "--warehouse", str(tmp_path / "house"), "--output", str(tmp_path / "out.html")]
    assert main([*arguments, "--key", "k=a", "--key", "k=b", "--worst", "0"]) == 0
    assert f"wrote {tmp_path / 'out.html'} (0." in capsys.readouterr().err
    html = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<h1>Run r1</h1>" in html
    assert "Actual against predicted" in html
    assert main([*arguments, "--run-id", "r2"]) == 1
    assert "has no run 'r2'" in capsys.readouterr().err


def test_python_returns_the_page_and_writes_it_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tables = trained(source(tmp_path / "rows.parquet"))
    monkeypatch.setattr(targets, "tables_of", lambda *_: tables)
    made = reports.report(SET, output=tmp_path / "out.html", worst=0)
    assert (tmp_path / "out.html").read_text(encoding="utf-8") == made.html


def test_a_page_that_cannot_be_made_keeps_no_run_from_being_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tables = trained(source(tmp_path / "rows.parquet"))
    record = tracking.read_record(tables, SET, "r1")
    assert "report.html" in logging_runs._with_page(record, tables).files

    def broken(*_: Any, **__: Any) -> page.Page:
        raise ValueError("no room")

    monkeypatch.setattr(logging_runs, "run_page", broken)
    with pytest.warns(ServerWarning, match="run r1 is logged without its report: no room"):
        assert logging_runs._with_page(record, tables) == record


def test_without_the_report_extra_a_run_is_logged_without_a_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    tables = trained(source(tmp_path / "rows.parquet"))
    record = tracking.read_record(tables, SET, "r1")
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda _: None)
    assert logging_runs._with_page(record, tables) == record
    assert len(recwarn) == 0
    with pytest.raises(PlatformError, match="jinja2 and vl_convert"):
        page.check_installed()
