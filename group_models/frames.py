"""Columns and their types: which a spec may use, and how a pandas frame is brought to them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.errors import DataError
from group_models.keys import KeyKind, KeyValue
from group_models.labels import KINDS, NO_LABELS, LabelKind, Labels

ColumnKind: TypeAlias = Literal["numeric", "text"]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*_INTEGERS, "float", "double")
_NESTED = ("array", "map", "struct", "variant")
_KEY_KINDS: Mapping[str, KeyKind] = {
    **dict.fromkeys(_INTEGERS, "integer"),
    "string": "string",
    "boolean": "boolean",
    "date": "date",
}
_TIME_TYPES = ("timestamp", "timestamp_ntz", "date")

WRITE_MICROSECONDS = (
    "write the file with microseconds (pandas: `to_parquet(..., coerce_timestamps='us', "
    "allow_truncated_timestamps=True)`)"
)
"""What to do about a Parquet file with times in nanoseconds, which pandas writes and Spark 4.0 to 4.2 refuses."""


@dataclasses.dataclass(frozen=True)
class Roles:
    """The columns that a fit reads, with their types.

    Attributes
    ----------
    keys
        Key columns and what their values are.
    features
        Feature columns in the spec's order: float64 with NaN for null (`numeric`), or text.
    target
        The target column.
    time
        The time column and its Spark type, or None.
    weight
        The column of sample weights, or None.
    labels
        Of a classification the labels of the target, empty before they are known; None of a regression.
    """

    keys: Mapping[str, KeyKind]
    features: Mapping[str, ColumnKind]
    target: str
    time: tuple[str, str] | None
    weight: str | None = None
    labels: Labels | None = None


def base_type(spark_type: str) -> str:
    """Return a Spark type without its parameters: `decimal(10,2)` is `decimal`, `varchar(5)` is `string`.

    Examples
    --------
    >>> base_type("decimal(10,2)"), base_type("varchar(5)"), base_type("array<int>")
    ('decimal', 'string', 'array')
    """
    name = spark_type.replace("<", "(").replace(" ", "(").partition("(")[0]
    return "string" if name in ("char", "varchar") else name


def column_kind(spark_type: str) -> ColumnKind | None:
    """Return how a feature of this type is fitted, or None where it cannot be."""
    name = base_type(spark_type)
    if name in _NUMBERS or name in ("decimal", "boolean"):
        return "numeric"
    return "text" if name == "string" else None


def check_columns(
    columns: Mapping[str, str],
    *,
    keys: Sequence[str] = (),
    features: Sequence[str] = (),
    target: str | None = None,
    time_column: str | None = None,
    sample_weight: str | None = None,
    task: str = "regression",
) -> list[str]:
    """Return what is wrong with the columns that a spec names, one sentence each.

    Parameters
    ----------
    columns
        Name to Spark type, as the source has them.
    """
    mistakes = [m for name in keys if (m := _check(columns, name, "keys", _key_mistake))]
    mistakes += [m for name in features if (m := _check(columns, name, "features", _feature_mistake))]
    if target is not None and (mistake := _check(columns, target, "target", _TARGETS[task])):
        mistakes.append(mistake)
    if time_column is not None and (mistake := _check(columns, time_column, "time_column", _time_mistake)):
        mistakes.append(mistake)
    if sample_weight is not None and (mistake := _check(columns, sample_weight, "sample_weight", _weight_mistake)):
        mistakes.append(mistake)
    return mistakes


def _check(columns: Mapping[str, str], name: str, role: str, rule: Any) -> str | None:
    if name not in columns:
        close = difflib.get_close_matches(name, columns, n=1, cutoff=0.6)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"{role}: the source has no column {name!r}{hint} (it has {_some(list(columns))})"
    said = rule(base_type(columns[name]))
    return f"{role}: {name!r} is {columns[name]}; {said}" if said else None


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(repr, names[:20])) + more


def _key_mistake(kind: str) -> str | None:
    if kind in _KEY_KINDS:
        return None
    return "a key column is text, an integer type, boolean or date; cast it in the source"


def _feature_mistake(kind: str) -> str | None:
    if column_kind(kind):
        return None
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return "a feature is numeric, boolean or text; derive numbers from it in the source (hour, weekday, ...)"
    if kind in _NESTED:
        return "a feature is numeric, boolean or text; flatten it into columns in the source"
    return "a feature is numeric, boolean or text"


def _target_mistake(kind: str) -> str | None:
    if kind in _NUMBERS or kind == "decimal":
        return None
    return "the target of a regression is a number; cast it in the source"


def _label_mistake(kind: str) -> str | None:
    if kind in KINDS:
        return None
    return "the target of a classification is text, boolean or an integer type; cast or bin it in the source"


_TARGETS = {"regression": _target_mistake, "classification": _label_mistake}


def _weight_mistake(kind: str) -> str | None:
    return None if kind in _NUMBERS or kind == "decimal" else "a sample weight is a number; cast it in the source"


def _time_mistake(kind: str) -> str | None:
    return None if kind in _TIME_TYPES else "a time column is timestamp, timestamp_ntz or date"


def roles(
    columns: Mapping[str, str],
    *,
    keys: Sequence[str],
    features: Sequence[str],
    target: str,
    time_column: str | None,
    sample_weight: str | None = None,
    task: str = "regression",
) -> Roles:
    """Return the checked columns of a spec with their types."""
    return Roles(
        keys={name: key_kind(columns[name]) for name in keys},
        features={name: column_kind(columns[name]) or "text" for name in features},
        target=target,
        time=None if time_column is None else (time_column, base_type(columns[time_column])),
        weight=sample_weight,
        labels=dataclasses.replace(NO_LABELS, kind=label_kind(columns[target])) if task == "classification" else None,
    )


def label_kind(spark_type: str) -> LabelKind:
    """Return what the labels of a target of this type are.

    Raises
    ------
    KeyError
        The type cannot be a label's.
    """
    return KINDS[base_type(spark_type)]


def key_kind(spark_type: str) -> KeyKind:
    """Return what the values of a key column of this type are.

    Raises
    ------
    KeyError
        The type cannot be a key.
    """
    return _KEY_KINDS[base_type(spark_type)]


def feature_frame(frame: pd.DataFrame, features: Mapping[str, ColumnKind]) -> pd.DataFrame:
    """Return the feature columns in declared order and types, whatever pandas guessed.

    Parameters
    ----------
    frame
        Any order of columns, any index; numbers, booleans, decimals or None for a numeric feature.

    Returns
    -------
    Frame with a fresh index: float64 with NaN for null, or objects (str or None).

    Raises
    ------
    DataError
        A column is missing, or holds values of another kind; every such column is named.
    """
    missing = [name for name in features if name not in frame.columns]
    if missing:
        raise DataError(f"the frame lacks the feature column(s) {_some(missing)}; it has {_some(list(frame.columns))}")
    wrong = [f"{name!r} holds {said}" for name, kind in features.items() if (said := _unlike(frame[name], kind))]
    if wrong:
        raise DataError(f"the frame does not fit the models: {'; '.join(wrong)}; cast it first")
    columns = {name: _conform(frame[name], kind) for name, kind in features.items()}
    if all(kind == "numeric" for kind in features.values()):
        return pd.DataFrame(np.column_stack(list(columns.values())), columns=list(columns))
    return pd.DataFrame(columns)


def _unlike(values: pd.Series[Any], kind: ColumnKind) -> str | None:
    """Return what the values are where they are not of this kind."""
    if pd.api.types.is_bool_dtype(values.dtype) or pd.api.types.is_numeric_dtype(values.dtype):
        if kind == "numeric" or len(values) == 0 or bool(values.isna().all()):
            return None
        return f"{values.dtype} values, and the models were trained on text"
    if values.dtype != object and not pd.api.types.is_string_dtype(values.dtype):
        return f"{values.dtype} values"
    allowed = (str,) if kind == "text" else (int, float, bool, decimal.Decimal, np.number, np.bool_)
    other = {
        type(v).__name__ for v in values if v is not None and v is not pd.NA and not isinstance(v, (*allowed, float))
    }
    expected = "text" if kind == "text" else "numbers"
    return f"{', '.join(sorted(other))} values, and the models were trained on {expected}" if other else None


def _conform(values: pd.Series[Any], kind: ColumnKind) -> npt.NDArray[Any]:
    if kind == "numeric" and values.dtype != object:
        return np.asarray(values.to_numpy(np.float64, na_value=np.nan))
    objects = values.astype(object).to_numpy()
    is_null = pd.isna(objects)
    if kind == "numeric":
        return np.array([np.nan if null else float(v) for v, null in zip(objects, is_null, strict=True)], np.float64)
    return none_where(objects, is_null)


def none_where(values: npt.ArrayLike, is_none: npt.ArrayLike) -> npt.NDArray[np.object_]:
    """Return values as objects, None where told.

    Examples
    --------
    >>> none_where(["a", "b"], [True, False]).tolist()
    [None, 'b']
    """
    objects: npt.NDArray[np.object_] = np.array(values, dtype=object)
    objects[np.asarray(is_none, dtype=np.bool_)] = None
    return objects


def key_values(values: pd.Series[Any], kind: KeyKind) -> list[KeyValue]:
    """Return a key column of a pandas frame as key values: NaN and NA are null, 3.0 is the integer 3.

    Raises
    ------
    DataError
        A value cannot be a key of this kind; the message names it.
    """
    return [_key_value(value, kind, str(values.name)) for value in values.tolist()]


def _key_value(value: Any, kind: KeyKind, column: str) -> KeyValue:
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return None
    if kind == "date" and isinstance(value, dt.datetime):
        value = value.date() if value.time() == dt.time() else value
    if kind == "integer" and (isinstance(value, np.integer) or (isinstance(value, float) and value.is_integer())):
        value = int(value)
    if kind == "boolean" and isinstance(value, np.bool_):
        value = bool(value)
    wanted: dict[KeyKind, type] = {"string": str, "integer": int, "boolean": bool, "date": dt.date}
    is_other = isinstance(value, bool) != (kind == "boolean") or isinstance(value, dt.datetime)
    if is_other or not isinstance(value, wanted[kind]):
        raise DataError(
            f"key column {column!r}: {value!r} is {type(value).__name__}, the models' keys are {kind}; cast it"
        )
    return cast("KeyValue", value)
