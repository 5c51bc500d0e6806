"""What every place for tables promises: the folders, and the fake in memory."""

from __future__ import annotations

import dataclasses
import datetime as dt
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from group_models.adapters import path_commits, path_files
from group_models.adapters.path_tables import PathTables
from group_models.errors import SpecError, StateError
from group_models.fakes import MemoryTables
from group_models.ports import LOG_OWNER, Commit, SparkSession, Tables
from group_models.tables import MANIFEST, RELEASE, RUN, STORE, TABLES, Table

ODD = "odd [a] {b,c} 100% %20 * ? ü 'q' run=3"
MODEL_SET = "c.s.eta"


@pytest.fixture(params=["memory", "paths"])
def tables(request: pytest.FixtureRequest) -> Tables:
    return MemoryTables() if request.param == "memory" else request.getfixturevalue("paths")


@pytest.fixture
def paths(tmp_path: Path) -> PathTables:
    return PathTables(tmp_path / ODD, "c.s")


def moment(year: int, microsecond: int = 678_901) -> dt.datetime:
    return dt.datetime(year, 3, 31, 2, 30, 59, microsecond, dt.UTC)


def commit(number: int = 0, owner: str = "r1", model_set: str = MODEL_SET) -> Commit:
    return Commit(model_set, owner, number)


def runs(*run_ids: str, **values: object) -> pa.Table:
    row = {"model_set": MODEL_SET, "event": "started", "at": moment(2026)} | values
    return RUN.rows({**row, "run_id": run_id} for run_id in run_ids)


def models(*key_ids: str, number: int = 0, run_id: str = "r1", size: int = 8) -> pa.Table:
    row = {"model_set": MODEL_SET, "run_id": run_id, "wave": 0, "part": -1, "format": 1, "status": "trained"}
    return STORE.rows({**row, "number": number, "key_id": k, "data": k.encode() * size} for k in key_ids)


def full_row(table: Table, run_id: str, year: int) -> dict[str, object]:
    """Return a row with a value in every column."""
    values = {
        "string": f"né 'q' \\ \" {year} \u0000x",
        "int": -(2**31),
        "bigint": 2**62 + 1,
        "double": 0.1 + year,
        "timestamp": moment(year),
        "binary": bytes(range(256)),
        "map<string,string>": [("a b", "true"), ("null", None), ("", "")],
        "map<string,double>": [("mae", 0.5), ("r2", float("-inf")), ("none", None)],
        "map<string,bigint>": [("trained", 2**40)],
    }
    row = {column.name: values[column.type] for column in table.columns}
    return row | {"model_set": MODEL_SET, "run_id": run_id}


def bare_row(table: Table, run_id: str) -> dict[str, object]:
    """Return a row with a value only where one must be."""
    full = full_row(table, run_id, 2026)
    return {column.name: full[column.name] if not column.nullable else None for column in table.columns}


def owner_of(table: Table, run_id: str) -> str:
    return LOG_OWNER if table.is_log else run_id


def as_rows(rows: pa.Table) -> list[str]:
    """Return rows in an order of their own, comparable whatever they hold."""
    return sorted(map(str, rows.to_pylist()))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
class TestEveryTable:
    def test_rows_come_back_as_they_were_written(self, tables: Tables, table: Table):
        rows = table.rows([full_row(table, "r1", 2026), full_row(table, "r1", 1600), bare_row(table, "r1")])
        assert tables.append(table, rows, commit(owner=owner_of(table, "r1"))) is True
        found = tables.read(table)
        assert found.schema == table.arrow_schema
        assert as_rows(found) == as_rows(rows)

    def test_a_table_that_was_never_written_is_empty_and_has_its_schema(self, tables: Tables, table: Table):
        found = tables.read(table, where={"model_set": [MODEL_SET]})
        assert found.num_rows == 0
        assert found.schema == table.arrow_schema
        assert tables.numbers(table, model_set=MODEL_SET, owner="r1") == []

    def test_an_empty_append_takes_its_number(self, tables: Tables, table: Table):
        owner = owner_of(table, "r1")
        assert tables.append(table, table.empty(), commit(3, owner)) is True
        assert tables.append(table, table.empty(), commit(3, owner)) is False
        assert tables.numbers(table, model_set=MODEL_SET, owner=owner) == [3]
        assert tables.read(table).num_rows == 0


def test_the_last_and_the_first_moments_of_the_calendar_come_back(tables: Tables):
    times = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), moment(1969, 1), dt.datetime.max.replace(tzinfo=dt.UTC)]
    tables.append(RUN, pa.concat_tables([runs("r1", at=at) for at in times]), commit())
    assert sorted(tables.read(RUN)["at"].to_pylist()) == times


def test_a_number_is_taken_once_and_its_rows_stay(tables: Tables):
    assert tables.append(RUN, runs("r1", rows=1), commit()) is True
    assert tables.append(RUN, runs("r1", rows=2), commit()) is False
    assert tables.read(RUN)["rows"].to_pylist() == [1]


def test_numbers_ascend_and_belong_to_one_owner_of_one_table(tables: Tables):
    for number in (10, 9, 100, 2**40):
        assert tables.append(RUN, runs("r1"), commit(number))
    assert tables.append(RUN, runs("r2"), commit(1, "r2"))
    assert tables.append(STORE, models("k"), commit(5))
    assert tables.numbers(RUN, model_set=MODEL_SET, owner="r1") == [9, 10, 100, 2**40]
    assert tables.numbers(RUN, model_set=MODEL_SET, owner="r2") == [1]
    assert tables.numbers(RUN, model_set="c.s.other", owner="r1") == []


def test_a_null_where_none_may_be_is_refused_and_takes_no_number(tables: Tables):
    rows = runs("r1").drop_columns(["event"])
    with pytest.raises(ValueError, match="column event holds 1 nulls"):
        tables.append(RUN, rows, commit())
    assert tables.append(RUN, runs("r1"), commit()) is True


def test_columns_are_taken_by_name_and_cast(tables: Tables):
    texts = {"event": ["started"], "run_id": ["r1"], "model_set": [MODEL_SET]}
    rows = pa.table({"extra": [1], "at": [moment(2026)], "rows": pa.array([7], pa.int8()), **texts})
    assert tables.append(RUN, rows, commit())
    found = tables.read(RUN, columns=["rows", "at", "scope"])
    assert found.to_pylist() == [{"rows": 7, "at": moment(2026), "scope": None}]
    assert found.schema.types == [pa.int64(), pa.timestamp("us", tz="UTC"), pa.string()]


def test_text_that_looks_like_something_else_stays_text(tables: Tables):
    names = ["r0042", "true", "null", "2026-01-01", "1e5", "0x10"]
    for name in names:
        assert tables.append(RUN, runs(name), commit(owner=name))
    assert sorted(tables.read(RUN)["run_id"].to_pylist()) == sorted(names)
    assert tables.read(RUN, where={"run_id": ["r0042"]})["run_id"].to_pylist() == ["r0042"]


FILTERS = [
    ({}, "abcd"),
    ({"key_id": ["b", "d", "x"]}, "bd"),
    ({"key_id": ["b", "b"], "run_id": ["r1", "r1"]}, "b"),
    ({"run_id": ["r2"]}, "d"),
    ({"run_id": ["r1", "r2", "r3"], "status": ["failed"]}, "bd"),
    ({"reason": [None]}, "ad"),
    ({"reason": [None, "x"]}, "abd"),
    ({"rows_used": [7, None]}, "bd"),
    ({"run_id": [None]}, ""),
    ({"key_id": []}, ""),
    ({"model_set": ["c.s.other"]}, ""),
    ({"model_set": [MODEL_SET], "run_id": {"r1"}, "key_id": ("a",)}, "a"),
]


def fill(tables: Tables) -> None:
    shared = {"model_set": MODEL_SET, "wave": 0, "number": 0, "part": -1, "format": 1, "data": b"model"}
    a = {"key_id": "a", "run_id": "r1", "status": "trained", "reason": None, "rows_used": 5}
    b = {"key_id": "b", "run_id": "r1", "status": "failed", "reason": "x", "rows_used": 7}
    c = {"key_id": "c", "run_id": "r1", "status": "trained", "reason": "y", "rows_used": 8}
    d = {"key_id": "d", "run_id": "r2", "status": "failed", "reason": None, "rows_used": None}
    for number, rows in enumerate([[a], [b, c], [d]]):
        tables.append(STORE, STORE.rows(shared | row for row in rows), commit(number, rows[0]["run_id"]))


@pytest.mark.parametrize(("where", "expected"), FILTERS)
@pytest.mark.parametrize("columns", [["key_id"], None], ids=["without models", "with models"])
def test_rows_are_those_that_match_the_filter(tables: Tables, where, expected, columns):
    fill(tables)
    found = tables.read(STORE, columns=columns, where=where)
    assert "".join(sorted(found["key_id"].to_pylist())) == expected
    assert found.column_names == list(columns or STORE.names)


def test_a_filter_on_a_log_goes_by_its_rows(tables: Tables):
    row = {"model_set": MODEL_SET, "alias": "champion", "action": "publish", "at": moment(2026)}
    for number, run_id in enumerate(["r1", "r2"]):
        rows = RELEASE.rows([{**row, "release_id": f"x{number}", "run_id": run_id}])
        assert tables.append(RELEASE, rows, commit(number, LOG_OWNER))
    assert tables.read(RELEASE, where={"run_id": ["r2"]})["release_id"].to_pylist() == ["x1"]
    assert tables.numbers(RELEASE, model_set=MODEL_SET, owner=LOG_OWNER) == [0, 1]


def test_a_filter_must_be_a_collection(tables: Tables):
    tables.append(RUN, runs("r1"), commit())
    with pytest.raises(TypeError, match="'started'"):
        tables.read(RUN, where={"event": "started"})


@pytest.mark.parametrize("asked", [{"columns": ["nope"]}, {"where": {"nope": ["x"]}}])
def test_a_column_that_the_table_does_not_have_is_an_error(tables: Tables, asked):
    tables.append(RUN, runs("r1"), commit())
    with pytest.raises(KeyError, match="nope"):
        tables.read(RUN, **asked)


def test_model_sets_do_not_see_each_other(tables: Tables):
    tables.append(STORE, models("k"), commit())
    assert tables.append(STORE, models("k"), commit(model_set="c.s.other")) is True
    assert tables.numbers(STORE, model_set="c.s.other", owner="r1") == [0]


def test_of_threads_that_race_for_a_number_exactly_one_wins(tables: Tables):
    won: list[tuple[int, int]] = []
    start = threading.Barrier(6)

    def race(me: int) -> None:
        start.wait()
        won.extend((n, me) for n in range(5) if tables.append(RUN, runs("r1", rows=me), commit(n)))

    threads = [threading.Thread(target=race, args=[me]) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in won) == list(range(5))
    assert sorted(tables.read(RUN)["rows"].to_pylist()) == sorted(me for _, me in won)


# Removing rows


def stored(tables: Tables, **where: Collection[str]) -> list[str]:
    found = tables.read(STORE, columns=["run_id", "key_id"], where=where).to_pylist()
    return sorted(f"{row['run_id']} {row['key_id']}" for row in found)


def fill_runs(tables: Tables) -> None:
    """Runs r1 to r3; r1 has three commits, of which the second has none of the keys that will stay."""
    for number, keys in enumerate(["abc", "bc", "ad"]):
        assert tables.append(STORE, models(*keys, number=number), commit(number))
    for run_id in ("r2", "r3"):
        assert tables.append(STORE, models(*"ab", run_id=run_id), commit(owner=run_id))
    assert tables.append(STORE, models("a", run_id="r4"), commit(owner="r4"))


def test_of_the_owners_named_only_the_rows_of_these_keys_stay(tables: Tables):
    fill_runs(tables)
    tables.keep_only(STORE, {"r1": {"a"}, "r2": [], "r4": ("a", "z")}, model_set=MODEL_SET)
    assert stored(tables) == ["r1 a", "r1 a", "r3 a", "r3 b", "r4 a"]
    assert stored(tables, run_id=["r1"]) == ["r1 a", "r1 a"]
    assert stored(tables, key_id=["b"]) == ["r3 b"]
    row = tables.read(STORE, where={"run_id": ["r1"]}).to_pylist()[0]
    assert row == models("a").to_pylist()[0] | {"number": row["number"]}


def test_of_the_keys_that_stay_only_the_rows_that_a_filter_lets_through_do(tables: Tables):
    tables.append(STORE, models("a", "b"), commit())
    part = models("a", "b").set_column(STORE.names.index("part"), "part", pa.array([0, 1], pa.int32()))
    tables.append(STORE, part, commit(number=1))
    tables.append(STORE, part.slice(0, 1), commit(number=2))
    tables.keep_only(STORE, {"r1": {"a", "b"}}, model_set=MODEL_SET, where={"part": [1, -1]})
    assert sorted(row["part"] for row in tables.read(STORE).to_pylist()) == [-1, -1, 1]
    tables.keep_only(STORE, {"r1": {"a"}}, model_set=MODEL_SET, where={"part": [1, -1]})
    assert [row["part"] for row in tables.read(STORE).to_pylist()] == [-1]
    assert tables.numbers(STORE, model_set=MODEL_SET, owner="r1") == [0, 1, 2]


def test_removing_again_removes_more_and_never_brings_back(tables: Tables):
    fill_runs(tables)
    for keys in ("abc", "ab", "ab", "b", "bc"):
        tables.keep_only(STORE, {"r1": set(keys)}, model_set=MODEL_SET)
    assert stored(tables, run_id=["r1"]) == ["r1 b", "r1 b"]
    tables.keep_only(STORE, {"r1": set()}, model_set=MODEL_SET)
    tables.keep_only(STORE, {"r1": {"b"}}, model_set=MODEL_SET)
    assert stored(tables, run_id=["r1"]) == []


def test_the_numbers_of_removed_rows_stay_taken(tables: Tables):
    fill_runs(tables)
    tables.keep_only(STORE, {"r1": {"a"}, "r2": set()}, model_set=MODEL_SET)
    assert tables.numbers(STORE, model_set=MODEL_SET, owner="r1") == [0, 1, 2]
    assert tables.numbers(STORE, model_set=MODEL_SET, owner="r2") == [0]
    assert [tables.append(STORE, models("z"), commit(number)) for number in range(4)] == [False, False, False, True]
    assert tables.append(STORE, models("z", run_id="r2"), commit(owner="r2")) is False
    assert stored(tables, key_id=["z"]) == ["r1 z"]


def test_rows_are_removed_from_one_table_of_one_model_set(tables: Tables):
    fill_runs(tables)
    tables.append(MANIFEST, MANIFEST.rows([bare_row(MANIFEST, "r1")]), commit())
    other = models("a").set_column(0, "model_set", pa.array(["c.s.other"]))
    tables.append(STORE, other, commit(model_set="c.s.other"))
    tables.keep_only(STORE, {"r1": set(), "never seen": set()}, model_set=MODEL_SET)
    assert stored(tables, model_set=["c.s.other"]) == ["r1 a"]
    assert tables.read(MANIFEST).num_rows == 1


def test_a_reader_meanwhile_sees_each_key_that_stays_exactly_once(tables: Tables):
    keys = [f"{i:02d}" for i in range(64)]
    tables.append(STORE, models(*keys), commit())
    done = threading.Event()

    def remove() -> None:
        # A removal from a Delta table is a statement of seconds.
        for count in range(57, 0, -8 if "Delta" in tables.describe() else -1):
            tables.keep_only(STORE, {"r1": set(keys[:count])}, model_set=MODEL_SET)
        done.set()

    remover = threading.Thread(target=remove)
    remover.start()
    seen = [stored(tables)]
    while not done.is_set():
        seen.append(stored(tables))
    remover.join()
    assert all(rows == [f"r1 {key}" for key in keys[: len(rows)]] for rows in seen)
    sizes = [len(rows) for rows in [*seen, stored(tables)]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


def test_it_says_where_it_is(tables: Tables):
    assert tables.describe()


# Folders alone


def race_in_process(root: str, me: int, wins: multiprocessing.Queue[list[int]]) -> None:
    tables = PathTables(root, "c.s")
    wins.put([number for number in range(25) if tables.append(RUN, runs("r1", rows=me), commit(number))])


def test_of_processes_that_race_for_a_number_exactly_one_wins(paths: PathTables):
    context = multiprocessing.get_context("fork")
    wins: multiprocessing.Queue[list[int]] = context.Queue()
    racers = [context.Process(target=race_in_process, args=(str(paths.root), me, wins)) for me in (1, 2)]
    for racer in racers:
        racer.start()
    won = [number for _ in racers for number in wins.get(timeout=60)]
    for racer in racers:
        racer.join()
    assert sorted(won) == list(range(25))
    assert paths.read(RUN).num_rows == 25


def attempts(paths: PathTables) -> list[Path]:
    return [folder for folder in paths.root.rglob(".*") if folder.is_dir()]


WRITER = """
import os, sys
import pyarrow as pa
from group_models.adapters import path_commits, path_files
from group_models.adapters.path_tables import PathTables
from group_models.ports import Commit
from group_models.tables import STORE
row = {"model_set": "c.s.eta", "run_id": "r1", "wave": 0, "number": 0, "part": -1, "format": 1}
row["status"] = "trained"
rows = STORE.rows({**row, "key_id": str(i), "data": os.urandom(2**20)} for i in range(128))
PathTables(sys.argv[1], "c.s").append(STORE, rows, Commit("c.s.eta", "r1", 0))
"""


def kill_while_writing(root: Path) -> int:
    """Return the exit code of a writer that was killed when the first bytes of its file were there."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root)])
    until = time.monotonic() + 60
    while writer.poll() is None and time.monotonic() < until:
        if any(file.stat().st_size for file in root.rglob("*.parquet")):
            writer.send_signal(signal.SIGKILL)
            break
        time.sleep(0.001)
    return writer.wait(timeout=60)


def test_a_killed_writer_leaves_nothing_that_a_reader_sees(paths: PathTables):
    assert kill_while_writing(paths.root) == -signal.SIGKILL
    assert len(attempts(paths)) == 1
    assert paths.numbers(STORE, model_set=MODEL_SET, owner="r1") == []
    assert paths.read(STORE).num_rows == 0
    assert paths.append(STORE, models("k"), commit()) is True
    assert paths.read(STORE)["key_id"].to_pylist() == ["k"]


def test_the_loser_of_a_race_leaves_no_files(paths: PathTables, monkeypatch: pytest.MonkeyPatch):
    paths.append(RUN, runs("r1", rows=1), commit())
    monkeypatch.setattr(path_commits, "numbers", lambda _: [])
    assert paths.append(RUN, runs("r1", rows=2), commit()) is False
    assert attempts(paths) == []
    assert paths.read(RUN)["rows"].to_pylist() == [1]


def files(paths: PathTables) -> list[str]:
    return sorted(str(file.relative_to(paths.root)).split("c.s.eta/")[1] for file in paths.root.rglob("*.parquet"))


def no_grace(paths: PathTables) -> int:
    return paths.sweep(model_set=MODEL_SET, idle=dt.timedelta(0))


def test_what_is_left_of_a_commit_is_a_new_folder_and_the_old_one_goes_when_nobody_can_read_it(paths: PathTables):
    fill_runs(paths)
    paths.keep_only(STORE, {"r1": {"a"}, "r2": set()}, model_set=MODEL_SET)
    left = ["r1/000000000000.1/part-0.parquet", "r1/000000000002.1/part-0.parquet"]
    others = ["r3/000000000000/part-0.parquet", "r4/000000000000/part-0.parquet"]
    before = [f"r1/00000000000{number}/part-0.parquet" for number in range(3)] + ["r2/000000000000/part-0.parquet"]
    assert files(paths) == sorted([*left, *before, *others])
    assert paths.sweep(model_set=MODEL_SET, idle=dt.timedelta(hours=1)) == 0
    assert files(paths) == sorted([*left, *before, *others])
    assert no_grace(paths) == 4
    assert files(paths) == [*left, *others]
    assert stored(paths, run_id=["r1", "r2"]) == ["r1 a", "r1 a"]
    assert paths.append(STORE, models("z"), commit()) is False


@pytest.mark.parametrize("keys", [{"b"}, set()], ids=["some rows stay", "none stays"])
def test_a_writer_that_was_thought_dead_does_not_bring_removed_rows_back(
    paths: PathTables, monkeypatch: pytest.MonkeyPatch, keys
):
    fill_runs(paths)
    paths.keep_only(STORE, {"r1": keys}, model_set=MODEL_SET)
    no_grace(paths)
    monkeypatch.setattr(path_commits, "numbers", lambda _: [])
    assert paths.append(STORE, models("a", "b"), commit(0)) is False
    assert attempts(paths) == []
    assert stored(paths, run_id=["r1"]) == (["r1 b", "r1 b"] if keys else [])


def test_a_process_killed_while_it_removes_rows_has_lost_and_doubled_nothing(
    paths: PathTables, monkeypatch: pytest.MonkeyPatch
):
    """It ends before each step in turn; what it left is read, and the next one ends its work."""

    class KilledError(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    fill_runs(paths)
    for name, module in (("copy", path_files), ("publish", path_commits), ("empty", path_commits)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(KilledError):
                paths.keep_only(STORE, {"r1": {"a"}}, model_set=MODEL_SET)
        assert stored(paths, run_id=["r1"], key_id=["a"]) == ["r1 a", "r1 a"]
    with monkeypatch.context() as patch:
        real = path_commits.empty
        patch.setattr(path_commits, "empty", lambda folder: killed(real(folder)))
        with pytest.raises(KilledError):
            paths.keep_only(STORE, {"r1": {"a"}}, model_set=MODEL_SET)
    # The commit that is emptied is empty although its folder is still there; the one after it is as it was.
    assert (paths.root / "c/s/group_model_store/c.s.eta/r1/000000000001/part-0.parquet").exists()
    assert stored(paths, run_id=["r1"]) == ["r1 a", "r1 a", "r1 d"]
    paths.keep_only(STORE, {"r1": {"a"}}, model_set=MODEL_SET)
    with monkeypatch.context() as patch:
        patch.setattr(path_commits, "remove", killed)
        with pytest.raises(KilledError):
            no_grace(paths)
    assert stored(paths, run_id=["r1"]) == ["r1 a", "r1 a"]
    no_grace(paths)
    assert stored(paths, run_id=["r1"]) == ["r1 a", "r1 a"]
    assert len(files(paths)) == 5


def test_a_reader_that_has_listed_a_folder_that_goes_reads_again(paths: PathTables, monkeypatch: pytest.MonkeyPatch):
    fill_runs(paths)
    real, changed = path_files.read, []

    def late(table: Table, folders: list[Path], *rest: object) -> pa.Table:
        if not changed:
            changed.append(True)
            monkeypatch.undo()
            paths.keep_only(STORE, {"r1": {"a"}}, model_set=MODEL_SET)
            no_grace(paths)
        return real(table, folders, *rest)

    monkeypatch.setattr(path_files, "read", late)
    assert stored(paths, run_id=["r1"]) == ["r1 a", "r1 a"]
    assert changed


def test_of_two_that_remove_rows_at_once_only_what_both_keep_is_sure_to_stay(paths: PathTables):
    keys = [f"{i:03d}" for i in range(200)]
    for number in range(5):
        paths.append(STORE, models(*keys, number=number), commit(number))
    start = threading.Barrier(2)

    def remove(kept: list[str]) -> None:
        start.wait()
        paths.keep_only(STORE, {"r1": set(kept)}, model_set=MODEL_SET)

    threads = [threading.Thread(target=remove, args=[kept]) for kept in (keys[:150], keys[50:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"r1 {key}" for key in keys[50:150]} <= set(stored(paths))
    assert [row for row, count in Counter(stored(paths)).items() if count > 5] == []
    for kept in (keys[:150], keys[50:]):
        paths.keep_only(STORE, {"r1": set(kept)}, model_set=MODEL_SET)
    assert stored(paths) == sorted(f"r1 {key}" for key in keys[50:150] for _ in range(5))


def test_a_sweep_removes_what_killed_writers_left_and_nothing_that_is_still_written(paths: PathTables):
    fill_runs(paths)
    old, young = (next(paths.root.rglob("r1")) / name for name in (".attempt-old", ".attempt-young"))
    for folder in (old, young):
        (folder / "_temporary").mkdir(parents=True)
        (folder / "_temporary" / "part-0.parquet").write_text("half")
    for path in (old, *old.rglob("*")):
        os.utime(path, (1.0, 1.0))
    before = stored(paths)
    assert paths.sweep(model_set="c.s.other", idle=dt.timedelta(days=2)) == 0
    assert paths.sweep(model_set=MODEL_SET, idle=dt.timedelta(days=2)) == 1
    assert (old.exists(), young.exists()) == (False, True)
    assert stored(paths) == before


def test_large_models_that_stay_are_copied_as_they_are(paths: PathTables):
    keys = [f"{i:02d}" for i in range(40)]
    data = [os.urandom(2**20) for _ in keys]
    rows = models(*keys).set_column(STORE.names.index("data"), "data", pa.array(data, pa.binary()))
    paths.append(STORE, rows, commit())
    paths.keep_only(STORE, {"r1": set(keys[1:])}, model_set=MODEL_SET)
    no_grace(paths)
    found = paths.read(STORE, columns=["key_id", "data"]).sort_by("key_id")
    assert found["data"].to_pylist() == data[1:]
    assert pq.ParquetFile(next(paths.root.rglob("*.parquet"))).num_row_groups > 1


def test_reading_makes_nothing(paths: PathTables):
    paths.read(RUN)
    paths.numbers(RUN, model_set=MODEL_SET, owner="r1")
    assert not paths.root.exists()


def test_folders_are_named_as_documented(paths: PathTables):
    paths.append(RUN, runs("r1"), commit(7))
    assert [str(file.relative_to(paths.root)) for file in paths.root.rglob("*.parquet")] == [
        "c/s/group_model_run/c.s.eta/r1/000000000007/part-0.parquet"
    ]


def test_a_relative_root_stays_where_it_was_when_the_process_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    paths = PathTables("warehouse", "c.s")
    monkeypatch.chdir("/")
    paths.append(RUN, runs("r1"), commit())
    assert (tmp_path / "warehouse" / "c" / "s").is_dir()


@pytest.mark.parametrize("columns", [["key_id"], None], ids=["without models", "with models"])
@pytest.mark.parametrize("where", [None, {"key_id": ["k"]}])
def test_a_file_that_was_cut_off_is_named(paths: PathTables, columns, where):
    paths.append(STORE, models("k"), commit(0))
    paths.append(STORE, models("k", number=1), commit(1))
    file = next(paths.root.rglob("000000000001/*.parquet"))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(StateError, match=r"group_model_store: file .*000000000001/part-0.parquet cannot be read"):
        paths.read(STORE, columns=columns, where=where)


def test_a_file_with_altered_bytes_is_named(paths: PathTables):
    paths.append(STORE, models("k" * 100, size=1000), commit(0))
    file = next(paths.root.rglob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[4:300] = bytes(296)
    file.write_bytes(content)
    with pytest.raises(StateError, match=r"file .*000000000000/part-0.parquet cannot be read"):
        paths.read(STORE)


@pytest.mark.parametrize("table", [RUN, STORE, MANIFEST], ids=lambda table: table.name)
def test_columns_that_an_older_file_does_not_have_are_null(paths: PathTables, table: Table):
    required = tuple(column for column in table.columns if not column.nullable)
    older = dataclasses.replace(table, columns=required)
    paths.append(older, older.rows([bare_row(older, "r1")]), commit(0))
    paths.append(table, table.rows([full_row(table, "r1", 2026)]), commit(1))
    found = paths.read(table)
    assert found.schema == table.arrow_schema
    assert as_rows(found) == as_rows(table.rows([bare_row(table, "r1"), full_row(table, "r1", 2026)]))
    added = table.names[-1]
    assert paths.read(table, where={added: [None]}).num_rows == (1 if table.columns[-1].nullable else 0)


def test_one_model_of_many_row_groups_is_found(paths: PathTables):
    keys = [f"{i:05d}" for i in range(3000)]
    paths.append(STORE, models(*keys, size=5000), commit())
    file = next(paths.root.rglob("*.parquet"))
    assert pq.ParquetFile(file).num_row_groups > 3
    found = paths.read(STORE, where={"key_id": ["02999", "00000"]})
    assert sorted(found["key_id"].to_pylist()) == ["00000", "02999"]
    assert found["data"].to_pylist()[0] == found["key_id"].to_pylist()[0].encode() * 5000


@pytest.mark.parametrize("root", ["s3://bucket/x", "dbfs:/x", "file:///tmp/x", "abfss://a@b/x"])
def test_a_uri_is_no_folder(root: str):
    with pytest.raises(SpecError, match="is a URI"):
        PathTables(root, "c.s")


@pytest.mark.parametrize("schema", ["s", "a.b.c", ""])
def test_a_schema_is_two_names(schema: str, tmp_path: Path):
    with pytest.raises(SpecError, match=r"not of the form catalog\.schema"):
        PathTables(tmp_path, schema)


@pytest.mark.parametrize("owner", ["", "..", ".hidden", "a/b"])
def test_an_owner_must_be_able_to_name_a_folder(paths: PathTables, owner: str):
    with pytest.raises(ValueError, match="names no folder"):
        paths.append(RUN, runs("r1"), commit(owner=owner))


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_root_that_is_a_file_is_refused_before_anything_is_read(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match=r"file is a file; embedded tables need a folder"):
        PathTables(tmp_path / place, "c.s")


def test_a_root_that_becomes_a_file_is_refused_when_written(tmp_path: Path):
    tables = PathTables(tmp_path / "file", "c.s")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StateError, match=r"cannot write .*file/c/s.*Not a directory.*choose another warehouse"):
        tables.append(RUN, runs("r1"), commit())


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small disk of its own; skipped where that is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this user may not mount a disk ({error})")
        return place

    yield mount
    # Lazily: a JVM that failed to write keeps its file open.
    subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def test_a_full_disk_is_said_and_nothing_of_the_append_is_left(counted, mounted):
    paths = PathTables(mounted("size=1m"), "c.s")
    paths.append(RUN, runs("r1"), commit())
    big = models(*(uuid.uuid4().hex for _ in range(50_000)), size=1)
    with pytest.raises(StateError, match=r"the disk is full.*Nothing of this append is visible"):
        paths.append(STORE, big, commit())
    counted.update({"rows refused": big.num_rows, "leftovers": len(attempts(paths))})
    assert attempts(paths) == []
    assert paths.read(STORE).num_rows == 0
    assert paths.append(STORE, models("k"), commit()) is True


def test_a_disk_that_is_read_only_is_said(counted, mounted):
    paths = PathTables(mounted("ro"), "c.s")
    with pytest.raises(StateError, match=r"Read-only file system.*choose another warehouse"):
        paths.append(RUN, runs("r1"), commit())
    counted["appends refused"] += 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_said(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(StateError, match=r"Permission denied.*give the right to write"):
        PathTables(tmp_path, "c.s").append(RUN, runs("r1"), commit())


def test_neither_needs_spark_to_be_imported():
    imports = "import sys, group_models.fakes, group_models.adapters.path_tables"
    code = f"{imports}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Spark


@pytest.mark.parametrize(("where", "expected"), FILTERS)
def test_spark_sees_the_rows_that_match_the_filter(tables: Tables, where, expected, any_spark: SparkSession):
    fill(tables)
    found = tables.scan(any_spark, STORE, columns=["key_id", "data"], where=where)
    assert found.columns == ["key_id", "data"]
    assert "".join(sorted(row.key_id for row in found.collect())) == expected


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_spark_reads_what_arrow_wrote(tables: Tables, table: Table, any_spark: SparkSession):
    rows = table.rows([full_row(table, "r1", 2026), full_row(table, "r1", 1600), bare_row(table, "r1")])
    tables.append(table, rows, commit(owner=owner_of(table, "r1")))
    found = tables.scan(any_spark, table)
    assert found.columns == list(table.names)
    assert as_rows(table.conform(found.toArrow())) == as_rows(rows)


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_arrow_and_spark_read_what_spark_wrote(tables: Tables, any_spark: SparkSession, kind: str):
    rows = MANIFEST.rows([full_row(MANIFEST, "r1", year) for year in (1600, 1969, 2026, 9999)])
    if kind == "TIMESTAMP_MILLIS":
        rows = MANIFEST.rows([full_row(MANIFEST, "r1", 2026) | dict.fromkeys(TIMES, moment(2026, 678_000))])
    frame = any_spark.createDataFrame(rows, MANIFEST.spark_schema()).repartition(2)
    any_spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    try:
        assert tables.append(MANIFEST, frame, commit()) is True
    finally:
        any_spark.conf.unset("spark.sql.parquet.outputTimestampType")
    found = tables.read(MANIFEST)
    assert found.schema == MANIFEST.arrow_schema
    assert as_rows(found) == as_rows(rows)
    assert as_rows(MANIFEST.conform(tables.scan(any_spark, MANIFEST).toArrow())) == as_rows(rows)


TIMES = [column.name for column in MANIFEST.columns if column.type == "timestamp"]


def test_a_session_in_another_time_zone_writes_the_same_moments(tables: Tables, any_spark: SparkSession):
    rows = runs("r1", at=moment(2026))
    any_spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        tables.append(RUN, any_spark.createDataFrame(rows, RUN.spark_schema()), commit())
        scanned = RUN.conform(tables.scan(any_spark, RUN).toArrow())
    finally:
        any_spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert tables.read(RUN)["at"].to_pylist() == scanned["at"].to_pylist() == [moment(2026)]


def test_columns_of_a_spark_frame_are_taken_by_name(tables: Tables, any_spark: SparkSession):
    frame = any_spark.sql(
        f"SELECT 1 AS extra, 7S AS rows, timestamp'2026-03-31 02:30:59.678901Z' AS at, 'started' AS event, "
        f"'r1' AS run_id, map('mae', 0.5BD) AS seconds, '{MODEL_SET}' AS model_set"
    )
    assert tables.append(RUN, frame, commit()) is True
    found = tables.read(RUN)
    assert found.schema == RUN.arrow_schema
    assert found.to_pylist() == runs("r1", rows=7, seconds={"mae": 0.5}).to_pylist()


def test_spark_writes_large_models_in_small_row_groups(paths: PathTables, any_spark: SparkSession):
    keys = [f"{i:02d}" for i in range(16)]
    data = pa.array([os.urandom(2 * 2**20) for _ in keys], pa.binary())
    rows = models(*keys).set_column(STORE.names.index("data"), "data", data)
    paths.append(STORE, any_spark.createDataFrame(rows, STORE.spark_schema()).coalesce(1), commit())
    (file,) = paths.root.rglob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups > 1
    assert paths.read(STORE, where={"key_id": ["15"]})["data"].to_pylist() == [data[15].as_py()]


def test_a_table_that_was_never_written_is_an_empty_frame(tables: Tables, any_spark: SparkSession):
    frame = tables.scan(any_spark, STORE, columns=["run_id", "data", "metrics"], where={"run_id": ["r1"]})
    assert frame.dtypes == [("run_id", "string"), ("data", "binary"), ("metrics", "map<string,double>")]
    assert frame.count() == 0


def test_an_empty_spark_frame_takes_its_number(tables: Tables, any_spark: SparkSession):
    frame = any_spark.createDataFrame([], RUN.spark_schema())
    assert tables.append(RUN, frame, commit()) is True
    assert tables.append(RUN, frame, commit()) is False
    assert tables.read(RUN).num_rows == 0


def test_spark_reads_what_is_left_of_commits(tables: Tables, any_spark: SparkSession):
    fill_runs(tables)
    tables.keep_only(STORE, {"r1": {"a"}, "r2": set()}, model_set=MODEL_SET)
    frame = tables.scan(any_spark, STORE, columns=["run_id", "key_id"])
    assert sorted(f"{row.run_id} {row.key_id}" for row in frame.collect()) == stored(tables)
    assert tables.scan(any_spark, STORE, where={"run_id": ["r2"]}).count() == 0


def test_a_spark_frame_made_before_rows_were_removed_still_reads_all_of_them(tables: Tables, any_spark: SparkSession):
    fill_runs(tables)
    before = stored(tables)
    frame = tables.scan(any_spark, STORE, columns=["run_id", "key_id"])
    tables.keep_only(STORE, {"r1": {"a"}, "r2": set()}, model_set=MODEL_SET)
    tables.sweep(model_set=MODEL_SET, idle=dt.timedelta(days=2))
    assert sorted(f"{row.run_id} {row.key_id}" for row in frame.collect()) == before


def counting(spark: SparkSession, folder: Path):
    """Return a frame of one row that leaves a file in the folder each time that it is evaluated."""
    folder.mkdir(exist_ok=True)
    where = str(folder)

    def leave_a_trace(batches):
        for batch in batches:
            (Path(where) / uuid.uuid4().hex).touch()
            yield batch

    frame = spark.createDataFrame(runs("r1"), RUN.spark_schema()).coalesce(1)
    return frame.mapInArrow(leave_a_trace, RUN.spark_schema())


def test_a_spark_frame_is_evaluated_exactly_once(tables: Tables, any_spark: SparkSession, tmp_path: Path):
    frame = counting(any_spark, tmp_path / "traces")
    assert tables.append(RUN, frame, commit()) is True
    assert tables.read(RUN).num_rows == tables.scan(any_spark, RUN).count() == 1
    assert len(list((tmp_path / "traces").iterdir())) == 1


def test_a_spark_frame_of_a_taken_number_is_not_evaluated(tables: Tables, any_spark: SparkSession, tmp_path: Path):
    tables.append(RUN, runs("r1"), commit())
    assert tables.append(RUN, counting(any_spark, tmp_path / "traces"), commit()) is False
    assert list((tmp_path / "traces").iterdir()) == []


def test_a_spark_frame_that_fails_half_way_leaves_nothing(tables: Tables, any_spark: SparkSession):
    frame = any_spark.range(0, 4000, 1, 4).selectExpr(
        f"'{MODEL_SET}' AS model_set",
        "'r1' AS run_id",
        "cast(id / (3500 - id) as string) AS event",
        "now() AS at",
    )
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        tables.append(RUN, frame, commit())
    assert tables.numbers(RUN, model_set=MODEL_SET, owner="r1") == []
    assert tables.read(RUN).num_rows == tables.scan(any_spark, RUN).count() == 0
    assert not isinstance(tables, PathTables) or attempts(tables) == []


def test_a_disk_that_fills_up_under_spark_is_said(mounted, any_spark: SparkSession):
    paths = PathTables(mounted("size=1m"), "c.s")
    frame = any_spark.range(50_000).selectExpr(
        f"'{MODEL_SET}' AS model_set",
        "'r1' AS run_id",
        "sha2(cast(id as string), 512) AS event",
        "now() AS at",
    )
    with pytest.raises(StateError, match="the disk is full"):
        paths.append(RUN, frame, commit())
    assert attempts(paths) == []
    assert paths.read(RUN).num_rows == 0


def test_a_spark_that_writes_to_another_disk_is_found_out(paths: PathTables):
    class Elsewhere:
        """A frame whose session has another file system."""

        columns = ("model_set",)

        def __getattr__(self, name: str):
            return self if name == "write" else lambda *_, **__: self

    with pytest.raises(StateError, match="nothing arrived"):
        paths.append(RUN, Elsewhere(), commit())
    assert paths.numbers(RUN, model_set=MODEL_SET, owner="r1") == []


def test_hidden_attempts_are_hidden_from_spark_as_well(paths: PathTables, any_spark: SparkSession):
    paths.append(RUN, runs("r1"), commit())
    taken = next(paths.root.rglob("000000000000"))
    subprocess.run(["cp", "-r", str(taken), str(taken.with_name(".attempt-of-a-killed-writer"))], check=True)
    assert paths.scan(any_spark, RUN).count() == paths.read(RUN).num_rows == 1


def test_more_commits_than_spark_lists_on_the_driver_are_read(paths: PathTables, any_spark: SparkSession):
    for number in range(40):
        paths.append(RUN, runs("r1", rows=number), commit(number))
    found = paths.scan(any_spark, RUN, columns=["rows"]).collect()
    assert sorted(row.rows for row in found) == list(range(40))


def test_rows_of_an_older_file_have_nulls_in_spark_as_well(paths: PathTables, any_spark: SparkSession):
    older = dataclasses.replace(RUN, columns=tuple(column for column in RUN.columns if not column.nullable))
    paths.append(older, older.rows([bare_row(older, "r1")]), commit(0))
    paths.append(RUN, runs("r1", counts={"trained": 1}), commit(1))
    found = paths.scan(any_spark, RUN, columns=["counts"]).collect()
    assert sorted((row.counts for row in found), key=str) == [None, {"trained": 1}]
