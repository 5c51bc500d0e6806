"""Models in closed form: what is stored of a linear model, a median or a mean, and how many of them predict at once.

A linear model behind imputation and scaling is a few short vectors. They are stored as numbers, a tenth of a pickled
pipeline, and read in microseconds; `LinearForm.native` is the ordinary scikit-learn pipeline that they stand for.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.errors import DataError
from group_models.estimators.base import IMPUTE, EstimatorSettings, Features, PickledPredictor, Predictor
from group_models.estimators.families import sklearn_family

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

VECTORS = 4
"""Vectors of the numeric features: median, mean, scale and coefficient."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the numbers of a form stand for; the same for all keys of a run without text features.

    Attributes
    ----------
    family, params
        The named family and the spec's parameters.
    names
        All feature columns in order.
    numeric
        Those of numbers that the form reads: none for a median or a mean.
    text
        Of each text column that it reads, the values that have a weight.
    """

    family: str
    params: Mapping[str, Any]
    names: tuple[str, ...]
    numeric: tuple[str, ...]
    text: Mapping[str, tuple[str, ...]]

    @functools.cached_property
    def header(self) -> bytes:
        """The shape as one line of JSON, the first of a data file."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")).encode() + b"\n"

    @functools.cached_property
    def size(self) -> int:
        """Numbers of a form of this shape: the vectors, a weight per text value, the intercept."""
        return VECTORS * len(self.numeric) + sum(map(len, self.text.values())) + 1


@functools.lru_cache(maxsize=256)
def _parse_shape(header: bytes) -> Shape:
    content = json.loads(header)
    text = {name: tuple(values) for name, values in content["text"].items()}
    names, numeric = tuple(content["names"]), tuple(content["numeric"])
    return Shape(content["family"], content["params"], names, numeric, text)


@dataclasses.dataclass(frozen=True, eq=False)
class LinearForm:
    """A model in closed form: one flat vector of `shape.size` numbers."""

    shape: Shape
    values: Floats
    data_file: ClassVar[str] = "linear.bin"

    @property
    def vectors(self) -> Floats:
        """Median, mean, scale and coefficient per numeric feature, shape (4, features)."""
        return self.values[: VECTORS * len(self.shape.numeric)].reshape(VECTORS, -1)

    @property
    def weights(self) -> Floats:
        """The weights of all text values, in the order of the shape."""
        return self.values[VECTORS * len(self.shape.numeric) : -1]

    @property
    def intercept(self) -> float:
        """The prediction where every scaled feature and every weight is 0."""
        return float(self.values[-1])

    @functools.cached_property
    def native(self) -> Any:
        """The scikit-learn estimator that this is the form of."""
        return _pipeline_of(self)

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row; NaN where it would not be finite.

        Raises
        ------
        DataError
            A feature column is missing.
        """
        if missing := [name for name in self.shape.names if name not in x.columns]:
            raise DataError(f"{', '.join(missing)} missing; the model was trained on {', '.join(self.shape.names)}")
        table = Table.of(x, self.shape.numeric, tuple(self.shape.text))
        prediction = LinearForms.of([self], table).predict(table, np.zeros(len(x), dtype=np.int64))
        return np.where(np.isfinite(prediction), prediction, np.nan)

    def dump(self) -> bytes:
        """Return the form as bytes: a line of JSON, then little-endian float64."""
        return self.shape.header + self.values.astype("<f8").tobytes()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Return the form that `dump` wrote; nothing in it is run.

        Raises
        ------
        ValueError
            The bytes are no form.
        """
        end = data.index(b"\n") + 1
        shape, values = _parse_shape(data[:end]), np.frombuffer(data, dtype="<f8", offset=end)
        if len(values) != shape.size:
            raise ValueError(f"a form of {len(values)} numbers; its first line says {shape.size}")
        return cls(shape, values.astype(np.float64, copy=False))

    @classmethod
    def of(cls, native: Any, shape: Shape) -> Self:
        """Return the form of a fitted scikit-learn estimator of the shape's family; its text values are read here."""
        if not shape.numeric and not shape.text:
            return cls(shape, np.array([float(np.ravel(native.constant_)[0])]))
        linear, impute, scale, encoder = _steps(native)
        text = {} if encoder is None else dict(zip(shape.text, map(tuple, encoder.categories_), strict=True))
        width = sum(map(len, text.values()))
        # A column that was null in all rows has no median: the imputer fills it with 0 (scikit-learn 1.5 to 1.7).
        numeric = [np.nan_to_num(impute.statistics_), scale.mean_, scale.scale_] if shape.numeric else []
        values = [*numeric, linear.coef_[width:], linear.coef_[:width], [linear.intercept_]]
        return cls(dataclasses.replace(shape, text=text), np.concatenate(values))


def linear_form(predictor: Predictor) -> LinearForm | None:
    """Return the form of a ridge on numbers that an earlier version stored as a pickle; None of any other model."""
    # What wraps a model shows that one's native estimator, and predicts something else.
    if not isinstance(predictor, PickledPredictor):
        return None
    native = predictor.native
    steps = getattr(native, "steps", ())
    if tuple(name for name, _ in steps) != (IMPUTE, "scale", "ridge"):
        return None
    names = tuple(native.feature_names_in_)
    return LinearForm.of(native, Shape("ridge", {}, names, names, {}))


def _steps(pipeline: Any) -> tuple[Any, Any, Any, Any]:
    """Return a fitted pipeline's linear model, imputer, scaler and one-hot encoder; None for one that it has not."""
    columns = pipeline.named_steps.get("columns")
    if columns is None:
        return pipeline[-1], pipeline[0], pipeline[1], None
    found = columns.named_transformers_
    numeric = found.get("numeric", (None, None))
    return pipeline[-1], numeric[0], numeric[1], found["text"]


def _pipeline_of(form: LinearForm) -> Any:
    """Fit the family's own pipeline to made-up rows that hold every text value, and put the form's numbers in."""
    shape = form.shape
    text = tuple(name for name in shape.names if name in shape.text)
    numeric = tuple(name for name in shape.names if name not in shape.text)
    rows = max([2, *map(len, shape.text.values())])
    columns = {name: np.resize(np.array(shape.text[name], dtype=object), rows) for name in text}
    x = pd.DataFrame({**dict.fromkeys(numeric, np.zeros(rows)), **columns})[list(shape.names)]
    settings = EstimatorSettings(shape.family, shape.params)
    native = sklearn_family(settings, Features(numeric, text, shape.names)).fit_native(x, np.zeros(rows), seed=0)
    if not shape.numeric and not shape.text:
        native.constant_ = np.array([[form.intercept]])
        return native
    linear, impute, scale, _ = _steps(native)
    median, mean, deviation, coefficient = form.vectors
    if impute is not None:
        impute.statistics_, scale.mean_ = median.copy(), mean.copy()
        scale.scale_, scale.var_ = deviation.copy(), deviation**2
    linear.coef_, linear.intercept_ = np.concatenate([form.weights, coefficient]), form.intercept
    return native


@dataclasses.dataclass(frozen=True)
class Table:
    """Feature columns of any number of rows, as the forms take them.

    Attributes
    ----------
    numbers
        Shape (numeric features, rows); NaN is missing.
    codes
        Of each text feature, per row the place of its value; -1 is missing.
    values
        Of each text feature, its values in the order of the text.
    """

    numbers: Floats
    codes: tuple[Ints, ...] = ()
    values: tuple[npt.NDArray[np.object_], ...] = ()

    @classmethod
    def of(cls, x: pd.DataFrame, numeric: Sequence[str], text: Sequence[str]) -> Table:
        """Return the columns of a frame."""
        numbers = np.empty((len(numeric), len(x)))
        for place, name in enumerate(numeric):
            numbers[place] = x[name].to_numpy(np.float64, na_value=np.nan)
        return cls.coded(numbers, [x[name].to_numpy(dtype=object) for name in text])

    @classmethod
    def coded(cls, numbers: Floats, text: Sequence[npt.NDArray[np.object_]]) -> Table:
        """Return a table of numbers, shape (numeric features, rows), and of texts that are coded here."""
        coded = [pd.factorize(values, sort=True) for values in text]
        return cls(numbers, tuple(codes.astype(np.int64) for codes, _ in coded), tuple(values for _, values in coded))

    def take(self, rows: Any) -> Table:
        """Return some rows; the values of text keep their places."""
        return Table(self.numbers[:, rows], tuple(codes[rows] for codes in self.codes), self.values)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.numbers.shape[1])


@dataclasses.dataclass(frozen=True)
class TextWeights:
    """The weights of one text feature's values in many models.

    Attributes
    ----------
    width
        More than the largest code.
    pairs
        `model * width + code` of each value that has a weight, ascending.
    """

    width: int
    pairs: Ints
    weights: Floats

    def model(self, owner: int) -> tuple[Ints, Floats]:
        """Return the codes of one model's values, and their weights."""
        own = slice(*np.searchsorted(self.pairs, [owner * self.width, (owner + 1) * self.width]))
        return self.pairs[own] - owner * self.width, self.weights[own]

    def of(self, owner: Ints, codes: Ints) -> Floats:
        """Return the weight of each row's value in its own model; 0 where the model does not know it."""
        if not len(self.pairs):
            return np.zeros(len(codes))
        wanted = owner * self.width + codes
        at = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        return np.where((codes >= 0) & (self.pairs[at] == wanted), self.weights[at], 0.0)


@dataclasses.dataclass(frozen=True)
class LinearForms:
    """The forms of many models that read the same columns, side by side.

    Attributes
    ----------
    vectors
        Shape (4, models, numeric features).
    intercept
        Shape (models,).
    text
        One per text feature.
    """

    vectors: Floats
    intercept: Floats
    text: tuple[TextWeights, ...] = ()

    @classmethod
    def of(cls, forms: Sequence[LinearForm], table: Table) -> LinearForms:
        """Put forms that read the same columns side by side; text values that the table has not are left out."""
        vectors = np.stack([form.vectors for form in forms], axis=1)
        intercept = np.array([form.intercept for form in forms])
        text = tuple(_text_weights(forms, place, values) for place, values in enumerate(table.values))
        return cls(vectors, intercept, text)

    def form(self, place: int, shape: Shape, values: Sequence[npt.NDArray[np.object_]]) -> LinearForm:
        """Return the form of one model; `values` are the text values of the table that the forms were fitted to."""
        own = [weights.model(place) for weights in self.text]
        vectors, weights = self.vectors[:, place].ravel(), [weight for _, weight in own]
        if own:
            # Encoders refuse an empty list: a column without a value has the empty text.
            named = {n: tuple(v[codes]) or ("",) for n, v, (codes, _) in zip(shape.text, values, own, strict=True)}
            shape = dataclasses.replace(shape, text=named)
            weights = [weight if len(weight) else np.zeros(1) for weight in weights]
        return LinearForm(shape, np.concatenate([vectors, *weights, self.intercept[place : place + 1]]))

    def predict(self, table: Table, owner: Ints) -> Floats:
        """Return the prediction of each row by its own model, by the operations of scikit-learn's pipeline in order.

        Parameters
        ----------
        owner
            Per row the place of its model. A value that is infinite gives a prediction that is not finite.
        """
        total = self.intercept[owner]
        with np.errstate(over="ignore", invalid="ignore"):
            for place, column in enumerate(table.numbers):
                median, mean, scale, coefficient = (vector[:, place][owner] for vector in self.vectors)
                total += (np.where(np.isnan(column), median, column) - mean) / scale * coefficient
            for weights, codes in zip(self.text, table.codes, strict=True):
                total += weights.of(owner, codes)
        return total


def _text_weights(forms: Sequence[LinearForm], place: int, values: npt.NDArray[np.object_]) -> TextWeights:
    """Return the weights of one text feature of many forms, by the places of its values."""
    width = len(values) + 1
    known = pd.Index(values, dtype=object)
    pairs, weights = [], []
    for owner, form in enumerate(forms):
        counts = [len(categories) for categories in form.shape.text.values()]
        start = sum(counts[:place])
        codes = known.get_indexer(pd.Index(list(form.shape.text.values())[place], dtype=object))
        pairs.append(owner * width + codes[codes >= 0])
        weights.append(form.weights[start : start + counts[place]][codes >= 0])
    joined, order = np.concatenate(pairs), np.argsort(np.concatenate(pairs), kind="stable")
    return TextWeights(width, joined[order].astype(np.int64), np.concatenate(weights)[order])
