"""Models of many megabytes go from the workers into the table, and never through the driver."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from group_models import api
from group_models.tables import STORE
from tests.cases.worlds import by_key, spec_of, tables_of

MB = 10**6


def heavy():
    """An estimator whose model has as many bytes as its rows say, none of which can be compressed."""

    class Heavy(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            self.mean_ = float(np.mean(y))
            self.weights_ = np.random.default_rng(7).bytes(int(X["size"].iloc[0]))
            return self

        def predict(self, X):
            return np.full(len(X), self.mean_)

    return Heavy


def fetched(spark, monkeypatch):
    """The bytes of each table that the driver fetches from now on."""
    sizes = []
    frame = type(spark.range(1))
    whole = frame.toArrow

    def noted(self, *arguments, **options):
        table = whole(self, *arguments, **options)
        sizes.append(table.nbytes)
        return table

    monkeypatch.setattr(frame, "toArrow", noted)
    for name in ("toPandas", "collect", "toLocalIterator"):
        original = getattr(frame, name)

        def counted(self, *arguments, original=original, **options):
            rows = original(self, *arguments, **options)
            sizes.append(sum(len(str(row)) for row in rows) if isinstance(rows, list) else 0)
            return rows

        monkeypatch.setattr(frame, name, counted)
    return sizes


@pytest.mark.parametrize(
    ("models", "size", "too_big"), [(30, MB, 12 * MB), pytest.param(300, MB, 150 * MB, marks=pytest.mark.slow)]
)
def test_e5_models_never_pass_through_the_driver_and_one_too_big_is_its_keys_outcome(
    models, size, too_big, any_spark, tmp_path, monkeypatch
):
    rows = [(f"k{key:03d}", float(size), 1.0) for key in range(models)] + [("giant", float(too_big), 1.0)]
    frame = any_spark.createDataFrame(rows, "carrier string, size double, y double")
    spec = spec_of(
        frame, tmp_path, features=["size"], estimator={"object": heavy(), "version": "1"},
        limits={"min_rows": 1, "max_model_bytes": min(100 * MB, too_big - MB)},
    )  # fmt: skip
    sizes = fetched(any_spark, monkeypatch)
    run = api.train(spec, spark=any_spark)
    assert run.counts == {"trained": models, "model_too_big": 1}
    assert sizes != []
    assert max(sizes) < MB
    giant = by_key(api.show(spec))["giant"]
    assert giant["model_bytes"] > too_big
    assert f"max_model_bytes is {min(100 * MB, too_big - MB):,}" in giant["reason"]
    stored = tables_of(spec).read(STORE, columns=["key_id", "model_bytes"]).to_pylist()
    assert len(stored) == models + 1
    assert sum(row["model_bytes"] for row in stored) > models * size + too_big
