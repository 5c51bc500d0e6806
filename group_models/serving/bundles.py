"""A live set and its models in one sqlite file: what a router carries. Models are read when a row needs them.

The file has two tables: `about` (name and value: what the keys are and which model serves each) and `model` (one
model a row, as the store has it). `FORMAT` is raised where a reader of the present version would misread a new file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa

from group_models.artifacts import StoredModel
from group_models.errors import ModelError
from group_models.libraries import LoadNotes
from group_models.live.sets import Live
from group_models.serving.direct import Ask, answer_frame, compare_libraries, load_stored, resolve_frame
from group_models.serving.resolving import ScorePlan
from group_models.spec import Scoring

FORMAT = 3
"""2: models that build on those of parents, which are in the file too. 3: intervals, or models of classes and the
labels of runs. A file is written as the lowest that has what it has."""

MODEL_COLUMNS = ("run_id", "key_id", "number", "format", "data_file", "data")
"""What is kept of a store row; its digest is the manifest's, beside the key."""

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB);
CREATE TABLE model (
    run_id TEXT, key_id TEXT, number INTEGER, format INTEGER, data_file TEXT, data BLOB,
    PRIMARY KEY (run_id, key_id, number)
);
"""

MAX_CACHED_BYTES, MAX_CACHED_MODELS = 256 * 2**20, 10_000
"""What a reader holds at most by default: bytes as stored (some models take more in memory), and models."""


def write_bundle(path: Path, live: Live, scoring: Scoring, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a live set and the store rows of its models into a new file."""
    about = {
        "format": json.dumps(3 if live.intervals or live.run_labels else 2 if live.bases() else 1),
        "scoring": scoring.model_dump_json(),
        "live": json.dumps({name: getattr(live, name) for name in _plain_fields(live)}),
        "keys": _packed_keys(live),
    }
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(_TABLES)
        connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        values = ([row[name] for name in MODEL_COLUMNS] for row in rows)
        connection.executemany("INSERT INTO model VALUES (?, ?, ?, ?, ?, ?)", values)


def _plain_fields(live: Live) -> list[str]:
    # An earlier version knows no intervals and no labels.
    left_out = ("keys", *(name for name in ("intervals", "run_labels") if not getattr(live, name)))
    return [field.name for field in dataclasses.fields(Live) if field.name not in left_out]


def _packed_keys(live: Live) -> bytes:
    """Return the keys as an Arrow stream; `key` is `key_json` once more and left out."""
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pandas(live.keys.drop(columns="key"))
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _unpacked_keys(packed: bytes) -> pd.DataFrame:
    keys: pd.DataFrame = pa.ipc.open_stream(packed).read_all().to_pandas()
    return keys.assign(key=[json.loads(text) for text in keys["key_json"]])


class Bundle:
    """The reader of such a file. One thread at a time predicts; the others wait.

    Parameters
    ----------
    max_bytes, max_models
        What is held of the models at most; who was not needed for longest goes first.

    Attributes
    ----------
    reads
        Models read from the file so far.

    Raises
    ------
    ModelError
        The file is of a newer format, or none of ours.
    PlatformError
        Models were trained with other libraries than are installed here, and the spec says `refuse`.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_CACHED_BYTES, max_models: int = MAX_CACHED_MODELS) -> None:
        self._path = path
        self._connections: dict[int, sqlite3.Connection] = {}
        self._lock = threading.Lock()
        about = self._read_about()
        self.live = Live(_unpacked_keys(about["keys"]), **json.loads(about["live"]))
        rules = Scoring.model_validate_json(about["scoring"])
        self._ask = Ask(list(self.live.key_kinds), rules, columns=())
        self._cache = _Cache(max_bytes, max_models)
        self.reads = 0
        counts = self.live.keys["model_run_id"].value_counts()
        compare_libraries({str(run): int(count) for run, count in counts.items()}, self.live, rules)

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the output columns of scoring for each row of a frame, in its order and under its index.

        Raises
        ------
        DataError
            The frame lacks a column, has one of another kind, or has keys without a model and `on_missing` is `raise`.
        """
        with self._lock:
            asked = resolve_frame(frame, self.live, self._ask)
            return answer_frame(asked, self.live, self._ask, self._fetch)

    def _fetch(self, plan: ScorePlan, notes: LoadNotes) -> Iterator[tuple[dict[str, Any], StoredModel | None]]:
        for row in plan.models.to_pylist():
            place = row["run_id"], row["key_id"], row["number"]
            yield row, self._cache.get(place, functools.partial(self._read, row, notes))

    def _read(self, row: Mapping[str, Any], notes: LoadNotes) -> tuple[StoredModel | None, int]:
        """Return a model and its bytes; None where it is missing or cannot be loaded."""
        self.reads += 1
        said = "SELECT format, data_file, data FROM model WHERE run_id = ? AND key_id = ? AND number = ?"
        found = self._connection().execute(said, (row["run_id"], row["key_id"], row["number"])).fetchone()
        if found is None:
            return None, 0
        stored = {**row, **dict(zip(("format", "data_file", "data"), found, strict=True))}
        return load_stored(stored, notes), len(stored["data"] or b"")

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this process: sqlite's must not cross a fork."""
        if os.getpid() not in self._connections:
            uri = f"file:{quote(str(self._path))}?mode=ro&immutable=1"
            self._connections = {os.getpid(): sqlite3.connect(uri, uri=True, check_same_thread=False)}
        return self._connections[os.getpid()]

    def _read_about(self) -> dict[str, Any]:
        try:
            about = dict(self._connection().execute("SELECT name, value FROM about").fetchall())
        except sqlite3.Error as e:
            raise ModelError(f"{self._path} is no router's file of this package ({e}); register the set again") from e
        if (found := json.loads(about["format"])) > FORMAT:
            raise ModelError(
                f"{self._path} has format {found} and this version reads up to {FORMAT}; use a newer group-models"
            )
        return about


class _Cache:
    """Models by place, of bounded number and bytes; the last used is kept in any case."""

    def __init__(self, max_bytes: int, max_models: int) -> None:
        self._max_bytes, self._max_models = max_bytes, max_models
        self._held: OrderedDict[tuple[str, str, int], tuple[StoredModel | None, int]] = OrderedDict()
        self._bytes = 0

    def get(
        self, place: tuple[str, str, int], read: Callable[[], tuple[StoredModel | None, int]]
    ) -> StoredModel | None:
        if place not in self._held:
            self._held[place] = read()
            self._bytes += self._held[place][1]
        self._held.move_to_end(place)
        while len(self._held) > 1 and (len(self._held) > self._max_models or self._bytes > self._max_bytes):
            self._bytes -= self._held.popitem(last=False)[1][1]
        return self._held[place][0]
