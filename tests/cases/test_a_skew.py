"""Skew, memory and parallelism: oversize keys, wide rows, tasks, threads."""

import contextlib
import json
import re
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import threadpoolctl
from pyspark.sql import functions as F
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from group_models import api
from group_models.adapters.spark_train import placed_units
from group_models.errors import DataError
from group_models.estimators.base import EstimatorSettings
from group_models.fakes import MemoryTables
from group_models.loading import load_spec
from group_models.planning.deciding import SIZES, Costs, plan_keys
from group_models.planning.plans import summarise
from group_models.runs.preparing import prepare
from group_models.tables import MANIFEST, PLAN, RELEASE, STORE
from tests.cases.worlds import by_key, fit_keys, scored, spec_of, tables_of, trained, unpickled

README = Path(__file__).resolve().parents[2] / "README.md"


@contextlib.contextmanager
def within(seconds):
    """Fail what hangs."""

    def stop(*_):
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def hot_and_cold(spark):
    """One key of 3,000 rows and five of 40."""
    carrier = F.when(F.col("id") < 3000, F.lit("hot")).otherwise(F.concat(F.lit("cold"), F.col("id") % 5))
    x = F.col("id").cast("double")
    return spark.range(3200).select(carrier.alias("carrier"), x.alias("x"), (2 * x).alias("y"))


COLD = {f"cold{i}" for i in range(5)}


def test_a1_a_sampled_key_is_trained_on_fewer_rows_than_the_limit_and_says_so(spark, tmp_path):
    limits = {"min_rows": 1, "max_key_rows": 1000}
    world = trained(hot_and_cold(spark), tmp_path, oversize="sample", limits=limits)
    rows = by_key(api.show(world.spec))
    hot = rows.pop("hot")
    assert (hot["status"], hot["policy"], hot["rows"], hot["usable_rows"]) == ("trained", "sampled", 3000, 3000)
    assert 800 < hot["rows_used"] <= 1000
    assert hot["reason"].startswith("3,000 usable rows are over max_key_rows 1,000; a sample of 30.")
    assert {key: (row["status"], row["policy"], row["rows_used"]) for key, row in rows.items()} == dict.fromkeys(
        COLD, ("trained", "whole", 40)
    )


def test_a1_a_salted_key_is_trained_on_all_its_rows_in_parts(any_spark, tmp_path):
    limits = {"min_rows": 1, "max_key_rows": 1000}
    world = trained(hot_and_cold(any_spark), tmp_path, limits=limits)
    rows = by_key(api.show(world.spec))
    hot = rows.pop("hot")
    assert (hot["status"], hot["policy"], hot["n_parts"], hot["rows_used"]) == ("trained", "salted", 4, 3000)
    assert hot["reason"] == "3,000 usable rows are over max_key_rows 1,000; trained in 4 parts"
    assert {key: (row["policy"], row["rows_used"]) for key, row in rows.items()} == dict.fromkeys(COLD, ("whole", 40))
    parts = tables_of(world.spec).read(STORE, columns=["part", "rows_used"], where={"key_id": [hot["key_id"]]})
    used = {row["part"]: row["rows_used"] for row in parts.to_pylist()}
    assert sorted(used) == [-1, 0, 1, 2, 3]
    assert used.pop(-1) == sum(used.values()) == 3000
    assert max(used.values()) <= 1000
    assert set(api.show(world.spec, run_id=world.run.run_id)[0]) >= {"policy", "n_parts", "rows_used"}


@pytest.mark.parametrize("partitions", [1, 7])
def test_a1_identical_rows_cannot_be_salted_apart_so_that_part_is_sampled_and_says_so(spark, tmp_path, partitions):
    # 2,000 rows are the same one, 1,000 are all different.
    x = F.greatest(F.col("id").cast("double"), F.lit(2000.0))
    frame = spark.range(3000).select(F.lit("hot").alias("carrier"), x.alias("x"), (2 * x).alias("y"))
    limits = {"min_rows": 1, "max_key_rows": 1000}
    world = trained(frame.repartition(partitions), tmp_path, limits=limits)
    hot = by_key(api.show(world.spec))["hot"]
    assert (hot["status"], hot["policy"], hot["n_parts"], hot["usable_rows"]) == ("trained", "salted", 4, 3000)
    assert "trained in 4 parts; identical rows stay in one part, the largest has 2," in hot["reason"]
    parts = tables_of(world.spec).read(STORE, columns=["part", "rows_used"], where={"key_id": [hot["key_id"]]})
    used = {row["part"]: row["rows_used"] for row in parts.to_pylist()}
    assert hot["rows_used"] == used.pop(-1) == sum(used.values())
    assert 500 < max(used.values()) <= 1000
    # The same copies are left out whatever the partitioning.
    assert hot["rows_used"] == 1212


@pytest.mark.parametrize("oversize", ["salt", "sample"])
def test_a8_a_salted_key_is_one_model_of_all_its_rows_and_never_two_rows(spark, tmp_path, oversize):
    # The slope differs between the halves: a model of one half alone would predict it exactly, and no other.
    x = (F.col("id") % 100).cast("double")
    slope = F.when(F.col("id") < 5000, F.lit(1.0)).otherwise(F.lit(3.0))
    frame = spark.range(10_000).select(
        F.lit("one").alias("carrier"), "id", x.alias("x"), (slope * x + F.col("id") * 1e-9).alias("y")
    )
    limits = {"min_rows": 1, "max_key_rows": 2000}
    world = trained(frame, tmp_path, limits=limits, estimator="ridge", oversize=oversize)
    manifest = tables_of(world.spec).read(MANIFEST).to_pylist()
    assert [(row["status"], row["usable_rows"]) for row in manifest] == [("trained", 10_000)]
    row = manifest[0]
    if oversize == "salt":
        assert (row["policy"], row["n_parts"], row["rows_used"]) == ("salted", 6, 10_000)
    else:
        assert (row["policy"], row["n_parts"]) == ("sampled", 1)
        assert row["rows_used"] < 2000
    assert row["reason"].startswith("10,000 usable rows are over max_key_rows 2,000; ")
    prediction = api.score(pd.DataFrame({"carrier": ["one"], "x": [100.0]}), world.spec)["prediction"]
    assert prediction.tolist() == [pytest.approx(200, abs=10)]


def test_a1_a_skipped_key_is_too_big_and_the_others_are_trained(spark, tmp_path):
    limits = {"min_rows": 1, "max_key_rows": 1000}
    world = trained(hot_and_cold(spark), tmp_path, oversize="skip", limits=limits)
    rows = by_key(api.show(world.spec))
    hot = rows.pop("hot")
    assert (hot["status"], hot["serves"], hot["rows"], hot["rows_used"]) == ("too_big", "none", 3000, None)
    assert hot["reason"] == "3,000 usable rows are over max_key_rows 1,000; oversize: skip"
    assert {key: row["status"] for key, row in rows.items()} == dict.fromkeys(COLD, "trained")
    assert world.run.release_id


@pytest.mark.slow
def test_a1_a_distributed_key_is_trained_on_all_its_rows_over_the_cluster(spark, tmp_path):
    limits = {"min_rows": 1, "max_key_rows": 1000}
    estimator = {"name": "xgboost", "params": {"n_estimators": 4, "max_depth": 2}}
    world = trained(hot_and_cold(spark), tmp_path, oversize="distribute", limits=limits, estimator=estimator)
    rows = by_key(api.show(world.spec))
    hot = rows.pop("hot")
    assert (hot["status"], hot["policy"], hot["n_parts"]) == ("trained", "distributed", 1)
    assert (hot["rows"], hot["rows_used"], hot["params"]["num_workers"]) == (3000, 3000, "2")
    assert hot["reason"] == "3,000 usable rows are over max_key_rows 1,000; trained over the whole cluster"
    assert {key: (row["status"], row["policy"], row["rows_used"]) for key, row in rows.items()} == dict.fromkeys(
        COLD, ("trained", "whole", 40)
    )


HUGE, WIDE = 2_000_000, [f"x{place}" for place in range(20)]


@pytest.fixture(scope="module")
def huge(spark, tmp_path_factory):
    """A file of one key with two million rows of twenty doubles and fifty with a hundred; y is x0 + 2 * x1."""
    path = str(tmp_path_factory.mktemp("huge") / "rows.parquet")
    small = F.concat(F.lit("small"), F.col("id") % 50)
    carrier = F.when(F.col("id") < HUGE, F.lit("hot")).otherwise(small).alias("carrier")
    # Hashes as numbers from 0 to 1, whatever the partitioning; the driver holds none of it.
    x = [(F.pmod(F.xxhash64("id", F.lit(place)), F.lit(10**6)) / 1e6).alias(name) for place, name in enumerate(WIDE)]
    frame = spark.range(HUGE + 5000).select(carrier, *x).withColumn("y", F.col("x0") + 2 * F.col("x1"))
    frame.write.parquet(path)
    return {"path": path}


@pytest.mark.slow
@pytest.mark.parametrize("oversize", ["salt", "sample"])
def test_a1_a_key_of_two_million_rows_is_trained_within_the_budget_beside_small_ones(
    spark, huge, tmp_path, oversize, counted
):
    budget = 32 * 2**20
    limits = {"min_rows": 1, "max_key_rows": 100_000, "max_unit_bytes": budget}
    spec = spec_of(huge, tmp_path, features=WIDE, estimator="ridge", limits=limits, oversize=oversize)
    run = api.train(spec, spark=spark)
    assert run.counts == {"trained": 51}
    rows = by_key(api.show(spec))
    hot = rows.pop("hot")
    assert (hot["status"], hot["rows"], hot["usable_rows"]) == ("trained", HUGE, HUGE)
    assert hot["bytes"] > HUGE * len(WIDE) * 8
    assert {(row["status"], row["policy"], row["rows_used"]) for row in rows.values()} == {("trained", "whole", 100)}
    if oversize == "salt":
        assert (hot["policy"], hot["rows_used"]) == ("salted", HUGE)
        assert hot["n_parts"] >= HUGE / 100_000
    else:
        assert (hot["policy"], hot["n_parts"]) == ("sampled", 1)
        assert 90_000 < hot["rows_used"] <= 100_000

    fits = tables_of(spec).read(STORE, columns=["key_id", "part", "unit", "rows_used"]).to_pandas()
    fits = fits[(fits["key_id"] != hot["key_id"]) | (fits["part"] >= 0) | (hot["n_parts"] == 1)]
    of_row = {row["key_id"]: row["bytes"] / row["usable_rows"] for row in (hot, *rows.values())}
    fits["bytes"] = fits["rows_used"] * fits["key_id"].map(of_row)
    of_unit = fits.groupby("unit")["bytes"].sum()
    counted.update({"units": len(of_unit), "bytes of the largest": int(of_unit.max()), "bytes allowed": budget})
    assert of_unit.max() <= budget
    question = pd.DataFrame({"carrier": ["hot", "small7"], **{name: [0.5, 0.5] for name in WIDE}})
    assert api.score(question, spec)["prediction"].tolist() == pytest.approx([1.5, 1.5], abs=0.05)


def test_a1_the_plan_tells_what_each_policy_would_do_and_the_run_how_its_time_was_spent(spark, tmp_path):
    limits = {"min_rows": 1, "max_key_rows": 1000}
    spec = spec_of(hot_and_cold(spark), tmp_path, oversize="skip", limits=limits)
    facts = summarise(api.plan(spec, spark=spark)).facts()
    assert facts["oversize keys"] == "1 with 93.8% of all rows"
    assert facts["oversize: salt"].startswith("1 salted in 4 parts, all rows used; about ")
    assert facts["oversize: sample"].startswith("1 sampled to 905 of 3,000 rows (30.2%); about ")
    assert facts["oversize: skip"].startswith("1 too_big, no new model; about ")
    assert facts["oversize: skip"].endswith(" (the spec's)")
    assert facts["oversize: fail"].endswith("naming carrier=hot (3,000 rows)")
    lines = []
    run = api.train(spec, spark=spark, say=lines.append)
    assert [line for line in lines if line.startswith("warning: ")] == [f"warning: {facts['warning']}"]
    assert "get no new model: carrier=hot" in facts["warning"]
    (wave,) = run.timing().waves
    assert (wave.keys, run.timing().slots) == (5, 2)
    assert 0 < wave.busy_share <= 1
    assert run.facts()["fits"].endswith(f"slots busy {run.timing().busy_share:.0%}")
    told = json.loads(json.dumps(run.as_dict(), default=str))["timing"]
    assert told["fit_s"] == pytest.approx(run.timing().fit_s)
    assert told["slowest"]["keys"] >= 1


def test_a1_the_parts_of_a_salted_key_are_units_in_the_run_s_timing(spark, tmp_path):
    world = trained(hot_and_cold(spark), tmp_path, limits={"min_rows": 1, "max_key_rows": 1000})
    timing = world.run.timing()
    assert timing.waves[0].keys == 4 + 5
    assert timing.largest.names == ("carrier=hot",)
    assert timing.largest.rows < 3000
    assert sum(wave.fit_s for wave in timing.waves) == pytest.approx(timing.fit_s)


def test_a1_fail_refuses_the_run_before_anything_is_trained_and_names_the_key(spark, tmp_path):
    limits = {"min_rows": 1, "max_key_rows": 1000}
    spec = spec_of(hot_and_cold(spark), tmp_path, oversize="fail", limits=limits)
    with pytest.raises(DataError, match=r"1 oversize key\(s\).*carrier=hot \(3,000 usable rows.*Nothing was trained"):
        api.train(spec, spark=spark)
    assert [tables_of(spec).read(table).num_rows for table in (PLAN, STORE, MANIFEST, RELEASE)] == [0, 0, 0, 0]


def test_a1_a_refused_run_leaves_those_who_score_alone(spark, lines, tmp_path):
    spec = lines.copied_to(tmp_path)
    changes = {"features": ["a", "b"], "oversize": "fail", "limits": {"min_rows": 1, "max_key_rows": 1}}
    with pytest.raises(DataError, match="oversize"):
        api.train({**spec, **changes}, spark=spark)
    question = pd.DataFrame({"carrier": ["A"], "row_id": [123], "a": [1.0], "b": [2], "c": [3]})
    assert api.score(question, spec)["prediction"].tolist() == pytest.approx([123])


@pytest.fixture(scope="module")
def letters(spark, tmp_path_factory):
    """A file of one key with 300 rows, each with a note of 10,000 characters: 3 MB in few rows."""
    path = str(tmp_path_factory.mktemp("letters") / "letters.parquet")
    x = F.col("id").cast("double")
    note = F.concat(F.repeat(F.lit("x"), 10_000), F.col("id").cast("string"))
    frame = spark.range(300).select(F.lit("A").alias("carrier"), x.alias("x"), x.alias("y"), note.alias("note"))
    frame.write.parquet(path)
    return {"path": path}


def test_a2_a_column_that_no_fit_needs_is_not_even_read(spark, letters, tmp_path, capsys):
    spec = load_spec(spec_of(letters, tmp_path))
    rows = prepare(spec, MemoryTables(), spark).rows()
    assert set(rows.columns) == {"k0", "time_us", "y", "f0", "row_hash"}
    rows.explain()
    plan = capsys.readouterr().out
    assert "ReadSchema: struct<carrier:string,x:double,y:double>" in plan
    key = api.plan(spec, spark=spark).keys.to_pylist()[0]
    assert key["decision"] == "whole"
    assert key["bytes"] < 300 * 100


def test_a2_a_key_of_few_wide_rows_is_oversize_by_its_bytes(spark, letters, tmp_path):
    limits = {"min_rows": 1, "max_key_bytes": "1MiB"}
    spec = spec_of(letters, tmp_path, features=["x", "note"], estimator="ridge", limits=limits, oversize="skip")
    key = api.plan(spec, spark=spark).keys.to_pylist()[0]
    assert key["decision"] == "too_big"
    assert 3_000_000 < key["bytes"] < 3_100_000
    assert key["reason"] == f"{key['bytes']:,} bytes are over max_key_bytes 1,048,576; oversize: skip"


def recorder():
    """An estimator that notes in which partition it was fitted; a local class, so that workers get it by value."""

    class Recorder(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            from pyspark import TaskContext

            self.partition_ = TaskContext.get().partitionId()
            return self

        def predict(self, X):
            return np.zeros(len(X))

    return Recorder


def test_a4_the_readme_says_from_which_spark_on_a_batch_size_protects_what():
    """Lowering it bounds what the JVM buffers, since 4.1 (SPARK-53562); a unit is one frame in any version."""
    paragraphs = [" ".join(text.split()) for text in README.read_text(encoding="utf-8").split("\n\n")]
    about = [text for text in paragraphs if "maxRecordsPerBatch" in text]
    assert len(about) == 1
    sentences = re.split(r"(?<=[.:;]) ", about[0])
    claims = [text for text in sentences if "maxRecordsPerBatch" in text]
    assert all(re.search(r"(before|since) Spark 4\.1", text) for text in claims), claims
    assert "`limits.max_unit_bytes`" in about[0]
    assert "SPARK-53562" in about[0]


def test_a5_small_data_is_trained_in_as_many_tasks_as_there_are_slots(spark, tmp_path):
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    carrier = F.concat(F.lit("k"), F.col("id") % 40).alias("carrier")
    frame = spark.range(400).select(carrier, F.col("id").cast("double").alias("x"), F.lit(1.0).alias("y"))
    estimator = {"object": recorder(), "version": "1"}
    world = trained(frame, tmp_path, estimator=estimator, compute={"slots": 4})
    rows = tables_of(world.spec).read(STORE, columns=["unit", "data", "data_file"]).to_pylist()
    places = {(row["unit"], unpickled(row).partition_) for row in rows}
    assert len(rows) == 40
    assert {unit for unit, _ in places} == {0, 1, 2, 3}
    assert sorted(partition for _, partition in places) == [0, 1, 2, 3]


def sizes_of(rows):
    """Sizes as measured, of keys with so many rows."""
    count = len(rows)
    columns = {
        "key_id": [f"{i:032x}" for i in range(count)],
        "key": [[("carrier", str(i))] for i in range(count)],
        "level": ["carrier"] * count,
        "rows": rows,
        "usable_rows": rows,
        "bytes": [100 * n for n in rows],
    }
    schema = pa.schema(list(SIZES))
    return pa.table(
        [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema],
        schema=schema,
    )


COSTS = Costs(lambda rows, columns: rows * 1e-3, lambda rows, columns: np.full(len(rows), 1000.0))
"""A millisecond a row, a kilobyte a model."""


def planned(rows, slots):
    return plan_keys(sizes_of(rows), load_spec(spec_of({"path": "x"}, Path("unused"))), COSTS, slots=slots)


def test_a6_many_keys_become_as_many_even_units_as_the_slots_can_use():
    plan = planned([int(n) for n in np.random.default_rng(0).integers(5, 500, 5000)], 8)
    units = plan.units().to_pandas()
    assert len(units) == 64
    assert units["keys"].sum() == 5000
    assert units["predicted_seconds"].max() < 1.01 * units["predicted_seconds"].mean()
    assert units["predicted_seconds"].is_monotonic_decreasing


def test_a6_few_keys_become_one_unit_each_and_the_largest_is_told():
    even = planned([1000] * 8, 8)
    assert even.units().to_pandas()["keys"].tolist() == [1] * 8
    assert summarise(even).facts()["largest unit"] == "1.00 times the mean unit, 1,000 rows"
    skewed = planned([100_000, *[1000] * 20], 8)
    assert summarise(skewed).largest_unit_rows == 100_000
    assert summarise(skewed).facts()["largest unit"].endswith("times the mean unit, 100,000 rows")


@pytest.mark.parametrize("count", [2, 8, 50])
def test_a6_each_unit_has_a_partition_of_its_own_whatever_the_session_says(spark, count):
    placed = spark.createDataFrame([(int(unit),) for unit in placed_units(spark, count)], "unit int")
    pairs = placed.repartition(count, "unit").select("unit", F.spark_partition_id().alias("partition")).collect()
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert sorted(row["partition"] for row in pairs) == list(range(count))


def twenty_keys(spark):
    carrier = F.concat(F.lit("k"), F.col("id") % 20).alias("carrier")
    x = F.col("id").cast("double")
    return spark.range(400).select("id", carrier, x.alias("x"), (2 * x).alias("y"))


def test_a10_xgboost_that_ran_in_the_driver_first_hangs_neither_training_nor_scoring(spark, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    noise = np.random.default_rng(0).normal(size=(5000, 5))
    xgboost.XGBRegressor(n_estimators=10, n_jobs=4).fit(noise, noise[:, 0])
    frame = twenty_keys(spark)
    with within(120):
        estimator = {"name": "xgboost", "params": {"n_estimators": 5, "n_jobs": -1}}
        world = trained(frame, tmp_path, estimator=estimator)
        twice = [scored("narrow", frame, world.spec).set_index("id")["prediction"].sort_index() for _ in range(2)]
    rows = api.show(world.spec)
    assert [(row["status"], row["params"]["n_jobs"]) for row in rows] == [("trained", "1")] * 20
    assert len(twice[0]) == 400
    assert twice[0].notna().all()
    pd.testing.assert_series_equal(*twice)


def test_a10_threads_of_the_spec_are_honoured_and_told(spark, tmp_path):
    pytest.importorskip("xgboost")
    estimator = {"name": "xgboost", "params": {"n_estimators": 5}, "threads": 2}
    said = []
    spec = spec_of(twenty_keys(spark).where("carrier = 'k1'"), tmp_path, estimator=estimator)
    api.train(spec, spark=spark, say=said.append)
    assert [row["params"]["n_jobs"] for row in api.show(spec)] == ["2"]
    assert [line for line in said if "2 threads" in line] != []


class Spy(BaseEstimator, RegressorMixin):
    """Notes the threads that BLAS and OpenMP may use while it is fitted."""

    def __init__(self, n_jobs=-1):
        self.n_jobs = n_jobs

    def fit(self, X, y):
        self.threads_ = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
        return self

    def predict(self, X):
        return np.zeros(len(X))


SPIES = {
    "plain": (Spy(), lambda model: model),
    "step": (Pipeline([("spy", Spy())]), lambda model: model.named_steps["spy"]),
    "searched": (GridSearchCV(Pipeline([("spy", Spy())]), {"spy__n_jobs": [-1, 4]}, cv=2, n_jobs=-1),
                 lambda model: model.best_estimator_.named_steps["spy"]),
}  # fmt: skip


@pytest.mark.parametrize("where", SPIES)
def test_a11_nested_thread_parameters_are_found_and_libraries_held_at_one_thread(where):
    estimator, inner = SPIES[where]
    x = pd.DataFrame({"x": np.arange(20.0)})
    row = fit_keys(x, x["x"].to_numpy(), estimator=EstimatorSettings(object=estimator))[0]
    assert row["status"] == "trained"
    recorded = {name: value for name, value in row["params"].items() if name.endswith("n_jobs")}
    assert set(recorded.values()) == {"1"}
    assert inner(unpickled(row)).threads_ == 1


def test_a11_a_forest_that_asks_for_all_cores_gets_one_unless_the_spec_gives_more():
    x = pd.DataFrame({"x": np.arange(20.0)})
    forest = RandomForestRegressor(n_estimators=2, n_jobs=-1)
    for threads in (1, 2):
        settings = EstimatorSettings(object=forest, threads=threads)
        row = fit_keys(x, x["x"].to_numpy(), estimator=settings)[0]
        assert row["params"]["n_jobs"] == str(threads)
        assert unpickled(row).n_jobs == threads
