"""Model storage: other library versions, classes of a notebook, and no requirement inference per model."""

import json
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn
import yaml

from group_models import api
from group_models.adapters import spark_probe
from group_models.artifacts import digest
from group_models.errors import LibraryWarning, PlatformError, StateError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import FAMILIES, check_settings
from group_models.libraries import LoadNotes, TrainedBy, library_mistakes, needed
from group_models.serving.routing import Inputs, ModelRow, Router
from group_models.tables import MANIFEST, RUN, STORE
from tests.cases.worlds import ENGINES, by_key, fit_keys, scored, spec_of, values


def edited(world, folder, how, *tables):
    """Return the spec over a copy of a world's tables of which each row is changed."""
    spec = world.copied_to(folder)
    for table in tables:
        for file in Path(spec["warehouse"]).rglob(f"{table.name}/**/*.parquet"):
            rows = pq.read_table(file, schema=table.arrow_schema).to_pylist()
            for checksum in file.parent.glob(".*.crc"):
                checksum.unlink()
            pq.write_table(pa.Table.from_pylist([how(dict(row)) for row in rows], schema=table.arrow_schema), file)
    return spec


def trained_with(world, folder, **versions):
    """Return the spec over a copy of a world whose runs say that they had other versions."""

    def other(row):
        return {**row, "versions": [*(dict(row["versions"] or ()) | versions).items()] if row["versions"] else None}

    return edited(world, folder, other, RUN)


ABC = "carrier string, row_id bigint, a double, b int, c bigint"
QUESTION = [("A", 123, 1.0, 2, 3), ("B", 456, 4.0, 5, 6), ("new", 1, 0.0, 0, 0)]


@pytest.mark.parametrize("engine", ENGINES)
def test_e1_models_of_another_library_are_told_once_before_the_job_and_scored(spark, lines, tmp_path, engine):
    spec = trained_with(lines, tmp_path, numpy="0.9.9")
    with pytest.warns(LibraryWarning) as told:
        out = scored(engine, spark.createDataFrame(QUESTION, ABC), spec)
    (said,) = [str(warning.message) for warning in told if warning.category is LibraryWarning]
    assert f"numpy 0.9.9 (here {np.__version__}): 2 keys of run {lines.run.run_id}" in said
    assert "scikit-learn" not in said
    assert values(out) == {123: pytest.approx(123), 456: pytest.approx(-456), 1: None}


@pytest.mark.parametrize("engine", ENGINES)
def test_e1_a_spec_may_refuse_to_score_with_another_library(spark, lines, tmp_path, engine):
    spec = trained_with(lines, tmp_path, numpy="0.9.9", **{"scikit-learn": "0.1.2"})
    spec["scoring"] = {"on_library_change": "refuse"}
    frame = spark.createDataFrame(QUESTION, ABC)
    with pytest.raises(PlatformError, match=r"numpy 0\.9\.9 .*; scikit-learn 0\.1\.2 .*on_library_change: warn"):
        scored(engine, frame, spec)


@pytest.mark.parametrize("engine", ENGINES)
def test_e1_models_of_the_same_libraries_are_scored_without_a_word(spark, lines, engine):
    with warnings.catch_warnings():
        warnings.simplefilter("error", LibraryWarning)
        scored(engine, spark.createDataFrame(QUESTION, ABC), lines.spec)


def test_e1_each_version_that_differs_names_its_runs_and_counts_its_keys():
    here = {"python": "3.11.7", "numpy": "2.3.4", "xgboost": "3.2.0"}
    runs = [
        TrainedBy("r1", {**here, "numpy": "1.26.4"}, ("python", "numpy"), 20),
        TrainedBy("r2", {**here, "numpy": "1.26.4"}, ("python", "numpy"), 3),
        TrainedBy("r3", {**here, "numpy": "2.3.0", "xgboost": "2.1.0"}, ("numpy",), 5),
        TrainedBy("r4", {**here, "scikit-learn": "1.6.1"}, ("scikit-learn",), 7),
    ]
    assert library_mistakes(runs, here) == [
        "numpy 1.26.4 (here 2.3.4): 23 keys of runs r1, r2",
        "scikit-learn 1.6.1 (here not installed): 7 keys of run r4",
    ]


def test_e1_a_library_matters_only_to_models_that_are_stored_by_it():
    assert needed({"name": "xgboost", "object": None}) == ("xgboost",)
    assert "xgboost" not in needed({"name": "ridge", "object": None})
    assert {"scikit-learn", "xgboost", "numpy"} <= set(needed({"name": None, "object": "shop.models:make"}))


def of_old_sklearn(row):
    """Change the version that scikit-learn put into its pickles, and the digests with it."""
    if row.get("data"):
        row["data"] = row["data"].replace(sklearn.__version__.encode(), OLD.encode())
        row["sha256"] = digest(row["data"])
    return row


OLD = "0" * (len(sklearn.__version__) - 2) + ".1"
"""A version as long as the present one: a pickle says how long its texts are."""


def test_e2_what_reading_a_model_of_another_version_says_reaches_who_scores(lines, tmp_path):
    digests = {}

    def changed(row):
        row = of_old_sklearn(row)
        digests.setdefault(row["key_id"], row["sha256"])
        return {**row, "sha256": digests[row["key_id"]]}

    spec = edited(lines, tmp_path, changed, STORE, MANIFEST)
    question = pd.DataFrame([row[:1] + row[2:] for row in QUESTION], columns=["carrier", "a", "b", "c"])
    with pytest.warns(LibraryWarning, match=rf"reading 2 model\(s\), first .* LinearRegression from version {OLD}"):
        out = api.score(question, spec)
    assert out["prediction"].tolist()[:2] == [pytest.approx(123), pytest.approx(-456)]


def test_e2_in_a_worker_what_reading_models_says_goes_to_its_log_once(capsys):
    x = pd.DataFrame({"x": np.arange(8.0)})
    rows = fit_keys(
        x, x["x"], keys=["a", "b"] * 4, estimator=EstimatorSettings(object="sklearn.linear_model:LinearRegression")
    )
    router = Router({0: Inputs({"x": "numeric"}, (0,))})
    for place, row in enumerate(map(of_old_sklearn, rows)):
        stored = ModelRow(0, row["data"], row["data_file"], row["format"], row["sha256"], f"model {place}")
        router._take(place, stored)
        router._loaded_form()
    assert router.loads == 2
    said = capsys.readouterr().err
    assert said.count("group-models: reading 1 model(s), first model 0: InconsistentVersionWarning") >= 1
    assert "first model 1" not in said


def test_e2_a_model_that_cannot_be_read_says_why_and_the_error_goes_on():
    notes = LoadNotes()
    with pytest.raises(pickle.UnpicklingError), notes.reading("model 7"):
        pickle.loads(b"\x00")
    (said,) = notes.sentences()
    assert said.startswith("reading 1 model(s), first model 7: UnpicklingError: ")


NOTEBOOK = """
    import sys

    import numpy as np
    from pyspark.sql import SparkSession
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import Pipeline

    from group_models import api

    class Doubled(BaseEstimator, TransformerMixin):
        def fit(self, X, y=None):
            return self

        def transform(self, X):
            return SCALE * np.asarray(X)

    SCALE = 2.0

    def make():
        return Pipeline([("double", Doubled()), ("line", LinearRegression())])

    if __name__ == "__main__":
        options = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
        spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
        rows = [(carrier, float(x), 3.0 * x + place) for place, carrier in enumerate("AB") for x in range(10)]
        spec = {
            "model_set": "zrl.ml.eta", "source": spark.createDataFrame(rows, "carrier string, x double, y double"),
            "keys": ["carrier"], "target": "y", "features": ["x"], "estimator": {"object": make, "version": "1"},
            "holdout": {"by": "none"}, "limits": {"min_rows": 1}, "compute": {"slots": 1}, "warehouse": sys.argv[1],
        }
        print(api.train(spec, spark=spark).counts)
"""

LATER = """
    import json
    import sys

    import pandas as pd

    from group_models import api

    asked = pd.DataFrame({"carrier": ["A", "B", "A"], "x": [1.0, 1.0, 2.0]})
    scored = api.score(asked, "zrl.ml.eta", warehouse=sys.argv[1])
    loaded = api.load_model("zrl.ml.eta", carrier="B", warehouse=sys.argv[1])
    print(json.dumps({"scored": scored["prediction"].tolist(), "loaded": loaded.predict(asked[["x"]]).tolist()}))
"""


def run(folder, name, script, *arguments):
    """Run a script in a process of its own and return what it printed last."""
    file = folder / f"{name}.py"
    file.write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, str(file), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def half_changed(spark, folder, versions, rule, **options):
    """Train keys A and B, of which B changes with every version of the libraries."""
    xgboost = versions["xgboost"]
    rows = [(key, float(x), x + float(xgboost[0]) * (key == "B")) for key in "AB" for x in range(10)]
    frame = spark.createDataFrame(rows, "carrier string, x double, y double")
    estimator = {"name": "xgboost", "params": {"n_estimators": 2}}
    spec = spec_of(frame, folder, estimator=estimator, on_library_change=rule)
    return spec, api.train(spec, spark=spark, **options)


def test_e3_a_fleet_of_two_library_versions_shows_and_can_be_renewed_kept_or_refused(spark, tmp_path, monkeypatch):
    now = spark_probe.versions()
    older = {**now, "xgboost": "2.1.4"}
    with monkeypatch.context() as patched:
        patched.setattr(spark_probe, "versions", lambda: older)
        patched.setattr(spark_probe, "check_workers", lambda *_: None)
        half_changed(spark, tmp_path, older, "retrain", run_id="older")
    change = f"xgboost 2.1.4 -> {now['xgboost']}"
    with pytest.raises(StateError, match=rf"on_library_change: refuse`: {change} \(2 keys\)"):
        half_changed(spark, tmp_path, now, "refuse")
    said = []
    spec, kept = half_changed(spark, tmp_path, now, "keep", run_id="mixed", say=said.append)
    assert kept.counts == {"trained": 1, "unchanged": 1}
    rows = by_key(api.show(spec))
    assert {key: row["model_run_id"] for key, row in rows.items()} == {"A": "older", "B": "mixed"}
    assert rows["A"]["reason"] == (f"same data and spec as its model; trained with {change}; its model is 0.0 days old")
    assert [line for line in said if line.endswith(f": 1 with {change}")] != []
    assert len(api.score(spec["source"].toPandas(), spec)["prediction"].dropna()) == 20
    _, renewed = half_changed(spark, tmp_path, now, "retrain", run_id="renewed")
    assert renewed.counts == {"trained": 1, "unchanged": 1}
    assert {key: row["model_run_id"] for key, row in by_key(api.show(spec)).items()} == {"A": "renewed", "B": "mixed"}


@pytest.mark.slow
@pytest.mark.spark
def test_e7_a_class_of_the_training_script_is_scored_by_a_process_that_never_saw_it(tmp_path):
    warehouse = str(tmp_path / "warehouse")
    assert run(tmp_path, "notebook", NOTEBOOK, warehouse) == "{'trained': 2}"
    answer = json.loads(run(tmp_path, "later", LATER, warehouse))
    assert answer["scored"] == pytest.approx([3.0, 4.0, 6.0])
    assert answer["loaded"] == pytest.approx([4.0, 4.0, 7.0])


def test_e7_a_dotted_path_into_the_script_itself_is_refused_since_workers_run_another():
    mistakes = check_settings(EstimatorSettings(object="__main__:make"), Features(("x",), (), ("x",)))
    assert len(mistakes) == 1
    assert "workers have another __main__; give the object itself" in mistakes[0]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_e10_storing_models_starts_no_process_and_infers_no_requirements(name, monkeypatch):
    import mlflow.models.model
    import mlflow.utils.environment

    calls = []

    def noted(*_, **__):
        calls.append("called")
        raise OSError("not per model")

    x = pd.DataFrame({"x": np.arange(20.0)})
    # Once per process scikit-learn starts one to count the cores.
    fit_keys(x, np.arange(20.0), estimator=EstimatorSettings(name))
    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    monkeypatch.setattr(mlflow.utils.environment, "infer_pip_requirements", noted)
    monkeypatch.setattr(mlflow.models.model.Model, "log", noted)
    rows = fit_keys(x, np.arange(20.0), keys=["A"] * 10 + ["B"] * 10, estimator=EstimatorSettings(name))
    assert calls == []
    assert [row["status"] for row in rows] == ["trained", "trained"]
    needs = [yaml.safe_load(row["mlmodel"])["metadata"]["requirements"] for row in rows]
    assert needs[0] == needs[1]
    assert any(need.startswith(("scikit-learn==", "xgboost==")) for need in needs[0])


WORKER = """
    import sys

    import numpy as np
    import pandas as pd

    from group_models.estimators.base import EstimatorSettings
    from tests.cases.worlds import fit_keys

    sys.modules["mlflow"] = sys.modules["pyspark"] = None  # importing them raises
    x = pd.DataFrame({"x": np.arange(10.0)})
    print(fit_keys(x, np.arange(10.0), estimator=EstimatorSettings("ridge"))[0]["status"])
"""


def test_e10_fitting_and_storing_import_neither_mlflow_nor_pyspark(tmp_path, monkeypatch, pytestconfig):
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    assert run(tmp_path, "worker", WORKER) == "trained"


def test_e4_a_forest_over_the_limit_is_an_outcome_with_its_size_and_no_bytes():
    rng = np.random.default_rng(1)
    x = pd.DataFrame(rng.normal(size=(3000, 4)), columns=list("abcd"))
    forest = EstimatorSettings("random_forest", params={"n_estimators": 30})
    y = x["a"].to_numpy() + rng.normal(size=3000)
    small, large = (fit_keys(x[:rows], y[:rows], estimator=forest)[0] for rows in (30, 3000))
    assert (small["status"], small["model_bytes"] < 2**20) == ("trained", True)
    assert (large["status"], large["data"], large["sha256"]) == ("model_too_big", None, None)
    assert large["reason"] == f"the model has {large['model_bytes']:,} bytes; max_model_bytes is {2**20:,}"
    assert large["model_bytes"] > 2**20
