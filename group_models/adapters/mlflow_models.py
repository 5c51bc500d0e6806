"""One key's model as an MLflow pyfunc."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from group_models.artifacts import digest, write_model
from group_models.errors import ModelError, PlatformError


def export_model(row: Mapping[str, Any], directory: Path) -> None:
    """Write a store row as a directory that stock MLflow loads.

    Raises
    ------
    ModelError
        The data is not what the manifest says; nothing is written.
    """
    if (found := digest(row["data"])) != row["sha256"]:
        raise ModelError(
            f"the model of key {row['key_id']} of run {row['run_id']} is altered: its SHA-256 is {found}, the manifest "
            f"has {row['sha256']}; it was not loaded. Train the key again, or roll back."
        )
    write_model(directory, row["mlmodel"], row["data"], row["data_file"])


def load_pyfunc(row: Mapping[str, Any]) -> Any:
    """Return the pyfunc of a store row.

    Raises
    ------
    PlatformError
        mlflow is not installed.
    """
    try:
        import mlflow.pyfunc
    except ImportError as e:
        raise PlatformError("load_model needs mlflow; install group-models[mlflow]") from e
    with tempfile.TemporaryDirectory(prefix="group-models-") as folder:
        directory = Path(folder) / "model"
        export_model(row, directory)
        return mlflow.pyfunc.load_model(str(directory))
