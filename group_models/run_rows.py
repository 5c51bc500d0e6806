"""Append rows of a run to the run table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from group_models.errors import StateError
from group_models.ports import Commit, Tables
from group_models.tables import RUN

_TRIES = 50


def append_run_row(tables: Tables, row: Mapping[str, Any], is_there: Callable[[], bool] = lambda: False) -> None:
    """Write a row under the next free number of its run, unless it is there.

    Numbers ascend in time, as tables with transactions want it.

    Parameters
    ----------
    is_there
        Asked before each attempt whether the row is there already.

    Raises
    ------
    StateError
        The rows of the run go on changing.
    """
    model_set, run_id = row["model_set"], row["run_id"]
    for _ in range(_TRIES):
        numbers = tables.numbers(RUN, model_set=model_set, owner=run_id)
        if is_there():
            return
        if tables.append(RUN, RUN.rows([row]), Commit(model_set, run_id, numbers[-1] + 1 if numbers else 0)):
            return
    raise StateError(f"run {run_id}: its rows changed {_TRIES} times while `{row['event']}` was added; try again")
