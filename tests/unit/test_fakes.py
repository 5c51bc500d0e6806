"""The tables in memory go wrong as they are told."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from group_models.errors import StateError
from group_models.fakes import MemoryTables
from group_models.ports import Commit
from group_models.tables import RUN


def append(tables: MemoryTables, number: int) -> bool:
    row = {"model_set": "m", "run_id": "r", "event": "started", "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    return tables.append(RUN, RUN.rows([row | {"waves": number}]), Commit("m", "r", number))


def numbers(tables: MemoryTables) -> list[int]:
    assert tables.numbers(RUN, model_set="m", owner="r") == sorted(tables.read(RUN)["waves"].to_pylist())
    return tables.numbers(RUN, model_set="m", owner="r")


def test_an_append_that_raises_has_written_nothing():
    tables = MemoryTables(fail_on={2: "raise"})
    assert append(tables, 0) is True
    with pytest.raises(StateError, match="append 2 was told to fail before its rows were written"):
        append(tables, 1)
    assert numbers(tables) == [0]
    assert append(tables, 1) is True
    assert tables.appends == 3


def test_an_append_that_loses_its_answer_has_written_its_rows():
    tables = MemoryTables(fail_on={1: "write_then_raise"})
    with pytest.raises(StateError, match="append 1 was told to lose its answer"):
        append(tables, 0)
    assert numbers(tables) == [0]
    assert append(tables, 0) is False


def test_an_append_can_be_written_and_say_that_it_was_there_already():
    tables = MemoryTables(fail_on={1: "write_then_false"})
    assert append(tables, 0) is False
    assert numbers(tables) == [0]


def test_an_append_can_say_that_it_was_written_and_not_be():
    tables = MemoryTables(fail_on={1: "true_without_write"})
    assert append(tables, 0) is True
    assert numbers(tables) == []
    assert append(tables, 0) is True


def test_a_spark_frame_is_taken_through_arrow():
    class Frame:
        """What the fake needs of a Spark frame."""

        def toArrow(self) -> pa.Table:  # noqa: N802
            moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
            return pa.table({"at": [moment], "run_id": ["r"], "event": ["started"], "model_set": ["m"]})

    tables = MemoryTables()
    assert tables.append(RUN, Frame(), Commit("m", "r", 0)) is True
    assert tables.read(RUN).schema == RUN.arrow_schema
    assert tables.read(RUN, columns=["run_id"]).to_pylist() == [{"run_id": "r"}]
