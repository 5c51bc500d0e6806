"""Scoring: unseen keys, empty partitions, taken names, row order, stale caches, drifting types, broken models."""

import os
import pickle
import uuid
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from sklearn.base import BaseEstimator, RegressorMixin

from group_models import api
from group_models.adapters import places, spark_score
from group_models.artifacts import StoredModel, digest
from group_models.errors import DataError, ModelError, StateError
from group_models.estimators.base import PickledPredictor
from group_models.ports import Commit
from group_models.serving.resolving import OUTPUTS
from group_models.serving.routing import predict_stream
from group_models.serving.statuses import predict_rows
from group_models.tables import MANIFEST, STORE
from tests.cases.worlds import ENGINES, by_key, scored, spec_of, tables_of, trained, values, widened
from tests.worlds import through_pandas

ABC = "carrier string, row_id bigint, a double, b int, c bigint"


def test_one_passed_column_crosses_to_pandas_and_more_stay_in_the_jvm(spark, lines, capsys):
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3)], ABC)
    plans = []
    for columns in (["row_id"], ["row_id", "carrier"]):
        api.score(frame, lines.spec, columns=columns).explain()
        plans.append(capsys.readouterr().out)
    assert ["MapInPandas" in plan for plan in plans] == [True, False]


def test_the_two_spark_engines_are_what_narrow_and_wide_stand_for(spark, lines, capsys):
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3)], ABC)
    plans = []
    for rows in (frame, widened(frame)):
        with through_pandas():
            api.score(rows, lines.spec).explain()
        plans.append(capsys.readouterr().out)
    assert ["MapInPandas" in plan for plan in plans] == [True, False]
    assert ["ArrowEvalPython" in plan for plan in plans] == [False, True]


FATED = [
    ("good01", 1, 0.0, 0.0), ("good02", 2, 0.0, 0.0), ("good03", 3, 0.0, 0.0),
    ("new", 4, 0.0, 0.0), ("newer", 5, 0.0, 0.0),
    ("fit", 6, 1.0, 0.0), ("one", 7, 0.0, 0.0), (None, 8, 0.0, 0.0),
]  # fmt: skip
FATED_DDL = "carrier string, row_id int, fate double, row double"


@pytest.mark.parametrize("engine", ENGINES)
def test_g1_every_row_comes_back_and_its_statuses_tell_the_five_situations_apart(spark, fates, engine):
    out = scored(engine, spark.createDataFrame(FATED, FATED_DDL), fates.spec)
    assert values(out) == {1: 1.0, 2: 2.0, 3: 3.0} | dict.fromkeys([4, 5, 6, 7, 8])
    assert values(out, "score_status") == dict.fromkeys([1, 2, 3], "scored") | {
        4: "unseen_key", 5: "unseen_key", 6: "no_model", 7: "no_model", 8: "null_key",
    }  # fmt: skip
    assert values(out, "model_status") == dict.fromkeys([1, 2, 3], "trained") | {
        4: None, 5: None, 6: "failed", 7: "too_small", 8: None,
    }  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_g1_rows_that_all_lack_a_model_are_scored_too(spark, fates, engine):
    out = scored(engine, spark.createDataFrame(FATED[3:], FATED_DDL), fates.spec)
    assert values(out) == dict.fromkeys([4, 5, 6, 7, 8])
    assert set(out["score_status"]) == {"unseen_key", "no_model", "null_key"}


@pytest.mark.parametrize("engine", ENGINES)
def test_g1_raise_counts_keys_and_rows_and_names_some_before_anything_is_scored(spark, fates, engine):
    frame = spark.createDataFrame([*FATED, ("new", 9, 0.0, 0.0)], FATED_DDL)
    asked = {"narrow": frame, "wide": widened(frame), "pandas": frame.toPandas()}[engine]
    with pytest.raises(DataError, match=r"5 key\(s\) of the input, 6 rows, have no model") as error:
        api.score(asked, fates.spec, on_missing="raise")
    for said in ("carrier=new (unseen_key)", "carrier=fit (no_model)", "carrier=null (null_key)"):
        assert said in str(error.value)


LEVELLED = "carrier string, depot string, lane string, row_id int, x double, y double"
REGIONS = {
    ("A", "E", "1"): 10, ("A", "E", "2"): 2, ("A", "F", "1"): 2, ("A", "F", "2"): 2,
    ("B", "E", "1"): 2, ("B", "F", "1"): 3, ("C", "E", "1"): 2, ("C", "E", "2"): 1,
    ("?", "E", "1"): 10, ("?", "F", "2"): 10,
}  # fmt: skip
"""Rows per key; ten are enough, and fail at `?`. A has parents for itself and its depot E; B and C have none."""

LANES = [
    ("A", "E", "1", 1), ("A", "E", "2", 2), ("A", "E", "new", 3), ("A", "F", "1", 4), ("A", "new", "1", 5),
    ("B", "E", "1", 6), ("new", "E", "1", 7), ("A", "E", None, 8), (None, None, None, 9), ("?", "E", "1", 10),
]  # fmt: skip


@pytest.fixture(scope="module")
def regions(spark, tmp_path_factory):
    """Parents of three levels; a mean of y, which is the number of the carrier, and failing at `?`."""
    rows = [
        (*key, number, float(key[0] == "?"), float("ABC?".index(key[0])))
        for number, key in enumerate([key for key, count in REGIONS.items() for _ in range(count)])
    ]
    changes = {
        "keys": ["carrier", "depot", "lane"], "levels": [["carrier", "depot"], ["carrier"], []],
        "estimator": {"object": failing_alone(), "version": "1"},
        "limits": {"min_rows": 10, "max_failed_share": 1.0},
    }  # fmt: skip
    return trained(spark.createDataFrame(rows, LEVELLED), tmp_path_factory.mktemp("regions"), **changes)


def failing_alone():
    """An estimator that refuses rows that are all of `?`; a local class, so that workers get it by value."""

    class FailingAlone(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            if X["x"].min() == 1:
                raise ValueError("only ?")
            self.mean_ = float(np.mean(y))
            return self

        def predict(self, X):
            return np.full(len(X), self.mean_)

    return FailingAlone


@pytest.mark.parametrize("engine", ENGINES)
def test_g1_at_every_level_the_most_specific_parent_with_a_model_serves(spark, regions, engine):
    frame = spark.createDataFrame(
        [(*row, 0.0) for row in LANES], "carrier string, depot string, lane string, row_id int, x double"
    )
    out = scored(engine, frame, regions.spec)
    assert values(out, "model_level") == {
        1: "carrier,depot,lane", 2: "carrier,depot", 3: "carrier,depot", 4: "carrier", 5: "carrier",
        6: "global", 7: "global", 8: "carrier,depot", 9: "global", 10: "global",
    }  # fmt: skip
    assert values(out, "score_status") == {1: "scored"} | dict.fromkeys(range(2, 11), "parent")
    assert values(out, "model_status") == {
        1: "trained", 2: "too_small", 3: None, 4: "too_small", 5: None, 6: "too_small", 7: None, 8: None, 9: None,
        10: "failed",
    }  # fmt: skip
    mean = sum(count * "ABC?".index(key[0]) for key, count in REGIONS.items()) / sum(REGIONS.values())
    assert values(out) == dict.fromkeys((1, 2, 3, 4, 5, 8), 0.0) | {n: pytest.approx(mean) for n in (6, 7, 9, 10)}
    assert values(out, "model_key")[4] == '{"carrier":"A"}'


@pytest.mark.parametrize("engine", ENGINES)
def test_g1_of_parents_nothing_is_heard_where_a_null_or_an_error_is_asked_for(spark, regions, engine):
    frame = spark.createDataFrame(
        [(*row, 0.0) for row in LANES], "carrier string, depot string, lane string, row_id int, x double"
    )
    out = scored(engine, frame, regions.spec, on_missing="null")
    assert values(out) == {1: 0.0} | dict.fromkeys(range(2, 11))
    assert values(out, "score_status") == {
        1: "scored", 2: "no_model", 3: "unseen_key", 4: "no_model", 5: "unseen_key", 6: "no_model", 7: "unseen_key",
        8: "null_key", 9: "null_key", 10: "no_model",
    }  # fmt: skip
    with pytest.raises(DataError, match=r"9 key\(s\) of the input, 9 rows, have no model"):
        scored(engine, frame, regions.spec, on_missing="raise")


@pytest.mark.parametrize("engine", ["narrow", "wide"])
def test_g2_empty_partitions_are_scored_to_nothing(spark, lines, engine):
    rows = [("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6), ("A", 708, 7.0, 0, 8)]
    frame = spark.createDataFrame(rows, ABC).repartition(50).where("row_id != 456")
    out = scored(engine, frame, lines.spec)
    assert values(out) == {123: pytest.approx(123), 708: pytest.approx(708)}
    assert out["prediction"].dtype == np.float64


def test_g2_a_partition_without_batches_answers_nothing_and_loads_nothing():
    def answer(*_):
        raise AssertionError("nothing to answer")

    assert list(predict_stream(iter([]), {}, [], answer)) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("taken", ["prediction", "score_status", "MODEL_RUN_ID"])
def test_g3_a_column_that_scoring_writes_is_refused_and_a_prefix_is_the_way_out(spark, lines, engine, taken):
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3)], ABC).withColumn(taken, F.lit("mine"))
    with pytest.raises(DataError, match=rf"already has the column\(s\) '{taken}'.*prefix"):
        scored(engine, frame, lines.spec)
    if taken == "prediction":
        out = scored(engine, frame, lines.spec, prefix="eta_")
        assert out[taken].tolist() == ["mine"]
        assert values(out, "eta_prediction") == {123: pytest.approx(123)}


HELPERS = [
    "key_ix",
    "model_ix",
    "run_ix",
    "is_data",
    "unit",
    "units",
    "answer",
    "status",
    "planned",
    "k0",
    "p0",
    "f0",
    "data",
]
"""Names that columns have inside of scoring."""


@pytest.mark.parametrize("engine", ENGINES)
def test_g3_columns_named_like_internal_ones_pass_by_untouched(spark, lines, engine):
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6)], ABC)
    frame = frame.select("*", *[F.lit(f"my {name}").alias(name) for name in HELPERS])
    chosen = frame if engine == "wide" else frame.select("carrier", "row_id", "a", "b", "c", "k0", "p0", "unit")
    out = scored(engine, chosen, lines.spec)
    assert values(out) == {123: pytest.approx(123), 456: pytest.approx(-456)}
    assert [name for name in HELPERS if name in out and set(out[name]) != {f"my {name}"}] == []
    assert out.columns.tolist()[-len(OUTPUTS) :] == list(OUTPUTS)


@pytest.mark.parametrize("engine", ENGINES)
def test_g4_each_row_of_interleaved_keys_gets_its_own_prediction(spark, engine, lines):
    id_ = F.col("id")
    digits = [
        (id_ / 100).cast("int").cast("double").alias("a"),
        (id_ / 10 % 10).cast("int").alias("b"),
        (id_ % 10).alias("c"),
    ]
    carrier = F.when(id_ % 2 == 0, "A").otherwise("B").alias("carrier")
    frame = spark.range(1000).repartition(5).select(carrier, id_.alias("row_id"), *digits)
    out = scored(engine, frame, lines.spec)
    expected = out["row_id"] * np.where(out["carrier"] == "A", 1, -1)
    assert sorted(out["row_id"]) == list(range(1000))
    assert np.abs(out["prediction"] - expected).max() < 1e-6


def test_g4_a_pandas_frame_keeps_its_order_and_any_index(lines):
    frame = pd.DataFrame({"carrier": ["B", "A", "B", "A"], "row_id": [3, 1, 2, 0], "a": 0.0, "b": 0, "c": [3, 1, 2, 0]})
    frame.index = ["same", "same", "other", "same"]
    out = api.score(frame, lines.spec)
    assert out.index.tolist() == frame.index.tolist()
    assert out["row_id"].tolist() == [3, 1, 2, 0]
    assert out["prediction"].to_numpy() == pytest.approx([-3, 1, -2, 0], abs=1e-6)


class Hook:
    """An estimator whose answer is changed by a hook."""

    def __init__(self, change):
        self.change = change

    def predict(self, X):
        return self.change(X["row_id"])


@pytest.mark.parametrize(
    "change",
    [lambda y: y.reset_index(drop=True), lambda y: y.to_frame(), lambda y: y.set_axis(y.index[::-1])],
    ids=["reset", "frame", "reversed index"],
)
def test_g4_the_index_that_a_model_answers_with_is_ignored(change):
    x = pd.DataFrame({"row_id": [5.0, 6.0, 7.0]}, index=[5, 6, 7])
    prediction, status = predict_rows(StoredModel(PickledPredictor(Hook(change))), x)
    assert prediction.tolist() == [5.0, 6.0, 7.0]
    assert status.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "change", [lambda y: y.iloc[1:], lambda y: pd.concat([y, y]), lambda y: y.mean()], ids=["drops", "doubles", "one"]
)
def test_g4_a_model_that_answers_another_number_of_rows_has_failed(change):
    x = pd.DataFrame({"row_id": [5.0, 6.0, 7.0]})
    prediction, status = predict_rows(StoredModel(PickledPredictor(Hook(change))), x)
    assert np.isnan(prediction).tolist() == [True] * 3
    assert status.tolist() == [6, 6, 6]


MB = 2**20
BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"


def ballasted(nbytes):
    """An estimator whose model is so many random bytes; a local class, so that workers get it by value."""

    class Ballasted(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            self.mean_, self.ballast_ = float(np.mean(y)), os.urandom(nbytes)
            return self

        def predict(self, X):
            return np.full(len(X), self.mean_)

    return Ballasted()


def held_by_workers(folder, score):
    """Score and return, per batch in a worker, the bytes of models in it and the resident memory, both in MB."""
    predict, log = spark_score.predict_stream, str(folder)

    def watched(batches, *rest):
        def seen():
            for batch in batches:
                held = int(batch["model"].map(lambda data: 0 if data is None else len(data)).sum())
                yield batch
                # After the batch was predicted: its models were loaded, and the last one still is.
                line = f"{held / 2**20} {psutil.Process().memory_info().rss / 2**20}"
                Path(log, str(uuid.uuid4())).write_text(line)

        return predict(seen(), *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_score, "predict_stream", watched)
        out = score()
    lines = [file.read_text().split() for file in folder.iterdir()]
    return out, np.array(lines, dtype=float)


@pytest.mark.parametrize("engine", ["narrow", "wide"])
@pytest.mark.parametrize(("keys", "bound"), [(12, 11), pytest.param(400, 100, marks=pytest.mark.slow)])
def test_g6_a_worker_holds_few_models_at_once_however_many_and_large_they_are(
    spark, tmp_path, monkeypatch, keys, bound, engine, counted
):
    """Models of 5 MB, two rows each: without the bound a batch of 10,000 rows would hold all of a unit's."""
    number = F.col("id") % keys
    carrier = F.concat(F.lit("k"), number).alias("carrier")
    frame = spark.range(2 * keys).select(
        carrier, "id", (-number).cast("double").alias("x"), number.cast("double").alias("y")
    )
    estimator = {"object": ballasted(5 * MB), "version": "1"}
    spec = spec_of(frame, tmp_path, estimator=estimator, limits={"min_rows": 1, "max_unit_model_bytes": "64MiB"})
    assert api.train(spec, spark=spark).counts == {"trained": keys}
    monkeypatch.setattr(spark_score, "MAX_UNIT_MODEL_BYTES", bound * MB)
    before = spark.conf.get(BYTES_PER_BATCH)
    folder = tmp_path / "held"
    folder.mkdir()
    # As in Spark 4.0: no bound on a batch's bytes but Arrow's own.
    spark.conf.set(BYTES_PER_BATCH, str(2**31 - 1))
    try:
        out, held = held_by_workers(folder, lambda: scored(engine, frame, spec, slots=1))
    finally:
        spark.conf.set(BYTES_PER_BATCH, before)
    assert values(out, by="id") == {i: float(i % keys) for i in range(2 * keys)}
    assert len(held) >= 5 * keys / bound
    most, resident = held.max(axis=0)
    counted.update({"models of 5 MB": keys, "batches": len(held)})
    counted.update({"MB of models at most in one": round(most), "MB of the worker at most": round(resident)})
    assert held[:, 0].sum() == pytest.approx(5 * keys, rel=0.01)
    assert most < bound + 1
    assert resident < 500 + 4 * bound


def test_g7_models_of_a_later_run_are_used_by_workers_that_hold_earlier_ones(nights):
    assert values(nights.scored[0])[1] == pytest.approx(5.0)
    assert values(nights.scored[1])[1] == pytest.approx(50.0)
    assert values(nights.scored[0], "model_run_id")[1] == nights.first.run.run_id
    assert values(nights.scored[1], "model_run_id")[1] == nights.second.run.run_id


@pytest.mark.parametrize("engine", ENGINES)
def test_g8_every_number_type_is_taken_for_a_feature_of_doubles(spark, lines, engine):
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6)], ABC)
    answer = {123: pytest.approx(123), 456: pytest.approx(-456)}
    for types in (("int", "double", "float"), ("bigint", "decimal(10,2)", "smallint")):
        cast = frame.select("carrier", "row_id", *[F.col(n).cast(t) for n, t in zip("abc", types, strict=True)])
        assert values(scored(engine, cast, lines.spec)) == answer


@pytest.mark.parametrize("engine", ENGINES)
def test_g8_a_boolean_is_one_or_zero(spark, lines, engine):
    frame = spark.createDataFrame(
        [("A", 1, True, 2, 3), ("A", 2, False, 2, 3)], "carrier string, row_id int, a boolean, b int, c int"
    )
    assert values(scored(engine, frame, lines.spec)) == {1: pytest.approx(123), 2: pytest.approx(23)}


@pytest.mark.parametrize("text", ["1.5", "abc"])
@pytest.mark.parametrize("engine", ENGINES)
def test_g8_text_is_refused_by_its_type_and_never_parsed(spark, lines, engine, text):
    frame = spark.createDataFrame([("A", 1, text, 2, 3)], "carrier string, row_id int, a string, b int, c int")
    with pytest.raises(DataError, match=r"'a'.*cast it"):
        scored(engine, frame, lines.spec)


@pytest.mark.parametrize("engine", ENGINES)
def test_g8_a_bigint_beyond_doubles_is_rounded_as_a_feature_and_exact_as_a_passed_column(spark, lines, engine):
    huge = 2**53 + 1
    frame = spark.createDataFrame([("A", huge, 0.0, 0, huge), ("A", 1, 0.0, 0, None)], ABC)
    frame = frame if engine != "pandas" else frame.where("row_id > 1")
    out = scored(engine, frame, lines.spec)
    assert huge in out["row_id"].tolist()
    assert values(out)[huge] == pytest.approx(2.0**53)


def file_of(spec, table=STORE):
    """The one Parquet file that the rows of the spec's run are in."""
    (file,) = (Path(spec["warehouse"]) / "zrl" / "ml" / table.name).rglob("part-*.parquet")
    return file


def damaged(lines, folder, how, tables=(STORE,)):
    """A copy of the tables in which A's rows are changed behind their back."""
    spec = lines.copied_to(folder)
    key_id = by_key(api.show(spec))["A"]["key_id"]
    for table in tables:
        file = file_of(spec, table)
        rows = pq.read_table(file, schema=table.arrow_schema).to_pylist()
        rows = [row if row["key_id"] != key_id else how(row) for row in rows]
        for checksum in file.parent.glob(".*.crc"):
            checksum.unlink()
        pq.write_table(pa.Table.from_pylist([row for row in rows if row], schema=table.arrow_schema), file)
    return spec


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (os.mkdir, (self.file,))


DAMAGES = {
    "other bytes": lambda row: {**row, "data": b"\x00" + row["data"]},
    "truncated": lambda row: {**row, "data": row["data"][: len(row["data"]) // 2]},
    "empty": lambda row: {**row, "data": b""},
    "no data": lambda row: {**row, "data": None},
    "deleted": lambda row: None,
    "newer format": lambda row: {**row, "format": 99},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_g11_a_damaged_model_costs_its_own_key_alone(spark, lines, tmp_path, damage):
    spec = damaged(lines, tmp_path, DAMAGES[damage])
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6)], ABC)
    for engine in ENGINES if damage in ("other bytes", "deleted") else ("narrow", "pandas"):
        out = scored(engine, frame, spec)
        assert values(out) == {123: None, 456: pytest.approx(-456)}
        assert values(out, "score_status") == {123: "model_failed", 456: "scored"}
    if damage != "newer format":  # MLflow reads a model by what its own MLmodel file says
        with pytest.raises((ModelError, StateError), match=r"altered|no model of key"):
            api.load_model(spec, carrier="A")
    assert api.load_model(spec, carrier="B").predict(
        pd.DataFrame({"a": [4.0], "b": [5.0], "c": [6.0]})
    ) == pytest.approx(-456)


@pytest.mark.parametrize("kept", ["left", "replaced"])
def test_g11_a_model_is_compared_with_the_manifest_before_it_is_unpickled(spark, lines, tmp_path, monkeypatch, kept):
    trap = pickle.dumps(Trap(str(tmp_path / "sprung")))
    changes = {"data": trap} | ({"sha256": digest(trap)} if kept == "replaced" else {})
    spec = damaged(lines, tmp_path, lambda row: {**row, **changes})
    key_id = by_key(api.show(spec))["A"]["key_id"]
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3)], ABC)
    for engine in ENGINES:
        assert values(scored(engine, frame, spec), "score_status") == {123: "model_failed"}
    with pytest.raises(ModelError, match="altered: its SHA-256 is"):
        api.load_model(spec, carrier="A")
    monkeypatch.setenv(places.WAREHOUSE, spec["warehouse"])
    import mlflow.pyfunc

    with pytest.raises(Exception, match="altered: its SHA-256 is"):
        mlflow.pyfunc.load_model(f"groupmodels:/{lines.run.model_set}/{lines.run.run_id}/{key_id}")
    assert not (tmp_path / "sprung").exists()
    pickle.loads(trap)
    assert (tmp_path / "sprung").exists()


class Faulty:
    """Unpickling it raises, as a class does whose library has changed."""

    def __reduce__(self):
        return (divmod, (1, 0))


def test_g11_a_model_that_raises_whatever_it_likes_when_it_is_loaded_costs_its_own_key_alone(spark, lines, tmp_path):
    data = pickle.dumps(Faulty())
    changes = {"data": data, "sha256": digest(data)}

    def changed(row):
        return {name: changes.get(name, value) for name, value in row.items()}

    spec = damaged(lines, tmp_path, changed, tables=(STORE, MANIFEST))
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6)], ABC)
    for engine in ENGINES:
        out = scored(engine, frame, spec)
        assert values(out, "score_status") == {123: "model_failed", 456: "scored"}


def test_g11_a_damaged_file_is_named_and_scoring_goes_on_without_it(spark, lines, tmp_path):
    spec = lines.copied_to(tmp_path)
    file = file_of(spec)
    file.write_bytes(file.read_bytes()[:100])
    question = pd.DataFrame({"carrier": ["A"], "row_id": [123], "a": [1.0], "b": [2], "c": [3]})
    with pytest.raises(StateError, match=rf"{file.name} cannot be read .*take its folder away"):
        api.score(question, spec)
    file.parent.rename(tmp_path / "away")
    for asked in (question, spark.createDataFrame(question)):
        out = api.score(asked, spec)
        out = out if isinstance(out, pd.DataFrame) else out.toPandas()
        assert values(out, "score_status") == {123: "model_failed"}


def test_g12_a_row_that_is_in_the_tables_twice_multiplies_nothing(spark, lines, tmp_path):
    spec = lines.copied_to(tmp_path)
    tables = tables_of(spec)
    for table in (STORE, MANIFEST):
        rows = tables.read(table)
        again = (
            rows.set_column(rows.column_names.index("number"), "number", pa.array([1] * len(rows), pa.int64()))
            if table is STORE
            else rows
        )
        assert tables.append(table, again, Commit(lines.run.model_set, lines.run.run_id, 1))
        assert tables.read(table).num_rows == 4
    frame = spark.createDataFrame([("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6)], ABC)
    for engine in ENGINES:
        assert values(scored(engine, frame, spec)) == {123: pytest.approx(123), 456: pytest.approx(-456)}
        assert values(scored(engine, frame, spec, run_id=lines.run.run_id)) == {
            123: pytest.approx(123),
            456: pytest.approx(-456),
        }
    assert len(api.show(spec)) == 2
    assert api.load_model(spec, carrier="A").predict(
        pd.DataFrame({"a": [1.0], "b": [2.0], "c": [3.0]})
    ) == pytest.approx(123)
