"""Until when the model that serves a key has seen rows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from group_models.live.champions import Refit, seen_until
from group_models.loading import load_spec
from tests import worlds

LAST, HELD = pd.Timestamp("2025-01-10", tz="UTC"), pd.Timestamp("2025-01-08", tz="UTC")
MICROS = {at: at.value // 1000 for at in (LAST, HELD)}


def refit(**changes: Any) -> Refit:
    return Refit.of(load_spec(worlds.spec({"path": "x.parquet"}, None, **changes)))


def seen(then: Refit | None, now: Refit, *, is_measured: bool = True, train_to: Any = LAST) -> Any:
    rows = pd.DataFrame({"run_id": ["r1"], "metrics": [[("mae", 1.0)] if is_measured else None],
                         "train_to": [train_to], "holdout_from": [HELD]})  # fmt: skip
    (found,) = seen_until(rows, {"r1": then} if then else {}, now)
    return found


BY_HASH = {"time_column": None, "refit": False}


def test_a_refitted_model_has_seen_all_rows_of_its_time() -> None:
    assert seen(refit(), refit()) == MICROS[LAST]


def test_a_model_that_was_not_refitted_has_seen_what_was_before_its_holdout() -> None:
    assert seen(refit(refit=False), refit()) == MICROS[HELD] - 1


def test_a_model_without_metrics_was_fitted_on_all_rows() -> None:
    assert seen(refit(refit=False), refit(), is_measured=False) == MICROS[LAST]


def test_a_holdout_by_the_same_hash_is_unseen_where_nothing_was_refitted() -> None:
    assert seen(refit(**BY_HASH), refit(**BY_HASH)) == -(2**63)


@pytest.mark.parametrize("then", [refit(time_column=None), refit(**BY_HASH, seed=9),
                                  refit(**BY_HASH, holdout={"by": "hash", "share": 0.3}), None])  # fmt: skip
def test_where_no_row_can_be_fair_there_is_no_moment(then: Refit | None) -> None:
    assert pd.isna(seen(then, refit(**BY_HASH)))


def test_a_key_of_which_no_row_has_a_time_is_not_compared() -> None:
    assert pd.isna(seen(refit(), refit(), train_to=pd.NaT))


def test_a_spec_in_the_run_table_says_the_same_as_the_spec() -> None:
    import json

    for changes in ({}, {"refit": False}, BY_HASH, {"holdout": {"by": "none"}}):
        spec = load_spec(worlds.spec({"path": "x.parquet"}, None, **changes))
        assert Refit.of_json(json.loads(spec.to_json())) == Refit.of(spec)
