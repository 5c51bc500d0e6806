"""Which keys keep their model, how costs follow from history, and how due ages are spread."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_models.errors import StateError
from group_models.keys import key_id
from group_models.planning.deciding import SIZES, Costs, plan_keys
from group_models.planning.incremental import PAST, History, due_days, kept_models, library_changes, library_note
from group_models.tables import MANIFEST
from tests.unit.test_planning import by_name, sizes, spec

NOW = dt.datetime(2026, 3, 10, tzinfo=dt.UTC)
VERSIONS = {"numpy": "2.3.4", "group-models": "0.1.0"}
OLDER = {"numpy": "2.2.6", "group-models": "0.1.0"}
COSTS = Costs(seconds=lambda rows, columns: rows * 0.01, model_bytes=lambda rows, columns: rows * 10.0)
SAME = "same data and spec as its model"


def past(*keys: dict[str, Any], versions: Any = VERSIONS, retrain_all: bool = False, asked: Any = None) -> History:
    """Return the history of keys that run `r1` trained yesterday on 100 rows, unless a key says otherwise."""
    usual = {
        "model_run_id": "r1",
        "trained_at": NOW - dt.timedelta(days=1),
        "data_fingerprint": "100-0-0",
        "spec_fingerprint": (asked or spec()).fingerprint(versions),
        "trained_rows": 100,
    }
    rows = [{**usual, **key} for key in keys]
    frame = pd.DataFrame(rows, index=[key_id((row["name"],)) for row in rows]).reindex(columns=list(PAST))
    return History(frame, {"r1": versions}, VERSIONS, NOW, retrain_all)


def decided(history: History, asked: Any, *keys: tuple[str, int]) -> dict[str, tuple[str, str | None]]:
    measured = sizes(*[(name, rows, rows, rows * 10) for name, rows in keys])
    plan = plan_keys(measured, asked, COSTS, slots=1, history=history)
    return {name: (row["decision"], row["reason"]) for name, row in by_name(plan).items()}


def test_a_key_of_the_same_data_and_spec_keeps_its_model_and_has_no_place_in_the_plan():
    measured = sizes(("a", 100, 100, 1000), ("new", 100, 100, 1000))
    found = by_name(plan_keys(measured, spec(), COSTS, slots=1, history=past({"name": "a"})))
    assert (found["a"]["decision"], found["a"]["reason"]) == ("unchanged", SAME)
    assert [found["a"][n] for n in ("unit", "wave", "n_parts", "predicted_seconds", "sample_share")] == [None] * 5
    assert (found["new"]["decision"], found["new"]["unit"]) == ("whole", 0)


@pytest.mark.parametrize(
    "other",
    [
        {"data_fingerprint": "100-0-1"},
        {"data_fingerprint": None},
        {"spec_fingerprint": "another"},
        {"spec_fingerprint": None},
        {"model_run_id": None},
    ],
    ids=lambda other: "-".join([*other, str(*other.values())]),
)
def test_other_data_another_spec_or_no_model_means_training(other: dict[str, Any]):
    assert decided(past({"name": "a", **other}), spec(), ("a", 100)) == {"a": ("whole", None)}


def test_a_key_that_is_too_small_now_is_that_and_not_unchanged():
    history = past({"name": "a", "data_fingerprint": "9-0-0"})
    assert decided(history, spec(), ("a", 9))["a"][0] == "too_small"


def test_all_keys_are_trained_where_that_is_asked_for():
    assert decided(past({"name": "a"}, retrain_all=True), spec(), ("a", 100)) == {"a": ("whole", None)}


@pytest.mark.parametrize(("version", "decision"), [(None, "whole"), ("1", "unchanged")])
def test_an_object_without_a_version_is_never_unchanged(version: str | None, decision: str):
    asked = spec(estimator={"object": "pkg.mod:make", **({"version": version} if version else {})})
    assert decided(past({"name": "a"}, asked=asked), asked, ("a", 100))["a"][0] == decision


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("retrain", ("whole", None)), ("keep", ("unchanged", f"{SAME}; trained with numpy 2.2.6 -> 2.3.4"))],
)
def test_a_change_of_libraries_alone_is_told_from_one_of_the_spec(rule: str, expected: tuple[str, str | None]):
    asked = spec(on_library_change=rule)
    assert decided(past({"name": "a"}, versions=OLDER), asked, ("a", 100)) == {"a": expected}
    other = past({"name": "a", "spec_fingerprint": "another"}, versions=OLDER)
    assert decided(other, asked, ("a", 100)) == {"a": ("whole", None)}


def test_a_change_of_libraries_can_stop_the_run_and_names_library_versions_and_keys():
    asked = spec(on_library_change="refuse")
    history = past({"name": "a"}, {"name": "b", "data_fingerprint": "7"}, {"name": "gone"}, versions=OLDER)
    keys = (("a", 100), ("b", 100), ("gone", 0))
    with pytest.raises(StateError, match=r"refuse`: numpy 2\.2\.6 -> 2\.3\.4 \(2 keys\)\. Nothing was trained"):
        decided(history, asked, *keys)
    assert decided(past({"name": "a"}), asked, ("a", 100))["a"][0] == "unchanged"
    everything = past({"name": "a"}, versions=OLDER, retrain_all=True)
    assert decided(everything, asked, ("a", 100)) == {"a": ("whole", None)}


def test_a_note_counts_the_kept_models_of_other_libraries():
    history = past({"name": "a"}, {"name": "b"}, versions=OLDER)
    ids = pa.chunked_array([[key_id(("a",)), key_id(("b",))]])
    said = "2 keys keep models of other library versions (on_library_change: keep): 2 with numpy 2.2.6 -> 2.3.4"
    assert library_note(ids, history) == said
    assert library_note(ids, past({"name": "a"}, {"name": "b"})) is None
    assert library_note(pa.chunked_array([[]], pa.string()), history) is None


def test_only_major_and_minor_versions_count():
    assert library_changes({"a": "1.2.3", "b": "1.2"}, {"a": "1.2.9", "b": "1.3"}) == ["b 1.2 -> 1.3"]
    assert library_changes({"a": "1.2"}, {}) == ["a 1.2 -> none"]


@pytest.mark.parametrize(
    ("asked", "rows", "decision"),
    [
        ({}, 101, "whole"),
        ({"min_new_rows": 10}, 109, "unchanged"),
        ({"min_new_rows": 10}, 110, "whole"),
        ({"min_new_share": 0.1}, 109, "unchanged"),
        ({"min_new_share": 0.1}, 110, "whole"),
        ({"min_new_rows": 10, "min_new_share": 0.2}, 115, "unchanged"),
        ({"min_new_rows": 30, "min_new_share": 0.2}, 125, "unchanged"),
        ({"min_new_rows": 10, "min_new_share": 0.2}, 120, "whole"),
        ({"min_new_rows": 10}, 99, "whole"),
        ({"min_new_rows": 10}, 100, "whole"),
        ({"max_age_days": 9}, 101, "whole"),
    ],
)
def test_a_changed_key_is_trained_where_every_minimum_is_reached_or_rows_were_replaced(
    asked: dict[str, Any], rows: int, decision: str
):
    history = past({"name": "a", "data_fingerprint": "other"})
    found = decided(history, spec(retrain_when=asked), ("a", rows))["a"]
    assert found[0] == decision


def test_too_little_news_are_told():
    history = past({"name": "a", "data_fingerprint": "other"})
    asked = spec(retrain_when={"min_new_rows": 10, "min_new_share": 0.5, "max_age_days": 9})
    said = "4 new rows (4.00% of 100) are too little news for min_new_rows 10 and min_new_share 0.5"
    assert decided(history, asked, ("a", 104)) == {"a": ("unchanged", said)}


def test_a_model_without_a_fingerprint_is_trained_again_however_little_is_new():
    history = past({"name": "a", "data_fingerprint": None})
    assert decided(history, spec(retrain_when={"min_new_rows": 10}), ("a", 101))["a"][0] == "whole"


def test_a_model_of_its_due_age_is_trained_again_changed_or_not():
    due = due_days([key_id(("a",))], 10.0)[0]
    assert 5.0 <= due < 10.0
    for age, decision in ((due - 0.01, "unchanged"), (due + 0.01, "whole")):
        history = past({"name": "a", "trained_at": NOW - dt.timedelta(days=age)})
        asked = spec(retrain_when={"max_age_days": 10, "min_new_rows": 50})
        assert decided(history, asked, ("a", 100))["a"][0] == decision


def test_due_ages_are_spread_evenly_over_the_second_half():
    ages = due_days([key_id((i,)) for i in range(4000)], 8.0)
    assert (ages.min() >= 4.0, ages.max() < 8.0) == (True, True)
    share, _ = np.histogram(ages, bins=4, range=(4.0, 8.0))
    assert (share > 800).all()


def test_a_key_costs_what_its_newest_fit_took_and_more_as_it_grew():
    fingerprint = spec().fingerprint(VERSIONS)
    known = {
        "name": "a", "data_fingerprint": "x", "fit_run_id": "r1", "fit_fingerprint": fingerprint, "fit_rows": 100,
        "fit_seconds": 7.0, "model_bytes": 50,
    }  # fmt: skip
    history = past(known, {**known, "name": "b"}, {**known, "name": "other", "fit_fingerprint": "another"})
    measured = sizes(*[(name, rows, rows, 9) for name, rows in (("a", 100), ("b", 200), ("other", 100), ("new", 50))])
    found = by_name(plan_keys(measured, spec(), COSTS, slots=1, history=history))
    seconds = {name: row["predicted_seconds"] for name, row in found.items()}
    nbytes = {name: row["predicted_model_bytes"] for name, row in found.items()}
    assert seconds == pytest.approx({"a": 7.0, "b": 14.0, "other": 1.0, "new": 0.5})
    assert nbytes == pytest.approx({"a": 50.0, "b": 100.0, "other": 1000.0, "new": 500.0})


def test_a_distributed_key_costs_what_its_last_distributed_fit_took():
    asked = spec({"max_key_rows": 1000}, oversize="distribute")
    fit = {"fit_run_id": "r1", "fit_fingerprint": asked.fingerprint(VERSIONS), "fit_rows": 2000, "fit_seconds": 6.0,
           "fit_policy": "distributed"}  # fmt: skip
    measured, history = sizes(("a", 4000, 4000, 400)), past({"name": "a", "data_fingerprint": "x", **fit}, asked=asked)
    row = by_name(plan_keys(measured, asked, COSTS, slots=4, history=history))["a"]
    assert (row["decision"], row["predicted_seconds"]) == ("distributed", pytest.approx(12.0))


def test_a_key_of_which_little_is_known_costs_what_its_family_says():
    history = past({"name": "a", "data_fingerprint": "x", "fit_run_id": "r1", "fit_rows": None, "fit_seconds": None})
    found = by_name(plan_keys(sizes(("a", 100, 100, 9)), spec(), COSTS, slots=1, history=history))
    assert found["a"]["predicted_seconds"] == pytest.approx(1.0)


def test_no_history_and_an_empty_one_are_the_same_plan():
    measured = sizes(("a", 100, 100, 9), ("b", 5, 5, 9))
    plans = [plan_keys(measured, spec(), COSTS, slots=1, history=h).keys for h in (None, History.none(), past())]
    assert plans[0].equals(plans[1])
    assert plans[0].equals(plans[2])


@given(st.lists(st.tuples(st.sampled_from(["same", "other", "none"]), st.integers(0, 120)), max_size=12))
def test_only_keys_that_would_be_fitted_keep_a_model_and_no_key_is_lost(world: list[tuple[str, int]]):
    known = [
        {"name": str(i), "data_fingerprint": f"{rows}-0-0" if kind == "same" else "other", "trained_rows": max(rows, 1)}
        for i, (kind, rows) in enumerate(world)
        if kind != "none"
    ]
    found = decided(past(*known), spec(), *[(str(i), rows) for i, (_, rows) in enumerate(world)])
    expected = {
        str(i): "vanished" if not rows else "too_small" if rows < 10 else "unchanged" if kind == "same" else "whole"
        for i, (kind, rows) in enumerate(world)
    }
    assert {name: decision for name, (decision, _) in found.items()} == expected


def test_the_rules_read_columns_that_the_manifest_has():
    assert {"data_fingerprint", "spec_fingerprint"} <= set(MANIFEST.names)
    decision = np.array(["whole"], dtype=object)
    table = sizes(("a", 100, 100, 9))
    assert table.schema == pa.schema(list(SIZES))
    assert kept_models(table, decision, past({"name": "a"}), spec()).tolist() == [SAME]


def test_an_oversize_key_keeps_its_model_whole_and_costs_in_all_its_parts_what_it_took():
    asked = spec({"max_key_rows": 100}, oversize="salt")
    fit = {"fit_run_id": "r1", "fit_fingerprint": asked.fingerprint(VERSIONS), "fit_rows": 400, "fit_seconds": 8.0}
    known = {"data_fingerprint": "400-0-0", "spec_fingerprint": asked.fingerprint(VERSIONS), **fit}
    history = past({"name": "kept", **known}, {"name": "grown", **known, "data_fingerprint": "other"})
    measured = sizes(("kept", 400, 400, 4000), ("grown", 400, 400, 4000))
    found = by_name(plan_keys(measured, asked, COSTS, slots=1, history=history))
    assert (found["kept"]["decision"], found["kept"]["n_parts"]) == ("unchanged", None)
    assert found["grown"]["decision"] == "salted"
    assert found["grown"]["n_parts"] > 1
    assert found["grown"]["predicted_seconds"] == pytest.approx(8.0, rel=0.05)


STEEP = Costs(seconds=lambda rows, columns: 1.0 + rows * 0.01, model_bytes=lambda rows, columns: 100.0 + rows * 0.0)
"""A fit has a price of its own, and a model its size whatever its rows: two parts are not one twice."""


@pytest.mark.parametrize(
    ("then", "now", "factor", "nbytes"),
    [
        ({"fit_policy": "salted", "fit_parts": 4, "fit_seconds": 16.0, "model_bytes": 800}, "whole", 2.0, 200.0),
        ({"fit_policy": "whole", "fit_parts": 1, "fit_seconds": 10.0, "model_bytes": 200}, "salt", 2.0, 200.0),
        ({"fit_policy": "salted", "fit_parts": 4, "fit_seconds": 16.0, "model_bytes": 800}, "distribute", 0.5, 200.0),
        ({"fit_policy": "distributed", "fit_parts": 1, "fit_seconds": 2.5, "model_bytes": 100}, "salt", 1.0, 100.0),
        ({"fit_policy": "distributed", "fit_parts": 1, "fit_seconds": 2.5, "model_bytes": 100}, "distribute", 0.5, 100),
    ],
)
def test_a_key_whose_policy_changed_is_compared_like_with_like(
    then: dict[str, Any], now: str, factor: float, nbytes: float
):
    asked = spec({"max_key_rows": 1000 if now == "whole" else 200}, oversize="salt" if now == "whole" else now)
    fit = {"fit_run_id": "r1", "fit_fingerprint": asked.fingerprint(VERSIONS), "fit_rows": 400, **then}
    history = past({"name": "a", "data_fingerprint": "other", **fit}, asked=asked)
    (row,) = plan_keys(sizes(("a", 400, 400, 4000)), asked, STEEP, slots=4, history=history).keys.to_pylist()
    parts = row["n_parts"]
    assert row["predicted_seconds"] == pytest.approx(factor * (parts + np.ceil(400 / parts) * parts * 0.01))
    assert row["predicted_model_bytes"] == pytest.approx(nbytes * parts)
