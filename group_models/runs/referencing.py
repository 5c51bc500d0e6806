"""Which models the keys of a level are compared with: of parents those that have not seen the holdout."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters.spark_references import CHAMPION_TYPES, PARENT_TYPES, PART_TYPES, STORED, References
from group_models.fitting.measures import TRAIN_MEDIAN
from group_models.fitting.outcomes import FitSettings
from group_models.keys import level_name, texts_id
from group_models.live.champions import Refit, seen_until
from group_models.live.sets import Live, read_without_pins
from group_models.planning.plans import Plan
from group_models.ports import SparkFrame, Where
from group_models.runs.preparing import Prepared
from group_models.runs.resuming import read_events
from group_models.runs.wave_jobs import Say
from group_models.spec import parent_fingerprint
from group_models.tables import MANIFEST, NEW_MODEL, RUN, STORE, WHOLE, moment

_OF_PART = ("run_id", "key_id", "part", "number", "status", "baseline_metrics", "holdout_from", "model_bytes")
_OF_CHAMPION = ("run_id", "key_id", "sha256", "metrics", "train_to", "holdout_from")


@dataclasses.dataclass(frozen=True)
class Comparing:
    """What the models of a run are compared with.

    Attributes
    ----------
    live
        What served when the run started.
    fingerprint
        That of parents' fits of this run: an earlier run's parent is a comparison where it has the same.
    """

    prepared: Prepared
    plan: Plan
    settings: FitSettings
    live: Live
    fingerprint: str
    say: Say

    @classmethod
    def of(cls, prepared: Prepared, plan: Plan, settings: FitSettings, say: Say) -> Comparing | None:
        """Return what a run is compared with, None where there is nothing to read for it."""
        if not prepared.levels.parents and not prepared.spec.asks_champion:
            return None
        tables, model_set = prepared.tables, prepared.spec.model_set
        started = read_events(tables, model_set, settings.run_id).started or {}
        live = read_without_pins(tables, model_set, started.get("base_release"))
        limit = prepared.spec.limits.max_parent_rows
        return cls(prepared, plan, settings, live, parent_fingerprint(str(started.get("spec_fingerprint")), limit), say)

    def of_level(self, level: str) -> References:
        """Return what the keys of a level are compared with, once the levels above it are trained."""
        own = len(self.plan.levels()[level])
        above = {level_name(columns): columns for columns in self.prepared.levels.parents if len(columns) < own}
        references = dataclasses.replace(References.none(), levels=above)
        if above:
            references = self._with_parents(references)
        if self.prepared.spec.asks_champion and level == self.prepared.levels.own:
            references = dataclasses.replace(references, champions=self._champions(level))
        return dataclasses.replace(references, store=self._models(references))

    def _models(self, references: References) -> SparkFrame | None:
        """Return the store's rows of these models and of as few others as a row filter can tell."""
        found = []
        for models, part in ((references.parts, None), (references.champions, [WHOLE])):
            if not models.num_rows:
                continue
            where: dict[str, Any] = {"model_set": [self.settings.model_set]}
            where["run_id"] = sorted(set(models["run_id"].to_pylist()))
            # Of parents there are few; of the keys of a fleet no list is sent.
            where["part"] = part or sorted(set(models["part"].to_pylist()))
            where |= {} if part else {"key_id": sorted(set(models["key_id"].to_pylist()))}
            found.append(self.prepared.tables.scan(self.prepared.spark, STORE, columns=STORED, where=where))
        return functools.reduce(lambda one, other: one.unionByName(other), found) if found else None

    def _with_parents(self, references: References) -> References:
        """Add the parents that serve after this run: those of its own models, then those that served before."""
        keys, before = self._known(list(references.levels))
        rows = self._stored(list(keys), sorted({*before.values(), self.settings.run_id}))
        is_new = (rows["run_id"] == self.settings.run_id) & (rows["part"] == WHOLE) & rows["status"].isin(NEW_MODEL)
        serving = {**before, **dict.fromkeys(rows.loc[is_new, "key_id"], self.settings.run_id)}
        numbers = {key_id: number for number, key_id in enumerate(sorted(serving))}
        parents = [{"reference": n, "key_id": key_id, **keys[key_id]} for key_id, n in numbers.items()]
        parts = self._within_budget(self._parts(rows, serving, numbers), numbers)
        table = pa.Table.from_pylist(parents, PARENT_TYPES)
        return dataclasses.replace(references, parents=table, parts=pa.Table.from_pylist(parts, PART_TYPES))

    def _within_budget(self, parts: list[dict[str, Any]], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return these models where a unit can hold them all beside its rows, else that of all rows alone, or none."""
        most = self.prepared.spec.limits.max_unit_bytes
        if (total := _bytes(parts)) <= most:
            return parts
        over_all = numbers.get(texts_id({}, self.prepared.roles.keys))
        kept = [part for part in parts if part["reference"] == over_all]
        kept = kept if _bytes(kept) <= most else []
        others = "compared with the model of all rows alone" if kept else "not compared with parents"
        self.say(f"the models of parents have {total:,} bytes, max_unit_bytes is {most:,}: keys are {others}")
        return kept

    def _known(self, levels: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the parents of these levels by id, `level` and `key`, and the runs whose models served before."""
        planned = self.plan.keys.filter(pc.is_in(self.plan.keys["level"], pa.array(levels)))
        known = self.live.keys[self.live.keys["level"].isin(levels) & self.live.keys["model_run_id"].notna()]
        keys = {
            str(key_id): {"level": row["level"], "key": list(row["key"].items())} for key_id, row in known.iterrows()
        }
        for row in planned.select(["key_id", "level", "key"]).to_pylist():
            keys[row["key_id"]] = {"level": row["level"], "key": row["key"]}
        return keys, {str(key_id): str(run_id) for key_id, run_id in known["model_run_id"].items()}

    def _stored(self, key_ids: Sequence[str], runs: Sequence[str]) -> pd.DataFrame:
        """Return the rows of the store that count of these keys in these runs, parts included, without models."""
        where: Where = {"model_set": [self.settings.model_set], "run_id": runs, "key_id": key_ids}
        rows = self.prepared.tables.read(STORE, columns=_OF_PART, where=where).sort_by("number").to_pandas()
        return pd.DataFrame(rows.drop_duplicates(["run_id", "key_id", "part"]))

    def _parts(
        self, rows: pd.DataFrame, serving: Mapping[str, str], numbers: Mapping[str, int]
    ) -> list[dict[str, Any]]:
        """Return the rows of the serving parents' models that have seen none of this run's holdout."""
        alike = self._trained_alike(serving)
        return [
            {**row, "reference": numbers[row["key_id"]]}
            for row in cast("list[dict[str, Any]]", rows[rows["part"] != WHOLE].to_dict("records"))
            if serving.get(row["key_id"]) == row["run_id"] and row["key_id"] in alike
            if row["status"] == "trained" and TRAIN_MEDIAN in dict(row["baseline_metrics"] or ())
            if self._is_unseen(row["holdout_from"])
        ]

    def _trained_alike(self, serving: Mapping[str, str]) -> set[str]:
        """Return the parents whose model is of this run, or of an earlier one by the same spec."""
        own = self.settings.run_id
        runs = sorted({run_id for run_id in serving.values() if run_id != own})
        alike = {key_id for key_id, run_id in serving.items() if run_id == own}
        if not runs:
            return alike
        where: Where = {"model_set": [self.settings.model_set], "run_id": runs, "key_id": sorted(serving),
                        "spec_fingerprint": [self.fingerprint]}  # fmt: skip
        rows = self.prepared.tables.read(MANIFEST, columns=["run_id", "key_id"], where=where).to_pylist()
        return alike | {row["key_id"] for row in rows if serving[row["key_id"]] == row["run_id"]}

    def _is_unseen(self, holdout_from: Any) -> bool:
        """Return whether a model that left out the rows from a moment on has left out this run's holdout."""
        now = self.settings.holdout_from_us
        if now is None:
            return True
        return bool(pd.notna(holdout_from)) and holdout_from <= pd.Timestamp(moment(now))

    def _champions(self, level: str) -> pa.Table:
        """Return the models that serve the keys of a level now, and until when each has seen rows."""
        fitted = self.plan.keys.filter(pa.array(self.plan.is_fitted))
        key_ids = fitted.filter(pc.equal(fitted["level"], level))["key_id"].to_pandas()
        serving = self.live.keys[self.live.keys["model_run_id"].notna() & self.live.keys["number"].notna()]
        serving = serving[serving.index.isin(key_ids)]
        runs = sorted(set(serving["model_run_id"]))
        if not runs:
            return CHAMPION_TYPES.empty_table()
        where: Where = {"model_set": [self.settings.model_set], "run_id": runs, "status": NEW_MODEL}
        rows = self.prepared.tables.read(MANIFEST, columns=_OF_CHAMPION, where=where).to_pandas()
        rows = rows.drop_duplicates(["run_id", "key_id"])
        known = serving[["model_run_id", "number"]].rename(columns={"model_run_id": "run_id"}).reset_index()
        rows = rows.merge(known, on=["run_id", "key_id"])
        rows["seen_until_us"] = seen_until(rows, self._how_trained(runs), Refit.of(self.prepared.spec))
        rows = rows[rows["seen_until_us"].notna()]
        return pa.Table.from_pandas(rows[CHAMPION_TYPES.names], CHAMPION_TYPES, preserve_index=False)

    def _how_trained(self, runs: Sequence[str]) -> dict[str, Refit]:
        where: Where = {"model_set": [self.settings.model_set], "run_id": runs, "event": ["started"]}
        rows = self.prepared.tables.read(RUN, columns=["run_id", "spec"], where=where).to_pylist()
        return {row["run_id"]: Refit.of_json(json.loads(row["spec"] or "{}")) for row in rows}


def _bytes(parts: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(part["model_bytes"]) for part in parts)
