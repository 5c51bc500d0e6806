"""Keys that build on a parent: trained, scored by every path, carried through nights and cleans, as by a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from group_models import api, releasing, targets
from group_models.fitting.pooled import ALONE
from group_models.keys import texts_id
from group_models.live.sets import read_live
from group_models.mirroring import read_models
from group_models.ports import SparkSession
from group_models.runs import one_wave
from group_models.serving.bundles import Bundle, write_bundle
from group_models.spec import Scoring
from group_models.tables import STORE
from tests import worlds
from tests.spark.test_salting import parts_of_rows
from tests.worlds import KEYS, SHARE

TABLE = worlds.rows()
FRAME = worlds.pandas_rows(TABLE)
PARTS = 3
POOLING = {"mode": "residual", "parts": PARTS, "estimator": {"name": "ridge", "params": {"alpha": 5.0}}}
KINDS = {"carrier": "string", "stop": "integer"}
GLOBAL = texts_id({}, KINDS)
INPUT = [*KEYS, *worlds.NUMERIC, "row_id"]


def spec(spark: SparkSession, folder: Path, table: pa.Table = TABLE, *, partitions: int = 2, **changes: Any) -> Any:
    given = {"levels": [["carrier"], []], "pooling": POOLING, **changes}
    return worlds.spec(worlds.spark_rows(spark, table, partitions), folder, **given)


def text_of(key: tuple[Any, ...]) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in key)


def by_texts(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row["key"].values()): row for row in rows}


def ridge(alpha: float) -> Any:
    return make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), Ridge(alpha=alpha))


class Loop:
    """The same by a plain loop over parts and keys."""

    def __init__(self, part: pd.Series, frame: pd.DataFrame = FRAME, max_size: int | None = None) -> None:
        usable = frame[np.isfinite(frame["y"])].sort_values("at", ignore_index=True)
        self.y, self.x = usable["y"].to_numpy(), worlds.inputs(usable, worlds.NUMERIC)
        self.held = worlds.time_holdout(frame, SHARE).loc[usable["row_id"]].to_numpy()
        self.part = part.loc[usable["row_id"]].to_numpy()
        self.rows = {text_of(key): usable.index.isin(rows.index) for key, rows in worlds.by_key(usable)}
        self.measured, self.final = (
            [ridge(0.5).fit(self.x[rows & (self.part == p)], self.y[rows & (self.part == p)]) for p in range(PARTS)]
            for rows in (~self.held, np.ones_like(self.held))
        )
        self.before = np.where(self.held, np.mean(self._all(self.measured), axis=0), self._out(self.measured))
        self.after = self._out(self.final)

    def _all(self, models: list[Any], x: Any = None) -> np.ndarray:
        return np.array([model.predict(self.x if x is None else x) for model in models])

    def _out(self, models: list[Any]) -> np.ndarray:
        found = self._all(models)
        return np.array([np.delete(found[:, i], self.part[i]).mean() for i in range(len(self.part))])

    def child(self, rows: np.ndarray, parent: np.ndarray) -> Callable[[Any, np.ndarray], np.ndarray]:
        weight = rows.sum() / (rows.sum() + 50.0)
        x, wrong = self.x[rows].assign(p=parent[rows]), self.y[rows] - parent[rows]
        model = ridge(5.0).fit(x, wrong)
        shift = np.median(wrong - model.predict(x))
        return lambda x, above: above + weight * (model.predict(x.assign(p=above)) + shift)

    def metrics(self, key: tuple[Any, ...]) -> dict[str, float] | None:
        own = self.rows[key]
        train, held = own & ~self.held, own & self.held
        if not train.any() or not held.any():
            return None
        return worlds.metrics(self.y[held], self.child(train, self.before)(self.x[held], self.before[held]))

    def predict(self, frame: pd.DataFrame) -> pd.Series:
        """Return what the key's child, or without one all rows' model, predicts for each row."""
        found = pd.Series(np.nan, index=frame["row_id"].to_numpy())
        for key, of_key in worlds.by_key(frame):
            x = worlds.inputs(of_key, worlds.NUMERIC)
            above = self._all(self.final, x).mean(axis=0)
            own = self.rows.get(text_of(key), np.zeros(1))
            is_child = own.sum() >= worlds.MIN_ROWS
            found.loc[of_key["row_id"]] = self.child(own, self.after)(x, above) if is_child else above
        return found


def asked(frame: pd.DataFrame = FRAME) -> pd.DataFrame:
    stranger = pd.DataFrame([{"carrier": "new", "stop": 77, "a": 1.0, "b": 2, "is_fragile": True, "row_id": 9000}])
    return pd.concat([frame[INPUT], stranger.astype(frame[INPUT].dtypes)], ignore_index=True)


def check_every_path(spark: SparkSession, given: Any, wanted: pd.Series, folder: Path) -> None:
    """Compare batch scoring (both engines), the direct path, the router and `load_model` with what is wanted."""
    frame = asked()
    table = TABLE.select(INPUT)
    tables = targets.open_tables(targets.load_spec(given), None)
    live = read_live(tables, worlds.MODEL_SET)
    folder.mkdir(exist_ok=True)
    write_bundle(folder / "router.sqlite", live, Scoring(), read_models(tables, worlds.MODEL_SET, live))
    source = spark.createDataFrame(table)
    outs = [
        api.score(frame, given),
        api.score(source, given).toPandas(),
        api.score(source, given, columns=["row_id"]).toPandas(),
        frame.join(Bundle(folder / "router.sqlite").predict(frame)),
    ]
    for out in outs:
        found = out.set_index("row_id")["prediction"]
        np.testing.assert_allclose(found, wanted.loc[found.index], rtol=0, atol=1e-9)
    for key in (("UA", 1), (None, 1)):
        rows = next(rows for name, rows in worlds.by_key(FRAME) if name == key)
        model = api.load_model(given, key=dict(zip(KEYS, key, strict=True)))
        found = model.predict(rows[list(worlds.NUMERIC)])
        np.testing.assert_allclose(found, wanted.loc[rows["row_id"]], rtol=0, atol=1e-9)


@pytest.mark.spark
def test_children_equal_those_of_a_plain_loop_and_predict_the_same_everywhere(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check_children(spark, tmp_path, monkeypatch)


@pytest.mark.connect
@pytest.mark.slow
def test_children_are_those_of_a_plain_loop_on_connect(
    connect_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check_children(connect_spark, tmp_path, monkeypatch)


def check_children(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = spec(spark, tmp_path / "warehouse", partitions=3)
    run = api.train(given, spark=spark)
    assert run.release_id, run
    loop, rows = Loop(parts_of_rows(spark, PARTS, worlds.NUMERIC)), by_texts(api.show(given))
    assert (rows[()]["policy"], rows[()]["n_parts"]) == ("salted", PARTS)
    assert rows["UA",]["policy"] == "whole"
    for key in worlds.FITTED:
        row = rows[text_of(key)]
        assert (row["status"], row["parent_key_id"], row["parent_run_id"]) == ("trained", GLOBAL, run.run_id)
        expected = loop.metrics(text_of(key))
        assert row["metrics"] is None if expected is None else row["metrics"] == pytest.approx(expected, rel=1e-9)
    small = rows["AA", "1"]
    assert (small["serves"], small["parent_key_id"]) == ("parent", GLOBAL)
    wanted = loop.predict(asked())
    check_every_path(spark, given, wanted, tmp_path / "bundle")
    monkeypatch.setenv("GROUP_MODELS_WAREHOUSE", str(tmp_path / "warehouse"))
    check_uri(rows["UA", "1"], run.run_id, wanted)


def check_uri(row: Mapping[str, Any], run_id: str, wanted: pd.Series) -> None:
    import mlflow

    loaded = mlflow.pyfunc.load_model(f"groupmodels:/{worlds.MODEL_SET}/{run_id}/{row['key_id']}")
    mine = FRAME[(FRAME["carrier"] == "UA") & (FRAME["stop"] == 1)]
    x = worlds.inputs(mine, worlds.NUMERIC)
    np.testing.assert_allclose(loaded.predict(x), wanted.loc[mine["row_id"]], rtol=0, atol=1e-9)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 7])
def test_whatever_the_partitioning_children_are_the_same(spark: SparkSession, tmp_path: Path, partitions: int):
    given = spec(spark, tmp_path / "warehouse", partitions=partitions, compute={"slots": 2, "wave_s": 0.001})
    api.train(given, spark=spark)
    loop = Loop(parts_of_rows(spark, PARTS, worlds.NUMERIC))
    check_every_path(spark, given, loop.predict(asked()), tmp_path / "bundle")


def next_day() -> pa.Table:
    """Return the rows with one key's changed: its targets are higher."""
    is_changed = pc.and_(pc.equal(TABLE["carrier"], "UA"), pc.equal(TABLE["stop"], 1))
    y = pc.if_else(pc.fill_null(is_changed, fill_value=False), pc.add(TABLE["y"], 5.0), TABLE["y"])
    return TABLE.set_column(TABLE.column_names.index("y"), "y", y)


@pytest.mark.spark
@pytest.mark.slow
def test_an_unchanged_child_goes_on_with_its_parent_through_a_retraining_and_a_clean(
    spark: SparkSession, tmp_path: Path
):
    first = spec(spark, tmp_path / "warehouse")
    api.train(first, spark=spark, run_id="one")
    before = api.score(asked(), first).set_index("row_id")["prediction"]
    second = spec(spark, tmp_path / "warehouse", next_day())
    api.train(second, spark=spark, run_id="two")
    rows = by_texts(api.show(second))
    assert (rows[()]["model_run_id"], rows["UA", "1"]["parent_run_id"]) == ("two", "two")
    kept = [key for key in map(text_of, worlds.FITTED) if key != ("UA", "1")]
    for key in kept:
        row = rows[key]
        assert (row["status"], row["model_run_id"], row["parent_run_id"]) == ("unchanged", "one", "one")
    after = api.score(asked(), second).set_index("row_id")["prediction"]
    of = asked().set_index("row_id")
    is_kept = [
        text_of(tuple(None if pd.isna(v) else v for v in row)) in kept for row in of[list(KEYS)].to_numpy(object)
    ]
    pd.testing.assert_series_equal(after[is_kept], before[is_kept])
    assert not np.allclose(after, before)
    releasing.clean(second, keep=1, dry_run=False)
    cleaned = api.score(asked(), second).set_index("row_id")["prediction"]
    pd.testing.assert_series_equal(cleaned, after)
    model = api.load_model(second, key={"carrier": "UA", "stop": 2})
    mine = FRAME[(FRAME["carrier"] == "UA") & (FRAME["stop"] == 2)]
    np.testing.assert_allclose(model.predict(mine[list(worlds.NUMERIC)]), after[mine["row_id"]], rtol=0, atol=1e-9)
    # A run of one key alone, after the clean: it builds on the parent that serves, whose parts are still there.
    api.train(second, spark=spark, run_id="three", where="carrier = 'UA' and stop = 2", retrain_all=True)
    row = by_texts(api.show(second))["UA", "2"]
    assert (row["status"], row["parent_run_id"], row["reason"]) == ("trained", "two", None)


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_that_stopped_before_its_keys_goes_on_to_the_same_models(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = spec(spark, tmp_path / "warehouse")
    train = one_wave.OneWave.train

    def stop_at_keys(self: Any, parts: pa.Table) -> None:
        if self._pool is not None:
            raise KeyboardInterrupt
        train(self, parts)

    monkeypatch.setattr(one_wave.OneWave, "train", stop_at_keys)
    with pytest.raises(KeyboardInterrupt):
        api.train(given, spark=spark, run_id="stopped")
    monkeypatch.undo()
    api.train(given, spark=spark, run_id="stopped")
    wanted = Loop(parts_of_rows(spark, PARTS, worlds.NUMERIC)).predict(asked())
    found = api.score(asked(), given).set_index("row_id")["prediction"]
    np.testing.assert_allclose(found, wanted.loc[found.index], rtol=0, atol=1e-9)


@pytest.mark.spark
@pytest.mark.slow
def test_keys_whose_parent_has_no_model_are_trained_alone_and_say_so(spark: SparkSession, tmp_path: Path):
    limits = {"min_rows": worlds.MIN_ROWS, "max_parent_rows": 200}
    given = spec(spark, tmp_path / "pooled", limits=limits, oversize="skip", levels=[[]])
    run = api.train(given, spark=spark, run_id="alone")
    rows = by_texts(api.show(given))
    assert rows[()]["status"] == "too_big"
    plain = spec(spark, tmp_path / "plain", limits=limits, oversize="skip", levels=[[]], pooling="none")
    api.train(plain, spark=spark)
    expected = by_texts(api.show(plain))
    for key in map(text_of, worlds.FITTED):
        assert rows[key]["reason"].startswith(ALONE)
        assert (rows[key]["metrics"], rows[key]["parent_run_id"]) == (expected[key]["metrics"], None)
    stored = run.tables.read(STORE, columns=["part"], where={"model_set": [run.model_set], "run_id": ["alone"]})
    assert set(stored["part"].to_pylist()) == {-1}


@pytest.mark.spark
@pytest.mark.slow
def test_keys_build_on_the_nearest_parent_at_the_level_that_is_named_or_above_it(spark: SparkSession, tmp_path: Path):
    pooling = {**POOLING, "parent": ["carrier"], "parts": 2}
    given = spec(spark, tmp_path / "warehouse", pooling=pooling)
    run = api.train(given, spark=spark)
    rows = by_texts(api.show(given))
    carrier = texts_id({"carrier": "UA"}, KINDS)
    assert rows["UA",]["n_parts"] == rows[()]["n_parts"] == 2
    for key in map(text_of, worlds.FITTED):
        above = carrier if key[0] == "UA" else GLOBAL
        assert (rows[key]["parent_key_id"], rows[key]["parent_run_id"]) == (above, run.run_id)


@pytest.mark.spark
@pytest.mark.slow
def test_mixtures_predict_the_same_everywhere(spark: SparkSession, tmp_path: Path):
    given = spec(spark, tmp_path / "warehouse", pooling={"mode": "shrink", "parts": PARTS})
    run = api.train(given, spark=spark)
    row = by_texts(api.show(given))["UA", "1"]
    assert (row["params"]["pooling"], row["parent_run_id"]) == ("shrink", run.run_id)
    loop = Loop(parts_of_rows(spark, PARTS, worlds.NUMERIC))
    wanted = loop.predict(asked())
    params = {key: row["params"] or {} for key, row in by_texts(api.show(given)).items()}
    weights = {key: float(of_key["weight"]) for key, of_key in params.items() if "weight" in of_key}
    for key, of_key in worlds.by_key(asked()):
        own = loop.rows.get(text_of(key), np.zeros(1))
        if own.sum() < worlds.MIN_ROWS:
            continue
        x = worlds.inputs(of_key, worlds.NUMERIC)
        mine = ridge(0.5).fit(loop.x[own], loop.y[own]).predict(x)
        exact = own.sum() / (own.sum() + 50.0) * float(params[text_of(key)]["validated_weight"])
        assert weights[text_of(key)] == pytest.approx(exact, rel=1e-5)
        above = loop._all(loop.final, x).mean(axis=0)
        wanted.loc[of_key["row_id"]] = exact * mine + (1 - exact) * above
    check_every_path(spark, given, wanted, tmp_path / "bundle")
