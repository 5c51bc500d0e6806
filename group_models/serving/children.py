"""Predict rows of models that build on a parent's: the parent's prediction first, of all of its children's rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from group_models.artifacts import StoredModel
from group_models.estimators.children import PARENT, ChildPredictor, child_form
from group_models.estimators.linear import LinearForms, Table
from group_models.serving.statuses import SCORED, Codes, Floats, judged, predict_rows


@dataclasses.dataclass(frozen=True)
class Segment:
    """Rows of a batch, one after the other, of one model that builds on the model `parent_ix`; None could not load."""

    rows: slice
    run: int
    parent_ix: int
    model: StoredModel | None


def predict_children(
    segments: Sequence[Segment], base: StoredModel | None, x: pd.DataFrame, prediction: Floats, status: Codes
) -> None:
    """Predict the rows of models of one run that build on one parent, in place.

    Parameters
    ----------
    base
        The parent's model; None where it is not there, and then all rows are `model_failed`.
    x
        The features of all rows of the batch.
    """
    places = np.concatenate([np.arange(each.rows.start, each.rows.stop) for each in segments])
    above, status[places] = predict_rows(base, x.iloc[places])
    given = x.iloc[places].assign(**{PARENT: above})
    ends = np.cumsum([each.rows.stop - each.rows.start for each in segments])
    linear: list[tuple[slice, ChildPredictor]] = []
    for end, each in zip(ends.tolist(), segments, strict=True):
        own = slice(end - (each.rows.stop - each.rows.start), end)
        if (child := _linear(each.model, given)) is not None:
            linear.append((own, child))
        else:
            _judge(predict_rows(each.model, given.iloc[own]), places[own], prediction, status)
    if linear:
        rows = np.concatenate([np.arange(own.start, own.stop) for own, _ in linear])
        _judge(judged(_together(linear, given.iloc[rows])), places[rows], prediction, status)


def _judge(found: tuple[Floats, Codes], places: np.ndarray, prediction: Floats, status: Codes) -> None:
    """Put predictions in their places, but for rows of which the parent's says what became of them."""
    is_open = status[places] == SCORED
    prediction[places] = np.where(is_open, found[0], np.nan)
    status[places] = np.where(is_open, found[1], status[places])


def _linear(model: StoredModel | None, given: pd.DataFrame) -> ChildPredictor | None:
    """Return a child whose own part is a linear form of just these columns; None of any other model."""
    predictor = None if model is None else model.predictor
    if not isinstance(predictor, ChildPredictor) or (form := child_form(predictor)) is None:
        return None
    return predictor if form.shape.names == tuple(given.columns) else None


def _together(linear: Sequence[tuple[slice, ChildPredictor]], given: pd.DataFrame) -> Floats:
    """Return the predictions of children in closed form, all at once."""
    forms = [form for _, child in linear if (form := child_form(child)) is not None]
    owner = np.repeat(np.arange(len(forms)), [own.stop - own.start for own, _ in linear])
    table = Table.of(given, forms[0].shape.numeric, tuple(forms[0].shape.text))
    weights, shifts = (np.array(each)[owner] for each in zip(*((c.weight, c.shift) for _, c in linear), strict=True))
    above: Floats = given[PARENT].to_numpy(np.float64)
    return np.asarray(above + weights * (LinearForms.of(forms, table).predict(table, owner) + shifts))
