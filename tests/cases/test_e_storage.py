"""Model storage: classes of a notebook, and no requirement inference per model."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import yaml

from group_models import api
from group_models.adapters import spark_probe
from group_models.errors import StateError
from group_models.estimators import EstimatorSettings, Features
from group_models.registry import FAMILIES, check_settings
from tests.cases.worlds import by_key, fit_keys, spec_of

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

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    monkeypatch.setattr(mlflow.utils.environment, "infer_pip_requirements", noted)
    monkeypatch.setattr(mlflow.models.model.Model, "log", noted)
    x = pd.DataFrame({"x": np.arange(20.0)})
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

    from group_models import api
from group_models.adapters import spark_probe
from group_models.errors import StateError
from group_models.estimators import EstimatorSettings
    from tests.cases.worlds import fit_keys

    sys.modules["mlflow"] = sys.modules["pyspark"] = None  # importing them raises
    x = pd.DataFrame({"x": np.arange(10.0)})
    print(fit_keys(x, np.arange(10.0), estimator=EstimatorSettings("ridge"))[0]["status"])
"""


def test_e10_fitting_and_storing_import_neither_mlflow_nor_pyspark(tmp_path, monkeypatch, pytestconfig):
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    assert run(tmp_path, "worker", WORKER) == "trained"
