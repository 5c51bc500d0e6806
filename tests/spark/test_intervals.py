"""Intervals and reasons from the training to wherever predictions go: one fleet with a salted key and a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models import api, explaining
from group_models.adapters.mlflow_models import export_model
from group_models.conformal import bounds_of, rank
from group_models.live.sets import read_live
from group_models.ports import SparkSession
from group_models.serving.bundles import Bundle, write_bundle
from group_models.spec import Scoring
from group_models.tables import STORE
from tests.cases.worlds import by_key, scored, spec_of, tables_of

ROWS = {"big": 400, "mid": 120, "few": 30}
"""Rows per carrier: the first is over `max_key_rows`, of the last too few are held out for the wider interval."""

LEVELS = (0.5, 0.9)
BOUNDS = list(bounds_of(LEVELS))


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(8)
    carrier = np.repeat(list(ROWS), list(ROWS.values()))
    x = rng.normal(size=len(carrier))
    noise = rng.normal(size=len(carrier)) * np.where(carrier == "mid", 3.0, 1.0)
    return pd.DataFrame({"row_id": np.arange(len(carrier)), "carrier": carrier, "x": x, "y": 5.0 * x + noise})


def changes() -> dict[str, Any]:
    return {
        "levels": [[]], "estimator": "ridge", "holdout": {"by": "hash", "share": 0.2}, "intervals": [0.9, 0.5],
        "limits": {"min_rows": 20, "max_key_rows": 200},
    }  # fmt: skip


def test_bounds_stand_beside_each_prediction_wherever_it_is_made(either_spark: SparkSession, tmp_path: Path):
    frame = either_spark.createDataFrame(rows())
    spec = spec_of(frame, tmp_path, **changes())
    run = api.train(spec, spark=either_spark)
    shown = api.show(spec)
    found, parent = by_key([row for row in shown if row["key"]]), next(row for row in shown if not row["key"])
    widths = {name: dict(found[name]["interval"]) for name in ROWS}
    assert found["big"]["policy"] == "salted"
    for name in ROWS:
        held = found[name]["holdout_rows"]
        expected = {f"{level:g}" for level in LEVELS if rank(held, level) <= held}
        assert set(widths[name]) == expected
        assert sum(found[name]["importance"].values()) == pytest.approx(1.0)
        assert found[name]["train_metrics"]["train_mae"] > 0.0
    assert set(widths["few"]) == {"0.5"}
    assert widths["mid"]["0.9"] > widths["big"]["0.9"]
    assert set(run.coverage()) == {"0.5", "0.9"}
    assert "intervals hold" in run.facts()

    widths["few"] = {"0.5": widths["few"]["0.5"], "0.9": parent["interval"]["0.9"]}
    asked = pd.concat([rows().drop(columns="y"), pd.DataFrame({"row_id": [-1], "carrier": ["new"], "x": [1.0]})])
    widths["new"] = dict(parent["interval"])
    answers = {engine: _answer(engine, either_spark, asked, spec) for engine in ("narrow", "wide", "pandas")}
    for answer in answers.values():
        assert answer.columns.tolist()[3 : 4 + len(BOUNDS)] == ["prediction", *BOUNDS]
        pd.testing.assert_frame_equal(answer[["prediction", *BOUNDS]], answers["pandas"][["prediction", *BOUNDS]])
        for level in LEVELS:
            width = answer["carrier"].map(lambda name, level=level: widths[name][f"{level:g}"])
            lower, upper = bounds_of([level])
            np.testing.assert_allclose(answer["prediction"] - answer[lower], width)
            np.testing.assert_allclose(answer[upper] - answer["prediction"], width)
    _check_elsewhere(spec, answers["pandas"], tmp_path)


def _answer(engine: str, spark: SparkSession, asked: pd.DataFrame, spec: dict[str, Any]) -> pd.DataFrame:
    found = scored(engine, spark.createDataFrame(asked), spec)
    return found.drop(columns="tags", errors="ignore").sort_values("row_id").reset_index(drop=True)


def _check_elsewhere(spec: dict[str, Any], answer: pd.DataFrame, folder: Path) -> None:
    """The router's file, a loaded and an exported model, and the explanation of a salted key give the same."""
    import mlflow

    tables = tables_of(spec)
    live = read_live(tables, spec["model_set"])
    where = {"model_set": [spec["model_set"]], "part": [-1]}
    write_bundle(folder / "router", live, Scoring(), tables.read(STORE, where=where).to_pylist())
    columns = ["prediction", *BOUNDS]
    routed = Bundle(folder / "router").predict(answer[["carrier", "x"]])
    pd.testing.assert_frame_equal(routed[columns], answer[columns])
    for name in ("big", "few"):
        own = answer[answer["carrier"] == name]
        told = api.load_model(spec, carrier=name).predict(own[["x"]])
        pd.testing.assert_frame_equal(told.reset_index(drop=True), own[columns].reset_index(drop=True))
        export_model(api.find_model(spec, f"carrier={name}"), folder / name)
        assert list(mlflow.pyfunc.load_model(str(folder / name)).predict(own[["x"]]).columns) == columns
    explained = explaining.explain(answer, spec, carrier="big")
    np.testing.assert_allclose(explained["base_value"] + explained["contribution_x"], explained["prediction"])
    answer[["carrier", "x"]].to_csv(folder / "rows.csv", index=False)
    told = explaining.explain_input(str(folder / "rows.csv"), spec, key="carrier=big", rows=3)
    assert [set(row["contributions"]) for row in told] == [{"x"}] * 3
