"""Models of classes served without Spark: the direct path, the router, MLflow's loader; labels of several runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from group_models import api, releasing
from group_models.adapters.mlflow_router import router_signature, save_router
from group_models.adapters.path_tables import PathTables
from group_models.errors import DataError
from group_models.estimators.base import EstimatorSettings
from group_models.labels import Labels
from group_models.live.sets import newest_release, read_live
from group_models.mirroring import read_models
from group_models.serving.bundles import Bundle, write_bundle
from group_models.spec import Scoring
from tests import fitted

OLD, NEW = Labels(("late", "on time")), Labels(("early", "on time"))
LATER = {"a": 5.0, "one": 0.0}
ASKED = pd.DataFrame({"k": ["a", "new", "a", "one"], "x": [0.0, 1.0, 9.0, 4.0]}, index=[7, 7, 3, 7])


def logistic(labels: Labels) -> EstimatorSettings:
    return EstimatorSettings(name="logistic", metric="log_loss", labels=labels)


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    """The spec of a released run of classes: of `a` rows are on time from x = 5 on, of `one` all are."""
    spec = fitted.spec(tmp_path / "warehouse", task="classification", estimator="logistic")
    tables = PathTables(tmp_path / "warehouse", "zrl.ml")
    fitted.add_run(tables, "r1", 0, LATER, estimator=logistic(OLD), spec='{"task": "classification"}')
    releasing.release(spec, run_id="r1", force=True)
    return spec


def bundle_of(spec: dict[str, Any], folder: Path) -> tuple[Path, Any]:
    tables = PathTables(spec["warehouse"], "zrl.ml")
    live = read_live(tables, fitted.SET)
    write_bundle(folder / "router.sqlite", live, Scoring(), read_models(tables, fitted.SET, live))
    return folder / "router.sqlite", live


def test_the_direct_path_says_label_and_probabilities_by_position(asked: dict[str, Any]) -> None:
    scored = api.score(ASKED, asked)
    assert scored.index.tolist() == [7, 7, 3, 7]
    assert scored["prediction"].tolist() == ["late", None, "on time", "on time"]
    assert scored["score_status"].tolist() == ["scored", "unseen_key", "scored", "scored"]
    assert scored["model_status"].tolist() == ["trained", None, "trained", "one_class"]
    assert list(scored.columns)[2:4] == ["prediction", "probabilities"]
    told = scored["probabilities"].tolist()
    assert told[1] is None
    assert told[3] == {"late": 0.0, "on time": 1.0}
    assert told[0]["late"] == pytest.approx(1 - told[0]["on time"])
    assert told[0]["late"] > 0.9


def test_an_input_with_a_column_of_probabilities_needs_a_prefix(asked: dict[str, Any]) -> None:
    given = ASKED.assign(probabilities=0.0)
    with pytest.raises(DataError, match=r"already has the column\(s\) 'probabilities'"):
        api.score(given, asked)
    assert "out_probabilities" in api.score(given, asked, prefix="out_")


def test_the_router_and_mlflows_loader_answer_as_the_direct_path(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = api.score(ASKED, asked)
    file, live = bundle_of(asked, tmp_path)
    save_router(tmp_path / "router", file, live, {"model_set": fitted.SET})
    routed = mlflow.pyfunc.load_model(str(tmp_path / "router")).predict(ASKED)
    assert routed["probabilities"].tolist() == expected["probabilities"].tolist()
    assert routed["prediction"].tolist() == expected["prediction"].tolist()
    monkeypatch.setenv("GROUP_MODELS_WAREHOUSE", asked["warehouse"])
    own = expected[expected["k"] == "a"]
    key_id = api.show(asked, key={"k": "a"})[0]["key_id"]
    uri = f"groupmodels:/{fitted.SET}/r1/{key_id}"
    for model in (api.load_model(asked, k="a"), mlflow.pyfunc.load_model(uri)):
        answered = model.predict(own[["x"]])
        assert answered["prediction"].tolist() == own["prediction"].tolist()
        assert answered["probabilities"].tolist() == own["probabilities"].tolist()


def test_the_routers_signature_has_label_and_probabilities(asked: dict[str, Any], tmp_path: Path) -> None:
    outputs = router_signature(bundle_of(asked, tmp_path)[1]).outputs.to_dict()
    assert [(each["name"], each["type"]) for each in outputs][:2] == [
        ("prediction", "string"),
        ("probabilities", "map"),
    ]


def test_models_of_runs_with_other_labels_serve_beside_each_other(asked: dict[str, Any], tmp_path: Path) -> None:
    tables = PathTables(asked["warehouse"], "zrl.ml")
    base, spec = newest_release(tables, fitted.SET), '{"task": "classification"}'
    fitted.add_run(tables, "r2", 1, LATER, estimator=logistic(NEW), base=base, spec=spec)
    before = api.score(ASKED, asked)["probabilities"].tolist()
    releasing.release(asked, run_id="r2", force=True)
    assert api.score(ASKED, asked)["prediction"].tolist() == ["early", None, "on time", "on time"]
    releasing.pin(asked, key={"k": "one"}, run_id="r1")
    told = api.score(ASKED, asked)["probabilities"].tolist()
    names = ["late", "on time", "early"]
    assert [list(row or ()) for row in told] == [names, [], names, names]
    assert (told[0]["early"], told[0]["late"]) == (before[0]["late"], 0.0)
    assert Bundle(bundle_of(asked, tmp_path)[0]).predict(ASKED)["probabilities"].tolist() == told


def test_a_routers_file_of_numbers_is_what_earlier_versions_read(tmp_path: Path) -> None:
    spec = fitted.spec(tmp_path / "warehouse")
    fitted.add_run(PathTables(tmp_path / "warehouse", "zrl.ml"), "r1", 0, {"a": 2.0})
    releasing.release(spec, run_id="r1", force=True)
    file, _ = bundle_of(spec, tmp_path)
    about = dict(sqlite3.connect(file).execute("SELECT name, value FROM about").fetchall())
    assert about["format"] == "1"
    assert "run_labels" not in about["live"]
    scored = api.score(pd.DataFrame({"k": ["a"], "x": [3.0]}), spec)
    assert "probabilities" not in scored
    assert scored["prediction"].to_numpy() == pytest.approx(np.array([6.0]))
