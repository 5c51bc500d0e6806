"""The tables as Delta tables, as statements; and what is said of answers of catalogs."""

from __future__ import annotations

import dataclasses

import pytest
from pyspark.errors import AnalysisException

from group_models.adapters import delta_ddl, delta_errors
from group_models.adapters.path_tables import PathTables
from group_models.adapters.spark_tables import SparkTables
from group_models.errors import SpecError, StateError
from group_models.tables import RUN, TABLES, Table
from group_models.targets import find_target

STORED = delta_ddl.stored(RUN)
FOUND = {column.name: column.type for column in STORED.columns}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_each_column_has_its_comment_and_the_table_its_own(table: Table):
    said = delta_ddl.create(delta_ddl.stored(table), "c.s.t")
    assert said.count(" COMMENT ") == len(table.columns) + 3
    assert "USING delta COMMENT" in said
    assert "'group_models.schema_version' = '1'" in said


def test_an_external_table_has_a_folder_of_its_own():
    assert "USING delta LOCATION 's3://b/x/group_model_run'" in delta_ddl.create(STORED, "c.s.t", "s3://b/x/")


def test_a_table_as_it_is_written_here_differs_in_nothing_and_needs_no_column():
    assert delta_ddl.differences(STORED, FOUND) == []
    assert delta_ddl.add_columns(STORED, "t", FOUND) is None


def test_a_column_that_an_older_version_did_not_have_is_added_and_one_of_a_newer_stays():
    older = {name: kind for name, kind in FOUND.items() if name != "scope"} | {"newer": "string"}
    assert delta_ddl.differences(STORED, older) == []
    said = str(delta_ddl.add_columns(STORED, "t", older))
    assert said.startswith("ALTER TABLE t ADD COLUMNS (`scope` string COMMENT")
    assert said.count("COMMENT") == 1


def test_all_other_shapes_are_told_at_once():
    other = {**FOUND, "rows": "string", "at": "date"}
    del other["run_id"]
    said = ["at is date, not timestamp", "rows is string, not bigint", "it has no run_id"]
    assert delta_ddl.differences(STORED, other) == said


def test_names_of_columns_are_compared_as_spark_does():
    upper = {name.upper(): kind for name, kind in FOUND.items()}
    assert delta_ddl.differences(STORED, upper) == []
    assert delta_ddl.add_columns(STORED, "t", upper) is None


ANSWERS = {
    "[SCHEMA_NOT_FOUND] The schema `c`.`s` cannot be found": "CREATE SCHEMA",
    "IOException: Connection refused (HTTP 0)": "does not answer",
    "ApiException (HTTP 401): UNAUTHENTICATED": "token",
    "ApiException (HTTP 403): PERMISSION_DENIED": "ask the owner for MODIFY on c.s.t; `group-models grants SPEC`",
    "(HTTP 400) no managed location is set": "delta:LOCATION",
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta": "--packages io.delta",
    "[PARQUET_TYPE_ILLEGAL] Illegal Parquet type: INT64 (TIMESTAMP(NANOS,false))": "coerce_timestamps='us'",
    "[CATALOG_NOT_FOUND] The catalog `c` not found": "spark.sql.catalog.NAME",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_a_catalog_refuses_is_said_with_the_way_out(answer: str):
    expected = f"(?s)writing c.s.t failed: .*{ANSWERS[answer]}"
    with pytest.raises(StateError, match=expected), delta_errors.explaining("writing c.s.t", needs="MODIFY on c.s.t"):
        raise AnalysisException(answer)


def test_whatever_else_a_table_answers_is_one_sentence_too():
    expected = r"^reading c\.s\.t failed: \[DIVIDE_BY_ZERO\] Division by zero$"
    with pytest.raises(StateError, match=expected), delta_errors.explaining("reading c.s.t"):
        raise AnalysisException("[DIVIDE_BY_ZERO] Division by zero.")


@pytest.mark.parametrize("said", ["[DIVIDE_BY_ZERO] Division by zero", "x\nValueError: PERMISSION_DENIED by the fit"])
def test_what_the_query_that_is_written_fails_of_is_let_through(said: str):
    with pytest.raises(AnalysisException), delta_errors.explaining("writing", is_query=True):
        raise AnalysisException(said)


def test_a_catalog_that_goes_away_while_a_query_is_written_is_said_all_the_same():
    with pytest.raises(StateError, match="does not answer"), delta_errors.explaining("writing", is_query=True):
        raise AnalysisException("java.io.IOException: Failed to load table c.s.t (HTTP 0): null")


def test_a_statement_that_another_came_in_the_way_of_is_tried_again():
    half_made = "[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION] Cannot create table ('c.s.t')"
    answers = iter(["ConcurrentAppendException: files were added", "(HTTP 409) AlreadyExists", half_made])

    def act() -> str:
        if (answer := next(answers, None)) is not None:
            raise AnalysisException(answer)
        return "done"

    assert delta_errors.retried(act) == "done"


def test_a_statement_that_always_meets_others_fails_with_what_it_met(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta_errors.time, "sleep", lambda _: None)
    tries = []

    def act() -> None:
        tries.append(1)
        raise AnalysisException("ConcurrentAppendException")

    with pytest.raises(AnalysisException, match="ConcurrentAppend"):
        delta_errors.retried(act)
    assert len(tries) == delta_errors._TRIES


def test_the_warehouse_says_which_tables_are_meant():
    managed = find_target("c.s.eta", "delta")[1]
    external = find_target("c.s.eta", "delta:s3://b/x")[1]
    assert isinstance(managed, SparkTables)
    assert (managed.schema, managed.location, managed.local_paths()) == ("c.s", None, [])
    assert external.describe() == "Delta tables in c.s, external under s3://b/x"
    assert isinstance(find_target("c.s.eta", "./delta")[1], PathTables)


def test_a_schema_is_two_names():
    with pytest.raises(SpecError, match=r"not of the form catalog\.schema"):
        SparkTables("s")


def test_tables_differ_from_their_records_by_the_two_columns_of_the_append():
    assert dataclasses.replace(RUN, columns=(*RUN.columns, delta_ddl.NUMBER, delta_ddl.APPEND)) == STORED
