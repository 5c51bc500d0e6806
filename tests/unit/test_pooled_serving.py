"""Models that build on a parent's, scored: a stream of models and rows, and the live set that says which they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models.artifacts import digest
from group_models.estimators.base import EstimatorSettings, features_of
from group_models.estimators.children import PARENT, ChildPredictor, with_parent
from group_models.estimators.registry import make_family
from group_models.serving.bases import bases_first, has_base
from group_models.serving.routing import MODEL_LINES, Inputs, Router
from group_models.serving.statuses import BAD_INPUT, MODEL_FAILED, NO_MODEL, SCORED

KINDS = {"a": "numeric", "b": "numeric"}
INPUTS = {0: Inputs(KINDS, (0, 1))}


def fitted(name: str, seed: int, *, is_child: bool) -> Any:
    """Return a model of two features, or one that adds to its parent's prediction."""
    features = features_of(KINDS)
    rng = np.random.default_rng(seed)
    x = pd.DataFrame(rng.normal(size=(40, 3 if is_child else 2)), columns=["a", "b", PARENT][: 3 if is_child else 2])
    params = {"n_estimators": 4} if name == "random_forest" else {}
    family = make_family(EstimatorSettings(name, params), with_parent(features) if is_child else features)
    own = family.fit(x, x["a"].to_numpy() * seed + rng.normal(size=40), seed=1).predictor
    return ChildPredictor(own, 0.1 * seed) if is_child else own


def packed(model: Any, parent_ix: int = NO_MODEL, is_base: int = 0, *, sha256: str | None = None) -> bytes:
    data = model.dump()
    said = {"run_ix": 0, "format": 2, "data_file": model.data_file, "sha256": sha256 or digest(data),
            "parent_ix": parent_ix, "is_base": is_base}  # fmt: skip
    return "\n".join([*(str(said[name]) for name in MODEL_LINES), ""]).encode() + data


def batches(models: list[bytes], x: pd.DataFrame, of: np.ndarray, size: int) -> list[pd.DataFrame]:
    """Return models and rows as they stream: sorted by model, each model before its rows, cut into batches."""
    rows = pd.DataFrame({"model_ix": of, "model": None, "f0": x["a"], "f1": x["b"], "place": np.arange(len(x))})
    above = pd.DataFrame({"model_ix": np.arange(len(models)), "model": models, "place": -1})
    mixed = pd.concat([above, rows]).sort_values(["model_ix", "place"], kind="stable", ignore_index=True)
    return [mixed.iloc[start : start + size].reset_index(drop=True) for start in range(0, len(mixed), size)]


def answered(models: list[bytes], x: pd.DataFrame, of: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, int]:
    prediction, status, router = np.full(len(x), np.inf), np.full(len(x), -1), Router(INPUTS)
    for batch in batches(models, x, of, size):
        found, codes = router.predict(batch, ["f0", "f1"])
        is_data = (batch["place"] >= 0).to_numpy()
        places = batch["place"].to_numpy(int)[is_data]
        prediction[places], status[places] = found[is_data], codes[is_data]
    return prediction, status, router.loads


ABOVE = fitted("ridge", 3, is_child=False)
CHILDREN = [fitted(name, seed, is_child=True) for seed, name in enumerate(["ridge", "random_forest", "ridge"], start=1)]
PLAIN = fitted("linear", 5, is_child=False)
ROWS = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
OF = np.random.default_rng(1).integers(0, 5, 60)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_children_are_predicted_after_their_parent_whatever_the_batches(size: int):
    models = [packed(ABOVE, is_base=1), *(packed(each, parent_ix=0) for each in CHILDREN), packed(PLAIN)]
    prediction, status, loads = answered(models, ROWS, OF, size)
    above = ABOVE.predict(ROWS)
    expected = np.select(
        [OF == 0, *(place == OF for place in (1, 2, 3)), OF == 4],
        [above, *(each.predict(ROWS.assign(**{PARENT: above})) for each in CHILDREN), PLAIN.predict(ROWS)],
    )
    np.testing.assert_allclose(prediction, expected, rtol=0, atol=1e-12)
    assert set(status) == {SCORED}
    # The parent is read once for its own rows and once for those of its children, whatever the number of batches.
    assert loads <= 6


@pytest.mark.parametrize("how", ["altered", "not there"])
def test_without_its_parent_a_child_predicts_nothing_and_others_do(how: str):
    above = packed(ABOVE, is_base=1, sha256="0") if how == "altered" else packed(PLAIN)
    models = [above, packed(CHILDREN[0], parent_ix=0), packed(PLAIN)]
    of = OF % 3
    prediction, status, _ = answered(models, ROWS, of, 9)
    assert set(status[of == 1]) == {MODEL_FAILED}
    assert np.isnan(prediction[of == 1]).all()
    assert set(status[of == 2]) == {SCORED}


def test_a_row_that_the_parent_refuses_is_bad_input_and_costs_no_other_row():
    x = ROWS.copy()
    x.loc[[3, 8], "a"] = np.inf
    models = [packed(ABOVE, is_base=1), packed(CHILDREN[0], parent_ix=0), packed(CHILDREN[1], parent_ix=0)]
    of = 1 + OF % 2
    prediction, status, _ = answered(models, x, of, 100)
    assert status.tolist() == [BAD_INPUT if place in (3, 8) else SCORED for place in range(60)]
    assert np.isnan(prediction[[3, 8]]).all()
    assert np.isfinite(np.delete(prediction, [3, 8])).all()


def known(*rows: tuple[str, str, str | None, str | None]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return served models (run, key) and their rows of the live set with what they build on (run, key)."""
    frame = pd.DataFrame(rows, columns=["run_id", "key_id", "parent_run_id", "parent_key_id"], dtype=object)
    served = frame[["run_id", "key_id"]].assign(number=0, sha256="own", model_bytes=1)
    live = frame.set_index("key_id")[["parent_run_id", "parent_key_id"]]
    has = live["parent_run_id"].notna().to_numpy()
    return served, live.assign(parent_number=np.where(has, 7, None), parent_sha256="above", parent_model_bytes=9)


def test_models_that_others_build_on_come_first_each_once_also_where_they_serve():
    served, live = known(
        ("two", "a", "two", "all"), ("one", "b", "one", "all"), ("two", "all", None, None), ("one", "c", "one", "all")
    )
    table, places = bases_first(served, live)
    rows = list(table[["run_id", "key_id", "parent_ix", "is_base"]].itertuples(index=False, name=None))
    assert rows == [
        ("one", "all", -1, 1), ("two", "all", -1, 1),
        ("two", "a", 1, 0), ("one", "b", 0, 0), ("one", "c", 0, 0),
    ]  # fmt: skip
    assert places.tolist() == [2, 3, 1, 4]
    assert table["number"].tolist() == [7, 7, 0, 0, 0]


def test_without_children_the_models_are_as_they_were():
    served, live = known(("one", "a", None, None), ("one", "b", None, None))
    for of in (live, live[[]]):
        table, places = bases_first(served, of)
        assert (table["parent_ix"].tolist(), table["is_base"].tolist(), places.tolist()) == ([-1, -1], [0, 0], [0, 1])
        assert has_base(of).all()


def test_a_model_whose_parent_is_not_stored_cannot_be_used():
    _, live = known(("one", "a", "one", "all"), ("one", "b", "one", "all"), ("one", "c", None, None))
    live["parent_number"] = [7, None, None]
    assert has_base(live).tolist() == [True, False, True]


@pytest.mark.parametrize("name", ["ridge", "linear", "median"])
def test_a_model_of_a_transformed_target_streams_as_it_predicts_and_not_as_what_is_within(name: str):
    x = pd.DataFrame(np.random.default_rng(3).normal(size=(40, 2)), columns=["a", "b"])
    settings = EstimatorSettings(name, transform="log1p")
    model = make_family(settings, features_of(KINDS)).fit(x, np.exp(x["a"].to_numpy()), seed=1).predictor
    prediction, status, _ = answered([packed(model)], ROWS, np.zeros(60, dtype=int), 7)
    np.testing.assert_allclose(prediction, model.predict(ROWS))
    assert (status == SCORED).all()
