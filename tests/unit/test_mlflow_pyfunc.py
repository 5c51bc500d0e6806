"""Stored models in MLflow's own hands: exported directories and `groupmodels:/` addresses."""

import datetime as dt
import logging
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import yaml

from group_models.adapters.mlflow_models import load_pyfunc
from group_models.artifacts import FORMAT, digest, serialize, write_model
from group_models.errors import DataError, ModelError, StateError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import FAMILIES, make_family
from group_models.keys import key_id, key_json
from group_models.mlmodel import MlmodelTemplate
from group_models.ports import Commit
from group_models.tables import STORE

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("mlflow.sklearn")
xgboost = pytest.importorskip("xgboost")

NUMERIC = Features(("a", "b"), (), ("a", "b"))
MIXED = Features(("a", "b"), ("color",), ("a", "color", "b"))
ODD = Features(("x<3", "v[0]"), (), ("x<3", "v[0]"))
AT = dt.datetime(2025, 3, 1, 2, 30, tzinfo=dt.UTC)
SET, RUN, KEY = "zrl.ml.eta", "r-1", ("UA", None)


def rows(features, n=60):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=n) for name in features.numeric}
    columns |= {name: pd.Series(["red", "blüe", None] * n, dtype=object)[:n] for name in features.text}
    x = pd.DataFrame({name: columns[name] for name in features.names})
    return x, x[features.numeric[0]].to_numpy() * 3 + rng.normal(size=n)


def trained(name, features=NUMERIC, *, key=KEY):
    """A family fitted to a few rows: the model, its rows, its MLmodel text and its file."""
    x, y = rows(features)
    family = make_family(EstimatorSettings(name), features)
    fitted = family.fit(x, y, seed=1)
    made = MlmodelTemplate.build(model_set=SET, run_id=RUN, estimator=name, flavor=family.flavor, features=features)
    return fitted, x, made.render(key_id(key), key_json(["carrier", "lane"], key), AT), *serialize(fitted)


def exported(directory, name, features=NUMERIC):
    fitted, x, text, data, data_file = trained(name, features)
    write_model(directory, text, data, data_file)
    return fitted, x


CASES = [(name, features) for name in sorted(FAMILIES) for features in (NUMERIC, MIXED)] + [("xgboost", ODD)]


@pytest.mark.parametrize(("name", "features"), CASES)
def test_an_exported_directory_predicts_the_same_without_a_warning(tmp_path, caplog, recwarn, name, features):
    fitted, x = exported(tmp_path / "model", name, features)
    with caplog.at_level(logging.INFO, logger="mlflow"):
        model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
        prediction = model.predict(x)
    np.testing.assert_allclose(prediction, fitted.predict(x), rtol=1e-9)
    assert caplog.messages == []
    assert [str(warning.message) for warning in recwarn] == []
    assert model.metadata.metadata["key"] == '{"carrier":"UA","lane":null}'
    assert model.metadata.metadata["key_id"] == key_id(KEY)


def test_the_native_flavors_give_the_estimator_itself(tmp_path):
    fitted, x = exported(tmp_path / "ridge", "ridge")
    pipeline = mlflow.sklearn.load_model(str(tmp_path / "ridge"))
    assert [name for name, _ in pipeline.steps] == ["group_models_impute", "scale", "ridge"]
    np.testing.assert_allclose(pipeline.predict(x), fitted.predict(x), rtol=1e-12)
    fitted, x = exported(tmp_path / "booster", "xgboost")
    booster = mlflow.xgboost.load_model(str(tmp_path / "booster"))
    np.testing.assert_array_equal(booster.predict(xgboost.DMatrix(x)), fitted.predict(x).astype(np.float32))


def mlflow_writes(directory, name, fitted):
    if name == "ridge":
        mlflow.sklearn.save_model(
            fitted.native, directory, serialization_format="cloudpickle", pip_requirements=["scikit-learn"]
        )
    else:
        mlflow.xgboost.save_model(fitted.native, directory, pip_requirements=["xgboost"])


@pytest.mark.parametrize("name", ["ridge", "xgboost"])
def test_the_text_and_files_are_those_that_mlflow_writes(tmp_path, name):
    fitted, _ = exported(tmp_path / "ours", name)
    mlflow_writes(tmp_path / "theirs", name, fitted)
    assert {f.name for f in (tmp_path / "ours").iterdir()} == {f.name for f in (tmp_path / "theirs").iterdir()}
    ours, theirs = (yaml.safe_load((tmp_path / who / "MLmodel").read_text()) for who in ("ours", "theirs"))
    theirs["flavors"].get("sklearn", {}).pop("skops_trusted_types", None)
    assert ours["flavors"] == theirs["flavors"]
    assert ours["mlflow_version"] == theirs["mlflow_version"]
    without_meaning_here = {"model_id", "model_size_bytes", "prompts"}
    without_meaning_here |= {"is_signature_from_type_hint", "type_hint_from_example"}
    assert set(theirs) - set(ours) <= without_meaning_here
    environments = [yaml.safe_load((tmp_path / who / "python_env.yaml").read_text()) for who in ("ours", "theirs")]
    assert environments[0] == environments[1]


def test_f6_every_model_has_a_signature_with_inputs_and_outputs(tmp_path):
    for name, features in CASES:
        directory = tmp_path / f"{name}-{len(features.names)}-{features.names[0][:1]}"
        exported(directory, name, features)
        signature = mlflow.models.get_model_info(str(directory)).signature
        assert [column.name for column in signature.inputs] == list(features.names)
        assert not any(column.required for column in signature.inputs)
        assert [(column.name, column.type.name) for column in signature.outputs] == [("prediction", "double")]


@pytest.mark.parametrize(("name", "features"), CASES)
def test_a_pyfunc_takes_columns_in_any_order_and_more_of_them(tmp_path, name, features):
    fitted, x = exported(tmp_path / "model", name, features)
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    moved = x[list(reversed(features.names))].assign(extra=1)
    np.testing.assert_allclose(model.predict(moved), fitted.predict(x), rtol=1e-9)


@pytest.mark.parametrize(("name", "features"), [case for case in CASES if case[0] not in ("median", "mean")])
def test_c9_a_pyfunc_names_a_missing_column(tmp_path, name, features):
    _, x = exported(tmp_path / "model", name, features)
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    last = features.names[-1]
    with pytest.raises(Exception, match=r"(?s)(missing.*|expected )(b\b|v\[0\])"):
        model.predict(x.drop(columns=last))


def test_a_pyfunc_takes_int32_and_float32_and_missing_values(tmp_path):
    fitted, _ = exported(tmp_path / "model", "ridge")
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    x = pd.DataFrame({"a": np.array([1, 2], dtype=np.int32), "b": np.array([0.5, np.nan], dtype=np.float32)})
    np.testing.assert_allclose(model.predict(x), fitted.predict(x.astype(float)), rtol=1e-9)


def test_a_pyfunc_leaves_it_to_the_caller_to_turn_int64_into_double(tmp_path):
    exported(tmp_path / "model", "ridge")
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    x = pd.DataFrame({"a": [10, 20], "b": [0.5, 1.0]})
    with pytest.raises(mlflow.exceptions.MlflowException, match="Can not safely convert int64 to float64"):
        model.predict(x)
    assert model.predict(x.astype(float)).shape == (2,)


@pytest.mark.parametrize("name", ["hist_gradient_boosting", "xgboost"])
def test_stock_mlflow_loads_an_exported_directory_without_this_package(tmp_path, name):
    fitted, x = exported(tmp_path / "model", name)
    x.to_pickle(tmp_path / "x.pkl")
    code = """
        import sys
        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "group_models":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Blocked())
        import mlflow, numpy, pandas
        model = mlflow.pyfunc.load_model(sys.argv[1])
        numpy.save(sys.argv[2], model.predict(pandas.read_pickle(sys.argv[3])))
        assert "group_models" not in sys.modules
    """
    files = [str(tmp_path / one) for one in ("model", "out.npy", "x.pkl")]
    # The plugin's entry point stays installed here while its module is blocked.
    quiet = ["-W", "ignore:Failure attempting to register:UserWarning"]
    command = [sys.executable, *quiet, "-c", textwrap.dedent(code), *files]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stderr == ""
    np.testing.assert_allclose(np.load(files[1]), fitted.predict(x), rtol=1e-9)


def store_row(name="ridge", features=NUMERIC, **changes):
    _, _, text, data, data_file = trained(name, features)
    row = {
        "model_set": SET, "run_id": RUN, "wave": 0, "number": 1, "key_id": key_id(KEY), "part": -1,
        "format": FORMAT, "mlmodel": text, "data": data, "data_file": data_file, "sha256": digest(data),
        "model_bytes": len(data), "status": "trained",
    }  # fmt: skip
    return row | changes


@pytest.fixture
def warehouse(tmp_path, monkeypatch):
    """A function that puts rows into the store of an embedded warehouse, one commit each."""
    from group_models.adapters.path_tables import PathTables

    monkeypatch.setenv("GROUP_MODELS_WAREHOUSE", str(tmp_path / "warehouse"))
    tables = PathTables(tmp_path / "warehouse", "zrl.ml")

    def put(*given):
        for row in given:
            tables.append(STORE, STORE.rows([row]), Commit(SET, RUN, row["number"]))

    return put


def address(key=KEY, run=RUN):
    return f"groupmodels:/{SET}/{run}/{key_id(key)}"


@pytest.mark.parametrize(("name", "features"), [("ridge", MIXED), ("xgboost", NUMERIC), ("xgboost", MIXED)])
def test_an_address_loads_as_a_pyfunc(warehouse, name, features):
    warehouse(store_row(name, features))
    fitted, x, *_ = trained(name, features)
    np.testing.assert_allclose(mlflow.pyfunc.load_model(address()).predict(x), fitted.predict(x), rtol=1e-9)


def test_an_address_loads_as_the_native_estimator(warehouse):
    warehouse(store_row())
    assert list(mlflow.sklearn.load_model(address()).named_steps) == ["group_models_impute", "scale", "ridge"]


def test_of_two_rows_of_a_key_the_lower_number_counts_and_parts_do_not(warehouse):
    warehouse(
        store_row("median", number=3),
        store_row("ridge", number=2),
        store_row("random_forest", number=1, part=0),
    )
    assert type(mlflow.sklearn.load_model(address()).steps[-1][1]).__name__ == "Ridge"


def test_files_of_an_address_are_listed_and_downloaded_one_by_one_or_all(warehouse, tmp_path):
    warehouse(store_row())
    names = {pathlib.PurePath(info.path).name for info in mlflow.artifacts.list_artifacts(address())}
    assert names == {"MLmodel", "model.pkl", "requirements.txt", "conda.yaml", "python_env.yaml"}
    text = mlflow.artifacts.load_text(address() + "/MLmodel")
    assert yaml.safe_load(text)["metadata"]["run_id"] == RUN
    (tmp_path / "out").mkdir()
    path = mlflow.artifacts.download_artifacts(address(), dst_path=str(tmp_path / "out"))
    assert {file.name for file in pathlib.Path(path).iterdir()} == names
    with pytest.raises(StateError, match=r"has no file 'model\.onnx'; it has "):
        mlflow.artifacts.download_artifacts(address() + "/model.onnx")


def test_altered_data_are_refused_before_they_are_handed_out(warehouse):
    warehouse(store_row(data=b"something else"))
    with pytest.raises(ModelError, match=f"the model of key {key_id(KEY)} in run r-1 of zrl.ml.eta is altered"):
        mlflow.pyfunc.load_model(address())


def test_a_key_without_a_model_is_refused_with_its_status_and_reason(warehouse):
    nothing = dict.fromkeys(("data", "mlmodel", "data_file", "sha256", "model_bytes"))
    warehouse(store_row(**nothing, status="failed", reason="inf in weight_kg"))
    with pytest.raises(StateError, match="key's status in that run is failed: inf in weight_kg"):
        mlflow.pyfunc.load_model(address())


def test_unknown_runs_keys_and_forms_are_refused_by_name(warehouse):
    warehouse(store_row())
    with pytest.raises(StateError, match=r"in run r-2 .* it has no such run"):
        mlflow.pyfunc.load_model(address(run="r-2"))
    with pytest.raises(StateError, match="the run tried no such key"):
        mlflow.pyfunc.load_model(address(key=("DL", None)))
    with pytest.raises(StateError, match=r"names no model; a model is groupmodels:/<model_set>/<run_id>/"):
        mlflow.pyfunc.load_model("groupmodels:/zrl.ml.eta/r-1")


def test_one_key_is_evaluated_by_mlflow_like_any_model(warehouse, mlflow_db, tmp_path):
    warehouse(store_row())
    fitted, x, *_ = trained("ridge", NUMERIC)
    rows = x.assign(truth=fitted.predict(x) + 0.5)
    mlflow.create_experiment("one key", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("one key")
    with mlflow.start_run():
        found = mlflow.models.evaluate(
            address(), rows, targets="truth", model_type="regressor",
            evaluator_config={"log_model_explainability": False},
        )  # fmt: skip
    assert found.metrics["mean_absolute_error"] == pytest.approx(0.5)
    assert found.metrics["example_count"] == len(x)


def test_without_a_warehouse_the_variable_to_set_is_named(monkeypatch):
    monkeypatch.delenv("GROUP_MODELS_WAREHOUSE", raising=False)
    with pytest.raises(StateError, match="set the environment variable GROUP_MODELS_WAREHOUSE"):
        mlflow.pyfunc.load_model(address())


def test_an_address_is_read_only(tmp_path):
    from group_models.adapters.mlflow_artifacts import GroupModelsArtifactRepository

    repository = GroupModelsArtifactRepository(address())
    for act in (repository.log_artifact, repository.log_artifacts, repository.delete_artifacts):
        with pytest.raises(StateError, match="is read-only; models are"):
            act(str(tmp_path))


def raw_columns():
    """Raw columns as a source has them: whole numbers of 64 bits, booleans with a null, decimals."""
    a, b = pd.Series([1, 2, 2**53, -4], dtype="int64"), pd.Series([True, False, None, True], dtype=object)
    return pd.DataFrame({"b": b, "a": a, "color": ["red", None, "new", "blüe"]}).set_axis([7, 7, 8, 9])


@pytest.mark.parametrize("name", ["ridge", "xgboost"])
def test_the_pyfunc_of_a_key_takes_the_raw_columns(name):
    fitted, _, text, data, data_file = trained(name, MIXED)
    row = {"key_id": "k", "run_id": RUN, "mlmodel": text, "data": data, "data_file": data_file, "sha256": digest(data)}
    model, raw = load_pyfunc(row), raw_columns()
    as_doubles = pd.DataFrame(
        {"a": [1.0, 2.0, 2.0**53, -4.0], "color": raw["color"].tolist(), "b": [1.0, 0.0, np.nan, 1.0]}
    )
    np.testing.assert_allclose(model.predict(raw), fitted.predict(as_doubles), rtol=1e-9)
    np.testing.assert_allclose(
        model.predict(raw.iloc[:2].astype({"b": bool})), fitted.predict(as_doubles[:2]), rtol=1e-9
    )
    assert isinstance(model, mlflow.pyfunc.PyFuncModel)
    with pytest.raises(DataError, match="'a' holds str values, and the models were trained on numbers"):
        model.predict(raw.assign(a="1"))
