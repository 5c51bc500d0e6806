"""The tables as records: what follows from each."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from group_models.tables import RELEASE, RUN, STORE, TABLES, Column, Table

MOMENT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)

SMALL = Table(
    "small",
    "one row: one thing",
    (
        Column("name", "string", "it's a name", nullable=False),
        Column("at", "timestamp", "when"),
        Column("counts", "map<string,bigint>", "how many"),
    ),
)


def test_the_ddl_names_type_nullability_and_comment_of_each_column():
    assert SMALL.ddl() == (
        "`name` string NOT NULL COMMENT 'it''s a name', `at` timestamp COMMENT 'when', "
        "`counts` map<string,bigint> COMMENT 'how many'"
    )


def test_the_spark_schema_is_of_all_columns_or_of_those_asked_for():
    assert SMALL.spark_schema() == "`name` string, `at` timestamp, `counts` map<string,bigint>"
    assert SMALL.spark_schema(["at", "name"]) == "`at` timestamp, `name` string"


def test_the_arrow_schema_has_moments_in_utc():
    assert SMALL.arrow_schema == pa.schema([
        pa.field("name", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ])  # fmt: skip


def test_rows_get_nulls_where_a_column_is_absent():
    rows = SMALL.rows([{"name": "a", "counts": {"x": 1}}, {"name": "b"}])
    assert rows.schema == SMALL.arrow_schema
    assert rows.to_pylist() == [
        {"name": "a", "at": None, "counts": [("x", 1)]},
        {"name": "b", "at": None, "counts": None},
    ]


def test_no_rows_are_an_empty_table_with_the_schema():
    assert SMALL.rows([]).schema == SMALL.empty().schema == SMALL.arrow_schema
    assert SMALL.rows([]).num_rows == SMALL.empty().num_rows == 0


def test_a_column_that_the_table_does_not_have_is_refused():
    with pytest.raises(ValueError, match="table small has no column nmae, size; it has name, at, counts"):
        SMALL.rows([{"name": "a", "size": 1}, {"nmae": "b"}])


def test_a_null_where_none_may_be_is_refused():
    with pytest.raises(ValueError, match="table small: column name holds 2 nulls and may not"):
        SMALL.rows([{"name": "a"}, {"name": None}, {}])


def test_a_value_of_another_type_is_refused():
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        SMALL.rows([{"name": "a", "counts": {"x": "many"}}])


def test_rows_are_conformed_by_name_and_type():
    given = pa.table({
        "extra": [1],
        "at": pa.array([MOMENT], pa.timestamp("ms", tz="Europe/Berlin")),
        "name": pa.array(["a"], pa.large_string()),
    })  # fmt: skip
    found = SMALL.conform(given)
    assert found.schema == SMALL.arrow_schema
    assert found["at"].to_pylist() == given["at"].to_pylist()


def test_a_value_that_does_not_fit_the_type_is_refused():
    wide = pa.table({"model_set": ["m"], "run_id": ["r"], "event": ["e"], "at": [MOMENT], "waves": [2**40]})
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        RUN.conform(wide)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_each_table_says_what_it_and_its_columns_are(table: Table):
    assert table.comment.startswith("one row: ")
    assert all(column.comment for column in table.columns)
    assert len(set(table.names)) == len(table.names)
    assert table.names[0] == "model_set"
    assert not table.columns[0].nullable


def test_only_the_release_table_is_a_log_and_the_others_belong_to_runs():
    assert [table for table in TABLES if table.is_log] == [RELEASE]
    assert all("run_id" in table.names for table in TABLES)


def test_the_store_holds_a_model_in_columns():
    assert set(STORE.names) > {"format", "mlmodel", "data", "data_file", "sha256"}
