"""The labels of a classification: which there are in a model set, in their order, and what their values are. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

LabelKind: TypeAlias = Literal["text", "integer", "boolean"]
Floats: TypeAlias = NDArray[np.float64]

MAX_LABELS = 256
"""Most labels of a model set: a target with more is no class, and each is a probability of every scored row."""

KINDS: Mapping[str, LabelKind] = {
    "string": "text", "boolean": "boolean", **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
}  # fmt: skip
"""Spark type of a target, without parameters, to the kind of its labels."""


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a model set as text, in order: a code is a place in `names`.

    Attributes
    ----------
    names
        Text by its alphabet or by the order that binning gave it, numbers by size, false before true.
    """

    names: tuple[str, ...]
    kind: LabelKind = "text"

    def to_json(self) -> str:
        """Return the labels as text."""
        return json.dumps({"kind": self.kind, "names": self.names}, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the labels that `to_json` wrote."""
        said = json.loads(text)
        return cls(tuple(said["names"]), said["kind"])

    def value(self, code: int) -> str | int | bool:
        """Return the label of a code in its own type.

        Examples
        --------
        >>> Labels(("1", "2"), "integer").value(1), Labels(("false", "true"), "boolean").value(0)
        (2, False)
        """
        name = self.names[code]
        if self.kind == "boolean":
            return name == "true"
        return int(name) if self.kind == "integer" else name

    @property
    def spark_type(self) -> str:
        """The Spark type of a label."""
        return {"text": "string", "integer": "bigint", "boolean": "boolean"}[self.kind]


NO_LABELS = Labels(())
"""Of a classification whose labels are not known yet."""


def ordered(names: Iterable[str], kind: LabelKind, order: Sequence[str] = ()) -> Labels:
    """Return distinct labels in their order: that given, else numbers by size and text by its alphabet.

    Examples
    --------
    >>> ordered(["10", "9"], "integer").names, ordered(["high", "low"], "text", ["low", "mid", "high"]).names
    (('9', '10'), ('low', 'high'))
    """
    place = {name: at for at, name in enumerate(order)}
    found = sorted(set(names), key=int if kind == "integer" else str)
    return Labels(tuple(sorted(found, key=lambda name: place.get(name, len(place)))), kind)


def union(several: Iterable[Labels]) -> Labels | None:
    """Return all labels of runs, in the order of the first that has them; None of none. Of several kinds it is text.

    Examples
    --------
    >>> union([Labels(("a", "c")), Labels(("a", "b", "c"))]).names
    ('a', 'c', 'b')
    >>> union([Labels(("1", "3"), "integer"), Labels(("2",), "integer")]).names
    ('1', '2', '3')
    """
    given = list(several)
    if not given:
        return None
    kinds = {labels.kind for labels in given}
    names = dict.fromkeys(name for labels in given for name in labels.names)
    if len(kinds) > 1:
        return Labels(tuple(names))
    kind = kinds.pop()
    return ordered(names, kind, list(names) if kind == "text" else ())


def aligned(matrix: Floats, own: Labels, to: Labels) -> Floats:
    """Return probabilities by the labels of a model as columns of others, 0 for those that it does not know.

    Examples
    --------
    >>> aligned(np.array([[0.25, 0.75]]), Labels(("a", "c")), Labels(("a", "b", "c"))).tolist()
    [[0.25, 0.0, 0.75]]
    """
    if own.names == to.names:
        return matrix
    place = {name: at for at, name in enumerate(to.names)}
    known = [(at, place[name]) for at, name in enumerate(own.names) if name in place]
    result = np.zeros((len(matrix), len(to.names)))
    # A row without a probability has none of any label.
    result[np.isnan(matrix).any(axis=1)] = np.nan
    for source, target in known:
        result[:, target] = matrix[:, source]
    return result


def best(matrix: Floats) -> NDArray[np.int64]:
    """Return the code of each row's most probable label, of equally probable ones the first.

    Examples
    --------
    >>> best(np.array([[0.5, 0.5], [0.1, 0.9]])).tolist()
    [0, 1]
    """
    return np.asarray(np.argmax(matrix, axis=1), dtype=np.int64)


def label_text(value: Any) -> str:
    """Return a label of Python or YAML as the text that Spark makes of it.

    Examples
    --------
    >>> label_text(True), label_text(1), label_text("late")
    ('true', '1', 'late')
    """
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


PROBABILITIES = "probabilities"
"""The column of the probabilities of a scored row, by label."""

_DTYPES = {"text": "object", "integer": "Int64", "boolean": "boolean"}


def class_columns(matrix: Floats, labels: Labels) -> dict[str, pd.Series]:
    """Return `prediction` and `probabilities` of rows from their probabilities; None where these are NaN.

    Examples
    --------
    >>> found = class_columns(np.array([[0.25, 0.75], [np.nan, np.nan]]), Labels(("no", "yes")))
    >>> found["prediction"].tolist(), found["probabilities"].tolist()
    (['yes', None], [{'no': 0.25, 'yes': 0.75}, None])
    """
    is_known = np.asarray(~np.isnan(matrix).any(axis=1))
    label = np.full(len(matrix), None, dtype=object)
    label[is_known] = [labels.value(code) for code in best(matrix[is_known]).tolist()]
    maps: list[Any] = [
        dict(zip(labels.names, row, strict=True)) if known else None
        for row, known in zip(matrix.tolist(), is_known.tolist(), strict=True)
    ]
    return {
        "prediction": pd.Series(label, dtype=_DTYPES[labels.kind]),
        PROBABILITIES: pd.Series(maps, dtype=object),
    }
