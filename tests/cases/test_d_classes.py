"""Classes of small, odd groups: a label of one row, one label only, label sets that differ from key to key."""

import numpy as np
import pandas as pd
import pytest

from group_models.artifacts import load_model
from group_models.estimators.base import EstimatorSettings
from group_models.labels import Labels, class_columns
from group_models.serving.routing import Inputs, Router
from group_models.serving.statuses import SCORED
from tests.cases.worlds import fit_keys

NAMES = ("logistic", "xgboost", "gradient_boosting", "hist_gradient_boosting", "random_forest", "prior")


def settings(name, *labels, kind="integer"):
    return EstimatorSettings(name=name, metric="log_loss", labels=Labels(labels, kind))


def model_of(row):
    return load_model(row["data"], format=row["format"], data_file=row["data_file"], sha256=row["sha256"])


@pytest.mark.parametrize("name", NAMES)
def test_d4_labels_of_one_member_are_split_as_any_rows_and_no_key_fails(name):
    codes = {"rare": [0] * 19 + [1], "one": [0] * 20, "pair": [0, 1], "three": [0, 1, 2]}
    keys = np.concatenate([[key] * len(of_key) for key, of_key in codes.items()])
    y = np.concatenate(list(codes.values())).astype(float)
    x = pd.DataFrame({"x": np.arange(len(y)) % 7.0})
    held = np.concatenate([np.arange(len(each)) >= 0.8 * len(each) for each in codes.values()])
    rows = fit_keys(x, y, keys=keys, is_holdout=held, estimator=settings(name, "0", "1", "2"))
    assert [row["status"] for row in rows] == ["trained", "one_class", "trained", "trained"]
    for row, of_key in zip(rows, codes.values(), strict=True):
        found = model_of(row).predict(x[: len(of_key)])
        np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)
        assert set(np.flatnonzero(found.any(axis=0))) == set(of_key)
    for place in (0, 1):
        assert np.isfinite(list(rows[place]["metrics"].values())).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("labels", "kind", "told"),
    [(("0", "1", "2"), "integer", [0, 1, 2]), (("late", "lost", "on time"), "text", ["late", "lost", "on time"])],
)
def test_d5_each_key_is_fitted_to_its_own_labels_and_says_them_as_they_were(name, labels, kind, told):
    of_keys = {"A": [0, 1] * 30, "B": [1] * 60, "C": [0, 2] * 30}
    y = np.concatenate(list(of_keys.values())).astype(float)
    keys = np.repeat(list(of_keys), 60)
    x = pd.DataFrame({"x": np.where(y == 0, -1.0, 1.0) + np.linspace(-0.1, 0.1, 180)})
    rows = fit_keys(x, y, keys=keys, estimator=settings(name, *labels, kind=kind))
    assert [row["status"] for row in rows] == ["trained", "one_class", "trained"]
    for place, (row, codes) in enumerate(zip(rows, of_keys.values(), strict=True)):
        said = class_columns(model_of(row).predict(x[place * 60 : place * 60 + 60]), Labels(labels, kind))["prediction"]
        expected = [told[code] for code in codes]
        assert said.tolist() == (expected if name != "prior" else [told[min(codes)]] * 60)


def test_d6_probabilities_of_keys_with_other_labels_stand_under_their_own_label_in_one_batch():
    of_keys = {"A": [0, 1, 2] * 10, "B": [0, 2] * 15}
    y = np.concatenate(list(of_keys.values())).astype(float)
    x = pd.DataFrame({"x": y + np.linspace(0, 0.2, 60)})
    rows = fit_keys(x, y, keys=np.repeat(["A", "B"], 30), estimator=settings("logistic", "0", "1", "2"))
    lines = [f"0\n{row['format']}\n{row['data_file']}\n{row['sha256']}\n-1\n0\n".encode() + row["data"] for row in rows]
    batch = pd.DataFrame({
        "model_ix": np.repeat([0, 1], 31),
        "model": pd.Series([lines[0], *[None] * 30, lines[1], *[None] * 30], dtype=object),
        "f0": np.concatenate([[0.0], x["x"][:30], [0.0], x["x"][30:]]),
    })  # fmt: skip
    # Of the labels that are served another run has one more, in front.
    served = Labels(("-1", "0", "1", "2"), "integer")
    prediction, status = Router({0: Inputs({"x": "numeric"}, (0,))}, served).predict(batch, ["f0"])
    is_data = batch["model"].isna().to_numpy()
    assert (status[is_data] == SCORED).all()
    found = prediction[is_data]
    np.testing.assert_array_equal(found[:30, 1:], model_of(rows[0]).predict(x[:30]))
    np.testing.assert_array_equal(found[30:, 1:], model_of(rows[1]).predict(x[30:]))
    assert (found[:, 0] == 0).all()
    assert (found[30:, 2] == 0).all()
    assert found[30:].argmax(axis=1).tolist() == [1, 3] * 15
