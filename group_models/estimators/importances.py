"""How much each feature moves a model's predictions, as shares that sum to 1.

Of a linear model the size of a feature's coefficient times its spread in the key's rows (|coefficient| of standardised
columns; the one-hot columns of a text summed up); of xgboost the mean size of its SHAP contributions to some rows; of
an estimator that has them, `feature_importances_`. On request, of any model: by how much its error rises where the
values of one feature are shuffled (permutation importance, Breiman 2001, "Random forests", Machine Learning 45).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.errors import ModelError
from group_models.estimators.base import IMPUTE, Floats, Predictor
from group_models.estimators.batched import FittedGroups
from group_models.estimators.batched_children import FittedChildren
from group_models.estimators.boosters import BoosterPredictor
from group_models.estimators.children import PARENT, REFITTED, ChildPredictor, own_weight
from group_models.estimators.classes import ClassPredictor
from group_models.estimators.closed_families import FittedForms
from group_models.estimators.contributions import OF_PARENT, Contributions, contributions
from group_models.estimators.linear import Ints, LinearForm, LinearForms, Shape, Table, TextWeights
from group_models.estimators.transformed import TransformedPredictor

Sizes = Mapping[str, float]
"""By feature a number of which the size counts."""

SAMPLE_ROWS = 32
"""Rows of a key whose contributions are averaged, spread evenly over all in their order: SHAP takes far longer than
a prediction."""


def shares(sizes: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the sizes of many keys, by feature one per key, as shares that sum to 1; all 0 where nothing counts.

    Examples
    --------
    >>> found = shares({"a": np.array([1.0, 0.0]), "b": np.array([-3.0, 0.0])})
    >>> {name: values.tolist() for name, values in found.items()}
    {'a': [0.25, 0.0], 'b': [0.75, 0.0]}
    """
    if not sizes:
        return {}
    values = np.abs(np.stack(list(sizes.values())))
    values[~np.isfinite(values)] = 0.0
    largest = values.max(axis=0)
    # By the largest first: a sum of huge sizes would overflow, of tiny ones vanish.
    scaled = values / np.where(largest > 0.0, largest, 1.0)
    total = scaled.sum(axis=0)
    return dict(zip(sizes, scaled / np.where(total > 0.0, total, 1.0), strict=True))


def group_importances(fitted: FittedGroups, table: Table, offsets: Ints) -> dict[str, Floats] | None:
    """Return the shares of the features of many models that were fitted at once, by feature one per key.

    Parameters
    ----------
    table, offsets
        Rows of the table that they were fitted to, those of each key together; each key has some.
    """
    sizes = _group_sizes(fitted, table, offsets)
    return None if sizes is None else shares(sizes)


def _group_sizes(fitted: FittedGroups, table: Table, offsets: Ints) -> dict[str, Floats] | None:
    if isinstance(fitted, FittedForms):
        return form_sizes(fitted.forms, fitted.family.shape, table, offsets)
    if not isinstance(fitted, FittedChildren):
        return None
    given, parent = fitted.family.columns(table, place=-1)
    own = _group_sizes(fitted.own, given, offsets)
    if own is None:
        return None
    weight = own_weight(fitted.rows, fitted.family.half_rows)
    found = {name: weight * values for name, values in own.items() if name != PARENT}
    # The parent's prediction itself, and as a feature of the key's own part.
    return {**found, OF_PARENT: _spreads(parent, offsets) + weight * own.get(PARENT, 0.0)}


def _spreads(values: Floats, offsets: Ints) -> Floats:
    """Return the standard deviation of each key's values."""
    starts, rows = offsets[:-1], np.diff(offsets)
    mean = np.add.reduceat(values, starts) / rows
    centred = values - np.repeat(mean, rows)
    return np.asarray(np.sqrt(np.add.reduceat(centred * centred, starts) / rows))


def form_sizes(forms: LinearForms, shape: Shape, table: Table, offsets: Ints) -> dict[str, Floats]:
    """Return of many linear models, by feature, the coefficient on its standardised values; of text a sum of sizes.

    Parameters
    ----------
    shape
        Whose features these are; those that the forms do not read get 0.
    table, offsets
        The rows of each model's key, from which the spread of one-hot columns is taken.
    """
    keys = len(forms.intercept)
    found = dict.fromkeys(shape.names, np.zeros(keys))
    found |= dict(zip(shape.numeric, forms.vectors[-1].T, strict=True))
    owner = np.repeat(np.arange(keys), np.diff(offsets))
    for name, weights, codes in zip(shape.text, forms.text, table.codes, strict=True):
        found[name] = _text_sizes(weights, codes, owner, np.diff(offsets))
    return found


def _text_sizes(weights: TextWeights, codes: Ints, owner: Ints, rows: Ints) -> Floats:
    """Return the sum over the values of a text of |weight| times the spread of its one-hot column, per key."""
    if not len(weights.pairs):
        return np.zeros(len(rows))
    wanted = owner * weights.width + codes
    at = np.minimum(np.searchsorted(weights.pairs, wanted), len(weights.pairs) - 1)
    is_known = (codes >= 0) & (weights.pairs[at] == wanted)
    of_pair = weights.pairs // weights.width
    share = np.bincount(at[is_known], minlength=len(weights.pairs)) / np.maximum(rows[of_pair], 1)
    spread = np.sqrt(share * (1.0 - share))
    return np.bincount(of_pair, np.abs(weights.weights) * spread, len(rows)).astype(np.float64)


def importance_of(predictor: Predictor, x: pd.DataFrame) -> dict[str, float] | None:
    """Return the shares of one model's features, of these rows of its key; None where nothing tells them."""
    sizes = _sizes_of(predictor, x)
    return None if sizes is None else _one(sizes)


def _sizes_of(predictor: Predictor, x: pd.DataFrame) -> Sizes | None:
    if isinstance(predictor, ClassPredictor | TransformedPredictor):
        # A constant model has nothing within.
        return None if predictor.own is None else _sizes_of(predictor.own, x)
    if isinstance(predictor, LinearForm):
        table = Table.of(x, predictor.shape.numeric, tuple(predictor.shape.text))
        forms = LinearForms.of([predictor], table)
        found = form_sizes(forms, predictor.shape, table, np.array([0, len(x)]))
        return {name: float(values[0]) for name, values in found.items()}
    if isinstance(predictor, BoosterPredictor):
        values = np.abs(predictor.contributions(spread_rows(x, SAMPLE_ROWS)))
        values = values.mean(axis=tuple(range(values.ndim - 1)))
        return dict(zip(predictor.columns.names, values[:-1].tolist(), strict=True))
    if isinstance(predictor, ChildPredictor):
        return _child_sizes(predictor, spread_rows(x, SAMPLE_ROWS))
    return _told_sizes(predictor.native, x)


def _child_sizes(child: ChildPredictor, x: pd.DataFrame) -> Sizes | None:
    """Return the mean sizes of what a child's own part adds and, under its own name, of its parent's prediction."""
    parent = x[PARENT].to_numpy(np.float64)
    others = [REFITTED] if child.is_residual else [PARENT, REFITTED]
    try:
        own = contributions(child.own, x.drop(columns=others, errors="ignore")).scaled(child.weight)
    except ModelError:
        return None
    counts = 1.0 if child.is_residual else 1.0 - child.weight
    of_parent = counts * parent + own.of.get(PARENT, np.zeros(len(x)))
    found = Contributions(own.base, {**own.of, OF_PARENT: of_parent})
    return {n: float(np.abs(v - v.mean()).mean()) for n, v in found.of.items() if n != PARENT}


def spread_rows(x: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return so many rows at most, spread evenly over all in their order."""
    return x if len(x) <= most else x.iloc[spread_places(len(x), most)]


def spread_places(rows: int, most: int) -> npt.NDArray[np.intp]:
    """Return so many places of rows at most, spread evenly over all.

    Examples
    --------
    >>> spread_places(5, 3), spread_places(2, 3)
    (array([0, 2, 4]), array([0, 1]))
    """
    return np.linspace(0, rows - 1, min(rows, most)).astype(np.intp)


def _told_sizes(native: Any, x: pd.DataFrame) -> Sizes | None:
    """Return what an estimator says itself: `feature_importances_`, or of a bare linear one its coefficients."""
    last = native[-1] if hasattr(native, "steps") else native
    values = getattr(last, "feature_importances_", None)
    if values is None and last is not native and hasattr(last, "classes_") and hasattr(last, "coef_"):
        # Of a linear classifier the coefficients of its labels, on columns as its pipeline prepares them.
        prepared = native[:-1].transform(x if _finds_by_name(native) else x.to_numpy(dtype=np.float64))
        values = np.abs(last.coef_).mean(axis=0) * np.std(np.asarray(prepared, dtype=np.float64), axis=0)
    if values is None and last is native and getattr(native, "coef_", None) is not None:
        numbers = x.to_numpy(dtype=np.float64)
        values = np.ravel(native.coef_) * np.nanstd(numbers, axis=0) if np.size(native.coef_) == x.shape[1] else None
    names = None if values is None else _column_names(native, list(x.columns))
    if values is None or names is None or len(names) != len(values):
        return None
    found = dict.fromkeys(map(str, x.columns), 0.0)
    for name, value in zip(names, np.asarray(values, dtype=np.float64).tolist(), strict=True):
        found[name] += abs(value)
    return found


def _finds_by_name(native: Any) -> bool:
    """Return whether a pipeline finds its columns by name."""
    return bool(native.steps[0][0] != IMPUTE)


def _column_names(native: Any, names: Sequence[str]) -> list[str] | None:
    """Return the feature that each column of an estimator, or of the last step of a pipeline, was made of."""
    if not hasattr(native, "steps"):
        return list(names) if getattr(native, "n_features_in_", len(names)) == len(names) else None
    first, step = native.steps[0]
    if first == IMPUTE and len(native.steps) == 2:
        return list(names)
    if first == "columns" and hasattr(step, "named_transformers_"):
        encoder = step.named_transformers_.get("text")
        text: list[str] = next((columns for name, _, columns in step.transformers_ if name == "text"), [])
        counts = map(len, getattr(encoder, "categories_", []))
        encoded = [name for name, count in zip(text, counts, strict=True) for _ in range(count)]
        return [*encoded, *[name for name in names if name not in text]]
    try:
        found = [str(name) for name in native[:-1].get_feature_names_out()]
    except (AttributeError, TypeError, ValueError):
        return None
    return found if set(found) <= set(names) else None


def permuted(error: Callable[[pd.DataFrame], float], x: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Return by how much an error rises where one feature of these rows is shuffled, as shares; a fall counts 0.

    Parameters
    ----------
    error
        Of rows of these features, in the order of `x`.
    """
    order = np.random.default_rng(seed % 2**32).permutation(len(x))
    own = error(x)
    rises = {str(name): max(error(x.assign(**{name: x[name].to_numpy()[order]})) - own, 0.0) for name in x.columns}
    return _one(rises)


def _one(sizes: Sizes) -> dict[str, float]:
    """Return the sizes of one model as shares."""
    found = shares({name: np.array([value]) for name, value in sizes.items()})
    return {name: float(values[0]) for name, values in found.items()}
