"""What a notebook calls: `plan`, `train`, `release`, `score`, `load_model`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from group_models import showing
from group_models.adapters.path_tables import PathTables
from group_models.checking import load_checked
from group_models.errors import DataError, SpecError, StateError
from group_models.keys import parse_key
from group_models.live import Alias, Live, newest_release, read_live, read_releases, read_run, stored_model
from group_models.loading import load_spec
from group_models.manifest import STATUSES
from group_models.plans import Plan
from group_models.ports import SparkFrame, SparkSession, Tables
from group_models.releases import Release
from group_models.scopes import Ask, KeysLike
from group_models.spec import Limits, Scoring, Spec, check_run_id, name_mistake

WAREHOUSE = "GROUP_MODELS_WAREHOUSE"
"""Environment variable that says where the embedded tables are, unless a call or the spec does."""

SpecLike = Spec | Mapping[str, Any] | str | Path
"""A spec: checked, as a mapping, or as the path of a YAML file."""


def _quiet(_: str) -> None:
    """Say nothing."""


def plan(
    spec: SpecLike,
    *,
    where: str | None = None,
    keys: KeysLike | None = None,
    failed_only: bool = False,
    retrain_all: bool = False,
    warehouse: str | None = None,
    spark: SparkSession | None = None,
) -> Plan:
    """Measure the source and return what a run would do with each key; nothing is trained or written.

    Parameters
    ----------
    spec
        The spec.
    where, keys, failed_only
        The keys that the run answers for: a SQL predicate on key columns; a list of keys (a CSV or JSON lines file
        with the key columns, one with a key id a line, or keys in Python); or the keys whose newest published outcome
        is a failure. By default all keys.
    retrain_all
        Train also keys of which data and spec are those of their model.
    warehouse
        Folder of the embedded tables; by default the spec's, else `GROUP_MODELS_WAREHOUSE`, else `./warehouse`.
    spark
        Session to use; by default the active one, else one of our own.

    Raises
    ------
    SpecError, DataError
        Before any Spark job where it can be known before.
    """
    from group_models.preparing import make_plan, prepare
    from group_models.starting import half_loaded

    ask = Ask(where, keys, failed_only)
    ask.check()
    checked = load_checked(spec)
    tables = open_tables(checked, warehouse)
    prepared = prepare(checked, tables, spark or session(), ask)
    planned = make_plan(prepared, newest_release(tables, checked.model_set), retrain_all=retrain_all)
    refused = tuple(f"`train` refuses the source: {said}" for said in half_loaded(prepared, planned))
    return dataclasses.replace(planned, notes=(*planned.notes, *refused))


def train(  # noqa: PLR0913 - the options of one verb
    spec: SpecLike,
    *,
    where: str | None = None,
    keys: KeysLike | None = None,
    failed_only: bool = False,
    retrain_all: bool = False,
    run_id: str | None = None,
    resume: str | None = None,
    accept_changes: bool = False,
    release: bool = True,
    warehouse: str | None = None,
    spark: SparkSession | None = None,
    say: Callable[[str], None] = _quiet,
) -> Any:
    """Train one model per key, write the manifest, and publish the run to `champion` unless told not to.

    Parameters
    ----------
    where, keys, failed_only, retrain_all
        As for `plan`.
    run_id
        A new id, or that of an unfinished run of the same spec and scope, which then goes on.
    resume
        The id of a run that started before and goes on, with the keys that it was started for.
    accept_changes
        Go on although the spec or the data are others than when the run started, or train although the source looks
        half-loaded.
    release
        Publish the run. A run of which too many keys failed is not published; `Run.refusal` says why.
    say
        Called with each line of progress.

    Returns
    -------
    training.Run
        Counts by status, seconds by phase, and the release.
    """
    from group_models import publishing
    from group_models.preparing import prepare
    from group_models.resuming import check_run_exists
    from group_models.training import Run, train_run

    ask = Ask(where, keys, failed_only, run_id, resume)
    ask.check()
    checked = load_checked(spec)
    run_id = resume if run_id is None else check_run_id(run_id)
    tables = open_tables(checked, warehouse)
    if resume is not None:
        check_run_exists(tables, checked.model_set, resume)
    prepared = prepare(checked, tables, spark or session(), ask)

    def publish(run: Run) -> Run:
        if not release:
            return dataclasses.replace(run, refusal=None)
        if run.refusal:
            force = f"`group-models release publish SPEC --run-id {run.run_id} --force` publishes it all the same"
            return dataclasses.replace(run, refusal=f"{run.refusal}; {force}")
        done = publishing.released_as(tables, checked.model_set, run.run_id)
        if done is None:
            # Only a refusal ends the run: a log that cannot be written leaves it to a retry.
            if why := publishing.log_refusal(tables, checked.model_set, run.run_id):
                return dataclasses.replace(run, refusal=why)
            done = publishing.publish(tables, checked.model_set, run.run_id, limits=checked.limits)
        return dataclasses.replace(run, release_id=done.release_id)

    options = {"retrain_all": retrain_all, "accept_changes": accept_changes}
    run = train_run(prepared, run_id, say=say, release=publish, **options)
    if not run.is_repeated:
        return run
    done = publishing.released_as(tables, checked.model_set, run.run_id)
    return dataclasses.replace(run, release_id=None if done is None else done.release_id)


def release(
    spec: SpecLike,
    action: Literal["publish", "rollback"] = "publish",
    *,
    run_id: str | None = None,
    to: str | None = None,
    alias: Alias = "champion",
    force: bool = False,
    note: str | None = None,
    warehouse: str | None = None,
) -> Release:
    """Publish a run to an alias, or roll the alias back; one row of the release log.

    Parameters
    ----------
    run_id
        Run to publish (by default the newest finished one), or whose release to roll back to.
    to
        Release to roll back to; by default the publish before the last one that counts.
    force
        Publish also where too many keys failed, or where what the run was trained against counts no longer.
    """
    from group_models import publishing

    _check_options(action, alias, has_to=to is not None, force=force)
    model_set, tables, loaded = _target(spec, warehouse)
    if action == "rollback":
        if to is None and run_id is not None:
            to = publishing.release_of(tables, model_set, run_id, alias).release_id
        return publishing.rollback(tables, model_set, target=to, alias=alias, note=note)
    limits = loaded.limits if loaded else Limits()
    run_id = run_id or publishing.newest_run(tables, model_set)
    return publishing.publish(tables, model_set, run_id, limits=limits, alias=alias, force=force, note=note)


def _check_options(action: str, alias: str, *, has_to: bool, force: bool) -> None:
    mistakes = []
    if action not in ("publish", "rollback"):
        mistakes.append(f"action {action!r}: say publish or rollback")
    if alias not in get_args(Alias):
        mistakes.append(f"alias {alias!r}: say {' or '.join(get_args(Alias))}")
    if has_to and action == "publish":
        mistakes.append("to: only a rollback goes back to a release; a publish takes run_id")
    if force and action == "rollback":
        mistakes.append("force: a rollback needs none")
    if mistakes:
        raise SpecError(mistakes, where="the call")


def score(  # noqa: PLR0913 - the options of one verb
    frame: pd.DataFrame | SparkFrame,
    spec: SpecLike,
    *,
    alias: Alias = "champion",
    run_id: str | None = None,
    as_of: str | None = None,
    on_missing: Literal["null", "parent", "raise"] | None = None,
    columns: Sequence[str] | None = None,
    prefix: str = "",
    slots: int | None = None,
    warehouse: str | None = None,
) -> Any:
    """Return a frame with `prediction`, `score_status` and where each prediction came from.

    A pandas frame is scored here and now, in its order and index, without Spark. A Spark frame is scored lazily by
    streaming the models with the data; its row order is not kept.

    Parameters
    ----------
    spec
        A spec, or the name of a model set.
    alias, run_id, as_of
        The live set of an alias (as of a release), or what one run's manifest says.
    on_missing
        What to do with rows whose key has no model: `null` prediction, the `parent`'s, or `raise`.
    columns
        Input columns to keep; all by default.
    prefix
        Put before the names of the added columns.
    """
    from group_models import scoring

    _check_options("publish", alias, has_to=False, force=False)
    model_set, tables, loaded = _target(spec, warehouse)
    live = _live(tables, model_set, alias, run_id, as_of)
    rules = (loaded.scoring if loaded else Scoring()).model_copy(
        update={"on_missing": on_missing} if on_missing else {}
    )
    ask = scoring.Ask(list(live.key_kinds), rules, columns, prefix)
    if isinstance(frame, pd.DataFrame):
        return scoring.score_pandas(frame, tables, model_set, live, ask)
    if not hasattr(frame, "sparkSession"):
        raise DataError(f"a {type(frame).__name__} cannot be scored; give a Spark or pandas DataFrame")
    from group_models.adapters.spark_sizes import count_slots

    slots = slots or (loaded.compute.slots if loaded else None) or count_slots(frame)
    return scoring.score_spark(frame, tables, model_set, live, ask, slots)


def load_model(
    spec: SpecLike,
    *,
    alias: Alias = "champion",
    run_id: str | None = None,
    key: str | Mapping[str, Any] | None = None,
    warehouse: str | None = None,
    **key_values: Any,
) -> Any:
    """Return the MLflow pyfunc of one key: `load_model("zrl.ml.eta", carrier="UA", lane="EWR-IAH", depot="EWR")`.

    Parameters
    ----------
    key
        The key where column names are no Python names: a mapping, JSON, `a=1,b=2`, or a key id.
    """
    from group_models.adapters.mlflow_models import load_pyfunc

    row = find_model(spec, key if key is not None else key_values, alias=alias, run_id=run_id, warehouse=warehouse)
    return load_pyfunc(row)


def find_model(
    spec: SpecLike,
    key: str | Mapping[str, Any],
    *,
    alias: Alias = "champion",
    run_id: str | None = None,
    warehouse: str | None = None,
) -> dict[str, Any]:
    """Return the store row of the model that serves a key, its digest checked against the manifest.

    Raises
    ------
    StateError
        The key is unknown, or has no model; the message says what became of it.
    """
    model_set, tables, _ = _target(spec, warehouse)
    live = _live(tables, model_set, alias, run_id, None)
    identity = parse_key(key, live.key_kinds)
    if identity not in live.keys.index:
        raise StateError(f"model set {model_set} knows no key {key!r} (key_id {identity})")
    found = live.keys.loc[identity]
    if pd.isna(found["model_run_id"]):
        raise StateError(f"key {found['key_json']} has no model: its status is {found['status']}; see `show --key`")
    return stored_model(tables, model_set, found["model_run_id"], identity, sha256=found["sha256"])


def list_releases(
    spec: SpecLike, *, run_id: str | None = None, alias: str | None = None, warehouse: str | None = None
) -> list[Release]:
    """Return the release log, oldest first; only rows of one run or alias where asked."""
    model_set, tables, _ = _target(spec, warehouse)
    log = read_releases(tables, model_set)
    return [row for row in log if run_id in (None, row.run_id) and alias in (None, row.alias)]


def show(
    spec: SpecLike,
    *,
    key: str | Mapping[str, Any] | None = None,
    status: str | None = None,
    worst: int | None = None,
    run_id: str | None = None,
    warehouse: str | None = None,
) -> list[dict[str, Any]]:
    """Return manifest rows: of every known key the newest published one, or those of one run.

    Parameters
    ----------
    key, status
        Only this key; only keys of this status.
    worst
        Only the so many keys with the highest error on their holdout, worst first.
    """
    if status is not None and status not in STATUSES:
        raise SpecError([f"status {status!r}: say one of {', '.join(STATUSES)}"], where="the call")
    model_set, tables, _ = _target(spec, warehouse)
    live = read_live(tables, model_set) if run_id is None else read_run(tables, model_set, run_id)
    if run_id is None:
        rows = showing.newest_rows(tables, model_set, live)
    else:
        rows = showing.run_rows(tables, model_set, run_id)
    if key is not None:
        identity = parse_key(key, live.key_kinds)
        rows = [row for row in rows if row["key_id"] == identity]
        if not rows:
            raise StateError(f"model set {model_set} has no published row of key {key!r} (key_id {identity})")
    if status is not None:
        rows = [row for row in rows if row["status"] == status]
    return rows if worst is None else showing.worst(rows, worst)


def session() -> SparkSession:
    """Return the active Spark session, or one of our own."""
    from group_models.adapters.spark_session import get_session

    return get_session()


def open_tables(spec: Spec, warehouse: str | None = None) -> Tables:
    """Return the tables of a spec's schema."""
    return _tables(spec.schema_name, warehouse or spec.warehouse)


def _tables(schema: str, warehouse: str | None) -> Tables:
    return PathTables(Path(warehouse or os.environ.get(WAREHOUSE) or "warehouse").absolute(), schema)


def _target(spec: SpecLike, warehouse: str | None) -> tuple[str, Tables, Spec | None]:
    """Return model set, tables and spec of what a caller named: a spec, or a model set by its name."""
    is_file = isinstance(spec, str) and (Path(spec).exists() or spec.endswith((".yaml", ".yml")))
    if isinstance(spec, str) and not is_file and name_mistake(spec) is None:
        return spec, _tables(spec.rpartition(".")[0], warehouse), None
    loaded = load_spec(spec)
    return loaded.model_set, open_tables(loaded, warehouse), loaded


def _live(tables: Tables, model_set: str, alias: Alias, run_id: str | None, as_of: str | None) -> Live:
    if run_id is not None:
        return read_run(tables, model_set, run_id)
    live = read_live(tables, model_set, alias, as_of)
    if live.keys.empty and not any(r.action == "publish" for r in read_releases(tables, model_set)):
        raise StateError(
            f"model set {model_set} has no release yet in {tables.describe()}; `group-models train` makes one"
        )
    return live
