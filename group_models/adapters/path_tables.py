"""The tables as Parquet folders on one file system: no service, nothing to install.

One append is one folder, `<root>/<catalog>/<schema>/<table>/<model set>/<owner>/<number>`. Its files are
written into a hidden folder of the attempt and become visible by one rename whose target must not exist. So a
reader sees all rows of an append or none, of two writers of one number exactly one wins, and what a killed
writer left behind stays hidden.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa

from group_models.adapters import path_files
from group_models.errors import SpecError, StateError
from group_models.ports import LOG_OWNER, Commit, SparkFrame, SparkSession, Where
from group_models.tables import Table

_ATTEMPT_PREFIX = ".attempt-"
_NUMBER_WIDTH = 12


class PathTables:
    """The tables of one schema (`catalog.schema`) as Parquet folders under a warehouse root.

    The root is made by the first append. Reading one that does not exist gives empty tables and makes nothing.
    Rows of a commit have its model set and, but for logs, its owner as `run_id`: reads go by folder names.

    Raises
    ------
    SpecError
        The root is a URI, or the schema is not two names.
    """

    def __init__(self, root: str | Path, schema: str) -> None:
        self.root = _local_folder(root)
        self.schema = schema
        names = schema.split(".")
        if len(names) != 2:
            raise SpecError([f"schema {schema!r} is not of the form catalog.schema"], where="the warehouse")
        self._folder = self.root.joinpath(*(_folder_name(name) for name in names))

    def describe(self) -> str:
        """Return where the tables are, for people."""
        return f"Parquet folders under {self._folder}"

    def local_paths(self) -> list[str]:
        """Return the folder of the tables."""
        return [str(self.root)]

    def append(self, table: Table, rows: pa.Table | SparkFrame, commit: Commit) -> bool:
        """Append rows unless the commit is there already; return whether these rows went in.

        Raises
        ------
        StateError
            The folder cannot be written (full disk, read-only), or Spark wrote to another machine's disk.
        ValueError
            A column that may not be null holds a null (Arrow rows).
        """
        owner = self._owner_folder(table, commit.model_set, commit.owner)
        target = owner / f"{commit.number:0{_NUMBER_WIDTH}d}"
        with path_files.writing(target):
            if target.exists():
                return False
            owner.mkdir(parents=True, exist_ok=True)
        attempt = owner / f"{_ATTEMPT_PREFIX}{uuid.uuid4().hex}"
        try:
            path_files.write(table, rows, attempt)
            with path_files.writing(target):
                return _publish(attempt, target)
        finally:
            shutil.rmtree(attempt, ignore_errors=True)

    def numbers(self, table: Table, *, model_set: str, owner: str) -> list[int]:
        """Return the numbers that an owner has committed, ascending."""
        return sorted(int(folder.name) for folder in _numbered(self._owner_folder(table, model_set, owner)))

    def read(self, table: Table, *, columns: Sequence[str] | None = None, where: Where | None = None) -> pa.Table:
        """Return rows (the given columns, all by default) in the table's Arrow schema, in no order.

        A column that a file of an older version does not have is null.

        Raises
        ------
        StateError
            A file cannot be read; the message names it.
        """
        names = table.names if columns is None else tuple(columns)
        return path_files.read(table, self._commits(table, where), names, where or {})

    def scan(
        self,
        spark: SparkSession,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> SparkFrame:
        """Return the same rows as a Spark frame, of the commits that are there at the time of this call."""
        names = table.names if columns is None else tuple(columns)
        return path_files.scan(spark, table, self._commits(table, where), names, where or {})

    def _owner_folder(self, table: Table, model_set: str, owner: str) -> Path:
        return self._folder / table.name / _folder_name(model_set) / _folder_name(owner)

    def _commits(self, table: Table, where: Where | None) -> list[Path]:
        """Return the folders of the commits that can hold such rows."""
        wanted = where or {}
        owners = [LOG_OWNER] if table.is_log else wanted.get("run_id")
        try:
            return [
                number
                for model_set in _children(self._folder / table.name, wanted.get("model_set"))
                for owner in _children(model_set, owners)
                for number in _numbered(owner)
            ]
        except OSError as error:
            raise StateError(f"table {table.name} cannot be read: {error}") from error


def _local_folder(root: str | Path) -> Path:
    # A URI taken for a path would quietly become a folder `s3:` in the working directory.
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(root)):
        mistake = f"{str(root)!r} is a URI; embedded tables need a folder that this machine can write"
        raise SpecError([mistake], where="the warehouse")
    return Path(root).expanduser().resolve()


def _folder_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} names no folder: it may not be empty, start with a dot or hold a slash")
    return name


def _children(folder: Path, names: Collection[str | int | None] | None) -> list[Path]:
    """Return the visible folders in a folder: those of these names, or all; none where there is no folder."""
    if names is not None:
        wanted = sorted({str(name) for name in names if name is not None})
        return [folder / name for name in wanted if (folder / name).is_dir()]
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return [folder / name for name in found]


def _numbered(owner: Path) -> list[Path]:
    return [folder for folder in _children(owner, None) if re.fullmatch("[0-9]+", folder.name)]


def _publish(attempt: Path, target: Path) -> bool:
    """Rename the attempt to its number; False where the number was taken first.

    A rename onto a folder that is not empty fails. The target is never made beforehand: onto an empty folder
    every rename succeeds.
    """
    try:
        attempt.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
