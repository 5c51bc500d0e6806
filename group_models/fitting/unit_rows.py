"""The rows of one unit as its keys: typed, ordered, and sliced without a copy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.estimators.linear import Ints, Table
from group_models.frames import ColumnKind, none_where
from group_models.tables import WHOLE

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = slice | npt.NDArray[np.intp]


@dataclasses.dataclass(frozen=True)
class KeyRows:
    """One key of a unit, or one part of a salted key: who it is, and its rows in their order.

    `part` is `WHOLE` or the part's place among `n_parts`; `numbers` are the numeric features of `x`; `rows` says where
    they stand in the unit.
    """

    key_id: str
    key: str
    unit: int | None
    part: int
    n_parts: int
    x: pd.DataFrame
    numbers: Floats
    y: Floats
    is_holdout: npt.NDArray[np.bool_]
    rows: slice
    time_us: Ints
    weight: Floats | None
    fold: Ints | None
    row_hash: Ints


@dataclasses.dataclass(frozen=True)
class UnitRows:
    """All rows of a unit, key by key, each key's by time and row hash whatever order they came in.

    Attributes
    ----------
    features
        Kinds by name, in declared order.
    names
        Per key: key id, key, unit, part, parts.
    offsets
        Where each key's rows begin, and at last their number.
    numbers
        The numeric features, shape (numeric features, rows).
    text
        The text features by name, None for missing.
    indices
        Per key its index in the unit's frame.
    """

    features: Mapping[str, ColumnKind]
    names: tuple[tuple[str, str, int | None, int, int], ...]
    offsets: Ints
    numbers: Floats
    text: Mapping[str, npt.NDArray[np.object_]]
    y: Floats
    is_holdout: npt.NDArray[np.bool_]
    time_us: Ints
    indices: tuple[int, ...]
    weight: Floats | None
    fold: Ints | None
    row_hash: Ints

    @classmethod
    def of(cls, frame: pd.DataFrame, references: pd.DataFrame, features: Mapping[str, ColumnKind]) -> UnitRows:
        """Return what a unit got, see `fitting.fit_unit`; rows of a key that has no reference are left out."""
        references = references.sort_values("key_index")
        wanted = references["key_index"].to_numpy(np.int32)
        if not (is_wanted := np.isin(frame["key_index"], wanted)).all():
            frame = frame[is_wanted]
        index = frame["key_index"].to_numpy(np.int32)
        time_us = frame["time_us"].to_numpy(np.int64)
        row_hash = frame["row_hash"].to_numpy(np.int64)
        order = np.lexsort((row_hash, time_us, index))
        starts = np.searchsorted(index[order], wanted, "left")
        return cls(
            features,
            _names(references),
            np.append(starts, len(order)).astype(np.int64),
            _numbers(frame, features, order),
            _text(frame, features, order),
            frame["y"].to_numpy(np.float64)[order],
            frame["is_holdout"].to_numpy(np.bool_)[order],
            time_us[order],
            tuple(wanted.tolist()),
            frame["w"].to_numpy(np.float64)[order] if "w" in frame else None,
            frame["fold"].to_numpy(np.int64)[order] if "fold" in frame else None,
            row_hash[order],
        )

    @functools.cached_property
    def _x(self) -> pd.DataFrame:
        """All features under their own names in declared order; without text it is a view of the numbers."""
        block = pd.DataFrame(self.numbers.T, columns=numeric_names(self.features))
        for name, values in self.text.items():
            block[name] = values
        return block[list(self.features)] if self.text else block

    def key(self, place: int) -> KeyRows:
        """Return one key with views of its rows."""
        rows = slice(int(self.offsets[place]), int(self.offsets[place + 1]))
        x, numbers = self._x.iloc[rows], self.numbers[:, rows].T
        weight = None if self.weight is None else self.weight[rows]
        fold = None if self.fold is None else self.fold[rows]
        held, at = self.is_holdout[rows], self.time_us[rows]
        row_hash = self.row_hash[rows]
        return KeyRows(*self.names[place], x, numbers, self.y[rows], held, rows, at, weight, fold, row_hash)

    def x(self, rows: npt.NDArray[np.intp]) -> pd.DataFrame:
        """Return the features of some rows under their own names."""
        return pd.DataFrame(self._x.iloc[rows])

    def only(self, features: Mapping[str, ColumnKind]) -> UnitRows:
        """Return the rows with some of their features."""
        if list(features) == list(self.features):
            return self
        names = numeric_names(self.features)
        numbers = self.numbers[[names.index(name) for name in numeric_names(features)]]
        text = {name: values for name, values in self.text.items() if name in features}
        return dataclasses.replace(self, features=features, numbers=numbers, text=text)

    def table(self, numeric: tuple[str, ...], text: tuple[str, ...]) -> Table:
        """Return the features that are asked for, of all rows; text is coded once."""
        names = numeric_names(self.features)
        numbers = self.numbers if list(numeric) == names else self.numbers[[names.index(name) for name in numeric]]
        return Table.coded(numbers, [self.text[name] for name in text])


def _names(references: pd.DataFrame) -> tuple[tuple[str, str, int | None, int, int], ...]:
    """Return what each key is, whole and without a unit unless it is said."""
    defaults: Mapping[str, Any] = {"unit": None, "part": WHOLE, "n_parts": 1}
    columns = [
        references[name].astype("Int32").tolist() if name in references else [default] * len(references)
        for name, default in defaults.items()
    ]
    return tuple(zip(references["key_id"], references["key"], *columns, strict=True))


def _numbers(frame: pd.DataFrame, features: Mapping[str, ColumnKind], order: npt.NDArray[np.intp]) -> Floats:
    columns = [f"f{i}" for i, kind in enumerate(features.values()) if kind == "numeric"]
    values = np.empty((len(columns), len(order)), dtype=np.float64)
    for i, column in enumerate(columns):
        values[i] = frame[column].to_numpy(np.float64, na_value=np.nan)[order]
    return values


def _text(
    frame: pd.DataFrame, features: Mapping[str, ColumnKind], order: npt.NDArray[np.intp]
) -> dict[str, npt.NDArray[np.object_]]:
    found = {}
    for i, (name, kind) in enumerate(features.items()):
        if kind == "text":
            text = frame[f"f{i}"].to_numpy(dtype=object)[order]
            found[name] = none_where(text, pd.isna(text))
    return found


def numeric_names(features: Mapping[str, ColumnKind]) -> list[str]:
    """Return the numeric features in order."""
    return [name for name, kind in features.items() if kind == "numeric"]
