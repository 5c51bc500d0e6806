"""One key trained over two workers, against the same rows fitted on one machine."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from group_models.adapters import spark_columns as sc
from group_models.adapters import spark_ranks
from group_models.adapters.spark_distribute import PlannedKey, distribute_key, why_not
from group_models.adapters.spark_ranks import cut_last, exact_median, values_at
from group_models.artifacts import digest, load_model
from group_models.errors import StateError
from group_models.estimators.base import EstimatorSettings, features_of
from group_models.estimators.registry import make_family
from group_models.evaluation import regression_metrics
from group_models.fitting.outcomes import RESULT, FitSettings
from group_models.fitting.references import ModelRow
from group_models.fitting.units import fit_unit
from group_models.mlmodel import MlmodelTemplate
from group_models.tables import STORE

SLOTS = 2
NUMBERS = {"a": "numeric", "size [cm]": "numeric"}
MIXED = {"a": "numeric", "color": "text"}
PLAIN = {"a": "numeric", "b": "numeric"}
KEY = PlannedKey("0" * 32, '{"carrier":"UA"}', 4)
PARAMS = {"n_estimators": 8, "max_depth": 3}
STOPPING = {"n_estimators": 200, "max_depth": 3, "learning_rate": 0.3, "early_stopping_rounds": 5}


def key_rows(features=PLAIN, count=1500, seed=0):
    """Return a key's rows: the newest fifth held out, some values missing, no two alike."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, count))
    color = rng.integers(0, 3, count)
    shift = 2.0 * color if "color" in features else np.where(b > 0, 2.0, -1.0)
    y = 3 * a + shift + rng.normal(size=count) * 0.3
    a[rng.random(count) < 0.1] = np.nan
    text = pd.Series([("red", "blue", None)[i] for i in color], dtype=object)
    time = rng.integers(0, count // 2, count)
    return pd.DataFrame(
        {
            "time_us": time * 1_000_000,
            "row_hash": rng.integers(-(2**63), 2**63 - 1, count),
            "is_holdout": time >= np.quantile(time, 0.8),
            "y": y,
            "f0": a,
            "f1": text if "color" in features else b,
        }
    )


def settings(features=PLAIN, params=PARAMS, **changes):
    estimator = EstimatorSettings("xgboost", params)
    family = make_family(estimator, features_of(features))
    template = MlmodelTemplate.build(
        model_set="c.s.m", run_id="r1", estimator="xgboost", flavor=family.flavor, features=features_of(features)
    )
    values = {
        "model_set": "c.s.m", "run_id": "r1", "features": features, "estimator": estimator, "template": template,
        "refit": True, "seed": 7, "max_model_bytes": 10**7,
        "holdout_by": "time", "holdout_share": 0.2, "holdout_from_us": 5,
    }  # fmt: skip
    return FitSettings(**{**values, **changes})


def spark_frame(spark, rows, partitions=2):
    return spark.createDataFrame(pa.Table.from_pandas(rows, preserve_index=False)).repartition(partitions)


def alone(rows, of):
    """Return what one machine makes of the same rows."""
    keys = pd.DataFrame({"key_index": [0], "key_id": [KEY.key_id], "key": [KEY.key], "unit": [KEY.unit]})
    (row,) = fit_unit(rows.assign(key_index=0), keys, of).to_dict("records")
    return row


def distributed(spark, rows, of, partitions=2):
    table = distribute_key(spark_frame(spark, rows, partitions), KEY, of, SLOTS)
    assert table.schema.names == list(RESULT)
    assert all(table.schema.field(name).type == STORE.arrow_schema.field(name).type for name in RESULT)
    (row,) = table.to_pylist()
    return {name: dict(value) if isinstance(value, list) else value for name, value in row.items()}


def inputs(rows, features):
    return rows[["f0", "f1"]].set_axis(list(features), axis=1)


def model_of(row):
    return load_model(row["data"], format=row["format"], data_file=row["data_file"], sha256=row["sha256"])


def rounds_of(row):
    return model_of(row).native.num_boosted_rounds()


def test_a_classic_session_with_the_slots_can_distribute(spark):
    assert why_not(spark, EstimatorSettings("xgboost", STOPPING), features_of(MIXED), SLOTS) is None


def test_a_connect_session_trains_the_key_or_says_why_it_cannot(connect_spark):
    reason = why_not(connect_spark, EstimatorSettings("xgboost", PARAMS), features_of(PLAIN), SLOTS)
    row = distributed(connect_spark, key_rows(), settings())
    if reason is None:
        assert row["status"] == "trained", row["reason"]
    else:
        assert reason.startswith("xgboost.spark does not train in this session: ")
        assert "\n" not in reason
        assert (row["status"], row["error_stage"], row["data"]) == ("failed", "fit", None)


@pytest.mark.parametrize(
    ("slots", "said"),
    [(1, "distributing needs 2 task slots, and there is 1"), (3, "over 3 task slots .* the session has 2")],
)
def test_too_few_slots_are_a_reason(spark, slots, said):
    assert re.search(said, why_not(spark, EstimatorSettings("xgboost"), features_of(PLAIN), slots))


def test_a_parameter_that_only_a_distributed_fit_refuses_is_found_by_the_trial(spark):
    reason = why_not(spark, EstimatorSettings("xgboost", {"device": "cpu:0"}), features_of(PLAIN), SLOTS)
    assert re.search("xgboost.spark does not train in this session: ValueError: .*device ordinal", reason)


CASES = {
    "numbers": (PLAIN, PARAMS),
    "odd names": (NUMBERS, PARAMS),
    "text": (MIXED, PARAMS),
    "early stopping": (PLAIN, STOPPING),
    "text, early stopping": (MIXED, STOPPING),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("numbers", marks=pytest.mark.slow),
        pytest.param("odd names", marks=pytest.mark.slow),
        pytest.param("text", marks=pytest.mark.slow),
        "early stopping",
        "text, early stopping",
    ],
)
def test_a_distributed_key_is_close_to_what_one_machine_makes_of_its_rows(spark, case):
    features, params = CASES[case]
    rows, of = key_rows(features), settings(features, params)
    row, other = distributed(spark, rows, of), alone(rows, of)
    assert row["status"] == other["status"] == "trained", row["reason"]
    same = ["key_id", "part", "format", "estimator", "unit", "seed", "holdout_rows", "rows_used", "data_file", "reason"]
    assert {name: row[name] for name in same} == {name: other[name] for name in same}
    assert rounds_of(row) == rounds_of(other)
    assert row["params"] == {n: v for n, v in other["params"].items() if n != "n_jobs"} | {"num_workers": "2"}
    assert row["baseline_metrics"] == pytest.approx(other["baseline_metrics"], rel=1e-12)
    for name in ("mae", "rmse"):
        assert row["metrics"][name] == pytest.approx(other["metrics"][name], rel=0.05)
    here, there = (model_of(each).predict(inputs(rows, features)) for each in (row, other))
    assert np.corrcoef(here, there)[0, 1] > 0.99


def saying(value, reference):
    """Return a parent's model that predicts one number, as it comes with a key."""
    of = settings()
    median = dataclasses.replace(of, estimator=EstimatorSettings("median"))
    row = alone(key_rows(count=10).assign(y=value), median)
    return ModelRow("parent", reference, 0, 0, row["format"], row["data_file"], row["sha256"], row["data"]).pack()


def test_a_distributed_parent_is_compared_with_its_own_and_leaves_the_model_that_has_not_seen_the_holdout(spark):
    rows, of = key_rows(), settings(keeps_measured=True)
    key = dataclasses.replace(KEY, models=[saying(0.5, 3), saying(-1.0, 4)], links=(3, 4))
    whole, measured = distribute_key(spark_frame(spark, rows), key, of, SLOTS).to_pylist()
    held = rows[rows["is_holdout"]]
    found = dict(whole["baseline_metrics"])
    own = np.abs(model_of(measured).predict(inputs(held, PLAIN)) - held["y"])
    for name, value in (("parent", 0.5), ("global", -1.0)):
        other = np.abs(value - held["y"])
        assert found[f"{name}_mae"] == pytest.approx(other.mean(), rel=1e-9)
        assert found[f"{name}_difference"] == pytest.approx((own - other).mean(), rel=1e-6)
        assert found[f"{name}_difference_se"] == pytest.approx((own - other).std() / len(held) ** 0.5, rel=1e-6)
    assert (whole["part"], measured["part"]) == (-1, 0)
    assert (whole["rows_used"], measured["rows_used"]) == (len(rows), len(rows) - len(held))
    median = pytest.approx(rows.loc[~rows["is_holdout"], "y"].median(), rel=1e-12)
    assert dict(measured["baseline_metrics"]) == {"train_median": median}


def test_the_metrics_are_those_of_the_stored_form_on_the_holdout_only(spark):
    rows = key_rows(MIXED)
    row = distributed(spark, rows, settings(MIXED, STOPPING, refit=False))
    held = rows[rows["is_holdout"]]
    expected = regression_metrics(held["y"].to_numpy(), model_of(row).predict(inputs(held, MIXED)))
    assert row["metrics"] == pytest.approx(expected, rel=1e-9)
    assert row["rows_used"] < len(rows) - len(held)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["text, early stopping", "numbers"])
def test_the_same_rows_give_the_same_bytes_however_they_came(spark, case):
    features, params = CASES[case]
    rows, of = key_rows(features), settings(features, params | {"subsample": 0.7})
    first = distributed(spark, rows, of, partitions=1)
    again = distributed(spark, rows.sample(frac=1, random_state=3), of, partitions=5)
    assert first["sha256"] == again["sha256"] == digest(first["data"])
    assert first["metrics"] == again["metrics"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_holdout": False}, "no row of the key falls into the holdout"),
        ({"is_holdout": True}, "all rows of the key fall into the holdout"),
    ],
)
def test_a_key_without_a_holdout_is_trained_and_says_so(spark, change, said):
    row = distributed(spark, key_rows(count=200).assign(**change), settings())
    assert (row["status"], row["rows_used"], row["metrics"]) == ("trained", 200, None)
    assert said in row["reason"]


@pytest.mark.parametrize(
    ("rows", "params", "stage", "said"),
    [
        (key_rows(count=200)[:0], PARAMS, "prepare", "no row of the key reached the fit"),
        (key_rows(count=200).assign(f1=1e39), PARAMS, "prepare", "infinite values in 'b'"),
        (key_rows(count=200), {"tree_method": "exact"}, "fit", "`exact` tree method is not supported"),
        (key_rows(count=200).assign(y=-5.0), {"objective": "reg:gamma"}, "fit", "`base_score` must be greater than 0"),
    ],
    ids=["no rows", "infinite", "refused on the driver", "refused on the workers"],
)
def test_a_failure_is_a_row_with_stage_and_reason(spark, rows, params, stage, said):
    row = distributed(spark, rows, settings(params=params))
    assert (row["status"], row["error_stage"], row["data"]) == ("failed", stage, None)
    assert said in row["error_message"]
    assert said in row["reason"]
    assert len(row["reason"]) < 700


def test_a_session_that_has_lost_slots_since_the_plan_is_no_outcome_of_the_key_and_no_waiting(spark):
    with pytest.raises(StateError, match="over 3 task slots needs them at the same time, and the session has 2"):
        distribute_key(spark_frame(spark, key_rows(count=200)), KEY, settings(), 3)


@pytest.mark.slow
def test_a_model_that_is_too_big_is_a_row_without_a_model(spark):
    row = distributed(spark, key_rows(count=200), settings(max_model_bytes=100))
    assert (row["status"], row["data"]) == ("model_too_big", None)
    assert row["model_bytes"] > 100


@pytest.mark.parametrize(("count", "step"), [(1, None), (2, 10.0), (500, 10.0), (501, None)])
def test_the_median_is_exact(any_spark, count, step):
    y = np.random.default_rng(count).normal(scale=20, size=count)
    y = y if step is None else np.round(y / step) * step
    frame = spark_frame(any_spark, pd.DataFrame({"y": y}), partitions=3)
    assert exact_median(frame, "y", count) == np.median(y)


def test_a_rank_is_found_where_the_first_look_misses_it(spark, monkeypatch):
    monkeypatch.setattr(spark_ranks, "_SLACK", -0.3)
    frame = spark_frame(spark, pd.DataFrame({"y": np.arange(100.0)}))
    assert values_at(frame, "y", [50], 100) == [spark_ranks.Ranked(50.0, 50, 1)]


@pytest.mark.parametrize(("times", "wanted"), [(1, 40), (7, 1), (7, 299), (100_000, 40)])
def test_the_last_rows_are_those_of_the_fits_order(spark, times, wanted):
    rng = np.random.default_rng(wanted)
    rows = pd.DataFrame({"time_us": rng.integers(0, times, 300), "row_hash": rng.integers(-(2**63), 2**63 - 1, 300)})
    frame = spark_frame(spark, rows)
    cut = cut_last(frame, wanted, 300)
    expected = rows.sort_values(["time_us", "row_hash"]).tail(wanted)
    found = frame.where(cut.is_after()).toPandas().sort_values(["time_us", "row_hash"])
    assert cut.rows == wanted
    assert found.to_numpy().tolist() == expected.to_numpy().tolist()


def test_rows_without_a_time_and_identical_rows_have_a_cut_too(spark):
    rows = pd.DataFrame({"time_us": np.full(10, sc.NO_TIME), "row_hash": [1, 2, 3, 4, 5, 6, 7, 7, 7, 9]})
    frame = spark_frame(spark, rows)
    assert cut_last(frame, 2, 10) == spark_ranks.Cut(sc.NO_TIME, 7, 4)
    assert frame.where(cut_last(frame, 2, 10).is_after()).count() == 4
