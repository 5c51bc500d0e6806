"""What a run's page says, on hand-made runs in memory: no Spark, no browser."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models.errors import GroupModelsError, PlatformError, StateError
from group_models.fakes import MemoryTables
from group_models.live.publishing import publish
from group_models.reporting.page import charts, columns, drawing, fleet, page, sections
from group_models.reporting.page.changes import compare
from group_models.reporting.page.reading import PageData, read_histories, read_page
from group_models.spec import Limits
from tests import pages
from tests.unit.runs import SET, add_run, id_of

NAN = float("nan")


@pytest.fixture
def tables() -> MemoryTables:
    """Two nights: of the second, `a` is unchanged, `b` failed, `c` is trained anew, `d` came and `e` went."""
    nights = MemoryTables()
    add_run(nights, "one", 1, {"a": "trained", "b": "trained", "c": "trained", "e": "trained"},
            mae={"a": 3.0, "b": 1.0, "c": 8.0, "e": 1.0})  # fmt: skip
    base = publish(nights, SET, "one", limits=Limits()).release_id
    second = {"a": "unchanged", "b": "failed", "c": "trained", "d": "too_small"}
    add_run(nights, "two", 2, second, previous={"a": "one", "b": "one"}, base=base, mae={"c": 2.0})
    publish(nights, SET, "two", limits=Limits())
    return nights


@pytest.fixture(scope="module")
def nights() -> MemoryTables:
    made = MemoryTables()
    pages.add_nights(made, 300)
    return made


@pytest.fixture(scope="module")
def night(nights: MemoryTables) -> PageData:
    return read_page(nights, pages.SET, "night-2")


def told(html: str, section: str) -> str:
    """Return the text of a section of a page, without its tags."""
    found = re.search(rf'<section id="{section}">(.*?)</section>', html, re.DOTALL)
    return "" if found is None else " ".join(re.sub(r"<[^>]+>", " ", found[1]).split())


def embedded(html: str) -> dict[str, Any]:
    """Return the table of all keys as it travels in a page, columns by name."""
    found = re.search(r'<script id="table" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    table = json.loads(found[1])
    return {**table, "columns": {column["name"]: column for column in table["columns"]}}


def values(table: dict[str, Any], name: str) -> list[Any]:
    column = table["columns"][name]
    if column["kind"] != "text":
        return column["values"]
    return [None if code < 0 else column["texts"][code] for code in column["codes"]]


def test_a_page_is_compared_with_the_run_of_its_scope_before_it(tables: MemoryTables):
    add_run(tables, "of-one-key", 1.5, {"a": "trained"}, scope="k = 'a'")
    before = read_page(tables, SET, "two").before
    assert before is not None
    assert before.run_id == "one"
    assert read_page(tables, SET, "one").before is None
    assert read_page(tables, SET, "of-one-key").before is None


def test_changes_name_the_keys_that_came_and_went_and_count_how_the_others_moved(tables: MemoryTables):
    changed = sections.changes(read_page(tables, SET, "two"))
    assert changed is not None
    assert (changed.came, changed.went) == (("k=d",), ("k=e",))
    assert set(changed.moves) == {("trained", "unchanged", 1), ("trained", "failed", 1)}
    # The errors of `a` and `b` are those of models that serve on: nothing about them is new.
    assert changed.movers == ((id_of("c"), "k=c", 8.0, 2.0),)
    assert (changed.better, changed.worse) == (1, 0)


def test_changes_tell_what_differs_in_the_spec_and_the_libraries():
    keys = pd.DataFrame({"label": [], "status": [], "rows": [], "metrics": [], "model_run_id": []})
    then = {
        "spec": '{"features": ["a", "b"], "limits": {"min_rows": 30}, "warehouse": "x"}',
        "versions": [("numpy", "1")],
    }
    now = {
        "spec": '{"features": ["b", "c"], "limits": {"min_rows": 30}, "warehouse": "y"}',
        "versions": [("numpy", "2")],
    }
    changed = compare("one", keys, keys, "mae", (then, now))
    assert changed.settings == (("features", "\N{MINUS SIGN} a", "+ c"),)
    assert changed.versions == (("numpy", "1", "2"),)


def test_the_page_says_what_came_of_the_run_and_leaves_out_what_nobody_knows(tables: MemoryTables):
    html = page.run_page(tables, SET, "one", worst=0).html
    assert "Released to champion" in html
    assert "4 of 4 keys are served by a model (4 new). Models per key pay: mae " in html
    assert "the median 4 " in told(html, "errors")
    assert [told(html, name) for name in ("changes", "failures", "close", "time")] == [""] * 4
    assert 'href="#changes"' not in html


def test_a_run_that_was_held_says_why():
    nights = MemoryTables()
    add_run(nights, "one", 1, {"a": "failed"})
    data = read_page(nights, SET, "one")
    assert sections.outcome(data) == sections.Outcome("kept", "Trained, not released")
    data.finished["refusal"] = "none of 1 keys could be trained (1 failed)"
    assert sections.outcome(data).said == "Not released"
    assert "none of 1 keys" in sections.outcome(data).why
    assert sections.paid(data) is None


def test_a_run_without_a_manifest_and_an_unknown_one_have_no_page(tables: MemoryTables):
    add_run(tables, "stopped", 3, {"a": "trained"}, stops_after="waves")
    with pytest.raises(StateError, match="has no manifest yet; `train SPEC --run-id stopped` goes on"):
        read_page(tables, SET, "stopped")
    with pytest.raises(StateError, match="has no run 'three'"):
        read_page(tables, SET, "three")


def test_a_run_that_stopped_before_its_end_says_so(tables: MemoryTables):
    add_run(tables, "three", 3, {"a": "trained"}, mae={"a": 1.0}, stops_after="manifest")
    assert "This run has not finished" in page.run_page(tables, SET, "three").html


def test_a_run_of_no_keys_has_a_page():
    nights = MemoryTables()
    add_run(nights, "one", 1, {})
    html = page.run_page(nights, SET, "one").html
    assert "0 of 0 keys are served by a model." in html
    assert embedded(html)["rows"] == 0


def test_failures_are_grouped_by_what_they_have_in_common(night: PageData):
    found = fleet.causes(night.own)
    failed = night.own["status"].value_counts()
    assert [(c.error_type, c.stage, c.pattern, c.keys) for c in found] == [
        ("DataError", "prepare", "column … holds # infinite values", failed["failed"]),
        ("timed_out", "", "the fit took over # s", failed["timed_out"]),
    ]
    assert (found[0].served, found[1].served) == (found[0].keys, 0)


def test_the_table_has_every_key_once_with_what_came_of_it(nights: MemoryTables, night: PageData):
    table = embedded(page.run_page(nights, pages.SET, "night-2", worst=1).html)
    assert table["rows"] == table["of"] == len(night.keys) == 300
    assert values(table, "key_id") == night.keys["key_id"].tolist()
    assert values(table, "status") == night.keys["status"].tolist()
    keys = [dict(key) for key in night.keys["key"]]
    assert values(table, "key:carrier") == [key["carrier"] for key in keys]
    assert values(table, "key:lane") == ["null" if key["lane"] is None else key["lane"] for key in keys]
    errors = fleet.values_of(night.keys["metrics"], "mae")
    shown = np.array([NAN if value is None else value for value in values(table, "error")])
    np.testing.assert_allclose(shown, errors, atol=0.001)
    assert len(table["close"]) == 1


def test_a_page_of_too_many_keys_holds_the_worst_and_those_without_a_new_model(
    monkeypatch: pytest.MonkeyPatch, nights: MemoryTables, night: PageData
):
    monkeypatch.setattr(columns, "MAX_ROWS", 40)
    table = embedded(page.run_page(nights, pages.SET, "night-2", worst=0).html)
    assert (table["rows"], table["of"]) == (40, 300)
    others = set(night.keys["key_id"][night.keys["serves"] != "new"])
    assert others <= set(values(table, "key_id"))
    assert page.worst_keys(night, 3) == [key for key in values(table, "key_id") if key not in others][:3]


def test_nothing_of_the_data_can_end_the_script_that_holds_it(nights: MemoryTables):
    html = page.run_page(nights, pages.SET, "night-2").html
    assert html.count("<script") == 2
    assert html.count("</script>") == 2
    assert "<b>bold" not in html
    assert pages.ODD in values(embedded(html), "key:carrier")


def test_labels_of_charts_are_escaped_and_whole():
    odd = ["<script>alert(1)</script>", "a'b\"\\{}", "\U0001f69a \u2028"]
    svg = drawing.convert(charts.key_errors(odd, np.array([1.0, 2.0, 3.0]), {}, "MAE"))
    assert "<script" not in svg
    for text in ("&lt;script&gt;", "a'b\"\\{}", "\U0001f69a"):
        assert text in svg


def test_no_two_charts_of_a_page_share_an_id():
    artist = drawing.Artist()
    chart = charts.errors_by_rows([fleet.RowsBin(10, 3, 1.0, 2.0, 3.0), fleet.RowsBin(99, 3, 1.0, 2.0, 3.0)], "MAE")
    clipped = {**chart, "layer": [{**layer, "mark": {**layer["mark"], "clip": True}} for layer in chart["layer"]]}
    first, second = (set(re.findall(r'id="([^"]+)"', artist.draw(clipped, "errors"))) for _ in range(2))
    assert first
    assert first.isdisjoint(second)


def test_parents_are_in_the_table_and_not_among_the_keys():
    nights = MemoryTables()
    pages.add_nights(nights, 60)
    data = read_page(nights, pages.SET, "night-1")
    parent = {**data.keys.iloc[0].to_dict(), "key_id": "f" * 32, "key": {"carrier": "UA"}, "level": "carrier"}
    data = PageData(**{**vars(data), "keys": pd.concat([data.keys, pd.DataFrame([parent])], ignore_index=True)})
    keys = data.keys.assign(parent=["carrier=UA", *data.keys["parent"][1:]])
    keys.loc[0, "serves"] = "parent"
    data = PageData(**{**vars(data), "keys": keys})
    html = page.render(data).html
    table = embedded(html)
    assert values(table, "parent")[0] == "carrier=UA"
    (up,) = page.close_ups(data, [keys["key_id"][0]], read_histories(nights, pages.SET, [keys["key_id"][0]]), {})
    assert dict(up.facts)["served by"] == "its parent carrier=UA"
    assert (values(table, "key:lane")[-1], values(table, "level")[-1]) == ("\N{MIDDLE DOT}", "carrier")
    assert "of 60 keys" in html
    assert "carrier 1 trained" in told(html, "outcomes")


def test_a_parent_is_named_as_people_write_keys():
    nights = MemoryTables()
    add_run(nights, "one", 1, {"a": "trained", "b": "trained"}, parents={"a": ("one", "b")})
    assert read_page(nights, SET, "one").keys["parent"].tolist() == ["k=b", None]


def test_a_baseline_that_the_manifest_has_is_compared_with_by_name(night: PageData):
    keys = night.keys.assign(
        baseline_metrics=[{**m, "parent_mae": 2 * m["mae"]} if m else {} for m in night.keys["baseline_metrics"]]
    )
    html = page.render(PageData(**{**vars(night), "keys": keys})).html
    assert "Against the parent" in html
    assert "vs parent" in [column["label"] for column in embedded(html)["columns"].values()]
    assert "Against the parent" not in page.render(night).html


def test_the_past_of_a_key_is_its_rows_run_by_run(tables: MemoryTables):
    past = read_histories(tables, SET, [id_of("a"), id_of("d")])
    assert past[id_of("a")]["run_id"].tolist() == ["one", "two"]
    assert past[id_of("d")]["run_id"].tolist() == ["two"]
    (up,) = page.close_ups(read_page(tables, SET, "two"), [id_of("a")], past, {})
    assert [figure.title for figure in up.figures] == ["Error from run to run"]
    assert dict(up.facts)["served by"] == "previous model of run one"


def test_a_run_in_which_every_error_is_the_same_or_nothing_is_drawn():
    assert fleet.histogram(np.array([0.0, 0.0])).counts.sum() == 2
    assert fleet.histogram(np.array([NAN])).counts.sum() == 0
    assert fleet.by_rows(np.full(100, 30.0), np.ones(100)) == []
    assert fleet.cumulative_share(np.array([NAN, 0.0])) == []
    maps = pd.DataFrame({"metrics": [{"mae": 1.0}, {}], "baseline_metrics": [{}, {"mae": 1.0}]})
    assert fleet.ratios(maps, "mae") == []


def test_a_run_is_told_by_the_metric_of_its_spec():
    nights = MemoryTables()
    pages.add_nights(nights, 60, metric="rmse")
    data = read_page(nights, pages.SET, "night-2")
    pays = sections.paid(data)
    assert pays is not None
    squares = fleet.values_of(data.own["metrics"], "rmse") ** 2
    known = np.isfinite(squares)
    rows = data.own["holdout_rows"].to_numpy(dtype=float)[known]
    assert pays.strongest.error == pytest.approx(np.sqrt(np.average(squares[known], weights=rows)))
    html = page.render(data).html
    assert "RMSE is the root mean squared error" in told(html, "errors")
    assert embedded(html)["columns"]["error"]["label"] == "RMSE"


def test_a_page_is_written_or_says_what_hinders_it(tmp_path, tables: MemoryTables):
    made = page.run_page(tables, SET, "one")
    assert made.write(tmp_path / "a.html").read_text(encoding="utf-8") == made.html
    with pytest.raises(GroupModelsError, match=r"cannot write .*nowhere.*; name a file in a folder that is there"):
        made.write(tmp_path / "nowhere" / "a.html")


def test_a_notebook_gets_the_page_in_a_frame(tables: MemoryTables):
    made = page.run_page(tables, SET, "one")
    assert made._repr_html_().startswith('<iframe title="c.s.m')
    assert "<table" not in made._repr_html_()


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tables: MemoryTables):
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None if name == "vl_convert" else name)
    with pytest.raises(PlatformError, match=r"needs vl_convert; install group-models\[report\]"):
        page.run_page(tables, SET, "one")
