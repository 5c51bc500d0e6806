"""An estimator's module that only the driver can import travels with its code, or is refused before training."""

import importlib
import subprocess
import sys

import pytest

from group_models import api, artifacts
from group_models.errors import ModelError, PlatformError
from tests.cases.worlds import by_key, spec_of

FACTORY = """
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression

import {helper}
from {helper} import Shifted

FACTOR = 2.0


class Line(Shifted):
    def fit(self, X, y):
        self.inner_ = LinearRegression().fit(X, np.asarray(y) / FACTOR)
        return super().fit(X, y)

    def predict(self, X):
        return {helper}.scaled(self.inner_.predict(X), FACTOR)


def make():
    return Line()


def make_late():
    from {helper} import Shifted

    return Line()
"""

HELPER = """
import threading

from sklearn.base import BaseEstimator, RegressorMixin


class Shifted(BaseEstimator, RegressorMixin):
    def fit(self, X, y):
        self.rows_ = len(y)
        return self


def scaled(values, factor):
    return values * factor
"""

LOCKED = """
import threading
from sklearn.linear_model import LinearRegression

LOCK = threading.Lock()


class Line(LinearRegression):
    def fit(self, X, y):
        with LOCK:
            return super().fit(X, y)
"""

ELSEWHERE = """
import sys
import pandas as pd
from group_models.artifacts import load_model
data = open(sys.argv[1], "rb").read()
model = load_model(data, format=2, data_file="model.pkl")
print(type(model.native).__module__, model.predict(pd.DataFrame({"x": [21.0]}))[0])
"""


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Return the name of a module that imports another one, both in a folder that is on the driver's path alone."""
    name = f"beside_{tmp_path.name.replace('-', '_')}"
    helper = f"{name}_helper"
    modules = {name: FACTORY.replace("{helper}", helper), helper: HELPER, f"{name}_locked": LOCKED}
    (tmp_path / "beside").mkdir()
    for module, text in modules.items():
        (tmp_path / "beside" / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "beside"))
    yield name
    for module in modules:
        sys.modules.pop(module, None)


def lines(session):
    return session.createDataFrame([(k, i, float(i), 2.0 * i) for k in "AB" for i in range(5)],
                                   "carrier string, row_id int, x double, y double")  # fmt: skip


def check_trains_and_scores(session, spec):
    run = api.train(spec, spark=session)
    assert run.counts == {"trained": 2}
    assert set(by_key(api.show(spec))) == {"A", "B"}
    scored = api.score(lines(session), spec).toPandas()
    assert scored["score_status"].tolist() == ["scored"] * 10
    assert scored["prediction"].tolist() == pytest.approx((2.0 * scored["x"]).tolist())


def test_i5_a_module_beside_the_spec_trains_on_workers_and_its_models_load_where_it_is_absent(
    any_spark, tmp_path, beside
):
    spec = spec_of(lines(any_spark), tmp_path, estimator={"object": f"{beside}:make"})
    check_trains_and_scores(any_spark, spec)

    row = api.find_model(spec, {"carrier": "A"})
    (tmp_path / "model").write_bytes(row["data"])
    assert row["data_file"] == "model.pkl"
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "model")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()
    assert said[0] == beside
    assert float(said[1]) == pytest.approx(42.0)
    assert api.show(spec)[0]["estimator"] == f"{beside}:make"


def test_i5_an_object_of_such_a_module_travels_with_its_code_too(any_spark, tmp_path, beside):
    module = importlib.import_module(beside)
    spec = spec_of(lines(any_spark), tmp_path, estimator={"object": module.Line(), "version": "1"})
    check_trains_and_scores(any_spark, spec)


def check_refused(spark, folder, path, said):
    """Train with an estimator by its dotted path, which is refused before anything is written."""
    spec = spec_of(lines(spark), folder, estimator={"object": path})
    with pytest.raises(PlatformError, match=said):
        api.train(spec, spark=spark)
    assert not list(folder.glob("warehouse/**/*.parquet"))


def test_i5_a_module_that_the_code_imports_late_is_named_before_training(any_spark, tmp_path, beside):
    said = rf"cannot import {beside}, {beside}_helper; .*: {beside}_helper \(in make_late\)\. Import it at the top"
    check_refused(any_spark, tmp_path, f"{beside}:make_late", said)


def test_i5_code_that_cannot_be_sent_is_named_before_training(any_spark, tmp_path, beside):
    said = rf"'{beside}_locked:Line': the workers cannot import its module, .*cannot be sent to them.*lock.*install it"
    check_refused(any_spark, tmp_path, f"{beside}_locked:Line", said)


def test_i5_a_module_that_workers_can_import_is_stored_by_name_and_missed_by_name():
    data = b"\x80\x05cno_such_module_here\nThing\n."
    with pytest.raises(
        ModelError, match=r"model cannot be read .*no_such_module_here.*is what it was trained with installed"
    ):
        artifacts.load_model(data, format=2, data_file="model.pkl")
