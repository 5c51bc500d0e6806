"""Parts of a salted key: fitted by their units, judged together, one model of all."""

from __future__ import annotations

import hashlib
import zipfile
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models.artifacts import load_model
from group_models.errors import ModelError
from group_models.estimators.ensembles import EnsemblePredictor, pack_parts
from group_models.fitting.measured import Measured
from group_models.fitting.parts import judge_parts, with_metrics
from group_models.fitting.summing import RegressionSums
from group_models.fitting.units import fit_unit
from tests.unit.test_fitting import Poison, rows_of, settings

N_PARTS = 2


def fitted(*parts: pd.DataFrame, **changes: Any) -> list[dict[str, Any]]:
    """Return the store rows of a key whose parts have these rows, each fitted by a unit of its own."""
    found: list[dict[str, Any]] = []
    for part, rows in enumerate(parts):
        references = pd.DataFrame(
            {"key_index": [0], "key_id": "k", "key": "{}", "unit": part, "part": part, "n_parts": len(parts)}
        )
        found += fit_unit(rows, references, settings(**changes)).to_dict("records")
    return [{name: None if value is pd.NaT else value for name, value in row.items()} for row in found]


def judged(rows: list[dict[str, Any]], **changes: Any) -> Any:
    return judge_parts(rows, {"key_id": "k", "n_parts": N_PARTS, "unit": 4}, settings(**changes))


def test_a_part_returns_its_refitted_model_and_the_one_that_has_not_seen_the_holdout():
    rows = fitted(rows_of(0, [1.0, 2.0] * 5), rows_of(0, [5.0] * 10))
    assert [(row["part"], row["rows_used"], row["status"]) for row in rows] == [
        (2, 8, "trained"), (0, 10, "trained"), (3, 8, "trained"), (1, 10, "trained"),
    ]  # fmt: skip
    medians = [row["baseline_metrics"] and row["baseline_metrics"]["train_median"] for row in rows]
    assert medians == [1.5, None, 5.0, None]
    assert all(row["metrics"] is None for row in rows)
    assert len({row["seed"] for row in rows}) == N_PARTS


def test_parts_add_up_to_one_outcome():
    outcome = judged(fitted(rows_of(0, [1.0, 2.0] * 5), rows_of(0, [5.0] * 10)))
    assert (outcome.is_trained, outcome.has_holdout, outcome.measured) == (True, True, (2, 3))
    assert outcome.baseline == pytest.approx(3.25)
    wanted = {"part": -1, "unit": 4, "rows_used": 20, "holdout_rows": 4, "status": "trained"}
    assert {name: outcome.columns[name] for name in wanted} == wanted
    assert "random_state" not in outcome.columns["params"]
    sums = RegressionSums.of(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    assert with_metrics(outcome, Measured(sums, sums))["metrics"]["mae"] == pytest.approx(0.5)


def test_a_part_that_is_not_refitted_is_measured_itself():
    outcome = judged(fitted(rows_of(0, [1.0] * 10), rows_of(0, [5.0] * 10), refit=False), refit=False)
    assert (outcome.measured, outcome.columns["rows_used"]) == ((0, 1), 16)


def test_a_part_whose_rows_are_all_held_out_is_in_the_model_and_not_in_its_measure():
    late = rows_of(0, [5.0] * 10).assign(is_holdout=True)
    outcome = judged(fitted(rows_of(0, [1.0] * 10), late))
    assert (outcome.measured, outcome.baseline, outcome.columns["rows_used"]) == ((2,), 1.0, 20)


def test_parts_without_a_holdout_say_so():
    early = [rows_of(0, [1.0] * 10).assign(is_holdout=False) for _ in range(2)]
    assert judged(fitted(*early)).columns["reason"] == "no metrics: no row of the key falls into the holdout"
    late = [rows.assign(is_holdout=True) for rows in early]
    assert "all rows of the key fall into the holdout" in judged(fitted(*late)).columns["reason"]


def test_one_failed_part_fails_the_key_and_is_named():
    outcome = judged(fitted(rows_of(0, [1.0] * 10), rows_of(0, [500.0] * 10), obj=Poison()))
    assert (outcome.is_trained, outcome.columns["status"]) == (False, "failed")
    assert outcome.columns["reason"].startswith("part 2 of 2: fit: RuntimeError: poison")
    assert outcome.columns["error_type"] == "RuntimeError"


def test_parts_that_are_too_big_together_are_model_too_big():
    rows = fitted(rows_of(0, [1.0] * 10), rows_of(0, [5.0] * 10))
    total = sum(row["model_bytes"] for row in rows if row["part"] < N_PARTS)
    assert judged(rows, max_model_bytes=total).is_trained
    outcome = judged(rows, max_model_bytes=total - 1)
    assert outcome.columns["status"] == "model_too_big"
    assert outcome.columns["reason"] == f"the 2 parts have {total:,} bytes; max_model_bytes is {total - 1:,}"


def test_predictions_that_are_not_finite_fail_the_key():
    outcome = judged(fitted(rows_of(0, [1.0] * 10), rows_of(0, [5.0] * 10)))
    sums = RegressionSums.of(np.array([1.0, 3.0]), np.array([np.nan, 3.0]))
    columns = with_metrics(outcome, Measured(sums, sums))
    assert (columns["status"], columns["error_stage"]) == ("failed", "evaluate")
    assert columns["reason"] == "evaluate: 1 of 2 predictions on the holdout are not finite"


@pytest.mark.parametrize("name", ["ridge", "xgboost"])
def test_an_ensemble_is_one_file_that_predicts_the_mean(name: str):
    rows = fitted(rows_of(0, [1.0, 4.0] * 5), rows_of(0, [5.0] * 10), name=name)
    final = [row for row in rows if row["part"] < N_PARTS]
    parts = [(row["data"], row["data_file"]) for row in final]
    packed = pack_parts(parts)
    assert packed == pack_parts(parts)
    model = load_model(
        packed, format=1, data_file=EnsemblePredictor.data_file, sha256=hashlib.sha256(packed).hexdigest()
    )
    x = pd.DataFrame({"a": [0.0, 3.0, np.nan], "size (cm)": 1.0})
    alone = [load_model(row["data"], format=1, data_file=row["data_file"]).predict(x) for row in final]
    np.testing.assert_allclose(model.predict(x), np.mean(alone, axis=0), rtol=1e-15)
    again = load_model(model.dump(), format=1, data_file=EnsemblePredictor.data_file)
    assert np.array_equal(again.predict(x), model.predict(x))
    assert len(model.native) == N_PARTS


def test_a_file_that_is_no_archive_of_parts_is_named():
    empty = BytesIO()
    zipfile.ZipFile(empty, "w").close()
    for data, said in ((b"no zip", "no archive of parts"), (empty.getvalue(), "an archive without parts")):
        with pytest.raises(ModelError, match=said):
            load_model(data, format=1, data_file=EnsemblePredictor.data_file, what="the model of key k")
