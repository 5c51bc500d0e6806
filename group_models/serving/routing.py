"""Predict a mixed frame: each model just before its rows, each model loaded once, statuses per row."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.artifacts import StoredModel, load_model
from group_models.estimators.base import one_thread
from group_models.estimators.linear import LinearForm, LinearForms, Shape, Table, linear_form
from group_models.frames import ColumnKind
from group_models.labels import Labels
from group_models.libraries import LoadNotes
from group_models.serving.children import Segment, predict_children
from group_models.serving.statuses import (
    MODEL_FAILED,
    NO_MODEL,
    SCORED,
    Codes,
    Floats,
    judged,
    no_predictions,
    predict_rows,
)

MODEL_LINES = ("run_ix", "format", "data_file", "sha256", "parent_ix", "is_base")
"""What is told of a model before its data, a line each: one column crosses to Python instead of five."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The feature columns of one run's models and where they are among the frame's feature columns."""

    features: Mapping[str, ColumnKind]
    positions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """One model as its store row has it.

    Attributes
    ----------
    run
        The run's code in `Inputs`.
    label
        Names it in messages.
    parent_ix
        The model that it builds on, `NO_MODEL` for none.
    is_base
        Whether others build on it.
    """

    run: int
    data: bytes
    data_file: str
    format: int
    sha256: str
    label: str
    parent_ix: int = NO_MODEL
    is_base: bool = False

    @classmethod
    def parse(cls, packed: bytes, ix: int) -> ModelRow:
        """Return the model that is packed into one value: a line for each of `MODEL_LINES`, then the data."""
        run, format_, data_file, sha256, parent, is_base, data = packed.split(b"\n", len(MODEL_LINES))
        label = f"model {ix} of run {int(run)}"
        names = data_file.decode(), int(format_), sha256.decode(), label
        return cls(int(run), data, *names, parent_ix=int(parent), is_base=bool(int(is_base)))

    def load(self) -> StoredModel:
        """Return the model ready to predict.

        Raises
        ------
        ModelError
            The bytes are not those of the manifest, or their format is not known.
        """
        return load_model(self.data, format=self.format, data_file=self.data_file, sha256=self.sha256, what=self.label)


@dataclasses.dataclass
class Router:
    """Predict batches that are sorted by model, each model's own row before its data rows.

    It holds one model at a time, and those that others build on, so that its memory is one batch and these.

    Attributes
    ----------
    inputs
        Per run code, the features of the run's models.
    labels
        Where models are of classes, the labels of which each row gets probabilities.
    loads
        Models loaded so far.
    """

    inputs: Mapping[int, Inputs]
    labels: Labels | None = None
    loads: int = 0
    _ix: int = NO_MODEL
    _run: int = 0
    _stored: ModelRow | None = None
    _model: StoredModel | None = None
    _form: LinearForm | None = None
    _is_loaded: bool = False
    _bases: dict[int, ModelRow | StoredModel | None] = dataclasses.field(default_factory=dict)
    _notes: LoadNotes = dataclasses.field(default_factory=LoadNotes)

    def predict(self, batch: pd.DataFrame, features: list[str]) -> tuple[Floats, Codes]:
        """Return prediction and status code per row of a batch, model rows included (NaN and 0 there).

        Of classes a prediction is the probabilities of all labels.

        Parameters
        ----------
        batch
            `model_ix int, model binary` (see `ModelRow.parse`; null on data rows) and the feature columns.
        features
            Names of all feature columns of the batch; `Inputs.positions` point into them.
        """
        prediction = no_predictions(len(batch), self.labels)
        status = np.full(len(batch), SCORED, dtype=np.int32)
        ix, is_data = batch["model_ix"].to_numpy(), data_rows(batch)
        packed = batch["model"].to_numpy()
        blocks = _Blocks(batch, features, self.inputs)
        linear: list[tuple[slice, int, LinearForm]] = []
        children: list[Segment] = []
        edges = np.flatnonzero((np.diff(ix) != 0) | (np.diff(is_data.astype(np.int8)) != 0)) + 1
        for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(batch)], strict=True):
            if not is_data[start]:
                self._take(int(ix[start]), ModelRow.parse(packed[start], int(ix[start])))
            elif ix[start] != self._ix or self._stored is None:
                status[start:end] = SCORED if ix[start] == NO_MODEL else MODEL_FAILED
            elif self._stored.parent_ix != NO_MODEL:
                self._loaded_form()
                children.append(Segment(slice(start, end), self._run, self._stored.parent_ix, self._model))
            elif (form := self._loaded_form()) is not None:
                linear.append((slice(start, end), self._run, form))
            else:
                x = blocks.frame(self._run).iloc[start:end]
                prediction[start:end], status[start:end] = predict_rows(self._model, x, self.labels)
        _predict_linear(linear, blocks, prediction, status)
        for run, parent in dict.fromkeys((each.run, each.parent_ix) for each in children):
            own = [each for each in children if (each.run, each.parent_ix) == (run, parent)]
            predict_children(own, self._base(parent), blocks.frame(run), prediction, status)
        return prediction, status

    def _take(self, ix: int, stored: ModelRow) -> None:
        self._ix, self._run, self._stored = ix, stored.run, stored
        self._model, self._form, self._is_loaded = None, None, False
        if stored.is_base:
            self._bases.setdefault(ix, stored)

    def _base(self, ix: int) -> StoredModel | None:
        """Return a model that others build on; None where it is not there or cannot be loaded."""
        stored = self._bases.get(ix)
        if isinstance(stored, ModelRow):
            stored = self._bases[ix] = _loaded(stored, self._notes)
            self.loads += 1
        return stored

    def _loaded_form(self) -> LinearForm | None:
        """Load the present model, when its first row is there, and return its linear form where it has one."""
        if not self._is_loaded and self._stored is not None:
            self._model, self._is_loaded = _loaded(self._stored, self._notes), True
            self._form = self._linear_form()
            self.loads += 1
        return self._form

    def _linear_form(self) -> LinearForm | None:
        if self._model is None:
            return None
        predictor = self._model.predictor
        form = predictor if isinstance(predictor, LinearForm) else linear_form(predictor)
        return form if form is not None and form.shape.names == tuple(self.inputs[self._run].features) else None


def data_rows(batch: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows of a batch are data and no models."""
    return np.asarray(batch["model"].isna().to_numpy(), dtype=np.bool_)


@dataclasses.dataclass
class _Blocks:
    """The feature columns of one batch as the models of each run take them, made when the first one asks."""

    batch: pd.DataFrame
    features: list[str]
    inputs: Mapping[int, Inputs]
    _frames: dict[int, pd.DataFrame] = dataclasses.field(default_factory=dict)

    def table(self, run: int, shape: Shape) -> Table:
        """Return the features that the forms of a run read."""
        short = dict(zip(self.inputs[run].features, self.columns(run), strict=True))
        return Table.of(self.batch, [short[name] for name in shape.numeric], [short[name] for name in shape.text])

    def columns(self, run: int) -> list[str]:
        """Return the names in the batch of the features of a run's models, in their order."""
        return [self.features[i] for i in self.inputs[run].positions]

    def frame(self, run: int) -> pd.DataFrame:
        """Return the features of a run's models under their own names; numbers only are one block."""
        if run not in self._frames:
            self._frames[run] = _input_frame(self.batch, self.columns(run), self.inputs[run].features)
        return self._frames[run]


def _predict_linear(
    segments: list[tuple[slice, int, LinearForm]], blocks: _Blocks, prediction: Floats, status: Codes
) -> None:
    """Predict the rows of all linear models of a batch at once, in place."""
    for run in dict.fromkeys(run for _, run, _ in segments):
        own = [(rows, form) for rows, of_run, form in segments if of_run == run]
        places = np.concatenate([np.arange(rows.start, rows.stop) for rows, _ in own])
        owner = np.repeat(np.arange(len(own)), [rows.stop - rows.start for rows, _ in own])
        forms = [form for _, form in own]
        table = blocks.table(run, forms[0].shape).take(places)
        prediction[places], status[places] = judged(LinearForms.of(forms, table).predict(table, owner))


def _loaded(stored: ModelRow, notes: LoadNotes) -> StoredModel | None:
    """Return the model, or None where it cannot be loaded: one broken model must not stop the others' rows."""
    known = len(notes.first)
    try:
        with notes.reading(stored.label):
            return stored.load()
    except Exception:  # noqa: BLE001 - whatever a stored model raises, its own rows are `model_failed`
        return None
    finally:
        # A worker cannot reach the driver but by rows: what is new goes to its log.
        for said in notes.sentences()[known:]:
            print(f"group-models: {said}", file=sys.stderr)  # noqa: T201


def _input_frame(batch: pd.DataFrame, columns: list[str], features: Mapping[str, ColumnKind]) -> pd.DataFrame:
    """Return columns of a batch under the names of features; numbers only are one block."""
    if all(kind == "numeric" for kind in features.values()):
        values = np.column_stack([batch[column].to_numpy(np.float64) for column in columns])
        return pd.DataFrame(values, columns=list(features))
    return pd.DataFrame({name: batch[column].to_numpy() for name, column in zip(features, columns, strict=True)})


def predict_stream(
    batches: Iterable[pd.DataFrame],
    inputs: Mapping[int, Inputs],
    features: list[str],
    answer: Callable[[pd.DataFrame, Floats, Codes], pd.DataFrame],
    labels: Labels | None = None,
) -> Iterator[pd.DataFrame]:
    """Predict the batches of one partition and yield one answer per batch; no batches, no answers."""
    router = Router(inputs, labels)
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in batches:
            yield answer(batch, *router.predict(batch, features))
