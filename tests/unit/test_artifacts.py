"""Stored models: what is written is read back with the same predictions, and nothing altered is unpickled."""

import datetime as dt
import pathlib
import pickle
import subprocess
import sys
import textwrap
import time

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression

from group_models import artifacts
from group_models.artifacts import digest, load_model, model_files, serialize, write_model
from group_models.errors import DataError, ModelError, StateError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import FAMILIES, make_family
from group_models.keys import key_id, key_json
from group_models.mlmodel import MlmodelTemplate, installed_version, quoted, requirements

NUMERIC = Features(("a", "b"), (), ("a", "b"))
MIXED = Features(("a", "b"), ("color",), ("a", "color", "b"))
AT = dt.datetime(2025, 3, 1, 2, 30, tzinfo=dt.UTC)


def rows(features, n=60):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=n) for name in features.numeric}
    columns |= {name: pd.Series(["red", "blüe", None] * n, dtype=object)[:n] for name in features.text}
    x = pd.DataFrame({name: columns[name] for name in features.names})
    return x, x["a"].to_numpy() * 3 + rng.normal(size=n)


def fitted_to(name, features=NUMERIC, *, made=None):
    x, y = rows(features)
    settings = EstimatorSettings(name) if made is None else EstimatorSettings(object=made)
    return make_family(settings, features).fit(x, y, seed=1), x


def template(features=NUMERIC, flavor="sklearn"):
    return MlmodelTemplate.build(
        model_set="zrl.ml.eta", run_id="r1", estimator="ridge", flavor=flavor, features=features
    )


def load(data, data_file, **changes):
    return load_model(data, **{"format": artifacts.FORMAT, "data_file": data_file, **changes})


@pytest.mark.parametrize("features", [NUMERIC, MIXED], ids=["numeric", "mixed"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_model_read_back_predicts_the_same(name, features):
    fitted, x = fitted_to(name, features)
    data, data_file = serialize(fitted)
    model = load(data, data_file, sha256=digest(data))
    np.testing.assert_array_equal(model.predict(x), fitted.predict(x))
    assert model.predict(x[:0]).shape == (0,)
    assert model.data_file == data_file.removesuffix(".zst")
    np.testing.assert_array_equal(load(model.dump(), model.data_file).predict(x), fitted.predict(x))


def test_c11_refused_names_come_back_from_the_file():
    odd = Features(("x<3", "v[0]"), (), ("x<3", "v[0]"))
    x, y = rows(NUMERIC)
    x = x.set_axis(list(odd.names), axis=1)
    fitted = make_family(EstimatorSettings("xgboost"), odd).fit(x, y, seed=0)
    model = load(*serialize(fitted))
    np.testing.assert_array_equal(model.predict(x[["v[0]", "x<3"]]), fitted.predict(x))


def test_the_same_fit_gives_the_same_bytes():
    for name in FAMILIES:
        assert digest(serialize(fitted_to(name)[0])[0]) == digest(serialize(fitted_to(name)[0])[0])


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("the bytes were unpickled",))


def test_altered_bytes_are_refused_before_they_are_unpickled():
    with pytest.raises(ModelError, match=r"the model of carrier=UA is altered: its SHA-256 is .*; it was not loaded"):
        load(pickle.dumps(Bomb()), "model.pkl", sha256="0" * 64, what="the model of carrier=UA")


def test_a_newer_format_is_refused_by_its_number():
    with pytest.raises(ModelError, match="has format 4 and this version reads up to 3; use a newer group-models"):
        load(b"", "model.pkl", format=4)


def test_an_unknown_data_file_is_refused():
    with pytest.raises(ModelError, match=r"data file 'model\.skops'; this version reads linear\.bin, model\.pkl"):
        load(b"", "model.skops")


@pytest.mark.parametrize("data_file", ["linear.bin", "model.pkl", "model.ubj", "model.ubj.zst"])
@pytest.mark.parametrize("data", [b"", b"\x80\x05nonsense", b"\x80\x05cno_such_module\nthing\n."])
def test_bytes_that_are_no_model_are_one_error(data_file, data):
    with pytest.raises(ModelError, match=r"cannot be read \(.*\); is what it was trained with installed here"):
        load(data, data_file)


def test_a_missing_column_is_named():
    model = load(*serialize(fitted_to("xgboost")[0]))
    x = pd.DataFrame({"a": [1.0], "z": [2.0]})
    with pytest.raises(DataError, match="b missing; the model was trained on a, b"):
        model.predict(x)


BAD = [np.inf, 1e39, np.nan, 2.0]


@pytest.mark.parametrize(
    ("name", "made", "without"),
    [
        ("ridge", None, [0]),
        ("random_forest", None, [0, 1]),
        ("hist_gradient_boosting", None, []),
        ("median", None, []),
        ("xgboost", None, []),
        (None, LinearRegression, [0, 2]),
    ],
)
def test_d9_only_the_rows_that_the_estimator_refuses_go_without_a_prediction(name, made, without):
    model = load(*serialize(fitted_to(name, made=made)[0]))
    x = pd.DataFrame({"a": BAD, "b": 1.0}, index=[5, 5, 5, 5])
    prediction = model.predict(x)
    assert list(np.flatnonzero(np.isnan(prediction))) == without
    for place in range(4):
        np.testing.assert_allclose(model.predict(x.iloc[[place]]), prediction[[place]], rtol=1e-12)


class Refuses(BaseEstimator):
    def fit(self, x, y):
        return self

    def predict(self, x):
        raise ValueError("always")


def test_an_estimator_that_fails_on_good_rows_is_an_error():
    model = load(*serialize(fitted_to(None, made=Refuses)[0]))
    x = pd.DataFrame({"a": BAD, "b": 1.0})
    with pytest.raises(ValueError, match="always"):
        model.predict(x)


def test_missing_text_is_a_row_without_a_prediction_where_the_estimator_refuses_it():
    class Length(Refuses):
        def predict(self, x):
            return [len(text) for text in x["color"]]

    model = load(*serialize(fitted_to(None, MIXED, made=Length)[0]))
    x = pd.DataFrame({"a": 1.0, "color": pd.Series(["four", None], dtype=object), "b": np.inf})
    np.testing.assert_array_equal(model.predict(x.assign(b=1.0)), [4.0, np.nan])


def test_a_run_s_text_is_completed_per_key():
    made = template(MIXED, "group_models")
    key = ("UA", None, 'q"\\ü😀\x85\u2028\x00')
    text = made.render(key_id(key), key_json(["carrier", "lane", "depot"], key), AT)
    content = yaml.safe_load(text)
    assert content["metadata"]["key"] == key_json(["carrier", "lane", "depot"], key)
    assert content["metadata"]["key_id"] == key_id(key)
    assert content["metadata"]["model_set"] == "zrl.ml.eta"
    assert content["metadata"]["run_id"] == "r1"
    assert content["utc_time_created"] == "2025-03-01 02:30:00.000000"
    assert len(content["model_uuid"]) == 32
    assert text.isascii()


def test_the_uuid_is_text_the_same_for_one_model_and_different_for_two():
    made = template()
    uuids = [yaml.safe_load(made.render(f"{n:032x}", "{}", AT))["model_uuid"] for n in range(300)]
    assert all(isinstance(uuid, str) for uuid in uuids)
    assert len(set(uuids)) == 300
    assert yaml.safe_load(template().render(f"{7:032x}", "{}", AT))["model_uuid"] == uuids[7]


def test_f6_the_signature_has_inputs_that_may_be_null_and_an_output():
    signature = yaml.safe_load(template(MIXED).render("k", "{}", AT))["signature"]
    assert yaml.safe_load(signature["inputs"]) == [
        {"type": "double", "name": "a", "required": False},
        {"type": "string", "name": "color", "required": False},
        {"type": "double", "name": "b", "required": False},
    ]
    assert yaml.safe_load(signature["outputs"]) == [{"type": "double", "name": "prediction", "required": True}]


def test_e10_a_keys_text_costs_microseconds_and_pickles():
    made = pickle.loads(pickle.dumps(template(MIXED)))
    start = time.perf_counter()
    for n in range(1000):
        made.render(f"{n:032x}", '{"carrier":"UA"}', AT)
    assert time.perf_counter() - start < 0.3


def test_quoted_text_is_read_back_by_every_yaml_loader():
    for text in (
        "",
        "plain",
        "a: b # c",
        "'\"\\",
        "\t\n\r",
        "\x7f\x80\x85\xa0\u2028\ufeff",
        "😀",
        "yes",
        "1e5",
    ):
        for loader in (yaml.SafeLoader, yaml.CSafeLoader):
            assert yaml.load(quoted(text), Loader=loader) == text  # noqa: S506


def test_requirements_are_pinned_to_what_is_installed():
    pinned = requirements("sklearn", ["my-package==1.0"])
    assert f"scikit-learn=={installed_version('scikit-learn')}" in pinned
    assert pinned[0] == f"mlflow=={installed_version('mlflow')}"
    assert pinned[-1] == "my-package==1.0"
    assert any(one.startswith("group-models") for one in requirements("group_models"))


def test_a_distribution_that_is_not_installed_has_no_version():
    assert installed_version("no-such-distribution") is None


def test_a_model_is_written_only_into_an_empty_directory(tmp_path):
    data, data_file = serialize(fitted_to("ridge")[0])
    text = template().render("k", "{}", AT)
    write_model(tmp_path / "new" / "dir", text, data, data_file)
    files = {file.name: file.read_bytes() for file in (tmp_path / "new" / "dir").iterdir()}
    assert files == model_files(text, data, data_file)
    assert set(files) == {"MLmodel", "model.pkl", "requirements.txt", "conda.yaml", "python_env.yaml"}
    with pytest.raises(StateError, match="not an empty directory; name a new one"):
        write_model(tmp_path / "new" / "dir", text, data, data_file)
    with pytest.raises(StateError, match="not an empty directory"):
        write_model(tmp_path / "new" / "dir" / "MLmodel", text, data, data_file)


def test_a_directory_that_cannot_be_made_is_refused_with_its_name(tmp_path):
    (tmp_path / "file").touch()
    data, data_file = serialize(fitted_to("ridge")[0])
    text = template().render(key_id(("UA",)), key_json(["carrier"], ("UA",)), AT)
    with pytest.raises(StateError, match=r"cannot write /.*/file/below: .*; name a folder that you may write"):
        write_model(tmp_path / "file" / "below", text, data, data_file)


def test_e7_an_estimator_from_a_notebook_works_in_a_fresh_process(tmp_path):
    notebook = """
        import sys, pathlib, pandas as pd, numpy as np
        from sklearn.base import BaseEstimator, TransformerMixin
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline
        from group_models.artifacts import serialize
        from group_models.estimators.base import EstimatorSettings, Features
        from group_models.estimators.registry import make_family

        class Doubled(TransformerMixin, BaseEstimator):
            def fit(self, x, y=None):
                return self
            def transform(self, x):
                return x * 2

        def factory():
            return make_pipeline(Doubled(), Ridge(alpha=1e-9))

        x = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
        family = make_family(EstimatorSettings(object=factory), Features(("a",), (), ("a",)))
        data, name = serialize(family.fit(x, np.array([3.0, 5.0, 7.0]), seed=0))
        pathlib.Path(sys.argv[1]).write_bytes(data)
    """
    fresh = """
        import sys, pathlib, pandas as pd
        from group_models.artifacts import load_model
        data = pathlib.Path(sys.argv[1]).read_bytes()
        model = load_model(data, format=1, data_file="model.pkl")
        print(round(model.predict(pd.DataFrame({"a": [10.0]}))[0], 3))
    """
    outputs = []
    for number, code in enumerate((notebook, fresh)):
        script = tmp_path / f"cell{number}.py"
        script.write_text(textwrap.dedent(code))
        command = [sys.executable, str(script), str(tmp_path / "model.pkl")]
        outputs.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert outputs == ["", "21.0\n"]


def test_reading_and_predicting_import_no_mlflow(tmp_path):
    data, _ = serialize(fitted_to("xgboost")[0])
    (tmp_path / "model.ubj.zst").write_bytes(data)
    code = (
        "import sys, pathlib, pandas as pd; from group_models.artifacts import load_model;"
        "model = load_model(pathlib.Path(sys.argv[1]).read_bytes(), format=2, data_file='model.ubj.zst');"
        "model.predict(pd.DataFrame({'a': [1.0], 'b': [2.0]})); print('mlflow' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.ubj.zst")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_model_of_format_1_is_still_read():
    data = (pathlib.Path(__file__).parent / "formats" / "1.ubj").read_bytes()
    model = load_model(data, format=1, data_file="model.ubj")
    x = pd.DataFrame({"a": [-1.0, 0.0, 1.0], "b": [0.0, np.nan, 1.0]})
    np.testing.assert_allclose(model.predict(x), [-1.70958352, -0.04336277, 1.69281292], rtol=1e-6)
