"""The gate of a fleet: whether a run may serve by itself, or is shown as challenger until a person decides."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from group_models.gates import FleetGate
from group_models.keys import level_name
from group_models.live.gating import fleet_refusal
from group_models.live.publishing import publish_unattended, released_as
from group_models.live.releases import Release
from group_models.live.sets import read_key_kinds, read_runs, read_without_pins
from group_models.ports import Tables, Where
from group_models.spec import Metric, Spec
from group_models.tables import MANIFEST, NEW_MODEL


def publish_trained(tables: Tables, spec: Spec, run_id: str) -> tuple[Release | None, str | None]:
    """Publish to champion what was just trained, unless the log speaks against it or the spec's gate does.

    Where the spec has a gate of the fleet, the run is published to challenger first.

    Returns
    -------
    tuple
        The release to champion and None, or None and why there is none.
    """
    model_set, gate = spec.model_set, spec.gates.fleet if spec.gates else None
    if gate is None:
        return publish_unattended(tables, model_set, run_id, limits=spec.limits)
    shown = released_as(tables, model_set, run_id, "challenger")
    if shown is None:
        shown, why = publish_unattended(tables, model_set, run_id, limits=spec.limits, alias="challenger")
        if shown is None:
            return None, why
    if (worse := read_refusal(tables, model_set, run_id, gate, spec.metric)) is None:
        return publish_unattended(tables, model_set, run_id, limits=spec.limits)
    return None, (
        f"it stays challenger ({shown.release_id}): {worse}. `group-models release publish SPEC --run-id {run_id}` "
        "makes it champion all the same"
    )


def read_refusal(tables: Tables, model_set: str, run_id: str, gate: FleetGate, metric: Metric) -> str | None:
    """Return why a run must not serve by itself, None where its models are not worse on the same rows."""
    started = read_runs(tables, model_set)
    base = started.filter(pc.equal(started["run_id"], run_id))["base_release"].to_pylist()
    live = read_without_pins(tables, model_set, base[0] if base else None)
    where: Where = {"model_set": [model_set], "run_id": [run_id]}
    rows = tables.read(MANIFEST, columns=["key_id", "level", "status", "baseline_metrics"], where=where)
    own = level_name(list(read_key_kinds(tables, model_set, [run_id])))
    rows = rows.filter(pc.equal(rows["level"], own))
    has_served = pc.is_in(rows["key_id"], pa.array(sorted(live.models()), pa.string()))
    is_new = pc.is_in(rows["status"], pa.array(NEW_MODEL)).to_numpy()
    return fleet_refusal(rows["baseline_metrics"], is_new, has_served.to_numpy(), gate, metric)
