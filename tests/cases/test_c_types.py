"""Schema and types: decimals, nullable integers, times, text, column order and names, empty and nested input."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import yaml
from pyspark.sql import functions as F
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from group_models import api
from group_models.adapters import spark_output
from group_models.errors import DataError, SpecError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import check_settings
from group_models.fakes import MemoryTables
from group_models.frames import check_columns
from group_models.loading import load_spec
from group_models.runs.plan_making import make_plan
from group_models.runs.preparing import prepare
from group_models.tables import MANIFEST, RUN, STORE, micros
from tests.cases.worlds import ENGINES, by_key, fit_keys, scored, spec_of, tables_of, trained, unpickled, values

PRICES = "carrier string, row_id int, price decimal(10,2), qty int, y decimal(12,4)"


@pytest.fixture(scope="module")
def prices(spark, tmp_path_factory):
    """Decimal price and target, integer quantity: y = 2 price + qty. Only carrier A has a row without a price."""
    rows = [
        (carrier, 100 * k + i, Decimal(i) / 4, i % 7, Decimal(i) / 2 + i % 7)
        for k, carrier in enumerate("AB")
        for i in range(40)
    ]
    rows.append(("A", 99, None, 3, Decimal(3)))
    frame = spark.createDataFrame(rows, PRICES)
    estimator = {"name": "ridge", "params": {"alpha": 1e-9}}
    return trained(frame, tmp_path_factory.mktemp("prices"), features=["price", "qty"], estimator=estimator)


def test_c1_decimals_are_fitted_as_doubles_and_the_run_says_so(prices):
    rows = by_key(api.show(prices.spec))
    assert {key: (row["status"], row["rows_used"]) for key, row in rows.items()} == {
        "A": ("trained", 41),
        "B": ("trained", 40),
    }
    started = tables_of(prices.spec).read(RUN, where={"event": ["started"]}).to_pylist()[0]
    assert dict(started["feature_kinds"]) == {"price": "numeric", "qty": "numeric"}


@pytest.mark.parametrize("engine", ENGINES)
def test_c1_a_decimal_and_the_same_double_are_scored_alike_and_null_is_missing(spark, prices, engine):
    question = [("B", 1, Decimal("2.50"), 3), ("A", 2, None, 3), ("B", 3, None, 3)]
    frame = spark.createDataFrame(question, "carrier string, row_id int, price decimal(10,2), qty int")
    decimals = values(scored(engine, frame, prices.spec))
    doubles = values(scored(engine, frame.withColumn("price", F.col("price").cast("double")), prices.spec))
    assert decimals == doubles
    assert decimals[1] == pytest.approx(8.0)
    assert all(value is not None for value in decimals.values())


def test_c2_every_key_has_the_same_signature_of_nullable_doubles(prices):
    stored = tables_of(prices.spec).read(STORE, columns=["mlmodel"])["mlmodel"].to_pylist()
    signatures = [yaml.safe_load(text)["signature"] for text in stored]
    assert len(signatures) == 2
    assert signatures[0] == signatures[1]
    double = {"type": "double", "required": False}
    assert yaml.safe_load(signatures[0]["inputs"]) == [{"name": name, **double} for name in ("price", "qty")]
    assert yaml.safe_load(signatures[0]["outputs"]) == [{"type": "double", "name": "prediction", "required": True}]


@pytest.mark.parametrize("engine", ENGINES)
def test_c2_a_null_that_training_never_saw_in_an_integer_column_is_scored(spark, prices, engine):
    frame = spark.createDataFrame(
        [("B", 1, Decimal("2.50"), None), ("B", 2, Decimal("2.50"), 3)],
        "carrier string, row_id int, price decimal(10,2), qty int",
    )
    out = scored(engine, frame, prices.spec)
    assert set(out["score_status"]) == {"scored"}
    assert values(out) == {1: pytest.approx(8.0), 2: pytest.approx(8.0)}


@pytest.mark.parametrize("qty", [np.array([3], np.int32), np.array([3.0]), np.array([np.nan])])
def test_c2_the_pyfunc_of_a_key_takes_integers_and_missing_values(prices, qty):
    model = api.load_model(prices.spec, carrier="B")
    assert model.predict(pd.DataFrame({"price": [2.5], "qty": qty})).tolist() == pytest.approx([8.0])


@pytest.mark.parametrize("spark_type", ["timestamp", "timestamp_ntz", "date"])
def test_c4_a_raw_time_is_refused_as_a_feature_with_the_way_out(spark_type):
    mistakes = check_columns({"at": spark_type}, features=["at"])
    said = "a feature is numeric, boolean or text; derive numbers from it in the source (hour, weekday, ...)"
    assert mistakes == [f"features: 'at' is {spark_type}; {said}"]


HOUR_US = 3_600_000_000
SUMMER_TIME_ENDS = dt.datetime(2024, 11, 3, 3, tzinfo=dt.UTC)
"""Three hours before New York's clocks go back: its hour from one to two happens twice."""


def at(hours):
    return int(SUMMER_TIME_ENDS.timestamp() * 1e6) + hours * HOUR_US


FAR = {"1600": -11_676_096_000_000_000, "9999": 253_402_300_799_000_000}
"""The first moment of 1600 and the last second of 9999, in microseconds since 1970."""


@pytest.mark.parametrize("spark_type", ["timestamp", "timestamp_ntz", "date"])
def test_c4_the_holdout_is_the_same_in_every_time_zone_of_the_session(spark, tmp_path, spark_type):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    moments = [*[at(hours) for hours in range(48)], *FAR.values()]
    path = str(tmp_path / "times.parquet")
    frame = spark.createDataFrame([("A", moment, 1.0) for moment in moments], "carrier string, us bigint, y double")
    typed = F.timestamp_micros("us").cast(spark_type)
    frame.select("carrier", typed.alias("at"), F.col("y").alias("x"), "y").coalesce(1).write.parquet(path)
    spec = load_spec(spec_of({"path": path}, tmp_path, time_column="at", holdout={"by": "time", "share": 0.2}))
    seen = []
    for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            prepared = prepare(spec, MemoryTables(), spark)
            times = [row["time_us"] for row in prepared.rows().select("time_us").collect()]
            plan = make_plan(prepared, None)
            seen.append((sorted(times), micros(plan.holdout_from), plan.keys.to_pylist()))
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    day = 24 * HOUR_US
    expected = moments if spark_type != "date" else [moment - moment % day for moment in moments]
    assert seen[0][0] == sorted(expected)
    assert sum(time >= seen[0][1] for time in expected) in ((10, 11) if spark_type != "date" else (4,))
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


COLORS = Features(("weight",), ("color",), ("weight", "color"))


def test_c6_an_estimator_that_cannot_take_text_is_refused_with_the_column_before_any_fit():
    xgboost = pytest.importorskip("xgboost")
    mistakes = check_settings(EstimatorSettings(object=xgboost.XGBRegressor(n_estimators=2)), COLORS)
    assert len(mistakes) == 1
    assert "cannot take the text features color (string)" in mistakes[0]
    assert "ColumnTransformer with OneHotEncoder" in mistakes[0]


def test_c6_rows_that_early_stopping_watches_pass_the_same_fitted_encoding():
    xgboost = pytest.importorskip("xgboost")
    encode = ColumnTransformer([("color", OneHotEncoder(handle_unknown="ignore"), ["color"])], remainder="passthrough")
    boost = xgboost.XGBRegressor(n_estimators=50, early_stopping_rounds=3, learning_rate=0.5)
    settings = EstimatorSettings(object=Pipeline([("encode", encode), ("boost", boost)]))
    assert check_settings(settings, COLORS) == []
    rng = np.random.default_rng(0)
    color = np.array(["red", "blue", "green"])[rng.integers(0, 3, 200)]
    x = pd.DataFrame({"weight": rng.normal(size=200), "color": color.astype(object)})
    y = x["weight"].to_numpy() + np.where(color == "red", 10.0, 0.0)
    row = fit_keys(x, y, estimator=settings, text=("color",), refit=False)[0]
    assert (row["status"], row["rows_used"]) == ("trained", 160)
    assert 0 < int(row["params"]["best_iteration"]) < 50
    assert np.abs(unpickled(row).predict(x) - y).mean() < 0.5


ABC = [("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6), ("A", 708, 7.0, 0, 8)]
ABC_DDL = "carrier string, row_id bigint, a double, b int, c bigint"
ABC_ANSWER = {123: pytest.approx(123), 456: pytest.approx(-456), 708: pytest.approx(708)}


@pytest.mark.parametrize("engine", ENGINES)
def test_c8_the_order_of_the_columns_and_unused_ones_change_nothing(spark, lines, engine):
    frame = spark.createDataFrame(ABC, ABC_DDL)
    shuffled = frame.select("c", F.lit(7.0).alias("z"), "row_id", "a", F.lit("t").alias("note"), "b", "carrier")
    assert values(scored(engine, shuffled, lines.spec)) == ABC_ANSWER


@pytest.mark.parametrize("lost", ["dropped", "renamed"])
@pytest.mark.parametrize("kind", ["spark", "pandas"])
def test_c9_a_missing_feature_is_refused_on_the_driver_by_its_name(spark, lines, kind, lost):
    frame = spark.createDataFrame(ABC, ABC_DDL)
    frame = frame.drop("b") if lost == "dropped" else frame.withColumnRenamed("b", "B")
    asked = frame if kind == "spark" else frame.toPandas()
    with pytest.raises(DataError, match=r"'b'") as error:
        api.score(asked, lines.spec)
    if kind == "spark":
        assert f"needed by the models of run {lines.run.run_id}" in str(error.value)


@pytest.fixture(scope="module")
def mixed(spark, tmp_path_factory):
    """Carrier A was trained on a and b, carrier B later on a and c: y = a + b, y = a + c."""
    folder = tmp_path_factory.mktemp("mixed")
    rows = [(carrier, float(i), float(i % 3), float(i % 5)) for carrier in "AB" for i in range(30)]
    frame = spark.createDataFrame(rows, "carrier string, a double, b double, c double")
    estimator = {"object": LinearRegression(), "version": "1"}
    spec = {}
    for carrier, other in (("A", "b"), ("B", "c")):
        source = frame.withColumn("y", F.col("a") + F.col(other))
        spec = spec_of(source, folder, features=["a", other], estimator=estimator)
        api.train(spec, where=f"carrier = '{carrier}'", spark=spark)
    return spec


@pytest.mark.parametrize("engine", ENGINES)
def test_c9_models_of_other_feature_lists_are_scored_side_by_side(spark, mixed, engine):
    rows = [("A", 1, 1.0, 10.0, 100.0), ("B", 2, 1.0, 10.0, 100.0)]
    frame = spark.createDataFrame(rows, "carrier string, row_id int, a double, b double, c double")
    assert values(scored(engine, frame, mixed)) == {1: pytest.approx(11.0), 2: pytest.approx(101.0)}


@pytest.mark.parametrize("engine", ENGINES)
def test_c9_only_the_models_that_rows_need_decide_which_columns_must_be_there(spark, mixed, engine):
    frame = spark.createDataFrame([("A", 1, 1.0, 10.0)], "carrier string, row_id int, a double, b double")
    assert values(scored(engine, frame, mixed)) == {1: pytest.approx(11.0)}
    with pytest.raises(DataError, match="'c'"):
        scored(engine, frame.withColumn("carrier", F.lit("B")), mixed)


ODD_FEATURES = ["s.d.", "unit price", "a`b", "x/y", "na\u00efve", "size (cm)", "x<3", "v[0]"]
ODD_DDL = ", ".join(f"`{name.replace('`', '``')}` double" for name in ODD_FEATURES)


@pytest.fixture(scope="module", params=["ridge", "xgboost"])
def odd_names(request, spark, tmp_path_factory):
    """Two stores; the target is the sum of the features, each worth ten times the one before."""
    if request.param == "xgboost":
        pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 10, (60, 8)).astype(float)
    y = x @ 10.0 ** np.arange(8)
    rows = [(store, i, *x[i].tolist(), float(y[i])) for store in "12" for i in range(60)]
    frame = spark.createDataFrame(rows, f"`store.id` string, row_id int, {ODD_DDL}, y double")
    params = {"alpha": 1e-9} if request.param == "ridge" else {"n_estimators": 20}
    estimator = {"name": request.param, "params": params}
    changes = {"keys": ["store.id"], "features": ODD_FEATURES, "estimator": estimator}
    return trained(frame, tmp_path_factory.mktemp("odd-names"), **changes)


@pytest.fixture(scope="module")
def odd_answers(odd_names):
    """What the pyfunc of store 1 says of its rows."""
    rows = odd_names.frame.where("`store.id` = '1'").toPandas()
    model = api.load_model(odd_names.spec, key={"store.id": "1"})
    return dict(zip(rows["row_id"], model.predict(rows[ODD_FEATURES]), strict=True))


def test_c10_columns_of_any_name_are_measured_trained_and_shown(odd_names):
    rows = api.show(odd_names.spec, key={"store.id": "1"})
    assert [(row["key"], row["status"], row["rows"], row["rows_used"]) for row in rows] == [
        ({"store.id": "1"}, "trained", 60, 60)
    ]
    assert len(api.show(odd_names.spec)) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_c10_columns_of_any_name_are_scored_as_the_loaded_model_scores_them(odd_names, odd_answers, engine):
    out = scored(engine, odd_names.frame.where("`store.id` = '1'"), odd_names.spec)
    assert set(ODD_FEATURES) < set(out.columns)
    assert values(out) == {row_id: pytest.approx(value, rel=1e-9) for row_id, value in odd_answers.items()}
    assert len(set(odd_answers.values())) > 30


def test_c11_names_that_tables_refuse_pass_by_into_a_file_and_are_refused_for_a_table(spark, odd_names, tmp_path):
    out = api.score(odd_names.frame, odd_names.spec)
    with pytest.raises(DataError, match=r"a table refuses.*'unit price', 'size \(cm\)'"):
        spark_output.write_output(out, "default.scored", "error")
    assert not spark.catalog.tableExists("default.scored")
    spark_output.write_output(out, str(tmp_path / "scored"), "error")
    written = spark.read.parquet(str(tmp_path / "scored"))
    assert written.columns == out.columns
    assert written.count() == 120


def test_c13_an_empty_input_is_a_run_of_no_keys_with_a_full_schema(spark, tmp_path):
    frame = spark.createDataFrame([("A", 1.0, 1.0)], "carrier string, x double, y double").limit(0)
    said = []
    spec = spec_of(frame, tmp_path)
    run = api.train(spec, spark=spark, say=said.append)
    assert run.counts == {}
    assert tables_of(spec).read(MANIFEST).schema == MANIFEST.arrow_schema
    assert api.show(spec, run_id=run.run_id) == []
    assert [line for line in said if "no rows" in line] != []


def test_c13_keys_that_are_all_too_small_leave_the_last_good_models_in_place(spark, tmp_path):
    rows = [(carrier, float(i), level) for carrier, level in (("A", 1.0), ("B", 2.0)) for i in range(4)]
    frame = spark.createDataFrame(rows, "carrier string, x double, y double")
    first = api.train(spec_of(frame, tmp_path), spark=spark)
    for later in (frame, frame.limit(0)):
        spec = spec_of(later, tmp_path, limits={"min_rows": 30})
        if later is not frame:
            with pytest.raises(DataError, match=r"it has no rows, and 2 keys had models before.*--accept-changes"):
                api.train(spec, spark=spark)
        run = api.train(spec, spark=spark, accept_changes=True)
        status = "too_small" if later is frame else "vanished"
        assert run.counts == {status: 2}
        assert [(row["status"], row["serves"], row["model_run_id"]) for row in api.show(spec)] == [
            (status, "previous", first.run_id)
        ] * 2
        assert set(api.score(frame.toPandas(), spec)["prediction"]) == {1.0, 2.0}


@pytest.mark.parametrize("engine", ENGINES)
def test_c13_an_empty_frame_is_scored_to_an_empty_one_of_the_full_schema(spark, lines, engine):
    frame = spark.createDataFrame(ABC, ABC_DDL)
    some, none = (scored(engine, rows, lines.spec) for rows in (frame, frame.limit(0)))
    assert len(none) == 0
    assert none.columns.tolist() == some.columns.tolist()
    assert none["prediction"].dtype == np.float64


@pytest.mark.parametrize("spark_type", ["array<double>", "struct<a:double,b:double>", "map<string,double>"])
def test_c14_a_nested_feature_is_refused_with_the_hint_to_flatten_it(spark_type):
    assert check_columns({"v": spark_type}, features=["v"]) == [
        f"features: 'v' is {spark_type}; a feature is numeric, boolean or text; flatten it into columns in the source"
    ]


def test_c14_all_mistakes_of_a_spec_are_told_at_once_before_any_job(spark, tmp_path):
    nested = spark.sql("select 'A' carrier, array(1D) v, named_struct('a', 1D) s, map('k', 1D) m, 1D y")
    with pytest.raises(SpecError) as error:
        api.plan(spec_of(nested, tmp_path, features=["v", "s", "m"]), spark=spark)
    assert len(error.value.mistakes) == 3


@pytest.mark.parametrize("spark_type", ["string", "boolean", "timestamp", "array<double>"])
def test_c15_a_target_that_is_no_number_is_refused_by_its_type(spark_type):
    mistakes = check_columns({"y": spark_type}, target="y")
    assert mistakes == [f"target: 'y' is {spark_type}; the target of a regression is a number; cast it in the source"]


class Nowhere(BaseEstimator, RegressorMixin):
    """Predicts NaN for every row."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.full(len(X), np.nan)


def test_c15_a_model_that_predicts_nan_is_a_failed_key_that_says_so():
    x = pd.DataFrame({"x": np.arange(10.0)})
    held = np.arange(10) >= 8
    row = fit_keys(x, x["x"].to_numpy(), is_holdout=held, estimator=EstimatorSettings(object=Nowhere()))[0]
    assert (row["status"], row["error_stage"]) == ("failed", "evaluate")
    assert "2 of 2 predictions on the holdout are not finite" in row["reason"]
