"""An estimator's module that the driver can import and the workers cannot is told before training."""

import sys

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle

from group_models import api
from group_models.errors import PlatformError
from tests.cases.worlds import by_key, spec_of

MODULE = """
from sklearn.linear_model import LinearRegression


class Line(LinearRegression):
    pass


def make():
    return Line()
"""


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Return the name of a module in a folder that is on the driver's path alone."""
    name = f"beside_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def lines(session):
    return session.createDataFrame([(k, i, float(i), 2.0 * i) for k in "AB" for i in range(5)],
                                   "carrier string, row_id int, x double, y double")  # fmt: skip


def test_i5_a_module_that_only_the_driver_can_import_is_named_before_training(any_spark, tmp_path, beside):
    spec = spec_of(lines(any_spark), tmp_path, estimator={"object": f"{beside}:make"})
    with pytest.raises(PlatformError, match=rf"{beside} cannot be imported here.*give the object itself"):
        api.train(spec, spark=any_spark)
    assert not list(tmp_path.glob("warehouse/**/*.parquet"))


def test_i5_the_object_itself_trains_and_scores_where_its_module_travels_by_value(any_spark, tmp_path, beside):
    module = __import__(beside)
    for pickler in (cloudpickle, spark_cloudpickle):
        pickler.register_pickle_by_value(module)
    try:
        spec = spec_of(lines(any_spark), tmp_path, estimator={"object": module.Line(), "version": "1"})
        run = api.train(spec, spark=any_spark)
        assert run.counts == {"trained": 2}
        assert set(by_key(api.show(spec))) == {"A", "B"}
        scored = api.score(lines(any_spark), spec).toPandas()
    finally:
        for pickler in (cloudpickle, spark_cloudpickle):
            pickler.unregister_pickle_by_value(module)
    assert scored["score_status"].tolist() == ["scored"] * 10
    assert scored["prediction"].tolist() == pytest.approx((2.0 * scored["x"]).tolist())
