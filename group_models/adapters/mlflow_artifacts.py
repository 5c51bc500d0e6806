"""MLflow plugin: `groupmodels:/<model_set>/<run_id>/<key_id>` is a model's directory.

Registered as an entry point of `mlflow.artifact_repository`. `mlflow.pyfunc.load_model` and
`mlflow.sklearn.load_model` take such a URI like any other: the row is read from the store, its digest is
compared, and only then are its files handed out. `GROUP_MODELS_WAREHOUSE` names the warehouse.
"""

from __future__ import annotations

import dataclasses
import pathlib
import posixpath
import tempfile
import urllib.parse
from collections.abc import Mapping
from typing import Any, NoReturn

from mlflow.entities import FileInfo
from mlflow.store.artifact.artifact_repo import ArtifactRepository

from group_models.adapters.places import tables_of
from group_models.artifacts import bounded_row, digest, is_bounded, model_files, pooled_row
from group_models.errors import ModelError, StateError
from group_models.live.sets import read_run
from group_models.live.widths import widths_of
from group_models.ports import Tables
from group_models.tables import MANIFEST, STORE

_COLUMNS = (
    "run_id",
    "key_id",
    "part",
    "number",
    "status",
    "reason",
    "params",
    "mlmodel",
    "data",
    "data_file",
    "sha256",
    "interval",
)
_FORM = "groupmodels:/<model_set>/<run_id>/<key_id>"


@dataclasses.dataclass(frozen=True)
class ModelAddress:
    """Which model a URI names, and which of its files (empty for all)."""

    model_set: str
    run_id: str
    key_id: str
    file: str = ""

    @classmethod
    def parse(cls, uri: str, path: str = "") -> ModelAddress:
        """Return the address of a root URI and a path under it.

        MLflow cuts the last part off a URI and asks for it as a path (3.0 to 3.17), so both are joined first.

        Raises
        ------
        StateError
            They do not name one model.
        """
        joined = posixpath.join(urllib.parse.urlparse(uri).path, path)
        parts = [urllib.parse.unquote(part) for part in joined.split("/") if part]
        if len(parts) not in (3, 4):
            raise StateError(f"{uri} with the path {path!r} names no model; a model is {_FORM}")
        return cls(*parts)

    def __str__(self) -> str:
        return f"the model of key {self.key_id} in run {self.run_id} of {self.model_set}"


def read_files(tables: Tables, address: ModelAddress) -> dict[str, bytes]:
    """Return the files of a stored model by name.

    Raises
    ------
    StateError
        The store has no such run or key, or the key got no model in that run.
    ModelError
        The data are not those that were stored.
    """
    row = _checked_row(tables, address)
    params = dict(row["params"] or ())
    if "parent_run_id" in params:
        above = ModelAddress(address.model_set, params["parent_run_id"], params["parent_key_id"])
        row = pooled_row(row, _checked_row(tables, above))
    if is_bounded(row["mlmodel"]):
        row = bounded_row(row, _half_widths(tables, address, row))
    return model_files(row["mlmodel"], row["data"], row["data_file"])


def _half_widths(tables: Tables, address: ModelAddress, row: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Return the half widths of a model: as the run's manifest has them, or while it is not there its own."""
    if _manifest_digest(tables, address) is None:
        return dict(row["interval"] or ())
    live = read_run(tables, address.model_set, address.run_id)
    return widths_of(live.keys, address.key_id, live.intervals)


def _checked_row(tables: Tables, address: ModelAddress) -> dict[str, Any]:
    """Return the store row of a model, whose data are those that were stored."""
    row = _read_row(tables, address)
    if row["data"] is None:
        reason = f": {row['reason']}" if row["reason"] else ""
        raise StateError(f"{address} does not exist; the key's status in that run is {row['status']}{reason}")
    expected = _manifest_digest(tables, address) or row["sha256"]
    if (found := digest(row["data"])) != expected:
        raise ModelError(f"{address} is altered: its SHA-256 is {found}, the manifest has {expected}")
    return {**row, "sha256": expected}


def _read_row(tables: Tables, address: ModelAddress) -> dict[str, Any]:
    where = {"model_set": [address.model_set], "run_id": [address.run_id], "key_id": [address.key_id]}
    rows = tables.read(STORE, columns=_COLUMNS, where=where).to_pylist()
    whole = [row for row in rows if row["part"] == -1]
    if not whole:
        raise StateError(f"{address} does not exist in {tables.describe()}{_why_unknown(tables, address)}")
    first: dict[str, Any] = min(whole, key=lambda row: row["number"])
    return first


def _manifest_digest(tables: Tables, address: ModelAddress) -> str | None:
    """Return the digest that the manifest has; None while the run is not finished."""
    where = {"model_set": [address.model_set], "run_id": [address.run_id], "key_id": [address.key_id]}
    rows = tables.read(MANIFEST, columns=["sha256"], where=where)
    return rows["sha256"][0].as_py() if rows.num_rows else None


def _why_unknown(tables: Tables, address: ModelAddress) -> str:
    where = {"model_set": [address.model_set], "run_id": [address.run_id]}
    if tables.read(STORE, columns=["part"], where=where).num_rows:
        return "; the run tried no such key"
    return "; it has no such run, the run trained nothing, or `group-models clean` removed it"


class GroupModelsArtifactRepository(ArtifactRepository):
    """A stored model as an MLflow artifact location; read-only."""

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """Return the files of a model, or nothing for one of its files."""
        address = ModelAddress.parse(self.artifact_uri, path or "")
        if address.file:
            return []
        return [
            FileInfo(posixpath.join(path or "", name), is_dir=False, file_size=len(content))
            for name, content in self._files(address).items()
        ]

    def download_artifacts(self, artifact_path: str | None, dst_path: str | None = None) -> str:
        """Write a model's files, or the one asked for, under a local folder and return where.

        Overridden: MLflow's own wraps each error into a list of failed files, in threads of its own.
        """
        address = ModelAddress.parse(self.artifact_uri, artifact_path or "")
        target = pathlib.Path(dst_path or tempfile.mkdtemp()) / (artifact_path or "")
        if address.file:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._download_file(artifact_path or "", str(target))
            return str(target)
        target.mkdir(parents=True, exist_ok=True)
        for name, content in self._files(address).items():
            (target / name).write_bytes(content)
        return str(target)

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        address = ModelAddress.parse(self.artifact_uri, remote_file_path)
        files = self._files(dataclasses.replace(address, file=""))
        if address.file not in files:
            raise StateError(f"{address} has no file {address.file!r}; it has {', '.join(files)}")
        pathlib.Path(local_path).write_bytes(files[address.file])

    def _files(self, address: ModelAddress) -> Mapping[str, bytes]:
        return read_files(tables_of(address.model_set.rpartition(".")[0], default=None), address)

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> NoReturn:  # noqa: ARG002
        """Refuse: models come from training runs only."""
        raise StateError(f"{self.artifact_uri} is read-only; models are written by group-models train")

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> NoReturn:
        """Refuse: models come from training runs only."""
        self.log_artifact(local_dir, artifact_path)

    def delete_artifacts(self, artifact_path: str | None = None) -> NoReturn:  # noqa: ARG002
        """Refuse: models are removed from the tables only."""
        raise StateError(f"{self.artifact_uri} is read-only; models are removed by group-models only")
