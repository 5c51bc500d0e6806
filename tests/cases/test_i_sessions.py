"""Spark Connect, shared clusters and serverless; what cannot travel to the workers."""

import functools
import importlib.metadata
import os
import re
import threading
from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from sklearn.linear_model import LinearRegression

import group_models
from group_models import api, targets
from group_models.adapters import spark_errors, spark_probe, spark_train
from group_models.errors import DataError, PlatformError, SpecError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import check_settings
from group_models.fakes import MemoryTables
from group_models.loading import load_spec
from group_models.runs.preparing import prepare
from group_models.tables import MANIFEST, PLAN
from tests.cases.worlds import by_key, scored, spec_of, tables_of, values

ROWS = [(carrier, 10 * k + i, float(i), 2.0 * i + k) for k, carrier in enumerate("AB") for i in range(10)]
DDL = "carrier string, row_id int, x double, y double"
ANSWER = {row_id: pytest.approx(y, abs=1e-6) for _, row_id, _, y in ROWS}
LINE = {"object": LinearRegression(), "version": "1"}


def train_and_score(session, folder, **changes):
    """The whole way on one session, with a holdout by time and slots that the session must tell."""
    frame = session.createDataFrame(ROWS, DDL)
    given = {"estimator": LINE, "compute": {}, "holdout": {"by": "hash", "share": 0.2}, **changes}
    spec = spec_of(frame, folder, **given)
    run = api.train(spec, spark=session)
    assert run.counts == {"trained": 2}
    assert run.release_id
    for engine in ("narrow", "wide"):
        assert values(scored(engine, frame, spec)) == ANSWER
    return spec


REFUSED = r"sparkContext|SparkContext\(|\.rdd\b|_jvm\b|_jdf\b|_jsparkSession|\.cache\(|\.persist\(|\.broadcast\("


def test_i1_the_package_uses_nothing_that_only_a_classic_session_has():
    files = [*Path(group_models.__file__).parent.rglob("*.py")]
    lines = [(file.name, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(files) > 30
    assert [line for line in lines if re.search(REFUSED, line[1].replace("F.broadcast(", ""))] == []


def test_i1_a_connect_session_trains_releases_shows_and_scores(connect_spark, tmp_path):
    spec = train_and_score(connect_spark, tmp_path, estimator={"name": "ridge", "params": {"alpha": 1e-9}})
    assert {row["status"] for row in api.show(spec)} == {"trained"}
    assert api.load_model(spec, carrier="B").predict(pd.DataFrame({"x": [3.0]})) == pytest.approx(7.0)


def frame_class(session):
    return type(session.range(1))


@pytest.fixture
def no_cache(any_spark, monkeypatch):
    """A session that refuses to cache, as serverless compute does."""

    def refused(*_, **__):
        raise AssertionError("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported")

    for name in ("cache", "persist"):
        monkeypatch.setattr(frame_class(any_spark), name, refused)
    monkeypatch.setattr(type(any_spark.catalog), "cacheTable", refused)
    with pytest.raises(AssertionError, match="NOT_SUPPORTED"):
        any_spark.range(1).cache()
    return any_spark


def test_i3_nothing_needs_a_cache(no_cache, tmp_path):
    train_and_score(no_cache, tmp_path)


@pytest.fixture
def fixed_confs(any_spark, monkeypatch):
    """A session that lets nobody set or unset a configuration, nor ask for one that it does not know."""
    conf = type(any_spark.conf)
    ask = conf.get

    def refused(*_, **__):
        raise PySparkException("[CONFIG_NOT_AVAILABLE] Configuration is not available")

    def get(self, key, *default):
        if key.startswith(("spark.databricks", "spark.default.parallelism", "spark.executor")):
            refused()
        return ask(self, key, *default)

    monkeypatch.setattr(conf, "set", refused)
    monkeypatch.setattr(conf, "unset", refused)
    monkeypatch.setattr(conf, "get", get)
    with pytest.raises(PySparkException, match="CONFIG_NOT_AVAILABLE"):
        any_spark.conf.set("spark.sql.shuffle.partitions", "7")
    return any_spark


def test_i4_no_configuration_needs_to_be_set(fixed_confs, tmp_path):
    train_and_score(fixed_confs, tmp_path)


def test_i4_training_and_scoring_leave_every_configuration_as_it_was(any_spark, tmp_path):
    before = dict(any_spark.conf.getAll)
    train_and_score(any_spark, tmp_path)
    assert len(before) > 10
    assert dict(any_spark.conf.getAll) == before


class Hooks:
    """A user's helper object with what such objects hold."""

    def __init__(self, **held):
        self.alpha = 1.0
        for name, value in held.items():
            setattr(self, name, value)

    def make(self):
        return LinearRegression()


class Holder(LinearRegression):
    """An estimator that holds something unfit for travel."""

    def __init__(self, held=None):
        self.held = held


def enclosing(value):
    """A function that encloses a value."""

    def make():
        return LinearRegression(), value

    return make


UNFIT = {
    "bound method": (lambda lock: Hooks(lock=lock).make, "lock"),
    "nested": (lambda lock: Hooks(helper=Hooks(lock=lock)).make, "helper.lock"),
    "closure": (enclosing, "value"),
    "partial": (lambda lock: functools.partial(Hooks, held=lock), "held"),
    "estimator": (Holder, "held"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_i6_what_keeps_a_hook_from_the_workers_is_named(kind):
    make, part = UNFIT[kind]
    mistakes = check_settings(EstimatorSettings(object=make(threading.Lock())), Features(("x",), (), ("x",)))
    assert len(mistakes) == 1
    assert f"cannot be sent to the workers: {part} (_thread.lock) does not pickle" in mistakes[0]


def test_i6_an_estimator_that_could_never_be_stored_is_refused_before_it_is_fitted():
    settings = EstimatorSettings(object=lambda: Holder(threading.Lock()))
    mistakes = check_settings(settings, Features(("x",), (), ("x",)))
    assert len(mistakes) == 1
    assert "gives a Holder that cannot be stored: held (_thread.lock) does not pickle" in mistakes[0]


def test_i6_a_session_in_a_hook_is_one_readable_error_before_any_job(any_spark, tmp_path):
    frame = any_spark.createDataFrame(ROWS, DDL)
    hook = Hooks(session=any_spark).make
    with pytest.raises(SpecError, match=r"cannot be sent to the workers: .*session.* does not pickle") as error:
        api.train(spec_of(frame, tmp_path, estimator={"object": hook, "version": "1"}), spark=any_spark)
    assert len(error.value.mistakes) == 1
    assert not (tmp_path / "warehouse").exists()


@pytest.mark.parametrize(
    "message",
    [
        """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "hook.py", line 1, in make
my.errors.HookError: no connection
""",
        """An error occurred while calling o81.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 failed 4 times
  File "hook.py", line 1, in make
my.errors.HookError: no connection
 SQLSTATE: 38000
	at org.apache.spark.executor.Executor.run(Executor.scala:1)
Caused by: org.apache.spark.api.python.PythonException: again
""",
    ],
    ids=["python", "jvm"],
)
def test_i6_of_a_failed_job_the_message_tells_what_the_worker_raised(message):
    assert spark_errors.cause(PySparkException(message)) == "my.errors.HookError: no connection"
    assert spark_errors.cause(PySparkException("no worker\nelse")) == "no worker"


def test_i7_the_workers_of_a_session_are_asked_and_match_the_driver(any_spark):
    spark_probe.check_workers(any_spark, [])


def test_i7_each_difference_that_matters_is_named_and_patches_are_none():
    driver = {"python": "3.11.9", "numpy": "2.3.4", "pandas": "2.3.3", "scikit-learn": "1.7.2", "group-models": "0.1.0"}
    worker = driver | {"python": "3.12.1", "numpy": "2.3.1", "scikit-learn": "1.6.1", "group-models": "0.1.1"}
    del worker["pandas"]
    assert spark_probe.version_mistakes(driver, driver) == []
    assert spark_probe.version_mistakes(driver, worker) == [
        "python is 3.11.9 on the driver and 3.12.1 on the workers",
        "pandas is 2.3.3 on the driver and not installed on the workers",
        "scikit-learn is 1.7.2 on the driver and 1.6.1 on the workers",
        "group-models is 0.1.0 on the driver and 0.1.1 on the workers",
    ]


def test_i7_all_differences_are_one_message_before_training(any_spark, tmp_path, monkeypatch):
    installed = importlib.metadata.version
    other = {"numpy": "1.26.0", "scikit-learn": "0.24.2"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: other.get(name) or installed(name))
    spec = spec_of(any_spark.createDataFrame(ROWS, DDL), tmp_path)
    with pytest.raises(PlatformError, match=r"numpy is 1\.26\.0 on the driver and .*; scikit-learn is 0\.24\.2 on the"):
        api.train(spec, spark=any_spark)
    assert tables_of(spec).read(PLAN).num_rows == 0


class Broken:
    """A session whose workers lack pandas: every query on it fails."""

    def __getattr__(self, name):
        return lambda *_, **__: self

    def collect(self):
        trace = "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'pandas'\n"
        raise PySparkException(f"An exception was thrown from the Python worker.\n{trace}")


def test_i7_workers_that_cannot_even_answer_are_a_clear_message():
    with pytest.raises(PlatformError, match=r"the workers cannot answer.*No module named 'pandas'"):
        spark_probe.check_workers(Broken(), [])


def test_i9_relative_paths_are_those_of_the_specs_file_wherever_one_stands(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        place.mkdir()
    file = folder / "spec.yaml"
    file.write_text(
        "{model_set: zrl.ml.eta, source: {path: data/rows.parquet}, keys: [carrier], target: y, features: [x], "
        "estimator: {name: median}, warehouse: ./warehouse}"
    )
    monkeypatch.chdir(elsewhere)
    for given in (file, os.path.relpath(file)):
        spec = load_spec(given)
        assert spec.source.path == str(folder / "data" / "rows.parquet")
        assert targets.open_tables(spec).root == folder / "warehouse"


def test_i9_a_source_beside_the_spec_is_trained_from_another_directory(spark, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    spark.createDataFrame(ROWS, DDL).write.parquet(str(folder / "rows.parquet"))
    (folder / "spec.yaml").write_text(
        "{model_set: zrl.ml.eta, source: {path: rows.parquet}, keys: [carrier], target: y, features: [x], "
        "estimator: {name: median}, limits: {min_rows: 1}, compute: {slots: 2}, warehouse: warehouse}"
    )
    monkeypatch.chdir(tmp_path)
    spec = os.path.join("project", "spec.yaml")  # noqa: PTH118 - a text, as people give it
    assert api.train(spec, spark=spark).counts == {"trained": 2}
    assert {path.name for path in tmp_path.iterdir()} == {"project"}
    monkeypatch.chdir("/")
    assert set(by_key(api.show(folder / "spec.yaml"))) == {"A", "B"}


def test_i9_a_path_that_only_the_driver_sees_is_named_before_training(any_spark, monkeypatch):
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: self.name == "only-here.parquet" or real(self))
    with pytest.raises(
        PlatformError, match=r"/data/only-here\.parquet is on the driver only; workers need a shared path"
    ):
        spark_probe.check_workers(any_spark, ["/data/only-here.parquet", str(Path(__file__))])


def test_i9_a_source_that_is_nowhere_is_refused_before_any_job(spark, tmp_path):
    spec = load_spec(spec_of({"path": str(tmp_path / "gone.parquet")}, tmp_path))
    with pytest.raises(DataError, match=r"there is no .*gone\.parquet .*relative to the spec's file"):
        prepare(spec, MemoryTables(), spark)


@pytest.mark.parametrize("keys", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_i11_keys_too_small_to_fit_reach_no_worker_and_are_all_in_the_manifest(spark, tmp_path, monkeypatch, keys):
    small = F.concat(F.lit("k"), F.col("id") % keys)
    frame = spark.range(5 * keys + 40).select(
        F.when(F.col("id") < 5 * keys, small).otherwise("large").alias("carrier"),
        F.col("id").cast("double").alias("x"),
        (2 * F.col("id")).cast("double").alias("y"),
    )
    sent = []
    data_rows = spark_train._data_rows

    def noted(*args, **kwargs):
        sent.append(data_rows(*args, **kwargs))
        return sent[-1]

    monkeypatch.setattr(spark_train, "_data_rows", noted)
    spec = spec_of(frame, tmp_path, limits={"min_rows": 30})
    run = api.train(spec, spark=spark)
    assert run.counts == {"too_small": keys, "trained": 1}
    assert [rows.count() for rows in sent] == [40]
    manifest = tables_of(spec).read(MANIFEST, columns=["key_id", "status", "rows", "reason", "unit"])
    assert manifest.num_rows == len(set(manifest["key_id"].to_pylist())) == keys + 1
    skipped = manifest.filter(pc.equal(manifest["status"], "too_small"))
    assert pc.unique(skipped["reason"]).to_pylist() == ["5 usable rows; min_rows is 30"]
    assert skipped["unit"].null_count == skipped.num_rows == keys


def test_i11_where_every_key_is_too_small_no_job_of_python_is_started(spark, tmp_path, monkeypatch):
    frame = spark.range(500).select(F.concat(F.lit("k"), F.col("id") % 100).alias("carrier"), "id", 2 * F.col("id"))
    frame = frame.toDF("carrier", "x", "y")
    monkeypatch.setattr(spark_train, "train_wave", lambda *_, **__: pytest.fail("a wave was started"))
    assert api.train(spec_of(frame, tmp_path, limits={"min_rows": 30}), spark=spark).counts == {"too_small": 100}
