"""Gates: which new models serve, and what does instead."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from group_models.errors import SpecError
from group_models.gates import FleetGate, Gates
from group_models.keys import texts_id
from group_models.levels import Levels
from group_models.live.gating import fleet_refusal
from group_models.live.manifest import RunIdentity, compose, levels_refusal, release_refusal
from group_models.loading import load_spec
from group_models.spec import Limits
from group_models.tables import PLAN, STORE
from tests import worlds

SHARED = {"model_set": "c.s.m", "run_id": "r2"}
LEVELS = Levels({"k": "string"}, ((),))
ABOVE = texts_id({}, LEVELS.kinds)
MAPS = pa.map_(pa.string(), pa.float64())


def composed(gates: dict[str, Any], *, live: bool = True, parent: bool = True, metric: str = "mae", **entries: float):
    """Return the manifest row of one key whose new model has mae 4.0 and rmse 5.0, and these baselines."""
    own = texts_id({"k": "a"}, LEVELS.kinds)
    keys = {own: ("k", [("k", "a")]), ABOVE: ("global", [])}
    plan = PLAN.rows([
        {**SHARED, "key_id": i, "key": key, "level": level, "decision": "whole"} for i, (level, key) in keys.items()
    ])  # fmt: skip
    measured = {"metrics": [("mae", 4.0), ("rmse", 5.0)], "baseline_metrics": list(entries.items()), "holdout_rows": 40}
    store = STORE.rows([
        {**SHARED, "key_id": i, "status": "trained" if parent or i == own else "failed", "number": 0, "wave": 0,
         "part": -1, "format": 1, **measured}
        for i in keys
    ])  # fmt: skip
    run = RunIdentity("c.s.m", "r2", "spec", gates=Gates(**gates), metric=metric)  # type: ignore[arg-type]
    rows = compose(plan, store, {own: "r1"} if live else {}, run, levels=LEVELS).to_pylist()
    return next(row for row in rows if row["key_id"] == own), next(row for row in rows if row["key_id"] == ABOVE)


def said(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["status"], row["serves"], row["model_run_id"], row["parent_key_id"]


NEW, PREVIOUS = ("trained", "new", "r2", None), ("rejected", "previous", "r1", None)
PARENT, NOTHING = ("rejected", "parent", None, ABOVE), ("rejected", "none", None, None)


def test_without_gates_every_new_model_serves() -> None:
    assert said(composed({}, parent_mae=1.0, parent_difference=3.0, parent_difference_se=0.1)[0]) == NEW


@pytest.mark.parametrize(
    ("most", "live", "parent", "wanted"),
    [(4.0, True, True, NEW), (3.9, True, True, PREVIOUS), (3.9, False, True, PARENT), (3.9, False, False, NOTHING)],
)
def test_a_model_over_max_metric_leaves_its_key_as_it_was(most, live, parent, wanted) -> None:
    row, of_parent = composed({"max_metric": most}, live=live, parent=parent)
    assert said(row) == wanted
    assert row["reason"] == (None if wanted == NEW else "rejected: mae 4 is over max_metric 3.9")
    assert of_parent["status"] == ("trained" if parent else "failed")


def test_max_metric_is_of_the_specs_metric() -> None:
    assert said(composed({"max_metric": 4.5}, metric="rmse")[0]) == PREVIOUS


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ({"parent_mae": 3.0, "parent_difference": 1.0, "parent_difference_se": 0.49}, PARENT),
        ({"parent_mae": 3.0, "parent_difference": 1.0, "parent_difference_se": 0.51}, NEW),
        ({"parent_mae": 4.1, "parent_difference": -0.1, "parent_difference_se": 0.0}, NEW),
        ({"parent_mae": 3.0, "parent_difference": 1.0, "parent_difference_se": 0.0}, PARENT),
        ({"parent_mae": 3.0, "parent_difference": 1.0}, NEW),
        ({}, NEW),
    ],
)
def test_a_key_worse_than_its_parent_beyond_noise_is_served_by_it(entries, wanted) -> None:
    row, _ = composed({"parent": {}}, **entries)
    assert said(row) == wanted
    if wanted == PARENT:
        assert row["reason"] == "rejected: worse than its parent, mae 4 beside 3, by more than 2 standard errors"
        assert row["parent_run_id"] == "r2"


@pytest.mark.parametrize(
    ("rows", "difference", "wanted"), [(30, 0.41, PREVIOUS), (30, 0.39, NEW), (29, 9.0, NEW), (0, 0.0, NEW)]
)
def test_a_model_worse_than_the_one_that_serves_leaves_it_there(rows, difference, wanted) -> None:
    entries = {"champion_mae": 4.0, "champion_difference": difference, "champion_rows": float(rows)}
    row, _ = composed({"champion": {"tolerance": 0.1}}, **(entries if rows else {}))
    assert said(row) == wanted
    if rows < 30:
        few = f"{rows} held out row{'s' * (rows != 1)} that it has not seen, min_rows is 30"
        assert row["reason"] == f"no verdict beside the model that served: {few}"
    elif wanted == PREVIOUS:
        assert row["reason"].startswith("rejected: worse than the model that serves, mae 4.41 beside 4 on 30 rows")
    else:
        assert row["reason"] is None


def test_a_key_that_had_no_model_is_not_compared_with_one() -> None:
    row, _ = composed({"champion": {}}, live=False)
    assert (said(row), row["reason"]) == (NEW, None)


def test_the_tolerance_of_squared_errors_is_of_their_root() -> None:
    entries = {"champion_rmse": 4.0, "champion_rows": 50.0}
    assert said(composed({"champion": {"tolerance": 0.1}}, metric="rmse", champion_difference=3.3, **entries)[0]) == NEW
    worse = composed({"champion": {"tolerance": 0.1}}, metric="rmse", champion_difference=3.4, **entries)
    assert said(worse[0]) == PREVIOUS


def test_where_both_gates_reject_what_serves_goes_on_serving() -> None:
    entries = {"parent_mae": 3.0, "parent_difference": 1.0, "parent_difference_se": 0.1,
               "champion_mae": 2.0, "champion_difference": 2.0, "champion_rows": 40.0}  # fmt: skip
    row, _ = composed({"champion": {}, "parent": {}}, **entries)
    assert said(row) == PREVIOUS
    assert row["reason"].count("rejected:") == 2


def fleet(*keys: tuple[float, float, float], tolerance: float = 0.0, **flags: list[bool]) -> str | None:
    maps = [
        [("champion_rows", rows), ("champion_mae", old), ("champion_difference", new - old)] if rows else []
        for rows, new, old in keys
    ]
    yes = [True] * len(keys)
    is_new, has_served = (pa.array(flags.get(name, yes)).to_numpy(zero_copy_only=False) for name in ("new", "served"))
    return fleet_refusal(
        pa.chunked_array([pa.array(maps, MAPS)]), is_new, has_served, FleetGate(tolerance=tolerance), "mae"
    )


def test_a_fleet_is_judged_by_the_errors_of_all_its_keys_weighted_by_rows() -> None:
    assert fleet((90.0, 1.0, 2.0), (10.0, 9.0, 1.0)) is None
    worse = fleet((50.0, 1.0, 2.0), (50.0, 9.0, 1.0))
    assert worse == (
        "its mae is 5 beside 1.5 of the models that serve, on the same 100 rows of 2 keys; the tolerance is 0.0%"
    )
    assert fleet((50.0, 1.05, 1.0), tolerance=0.06) is None
    assert fleet((50.0, 1.05, 1.0), tolerance=0.04) is not None


def test_keys_that_are_rejected_or_new_do_not_count_for_the_fleet() -> None:
    assert fleet((50.0, 9.0, 1.0), (50.0, 1.0, 1.0), new=[False, True]) is None
    assert fleet((50.0, 9.0, 1.0), served=[False]) is None


def test_a_fleet_that_cannot_be_compared_does_not_serve_by_itself() -> None:
    assert fleet((0.0, 0.0, 0.0)) == (
        "none of 1 key with a new model has a held out row that the model that serves has not seen: whether the run "
        "is better is not known"
    )


def test_a_run_whose_new_models_are_all_rejected_is_no_run_that_failed() -> None:
    assert release_refusal({"rejected": 9, "failed": 1}, Limits()) is None
    assert levels_refusal({"k": {"rejected": 9, "failed": 1}, "global": {"trained": 1}}, Limits()) is None
    assert release_refusal({"failed": 1}, Limits()) is not None


def spec_mistake(**changes: Any) -> str:
    with pytest.raises(SpecError) as found:
        load_spec(worlds.spec({"path": "x.parquet"}, None, **changes))
    return str(found.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gates": {"champion": {}}, "time_column": None}, ["gates.champion", "refit: false", "time_column"]),
        ({"gates": {"fleet": {}}, "time_column": None}, ["gates.fleet", "time_column"]),
        ({"gates": {"parent": {}}}, ["gates.parent", "levels"]),
        ({"gates": {"max_metric": 1.0}, "holdout": {"by": "none"}}, ["gates", "holdout"]),
        ({"gates": {"champion": {"tolerance": -1.0}}}, ["tolerance"]),
    ],
)
def test_a_gate_that_cannot_tell_is_refused_in_the_spec(changes: dict[str, Any], words: list[str]) -> None:
    message = spec_mistake(**changes)
    assert all(word in message for word in words), message


def test_a_gate_without_a_time_column_can_tell_where_models_leave_the_holdout_out() -> None:
    changes = {"gates": {"champion": {}}, "time_column": None, "refit": False}
    assert load_spec(worlds.spec({"path": "x.parquet"}, None, **changes)).asks_champion


def test_a_spec_without_gates_is_kept_as_before_there_were_any() -> None:
    assert '"gates"' not in load_spec(worlds.spec({"path": "x.parquet"}, None)).to_json()
