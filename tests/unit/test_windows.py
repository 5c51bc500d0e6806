"""Rows too old for the window, rows whose label may not be known yet, and the gap before the holdout."""

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, features_of
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.units import fit_unit
from group_models.loading import load_spec
from group_models.mlmodel import MlmodelTemplate
from group_models.planning.deciding import SIZES, decide
from group_models.planning.plans import Plan, summarise
from group_models.planning.source_checks import source_stats
from group_models.planning.windows import LEFT_OUT, NO_BOUNDS, Bounds
from group_models.spec import Spec
from group_models.tables import PLAN, moment

DAY = 86_400_000_000
SPEC = {
    "model_set": "c.s.m", "source": {"path": "x"}, "keys": ["k"], "target": "y", "features": ["x"],
    "estimator": {"name": "ridge"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("window", "delay", "bounds"),
    [
        (None, None, (None, None)),
        (3.0, None, (97 * DAY, None)),
        (None, 48.0, (None, 98 * DAY)),
        (3.0, 48.0, (95 * DAY, 98 * DAY)),
    ],
)
def test_bounds_are_counted_back_from_the_newest_label(window, delay, bounds):
    found = Bounds.of(100 * DAY, window_days=window, label_delay_hours=delay)
    assert (found.after_us, found.until_us) == bounds


def test_a_source_without_a_label_has_no_bounds():
    assert Bounds.of(None, window_days=3.0, label_delay_hours=1.0) == NO_BOUNDS


@pytest.mark.parametrize(
    "changes",
    [
        {"window_days": 3},
        {"label_delay_hours": 3},
        {"holdout": {"gap_hours": 3}},
        {"limits": {"max_staleness_hours": 3}},
    ],
)
def test_without_a_time_column_they_mean_nothing_and_are_refused(changes):
    said = "needs a time_column, which tells how old a row is"
    with pytest.raises(SpecError, match=said):
        load_spec(SPEC | changes)
    with pytest.raises(SpecError, match=said):
        load_spec(Spec(**SPEC, **changes))
    assert load_spec(SPEC | changes | {"time_column": "at"}).time_column == "at"


def test_a_gap_needs_a_holdout_by_time():
    with pytest.raises(SpecError, match=r"holdout: gap_hours is before the moment.*this one is by hash"):
        load_spec(SPEC | {"holdout": {"by": "hash", "gap_hours": 3}})


def test_a_spec_without_them_is_written_and_fingerprinted_as_before_there_were_any():
    plain = load_spec(SPEC | {"time_column": "at"})
    assert not {"window_days", "label_delay_hours", "gap_hours"} & set(plain.to_json().split('"'))
    windowed = load_spec(SPEC | {"time_column": "at", "window_days": 3, "label_delay_hours": 5})
    assert windowed.fingerprint({}) == plain.fingerprint({})
    gap = load_spec(SPEC | {"time_column": "at", "holdout": {"gap_hours": 3}})
    assert gap.fingerprint({}) != plain.fingerprint({})


def sizes(**counts: int) -> pa.Table:
    row = {"key_id": "a", "key": [("k", "a")], "level": "k", "rows": 50, "usable_rows": 0, "bytes": 0, **counts}
    return pa.Table.from_pylist([row], schema=pa.schema(list(SIZES)))


def test_a_key_that_is_too_small_for_rows_that_are_left_out_says_so():
    decided = decide(sizes(usable_rows=3, old_rows=40, immature_rows=2), load_spec(SPEC))
    said = "3 usable rows; min_rows is 30; left out: 40 rows before the window, 2 rows whose label may not be known yet"
    assert (decided.decision[0], decided.reason[0]) == ("too_small", said)
    assert decide(sizes(old_rows=50), load_spec(SPEC)).decision[0] == "too_small"
    assert decide(sizes(old_rows=0), load_spec(SPEC)).decision[0] == "no_target"


def test_rows_left_out_do_not_count_as_rows_without_a_target():
    stats = source_stats(sizes(usable_rows=10, old_rows=30, immature_rows=5), {}, "y", ())
    assert stats["missing y"] == pytest.approx(0.1)


def test_a_plan_tells_the_window_and_keeps_it_in_its_table():
    keys = sizes(usable_rows=40, old_rows=7).append_column("decision", pa.array(["unchanged"]))
    plan = Plan(PLAN.conform(keys.append_column("model_set", pa.array(["m"])).append_column("run_id", pa.array(["r"]))),
                slots=1, bounds=Bounds(2 * DAY, 9 * DAY))  # fmt: skip
    again = Plan.of_rows(plan.rows("c.s.m", "r1"), slots=1)
    assert again.bounds == plan.bounds
    facts = summarise(again).facts()
    assert facts["window"] == "rows after 1970-01-03 00:00:00 and up to 1970-01-10 00:00:00"
    assert facts["rows"] == "50, 40 of them usable; left out: 7 rows before the window"
    assert (moment(2 * DAY), again.bounds.until) == (again.bounds.after, dt.datetime(1970, 1, 10, tzinfo=dt.UTC))
    assert set(LEFT_OUT) < set(PLAN.names)


FEATURES = {"x": "numeric"}


def fitted(estimator: str, times: list[int], *, part: int = -1, **changes: Any) -> list[dict[str, Any]]:
    """Fit one key whose target is its row's time; the holdout is from 8 on."""
    names = features_of(FEATURES)
    settings = FitSettings(
        model_set="c.s.m", run_id="r1", features=FEATURES, estimator=EstimatorSettings(estimator), seed=7,
        template=MlmodelTemplate.build(
            model_set="c.s.m", run_id="r1", estimator=estimator, flavor="sklearn", features=names
        ),
        **{"refit": False, "max_model_bytes": 10**6, "holdout_by": "time", "holdout_share": 0.2, "holdout_from_us": 8,
           **changes},
    )  # fmt: skip
    at = np.array(times)
    frame = pd.DataFrame(
        {"key_index": 0, "time_us": at, "row_hash": at, "is_holdout": at >= 8, "y": at * 1.0, "f0": at % 3 * 1.0}
    )
    keys = pd.DataFrame({"key_index": [0], "key_id": ["a"], "key": ["{}"], "unit": [0], "part": [part], "n_parts": [2]})
    return fit_unit(frame, keys, settings).to_dict("records")


@pytest.mark.parametrize("estimator", ["median", "random_forest"])
def test_rows_in_the_gap_are_in_no_measured_model_and_in_the_refit(estimator):
    (row,) = fitted(estimator, list(range(10)), gap_us=3)
    (without,) = fitted(estimator, [0, 1, 2, 3, 4, 8, 9])
    assert (row["rows_used"], row["holdout_rows"]) == (5, 2)
    assert (row["metrics"], row["baseline_metrics"]) == (without["metrics"], without["baseline_metrics"])
    (refitted,) = fitted(estimator, list(range(10)), gap_us=3, refit=True)
    assert (refitted["rows_used"], refitted["metrics"]) == (10, row["metrics"])


@pytest.mark.parametrize("estimator", ["median", "random_forest"])
def test_a_key_of_which_only_gap_and_holdout_are_left_is_fitted_on_all_and_says_so(estimator):
    (row,) = fitted(estimator, [6, 7, 8], gap_us=3)
    assert (row["status"], row["rows_used"]) == ("trained", 3)
    assert row["reason"] == "no metrics: all rows of the key fall into the holdout or the gap before it; fitted on them"
    (early,) = fitted(estimator, [5, 6, 7], gap_us=2)
    assert (early["rows_used"], early["reason"]) == (3, "no metrics: no row of the key falls into the holdout")


def test_a_part_without_held_rows_leaves_the_gap_out_of_its_measured_model_too():
    measured, final = fitted("median", [0, 1, 2, 6, 7], part=0, gap_us=3, refit=True)
    assert [(row["part"], row["rows_used"]) for row in (measured, final)] == [(2, 3), (0, 5)]
    assert measured["baseline_metrics"]["train_median"] == 1.0
