"""The rows of one unit as its keys: typed, ordered, and sliced without a copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.frames import ColumnKind, none_where
from group_models.tables import WHOLE

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class KeyRows:
    """One key of a unit, or one part of a salted key: who it is, and its rows in their order.

    `part` is `WHOLE` or the part's place among `n_parts`; `numbers` are the numeric features of `x`.
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


def unit_keys(frame: pd.DataFrame, references: pd.DataFrame, features: Mapping[str, ColumnKind]) -> Iterator[KeyRows]:
    """Yield the keys of a unit with their rows ordered by time and row hash, whatever order they came in."""
    index = frame["key_index"].to_numpy(np.int32)
    order = np.lexsort((frame["row_hash"].to_numpy(np.int64), frame["time_us"].to_numpy(np.int64), index))
    numbers = _numbers(frame, features, order)
    x = _feature_block(frame, features, order, numbers)
    y = frame["y"].to_numpy(np.float64)[order]
    is_holdout = frame["is_holdout"].to_numpy(np.bool_)[order]
    index = index[order]
    references = references.sort_values("key_index")
    wanted = references["key_index"].to_numpy(np.int32)
    starts, ends = np.searchsorted(index, wanted, "left"), np.searchsorted(index, wanted, "right")
    for key, start, end in zip(_named(references), starts.tolist(), ends.tolist(), strict=True):
        rows = slice(start, end)
        yield KeyRows(*key, x.iloc[rows], numbers[rows], y[rows], is_holdout[rows])


def _named(references: pd.DataFrame) -> Iterator[tuple[str, str, int | None, int, int]]:
    """Yield what each key is, whole and without a unit unless it is said: key id, key, unit, part, parts."""
    defaults = {"unit": None, "part": WHOLE, "n_parts": 1}
    columns = [
        references[name].astype("Int32").tolist() if name in references else [default] * len(references)
        for name, default in defaults.items()
    ]
    return zip(references["key_id"], references["key"], *columns, strict=True)


def _numbers(frame: pd.DataFrame, features: Mapping[str, ColumnKind], order: npt.NDArray[np.intp]) -> Floats:
    """Return the numeric features as one ordered block of float64, shape (rows, numeric features)."""
    columns = [f"f{i}" for i, kind in enumerate(features.values()) if kind == "numeric"]
    values = np.empty((len(order), len(columns)), dtype=np.float64)
    for i, column in enumerate(columns):
        values[:, i] = frame[column].to_numpy(np.float64, na_value=np.nan)[order]
    return values


def _feature_block(
    frame: pd.DataFrame, features: Mapping[str, ColumnKind], order: npt.NDArray[np.intp], numbers: Floats
) -> pd.DataFrame:
    """Return all features under their own names in declared order; without text it is a view of the numbers."""
    block = pd.DataFrame(numbers, columns=numeric_names(features))
    for i, (name, kind) in enumerate(features.items()):
        if kind == "text":
            text = frame[f"f{i}"].to_numpy(dtype=object)[order]
            block[name] = none_where(text, pd.isna(text))
    return block if len(numeric_names(features)) == len(features) else block[list(features)]


def numeric_names(features: Mapping[str, ColumnKind]) -> list[str]:
    """Return the numeric features in order."""
    return [name for name, kind in features.items() if kind == "numeric"]
