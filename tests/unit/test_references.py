"""What a unit's keys are compared with: parents, the global model, the champion."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models.artifacts import digest
from group_models.estimators.base import PickledPredictor
from group_models.fitting.measures import TRAIN_MEDIAN
from group_models.fitting.outcomes import MEASURED
from group_models.fitting.references import ModelRow, Role, links
from group_models.fitting.units import fit_unit
from group_models.tables import WHOLE
from tests.unit.test_fitting import Poison, keys_of, rows_of, settings

TARGETS = [[3.0 * i + (i % 3) for i in range(10)], [50.0 - i for i in range(10)]]
FRAME = pd.concat([rows_of(0, TARGETS[0]), rows_of(1, TARGETS[1])])


class Says:
    """A model that predicts one number, or something odd."""

    def __init__(self, value: float) -> None:
        self.value = value

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return np.full(len(x), self.value)


class Breaks(Says):
    """A model that raises what is no `Exception`."""

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        raise GeneratorExit


def model(value: float, reference: int, *, role: Role = "parent", part: int = 0, **more: Any) -> bytes:
    data = PickledPredictor(more.pop("native", Says(value))).dump()
    row = {"seen_until_us": 0, "format": 1, "data_file": "model.pkl", "sha256": digest(data), "data": data}
    return ModelRow(role, reference, part, **{**row, **more}).pack()


def linked(*pairs: tuple[int, int]) -> pd.DataFrame:
    return keys_of(len(pairs)).assign(links=[links(*pair) for pair in pairs])


@pytest.mark.parametrize("name", ["ridge", "hist_gradient_boosting"])
def test_each_key_is_compared_with_its_own_parent_and_the_global_model_on_its_holdout(name: str) -> None:
    models = [model(10.0, 0), model(20.0, 1), model(48.0, 2)]
    result = fit_unit(FRAME, linked((1, 0), (2, 0)), settings(name), models).to_dict("records")
    for row, y, parent in zip(result, TARGETS, (20.0, 48.0), strict=True):
        held = np.array(y[8:])
        for of, value in (("parent", parent), ("global", 10.0)):
            assert row["baseline_metrics"][f"{of}_mae"] == pytest.approx(np.abs(held - value).mean())
            gain = row["metrics"]["mae"] - np.abs(held - value).mean()
            assert row["baseline_metrics"][f"{of}_difference"] == pytest.approx(gain)
        assert row["baseline_metrics"]["mae"] == pytest.approx(np.abs(held - np.median(y[:8])).mean())
        assert not any(entry.startswith("champion") for entry in row["baseline_metrics"])


def test_one_by_one_and_together_give_the_same_comparison() -> None:
    models = [model(10.0, 0), model(20.0, 1)]
    together = fit_unit(FRAME, linked((1, 0), (1, 0)), settings(), models)
    alone = [fit_unit(FRAME[FRAME["key_index"] == i], linked((1, 0), (1, 0))[i : i + 1], settings(is_isolated=True),
                      models) for i in range(2)]  # fmt: skip
    for ours, theirs in zip(together["baseline_metrics"], pd.concat(alone)["baseline_metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_a_parent_in_parts_predicts_the_mean_of_them() -> None:
    models = [model(10.0, 0, part=5), model(30.0, 0, part=4)]
    (row,) = fit_unit(FRAME[FRAME["key_index"] == 0], linked((0, -1)), settings(), models).to_dict("records")
    assert row["baseline_metrics"]["parent_mae"] == pytest.approx(np.abs(np.array(TARGETS[0][8:]) - 20.0).mean())
    assert not any(name.startswith("global") for name in row["baseline_metrics"])


@pytest.mark.parametrize("odd", [model(0.0, 0, native=Breaks(0.0)), model(np.inf, 0), model(1.0, 0, sha256="0" * 64),
                                 model(1.0, 0, data=b"")])  # fmt: skip
def test_a_reference_that_fails_costs_its_keys_the_comparison_and_nothing_else(odd: bytes) -> None:
    result = fit_unit(FRAME, linked((0, 1), (1, 1)), settings(), [odd, model(20.0, 1)])
    assert result["status"].tolist() == ["trained", "trained"]
    first, second = result["baseline_metrics"]
    assert "parent_mae" not in first
    assert {"global_mae", "mae"} <= set(first)
    assert "parent_mae" in second


def test_a_champion_is_compared_on_the_rows_that_are_newer_than_it_has_seen() -> None:
    models = [model(20.0, 0, role="champion", seen_until_us=8), model(45.0, 1, role="champion", seen_until_us=9)]
    result = fit_unit(FRAME, keys_of(2), settings(), models)
    first, second = result["baseline_metrics"]
    assert first["champion_rows"] == 1
    assert first["champion_mae"] == pytest.approx(abs(TARGETS[0][9] - 20.0))
    assert "champion_difference_se" not in first
    assert not any(name.startswith("champion") for name in second)


def test_linear_champions_are_compared_all_at_once_as_they_would_be_alone() -> None:
    old = fit_unit(FRAME.assign(y=FRAME["y"] + 1.0), keys_of(2), settings())
    rows = [
        ModelRow("champion", index, 0, -1, row["format"], row["data_file"], row["sha256"], row["data"]).pack()
        for index, row in enumerate(old.to_dict("records"))
    ]
    both = fit_unit(FRAME, keys_of(2), settings(), rows)["baseline_metrics"]
    for index, row in enumerate(both):
        own = fit_unit(FRAME[FRAME["key_index"] == index], keys_of(2)[index : index + 1], settings(), rows[index:][:1])
        assert row == pytest.approx(own["baseline_metrics"][0], rel=1e-9)
        assert row["champion_rows"] == 2
        assert abs(row["champion_difference"]) > 0


@pytest.mark.parametrize(("obj", "is_isolated"), [(None, False), (None, True), (Poison(), False)])
def test_a_parent_leaves_the_model_that_has_not_seen_the_holdout_too(obj: object, is_isolated: object) -> None:
    asked = settings(obj=obj, keeps_measured=True, is_isolated=is_isolated)
    whole, measured = fit_unit(FRAME[FRAME["key_index"] == 0], keys_of(1), asked).to_dict("records")
    assert (whole["part"], measured["part"]) == (WHOLE, MEASURED)
    assert (whole["rows_used"], measured["rows_used"]) == (10, 8)
    assert measured["baseline_metrics"] == {TRAIN_MEDIAN: float(np.median(TARGETS[0][:8]))}
    blind = fit_unit(FRAME[(FRAME["key_index"] == 0) & ~FRAME["is_holdout"]], keys_of(1), settings(obj=obj))
    assert digest(measured["data"]) == blind["sha256"][0]


def test_a_parent_without_a_holdout_leaves_one_model() -> None:
    rows = FRAME[(FRAME["key_index"] == 0)].assign(is_holdout=False)
    assert len(fit_unit(rows, keys_of(1), settings(keeps_measured=True))) == 1


def test_a_model_row_comes_back_as_it_was_packed() -> None:
    packed = model(3.0, 7, role="champion", part=2, seen_until_us=-(2**63))
    row = ModelRow.parse(packed)
    assert (row.role, row.reference, row.part, row.seen_until_us) == ("champion", 7, 2, -(2**63))
    assert row.pack() == packed
    assert json.loads(links(3, -1)) == [3, -1]
