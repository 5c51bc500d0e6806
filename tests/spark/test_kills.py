"""Drivers killed with SIGKILL at every moment: the same run id goes on, and ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import group_models
from group_models import api
from group_models.errors import StateError
from group_models.loading import load_spec
from group_models.tables import MANIFEST, PLAN, RELEASE, RUN, STORE, TABLES
from tests.cases.worlds import by_key

CHILD = Path(__file__).with_name("killed_run.py")
CARRIERS = "ABCDE"
RUN_ID = "r1"

Moment = Callable[[Path], bool]


def spec_of(folder: Path) -> dict[str, Any]:
    """Return a spec of five keys that are a wave each, over rows in a file."""
    rows = folder / "rows.parquet"
    if not rows.exists():
        x = [float(i) for i in range(40)]
        columns = [(carrier, i, place * i + i % 7) for place, carrier in enumerate(CARRIERS) for i in x]
        pq.write_table(pa.table(dict(zip(("carrier", "x", "y"), zip(*columns, strict=True), strict=True))), rows)
    return {
        "model_set": "zrl.ml.eta",
        "source": {"path": str(rows)},
        "keys": ["carrier"],
        "target": "y",
        "features": ["x"],
        "estimator": {"name": "ridge"},
        "holdout": {"by": "hash"},
        "limits": {"min_rows": 1},
        "compute": {"slots": 2, "wave_s": 1e-6},
        "warehouse": str(folder / "warehouse"),
    }


def commits(warehouse: Path, table: str) -> list[Path]:
    """Return the commits of a table that a reader sees."""
    return [path for path in warehouse.glob(f"zrl/ml/{table}/*/*/*") if path.name.isdigit()]


def attempts(warehouse: Path, table: str) -> list[Path]:
    """Return the hidden folders of writers at work."""
    return list(warehouse.glob(f"zrl/ml/{table}/*/*/.attempt-*"))


MOMENTS: dict[str, Moment] = {
    "started": lambda w: bool(commits(w, RUN.name)),
    "planned": lambda w: bool(commits(w, PLAN.name)),
    "in the first wave": lambda w: bool(attempts(w, STORE.name)),
    "between waves": lambda w: len(commits(w, STORE.name)) == 2,
    "in a later wave": lambda w: bool(commits(w, STORE.name)) and bool(attempts(w, STORE.name)),
    "after the last wave": lambda w: len(commits(w, STORE.name)) == len(CARRIERS),
    "after the manifest": lambda w: bool(commits(w, MANIFEST.name)),
    "released": lambda w: bool(commits(w, RELEASE.name)),
}


class Reader(threading.Thread):
    """Reads all tables over and over, and notes whatever is not whole."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._tables = api.open_tables(load_spec(spec))
        self._is_done = threading.Event()
        self.reads = 0
        self.mistakes: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self.join()

    def run(self) -> None:
        while not self._is_done.is_set():
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the mistake that the test asks for
                self.mistakes.append(repr(error))
            self.reads += 1
            time.sleep(0.02)

    def _look(self) -> None:
        count = len(CARRIERS)
        # In the order of writing backwards: what is seen later may only be more.
        releases, manifest, store, plan = (self._tables.read(t).num_rows for t in (RELEASE, MANIFEST, STORE, PLAN))
        if manifest not in {0, count} or plan not in {0, count} or not 0 <= store <= count or releases not in {0, 1}:
            self.mistakes.append(f"{plan} planned, {store} stored, {manifest} in the manifest, {releases} released")
        if (manifest and store < count) or (store and not plan) or (releases and not manifest):
            self.mistakes.append(f"out of order: {plan}, {store}, {manifest}, {releases}")


@contextlib.contextmanager
def driver(spec: dict[str, Any], folder: Path, *more: str, run_id: str = RUN_ID) -> Iterator[subprocess.Popen[str]]:
    """Start a driver in a process group of its own; whatever is left of it is killed at the end."""
    file = folder / "spec.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(CHILD), str(file), run_id, *more],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def wait_for(moment: Moment, warehouse: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a moment has come or the driver has ended."""
    while process.poll() is None and not moment(warehouse):
        time.sleep(0.002)


def killed(
    spec: dict[str, Any], folder: Path, moment: Moment, *more: str, with_jvm: bool, run_id: str = RUN_ID
) -> bool:
    """Start a run and kill its driver at a moment; return whether it was still at work.

    Without its JVM the driver's Python alone is killed: what Spark was doing goes on until it notices, and a Connect
    server (named in `more`) brings the job of its dead client to its end.
    """
    with driver(spec, folder, *more, run_id=run_id) as process:
        wait_for(moment, Path(spec["warehouse"]), process)
        (os.killpg if with_jvm else os.kill)(process.pid, signal.SIGKILL)
        was_at_work = process.wait() == -signal.SIGKILL
        if not with_jvm:
            # The JVM ends when it reads the end of its input; a write of its own may still be on the way.
            time.sleep(0.5)
    return was_at_work


def outcome(spec: dict[str, Any]) -> dict[str, Any]:
    """Return what a run left, without what differs from run to run: times, and the ids of attempts."""
    tables = api.open_tables(load_spec(spec))
    manifest = tables.read(MANIFEST).to_pylist()
    store = tables.read(STORE, columns=["key_id", "part", "sha256"]).to_pylist()
    names = ("key_id", "status", "serves", "rows_used", "holdout_rows", "sha256", "wave", "unit", "seed")
    return {
        "manifest": sorted((*(row[name] for name in names), sorted(dict(row["metrics"]).items())) for row in manifest),
        "store": sorted(tuple(row.values()) for row in store),
        "rows": {table.name: tables.read(table).num_rows for table in TABLES},
    }


@pytest.fixture(scope="module")
def undisturbed(spark, tmp_path_factory) -> dict[str, Any]:
    """What a run leaves that nobody killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    spec = spec_of(folder)
    with pytest.MonkeyPatch.context() as patch:
        # Whichever test comes first: this session is a classic one.
        patch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
        assert group_models.train(spec, run_id=RUN_ID, spark=spark).counts == {"trained": len(CARRIERS)}
    left = outcome(spec)
    assert left["rows"] == {"group_model_plan": 5, "group_model_store": 5, "group_model_manifest": 5,
                            "group_model_run": 3, "group_model_release": 1, "group_model_trials": 0}  # fmt: skip
    assert len(commits(Path(spec["warehouse"]), STORE.name)) == len(CARRIERS)
    return left


def check_goes_on(spark: Any, spec: dict[str, Any], reader: Reader, undisturbed: dict[str, Any]) -> None:
    """Run the same command again, and compare what is left with a run that nobody killed."""
    run = group_models.train(spec, run_id=RUN_ID, spark=spark)
    assert run.counts == {"trained": len(CARRIERS)}
    assert run.release_id is not None
    assert outcome(spec) == undisturbed
    assert reader.mistakes == []
    assert {row["status"] for row in api.show(spec)} == {"trained"}


def test_a_driver_killed_after_its_plan_goes_on_with_the_same_run_id(spark, tmp_path, undisturbed, counted):
    spec = spec_of(tmp_path)
    with Reader(spec) as reader:
        counted["killed at work"] += killed(spec, tmp_path, MOMENTS["planned"], with_jvm=True)
        stored = len(commits(Path(spec["warehouse"]), STORE.name))
        assert stored < len(CARRIERS)
        check_goes_on(spark, spec, reader, undisturbed)
    counted.update({"waves left": len(CARRIERS) - stored, "reads": reader.reads})
    assert counted["killed at work"] == 1
    assert reader.reads > 10


def test_a_client_killed_in_a_wave_goes_on_beside_the_server_that_still_writes_for_the_dead(
    connect_spark, connect_port, tmp_path, undisturbed, counted
):
    spec = spec_of(tmp_path)
    warehouse = Path(spec["warehouse"])
    with Reader(spec) as reader:
        remote = f"sc://127.0.0.1:{connect_port}"
        counted["killed at work"] += killed(spec, tmp_path, MOMENTS["in a later wave"], remote, with_jvm=False)
        assert counted["killed at work"] == 1
        assert len(commits(warehouse, STORE.name)) < len(CARRIERS)
        left = set(attempts(warehouse, STORE.name))
        check_goes_on(connect_spark, spec, reader, undisturbed)
    # What the server finished for the dead client stays hidden; nothing of it was read above.
    assert left <= set(attempts(warehouse, STORE.name))
    counted.update({"leftovers": len(left), "reads": reader.reads})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("with_jvm", "moments"),
    # Where the JVM lives on, it is the job that it was at that matters.
    [(True, list(MOMENTS)), (False, ["in the first wave", "in a later wave", "after the last wave"])],
    ids=["driver and JVM", "driver alone"],
)
def test_a_driver_killed_at_each_moment_goes_on_and_ends_as_if_undisturbed(
    with_jvm, moments, spark, tmp_path, undisturbed, counted
):
    for place, name in enumerate(moments):
        folder = tmp_path / str(place)
        folder.mkdir()
        spec = spec_of(folder)
        with Reader(spec) as reader:
            counted["killed at work"] += killed(spec, folder, MOMENTS[name], with_jvm=with_jvm)
            counted["leftovers"] += len(attempts(Path(spec["warehouse"]), "*"))
            check_goes_on(spark, spec, reader, undisturbed)
        counted.update({"same as undisturbed": 1, "reads": reader.reads})
    assert counted["killed at work"] >= len(moments) - 1


@pytest.mark.slow
def test_a_driver_killed_again_and_again_at_random_ends_as_if_undisturbed(spark, tmp_path, undisturbed, counted):
    chance = np.random.default_rng(20240501)
    for place in range(3):
        folder = tmp_path / str(place)
        folder.mkdir()
        spec = spec_of(folder)
        with Reader(spec) as reader:
            for _ in range(2):
                after = chance.uniform(0.0, 6.0)
                counted["killed at work"] += killed(spec, folder, later(after), with_jvm=chance.random() < 0.5)
                counted["kills"] += 1
            check_goes_on(spark, spec, reader, undisturbed)
        counted.update({"same as undisturbed": 1, "reads": reader.reads})
    assert counted["kills"] == 6


def write_night(folder: Path, nights: dict[str, int], broken: Collection[str] = ()) -> None:
    """Write the rows of keys of so many nights; an infinite feature keeps ridge from being fitted."""
    rows = [
        (key, math.inf if key in broken and not i else float(i), float(i * night))
        for key, night in nights.items()
        for i in range(10)
    ]
    columns = dict(zip(("carrier", "x", "y"), zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table(columns), folder / "rows.parquet")


def trained_after_a_kill(
    spark: Any, spec: dict[str, Any], run_id: str, *, waves: int, counted: Counter[str], failed_only: bool = False
) -> Any:
    """Kill the driver of a run when it has committed so many waves, and return what the run came to that went on."""
    warehouse = Path(spec["warehouse"])

    def stored(of: Path = warehouse) -> int:
        return len(list(of.glob(f"zrl/ml/{STORE.name}/*/{run_id}/[0-9]*")))

    asked = ["--failed-only"] if failed_only else []
    is_half_way = killed(spec, warehouse.parent, lambda of: stored(of) >= waves, *asked, with_jvm=True, run_id=run_id)
    before = stored()
    run = group_models.train(spec, run_id=run_id, failed_only=failed_only, spark=spark)
    counted.update({"killed at work": is_half_way, "waves before": before, "waves after": stored() - before})
    assert is_half_way
    assert waves <= before < stored()
    return run


@pytest.mark.slow
def test_h4_failed_keys_alone_are_tried_again_by_runs_that_were_killed_half_way_and_resumed(spark, tmp_path, counted):
    keys = [f"k{place}" for place in range(10)]
    write_night(tmp_path, dict.fromkeys(keys, 4))
    spec = {**spec_of(tmp_path), "holdout": {"by": "none"}, "limits": {"min_rows": 5, "max_failed_keys": 2}}
    group_models.train({**spec, "compute": {"slots": 2}}, run_id="good", spark=spark)

    write_night(tmp_path, dict.fromkeys(keys, 2), broken={"k3", "k7"})
    run = trained_after_a_kill(spark, spec, "first", waves=5, counted=counted)
    assert run.counts == {"trained": 8, "failed": 2}
    first = by_key(api.show(spec))

    write_night(tmp_path, {**dict.fromkeys(keys, 2), "k3": 3}, broken={"k7"})
    run = trained_after_a_kill(spark, spec, "second", waves=1, counted=counted, failed_only=True)
    assert run.counts == {"trained": 1, "failed": 1}
    second = by_key(api.show(spec, run_id="second"))
    assert {key: (row["status"], row["serves"], row["model_run_id"]) for key, row in second.items()} == {
        "k3": ("trained", "new", "second"),
        "k7": ("failed", "previous", "good"),
    }
    now = by_key(api.show(spec))
    served = {key: row["model_run_id"] for key, row in now.items()}
    assert served == {**dict.fromkeys(keys, "first"), "k3": "second", "k7": "good"}
    untouched = set(keys) - {"k3", "k7"}
    assert {key: now[key]["sha256"] for key in untouched} == {key: first[key]["sha256"] for key in untouched}
    counted["keys untouched"] += len(untouched)
    stored = api.open_tables(load_spec(spec)).read(STORE, columns=["run_id", "key_id"])
    assert stored.num_rows == stored.group_by(["run_id", "key_id"]).aggregate([]).num_rows == 10 + 10 + 2


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small disk of its own; skipped where this user may not mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this user may not mount a disk ({error})")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def fill(place: Path) -> None:
    """Leave no byte of a disk free."""
    with contextlib.suppress(OSError), (place / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True, capture_output=True)


FAULTS = {
    "full": (fill, lambda place: (place / "ballast").unlink(), "the disk is full"),
    "read-only": (
        lambda place: remount(place, "ro"),
        lambda place: remount(place, "rw"),
        "the disk or the folder is read-only",
    ),
}


@pytest.mark.parametrize("fault", ["full", pytest.param("read-only", marks=pytest.mark.slow)])
def test_a_disk_that_fails_between_waves_is_said_and_the_run_goes_on_when_it_is_mended(
    fault, spark, tmp_path, counted, disk, undisturbed
):
    spec = {**spec_of(tmp_path), "warehouse": str(disk / "warehouse")}
    break_it, mend_it, why = FAULTS[fault]

    def say(line: str) -> None:
        if line.startswith("wave 2 of 5 done"):
            break_it(disk)

    with Reader(spec) as reader:
        with pytest.raises(StateError) as raised:
            group_models.train(spec, run_id=RUN_ID, spark=spark, say=say)
        assert str(raised.value).startswith(f"run {RUN_ID}: wave 3 with units 2 to 2 (keys carrier=")
        assert why in str(raised.value)
        assert f"`group-models train SPEC --run-id {RUN_ID}` goes on" in str(raised.value)
        counted["waves before the fault"] += len(commits(disk / "warehouse", STORE.name))
        assert counted["waves before the fault"] == 2
        mend_it(disk)
        check_goes_on(spark, spec, reader, undisturbed)
    counted.update({"waves in all": len(commits(disk / "warehouse", STORE.name)), "reads": reader.reads})


def later(seconds: float) -> Moment:
    """Return the moment so many seconds after the run has started or gone on."""
    since: list[float] = []

    def has_come(warehouse: Path) -> bool:
        if not since and commits(warehouse, RUN.name):
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] > seconds

    return has_come
