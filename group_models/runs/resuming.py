"""A run that goes on: its rows in the run table, and what is other now than when it started."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from group_models.adapters import spark_probe, spark_sizes
from group_models.adapters.spark_errors import failing
from group_models.errors import StateError
from group_models.keys import show_key
from group_models.live.manifest import missing_keys
from group_models.live.sets import read_runs
from group_models.planning.incremental import library_changes
from group_models.planning.leveling import parent_sizes
from group_models.planning.plans import Plan
from group_models.ports import Tables
from group_models.run_rows import append_run_row
from group_models.runs.preparing import Prepared
from group_models.tables import RUN, STORE, utc_now
from group_models.texts import flat

STARTED, PLANNED, ACCEPTED, FINISHED = "started", "planned", "accepted", "finished"
"""Events of a run; `started` and `finished` happen once, `planned` before each attempt to write the plan."""

_SHOWN = 5

_FIXED = ("model_set", "keys", "target", "features", "task")
"""Fields that all models of one run share."""

_HOW_IT_RUNS = ("warehouse", "compute", "scoring", "isolation", "retrain_when", "on_library_change",
                 "registration", "track", "gates")  # fmt: skip
_GUARDS = ("timeout_s", "max_failed_share", "max_failed_keys", "max_vanished_share", "max_lost_rows_share",
           "max_missing_rise", "max_staleness_hours")  # fmt: skip
"""Fields of the spec, and of its limits, that make no other model of the same rows: a run may go on with others."""


@dataclasses.dataclass(frozen=True)
class Events:
    """The rows of one run in the run table; None where it has none yet. Of those `planned` it is the newest."""

    started: Mapping[str, Any] | None
    accepted: tuple[Mapping[str, Any], ...]
    finished: Mapping[str, Any] | None
    planned: Mapping[str, Any] | None = None

    def stored_before(self) -> frozenset[int] | None:
        """Return the store's commits before the run first went on with changes; None where it never did."""
        numbers = [row["stored_before"] for row in self.accepted if row["stored_before"] is not None]
        return frozenset(int(number) for number in numbers[0].split(",") if number) if numbers else None


def read_events(tables: Tables, model_set: str, run_id: str) -> Events:
    """Return a run's rows in the run table."""
    rows = tables.read(RUN, where={"model_set": [model_set], "run_id": [run_id]}).sort_by("at").to_pylist()
    newest = {row["event"]: row for row in rows}
    accepted = tuple(row for row in rows if row["event"] == ACCEPTED)
    return Events(newest.get(STARTED), accepted, newest.get(FINISHED), newest.get(PLANNED))


def check_run_exists(tables: Tables, model_set: str, run_id: str) -> None:
    """Refuse to resume a run that never started.

    Raises
    ------
    StateError
        It names the newest runs.
    """
    if read_events(tables, model_set, run_id).started is None:
        known = read_runs(tables, model_set).sort_by("at")["run_id"].to_pylist()
        said = f"the newest are {', '.join(known[: -_SHOWN - 1 : -1])}" if known else "it has none"
        start = f"`train SPEC --run-id {run_id}` starts it, also where it was killed before its first row"
        raise StateError(f"model set {model_set} has no run {run_id!r} to resume ({said}); {start}")


def append_event(prepared: Prepared, run_id: str, event: str, **values: Any) -> None:
    """Write a row of the run; one that happens once only where it is not there."""
    spec, tables = prepared.spec, prepared.tables
    row = {
        "model_set": spec.model_set,
        "run_id": run_id,
        "event": event,
        "at": utc_now(),
        "scope": prepared.scope.text,
        "source": spec.source.describe(),
        "code_version": importlib.metadata.version("group-models"),
        **values,
    }

    def is_there() -> bool:
        events = read_events(tables, spec.model_set, run_id)
        return bool((event == STARTED and events.started) or (event == FINISHED and events.finished))

    append_run_row(tables, row, is_there)


def accept(prepared: Prepared, run_id: str, changes: str, *, has_started: bool) -> None:
    """Write that the run goes on although something changed.

    Parameters
    ----------
    has_started
        It changed since the run started: only what was committed until now was trained on what plan and run say.
    """
    spec = prepared.spec
    stored = prepared.tables.numbers(STORE, model_set=spec.model_set, owner=run_id) if has_started else None
    append_event(
        prepared,
        run_id,
        ACCEPTED,
        changes=changes,
        stored_before=None if stored is None else ",".join(map(str, stored)),
        spec=spec.to_json(),
        versions=spark_probe.versions(),
    )


def check_same(prepared: Prepared, run_id: str, events: Events, *, accept_changes: bool) -> list[str]:
    """Return in what the spec and the libraries differ from those of the run, where it may go on all the same.

    Raises
    ------
    StateError
        The run was started for other keys, or with another spec or libraries, and the changes are not accepted or
        cannot be.
    """
    if events.started is None:
        return []
    if events.started["scope"] != prepared.scope.text:
        raise StateError(
            f"run id {run_id!r} was used for the scope {events.started['scope'] or 'all keys'}, now it is "
            f"{prepared.scope.describe()}; give another run id"
        )
    before = events.accepted[-1] if events.accepted else events.started
    spec, spec_then = json.loads(prepared.spec.to_json()), json.loads(before["spec"])
    fixed = spec_changes({n: spec_then.get(n) for n in _FIXED}, {n: spec.get(n) for n in _FIXED})
    fixed += spec_changes(dict(events.started["feature_kinds"]), dict(prepared.roles.features))
    changes = spec_changes(_that_decides(spec_then), _that_decides(spec))
    # A finished run is only told again: what is installed now makes no model of it.
    if not events.finished:
        changes += library_changes(dict(before["versions"]), spark_probe.versions())
    if not fixed and not changes:
        return []
    said = f"run id {run_id!r} was used by another spec ({', '.join(fixed + changes)}); give another run id"
    if fixed and not events.finished:
        said += ": all models of a run share keys, target and features"
    if events.finished or fixed or not accept_changes:
        raise StateError(said if events.finished or fixed else f"{said}, or go on with `--accept-changes`")
    return changes


def _that_decides(spec: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in spec.items() if name not in (*_FIXED, *_HOW_IT_RUNS)}
    return kept | {"limits": {name: value for name, value in spec["limits"].items() if name not in _GUARDS}}


def spec_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the fields that differ, before and now, one text each.

    Examples
    --------
    >>> spec_changes({"seed": 7, "limits": {"min_rows": 30}}, {"seed": 8, "limits": {"min_rows": 30}})
    ['seed was 7, is 8']
    """
    then, here = flat(before), flat(now)
    names = sorted({*then, *here})
    return [f"{n} was {then.get(n)!r}, is {here.get(n)!r}" for n in names if then.get(n) != here.get(n)]


def data_changes(prepared: Prepared, run_id: str, plan: Plan) -> list[str]:
    """Return in what the data differ from those that the run planned with; nothing where no key is left to train."""
    where = {"model_set": [prepared.spec.model_set], "run_id": [run_id]}
    missing = missing_keys(plan.keys, prepared.tables.read(STORE, columns=["key_id", "part"], where=where))
    if not missing:
        return []
    prepared = dataclasses.replace(prepared, bounds=plan.bounds)
    with failing("measuring the source again"):
        sizes = spark_sizes.measure(prepared.rows(), prepared.roles)
    planned = plan.keys.filter(pc.not_equal(plan.keys["level"], prepared.levels.own))["key_id"].combine_chunks()
    parents, _ = parent_sizes(sizes, prepared.levels, planned.to_pylist())
    own = sizes.filter(pa.array(prepared.scope.holds(sizes["key_id"].to_pylist()), pa.bool_()))
    now = pa.concat_tables([own, parents.filter(pc.is_in(parents["key_id"], planned))])
    return size_changes(plan.keys, missing, now)


def size_changes(planned: pa.Table, missing: Collection[str], sizes: pa.Table) -> list[str]:
    """Return in what the sizes of the keys to be trained differ from those of the plan, one text each."""
    left = planned.filter(pc.is_in(planned["key_id"], pa.array(sorted(missing), pa.string())))
    now = dict(zip(sizes["key_id"].to_pylist(), sizes["data_fingerprint"].to_pylist(), strict=True))
    rows = left.select(["key_id", "key", "data_fingerprint"]).to_pylist()
    gone = [row for row in rows if row["key_id"] not in now]
    other = [row for row in rows if now.get(row["key_id"], row["data_fingerprint"]) != row["data_fingerprint"]]
    is_new = pc.invert(pc.is_in(sizes["key_id"], planned["key_id"].combine_chunks()))
    new = sizes.filter(is_new).select(["key"]).to_pylist()
    total = f"{len(rows):,} keys still to be trained"
    said = {f"of {total} have other data": other, f"of {total} have none any more": gone, "keys are new": new}
    return [f"{len(keys):,} {what} ({_some(keys)})" for what, keys in said.items() if keys]


def _some(rows: list[Mapping[str, Any]]) -> str:
    named = "; ".join(show_key(dict(row["key"])) for row in rows[:_SHOWN])
    return f"{named}; ..." if len(rows) > _SHOWN else named
