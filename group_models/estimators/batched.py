"""Fit many keys at once: medians, means and ridge of all keys of a unit by a few array operations.

Per key scikit-learn spends two milliseconds on checks and copies, and its arithmetic takes microseconds. Here the
columns of all keys stand behind each other, key by key; sums per key are `np.add.reduceat`, and the normal equations
of all keys are solved as one stack.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from group_models.estimators.base import Family, Fitted
from group_models.estimators.linear import VECTORS, LinearForms, Shape, Table, TextWeights
from group_models.estimators.weights import taken

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

MIN_CONDITION = 1e-6
"""Smallest over largest eigenvalue of the normal equations that are solved here.

Their solution has the relative error eps / that, 2e-10 at most; what is nearer to singular is fitted alone, by
scikit-learn's own solver.
"""

MAX_TEXT_VALUES = 64
"""Most text values of a key that is fitted here: its one-hot columns are dense, and so are its neighbours'."""

_CHUNK_CELLS = 250_000
"""Cells (rows x columns) that are computed at once: about what a core's cache holds."""


class FittedGroups(Protocol):
    """The models of many keys that were fitted at once."""

    @property
    def holds(self) -> Flags:
        """Per key whether the batch could treat it; one that it could not has no model here."""

    def predict(self, table: Table, offsets: Ints) -> Floats:
        """Return one prediction per row; the rows of each key stand together, a key may have none."""

    def fitted(self, place: int, *, seed: int) -> Fitted:
        """Return the model of one key."""


@runtime_checkable
class BatchedFamily(Family, Protocol):
    """A family that can fit all keys of a unit at once, besides each alone."""

    @property
    def shape(self) -> Shape:
        """The columns that its models read."""

    def fit_groups(self, table: Table, y: Floats, offsets: Ints, *, weight: Floats | None = None) -> FittedGroups:
        """Fit every key, by the weights of its rows if there are; these stand together, and none is without rows."""

    def refit_groups(self, table: Table, y: Floats, offsets: Ints, *, weight: Floats | None = None) -> FittedGroups:
        """Fit every key again, for a model that is stored and not measured."""


def medians(columns: Floats, offsets: Ints) -> Floats:
    """Return the median of each key's values that are not NaN, shape (columns, keys); NaN where it has none.

    Parameters
    ----------
    columns
        Shape (columns, rows), the rows of each key together.
    offsets
        Where each key's rows begin, and at last their number; each key has rows.

    Examples
    --------
    >>> medians(np.array([[3.0, 1.0, np.nan, 7.0]]), np.array([0, 3, 4]))
    array([[2., 7.]])
    """
    ordered = columns.copy()
    for start, end in itertools.pairwise(offsets.tolist()):
        ordered[:, start:end].sort(axis=1)  # NaN goes last
    starts = offsets[:-1]
    valid = np.diff(offsets) - np.add.reduceat(np.isnan(columns), starts, axis=1, dtype=np.int64)
    low = starts + np.maximum(valid - 1, 0) // 2
    high = starts + np.minimum(valid // 2, np.diff(offsets) - 1)
    middle = (np.take_along_axis(ordered, low, axis=1) + np.take_along_axis(ordered, high, axis=1)) / 2
    return np.where(valid > 0, middle, np.nan)


def means(columns: Floats, offsets: Ints, weight: Floats | None = None) -> Floats:
    """Return the mean of each key's values, shape (columns, keys), weighted where there are weights."""
    return np.asarray(_sums(columns, offsets, weight) / _totals(offsets, weight))


def _sums(columns: Floats, offsets: Ints, weight: Floats | None) -> Floats:
    weighted = columns if weight is None else columns * weight
    return np.asarray(np.add.reduceat(weighted, offsets[:-1], axis=1))


def _totals(offsets: Ints, weight: Floats | None) -> npt.NDArray[Any]:
    """Return the rows of each key, or the sum of their weights."""
    return np.diff(offsets) if weight is None else np.add.reduceat(weight, offsets[:-1])


def constants(values: Floats) -> LinearForms:
    """Return the forms of models that predict one value each, whatever the features."""
    return LinearForms(np.empty((VECTORS, len(values), 0)), values)


def fit_ridge(
    table: Table, y: Floats, offsets: Ints, *, alpha: float, weight: Floats | None = None
) -> tuple[LinearForms, Flags]:
    """Fit median imputation, standard scaling, one-hot text and ridge to each key; return the forms and which hold.

    A key whose equations are near to singular or not finite, or that has many text values, does not hold. One row,
    a constant column or fewer rows than columns are as in scikit-learn: a column without variance is not scaled and
    gets the coefficient 0.

    Parameters
    ----------
    alpha
        The penalty on the squared coefficients of the scaled columns; 0 is least squares.
    weight
        Weights above 0, one per row: of means, scales and squared errors; imputed is the plain median.
    """
    keys, features = len(offsets) - 1, len(table.numbers)
    one_hot = _OneHot.of(table, offsets)
    vectors, intercept = np.zeros((VECTORS, keys, features)), np.zeros(keys)
    weights, holds = np.zeros((keys, one_hot.width)), np.zeros(keys, dtype=bool)
    vectors[0] = np.nan_to_num(medians(table.numbers, offsets)).T
    for own in _chunks(offsets, features + one_hot.width + 1):
        rows = slice(int(offsets[own.start]), int(offsets[own.stop]))
        starts = offsets[own.start : own.stop + 1] - offsets[own.start]
        of_rows = taken(weight, rows)
        # What overflows is found by its result, which does not hold.
        with np.errstate(over="ignore", invalid="ignore"):
            numbers, mean, scale = _scaled(table.numbers[:, rows], vectors[0, own].T, starts, of_rows)
            flags, share = one_hot.centred(rows, starts, of_rows)
            level = means(y[None, rows], starts, of_rows)
            design = np.vstack([flags, numbers, y[None, rows] - _each(level, starts)])
            gram, moment = _products(design if of_rows is None else design * np.sqrt(of_rows), starts)
            solved, holds[own] = _solve(gram, moment, alpha)
        weights[own], coefficient = solved[:, : one_hot.width], solved[:, one_hot.width :]
        vectors[1:, own] = mean.T, scale.T, coefficient
        intercept[own] = level[0] - np.einsum("kw,wk->k", weights[own], share)
    return LinearForms(vectors, intercept, one_hot.text_weights(weights)), holds & one_hot.fits


def _chunks(offsets: Ints, columns: int) -> Iterator[slice]:
    """Yield runs of keys, each of about as many cells as a core's cache holds, at least one key."""
    most = max(1, _CHUNK_CELLS // columns)
    first, keys = 0, len(offsets) - 1
    while first < keys:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1)
        yield slice(first, last)
        first = last


def _each(of_keys: Floats, offsets: Ints) -> Floats:
    """Return the values of keys, shape (columns, keys), once per row."""
    return np.repeat(of_keys, np.diff(offsets), axis=1)


def _scaled(columns: Floats, median: Floats, offsets: Ints, weight: Floats | None) -> tuple[Floats, Floats, Floats]:
    """Return imputed and standardised columns, and the mean and scale of each key.

    As scikit-learn's `StandardScaler` (1.5 to 1.7): the variance is corrected for the mean's rounding (Chan, Golub
    and LeVeque 1983, "Algorithms for computing the sample variance"), and a column whose variance is no more than
    rounding of its mean is constant and not scaled.
    """
    rows, eps = _totals(offsets, weight), np.finfo(np.float64).eps
    missing = np.isnan(columns)
    filled = np.where(missing, _each(median, offsets), columns) if missing.any() else columns
    mean = means(filled, offsets, weight)
    centred = filled - _each(mean, offsets)
    rest = _sums(centred, offsets, weight)
    variance = (_sums(centred * centred, offsets, weight) - rest * rest / rows) / rows
    is_constant = variance <= rows * eps * variance + (rows * mean * eps) ** 2
    scale = np.where(is_constant, 1.0, np.sqrt(variance))
    return centred / _each(scale, offsets), mean, scale


def _products(design: Floats, offsets: Ints) -> tuple[Floats, Floats]:
    """Return of each key the products of its columns, and of its columns with the last one, the target."""
    products = np.empty((len(offsets) - 1, len(design), len(design)))
    for place, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
        own = design[:, start:end]
        np.matmul(own, own.T, out=products[place])
    return products[:, :-1, :-1], products[:, :-1, -1]


def _solve(gram: Floats, moment: Floats, alpha: float) -> tuple[Floats, Flags]:
    """Return the coefficients of each key, shape (keys, columns), and for which keys they hold."""
    diagonal = np.einsum("kii->ki", gram)
    # A column of zeros (constant, or of a text value that the key has not) gets the coefficient 0.
    diagonal += np.where(diagonal == 0.0, 1.0, alpha)
    holds: Flags = np.isfinite(gram.sum(axis=(1, 2)) + moment.sum(axis=1))
    gram[~holds] = np.eye(gram.shape[1])
    if gram.shape[1]:
        eigenvalues = np.linalg.eigvalsh(gram)
        holds &= eigenvalues[:, 0] > MIN_CONDITION * eigenvalues[:, -1]
        gram[~holds] = np.eye(gram.shape[1])
    return np.asarray(np.linalg.solve(gram, moment[:, :, None])[:, :, 0], dtype=np.float64), holds


@dataclasses.dataclass(frozen=True)
class _Values:
    """The values that one text feature has in each key.

    Attributes
    ----------
    pairs
        `key * width + code` of each value of each key, ascending.
    owner, column
        Of each pair its key, and its one-hot column there.
    rows
        Per row its one-hot column; -1 where the text is missing.
    """

    width: int
    pairs: Ints
    owner: Ints
    column: Ints
    rows: Ints

    @classmethod
    def of(cls, codes: Ints, values: int, offsets: Ints, first: Ints) -> _Values:
        width, keys = values + 1, len(offsets) - 1
        coded = np.repeat(np.arange(keys), np.diff(offsets)) * width + codes
        pairs, places = np.unique(coded[codes >= 0], return_inverse=True)
        owner = pairs // width
        column = np.arange(len(pairs)) - np.searchsorted(owner, np.arange(keys))[owner] + first[owner]
        rows = np.full(len(codes), -1, dtype=np.int64)
        rows[codes >= 0] = column[places]
        return cls(width, pairs, owner, column, rows)


@dataclasses.dataclass(frozen=True)
class _OneHot:
    """The one-hot columns of the text features: those of a key stand side by side, each key has its own.

    Attributes
    ----------
    width
        Columns of the widest key that is fitted here.
    fits
        Per key whether it has no more than `MAX_TEXT_VALUES`.
    """

    features: tuple[_Values, ...]
    width: int
    fits: Flags

    @classmethod
    def of(cls, table: Table, offsets: Ints) -> _OneHot:
        keys = len(offsets) - 1
        widths, features = np.zeros(keys, dtype=np.int64), []
        for codes, values in zip(table.codes, table.values, strict=True):
            features.append(_Values.of(codes, len(values), offsets, widths))
            widths = widths + np.bincount(features[-1].owner, minlength=keys)
        fits = widths <= MAX_TEXT_VALUES
        return cls(tuple(features), int(widths[fits].max(initial=0)), fits)

    def centred(self, rows: slice, offsets: Ints, weight: Floats | None) -> tuple[Floats, Floats]:
        """Return the columns of some rows about their means, and the means of their keys."""
        flags = np.zeros((self.width, rows.stop - rows.start))
        for feature in self.features:
            columns = feature.rows[rows]
            (chosen,) = np.nonzero((columns >= 0) & (columns < self.width))
            flags[columns[chosen], chosen] = 1.0
        share = means(flags, offsets, weight)
        return flags - _each(share, offsets), share

    def text_weights(self, weights: Floats) -> tuple[TextWeights, ...]:
        """Return the weights of each feature's values, from those of the columns of each key."""
        padded = np.column_stack([weights, np.zeros(len(weights))])
        return tuple(
            TextWeights(f.width, f.pairs, padded[f.owner, np.minimum(f.column, self.width)]) for f in self.features
        )
