"""One key's model as an MLflow pyfunc."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from group_models.artifacts import check_digest, write_model
from group_models.errors import PlatformError
from group_models.frames import ColumnKind, feature_frame


def export_model(row: Mapping[str, Any], directory: Path) -> None:
    """Write a store row as a directory that stock MLflow loads.

    Raises
    ------
    ModelError
        The data is not what the manifest says; nothing is written.
    """
    check_digest(row)
    write_model(directory, row["mlmodel"], row["data"], row["data_file"])


def load_pyfunc(row: Mapping[str, Any]) -> Any:
    """Return the pyfunc of a store row; it takes the raw columns, as `score` does.

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
        return _taking_raw_columns(mlflow.pyfunc.load_model(str(directory)))


def _taking_raw_columns(model: Any) -> Any:
    """Return a pyfunc that brings the features of a pandas frame to its signature's doubles and texts first.

    MLflow (3.17) converts neither booleans nor 64-bit integers to double, and a signature that names those types
    takes no column of them that holds a null.
    """
    from mlflow.pyfunc import PyFuncModel

    kinds = _feature_kinds(model)

    class RawPyFuncModel(PyFuncModel):
        """An MLflow pyfunc that takes the raw columns."""

        def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
            return super().predict(_conformed(data, kinds), params)

    raw = RawPyFuncModel.__new__(RawPyFuncModel)
    vars(raw).update(vars(model))
    return raw


def _feature_kinds(model: Any) -> dict[str, ColumnKind]:
    inputs = model.metadata.get_input_schema().inputs
    return {column.name: "text" if column.type.name == "string" else "numeric" for column in inputs}


def _conformed(data: Any, kinds: Mapping[str, ColumnKind]) -> Any:
    """Return a frame with its features conformed; what it lacks MLflow tells, and what is no frame it judges."""
    there = {name: kind for name, kind in kinds.items() if isinstance(data, pd.DataFrame) and name in data.columns}
    return data.assign(**feature_frame(data, there).set_index(data.index)) if there else data
