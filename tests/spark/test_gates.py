"""Gates and baselines end to end: what a night must show before its models serve, and what is known of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models import api, releasing
from group_models.errors import DataError
from group_models.ports import SparkSession
from tests import worlds

LIMITS = {"min_rows": 20}
HOURS = 60


def night(keys: str, hours: int, *, odd: str = "", seed: int = 5) -> pd.DataFrame:
    """Return one row per key and hour on the line y = 2 x + noise; of an odd key, hours 60 to 79 are off it."""
    draws = np.random.default_rng(seed)
    frame = pd.DataFrame([(key, hour) for hour in range(hours) for key in keys], columns=["carrier", "hour"])
    frame["x"] = draws.normal(size=len(frame)) * 10
    frame["y"] = 2 * frame["x"] + draws.normal(size=len(frame))
    is_off = frame["carrier"].isin(list(odd)) & frame["hour"].between(60, 79)
    frame.loc[is_off, "y"] = -9 * frame["x"] - 40
    frame["at"] = pd.Timestamp("2025-01-01", tz="UTC") + pd.to_timedelta(frame["hour"], unit="h")
    return frame.drop(columns="hour")


def spec(spark: SparkSession, frame: pd.DataFrame, folder: Path, **changes: Any) -> dict[str, Any]:
    rows = spark.createDataFrame(frame)
    return worlds.spec(rows, folder, **{"keys": ["carrier"], "features": ["x"], "limits": LIMITS, **changes})


def by_key(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {row["key"].get("carrier", ()): row for row in rows}


def test_a_key_whose_new_model_is_worse_than_the_one_that_serves_keeps_that(either_spark: SparkSession, tmp_path: Path):
    gates = {"champion": {"tolerance": 0.5, "min_rows": 15}}
    api.train(spec(either_spark, night("AB", HOURS), tmp_path, gates=gates), spark=either_spark, run_id="one")
    asked = spec(either_spark, night("ABN", 100, odd="B"), tmp_path, gates=gates)
    run = api.train(asked, spark=either_spark, run_id="two")
    assert (run.refusal, run.counts) == (None, {"trained": 2, "rejected": 1})
    rows = by_key(api.show(asked))
    said = {key: (row["status"], row["serves"], row["model_run_id"]) for key, row in rows.items()}
    assert said == {
        "A": ("trained", "new", "two"),
        "B": ("rejected", "previous", "one"),
        "N": ("trained", "new", "two"),
    }
    found = {row["key"]["carrier"]: row for row in api.show(asked, run_id="two")}
    assert found["B"]["reason"].startswith("rejected: worse than the model that serves, mae ")
    # The newest fifth is held out, and the first night has seen none of it.
    assert found["A"]["baseline_metrics"]["champion_rows"] == 20
    old, frame = api.load_model(asked, run_id="one", carrier="A"), night("ABN", 100, odd="B")
    newest = frame[(frame["carrier"] == "A")].tail(20)
    error = np.abs(old.predict(newest[["x"]]) - newest["y"]).mean()
    assert found["A"]["baseline_metrics"]["champion_mae"] == pytest.approx(error, rel=1e-9)
    assert not any(name.startswith("champion") for name in found["N"]["baseline_metrics"])


@pytest.mark.slow
def test_a_night_without_new_rows_is_no_verdict(spark: SparkSession, tmp_path: Path):
    asked = spec(spark, night("AB", HOURS), tmp_path, gates={"champion": {}})
    api.train(asked, spark=spark, run_id="one")
    run = api.train(asked, spark=spark, retrain_all=True, run_id="two")
    assert run.counts == {"trained": 2}
    for row in api.show(asked):
        assert (row["serves"], row["model_run_id"]) == ("new", "two")
        assert row["reason"] == (
            "no verdict beside the model that served: 0 held out rows that it has not seen, min_rows is 30"
        )


@pytest.mark.slow
def test_a_worse_run_stays_challenger_until_a_person_publishes_it(spark: SparkSession, tmp_path: Path):
    gates = {"fleet": {"tolerance": 0.2}}
    first = api.train(spec(spark, night("AB", HOURS), tmp_path, gates=gates), spark=spark, run_id="one")
    assert first.release_id is not None
    asked = spec(spark, night("AB", 100, odd="AB"), tmp_path, gates=gates)
    worse = api.train(asked, spark=spark, run_id="two")
    assert worse.release_id is None
    assert "of the models that serve, on the same 40 rows of 2 keys; the tolerance is 20.0%" in (worse.refusal or "")
    assert "release publish SPEC --run-id two" in (worse.refusal or "")
    log = [(row.alias, row.action, row.run_id) for row in releasing.list_releases(asked)]
    assert log == [(alias, "publish", run) for run in ("one", "two") for alias in ("challenger", "champion")][:3]
    served = {
        alias: set(api.score(night("AB", 5), asked, alias=alias)["model_run_id"])
        for alias in ("champion", "challenger")
    }
    assert served == {"champion": {"one"}, "challenger": {"two"}}
    again = api.train(asked, spark=spark, run_id="two")
    assert (again.is_repeated, again.refusal) == (True, worse.refusal)
    better = api.train(spec(spark, night("AB", 100), tmp_path, gates=gates), spark=spark, run_id="three")
    assert (better.refusal, better.release_id is not None) == (None, True)
    assert set(api.score(night("AB", 5), asked)["model_run_id"]) == {"three"}


def test_a_key_worse_than_its_parent_is_served_by_it_until_it_is_rolled_back(spark: SparkSession, tmp_path: Path):
    frame = night("ABC", 100, odd="C")
    asked = spec(spark, frame, tmp_path, levels=[[]])
    api.train(asked, spark=spark, run_id="one")
    gated = {**asked, "gates": {"parent": {}}}
    run = api.train(gated, spark=spark, retrain_all=True, run_id="two")
    assert run.counts == {"trained": 2, "rejected": 1}
    rows = by_key(api.show(asked))
    assert (rows["C"]["status"], rows["C"]["serves"], rows["C"]["parent_run_id"]) == ("rejected", "parent", "two")
    assert rows["C"]["reason"].startswith("rejected: worse than its parent, mae ")
    verdict = run.verdict()
    assert verdict is not None
    assert list(verdict.against) == ["median", "parent", "global"]
    assert (verdict.against["parent"].keys, verdict.against["parent"].rows) == (3, 60)
    assert verdict.sentence() == run.facts()["verdict"]
    assert run.as_dict()["verdict"]["sentence"] == verdict.sentence()

    def serving(**options: Any) -> dict[str, tuple[str, str]]:
        out = api.score(frame, asked, **options).drop_duplicates("carrier").set_index("carrier")
        return {key: (out["model_level"][key], out["model_run_id"][key]) for key in "ABC"}

    after = {"A": ("carrier", "two"), "B": ("carrier", "two"), "C": ("global", "two")}
    assert serving() == serving(run_id="two") == after
    api.train(gated, spark=spark, where="carrier = 'A'", retrain_all=True, run_id="scoped")
    assert serving() == {**after, "A": ("carrier", "scoped")}
    releasing.pin(asked, "carrier=C", run_id="one")
    assert serving()["C"] == ("carrier", "one")
    releasing.unpin(asked, "carrier=C")
    releasing.release(asked, "rollback")
    releasing.release(asked, "rollback")
    assert serving() == dict.fromkeys("ABC", ("carrier", "one"))


@pytest.mark.parametrize("kind", ["whole", pytest.param("salted", marks=pytest.mark.slow)])
def test_a_parent_that_knows_the_holdout_by_heart_is_measured_as_it_was_before(
    spark: SparkSession, tmp_path: Path, kind: str
):
    draws = np.random.default_rng(2)
    frame = night("AB", 100).assign(y=draws.normal(size=200))
    limits = LIMITS if kind == "whole" else {**LIMITS, "max_parent_rows": 110}
    asked = spec(spark, frame, tmp_path, levels=[[]], limits=limits, estimator={"object": by_heart, "version": "1"})
    api.train(asked, spark=spark)
    rows = by_key(api.show(asked))
    assert rows[()]["policy"] == kind
    held = frame[frame["at"] >= frame["at"].max() - pd.Timedelta(hours=19)]
    if kind == "whole":
        served = api.load_model(asked, key="global")
        assert np.abs(served.predict(held[["x"]]) - held["y"]).max() < 1e-12
    for key in "AB":
        entries = rows[key]["baseline_metrics"]
        assert entries["parent_mae"] == entries["global_mae"] > 0.5
        assert rows[key]["holdout_rows"] == 20


def by_heart() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(n_neighbors=1)


def test_a_feature_that_is_the_target_is_refused_by_name(spark: SparkSession, tmp_path: Path):
    frame = night("AB", HOURS)
    frame["hours (real)"] = frame["y"]
    frame["shuffled"] = frame["y"].to_numpy()[::-1]
    asked = spec(spark, frame, tmp_path, features=["x", "hours (real)", "shuffled"])
    said = r"feature 'hours \(real\)' equals the target 'y' in every row: .*Leave it out of `features`"
    with pytest.raises(DataError, match=said):
        api.train(asked, spark=spark)
    assert any("'hours (real)' equals the target" in note for note in api.plan(asked, spark=spark).notes)
    assert api.train(asked, spark=spark, accept_changes=True).counts == {"trained": 2}
