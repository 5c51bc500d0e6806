"""The verbs of a notebook on both kinds of session: what they write, answer and refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import LinearRegression

import group_models
from group_models import targets
from group_models.adapters.path_tables import PathTables
from group_models.errors import DataError, SpecError, StateError
from group_models.fakes import Fault, MemoryTables
from group_models.live.releases import Release
from group_models.ports import Commit, SparkFrame, SparkSession
from group_models.tables import MANIFEST, PLAN, RELEASE, RUN, STORE, Table
from tests import worlds

MODEL_SET = "zrl.ml.speed"
ROWS = 25
X = pd.DataFrame({"x": [2.0]})


def rows(factors: Mapping[str, float], stops: int = 2) -> pa.Table:
    """Return `ROWS` rows for each carrier and stop, on the line y = factor * x + stop."""
    keys = list(itertools.product(factors, range(1, stops + 1), range(ROWS)))
    return pa.table(
        {
            "carrier": [carrier for carrier, _, _ in keys],
            "stop": pa.array([stop for _, stop, _ in keys], pa.int32()),
            "at": pa.array([i * 3_600_000_000 for _, _, i in keys], pa.timestamp("us", tz="UTC")),
            "x": [float(i) for _, _, i in keys],
            "y": [factors[carrier] * i + stop for carrier, stop, i in keys],
        }
    )


def spec(source: Any, warehouse: Any, **changes: Any) -> dict[str, Any]:
    """Return a spec of lines: its models predict exactly what a reader works out."""
    return {
        "model_set": MODEL_SET,
        "source": source,
        "keys": ["carrier", "stop"],
        "target": "y",
        "features": ["x"],
        "estimator": {"object": LinearRegression(), "version": "1"},
        "time_column": "at",
        "limits": {"min_rows": 10},
        "compute": {"slots": 2},
        "warehouse": str(warehouse),
        **changes,
    }


def shown(asked: Any, **options: Any) -> dict[tuple[str | None, ...], dict[str, Any]]:
    found = group_models.show(asked, **options)
    by_key = {tuple(row["key"].values()): row for row in found}
    assert len(by_key) == len(found)
    return by_key


def question(*carriers: str) -> pd.DataFrame:
    """Return one row for each carrier: stop 1, x = 2."""
    return pd.DataFrame({"carrier": list(carriers), "stop": 1, "x": 2.0})


def answers(asked: Any, *carriers: str, **options: Any) -> list[float]:
    return group_models.score(question(*carriers), asked, **options)["prediction"].tolist()


def served_by(asked: Any) -> dict[str, str]:
    """Return the run that serves the stops of each carrier."""
    found = {key[0]: row["model_run_id"] for key, row in shown(asked).items()}
    assert {(key[0], row["model_run_id"]) for key, row in shown(asked).items()} == set(found.items())
    return found


def test_a_plan_writes_nothing_and_is_a_value(any_spark: SparkSession, tmp_path: Path):
    asked = spec(any_spark.createDataFrame(rows({"A": 1.0, "B": 2.0})), tmp_path / "house")
    planned, again = (group_models.plan(asked, spark=any_spark) for _ in range(2))
    assert not (tmp_path / "house").exists()
    assert planned == again
    assert planned.decisions() == {"whole": 4}
    assert repr(planned).startswith("Plan(4 keys: 4 whole; 2 units in 1 wave(s) on 2 slot(s); about ")
    html = planned._repr_html_()
    assert "<td" in html
    assert "4 (4 whole)" in html


def test_train_release_score_and_load_one_model(any_spark: SparkSession, tmp_path: Path):
    asked = spec(any_spark.createDataFrame(rows({"A": 1.0, "B": 2.0})), tmp_path)
    said: list[str] = []
    run = group_models.train(asked, spark=any_spark, release=False, say=said.append)
    assert (run.counts, run.release_id, run.refusal) == ({"trained": 4}, None, None)
    assert any(line.startswith("wave 1 of 1 done: 4 keys in 2 units") for line in said)
    with pytest.raises(StateError, match=r"model set zrl\.ml\.speed has no release yet"):
        group_models.score(question("A"), asked)
    assert answers(asked, "A", run_id=run.run_id) == pytest.approx([3.0])
    done = group_models.release(asked)
    assert (done.run_id, done.alias, done.action) == (run.run_id, "champion", "publish")
    assert answers(asked, "A", "B") == pytest.approx([3.0, 5.0])
    model = group_models.load_model(MODEL_SET, carrier="B", stop=2, warehouse=str(tmp_path))
    assert model.predict(X).tolist() == pytest.approx([6.0])
    assert group_models.load_model(asked, key="carrier=B,stop=2").predict(X).tolist() == pytest.approx([6.0])
    assert model.metadata.metadata["key"] == {"carrier": "B", "stop": "2"} or "B" in str(model.metadata.metadata)
    with pytest.raises(StateError, match="no published run knows key"):
        group_models.load_model(asked, carrier="C", stop=1)


def test_a_run_and_a_release_show_themselves_in_one_line_and_as_html(spark: SparkSession, tmp_path: Path):
    asked = spec(spark.createDataFrame(rows({"<b>A": 1.0})), tmp_path)
    run = group_models.train(asked, spark=spark, run_id="night-1")
    (done,) = group_models.list_releases(asked)
    assert repr(run) == f"Run(night-1 of {MODEL_SET}: 2 trained; released as {done.release_id})"
    assert repr(done) == f"Release({done.release_id}: publish run night-1 for champion of {MODEL_SET})"
    for value in (run, done):
        html = value._repr_html_()
        assert html.startswith("<table>")
        assert "night-1" in html
        assert "\n" not in repr(value)
    assert [row["key"] for row in run.worst(1)] in ([{"carrier": "<b>A", "stop": str(stop)}] for stop in (1, 2))


def plain(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return texts with None for whatever pandas has for null."""
    return frame.astype(object).where(frame.notna(), None).to_dict("list")


@pytest.mark.parametrize("engine", ["mapInPandas", "iterator UDF"])
def test_a_pandas_frame_and_a_spark_frame_get_the_same_answers(any_spark: SparkSession, tmp_path: Path, engine: str):
    table = worlds.rows()
    group_models.train(worlds.spec(any_spark.createDataFrame(table), tmp_path), spark=any_spark)
    more = pa.table(
        {"carrier": ["no such", None, "AA"], "stop": pa.array([1, None, 1], pa.int32()), "row_id": [-1, -2, -3]}
    )
    table = pa.concat_tables([table, more], promote_options="default")
    frame = any_spark.createDataFrame(table).repartition(5)
    columns = ["row_id"] if engine == "mapInPandas" else ["row_id", *worlds.KEYS]
    options = {"warehouse": str(tmp_path), "columns": columns, "prefix": "p_"}
    by_spark = group_models.score(frame, worlds.MODEL_SET, slots=2, **options)
    assert ("MapInPandas" in worlds.plan_of(by_spark)) == (engine == "mapInPandas")
    direct = group_models.score(worlds.pandas_rows(table), worlds.MODEL_SET, **options)
    assert list(direct.columns) == by_spark.columns
    assert direct["row_id"].tolist() == table["row_id"].to_pylist()
    added = [name for name in by_spark.columns if name.startswith("p_")]
    found = by_spark.select("row_id", *added).toPandas().set_index("row_id").loc[direct["row_id"]].reset_index()
    assert len(found) == table.num_rows
    pd.testing.assert_series_equal(found["p_prediction"], direct["p_prediction"], rtol=0, atol=1e-9)
    pd.testing.assert_series_equal(found["p_model_age_days"], direct["p_model_age_days"], rtol=0, atol=0.01)
    texts = [name for name in added if name not in ("p_prediction", "p_model_age_days")]
    assert plain(found[texts]) == plain(direct[texts])
    statuses = dict(zip(direct["row_id"], direct["p_score_status"], strict=True))
    assert (statuses[-1], statuses[-2], statuses[-3]) == ("unseen_key", "null_key", "no_model")
    assert direct["p_prediction"].notna().sum() == sum(worlds.SIZES[key] + 1 for key in worlds.FITTED)


def test_a_scoped_run_has_its_own_keys_only_and_the_others_go_on_being_served(any_spark: SparkSession, tmp_path: Path):
    before, after = (any_spark.createDataFrame(rows({"A": f, "B": f, "C": f})) for f in (1.0, 10.0))
    full = group_models.train(spec(before, tmp_path), spark=any_spark)
    asked = spec(after, tmp_path)
    part = group_models.train(asked, where="carrier = 'B'", spark=any_spark)
    assert part.counts == {"trained": 2}
    assert set(shown(asked, run_id=part.run_id)) == {("B", "1"), ("B", "2")}
    assert served_by(asked) == {"A": full.run_id, "B": part.run_id, "C": full.run_id}
    assert answers(asked, "A", "B", "C") == pytest.approx([3.0, 21.0, 3.0])
    scored = group_models.score(any_spark.createDataFrame(question("A", "B", "C")), asked, slots=1)
    found = {row["carrier"]: (row["prediction"], row["model_run_id"]) for row in scored.collect()}
    assert found == {
        "A": (pytest.approx(3.0), full.run_id),
        "B": (pytest.approx(21.0), part.run_id),
        "C": (pytest.approx(3.0), full.run_id),
    }


@pytest.mark.parametrize(
    ("where", "said"),
    [("x > 1", "a scope is a SQL predicate on the key columns"), ("carrier = ", "where 'carrier =': .*Syntax error")],
    ids=["another column", "no predicate"],
)
def test_a_scope_of_anything_but_key_columns_is_refused(any_spark: SparkSession, tmp_path: Path, where: str, said: str):
    asked = spec(any_spark.createDataFrame(rows({"A": 1.0})), tmp_path / "house")
    with pytest.raises(SpecError, match=said):
        group_models.train(asked, where=where, spark=any_spark)
    assert not (tmp_path / "house").exists()


def test_a_carriers_model_is_the_same_in_its_own_run_and_in_a_full_one(spark: SparkSession, tmp_path: Path):
    asked = worlds.spec(worlds.spark_rows(spark, worlds.rows(), 3), tmp_path)
    full, part = (
        group_models.train(asked, where=where, spark=spark, release=False) for where in (None, "carrier = 'UA'")
    )
    alike = ("sha256", "metrics", "baseline_metrics", "rows_used", "holdout_from", "data_fingerprint", "seed")
    whole = shown(asked, run_id=full.run_id)
    parts = shown(asked, run_id=part.run_id)
    assert set(parts) == {("UA", "1"), ("UA", "2")}
    for key, row in parts.items():
        assert [row[name] for name in alike] == [whole[key][name] for name in alike]


@pytest.mark.parametrize("order", [(2, 0, 3, 1), pytest.param((3, 2, 1, 0), marks=pytest.mark.slow)], ids=str)
def test_carriers_retrained_from_one_base_and_published_in_any_order_are_all_served(
    spark: SparkSession, tmp_path: Path, order: tuple[int, ...]
):
    carriers = "ABCD"
    frames = [spark.createDataFrame(rows(dict.fromkeys(carriers, f), stops=1)) for f in (1.0, 10.0, 100.0)]
    base = group_models.train(spec(frames[0], tmp_path), spark=spark, run_id="base")
    asked = spec(frames[1], tmp_path)
    slow = group_models.train(spec(frames[2], tmp_path), spark=spark, run_id="slow", release=False)
    for carrier in carriers[:3]:
        group_models.train(asked, where=f"carrier = '{carrier}'", spark=spark, run_id=f"only-{carrier}", release=False)
    runs = ["only-A", "only-B", "only-C", "slow"]
    assert served_by(asked) == dict.fromkeys(carriers, base.run_id)
    for i in order:
        group_models.release(asked, run_id=runs[i])
    # The slow run started before the carriers' own, so it decides D alone, whenever it is published.
    assert served_by(asked) == {"A": "only-A", "B": "only-B", "C": "only-C", "D": slow.run_id}
    assert answers(asked, *carriers) == pytest.approx([21.0, 21.0, 21.0, 201.0])
    assert answers(asked, *carriers, as_of=group_models.list_releases(asked)[0].release_id) == pytest.approx([3.0] * 4)


def test_a_rollback_serves_what_served_and_the_challenger_is_apart(connect_spark: SparkSession, tmp_path: Path):
    first, second = (spec(connect_spark.createDataFrame(rows({"A": f}, stops=1)), tmp_path) for f in (1.0, 10.0))
    group_models.train(first, spark=connect_spark, run_id="one")
    group_models.train(second, spark=connect_spark, run_id="two", release=False)
    group_models.release(second, run_id="two", alias="challenger")
    assert answers(second, "A") == pytest.approx([3.0])
    assert answers(second, "A", alias="challenger") == pytest.approx([21.0])
    group_models.release(second, run_id="two")
    assert answers(second, "A") == pytest.approx([21.0])
    done = group_models.release(second, "rollback")
    assert isinstance(done, Release)
    assert answers(second, "A") == pytest.approx([3.0])
    assert [r.action for r in group_models.list_releases(second)] == ["publish"] * 3 + ["rollback"]


def test_a_finished_run_is_told_again_and_nothing_is_trained(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = spec(spark.createDataFrame(rows({"A": 1.0})), tmp_path)
    run = group_models.train(asked, spark=spark, run_id="night")
    files = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("group_models.adapters.spark_train.train_wave", forbidden)
    again = group_models.train(asked, spark=spark, run_id="night")
    assert (again.counts, again.run_id, again.is_repeated, run.is_repeated) == (run.counts, "night", True, False)
    assert again.release_id == run.release_id is not None
    assert sorted(tmp_path.rglob("*")) == files
    assert "it was finished before" in again._repr_html_()


def forbidden(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a wave was trained again")


def test_a_run_id_of_another_scope_or_spec_is_refused(spark: SparkSession, tmp_path: Path):
    frame = spark.createDataFrame(rows({"A": 1.0}))
    group_models.train(spec(frame, tmp_path), spark=spark, run_id="night")
    with pytest.raises(StateError, match="'night' was used for the scope all keys, now it is carrier = 'A'"):
        group_models.train(spec(frame, tmp_path), where="carrier = 'A'", spark=spark, run_id="night")
    changed = spec(frame, tmp_path, estimator="median", seed=8)
    with pytest.raises(StateError, match=r"'night' was used by another spec \(estimator\.name .*seed was 7, is 8\)"):
        group_models.train(changed, spark=spark, run_id="night")
    with pytest.raises(SpecError, match="run id '1night': a run id has letters"):
        group_models.train(spec(frame, tmp_path), spark=spark, run_id="1night")
    assert group_models.list_releases(spec(frame, tmp_path))[0].run_id == "night"


def two_waves(source: SparkFrame, warehouse: Path) -> dict[str, Any]:
    """Return a spec whose two keys are trained in two waves: see `ObjectFamily.predicted_seconds`."""
    return spec(source, warehouse, compute={"slots": 1, "wave_s": 0.02})


# Appends of a run of two waves, in order.
APPENDS = (RUN, RUN, PLAN, STORE, STORE, MANIFEST, RELEASE, RUN)


@pytest.fixture(scope="module")
def _once() -> list[Any]:
    return []


@pytest.fixture
def undisturbed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _once: list[Any]) -> Any:
    """What a run of two waves comes to when nothing happens to it."""
    if not _once:
        tables = MemoryTables()
        with monkeypatch.context() as patched:
            patched.setattr(targets, "tables_of", lambda *_: tables)
            group_models.train(two_waves(spark.createDataFrame(rows({"A": 1.0})), tmp_path), spark=spark)
        assert tables.appends == len(APPENDS)
        _once.append(outcome(tables))
    return _once[0]


def outcome(tables: Any) -> list[dict[str, Any]]:
    """Return what must not differ between two runs of the same spec."""
    alike = ["key_id", "status", "sha256", "unit", "wave", "rows_used", "seed", "metrics", "data_fingerprint"]
    return tables.read(MANIFEST).sort_by("key_id").select(alike).to_pylist()


@pytest.mark.parametrize(
    ("append", "fault"),
    [
        (3, "write_then_raise"),
        (4, "write_then_raise"),
        (5, "raise"),
        (6, "raise"),
        (7, "raise"),
        (7, "write_then_raise"),
        (8, "raise"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value}-{APPENDS[value - 1].name}",
)
def test_a_run_that_died_is_completed_by_a_retry_with_the_same_result(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Any, append: int, fault: Fault
):
    source = spark.createDataFrame(rows({"A": 1.0}))
    tables = MemoryTables(fail_on={append: fault})
    monkeypatch.setattr(targets, "tables_of", lambda *_: tables)
    asked = two_waves(source, tmp_path)
    with pytest.raises(StateError, match=f"append {append} was told to"):
        group_models.train(asked, spark=spark, run_id="night")
    stored = tables.read(STORE).select(["key_id", "finished_at"]).to_pylist()
    assert tables.read(RUN)["event"].to_pylist() == ["started", "planned"]
    run = group_models.train(asked, spark=spark, run_id="night")
    assert (run.counts, run.is_repeated) == ({"trained": 2}, False)
    check_complete(tables, asked)
    assert outcome(tables) == undisturbed
    after = tables.read(STORE).select(["key_id", "finished_at"]).to_pylist()
    assert [row for row in stored if row not in after] == []
    assert list(tmp_path.iterdir()) == []


def check_complete(tables: Any, asked: dict[str, Any]) -> None:
    """A run `night` of two waves is as if nothing had happened to it."""
    assert tables.read(PLAN).num_rows == 2
    assert sorted(tables.read(STORE)["wave"].to_pylist()) == [0, 1]
    assert tables.read(MANIFEST).num_rows == 2
    assert [(r.action, r.run_id) for r in group_models.list_releases(asked)] == [("publish", "night")]
    assert sorted(tables.read(RUN)["event"].to_pylist()) == ["finished", "planned", "started"]
    assert answers(asked, "A") == pytest.approx([3.0])
    manifest = {tuple(dict(row["key"]).values()): row for row in tables.read(MANIFEST).to_pylist()}
    assert {key: row["status"] for key, row in manifest.items()} == {("A", "1"): "trained", ("A", "2"): "trained"}


class DyingTables(PathTables):
    """Folders whose so-many-th append never happens."""

    def __init__(self, root: Path, schema: str, dies_at: int) -> None:
        super().__init__(root, schema)
        self.left = dies_at

    def append(self, table: Table, rows: Any, commit: Commit) -> bool:
        self.left -= 1
        if self.left == 0:
            raise ConnectionError("the driver died")
        return super().append(table, rows, commit)


def test_a_run_that_died_after_a_wave_is_completed_from_its_folders(
    connect_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = two_waves(connect_spark.createDataFrame(rows({"A": 1.0})), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(targets, "tables_of", lambda schema, _: DyingTables(tmp_path, schema, dies_at=5))
        with pytest.raises(ConnectionError, match="the driver died"):
            group_models.train(asked, spark=connect_spark, run_id="night")
    tables = PathTables(tmp_path, "zrl.ml")
    assert tables.read(STORE)["wave"].to_pylist() == [0]
    with pytest.raises(StateError, match="run night has no manifest yet; `train SPEC --run-id night` finishes it"):
        group_models.release(asked, run_id="night")
    said: list[str] = []
    group_models.train(asked, spark=connect_spark, run_id="night", say=said.append)
    assert "run night goes on where it stopped" in said
    check_complete(tables, asked)


def test_all_verbs_work_on_tables_in_memory(any_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tables = MemoryTables()
    monkeypatch.setattr(targets, "tables_of", lambda *_: tables)
    frame = any_spark.createDataFrame(rows({"A": 1.0, "B": 2.0}, stops=1))
    run = group_models.train(spec(frame, tmp_path), spark=any_spark)
    assert served_by(MODEL_SET) == {"A": run.run_id, "B": run.run_id}
    scored = group_models.score(any_spark.createDataFrame(question("A", "B")), MODEL_SET, slots=1).collect()
    assert {row["carrier"]: row["prediction"] for row in scored} == pytest.approx({"A": 3.0, "B": 5.0})
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_gone_keeps_its_model_and_says_so(connect_spark: SparkSession, tmp_path: Path):
    both, alone = (
        connect_spark.createDataFrame(rows(factors, stops=1)) for factors in ({"A": 1.0, "B": 2.0}, {"B": 20.0})
    )
    group_models.train(spec(both, tmp_path), spark=connect_spark, run_id="one")
    second = group_models.train(spec(alone, tmp_path), spark=connect_spark, run_id="two", accept_changes=True)
    assert second.counts == {"trained": 1, "vanished": 1}
    gone = shown(spec(alone, tmp_path))["A", "1"]
    assert (gone["status"], gone["serves"], gone["model_run_id"]) == ("vanished", "previous", "one")
    assert gone["reason"].startswith("no rows in the data; it had a model before")
    assert answers(MODEL_SET, "A", "B", warehouse=str(tmp_path)) == pytest.approx([3.0, 41.0])
    scoped = group_models.train(
        spec(alone, tmp_path), where="carrier = 'B'", spark=connect_spark, run_id="three", release=False
    )
    assert scoped.counts == {"unchanged": 1}


def test_a_source_without_rows_makes_a_run_without_keys(any_spark: SparkSession, tmp_path: Path):
    empty = any_spark.createDataFrame(rows({"A": 1.0})).where("carrier = 'B'")
    assert group_models.plan(spec(empty, tmp_path), spark=any_spark).decisions() == {}
    run = group_models.train(spec(empty, tmp_path), spark=any_spark)
    assert run.counts == {}
    assert shown(spec(empty, tmp_path)) == {}


def poison() -> type:
    """Return an estimator that fails for the carrier with targets below zero; of its own, so that workers get it."""

    class Poison:
        def __init__(self) -> None:
            self.mean = 0.0

        def fit(self, x: Any, y: np.ndarray) -> Poison:
            if y.min() < 0:
                raise ZeroDivisionError("poisoned " * 100)
            self.mean = float(np.mean(x["x"]))
            return self

        def predict(self, x: Any) -> np.ndarray:
            return np.full(len(x), self.mean)

    return Poison


@pytest.fixture
def poisoned() -> Callable[..., dict[str, Any]]:
    def of(source: SparkFrame, warehouse: Path, **limits: Any) -> dict[str, Any]:
        limits = {"min_rows": 10, **limits}
        estimator = {"object": poison(), "version": "1"}
        return spec(source, warehouse, estimator=estimator, limits=limits, compute={"slots": 1})

    return of


def test_a_key_whose_fit_raises_is_a_row_and_costs_no_other_key_its_model(
    any_spark: SparkSession, tmp_path: Path, poisoned: Callable[..., dict[str, Any]]
):
    asked = poisoned(any_spark.createDataFrame(rows({"A": 1.0, "P": -1.0, "Z": 2.0}, stops=1)), tmp_path)
    run = group_models.train(asked, spark=any_spark)
    assert run.counts == {"trained": 2, "failed": 1}
    assert run.release_id is not None
    found = shown(asked)
    assert {row["unit"] for row in found.values()} == {0}
    row = found["P", "1"]
    assert (row["status"], row["serves"], row["model_run_id"], row["sha256"]) == ("failed", "none", None, None)
    assert (row["error_type"], row["error_stage"], row["rows"]) == ("ZeroDivisionError", "fit", ROWS)
    assert row["error_message"].startswith("poisoned poisoned")
    assert len(row["error_message"]) <= 500
    assert "in fit" in row["traceback"]
    assert {found[carrier, "1"]["serves"] for carrier in "AZ"} == {"new"}


def test_a_run_with_too_many_failures_is_trained_and_not_released(
    spark: SparkSession, tmp_path: Path, poisoned: Callable[..., dict[str, Any]]
):
    source = spark.createDataFrame(rows({"A": 1.0, "P": -1.0}, stops=2))
    asked = poisoned(source, tmp_path, max_failed_keys=1)
    run = group_models.train(asked, spark=spark)
    assert run.counts == {"failed": 2, "trained": 2}
    assert run.refusal.startswith("2 of 4 keys failed (2 failed): over max_failed_share 5% and max_failed_keys 1")
    assert (run.release_id, group_models.list_releases(asked)) == (None, [])
    with pytest.raises(StateError, match="--force` does"):
        group_models.release(asked, run_id=run.run_id)
    group_models.release(asked, run_id=run.run_id, force=True)
    assert served_by(asked) == {"A": run.run_id, "P": None}


def test_a_key_that_fails_tonight_keeps_the_model_it_has(
    connect_spark: SparkSession, tmp_path: Path, poisoned: Callable[..., dict[str, Any]]
):
    for run_id, factor in (("one", 2.0), ("two", -2.0)):
        source = connect_spark.createDataFrame(rows({"A": 1.0, "P": factor}, stops=1))
        group_models.train(poisoned(source, tmp_path), spark=connect_spark, run_id=run_id, retrain_all=True)
    found = shown(MODEL_SET, warehouse=str(tmp_path))
    assert [(found[c, "1"]["status"], found[c, "1"]["serves"], found[c, "1"]["model_run_id"]) for c in "AP"] == [
        ("trained", "new", "two"),
        ("failed", "previous", "one"),
    ]


def test_rows_without_a_model_stop_a_scoring_that_asks_for_that(connect_spark: SparkSession, tmp_path: Path):
    asked = spec(connect_spark.createDataFrame(rows({"A": 1.0}, stops=1)), tmp_path)
    group_models.train(asked, spark=connect_spark)
    lacking = question("A", "Q", "Q")
    for frame in (lacking, connect_spark.createDataFrame(lacking)):
        with pytest.raises(DataError, match=r"1 key\(s\) of the input, 2 rows.*carrier=Q, stop=1 \(unseen_key\)"):
            group_models.score(frame, asked, on_missing="raise")
        with pytest.raises(DataError, match=r"feature column.*'x'"):
            group_models.score(frame.drop("x", axis=1) if frame is lacking else frame.drop("x"), asked)
