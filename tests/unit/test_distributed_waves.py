"""The wave of one distributed key: its row, and what is said where it cannot be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from group_models.adapters import spark_distribute, spark_train
from group_models.errors import StateError
from group_models.fakes import MemoryTables
from group_models.fitting.outcomes import RESULT
from group_models.runs.distributed_waves import distribute_wave
from group_models.tables import STORE, WHOLE, utc_now

PLANNED = {"wave": 2, "key_id": "k1", "key": [("carrier", "UA")], "unit": 7}
SETTINGS: Any = SimpleNamespace(model_set="c.s.m", run_id="r1")


def distribute(monkeypatch: pytest.MonkeyPatch, tables: MemoryTables, outcome: dict[str, Any] | Exception) -> None:
    """Train the key, with a fit that comes to this outcome."""

    def fit(*_: object) -> pa.Table:
        if isinstance(outcome, Exception):
            raise outcome
        return STORE.rows([{**dict.fromkeys(("model_set", "run_id"), ""), "wave": 0, "number": 0, **outcome}]).select(
            list(RESULT)
        )

    monkeypatch.setattr(spark_train, "rows_of_key", lambda *_: None)
    monkeypatch.setattr(spark_distribute, "distribute_key", fit)
    roles = SimpleNamespace(keys={"carrier": "string"})
    prepared: Any = SimpleNamespace(
        spec=SimpleNamespace(model_set="c.s.m"), tables=tables, roles=roles, key_types={"carrier": "string"}
    )
    distribute_wave(prepared, PLANNED, None, SETTINGS, 2)


def trained() -> dict[str, Any]:
    return {
        "key_id": "k1", "part": WHOLE, "format": 1, "status": "trained", "started_at": utc_now(), "data": b"model",
        "metrics": [("mae", 1.5)], "params": [("num_workers", "2")],
    }  # fmt: skip


def test_the_row_is_written_as_it_came_and_only_once(monkeypatch):
    tables = MemoryTables()
    distribute(monkeypatch, tables, trained())
    distribute(monkeypatch, tables, AssertionError("fitted again"))
    (row,) = tables.read(STORE).to_pylist()
    assert (row["model_set"], row["run_id"], row["wave"], row["number"], row["attempt"]) == ("c.s.m", "r1", 2, 2000, 0)
    assert (row["status"], row["data"], dict(row["metrics"])) == ("trained", b"model", {"mae": 1.5})
    assert dict(row["params"]) == {"num_workers": "2"}


@pytest.mark.parametrize("of", ["slots", "tables"])
def test_what_is_no_outcome_of_the_key_stops_the_run_which_goes_on_later(monkeypatch, of):
    tables = MemoryTables(fail_on={1: "raise"} if of == "tables" else {})
    why = "the session has 1" if of == "slots" else "append 1 was told to"
    outcome = StateError(why) if of == "slots" else trained()
    said = (
        rf"^run r1: wave 3 with the distributed key carrier=UA failed: .*{why}.*; `group-models train SPEC --run-id r1`"
    )
    with pytest.raises(StateError, match=said):
        distribute(monkeypatch, tables, outcome)
    assert tables.read(STORE).num_rows == 0
    distribute(monkeypatch, tables, trained())
    assert tables.read(STORE)["status"].to_pylist() == ["trained"]
