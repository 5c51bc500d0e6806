"""What every wave of a run has: its commit numbers, its keys as planned, and an error that says how to go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from group_models.adapters.spark_errors import SPARK_ERRORS, cause
from group_models.errors import StateError
from group_models.planning.plans import FITTED
from group_models.ports import SparkFrame
from group_models.runs.preparing import Prepared
from group_models.tables import PLAN, STORE

NUMBERS_PER_WAVE = 1000
"""Commit numbers that a wave reserves, for what its first attempt leaves missing."""

Say = Callable[[str], None]
"""Where progress goes, a line each."""

_PLANNED = ("key_id", "key", "unit", "key_index", "n_parts", "sample_share", "override")


def free_numbers(prepared: Prepared, run_id: str, wave: int) -> list[int]:
    """Return the numbers of a wave that no commit has taken, ascending."""
    taken = set(prepared.tables.numbers(STORE, model_set=prepared.spec.model_set, owner=run_id))
    return [number for number in _numbers(wave) if number not in taken]


def has_commits(prepared: Prepared, run_id: str, wave: int) -> bool:
    """Return whether a wave has committed anything."""
    taken = prepared.tables.numbers(STORE, model_set=prepared.spec.model_set, owner=run_id)
    return any(number in _numbers(wave) for number in taken)


def _numbers(wave: int) -> range:
    """Return the numbers that a wave reserves."""
    return range(wave * NUMBERS_PER_WAVE, (wave + 1) * NUMBERS_PER_WAVE)


def planned_keys(
    prepared: Prepared,
    run_id: str,
    *,
    wave: int | None = None,
    keys: Collection[str] | None = None,
    decisions: Collection[str] = FITTED,
) -> SparkFrame:
    """Return fitted keys as the plan table has them: no local relation of a million keys is uploaded."""
    where: dict[str, Collection[str | int | None]] = {
        "model_set": [prepared.spec.model_set],
        "run_id": [run_id],
        "decision": list(decisions),
    }
    if wave is not None:
        where["wave"] = [wave]
    if keys is not None:
        where["key_id"] = list(keys)
    return prepared.tables.scan(prepared.spark, PLAN, columns=_PLANNED, where=where)


def go_on(run_id: str) -> str:
    """Return how a run that stopped goes on, for people."""
    return f"`group-models train SPEC --run-id {run_id}` goes on"


@contextmanager
def failing_wave(run_id: str, wave: str) -> Iterator[None]:
    """Say of a wave that failed as a whole which run to go on with.

    Raises
    ------
    StateError
        The wave's job failed, or its rows could not be written.
    """
    failed, after = f"run {run_id}: {wave} failed", f"What was committed before stays; {go_on(run_id)}"
    try:
        yield
    except SPARK_ERRORS as e:
        raise StateError(f"{failed}: {cause(e)}. {after}") from e
    except StateError as e:
        raise StateError(f"{failed}: {e}. {after}") from e
