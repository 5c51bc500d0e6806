"""One wave of a run: a Spark job and a commit; what it leaves missing, and what it dies of, goes out again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_train
from group_models.adapters.spark_errors import SPARK_ERRORS, cause, is_childless, is_dead_worker
from group_models.adapters.spark_pool import Pool
from group_models.adapters.spark_references import NO_REFERENCES, References
from group_models.errors import StateError
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.pieces import crashed_row, halves
from group_models.keys import show_key
from group_models.planning.plans import Plan
from group_models.ports import Commit, SparkFrame, Where
from group_models.runs.preparing import Prepared
from group_models.runs.wave_jobs import NUMBERS_PER_WAVE, Say, free_numbers, go_on, has_commits, planned_keys
from group_models.tables import STORE

_ATTEMPTS = 3
"""Attempts of a wave before the run is given back to whoever started it."""

_MOST_CRASHED, _CRASHED_IN_A_ROW = 20, 5
"""Keys found by halving from which it is rather the workers that are ill; and the same where no piece was trained."""

_NAMED = 3
"""Keys that a message names."""


class _IllWorkersError(StateError):
    """So many keys killed their workers that it may be the workers."""


class OneWave:
    """One wave of a run, until each of its keys has a row.

    Its units go out in one job. Where that dies with a worker, it goes out again with each fit in a child process
    (`isolation: auto`), which costs a few milliseconds a key and leaves a row of the key that kills. Where no child
    can be made, or `isolation: never` forbids it, the wave is halved until that key is alone. Each job commits
    under the next free number of those that the wave reserved.
    """

    def __init__(
        self,
        prepared: Prepared,
        plan: Plan,
        wave: int,
        rows: SparkFrame,
        settings: FitSettings,
        say: Say,
        references: References = NO_REFERENCES,
        pool: Pool | None = None,
    ) -> None:
        self._prepared = prepared
        self._plan = plan
        self._wave = wave
        self._rows = rows
        self._settings = settings
        self._say = say
        self._references = references
        self._pool = pool
        free = free_numbers(prepared, settings.run_id, wave)
        self._numbers: Iterator[int] = iter(free)
        self._may_isolate = prepared.spec.isolation != "never"
        self._has_committed = len(free) < NUMBERS_PER_WAVE

    def train(self, parts: pa.Table) -> None:
        """Commit a row for each of these parts (columns of `Plan.parts`) that the store has none of.

        Raises
        ------
        StateError
            The job failed for another reason than a dead worker, or left parts without a row.
        """
        for _ in range(_ATTEMPTS):
            missing = self._missing(parts)
            if not missing.num_rows:
                return
            self._try(missing)
        if (left := self._missing(parts)).num_rows:
            raise StateError(
                f"run {self._settings.run_id}: {self._named(left)} have no outcome after {_ATTEMPTS} attempts; "
                f"{go_on(self._settings.run_id)}"
            )

    def _try(self, parts: pa.Table) -> None:
        """Commit these parts, in child processes or in halves where a worker dies of one."""
        isolation = self._prepared.spec.isolation
        death = self._commit(parts, self._settings)
        if death is not None and isolation != "never" and not is_childless(death):
            self._tell(f"a worker died; its {_keys_are(parts)} fitted again in child processes")
            death = self._commit(parts, dataclasses.replace(self._settings, is_isolated=True))
        if death is None:
            return
        why = "no child process can be made" if is_childless(death) else "a worker died"
        self._tell(f"{why}; its {_keys_are(parts)} halved until the one that kills its worker is alone")
        settings = self._settings
        # What `always` asks for is given up only where it cannot be had.
        if is_childless(death) or isolation != "always":
            settings = self._here()
        if is_childless(death) and isolation == "always" and self._commit(parts, settings) is None:
            return
        crashed: list[pa.Table] = []
        try:
            self._halve(parts, settings, crashed)
        except _IllWorkersError:
            # Workers that trained others are well: these keys are poison, and who goes on finds the next ones.
            self._commit_crashed(crashed if self._has_committed else [])
            raise
        self._commit_crashed(crashed)

    def _here(self) -> FitSettings:
        """Return the settings of fits without child processes, which all retries have from now on."""
        self._may_isolate = False
        return dataclasses.replace(self._settings, is_isolated=False)

    def _commit_piece(self, parts: pa.Table, settings: FitSettings) -> Exception | None:
        """Commit a piece; where no child process can be made for it, without."""
        death = self._commit(parts, settings, is_piece=True)
        if death is not None and settings.is_isolated and is_childless(death):
            return self._commit(parts, self._here(), is_piece=True)
        return death

    def _halve(self, parts: pa.Table, settings: FitSettings, crashed: list[pa.Table]) -> None:
        """Commit parts of which one kills its worker in pieces; those that die alone are added to `crashed`."""
        if parts.num_rows > 1:
            for piece in halves(parts):
                if self._commit_piece(piece, settings) is not None:
                    self._halve(piece, settings, crashed)
            return
        crashed.append(parts)
        if len(crashed) >= (_MOST_CRASHED if self._has_committed else _CRASHED_IN_A_ROW):
            is_forbidden = self._prepared.spec.isolation == "never"
            isolate = ", or say `isolation: auto`, which fits each key in a child process" if is_forbidden else ""
            raise _IllWorkersError(
                f"run {self._settings.run_id}: {len(crashed)} keys of {self._named(pa.concat_tables(crashed))} killed "
                "their workers one after the other; the workers themselves may be ill: look at the standard error of "
                f"the executors, and mend the estimator{isolate}; {go_on(self._settings.run_id)}"
            )

    def _commit(self, parts: pa.Table, settings: FitSettings, *, is_piece: bool = False) -> Exception | None:
        """Commit these parts in one job; return the error of one whose worker died.

        Raises
        ------
        StateError
            It failed for another reason.
        """
        number = self._next_number(parts)
        try:
            frame = self._frame(parts, settings, number, is_piece=is_piece)
            self._prepared.tables.append(STORE, frame, self._commit_of(number))
        except SPARK_ERRORS as e:
            if is_dead_worker(e) or is_childless(e):
                return e
            raise StateError(self._failed(parts, cause(e))) from e
        except StateError as e:
            raise StateError(self._failed(parts, str(e))) from e
        self._has_committed = True
        return None

    def _frame(self, parts: pa.Table, settings: FitSettings, number: int, *, is_piece: bool) -> SparkFrame:
        run_id = settings.run_id
        job = spark_train.Wave(
            number=self._wave,
            commit=number,
            attempt=number % NUMBERS_PER_WAVE,
            units=tuple(sorted(pc.unique(parts["unit"]).to_pylist())),
            model_bytes=pc.sum(parts["predicted_model_bytes"]).as_py() or 0.0,
            has_copies=bool(pc.any(parts["is_thinned"]).as_py()),
            references=self._references,
            pool=self._pool,
        )
        # Only a unit that was halved has other keys that are missing too.
        keys = parts["key_id"].to_pylist() if is_piece and len(job.units) == 1 else None
        return spark_train.train_wave(
            self._rows,
            planned_keys(self._prepared, run_id, wave=self._wave, keys=keys),
            self._prepared.tables.scan(self._prepared.spark, STORE, columns=["key_id", "part"], where=self._done()),
            job,
            roles=self._prepared.roles,
            key_types=self._prepared.key_types,
            settings=settings,
            may_isolate=self._may_isolate,
        )

    def _commit_crashed(self, crashed: list[pa.Table]) -> None:
        """Write the rows of the keys whose worker died with them alone."""
        if not crashed:
            return
        parts = pa.concat_tables(crashed)
        number = self._next_number(parts)
        place = {"wave": self._wave, "number": number, "attempt": number % NUMBERS_PER_WAVE}
        rows = [{**self._crashed(part), **place} for part in parts.to_pylist()]
        for row in rows:
            self._tell(f"{self._shown(row['key_id'])} kills its worker; it is a row of status crashed")
        self._prepared.tables.append(STORE, STORE.rows(rows), self._commit_of(number))

    def _crashed(self, part: Mapping[str, Any]) -> dict[str, Any]:
        settings = self._settings.of(part.get("override"))
        return crashed_row(part, settings, settings.estimator.label)

    def _commit_of(self, number: int) -> Commit:
        return Commit(self._settings.model_set, self._settings.run_id, number)

    def _next_number(self, parts: pa.Table) -> int:
        number = next(self._numbers, None)
        if number is None:
            raise StateError(
                f"run {self._settings.run_id}: {self._named(parts)} are left and the {NUMBERS_PER_WAVE} commits of "
                "the wave are used up: too many of its keys kill their worker; start a new run with "
                "`isolation: always`, or mend the estimator"
            )
        return number

    def _missing(self, parts: pa.Table) -> pa.Table:
        """Return the parts that the store has no row of."""
        if not has_commits(self._prepared, self._settings.run_id, self._wave):
            return parts
        done = self._prepared.tables.read(STORE, columns=["key_id", "part"], where=self._done())
        return parts.join(done, ["key_id", "part"], join_type="left anti")

    def _done(self) -> Where:
        """Return which rows of the store are outcomes of this wave."""
        return {"model_set": [self._settings.model_set], "run_id": [self._settings.run_id], "wave": [self._wave]}

    def _failed(self, parts: pa.Table, why: str) -> str:
        return (
            f"run {self._settings.run_id}: {self._named(parts)} failed: {why}. What was committed before stays; "
            f"{go_on(self._settings.run_id)}"
        )

    def _named(self, parts: pa.Table) -> str:
        """Return a wave, its units and some of its keys, for people."""
        units = pc.min_max(parts["unit"]).as_py()
        ids = pc.unique(parts["key_id"]).to_pylist()
        named = ", ".join(self._shown(key_id) for key_id in ids[:_NAMED])
        more = f" and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
        return f"wave {self._wave + 1} with units {units['min']} to {units['max']} (keys {named}{more})"

    def _shown(self, key_id: str) -> str:
        place = pc.index(self._plan.keys["key_id"], key_id).as_py()
        return show_key(dict(self._plan.keys["key"][place].as_py()))

    def _tell(self, what: str) -> None:
        self._say(f"wave {self._wave + 1}: {what}")


def _keys_are(parts: pa.Table) -> str:
    count = pc.count_distinct(parts["key_id"]).as_py()
    return "1 key is" if count == 1 else f"{count:,} keys are"
