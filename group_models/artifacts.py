"""A fitted model and what is stored of it: the `MLmodel` text and the bytes of one data file.

A stored model is an MLflow pyfunc. Where MLflow has a loader (scikit-learn, xgboost on plain columns) the
text names it and stock MLflow reads the model without this package; else it names this module.

`FORMAT` is kept with every stored model. To change what is written or how it is read:

1. Raise `FORMAT` by one wherever a reader of the present version would misread or refuse the new bytes. What
   an old reader ignores (one more key in the metadata) needs no new number.
2. Keep the reader of every earlier format: `load_model` dispatches on the number, and models of last year are
   scored beside tonight's. A reader is removed only with a major version, after `clean` can have run.
3. Add a stored model of the old format to the tests as a file, with the predictions it must give.
4. Say in the changelog from which version on the new number is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.errors import ModelError, StateError
from group_models.estimators.base import Fitted, Floats, PickledPredictor, Predictor
from group_models.estimators.boosters import BoosterPredictor
from group_models.estimators.bounded import BoundedPredictor, pack_bounded
from group_models.estimators.children import ChildPredictor, PooledPredictor
from group_models.estimators.classes import ClassPredictor, labels_of
from group_models.estimators.ensembles import EnsemblePredictor, pack_parts
from group_models.estimators.linear import LinearForm
from group_models.estimators.transformed import TransformedPredictor
from group_models.evaluation import printable
from group_models.labels import Labels, class_columns
from group_models.mlmodel import environment_files
from group_models.payloads import SUFFIX, pack, unpack

FORMAT = 2
"""Format of what is written; see the module's text before changing it.

1: `model.pkl`, `model.ubj` and `ensemble.zip` as they are. 2: also `linear.bin`, `child.bin` and `pooled.zip`, and any
of them compressed; exported and never stored, `bounded.bin`. 3: also `classes.bin` and `transformed.bin`; only models
of classes and of a transformed target have this number, so that readers of 2 go on with all others.
"""

NEWEST = 3

_FORMATS = (1, 2, NEWEST)

MLMODEL_FILE = "MLmodel"

# What reading altered bytes or a class that is not installed here raises.
_UNREADABLE = (
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)


def serialize(fitted: Fitted) -> tuple[bytes, str]:
    """Return a fitted model as the bytes of its data file, compressed where it pays, and that file's name."""
    return pack(fitted.predictor.dump(), fitted.predictor.data_file)


def digest(data: bytes) -> str:
    """Return the SHA-256 of a data file in hex."""
    return hashlib.sha256(data).hexdigest()


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """A model read back from the store, as scoring uses it: a `Predictor` that answers row by row."""

    predictor: Predictor

    @property
    def native(self) -> Any:
        """The scikit-learn estimator or the xgboost Booster."""
        return self.predictor.native

    @property
    def data_file(self) -> str:
        """The name of the file it was read from."""
        return self.predictor.data_file

    @property
    def labels(self) -> Labels | None:
        """The labels whose probabilities it predicts; None of a model of numbers."""
        return labels_of(self.predictor)

    def dump(self) -> bytes:
        """Return the model as bytes."""
        return self.predictor.dump()

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row of the feature columns, in the rows' order.

        A row that the estimator refuses (an infinite or missing value that it cannot take) gets NaN and does
        not cost the other rows theirs; what a row gets does not depend on the rows beside it.

        Raises
        ------
        DataError
            A feature column is missing.
        ValueError, TypeError
            The estimator fails on rows whose values are all finite and present.
        """
        try:
            return self.predictor.predict(x)
        except (TypeError, ValueError):
            prediction = self._predict_around(x)
            if prediction is None:
                raise
            return prediction

    def _predict_around(self, x: pd.DataFrame) -> Floats | None:
        infinite, overflowing, missing = (_cells(x, is_bad) for is_bad in _BAD)
        # From what the fewest estimators take to what most do: each row loses no more than it must.
        for bad in (infinite, overflowing, infinite | missing, overflowing | missing):
            if not bad.any():
                continue
            try:
                prediction = np.array(self.predictor.predict(_filled(x, bad)))
            except (TypeError, ValueError):
                continue
            prediction[bad.any(axis=1)] = np.nan
            return prediction
        return None


def _is_infinite(column: pd.Series) -> NDArray[np.bool_]:
    return np.isinf(column.to_numpy(dtype=np.float64)) if _is_number(column) else np.zeros(len(column), dtype=bool)


def _is_beyond_float32(column: pd.Series) -> NDArray[np.bool_]:
    if not _is_number(column):
        return np.zeros(len(column), dtype=bool)
    with np.errstate(over="ignore"):
        return np.isinf(column.to_numpy(dtype=np.float64).astype(np.float32))


def _is_missing(column: pd.Series) -> NDArray[np.bool_]:
    return column.isna().to_numpy(dtype=bool)


_BAD = (_is_infinite, _is_beyond_float32, _is_missing)


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column)


def _cells(x: pd.DataFrame, is_bad: Callable[[pd.Series], NDArray[np.bool_]]) -> NDArray[np.bool_]:
    return np.column_stack([is_bad(x[name]) for name in x.columns]) if x.shape[1] else np.zeros((len(x), 0), bool)


def _filled(x: pd.DataFrame, bad: NDArray[np.bool_]) -> pd.DataFrame:
    """Return the frame with harmless values in the bad cells."""
    filled = x.reset_index(drop=True)
    for place, name in enumerate(x.columns):
        harmless = 0.0 if _is_number(x[name]) else ""
        filled[name] = filled[name].mask(bad[:, place], harmless)
    return filled


def load_model(
    data: bytes,
    *,
    format: int,  # noqa: A002  the store's column
    data_file: str,
    sha256: str | None = None,
    what: str = "the model",
    threads: int = 1,
) -> StoredModel:
    """Return a stored model, ready to predict; MLflow is not needed.

    Parameters
    ----------
    data, format, data_file
        As stored.
    sha256
        The digest that the manifest has. It is compared before any byte is interpreted; None for bytes from a
        place where nothing else can write.
    what
        The model as messages name it, with its key and run.
    threads
        Threads that xgboost may predict with.

    Raises
    ------
    ModelError
        The bytes are altered, of a newer format, or need a class that is not installed here.
    """
    if sha256 is not None and (found := digest(data)) != sha256:
        message = f"{what} is altered: its SHA-256 is {found}, the manifest has {sha256}; it was not loaded"
        raise ModelError(f"{message}. Train the key again, or roll back to another run.")
    if format not in _FORMATS:
        raise ModelError(f"{what} has format {format} and this version reads up to {NEWEST}; use a newer group-models")
    if data_file.removesuffix(SUFFIX) not in DATA_FILES:
        raise ModelError(f"{what} has the data file {data_file!r}; this version reads {', '.join(DATA_FILES)}")
    try:
        return StoredModel(_parse(data, data_file, threads))
    except _UNREADABLE as error:
        reason = f"{type(error).__name__}: {printable(str(error).partition(chr(10))[0], 200)}"
        raise ModelError(f"{what} cannot be read ({reason}); is what it was trained with installed here?") from error


_HOLDERS = (
    EnsemblePredictor, ChildPredictor, PooledPredictor, BoundedPredictor, ClassPredictor, TransformedPredictor,
)  # fmt: skip
_ARCHIVES = {kind.data_file: kind for kind in _HOLDERS}
"""Data files that hold others."""

DATA_FILES = (*(p.data_file for p in (LinearForm, PickledPredictor, BoosterPredictor)), *_ARCHIVES)
"""Names of the data files that this version reads, as they are or compressed."""


def _parse(data: bytes, data_file: str, threads: int) -> Predictor:
    if data_file.endswith(SUFFIX):
        return _parse(*unpack(data, data_file), threads)
    if data_file == LinearForm.data_file:
        return LinearForm.parse(data)
    if data_file in _ARCHIVES:
        return _ARCHIVES[data_file].parse(data, lambda part, file: _parse(part, file, threads))
    if data_file == BoosterPredictor.data_file:
        return BoosterPredictor.parse(data, threads=threads)
    return PickledPredictor.parse(data)


def pooled_row(child: Mapping[str, Any], parent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the store row of a child with its parent's model in it: what predicts from the raw columns.

    Raises
    ------
    ModelError
        One of the two is not what the manifest says.
    """
    for row in (child, parent):
        check_digest(row)
    data = pack_parts([(row["data"], row["data_file"]) for row in (parent, child)])
    return {**child, "data": data, "data_file": PooledPredictor.data_file, "sha256": digest(data)}


def is_bounded(mlmodel: str) -> bool:
    """Return whether an `MLmodel` is of a set with intervals: of such a row `bounded_row` makes what is loaded."""
    return f"data: {BoundedPredictor.data_file}\n" in mlmodel


def bounded_row(row: Mapping[str, Any], half_widths: Mapping[str, float | None]) -> dict[str, Any]:
    """Return a store row with the half widths of its intervals in it.

    Raises
    ------
    ModelError
        Its data are not what the manifest says.
    """
    check_digest(row)
    data = pack_bounded(row["data"], row["data_file"], half_widths)
    return {**row, "data": data, "data_file": BoundedPredictor.data_file, "sha256": digest(data)}


def check_digest(row: Mapping[str, Any]) -> None:
    """Refuse a store row whose data are not what the manifest says.

    Raises
    ------
    ModelError
        It names the key and the run.
    """
    if (found := digest(row["data"])) != row["sha256"]:
        raise ModelError(
            f"the model of key {row['key_id']} of run {row['run_id']} is altered: its SHA-256 is {found}, the manifest "
            f"has {row['sha256']}; it was not loaded. Train the key again, or roll back."
        )


def model_files(mlmodel: str, data: bytes, data_file: str) -> dict[str, bytes]:
    """Return the files of a model's directory by name, as MLflow writes them.

    What is stored compactly is written out: a form becomes the pickled scikit-learn pipeline that `MLmodel` names.
    """
    texts = environment_files(mlmodel) | {MLMODEL_FILE: mlmodel}
    data, data_file = unpack(data, data_file)
    if data_file == LinearForm.data_file:
        usual = PickledPredictor(LinearForm.parse(data).native, is_importable=True)
        data, data_file = usual.dump(), usual.data_file
    return {data_file: data} | {name: text.encode() for name, text in texts.items()}


def write_model(directory: pathlib.Path, mlmodel: str, data: bytes, data_file: str) -> None:
    """Write a stored model as the directory that stock MLflow loads.

    Raises
    ------
    StateError
        The directory exists and is not empty, or cannot be written.
    """
    files = model_files(mlmodel, data, data_file)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise StateError(f"{directory} exists and is not an empty directory; name a new one")
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / name).write_bytes(content)
    except OSError as error:
        raise StateError(f"cannot write {directory}: {error.strerror}; name a folder that you may write") from error


@dataclasses.dataclass(frozen=True)
class ClassModel:
    """A model of classes as MLflow loads it: it answers with the columns that scoring gives."""

    stored: StoredModel
    labels: Labels

    def predict(self, x: pd.DataFrame) -> pd.DataFrame:
        """Return `prediction`, the most probable label, and `probabilities` by label, in the rows' order and index."""
        columns = class_columns(self.stored.predict(x), self.labels)
        return pd.DataFrame(columns).set_axis(x.index)


@dataclasses.dataclass(frozen=True)
class BoundedModel:
    """What MLflow calls of a model with intervals."""

    model: StoredModel
    bounded: BoundedPredictor

    def predict(self, x: pd.DataFrame) -> pd.DataFrame:
        """Return `prediction` and its bounds, one row per row."""
        return self.bounded.with_bounds(self.model.predict(x)).set_index(x.index)


def _load_pyfunc(path: str) -> StoredModel | BoundedModel | ClassModel:
    """Return the model in a data file: what MLflow calls for models whose loader is this module."""
    file = pathlib.Path(path)
    model = load_model(file.read_bytes(), format=NEWEST, data_file=file.name, what=f"the model in {file.parent}")
    if isinstance(model.predictor, BoundedPredictor):
        return BoundedModel(model, model.predictor)
    return model if model.labels is None else ClassModel(model, model.labels)
