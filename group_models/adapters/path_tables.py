"""The tables as Parquet folders on one file system: no service, nothing to install.

One append is one folder, `<root>/<catalog>/<schema>/<table>/<model set>/<owner>/<number>`. Its files are
written into a hidden folder of the attempt and become visible by one rename whose target must not exist. So a
reader sees all rows of an append or none, of two writers of one number exactly one wins, and what a killed
writer left behind stays hidden. Of what `keep_only` does to such a folder see `path_commits`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from group_models.adapters import path_commits, path_files
from group_models.errors import SpecError, StateError
from group_models.ports import LOG_OWNER, Commit, SparkFrame, SparkSession, Where
from group_models.tables import TABLES, Table

T = TypeVar("T")

_TRIES = 20
"""Reads that may meet a `keep_only` before we give up: one is rare."""


class PathTables:
    """The tables of one schema (`catalog.schema`) as Parquet folders under a warehouse root.

    The root is made by the first append. Reading one that does not exist gives empty tables and makes nothing.
    Rows of a commit have its model set and, but for logs, its owner as `run_id`: reads go by folder names.

    Raises
    ------
    SpecError
        The root is a URI or a file, or the schema is not two names.
    """

    def __init__(self, root: str | Path, schema: str) -> None:
        self.root = _local_folder(root)
        self.schema = schema
        names = schema.split(".")
        if len(names) != 2:
            raise SpecError([f"schema {schema!r} is not of the form catalog.schema"], where="the warehouse")
        self._folder = self.root.joinpath(*(_folder_name(name) for name in names))

    def check_writable(self, table: Table) -> None:
        """Refuse nothing: the first append tells, and it comes before anything is trained."""

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
        target = path_commits.commit_folder(owner, commit.number)
        with path_files.writing(target):
            if commit.number in path_commits.numbers(owner):
                return False
            owner.mkdir(parents=True, exist_ok=True)
        return _publish(owner, target, lambda attempt: path_files.write(table, rows, attempt))

    def numbers(self, table: Table, *, model_set: str, owner: str) -> list[int]:
        """Return the numbers that an owner has committed, ascending."""
        return path_commits.numbers(self._owner_folder(table, model_set, owner))

    def read(self, table: Table, *, columns: Sequence[str] | None = None, where: Where | None = None) -> pa.Table:
        """Return rows (the given columns, all by default) in the table's Arrow schema, in no order.

        A column that a file of an older version does not have is null.

        Raises
        ------
        StateError
            A file cannot be read; the message names it.
        """
        names = table.names if columns is None else tuple(columns)
        return self._steady(table, where, lambda folders: path_files.read(table, folders, names, where or {}))

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
        return self._steady(table, where, lambda folders: path_files.scan(spark, table, folders, names, where or {}))

    def keep_only(
        self, table: Table, keys: Mapping[str, Collection[str]], *, model_set: str, where: Where | None = None
    ) -> None:
        """Remove, of the owners named, all rows but those of these keys; the numbers of their commits stay taken.

        Each commit changes at once. The files that it had are there until `sweep`, for jobs that have begun to read
        them.

        Raises
        ------
        StateError
            The folder cannot be written.
        """
        for name, kept in keys.items():
            owner = self._owner_folder(table, model_set, name)
            with path_files.writing(owner):
                for folder in path_commits.current_folders(owner):
                    _keep_of_commit(table, folder, {"key_id": kept, **(where or {})})

    def sweep(self, *, model_set: str, idle: dt.timedelta) -> int:
        """Remove what nobody reads or writes any more: of killed writers, and what `keep_only` has replaced.

        Parameters
        ----------
        idle
            How long nothing must have happened to it.

        Returns
        -------
        int
            How many folders.
        """
        found = [
            folder
            for table in TABLES
            for of_model_set in _children(self._folder / table.name, [model_set])
            for owner in _children(of_model_set, None)
            for folder in path_commits.leftovers(owner, idle_s=idle.total_seconds())
        ]
        for folder in found:
            with path_files.writing(folder):
                path_commits.remove(folder)
        return len(found)

    def _steady(self, table: Table, where: Where | None, read: Callable[[list[Path]], T]) -> T:
        """Read from the folders of the commits; again where one of them went meanwhile."""
        for _ in range(_TRIES):
            folders = self._commits(table, where)
            try:
                result = read(folders)
            except StateError:
                if set(folders) <= set(self._commits(table, where)):
                    raise
                continue
            if set(folders) <= set(self._commits(table, where)):
                return result
        raise StateError(f"table {table.name} changed {_TRIES} times while it was read; try again")

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
                for number in path_commits.current_folders(owner)
            ]
        except OSError as error:
            raise StateError(f"table {table.name} cannot be read: {error}") from error


def _local_folder(root: str | Path) -> Path:
    # A URI taken for a path would quietly become a folder `s3:` in the working directory.
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(root)):
        mistake = f"{str(root)!r} is a URI; embedded tables need a folder that this machine can write"
        raise SpecError([mistake], where="the warehouse")
    folder = Path(root).expanduser().resolve()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        mistake = f"{folder}: {there} is a file; embedded tables need a folder, or a name where one can be made"
        raise SpecError([mistake], where="the warehouse")
    return folder


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


def _publish(owner: Path, target: Path, write: Callable[[Path], None]) -> bool:
    """Write a folder and make it visible; False where its place was taken first."""
    attempt = path_commits.new_attempt(owner)
    try:
        write(attempt)
        with path_files.writing(target):
            return path_commits.publish(attempt, target)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def _keep_of_commit(table: Table, folder: Path, where: Where) -> None:
    """Leave of one commit only these rows."""
    stay, there = (path_files.read(table, [folder], ["key_id"], asked).num_rows for asked in (where, {}))
    if stay == there:
        return
    if not stay:
        path_commits.empty(folder)
        return
    # Where another clean was faster its rows count; what stays beside them is for the next one.
    _publish(folder.parent, path_commits.next_generation(folder), lambda a: path_files.copy(table, folder, a, where))
