"""`explain`: rows of one key, what each feature adds to their predictions, as a call and as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import group_models as gm
from group_models import targets
from group_models.adapters.path_tables import PathTables
from group_models.cli import main
from group_models.errors import DataError, ModelError, SpecError
from group_models.estimators.base import EstimatorSettings
from tests import fitted
from tests.fitted import SET

SLOPES = {"a": 1.0, "b": 2.0}
ROWS = pd.DataFrame({"k": ["a", "b", "a"], "x": [1.0, 2.0, np.nan]}, index=[5, 6, 7])


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    trained(tmp_path / "warehouse")
    return tmp_path / "warehouse"


def trained(warehouse: Path, estimator: EstimatorSettings = fitted.LINEAR) -> None:
    tables = PathTables(warehouse, "zrl.ml")
    fitted.add_run(tables, "r1", 0, SLOPES, failed=["broken"], estimator=estimator)


def explained(warehouse: Path, **more: Any) -> pd.DataFrame:
    return gm.explain(ROWS, fitted.spec(warehouse), run_id="r1", **more)


def test_contributions_sum_to_the_prediction_of_the_rows_of_the_key_alone(warehouse: Path):
    found = explained(warehouse, key="k=b")
    assert found.index.tolist() == [6]
    assert list(found.columns) == ["prediction", "base_value", "contribution_x"]
    np.testing.assert_allclose(found["prediction"], 4.0)
    both = explained(warehouse, k="a")
    assert both.index.tolist() == [5, 7]
    np.testing.assert_allclose(both["base_value"] + both["contribution_x"], both["prediction"], rtol=1e-9)


def test_rows_without_the_keys_columns_are_all_explained(warehouse: Path):
    found = gm.explain(ROWS[["x"]], fitted.spec(warehouse), key="k=a", run_id="r1")
    assert len(found) == len(ROWS)


def test_what_cannot_be_explained_is_refused_in_a_sentence(warehouse: Path, tmp_path: Path):
    with pytest.raises(DataError, match="no row of key k=a; name another"):
        gm.explain(ROWS[ROWS["k"] == "b"], fitted.spec(warehouse), key="k=a", run_id="r1")
    with pytest.raises(DataError, match="a list is not explained; filter it"):
        gm.explain([1.0], fitted.spec(warehouse), key="k=a", run_id="r1")
    with pytest.raises(SpecError, match="no key is named"):
        explained(warehouse)
    trained(tmp_path / "forest", EstimatorSettings("random_forest", {"n_estimators": 2}))
    with pytest.raises(ModelError, match="the model of key k=a of run r1: contributions that sum to the prediction"):
        explained(tmp_path / "forest", key="k=a")


def test_the_command_tells_values_and_contributions_of_a_parquet_file_without_spark(
    warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    spec, rows = tmp_path / "spec.yaml", tmp_path / "rows.parquet"
    spec.write_text(json.dumps(fitted.spec(warehouse)))
    ROWS.to_parquet(rows)
    asked = ["explain", str(spec), "--key", "k=a", "--input", str(rows), "--run-id", "r1"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["features"] for row in found] == [{"x": 1.0}, {"x": None}]
    for row in found:
        assert row["base_value"] + sum(row["contributions"].values()) == pytest.approx(row["prediction"])
    assert main([*asked, "--rows", "1"]) == 0
    text = capsys.readouterr().out
    assert "Row 1 of 1: prediction 1" in text
    assert "(base value)" in text
    assert main(["explain", str(spec), "--key", "k=nobody", "--input", str(rows), "--run-id", "r1"]) == 1
    assert targets.find_target(fitted.spec(warehouse), None)[0] == SET


def test_show_tells_importance_training_errors_and_the_flag(warehouse: Path, capsys: pytest.CaptureFixture[str]):
    (row,) = gm.show(fitted.spec(warehouse), key="k=a", run_id="r1")
    assert row["importance"] == {"x": pytest.approx(1.0)}
    assert row["train_metrics"]["train_mae"] == pytest.approx(0.0, abs=1e-9)
    spec = warehouse.parent / "spec.yaml"
    spec.write_text(json.dumps(fitted.spec(warehouse)))
    assert main(["show", str(spec), "--key", "k=a", "--run-id", "r1"]) == 0
    assert "x 100.0%" in capsys.readouterr().out
