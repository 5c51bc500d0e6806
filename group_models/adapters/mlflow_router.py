"""A live set as one MLflow pyfunc: `predict` routes each row to the model of its key, as batch scoring does.

The model's directory has one data file, a `Bundle`; `mlflow.pyfunc.load_model` finds this module as its loader. What
reads it needs this package, pandas and the libraries of the models, and no Spark.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.types.schema import AnyType, ColSpec, DataType, Map, Schema, TensorSpec

from group_models.errors import DataError
from group_models.frames import ColumnKind
from group_models.keys import KeyKind
from group_models.labels import PROBABILITIES, Labels
from group_models.live.sets import Live
from group_models.mlmodel import LABEL_TYPES, requirements
from group_models.serving.bundles import MAX_CACHED_BYTES, MAX_CACHED_MODELS, Bundle
from group_models.serving.resolving import PREDICTION, outputs_of

DATA_FILE = "router.sqlite"

_IN_SERVING = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"
"""Set by MLflow's scoring server (2.11 to 3.17)."""

# MLflow refuses an integer column in which a value is null, and takes no 64-bit integers for doubles: so integer keys
# pass as they are and are checked by us, null or not.
_KEY_TYPES: Mapping[KeyKind, Any] = {
    "string": DataType.string,
    "integer": AnyType(),  # type: ignore[no-untyped-call]
    "boolean": DataType.boolean,
    "date": DataType.datetime,
}
_FEATURE_TYPES: Mapping[ColumnKind, DataType] = {"numeric": DataType.double, "text": DataType.string}
_TEXTS = ("model_level", "model_key", "model_run_id", "model_status", "score_status")


class RoutedModel:
    """What MLflow calls: rows with keys and features in, the output columns of scoring out."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def predict(self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002 - MLflow's signature
        """Return one row of output columns per row, in order.

        Raises
        ------
        MlflowException
            The rows do not fit the models; a server answers with 400 and this message.
        """
        try:
            answered = self.bundle.predict(model_input)
        except DataError as e:
            raise MlflowException(str(e), error_code=BAD_REQUEST) from e
        return _json_ready(answered) if os.environ.get(_IN_SERVING) == "true" else answered


def _json_ready(answered: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with None for NaN, which JSON does not have and MLflow's server would write (seen in 3.17)."""
    ready: pd.DataFrame = answered.astype(object)
    ready[answered.isna()] = None
    return ready


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> RoutedModel:
    """Return the router of a data file; called by MLflow.

    `model_config` may say `max_bytes` and `max_models`, what is held of the models at most.
    """
    config = dict(model_config or {})
    limits = {
        "max_bytes": int(config.get("max_bytes", MAX_CACHED_BYTES)),
        "max_models": int(config.get("max_models", MAX_CACHED_MODELS)),
    }
    return RoutedModel(Bundle(Path(path), **limits))


def save_router(directory: Path, bundle: Path, live: Live, metadata: Mapping[str, Any]) -> None:
    """Write a router's model directory around its data file."""
    with warnings.catch_warnings():
        # There is no example to give: what the rows hold is the user's.
        warnings.filterwarnings("ignore", message=".*input example was not provided.*")
        mlflow.pyfunc.save_model(
            path=str(directory),
            loader_module=__name__,
            data_path=str(bundle),
            signature=router_signature(live),
            pip_requirements=list(_requirements(live)),
            metadata=dict(metadata),
            # Only names that are given here may be given other values where the model is loaded.
            model_config={"max_bytes": MAX_CACHED_BYTES, "max_models": MAX_CACHED_MODELS},
        )


def router_signature(live: Live) -> ModelSignature:
    """Return the columns of a router: keys and features in, all of them required though any may be null."""
    runs = sorted(set(live.keys["model_run_id"].dropna()))
    inputs: list[ColSpec | TensorSpec] = [ColSpec(_KEY_TYPES[kind], name) for name, kind in live.key_kinds.items()]
    inputs += [ColSpec(_FEATURE_TYPES[kind], name) for name, kind in live.features(runs).items()]
    outputs: list[ColSpec | TensorSpec] = [
        ColSpec(_output_type(name, live.labels), name, required=False)
        for name in outputs_of(live.intervals, live.labels)
    ]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))


def _output_type(name: str, labels: Labels | None) -> Any:
    if name == PROBABILITIES:
        return Map(DataType.double)
    if name == PREDICTION and labels is not None:
        return DataType[LABEL_TYPES[labels.kind]]
    return DataType.string if name in _TEXTS else DataType.double


def _requirements(live: Live) -> tuple[str, ...]:
    """Return what reads the models, pinned to what is installed here."""
    named = {library for _, needed in live.run_libraries.values() for library in needed}
    own = requirements("group_models", requirements("sklearn"))
    return tuple(name for name in own if "xgboost" in named or not name.startswith("xgboost"))
