"""The last wave of a run with salted keys: their parts become one ensemble each, measured and stored."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_combine, spark_train
from group_models.adapters.spark_errors import SPARK_ERRORS, is_dead_worker
from group_models.adapters.spark_references import References
from group_models.estimators.registry import make_family
from group_models.fitting.deaths import or_late
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.parts import PART_COLUMNS, PartsOutcome, judge_parts, with_metrics
from group_models.keys import key_json, show_key
from group_models.live.manifest import first_rows
from group_models.mlmodel import MlmodelTemplate, requirements
from group_models.planning.plans import Plan
from group_models.ports import Commit, SparkFrame, Where
from group_models.runs.preparing import Prepared
from group_models.runs.wave_jobs import NUMBERS_PER_WAVE, Say, failing_wave, free_numbers, planned_keys
from group_models.tables import STORE, WHOLE


def combine_parts(
    prepared: Prepared, plan: Plan, rows: SparkFrame, settings: FitSettings, say: Say, references: References
) -> None:
    """Commit one row per salted key, if the run does not have them yet.

    Raises
    ------
    StateError
        The wave's job failed; the same run id goes on.
    """
    salted = plan.keys.filter(pc.equal(plan.keys["decision"], "salted"))
    planned = {row["key_id"]: row for row in salted.to_pylist()}
    where: Where = {"model_set": [settings.model_set], "run_id": [settings.run_id], "key_id": list(planned)}
    stored = first_rows(prepared.tables.read(STORE, columns=PART_COLUMNS, where=where))
    whole = set(stored.filter(pc.equal(stored["part"], WHOLE))["key_id"].to_pylist())
    owed = {key_id: row for key_id, row in planned.items() if key_id not in whole}
    if not owed:
        return
    start = time.perf_counter()
    parts = stored.filter(pc.not_equal(stored["part"], WHOLE))
    _Combining(prepared, plan, rows, settings, say, parts, owed, references).commit(list(owed))
    count = sum(row["n_parts"] for row in owed.values())
    say(f"{len(owed)} salted keys made of {count} parts, {time.perf_counter() - start:.1f} s")


@dataclasses.dataclass(frozen=True)
class _Combining:
    """The salted keys that a run owes, with the rows of their parts."""

    prepared: Prepared
    plan: Plan
    rows: SparkFrame
    settings: FitSettings
    say: Say
    parts: pa.Table
    owed: Mapping[str, Mapping[str, Any]]
    references: References

    def commit(self, key_ids: Sequence[str]) -> None:
        """Commit the rows of these keys; where a worker dies of one's predictions, in halves until it is alone."""
        what = f"combining the parts of {len(key_ids)} salted keys"
        try:
            self._append(self._frame(key_ids))
        except SPARK_ERRORS as e:
            if not is_dead_worker(e):
                with failing_wave(self.settings.run_id, what):
                    raise
            if len(key_ids) == 1:
                self._commit_crashed(key_ids[0])
                return
            self.say(f"a worker died while {what}; they are halved until the one that kills it is alone")
            self.commit(key_ids[: len(key_ids) // 2])
            self.commit(key_ids[len(key_ids) // 2 :])

    def _append(self, frame: SparkFrame) -> None:
        number = free_numbers(self.prepared, self.settings.run_id, self.plan.waves)[0]
        place = {"wave": self.plan.waves, "number": number, "attempt": number % NUMBERS_PER_WAVE}
        rows = spark_train.store_rows(frame, self.settings, **place)
        commit = Commit(self.settings.model_set, self.settings.run_id, number)
        self.prepared.tables.append(STORE, rows.repartition(self._files()), commit)

    def _files(self) -> int:
        return spark_train.count_files(pc.sum(self.parts["model_bytes"]).as_py() or 0)

    def _commit_crashed(self, key_id: str) -> None:
        """Write the row of a key whose ensemble ends the worker that measures it."""
        outcome = {name: value for name, value in self._judged(key_id).columns.items() if name != "rows_used"}
        late = or_late(self.settings.limits)
        died = f"the ensemble of its parts ended the worker that measured it on the holdout{late}"
        row = {**outcome, "status": "crashed", "reason": f"evaluate: {died}", "error_stage": "evaluate"}
        self.say(f"{died}: {show_key(dict(self.owed[key_id]['key']))} is a row of status crashed")
        self._append(spark_combine.of_rows(self.prepared.spark, [row]))

    def _judged(self, key_id: str) -> PartsOutcome:
        own = self.parts.filter(pc.equal(self.parts["key_id"], key_id))
        return judge_parts(own.to_pylist(), self.owed[key_id], self.settings.of(self.owed[key_id].get("override")))

    def _frame(self, key_ids: Sequence[str]) -> SparkFrame:
        """Return the rows of these keys: those that are trained with their model."""
        outcomes = [self._judged(key_id) for key_id in key_ids]
        columns = self._measured(outcomes)
        trained = {row["key_id"]: row for row in columns if row["status"] == "trained"}
        failed = [row for row in columns if row["status"] != "trained"]
        keys = {i: key_json(list(key), tuple(key.values())) for i in key_ids for key in [dict(self.owed[i]["key"])]}
        final = [(o.key_id, part) for o in outcomes for part in range(self.owed[o.key_id]["n_parts"])]
        frame = spark_combine.combine(self._models(final), trained, self._templates(key_ids), keys)
        return spark_combine.with_failed(frame, failed) if failed else frame

    def _templates(self, key_ids: Sequence[str]) -> dict[str, MlmodelTemplate]:
        """Return the template of each key's ensemble; of an override they are of its own."""
        places = {key_id: self.owed[key_id].get("override") for key_id in key_ids}
        made = {place: _template(self.prepared.overridden(place), self.settings) for place in set(places.values())}
        return {key_id: made[place] for key_id, place in places.items()}

    def _models(self, wanted: Sequence[tuple[str, int]]) -> SparkFrame:
        """Return the models of these parts: of two commits with the same part, those of the lower number."""
        names = ["key_id", "part", "number"]
        asked = pa.Table.from_pylist(
            [{"key_id": key_id, "part": part} for key_id, part in wanted],
            pa.schema({"key_id": pa.string(), "part": pa.int32()}),
        )
        counting = self.parts.select(names).join(asked, ["key_id", "part"], join_type="left semi")
        where: Where = {"model_set": [self.settings.model_set], "run_id": [self.settings.run_id]}
        columns = [*names, "data", "data_file"]
        scanned = self.prepared.tables.scan(self.prepared.spark, STORE, columns=columns, where=where)
        return spark_combine.of_these(scanned, counting)

    def _measured(self, outcomes: Sequence[PartsOutcome]) -> list[dict[str, Any]]:
        """Return the columns of each key's row, with metrics where there is a holdout."""
        ensembles = [
            spark_combine.Ensemble(
                o.key_id,
                o.measured,
                o.columns["holdout_rows"],
                o.baseline,
                self.references.links_of(dict(self.owed[o.key_id]["key"])),
            )
            for o in outcomes
            if o.has_holdout
        ]
        if not ensembles:
            return [outcome.columns for outcome in outcomes]
        found = spark_combine.measure_ensembles(
            self.rows,
            planned_keys(self.prepared, self.settings.run_id, decisions=["salted"]),
            self._models([(ensemble.key_id, part) for ensemble in ensembles for part in ensemble.parts]),
            ensembles,
            roles=self.prepared.roles,
            key_types=self.prepared.key_types,
            settings=self.settings,
            references=self.references,
            slots=self.plan.slots,
        )
        return [with_metrics(o, found[o.key_id]) if o.key_id in found else o.columns for o in outcomes]


def _template(prepared: Prepared, settings: FitSettings) -> MlmodelTemplate:
    families = [make_family(each, prepared.features) for each in (prepared.estimator, *prepared.others)]
    needs = [needed for family in families for needed in requirements(family.flavor)]
    return MlmodelTemplate.build(
        labels=prepared.estimator.labels,
        model_set=settings.model_set,
        run_id=settings.run_id,
        features=prepared.features,
        flavor="ensemble",
        estimator=families[0].name,
        extra_requirements=needs,
        intervals=settings.intervals,
    )
