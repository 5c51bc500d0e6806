"""The router pyfunc: one file, models read when a row needs them, answers as batch scoring gives them."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import sqlite3
import subprocess
import sys

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from group_models import api, releasing
from group_models.adapters.mlflow_router import save_router
from group_models.adapters.path_tables import PathTables
from group_models.errors import LibraryWarning, ModelError, PlatformError
from group_models.live.sets import read_live
from group_models.mirroring import read_models
from group_models.serving import bundles
from group_models.serving.bundles import Bundle, write_bundle
from group_models.serving.resolving import OUTPUTS
from group_models.spec import Scoring
from tests import fitted

RULES = Scoring()
SLOPES = {"a": 1.0, "b": 2.0, "a/b": 3.0, "": 4.0, "Ü 日": 5.0}
ASKED = pd.DataFrame(
    {"k": ["a", "b", "new", None, "a/b", "", "broken", "Ü 日", "b"], "x": np.arange(9.0), "other": list("ABCDEFGHI")},
    index=[7, 7, 3, 1, 2, 9, 4, 5, 6],
)


@pytest.fixture
def asked(tmp_path):
    """The spec of a released run, in which one key failed."""
    spec = fitted.spec(tmp_path / "warehouse")
    fitted.add_run(PathTables(tmp_path / "warehouse", "zrl.ml"), "r1", 0, SLOPES, failed=["broken"])
    releasing.release(spec, run_id="r1", force=True)
    return spec


def file_of(spec, folder, scoring=RULES):
    """Write the router's file of a spec's champion and return it with the live set."""
    tables = PathTables(spec["warehouse"], "zrl.ml")
    live = read_live(tables, fitted.SET)
    write_bundle(folder / "router.sqlite", live, scoring, read_models(tables, fitted.SET, live))
    return folder / "router.sqlite", live


@pytest.fixture
def router(asked, tmp_path):
    file, live = file_of(asked, tmp_path)
    save_router(tmp_path / "router", file, live, {"model_set": fitted.SET})
    return tmp_path / "router"


def outputs(scored):
    """Return what scoring added, but for ages, which grow."""
    return scored[[name for name in OUTPUTS if name != "model_age_days"]]


def test_a_router_answers_mixed_keys_as_batch_scoring_does(asked, router):
    answered = mlflow.pyfunc.load_model(str(router)).predict(ASKED)
    scored = api.score(ASKED, asked)
    assert list(answered.columns) == list(OUTPUTS)
    pd.testing.assert_frame_equal(outputs(answered), outputs(scored), rtol=0, atol=1e-9)
    assert answered["score_status"].tolist() == [
        "scored", "scored", "unseen_key", "null_key", "scored", "scored", "no_model", "scored", "scored",
    ]  # fmt: skip
    np.testing.assert_allclose(answered["model_age_days"], scored["model_age_days"], atol=1e-2)
    assert answered.index.tolist() == ASKED.index.tolist()


def test_a_router_needs_neither_spark_nor_the_tables(asked, router, tmp_path):
    shutil.rmtree(asked["warehouse"])
    code = (
        "import sys; sys.modules['pyspark'] = None;"
        "import mlflow, pandas as pd; model = mlflow.pyfunc.load_model(sys.argv[1]);"
        "print(model.predict(pd.DataFrame({'k': ['b'], 'x': [3.0]}))['prediction'][0])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(router)], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(6.0, abs=1e-9)


def test_the_signature_has_inputs_and_outputs_and_each_input_is_required(router):
    signature = mlflow.models.get_model_info(str(router)).signature
    assert [(c.name, str(c.type), c.required) for c in signature.inputs] == [
        ("k", "DataType.string", True), ("x", "DataType.double", True),
    ]  # fmt: skip
    assert [column.name for column in signature.outputs] == list(OUTPUTS)


def test_models_are_read_when_a_row_needs_them_and_once(asked, tmp_path):
    bundle = Bundle(file_of(asked, tmp_path)[0])
    assert bundle.reads == 0
    for _ in range(3):
        bundle.predict(pd.DataFrame({"k": ["a", "b", "a", "new"], "x": [1.0] * 4}))
    assert bundle.reads == 2


@pytest.mark.parametrize("limit", [{"max_models": 2}, {"max_bytes": 1}])
def test_what_is_held_is_bounded_and_the_answers_stay_the_same(asked, tmp_path, limit):
    bundle = Bundle(file_of(asked, tmp_path)[0], **limit)
    rows = pd.DataFrame({"k": ["a", "b", "a/b", "", "Ü 日"], "x": [1.0] * 5})
    for _ in range(2):
        assert bundle.predict(rows)["prediction"].tolist() == pytest.approx([1, 2, 3, 4, 5], abs=1e-9)
    assert bundle.reads == 10
    bundle.predict(rows.tail(1))
    assert bundle.reads == 10


def test_limits_of_what_is_held_are_given_when_it_is_loaded(router):
    model = mlflow.pyfunc.load_model(str(router), model_config={"max_models": 1})
    rows = pd.DataFrame({"k": ["a", "b"], "x": [1.0, 1.0]})
    model.predict(rows)
    model.predict(rows)
    assert model._model_impl.bundle.reads == 4


def test_a_missing_feature_is_named_in_process(router):
    with pytest.raises(MlflowException, match=r"Model is missing inputs \['x'\]"):
        mlflow.pyfunc.load_model(str(router)).predict(ASKED.drop(columns="x"))


def test_a_model_that_is_altered_in_the_file_costs_its_own_rows_alone(asked, tmp_path):
    file, _ = file_of(asked, tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE model SET data = x'00' WHERE key_id = (SELECT min(key_id) FROM model)")
    with pytest.warns(LibraryWarning, match=r"SHA-256"):
        answered = Bundle(file).predict(pd.DataFrame({"k": list(SLOPES), "x": [1.0] * 5}))
    assert sorted(answered["score_status"]) == ["model_failed", "scored", "scored", "scored", "scored"]


def test_a_file_of_a_newer_format_or_none_of_ours_is_refused(asked, tmp_path):
    file, _ = file_of(asked, tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE about SET value = '99' WHERE name = 'format'")
    with pytest.raises(ModelError, match=f"has format 99 and this version reads up to {bundles.FORMAT}"):
        Bundle(file)
    (tmp_path / "text").write_text("no database")
    with pytest.raises(ModelError, match="is no router's file"):
        Bundle(tmp_path / "text")


def test_keys_without_a_model_stop_a_router_whose_spec_says_raise(asked, tmp_path):
    file, live = file_of(asked, tmp_path, Scoring(on_missing="raise"))
    save_router(tmp_path / "router", file, live, {})
    with pytest.raises(MlflowException, match=r"k=new \(unseen_key\)") as error:
        mlflow.pyfunc.load_model(str(tmp_path / "router")).predict(ASKED)
    assert error.value.get_http_status_code() == 400


def test_models_of_other_libraries_are_told_or_refused_when_a_router_is_loaded(asked, tmp_path):
    _, live = file_of(asked, tmp_path)
    libraries = {"r1": ({"numpy": "0.9.9"}, ("numpy",))}
    for name, rules in (("warn", Scoring()), ("refuse", Scoring(on_library_change="refuse"))):
        old = type(live)(live.keys, live.run_features, live.key_kinds, libraries)
        write_bundle(tmp_path / name, old, rules, [])
    with pytest.warns(LibraryWarning, match=r"numpy 0\.9\.9 .*: 5 keys of run r1"):
        Bundle(tmp_path / "warn")
    with pytest.raises(PlatformError, match=r"numpy 0\.9\.9"):
        Bundle(tmp_path / "refuse")


def test_predictions_of_many_threads_are_each_their_own(asked, tmp_path):
    bundle = Bundle(file_of(asked, tmp_path)[0], max_models=2)

    def ask(name):
        rows = [pd.DataFrame({"k": [name], "x": [float(x)]}) for x in range(40)]
        return [bundle.predict(row)["prediction"][0] for row in rows]

    with concurrent.futures.ThreadPoolExecutor(len(SLOPES)) as pool:
        found = list(pool.map(ask, SLOPES))
    expected = [[slope * x for x in range(40)] for slope in SLOPES.values()]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_a_set_with_intervals_has_bounds_in_its_signature_and_answers(tmp_path):
    spec = fitted.spec(tmp_path / "warehouse")
    tables = PathTables(tmp_path / "warehouse", "zrl.ml")
    said = json.dumps({"estimator": {"name": "linear"}, "intervals": [0.5, 0.9]})
    fitted.add_run(tables, "r1", 0, SLOPES, failed=["broken"], spec=said, columns={"interval": {"0.9": 2.0}})
    releasing.release(spec, run_id="r1", force=True)
    file, live = file_of(spec, tmp_path)
    save_router(tmp_path / "router", file, live, {"model_set": fitted.SET})
    model = mlflow.pyfunc.load_model(str(tmp_path / "router"))
    answered, direct = model.predict(ASKED[["k", "x"]]), api.score(ASKED, spec, columns=())
    bounds = ["lower_50", "upper_50", "lower_90", "upper_90"]
    assert list(answered) == list(direct) == [column.name for column in model.metadata.get_output_schema().inputs]
    assert list(answered)[1:5] == bounds
    pd.testing.assert_frame_equal(answered, direct)
    np.testing.assert_allclose(
        answered["upper_90"] - answered["lower_90"], np.where(answered["prediction"].isna(), np.nan, 4.0)
    )
    assert answered[["lower_50", "upper_50"]].isna().all(axis=None)


def test_a_file_of_a_set_without_intervals_is_one_that_earlier_versions_read(asked, tmp_path):
    file, _ = file_of(asked, tmp_path)
    with sqlite3.connect(file) as connection:
        about = dict(connection.execute("SELECT name, value FROM about").fetchall())
    assert json.loads(about["format"]) == 1
    assert "intervals" not in json.loads(about["live"])
