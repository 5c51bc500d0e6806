"""What a run tells while it goes on: a line per wave, and how far it is."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from group_models.live.manifest import FAILED, first_rows
from group_models.planning.plans import Plan, count_waves
from group_models.ports import Tables, Where
from group_models.reporting.progress import Done, Progress, Show
from group_models.runs.wave_jobs import Say
from group_models.tables import STORE, WHOLE
from group_models.texts import number_text


class Watch:
    """The progress of one run (model set and run id), told to a log by lines and to a display as a value."""

    def __init__(self, tables: Tables, plan: Plan, run: tuple[str, str], say: Say, show: Show) -> None:
        self.say = say
        self._show = show
        self._tables = tables
        self._where: Where = {"model_set": [run[0]], "run_id": [run[1]]}
        self._keys = plan.keys.select(["key_id", "usable_rows"])
        self._waves = count_waves(plan)
        self._progress = Progress.of(plan, self._tables.read(STORE, columns=["key_id", "part"], where=self._where))
        show(self._progress)

    def wave_done(self, wave: int, parts: pa.Table, took_s: float) -> None:
        """Tell of a wave that is committed: one line, and how far the run is."""
        keys, units = (pc.count_distinct(parts[name]).as_py() for name in ("key_id", "unit"))
        self._done(wave, parts["key_id"], f"{number_text(keys, 'key')} in {number_text(units, 'unit')}", took_s)

    def combined(self, plan: Plan, took_s: float) -> None:
        """Tell of the wave that put the parts of a level's salted keys together: their outcomes come with it."""
        salted = plan.keys.filter(pc.equal(plan.keys["decision"], "salted"))
        parts = number_text(pc.sum(salted["n_parts"]).as_py(), "part")
        self._done(plan.waves, salted["key_id"], f"{number_text(salted.num_rows, 'salted key')} of {parts}", took_s)

    def _done(self, wave: int, key_ids: pa.ChunkedArray, what: str, took_s: float) -> None:
        self._progress = self._progress.after_wave(wave, took_s).plus(self._outcomes(wave, key_ids))
        so_far = self._progress.text()
        self.say(f"wave {wave + 1} of {self._waves} done: {what}, {took_s:.1f} s; so far {so_far}")
        self._show(self._progress)

    def _outcomes(self, wave: int, key_ids: pa.ChunkedArray) -> Done:
        """Return what came of these keys in a wave; those that wait for their parts to be combined are none yet."""
        names = ["key_id", "part", "number", "status"]
        rows = first_rows(self._tables.read(STORE, columns=names, where={**self._where, "wave": [wave]}))
        whole = pc.and_(pc.equal(rows["part"], WHOLE), pc.is_in(rows["key_id"], pc.unique(key_ids)))
        rows = rows.filter(whole)
        planned = self._keys.filter(pc.is_in(self._keys["key_id"], rows["key_id"].combine_chunks()))
        failed = pc.is_in(rows["status"], pa.array(FAILED))
        return Done(rows.num_rows, pc.sum(failed).as_py() or 0, pc.sum(planned["usable_rows"]).as_py() or 0)
