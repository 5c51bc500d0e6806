"""Parents: trained like keys, and what serves where a key has no model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from group_models import api, releasing, targets
from group_models.adapters import spark_columns, spark_sizes
from group_models.cli import main
from group_models.errors import StateError
from group_models.fakes import MemoryTables
from group_models.keys import texts_id
from group_models.loading import load_spec
from group_models.planning.leveling import parent_sizes
from group_models.planning.plans import summarise
from group_models.ports import SparkSession
from group_models.runs.preparing import prepare
from group_models.tables import MANIFEST, STORE
from tests import worlds
from tests.worlds import KEYS, SAMPLES, SHARE, Sample

SIZES: Mapping[tuple[str | None, int | None], int] = {
    ("UA", 1): 90, ("UA", 2): 60, ("UA", None): 5,
    (None, 1): 50, (None, 2): 6,
    ("AA", 1): 9, ("AA", 2): 8, ("AA", 3): 7,
    ("null", None): 35,
    ("few", 1): 3, ("few", 2): 4,
    ("one", 7): 6,
}  # fmt: skip
"""Usable rows per key. `null` and `one` have one child; of `AA` only the carrier has enough rows, `few` has never."""

LEVELS = (("carrier",), ())
KINDS = {"carrier": "string", "stop": "integer"}


def table() -> pa.Table:
    """Return the rows, each at an hour of its own: so rows of parents have one order too."""
    made = worlds.rows(SIZES)
    hours = np.random.default_rng(1).permutation(4000)[: made.num_rows]
    at = pd.Timestamp("2025-01-01", tz="UTC") + pd.to_timedelta(hours, unit="h")
    return made.set_column(made.column_names.index("at"), "at", pa.array(at).cast(worlds.SCHEMA.field("at").type))


TABLE = table()
FRAME = worlds.pandas_rows(TABLE)
STRANGERS = pd.DataFrame(
    {"carrier": ["UA", "AA", "null", "few", "new", None], "stop": [77, 77, 77, 77, 1, 3]} | dict.fromkeys("ab", 1.0)
).assign(is_fragile=True, row_id=range(9000, 9006))
"""Rows of keys that no run has seen."""


def spec(spark: SparkSession, folder: Path, **changes: Any) -> dict[str, Any]:
    return worlds.spec(worlds.spark_rows(spark, TABLE), folder, levels=[list(level) for level in LEVELS], **changes)


def by_texts(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return manifest rows by (carrier, stop), by (carrier,), and by ()."""
    found = {tuple(row["key"].values()): row for row in rows}
    assert len(found) == len(rows)
    return found


def text_of(key: tuple[Any, ...]) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in key)


def expected(sample: Sample) -> dict[tuple[Any, ...], worlds.Expected]:
    """Return what the loop makes of keys and parents; those with one child are no parents."""
    held = worlds.time_holdout(FRAME, SHARE)
    of_level = [worlds.loop(FRAME, sample, is_holdout=held, columns=columns) for columns in (KEYS, *LEVELS)]
    of_level[1].pop(("null",))
    return {text_of(key): model for models in of_level for key, model in models.items()}


def references(
    key: tuple[Any, ...], models: Mapping[tuple[Any, ...], worlds.Expected], sample: Sample
) -> dict[str, float]:
    """Return what is told of a key's parent and of the global model: both as they were before they saw the holdout."""
    above = [own for own in (key[:1], ()) if len(own) < len(key) and own in models]
    held = worlds.time_holdout(FRAME, SHARE)
    usable = FRAME[np.isfinite(FRAME["y"])]
    rows = next(of_key for own, of_key in worlds.by_key(usable, KEYS[: len(key)]) if text_of(own) == key)
    rows = rows[held.loc[rows["row_id"]].to_numpy()]
    x, y = worlds.inputs(rows, sample.features), rows["y"].to_numpy()
    found = {}
    for name, own in zip(("parent", "global"), [*above[:1], ()] if above else (), strict=False):
        other = models[own].measured.predict(x)
        difference = np.abs(models[key].measured.predict(x) - y) - np.abs(other - y)
        found |= {f"{name}_{what}": value for what, value in worlds.metrics(y, other).items()}
        found[f"{name}_difference"] = difference.mean()
        if len(y) > 1:
            found[f"{name}_difference_se"] = difference.std(ddof=1) / len(y) ** 0.5
    return found


def serving(key: tuple[Any, ...], models: Mapping[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    return next(own for own in (text_of(key), text_of(key)[:1], ()) if own in models)


def predicted(frame: pd.DataFrame, models: Mapping[tuple[Any, ...], worlds.Expected], sample: Sample) -> pd.Series:
    """Return the prediction of each row's key, of its carrier where that has no model, or else of all rows."""
    found = pd.Series(np.nan, index=frame["row_id"].to_numpy())
    for key, of_key in worlds.by_key(frame):
        model = models[serving(key, models)].model
        found.loc[of_key["row_id"]] = model.predict(worlds.inputs(of_key, sample.features))
    return found


def asked_rows(spark: SparkSession, frame: pd.DataFrame) -> Any:
    names = ["row_id", "carrier", "stop", "a", "b", "is_fragile"]
    types = {"row_id": "long", "carrier": "string", "stop": "int", "a": "double", "b": "double"}
    ddl = ", ".join(f"{name} {types.get(name, 'boolean')}" for name in names)
    columns = [[None if pd.isna(value) else value for value in frame[name].tolist()] for name in names]
    return spark.createDataFrame(list(zip(*columns, strict=True)), ddl)


@pytest.mark.parametrize("name", ["ridge", pytest.param("xgboost", marks=pytest.mark.slow)])
def test_models_of_every_level_equal_those_of_the_loop_and_serve_what_has_none(
    any_spark: SparkSession, tmp_path: Path, name: str
):
    sample = SAMPLES[name]
    asked = spec(any_spark, tmp_path, estimator=sample.estimator)
    run = api.train(asked, spark=any_spark)
    rows, models = by_texts(api.show(asked)), expected(sample)
    parents = {("UA",), (None,), ("AA",), ("few",), ()}
    assert set(rows) == {text_of(key) for key in SIZES} | parents
    assert {key for key, row in rows.items() if row["status"] == "trained"} == set(models)
    for key, model in models.items():
        row = rows[key]
        assert (row["serves"], row["rows_used"], row["holdout_rows"]) == ("new", model.rows_used, model.holdout_rows)
        assert row["metrics"] == pytest.approx(model.metrics, rel=1e-9, abs=1e-9), key
        baselines = {**model.baseline_metrics, **references(key, models, sample)}
        assert row["baseline_metrics"] == pytest.approx(baselines, rel=1e-9, abs=1e-9), key
    assert {rows[key]["level"] for key in parents} == {"carrier", "global"}
    waves = [{row["wave"] for key, row in rows.items() if len(key) == width and key in models} for width in range(3)]
    assert max(waves[0]) < min(waves[1]) <= max(waves[1]) < min(waves[2])
    for key in SIZES:
        row, server = rows[text_of(key)], serving(key, models)
        if len(server) < 2:
            identity = texts_id(dict(zip(KEYS, server, strict=False)), KINDS)
            said = (row["status"], row["serves"], row["model_run_id"], row["parent_key_id"], row["parent_run_id"])
            assert said == ("too_small", "parent", None, identity, run.run_id)
    check_scores(any_spark, asked, models, sample)


def check_scores(spark: SparkSession, asked: Any, models: Mapping[tuple[Any, ...], Any], sample: Sample) -> None:
    frame = pd.concat([FRAME[STRANGERS.columns], STRANGERS], ignore_index=True)
    wanted = predicted(frame, models, sample)
    keys = frame.set_index("row_id")[list(KEYS)].astype(object).apply(tuple, axis=1)
    server = [serving(tuple(None if pd.isna(value) else value for value in key), models) for key in keys]
    for out in (api.score(frame, asked), api.score(asked_rows(spark, frame), asked).toPandas()):
        found = out.set_index("row_id").loc[frame["row_id"]]
        pd.testing.assert_series_equal(found["prediction"], wanted, check_names=False, rtol=0, atol=1e-9)
        assert found["score_status"].tolist() == ["scored" if len(each) == 2 else "parent" for each in server]
        names = {2: "carrier,stop", 1: "carrier", 0: "global"}
        assert found["model_level"].tolist() == [names[len(each)] for each in server]
        assert found["model_status"].loc[9000:].isna().all()


@pytest.fixture(scope="module")
def parents(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The spec of the world with ridge, trained and released once."""
    asked = spec(spark, tmp_path_factory.mktemp("parents"))
    api.train(asked, spark=spark, run_id="first")
    return asked


def test_sizes_of_parents_are_those_that_spark_measures(any_spark: SparkSession, tmp_path: Path):
    checked = load_spec(spec(any_spark, tmp_path, features=["a", "color"]))
    prepared = prepare(checked, targets.open_tables(checked), any_spark)
    rows = prepared.rows()
    found, left_out = parent_sizes(spark_sizes.measure(rows, prepared.roles), prepared.levels, ())
    assert left_out == {"carrier": 2}
    for columns in LEVELS:
        at_level = spark_columns.at_level(rows, prepared.key_types, columns)
        for row in spark_sizes.measure(at_level, prepared.roles).to_pylist():
            key = {name: text for name, text in row["key"] if name in columns}
            own = [each for each in found.to_pylist() if dict(each["key"]) == key]
            assert [each["level"] for each in own] == (
                [] if key.get("carrier") in ("null", "one") else [",".join(columns) or "global"]
            )
            for name in ("rows", "usable_rows", "bytes", "data_fingerprint", "train_from", "train_to"):
                assert all(each[name] == row[name] for each in own), (key, name)


def test_the_plan_prints_the_levels_and_the_parents_that_it_leaves_out(spark: SparkSession, parents: dict[str, Any]):
    planned = api.plan(parents, spark=spark, retrain_all=True)
    facts = summarise(planned).facts()
    assert facts["parents"] == "carrier 4 (3 whole, 1 too_small); global 1 (1 whole)"
    assert facts["keys"] == "12 (8 too_small, 4 whole)"
    assert facts["rows"] == "295, 283 of them with a target"
    assert planned.notes == ("parents with one child are left out, for they have the same rows: 2 carrier",)


def test_a_run_tells_what_came_of_its_parents_and_how_many_keys_they_serve(
    spark: SparkSession, parents: dict[str, Any]
):
    facts = api.train(parents, spark=spark, run_id="first").facts()
    assert facts["parents"] == "carrier 4 (3 trained, 1 too_small); global 1 (1 trained)"
    assert facts["keys served by"] == "8 a parent's, 4 their own model"
    assert facts["keys"] == "12 (8 too_small, 4 trained)"


def test_unchanged_parents_keep_their_models_and_go_on_serving(spark: SparkSession, tmp_path: Path, parents: Any):
    api.train(parents, spark=spark, run_id="again")
    rows = by_texts(api.show(parents))
    assert {key for key, row in rows.items() if row["status"] == "unchanged"} == set(expected(SAMPLES["ridge"]))
    assert (rows["AA", "1"]["serves"], rows["AA", "1"]["parent_run_id"]) == ("parent", "first")
    assert api.score(STRANGERS, parents)["model_run_id"].unique().tolist() == ["first"]
    assert api.score(STRANGERS, parents, run_id="again")["model_run_id"].unique().tolist() == ["first"]


def test_keys_and_strangers_are_loaded_and_shown_as_their_parents_serve_them(parents: dict[str, Any]):
    loaded = {
        "carrier=AA,stop=1": '{"carrier":"AA"}', "carrier=UA,stop=77": '{"carrier":"UA"}', "carrier=new,stop=1": "{}",
        "carrier=few,stop=2": "{}", "carrier=UA": '{"carrier":"UA"}', "global": "{}", "carrier=one": "{}",
    }  # fmt: skip
    for key, said in loaded.items():
        assert api.load_model(parents, key=key).metadata.metadata["key"] == said, key
    for stranger in ("carrier=one", "carrier=new,stop=1"):
        said = rf"no published run knows key '{stranger}' \(key_id \w+\); its rows are served by its parent global"
        with pytest.raises(StateError, match=said):
            api.show(parents, key=stranger)
    shown = api.show(parents, key="carrier=AA")[0]
    assert (shown["level"], shown["key"], shown["model_run_id"]) == ("carrier", {"carrier": "AA"}, "first")
    assert [row["level"] for row in api.show(parents, key="global")] == ["global"]


def test_a_scope_has_a_parent_where_its_own_columns_decide(spark: SparkSession, parents: dict[str, Any]):
    def keys(where: str) -> set[tuple[Any, ...]]:
        planned = api.plan(parents, where=where, retrain_all=True, spark=spark)
        return {tuple(dict(key).values()) for key in planned.keys["key"].to_pylist()}

    ua = {("UA", "1"), ("UA", "2"), ("UA", None)}
    assert keys("carrier = 'UA'") == ua | {("UA",)}
    assert keys("carrier = 'UA' and stop = 1") == {("UA", "1")}
    assert keys("carrier = 'UA' or stop = 7") == ua | {("UA",), ("one", "7")}
    # True of what is null: a stop that a parent leaves open is none.
    assert keys("carrier = 'UA' and stop is null") == {("UA", None)}
    assert keys("carrier is null") == {(None, "1"), (None, "2"), (None,)}
    assert keys("true") == {text_of(key) for key in SIZES} | {("UA",), (None,), ("AA",), ("few",), ()}


@pytest.mark.slow
def test_a_scoped_run_uses_other_parents_as_they_serve(spark: SparkSession, tmp_path: Path):
    asked = spec(spark, tmp_path)
    api.train(asked, spark=spark, run_id="full")
    api.train(asked, where="carrier = 'AA' and stop < 3", retrain_all=True, spark=spark, run_id="scoped", release=False)
    rows = by_texts(api.show(asked, run_id="scoped"))
    assert set(rows) == {("AA", "1"), ("AA", "2")}
    assert {(row["serves"], row["parent_run_id"]) for row in rows.values()} == {("parent", "full")}
    out = api.score(FRAME[FRAME["carrier"] == "AA"], asked, run_id="scoped")
    assert set(out["score_status"][out["stop"] < 3]) == {"parent"}
    api.train(asked, where="carrier = 'AA'", retrain_all=True, spark=spark, run_id="carrier")
    rows = by_texts(api.show(asked))
    assert {rows["AA", "3"]["parent_run_id"], rows["few", "1"]["parent_run_id"]} == {"carrier", "full"}
    releasing.release(asked, "rollback")
    assert by_texts(api.show(asked))["AA", "3"]["parent_run_id"] == "full"
    assert set(api.score(STRANGERS, asked)["model_run_id"]) == {"full"}


@pytest.mark.parametrize("oversize", ["salt", pytest.param("sample", marks=pytest.mark.slow)])
def test_a_parent_with_too_many_rows_is_treated_like_a_key(either_spark: SparkSession, tmp_path: Path, oversize: str):
    limits = {"min_rows": worlds.MIN_ROWS, "max_parent_rows": 100}
    asked = spec(either_spark, tmp_path, limits=limits, oversize=oversize)
    api.train(asked, spark=either_spark)
    rows = by_texts(api.show(asked))
    policies = {key: row["policy"] for key, row in rows.items() if row["status"] == "trained"}
    large = {"salt": "salted", "sample": "sampled"}[oversize]
    assert {key for key, policy in policies.items() if policy == large} == {(), ("UA",)}
    assert {policies[key] for key in policies if key not in ((), ("UA",))} == {"whole"}
    assert rows[()]["reason"].startswith("283 usable rows are over max_parent_rows 100;")
    used = rows[()]["rows_used"]
    assert (used == 283) if oversize == "salt" else (30 < used < 140)
    assert set(rows[()]["metrics"]) == set(rows[()]["baseline_metrics"]) == {"mae", "rmse", "r2", "bias"}
    assert {"parent_mae", "global_mae", "parent_difference_se"} <= set(rows[("UA",)]["baseline_metrics"])
    assert {"parent_mae", "global_mae"} <= set(rows["UA", "1"]["baseline_metrics"])
    assert api.score(STRANGERS, asked)["prediction"].notna().all()
    again = api.train(asked, spark=either_spark)
    assert again.counts == {"too_small": 8, "unchanged": 4}
    assert again.facts()["parents"] == "carrier 4 (3 unchanged, 1 too_small); global 1 (1 unchanged)"
    other = api.train({**asked, "limits": {**limits, "max_parent_rows": 99}}, spark=either_spark)
    assert other.counts == {"too_small": 8, "unchanged": 4}
    assert other.facts()["parents"] == "carrier 4 (3 trained, 1 too_small); global 1 (1 trained)"


def test_a_run_that_died_between_two_levels_goes_on(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    tables = MemoryTables(fail_on={5: "raise"})
    monkeypatch.setattr(targets, "tables_of", lambda *_: tables)
    asked = spec(spark, Path("unused"))
    with pytest.raises(StateError, match="append 5 was told to"):
        api.train(asked, spark=spark, run_id="night")
    stored = tables.read(STORE)["key_id"].to_pylist()
    assert stored == [texts_id({}, KINDS)] * 2
    api.train(asked, spark=spark, resume="night")
    assert tables.read(STORE)["key_id"].to_pylist().count(stored[0]) == 2
    manifest = tables.read(MANIFEST).to_pylist()
    assert {row["status"] for row in manifest} == {"trained", "too_small"}
    assert len(manifest) == len(SIZES) + 5


@pytest.mark.slow
def test_parents_that_are_not_asked_for_any_more_serve_no_more_and_come_back(spark: SparkSession, tmp_path: Path):
    asked = spec(spark, tmp_path)
    api.train(asked, spark=spark)
    api.train({**asked, "levels": [[]]}, spark=spark)
    rows = by_texts(api.show(asked))
    assert (rows[("UA",)]["status"], rows[("UA",)]["reason"].split(";")[0]) == (
        "vanished", "the spec has no level carrier any more",
    )  # fmt: skip
    assert set(api.score(STRANGERS, asked)["model_level"]) == {"global"}
    api.train(asked, spark=spark)
    assert set(api.score(STRANGERS, asked)["model_level"]) == {"carrier", "global"}


def test_failed_parents_are_trained_again_by_failed_only(spark: SparkSession, tmp_path: Path):
    frame = spark.createDataFrame(
        [(carrier, stop, float(i), float(i)) for carrier in "AB" for stop in (1, 2) for i in range(10)],
        "carrier string, stop int, x double, y double",
    )
    asked = worlds.spec(
        frame, tmp_path, levels=[["carrier"], []], features=["x"], time_column=None, limits={"min_rows": 5},
        estimator={"object": fails_from(40), "version": "1"},
    )  # fmt: skip
    run = api.train(asked, spark=spark)
    assert run.refusal.startswith("level global: none of 1 keys could be trained (1 failed);")
    releasing.release(asked, run_id=run.run_id, force=True)
    mended = {**asked, "estimator": {"object": fails_from(99), "version": "1"}}
    again = api.train(mended, spark=spark, failed_only=True)
    assert (again.counts, again.facts()["parents"]) == ({}, "global 1 (1 trained)")
    assert by_texts(api.show(asked))[()]["serves"] == "new"


def fails_from(rows: int) -> Any:
    """Return an estimator that fails with so many rows or more; a local class, so that workers get it by value."""
    from sklearn.linear_model import LinearRegression

    class Limited(LinearRegression):
        def fit(self, X, y):
            if len(X) >= rows * 0.7:
                raise ValueError("too many rows for me")
            return super().fit(X, y)

    return Limited


@pytest.mark.slow
def test_clean_leaves_the_parents_that_serve(spark: SparkSession, tmp_path: Path):
    asked = spec(spark, tmp_path)
    api.train(asked, spark=spark, run_id="first")
    for name in ("second", "third"):
        api.train(asked, spark=spark, where="carrier = 'UA'", retrain_all=True, run_id=name)
    before = api.score(STRANGERS, asked)
    releasing.clean(asked, keep=1, dry_run=False)
    after = api.score(STRANGERS, asked)
    pd.testing.assert_frame_equal(after.drop(columns="model_age_days"), before.drop(columns="model_age_days"))
    assert set(before["model_run_id"]) == {"first", "third"}


def test_the_command_line_names_parents_by_their_columns(
    parents: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    import yaml

    plain = {**parents, "source": {"path": "none.parquet"}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(plain))
    assert main(["show", str(tmp_path / "spec.yaml"), "--key", "carrier=UA", "--json"]) == 0
    assert '"level": "carrier"' in capsys.readouterr().out
