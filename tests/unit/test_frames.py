"""Columns and their types, and pandas frames brought to them."""

import datetime as dt
import decimal

import numpy as np
import pandas as pd
import pytest

from group_models.errors import DataError
from group_models.frames import check_columns, column_kind, feature_frame, key_values

COLUMNS = {
    "carrier": "string",
    "x": "double",
    "at": "timestamp",
    "v": "array<double>",
    "p": "decimal(10,2)",
    "b": "boolean",
}


@pytest.mark.parametrize(
    "kind", ["double", "timestamp", "decimal(10,0)", "array<int>", "struct<a:int>", "binary", "float"]
)
def test_a_key_of_a_type_that_has_no_one_text_is_refused(kind: str) -> None:
    assert len(check_columns({"k": kind}, keys=["k"])) == 1


@pytest.mark.parametrize("kind", ["string", "varchar(5)", "tinyint", "smallint", "int", "bigint", "boolean", "date"])
def test_a_key_of_another_type_is_taken(kind: str) -> None:
    assert check_columns({"k": kind}, keys=["k"]) == []


def test_a_missing_column_is_named_with_the_one_that_was_meant() -> None:
    (said,) = check_columns(COLUMNS, keys=["carier"])
    assert "no column 'carier'; did you mean 'carrier'?" in said


def test_each_role_has_its_rule() -> None:
    said = check_columns(COLUMNS, keys=["x"], features=["at", "v"], target="carrier", time_column="x")
    assert len(said) == 5
    assert "derive numbers" in said[1]
    assert "flatten" in said[2]


@pytest.mark.parametrize(
    ("kind", "expected"), [("decimal(10,2)", "numeric"), ("boolean", "numeric"), ("char(3)", "text"), ("date", None)]
)
def test_a_feature_is_a_number_or_text(kind: str, expected: str | None) -> None:
    assert column_kind(kind) == expected


def test_numbers_of_any_dtype_become_float64_with_nan_for_null() -> None:
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None, 3], dtype="Int64"),
            "b": [True, None, False],
            "d": [decimal.Decimal("1.5"), None, decimal.Decimal(2)],
            "f": np.array([1, 2, 3], dtype=np.float32),
        },
        index=[7, 7, 9],
    )
    x = feature_frame(frame, dict.fromkeys("dibf", "numeric"))
    assert list(x.columns) == ["d", "i", "b", "f"]
    assert (x.dtypes == np.float64).all()
    assert x["b"].tolist()[::2] == [1.0, 0.0]
    assert x.isna().sum().tolist() == [1, 1, 1, 0]
    assert list(x.index) == [0, 1, 2]


def test_text_keeps_none_for_null() -> None:
    x = feature_frame(pd.DataFrame({"t": ["a", None, np.nan, pd.NA]}), {"t": "text"})
    assert x["t"].tolist() == ["a", None, None, None]


@pytest.mark.parametrize(
    ("values", "kind"), [(["1.5", "abc"], "numeric"), ([1.0, 2.0], "text"), ([dt.date(2020, 1, 1)], "numeric")]
)
def test_values_of_another_kind_are_refused_by_the_columns_name(values: list[object], kind: str) -> None:
    with pytest.raises(DataError, match="'c' holds"):
        feature_frame(pd.DataFrame({"c": values}), {"c": kind})  # type: ignore[dict-item]


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(DataError, match=r"lacks the feature column.*'b'"):
        feature_frame(pd.DataFrame({"a": [1.0]}), {"a": "numeric", "b": "numeric"})


def test_an_integer_key_that_pandas_made_a_float_is_the_integer_again() -> None:
    assert key_values(pd.Series([1.0, np.nan, 3.0]), "integer") == [1, None, 3]


@pytest.mark.parametrize(
    ("value", "kind"), [("1", "integer"), (1.5, "integer"), (1, "string"), (True, "integer"), (1, "boolean")]
)
def test_a_key_value_of_another_type_is_refused(value: object, kind: str) -> None:
    with pytest.raises(DataError, match="key column 'k'"):
        key_values(pd.Series([value], name="k", dtype=object), kind)  # type: ignore[arg-type]


def test_a_date_key_is_taken_from_midnight_timestamps() -> None:
    assert key_values(pd.Series(pd.to_datetime(["2020-01-02"])), "date") == [dt.date(2020, 1, 2)]
