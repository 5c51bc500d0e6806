"""Targets made by binning: categories and intervals of a pandas frame as text, with their order. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from group_models.labels import label_text


def text_target(frame: Any, target: str) -> tuple[Any, tuple[str, ...]]:
    """Return a pandas frame with its target as text, and the labels in order, where it is of categories or intervals.

    Anything else comes back as it is, with no order.

    Examples
    --------
    >>> given = pd.DataFrame({"y": pd.cut([1, 9, 5], [0, 4, 6, 10])})
    >>> frame, order = text_target(given, "y")
    >>> frame["y"].tolist(), order
    (['(0, 4]', '(6, 10]', '(4, 6]'], ('(0, 4]', '(4, 6]', '(6, 10]'))
    """
    if not isinstance(frame, pd.DataFrame) or target not in frame.columns:
        return frame, ()
    values = frame[target]
    if isinstance(values.dtype, pd.IntervalDtype):
        values = pd.Series(pd.Categorical(values), index=values.index)
    if not isinstance(values.dtype, pd.CategoricalDtype):
        return frame, ()
    order = tuple(label_text(category) for category in values.cat.categories)
    # The code of a missing value is -1: the last place.
    texts = np.array([*order, None], dtype=object)[values.cat.codes.to_numpy()]
    return frame.assign(**{target: pd.Series(texts, index=frame.index, dtype=object)}), order
