"""Runs at the same time, reruns, rollbacks, pins and cleans, and how many files they leave."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from group_models import api, releasing
from group_models.errors import StateError
from group_models.ports import SparkSession
from group_models.tables import MANIFEST, PLAN, RUN, STORE
from tests.cases.worlds import by_key, spec_of, tables_of

SCHEMA = "carrier string, x double, y double"


def carriers(spark: SparkSession, names: Sequence[Any], value: float) -> Any:
    """Return three rows for each carrier, whose median is the value."""
    return spark.createDataFrame([(name, float(i), value + i - 1) for name in names for i in range(3)], SCHEMA)


def letters(count: int) -> list[str]:
    return [chr(ord("A") + i) for i in range(count)]


def at_once(*tasks: Callable[[], Any]) -> list[Any]:
    """Run tasks in threads that start together; what one raises is raised."""
    start, results = threading.Barrier(len(tasks)), [None] * len(tasks)

    def run(place: int) -> None:
        start.wait()
        try:
            results[place] = tasks[place]()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            results[place] = error

    threads = [threading.Thread(target=run, args=[place]) for place in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def starts(spec: dict[str, Any]) -> dict[str, Any]:
    return {row["run_id"]: row["at"] for row in tables_of(spec).read(RUN).to_pylist() if row["event"] == "started"}


def rows_of(spec: dict[str, Any], table: Any) -> Counter[tuple[str, str]]:
    """Return how often each key of a run stands in a table."""
    rows = tables_of(spec).read(table, columns=["run_id", "key_id"]).to_pylist()
    return Counter((row["run_id"], row["key_id"]) for row in rows)


def served(spec: dict[str, Any]) -> dict[Any, str]:
    return {key: row["model_run_id"] for key, row in by_key(api.show(spec)).items()}


def check_complete(spec: dict[str, Any], keys: dict[str, int]) -> None:
    """Each of these runs has finished, and has so many keys, each once in plan, store and manifest."""
    events = Counter((row["run_id"], row["event"]) for row in tables_of(spec).read(RUN).to_pylist())
    # Of two attempts at once both may plan.
    assert set(events) == {(run_id, event) for run_id in keys for event in ("started", "planned", "finished")}
    assert {events[run_id, event] for run_id in keys for event in ("started", "finished")} == {1}
    for table in (PLAN, STORE, MANIFEST):
        counts = rows_of(spec, table)
        assert set(counts.values()) == {1}
        assert Counter(run_id for run_id, _ in counts) == keys


def retrain(*given: Any, **options: Any) -> Any:
    """Train also keys that did not change, and on a source that lost some: these runs are about what is served."""
    return api.train(*given, retrain_all=True, accept_changes=True, **options)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("spark", 4),
        pytest.param("connect_spark", 4, marks=[pytest.mark.slow, pytest.mark.connect]),
        pytest.param("spark", 16, marks=pytest.mark.slow),
        pytest.param("connect_spark", 16, marks=[pytest.mark.slow, pytest.mark.connect]),
    ],
)
def test_h5_runs_of_one_carrier_each_at_once_are_all_complete_and_all_served(kind, request, tmp_path, count):
    any_spark = request.getfixturevalue(kind)
    names = letters(count)
    frame = carriers(any_spark, [*names, "other"], 1.0)
    spec = spec_of(frame, tmp_path)
    retrain(spec, spark=any_spark, run_id="base")
    tasks = [
        lambda name=name: retrain(spec, where=f"carrier = '{name}'", spark=any_spark, run_id=f"only-{name}")
        for name in names
    ]
    runs = at_once(*tasks)
    assert [run.refusal for run in runs] == [None] * count
    check_complete(spec, {"base": count + 1, **{f"only-{name}": 1 for name in names}})
    assert served(spec) == {"other": "base", **{name: f"only-{name}" for name in names}}
    log = releasing.list_releases(spec)
    assert sorted(row.run_id for row in log) == sorted(["base", *(f"only-{name}" for name in names)])
    assert len({row.at for row in log}) == len(log)


def test_h5_of_a_full_run_beside_a_run_of_one_carrier_each_key_is_served_by_the_later_start(spark, tmp_path):
    spec = spec_of(carriers(spark, "ABC", 1.0), tmp_path)
    retrain(spec, spark=spark, run_id="base")
    at_once(
        lambda: retrain(spec, spark=spark, run_id="full"),
        lambda: retrain(spec, where="carrier = 'A'", spark=spark, run_id="part"),
    )
    check_complete(spec, {"base": 3, "full": 3, "part": 1})
    at = starts(spec)
    assert served(spec) == {"A": max(("full", "part"), key=at.__getitem__), "B": "full", "C": "full"}


def test_h5_of_two_runs_of_the_same_keys_at_once_the_later_start_serves_all_of_them(spark, tmp_path):
    spec = spec_of(carriers(spark, "ABC", 1.0), tmp_path)
    tasks = [lambda run_id=run_id: retrain(spec, spark=spark, run_id=run_id) for run_id in ("one", "two")]
    runs = at_once(*tasks)
    check_complete(spec, {"one": 3, "two": 3})
    later = max(starts(spec), key=starts(spec).__getitem__)
    # The earlier one is published before the later one, or refused after it as it would change nothing.
    refused = [run.run_id for run in runs if run.refusal]
    assert later not in refused
    assert served(spec) == dict.fromkeys("ABC", later)


def test_h5_two_attempts_of_one_run_at_once_end_as_one(spark, tmp_path):
    spec = spec_of(carriers(spark, "ABC", 1.0), tmp_path)
    runs = at_once(*[lambda: retrain(spec, spark=spark, run_id="night") for _ in range(2)])
    assert {(run.run_id, str(run.counts), run.refusal) for run in runs} == {("night", "{'trained': 3}", None)}
    check_complete(spec, {"night": 3})
    assert served(spec) == dict.fromkeys("ABC", "night")


@pytest.mark.slow
def test_h5_two_processes_with_one_run_id_end_as_one(tmp_path):
    rows = pa.table({"carrier": list("AABBCC"), "x": [1.0] * 6, "y": [1.0] * 6})
    pq.write_table(rows, tmp_path / "rows.parquet")
    spec = {**spec_of({"path": str(tmp_path / "rows.parquet")}, tmp_path)}
    file = Path(tmp_path / "spec.yaml")
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    command = [sys.executable, "-m", "group_models", "train", str(file), "--run-id", "night"]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    check_complete(spec, {"night": 3})
    assert served(spec) == dict.fromkeys("ABC", "night")


LOOK_ALIKES = [None, "null", "None", "", " ", "a", "A", "á"]


def test_h6_keys_that_look_alike_are_trained_once_each_however_often_a_run_is_repeated(spark, tmp_path):
    """Nulls, empty text and keys that differ by case or an accent are never matched twice or not at all."""
    spec = spec_of(carriers(spark, LOOK_ALIKES, 1.0), tmp_path)
    for night in ("one", "two", "three"):
        retrain(spec, spark=spark, run_id=night)
        retrain(spec, spark=spark, run_id=night)
        assert served(spec) == dict.fromkeys(LOOK_ALIKES, night)
    check_complete(spec, dict.fromkeys(["one", "two", "three"], len(LOOK_ALIKES)))


def test_h9_a_key_that_was_pinned_back_stays_through_nights_and_a_clean_until_it_is_unpinned(spark, tmp_path):
    specs = {night: spec_of(carriers(spark, "AB", value), tmp_path) for night, value in (("n1", 1.0), ("n2", 2.0))}
    specs |= {night: spec_of(carriers(spark, "B", value), tmp_path) for night, value in (("n3", 3.0), ("n4", 4.0))}
    question = carriers(spark, "AB", 0.0)

    def answers() -> dict[str, float]:
        return {row["carrier"]: row["prediction"] for row in api.score(question, specs["n1"]).collect()}

    for night in ("n1", "n2"):
        retrain(specs[night], spark=spark, run_id=night)
    assert answers() == {"A": 2.0, "B": 2.0}
    releasing.pin(specs["n1"], "carrier=A", run_id="n1", note="n2 was worse")
    assert answers() == {"A": 1.0, "B": 2.0}
    # The next nights have nothing new of A.
    for night in ("n3", "n4"):
        retrain(specs[night], spark=spark, run_id=night)
    assert answers() == {"A": 1.0, "B": 4.0}
    row = by_key(api.show(specs["n1"]))["A"]
    assert (row["run_id"], row["status"], row["serves"]) == ("n4", "vanished", "previous")
    assert (row["model_run_id"], row["pinned_run_id"]) == ("n1", "n1")
    done = releasing.clean(specs["n1"], keep=1, dry_run=False)
    assert list(done.losses) == ["n1", "n2", "n3"]
    models = {run_id for run_id, _ in rows_of(specs["n1"], STORE)}
    assert models == {"n1", "n2", "n4"}
    assert answers() == {"A": 1.0, "B": 4.0}
    releasing.unpin(specs["n1"], "carrier=A")
    assert answers() == {"A": 2.0, "B": 4.0}
    assert [r.action for r in releasing.list_releases(specs["n1"])].count("pin") == 1


def test_h9_after_a_rollback_the_next_night_trains_but_does_not_flip_it_back(spark, tmp_path):
    specs = [spec_of(carriers(spark, "A", value), tmp_path) for value in (1.0, 2.0, 3.0)]
    for night, spec in enumerate(specs[:2], 1):
        retrain(spec, spark=spark, run_id=f"n{night}")
    releasing.release(specs[0], "rollback", note="n2 was worse")
    run = retrain(specs[2], spark=spark, run_id="n3")
    assert (run.counts, run.release_id) == ({"trained": 1}, None)
    assert "brought champion back to release" in run.refusal
    assert "n2 was worse" in run.refusal
    assert served(specs[0]) == {"A": "n1"}
    again = retrain(specs[2], spark=spark, run_id="n3")
    assert (again.is_repeated, again.refusal) == (True, run.refusal)
    releasing.release(specs[2], run_id="n3")
    assert served(specs[0]) == {"A": "n3"}
    later = retrain(specs[2], spark=spark, run_id="n4")
    assert later.release_id is not None
    assert served(specs[0]) == {"A": "n4"}


def test_h4_a_dead_run_that_was_cleaned_is_not_resumed_but_refused_by_name(spark, tmp_path, monkeypatch):
    spec = spec_of(carriers(spark, "A", 1.0), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("group_models.runs.training.train_waves", lambda *_: threading.Lock().release())
        with pytest.raises(RuntimeError):
            retrain(spec, spark=spark, run_id="dead")
    for night in ("n1", "n2"):
        retrain(spec, spark=spark, run_id=night)
    assert "dead" in releasing.clean(spec, keep=1).retention.whole
    monkeypatch.setattr("group_models.live.retention.YOUNG", dt.timedelta(0))
    assert list(releasing.clean(spec, keep=1, dry_run=False).losses) == ["dead", "n1"]
    with pytest.raises(StateError, match=r"only what still served is left of run dead since .* cleaned"):
        retrain(spec, spark=spark, run_id="dead")
    assert served(spec) == {"A": "n2"}


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_h12_three_runs_leave_few_files_whatever_the_number_of_keys(spark, tmp_path, count):
    frame = spark.range(count * 2).selectExpr(f"cast(id % {count} as string) carrier", "1.0D x", "1.0D y")
    spec = spec_of(frame, tmp_path)
    for night in ("n1", "n2", "n3"):
        run = retrain(spec, spark=spark, run_id=night)
        assert run.counts == {"trained": count}
    files = Counter(file.relative_to(tmp_path / "warehouse").parts[2] for file in tmp_path.rglob("*.parquet"))
    assert files[STORE.name] <= 3 * 2 * spec["compute"]["slots"]
    assert {name: files[name] for name in files if name != STORE.name} == {
        "group_model_plan": 3, "group_model_manifest": 3, "group_model_release": 3, "group_model_run": 9,
    }  # fmt: skip
