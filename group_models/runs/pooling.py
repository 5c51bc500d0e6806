"""The parents that the keys of a run build on: which they are, and where the models of their parts are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_pool
from group_models.adapters.spark_references import STORED
from group_models.estimators.registry import make_family
from group_models.fitting.measures import TRAIN_MEDIAN
from group_models.fitting.outcomes import FitSettings, PoolSettings
from group_models.keys import level_name
from group_models.live.manifest import first_rows
from group_models.live.sets import Live
from group_models.mlmodel import MlmodelTemplate, requirements
from group_models.planning.plans import Plan
from group_models.planning.pooled import MIN_PARTS
from group_models.ports import Where
from group_models.runs.preparing import Prepared
from group_models.runs.spec_estimators import family_of_children, pooled_settings
from group_models.spec import ParentSpec
from group_models.tables import MANIFEST, STORE, WHOLE, micros

_OF_PARTS = ("run_id", "key_id", "part", "number", "status", "baseline_metrics", "holdout_from", "sha256")


def pool_settings(prepared: Prepared, settings: FitSettings) -> FitSettings:
    """Return what the units of the keys of a pooled run must know."""
    spec = prepared.spec
    child = family_of_children(spec, prepared.estimator, prepared.features)
    parent = make_family(prepared.estimator, prepared.features)
    template = MlmodelTemplate.build(
        model_set=spec.model_set,
        run_id=settings.run_id,
        features=prepared.features,
        flavor=child.flavor,
        estimator=child.name,
        extra_requirements=(*requirements(child.own.flavor), *requirements(parent.flavor)),
        intervals=spec.intervals,
    )
    own, is_residual = pooled_settings(spec, prepared.estimator), spec.pooling.mode == "residual"
    pooling = PoolSettings(own, spec.pooling.half_rows, template, is_residual)
    return dataclasses.replace(settings, pooling=pooling)


def find_pool(prepared: Prepared, plan: Plan, settings: FitSettings, live: Live) -> spark_pool.Pool:
    """Return the parents that keys can build on: of tonight, or else those that serve and are of the present spec.

    Parameters
    ----------
    live
        What served when the run started.
    """
    tables, model_set = prepared.tables, settings.model_set
    tonight = _of_tonight(prepared, plan, settings)
    found = [*tonight, *_of_before(prepared, live, {row["key_id"] for row in tonight})]
    where: Where = {
        "model_set": [model_set],
        "run_id": sorted({row["run_id"] for row in found}),
        "key_id": sorted({row["key_id"] for row in found}),
    }
    parts = tables.read(STORE, columns=_OF_PARTS, where=where) if found else STORE.empty().select(_OF_PARTS)
    parents: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    for row in found:
        of_parent = parts.filter(
            pc.and_(pc.equal(parts["run_id"], row["run_id"]), pc.equal(parts["key_id"], row["key_id"]))
        )
        own = _parts(first_rows(of_parent).to_pylist(), row, settings)
        if own:
            models += [{"parent_ix": len(parents), **part} for part in own]
            parents.append({"parent_ix": len(parents), **row})
    return spark_pool.Pool(
        tables.scan(prepared.spark, STORE, columns=STORED, where=where) if models else None,
        parents,
        models,
        list(prepared.spec.pooled_levels),
    )


def _of_tonight(prepared: Prepared, plan: Plan, settings: FitSettings) -> list[dict[str, Any]]:
    """Return the parents that this run has trained: `key_id, key, n_parts, run_id`."""
    names = pa.array([level_name(level) for level in prepared.spec.pooled_levels], pa.string())
    salted = plan.keys.filter(pc.and_(pc.is_in(plan.keys["level"], names), pc.equal(plan.keys["decision"], "salted")))
    ids = salted["key_id"].to_pylist()
    where: Where = {
        "model_set": [settings.model_set], "run_id": [settings.run_id], "key_id": ids, "part": [WHOLE],
    }  # fmt: skip
    columns = ["key_id", "part", "number", "status"]
    stored = first_rows(prepared.tables.read(STORE, columns=columns, where=where)) if ids else STORE.empty()
    trained = set(stored.filter(pc.equal(stored["status"], "trained"))["key_id"].to_pylist())
    rows = salted.select(["key_id", "key", "n_parts"]).to_pylist()
    return [{**row, "key": dict(row["key"]), "run_id": settings.run_id} for row in rows if row["key_id"] in trained]


def _of_before(prepared: Prepared, live: Live, tonight: set[str]) -> list[dict[str, Any]]:
    """Return the other parents, of earlier runs, that serve and were trained by the present spec."""
    names = [level_name(level) for level in prepared.spec.pooled_levels]
    keys = live.keys[live.keys["level"].isin(names) & live.keys["model_run_id"].notna()]
    keys = keys[~keys.index.isin(list(tonight))]
    return [
        {"key_id": key_id, "key": dict(keys["key"][key_id]), "n_parts": n_parts, "run_id": run_id}
        for key_id, run_id, n_parts in _of_this_spec(prepared, live, keys)
    ]


def _of_this_spec(prepared: Prepared, live: Live, keys: pd.DataFrame) -> list[tuple[str, str, int]]:
    """Return key, run and number of parts of the parents whose rows and parts are found as this spec finds them."""
    wanted = dict(zip(keys.index, keys["model_run_id"], strict=True))
    if not wanted:
        return []
    where: Where = {
        "model_set": [prepared.spec.model_set], "run_id": sorted(set(wanted.values())), "key_id": sorted(wanted),
        "status": ["trained"], "policy": ["salted"],
    }  # fmt: skip
    rows = prepared.tables.read(
        MANIFEST, columns=["run_id", "key_id", "n_parts", "spec_fingerprint"], where=where
    ).to_pylist()
    of_parents = ParentSpec.of(prepared.spec)
    expected = {
        run_id: of_parents.fingerprint(live.run_libraries.get(run_id, ({}, ()))[0]) for run_id in wanted.values()
    }
    return sorted({
        (row["key_id"], row["run_id"], row["n_parts"])
        for row in rows
        if wanted.get(row["key_id"]) == row["run_id"] and row["spec_fingerprint"] == expected[row["run_id"]]
    })  # fmt: skip


def _parts(rows: Sequence[Mapping[str, Any]], parent: Mapping[str, Any], settings: FitSettings) -> list[dict[str, Any]]:
    """Return the models of a parent's parts; none where too few of them have not seen a row, or the holdout."""
    trained = [row for row in rows if row["part"] != WHOLE and row["status"] == "trained"]
    found = [
        {
            "run_id": row["run_id"], "key_id": row["key_id"], "part": row["part"], "number": row["number"],
            "sha256": row["sha256"], "n_parts": parent["n_parts"],
            "is_final": row["part"] < parent["n_parts"],
            "is_measured": TRAIN_MEDIAN in dict(row["baseline_metrics"] or ()),
            "is_newer": _is_newer(row["holdout_from"], settings),
        }
        for row in trained
    ]  # fmt: skip
    final, measured = (sum(row[name] for row in found) for name in ("is_final", "is_measured"))
    enough = final >= MIN_PARTS and (measured >= MIN_PARTS or settings.holdout_by == "none")
    return found if enough else []


def _is_newer(holdout_from: Any, settings: FitSettings) -> bool:
    if holdout_from is None or settings.holdout_from_us is None:
        return False
    return micros(holdout_from) > settings.holdout_from_us
