"""Runs with `oversize: distribute`, end to end: planned, trained, resumed, served."""

import mlflow.pyfunc
import numpy as np
import pytest
from xgboost import XGBRegressor

import group_models
from group_models.errors import StateError
from group_models.keys import key_id
from group_models.runs import waves
from group_models.tables import STORE
from tests import worlds

BIG = ("UA", 1)
TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)
SAMPLE = worlds.Sample(
    {"name": "xgboost", "params": {"n_estimators": 6, "max_depth": 3}},
    lambda seed: worlds.ByHand(
        "category", XGBRegressor(n_estimators=6, max_depth=3, n_jobs=1, random_state=seed, enable_categorical=True)
    ),
    worlds.MIXED,
)


def spec_of(spark, folder, **changes):
    """Return a spec by which one key of the world is oversize, and is to be distributed."""
    limits = {"min_rows": worlds.MIN_ROWS, "max_key_rows": worlds.SIZES[BIG] - 1}
    source = worlds.spark_rows(spark, TABLE)
    given = {"estimator": SAMPLE.estimator, "features": list(SAMPLE.features), "oversize": "distribute"}
    # What it is compared with minimises squares.
    given["metric"] = "rmse"
    return worlds.spec(source, folder / "warehouse", limits=limits, **{**given, **changes})


def rows_of(spec, run):
    return {worlds.key_of(row): row for row in group_models.show(spec, run_id=run.run_id)}


def stored(run):
    where = {"model_set": [run.model_set], "run_id": [run.run_id]}
    rows = run.tables.read(STORE, columns=["key_id", "part", "wave", "number", "sha256"], where=where).to_pylist()
    assert len({(row["key_id"], row["part"]) for row in rows}) == len(rows)
    return {row["key_id"]: row for row in rows if row["part"] == -1}


@pytest.fixture(scope="module")
def undisturbed(spark, tmp_path_factory):
    """A run in a classic session: its spec, the run, and its stored rows."""
    spec = spec_of(spark, tmp_path_factory.mktemp("distributed"))
    run = group_models.train(spec, spark=spark)
    return spec, run, stored(run)


def test_a_distributed_key_is_an_outcome_like_any_other(spark, undisturbed):
    spec, run, _ = undisturbed
    row = rows_of(spec, run)[BIG]
    assert (row["status"], row["serves"], row["policy"], row["n_parts"]) == ("trained", "new", "distributed", 1)
    assert row["reason"] == "90 usable rows are over max_key_rows 89; trained over the whole cluster"
    assert row["params"]["num_workers"] == "2"
    assert run.counts == {"trained": len(worlds.FITTED), "too_small": 1}


def test_its_metrics_and_predictions_are_close_to_those_of_the_plain_loop(spark, undisturbed):
    spec, run, _ = undisturbed
    row = rows_of(spec, run)[BIG]
    expected = worlds.loop(FRAME, SAMPLE, is_holdout=worlds.time_holdout(FRAME))[BIG]
    assert (row["rows_used"], row["holdout_rows"]) == (expected.rows_used, expected.holdout_rows)
    assert row["baseline_metrics"] == pytest.approx(expected.baseline_metrics, rel=1e-12)
    assert row["metrics"]["mae"] == pytest.approx(expected.metrics["mae"], rel=0.1)
    own = next(rows for key, rows in worlds.by_key(FRAME) if key == BIG)
    scored = group_models.score(FRAME, spec).set_index("row_id").loc[own["row_id"]]
    assert set(scored["score_status"]) == {"scored"}
    wanted = expected.model.predict(worlds.inputs(own, SAMPLE.features))
    assert np.corrcoef(scored["prediction"], wanted)[0, 1] > 0.99


def test_its_model_is_a_pyfunc_like_any_other(spark, undisturbed):
    spec, _, _ = undisturbed
    own = next(rows for key, rows in worlds.by_key(FRAME) if key == BIG)
    scored = group_models.score(FRAME, spec).set_index("row_id").loc[own["row_id"], "prediction"]
    x = worlds.inputs(own, SAMPLE.features)
    loaded = group_models.load_model(spec, carrier=BIG[0], stop=BIG[1])
    assert isinstance(loaded, mlflow.pyfunc.PyFuncModel)
    np.testing.assert_array_equal(loaded.predict(x), scored)


def test_it_is_trained_alone_in_the_last_wave(undisturbed):
    _, _, rows = undisturbed
    big = rows[key_id(BIG)]
    assert big["wave"] == max(row["wave"] for key, row in rows.items() if key != key_id(BIG)) + 1
    assert big["number"] == big["wave"] * 1000


def test_nothing_is_tried_where_no_key_would_be_distributed(spark, undisturbed, monkeypatch):
    spec, _, _ = undisturbed
    monkeypatch.setattr("group_models.adapters.spark_distribute.why_not", lambda *_: pytest.fail("tried"))
    decisions = {row["key_id"]: row["decision"] for row in group_models.plan(spec, spark=spark).keys.to_pylist()}
    assert decisions[key_id(BIG)] == "unchanged"


def test_a_resume_trains_what_is_missing_and_gives_the_same_models(spark, undisturbed, tmp_path, monkeypatch):
    _, _, expected = undisturbed
    spec = spec_of(spark, tmp_path)

    def die(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(waves, "distribute_wave", die)
        with pytest.raises(KeyboardInterrupt):
            group_models.train(spec, spark=spark, run_id="night")
    run = group_models.train(spec, spark=spark, run_id="night")
    found = stored(run)
    assert {key: row["sha256"] for key, row in found.items()} == {key: row["sha256"] for key, row in expected.items()}
    assert {key: row["number"] for key, row in found.items()} == {key: row["number"] for key, row in expected.items()}


def test_a_distributed_key_that_has_a_row_is_not_trained_again(spark, tmp_path, monkeypatch):
    spec = spec_of(spark, tmp_path)

    def fail(*arguments, **options):
        raise StateError("no manifest tonight")

    with monkeypatch.context() as patch:
        patch.setattr("group_models.runs.training.compose", fail)
        with pytest.raises(StateError, match="no manifest tonight"):
            group_models.train(spec, spark=spark, run_id="night")
    monkeypatch.setattr("group_models.adapters.spark_distribute.distribute_key", fail)
    run = group_models.train(spec, spark=spark, run_id="night")
    assert rows_of(spec, run)[BIG]["policy"] == "distributed"


def test_on_connect_an_oversize_key_is_distributed_or_salted_with_the_reason(connect_spark, tmp_path):
    spec = spec_of(connect_spark, tmp_path)
    run = group_models.train(spec, spark=connect_spark)
    row = rows_of(spec, run)[BIG]
    assert row["status"] == "trained"
    if row["policy"] != "distributed":
        assert row["policy"] == "salted"
        assert row["n_parts"] > 1
        assert "parts, not distributed: xgboost.spark does not train in this session: " in row["reason"]


def test_another_estimator_is_salted_and_says_why(spark, tmp_path):
    spec = spec_of(spark, tmp_path, estimator="ridge", features=list(worlds.NUMERIC))
    keys = group_models.plan(spec, spark=spark).keys.to_pylist()
    reasons = {row["key_id"]: (row["decision"], row["reason"]) for row in keys}
    decision, reason = reasons[key_id(BIG)]
    assert decision == "salted"
    assert reason.endswith("not distributed: only the estimator xgboost can be distributed, not ridge")
