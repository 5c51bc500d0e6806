"""What a notebook calls: `plan`, `train`, `score`, `show`, `load_model`; the release verbs are in `releasing`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from group_models.artifacts import bounded_row, is_bounded, pooled_row
from group_models.checking import load_checked
from group_models.errors import DataError, MovedAliasError, SpecError, StateError
from group_models.keys import KeyTexts, given_texts, is_key_id, show_key, texts_id
from group_models.live.manifest import STATUSES
from group_models.live.parents import serving_key
from group_models.live.sets import Alias, Live, newest_release, stored_model
from group_models.live.widths import widths_of
from group_models.planning.plans import Plan
from group_models.planning.scopes import Ask, KeysLike
from group_models.ports import SparkFrame, SparkSession, Tables
from group_models.registering import adopt_moves, show_gated, show_release
from group_models.reporting import displays, showing
from group_models.reporting.progress import Show
from group_models.runs.logging_runs import log_trained
from group_models.spec import Scoring, check_run_id
from group_models.tables import RELEASE
from group_models.targets import SpecLike, check_one_of, find_live, find_target, open_tables, unknown_key


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
    from group_models.planning.source_checks import leaks
    from group_models.runs.labelling import find_labels, with_labels
    from group_models.runs.plan_making import make_plan
    from group_models.runs.preparing import prepare
    from group_models.runs.scoping import no_failed_text
    from group_models.runs.sizing import empty_scope_text
    from group_models.runs.starting import half_loaded

    ask = Ask(where, keys, failed_only)
    ask.check()
    checked = load_checked(spec)
    tables = open_tables(checked, warehouse)
    prepared = prepare(checked, tables, spark or session(), ask)
    prepared = with_labels(prepared, find_labels(prepared))
    planned = make_plan(prepared, newest_release(tables, checked.model_set), retrain_all=retrain_all)
    mistakes = [*leaks(planned.source_stats, checked.target), *half_loaded(prepared, planned)]
    refused = tuple(f"`train` refuses the source: {said}" for said in mistakes)
    if prepared.scope.has_no_failed_key:
        refused = (no_failed_text(tables, checked.model_set),)
    elif prepared.scope.text is not None and not planned.keys.num_rows:
        refused = (f"`train` refuses {empty_scope_text(prepared.scope)}",)
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
    show_progress: Show | None = None,
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
    show_progress
        Called with a `Progress` at each wave; by default a notebook shows it in the cell's output.

    Returns
    -------
    training.Run
        Counts by status, seconds by phase, and the release.

    Raises
    ------
    StoppedError
        Ctrl-C (a notebook's interrupt): what was committed stays, and the same call with that run id goes on.
    """
    from group_models.adapters.mlflow_around import no_autologging
    from group_models.adapters.spark_interrupt import stoppable
    from group_models.live import publishing
    from group_models.live.fleet import publish_trained
    from group_models.runs.preparing import prepare
    from group_models.runs.resuming import check_run_exists
    from group_models.runs.training import Run, new_run_id, train_run

    ask = Ask(where, keys, failed_only, run_id, resume)
    ask.check()
    checked = load_checked(spec)
    run_id = resume if run_id is None else check_run_id(run_id)
    tables = open_tables(checked, warehouse)
    if resume is not None:
        check_run_exists(tables, checked.model_set, resume)
    prepared = prepare(checked, tables, spark or session(), ask)
    run_id = run_id or new_run_id()
    _check_may_release(tables, is_asked=release)

    def publish(run: Run) -> Run:
        if not release:
            return dataclasses.replace(run, refusal=None)
        if run.refusal:
            force = f"`group-models release publish SPEC --run-id {run.run_id} --force` publishes it all the same"
            return dataclasses.replace(run, refusal=f"{run.refusal}; {force}")
        done = publishing.released_as(tables, checked.model_set, run.run_id)
        if done is None:
            try:
                adopt_moves(tables, checked)
            except MovedAliasError as e:
                return dataclasses.replace(run, refusal=str(e))
            # Only a refusal ends the run: a log that cannot be written leaves it to a retry.
            done, why = publish_trained(tables, checked, run.run_id)
            if done is None:
                show_gated(tables, checked)
                return dataclasses.replace(run, refusal=why)
        show_release(tables, checked)
        return dataclasses.replace(run, release_id=done.release_id)

    options = {"retrain_all": retrain_all, "accept_changes": accept_changes}
    watching = displays.in_notebook() if show_progress is None else contextlib.nullcontext(show_progress)
    with no_autologging(), stoppable(prepared.spark, run_id), watching as show:
        run = train_run(prepared, run_id, say=say, show=show, release=publish, **options)
    mlflow_run_id = log_trained(tables, checked, run.run_id) if run.has_started else None
    if mlflow_run_id:
        say(f"MLflow run {mlflow_run_id}")
    if not run.is_repeated:
        return run
    done = publishing.released_as(tables, checked.model_set, run.run_id)
    return dataclasses.replace(run, release_id=None if done is None else done.release_id)


def _check_may_release(tables: Tables, *, is_asked: bool) -> None:
    """Refuse before a night what would be refused after it."""
    if is_asked:
        tables.check_writable(RELEASE)


def score(  # noqa: PLR0913 - the options of one verb
    frame: pd.DataFrame | SparkFrame,
    spec: SpecLike,
    *,
    alias: Alias | None = None,
    run_id: str | None = None,
    as_of: str | None = None,
    on_missing: Literal["null", "parent", "raise"] | None = None,
    columns: Sequence[str] | None = None,
    prefix: str = "",
    slots: int | None = None,
    warehouse: str | None = None,
) -> Any:
    """Return a frame with `prediction`, `score_status` and where each prediction came from; of classes `probabilities`.

    A pandas frame is scored here and now, in its order and index, without Spark. A Spark frame is scored lazily by
    streaming the models with the data; its row order is not kept.

    Parameters
    ----------
    spec
        A spec, or the name of a model set.
    alias, run_id, as_of
        The live set of an alias (`champion` by default; as of a release), or what one run's manifest says.
    on_missing
        What to do with rows whose key has no model of its own: the prediction of its most specific `parent` that has
        one (a null prediction without), `null`, or `raise`. By default the spec's, which is `parent`.
    columns
        Input columns to keep; all by default.
    prefix
        Put before the names of the added columns.
    """
    from group_models import scoring
    from group_models.serving import direct

    check_one_of(alias, run_id)
    model_set, tables, loaded = find_target(spec, warehouse)
    if run_id is None and as_of is None:
        adopt_moves(tables, loaded, is_brief=True)
    live = find_live(tables, model_set, alias, run_id, as_of)
    rules = (loaded.scoring if loaded else Scoring()).model_copy(
        update={"on_missing": on_missing} if on_missing else {}
    )
    ask = direct.Ask(list(live.key_kinds), rules, columns, prefix)
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
    alias: Alias | None = None,
    run_id: str | None = None,
    key: str | Mapping[str, Any] | None = None,
    warehouse: str | None = None,
    **key_values: Any,
) -> Any:
    """Return the MLflow pyfunc of one key: `load_model("zrl.ml.eta", carrier="UA", lane="EWR-IAH", depot="EWR")`.

    Parameters
    ----------
    key
        The key where column names are no Python names: a mapping, JSON, `a=1,b=2`, or a key id; `global` is the model
        of all keys.

    Raises
    ------
    SpecError
        No key is named, or it does not name the key columns.
    """
    check_one_of(alias, run_id)
    if key is None and not key_values:
        raise SpecError(
            ["no key is named; give its columns, or key=; key='global' is the model of all"], where="the call"
        )
    from group_models.adapters.mlflow_models import load_pyfunc

    row = find_model(spec, key if key is not None else key_values, alias=alias, run_id=run_id, warehouse=warehouse)
    return load_pyfunc(row)


def find_model(
    spec: SpecLike,
    key: str | Mapping[str, Any],
    *,
    alias: Alias | None = None,
    run_id: str | None = None,
    warehouse: str | None = None,
) -> dict[str, Any]:
    """Return the store row of the model that serves a key (of a parent's, where the key has none of its own).

    Its digest is checked against the manifest's when it is loaded. A model that builds on a parent's comes with that
    in it: it predicts from the raw columns, wherever it is.

    Raises
    ------
    ModelError
        Of two that are put together one is not what the manifest says.
    StateError
        Neither the key nor a parent has a model; the message says what became of the key.
    """
    return find_served(spec, key, alias=alias, run_id=run_id, warehouse=warehouse)[0]


def find_served(
    spec: SpecLike,
    key: str | Mapping[str, Any],
    *,
    alias: Alias | None = None,
    run_id: str | None = None,
    warehouse: str | None = None,
) -> tuple[dict[str, Any], Live, KeyTexts]:
    """Return the row of `find_model`, the live set that it is of, and the values of the key as text."""
    check_one_of(alias, run_id)
    model_set, tables, _ = find_target(spec, warehouse)
    live = find_live(tables, model_set, alias, run_id)
    identity, texts = _named(key, live)
    serving = serving_key(live, identity, texts)
    if serving is not None:
        found: Any = live.keys.loc[serving]
        asked = texts if texts is not None else live.keys["key"][identity]
        row = stored_model(tables, model_set, str(found["model_run_id"]), serving, sha256=found["sha256"])
        if serving in (bases := live.bases()):
            parent_id, parent_run = bases[serving]
            parent = stored_model(tables, model_set, parent_run, parent_id, sha256=found["parent_sha256"])
            row = pooled_row(row, parent)
        if is_bounded(row["mlmodel"]):
            row = bounded_row(row, widths_of(live.keys, serving, live.intervals))
        return row, live, asked
    if identity not in live.keys.index:
        raise StateError(unknown_key(model_set, run_id, key, identity))
    found = live.keys.loc[identity]
    raise StateError(f"key {found['key_json']} has no model: its status is {found['status']}; see `show --key`")


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

    Returns
    -------
    list
        Ordered by the keys' values.

    Raises
    ------
    StateError
        There is no release yet, or no such run or key.
    """
    if status is not None and status not in STATUSES:
        raise SpecError([f"status {status!r}: say one of {', '.join(STATUSES)}"], where="the call")
    model_set, tables, _ = find_target(spec, warehouse)
    live = find_live(tables, model_set, None, run_id)
    if run_id is None:
        rows = showing.newest_rows(tables, model_set, live)
    else:
        rows = showing.run_rows(tables, model_set, run_id)
    rows = showing.by_key(rows, live.key_kinds)
    if key is not None:
        identity, texts = _named(key, live)
        rows = [row for row in rows if row["key_id"] == identity]
        if not rows:
            parent = serving_key(live, identity, texts)
            served = f"; its rows are served by its parent {show_key(live.keys['key'][parent])}" if parent else ""
            raise StateError(unknown_key(model_set, run_id, key, identity) + served)
    if status is not None:
        rows = [row for row in rows if row["status"] == status]
    return rows if worst is None else showing.worst(rows, worst)


def told_verdict(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return in a sentence whether models per key pay, of all rows that `show` lists; None where none was measured."""
    from group_models.reporting.verdict import verdict_of_rows

    own = max((len(row["key"]) for row in rows), default=0)
    found = verdict_of_rows([row for row in rows if len(row["key"]) == own])
    return found.sentence() if found else None


def _named(key: str | Mapping[str, Any], live: Live) -> tuple[str, KeyTexts | None]:
    """Return the id of a key or a parent as a person names it, and its values as text where they are given."""
    if isinstance(key, str) and is_key_id(key):
        return key, None
    texts = given_texts(key, live.key_kinds, live.parents)
    return texts_id(texts, live.key_kinds), texts


def session() -> SparkSession:
    """Return the active Spark session, or one of our own."""
    from group_models.adapters.spark_session import get_session

    return get_session()
