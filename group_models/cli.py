"""The same verbs as commands. Heavy imports are inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import sys
import warnings
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from group_models.cli_explain import explain
from group_models.cli_grants import grants
from group_models.cli_options import (
    Alias,
    Json,
    Key,
    OneKey,
    RunId,
    SpecArgument,
    Warehouse,
    Where,
    one_of,
    out,
    print_json,
    say,
)
from group_models.cli_progress import progress, stopping
from group_models.cli_release import clean, log, release_app
from group_models.cli_report import report
from group_models.cli_views import views
from group_models.errors import GroupModelsError, LibraryWarning, ServerWarning

OK, REFUSED, INTERNAL, NOT_RELEASED = 0, 1, 3, 4
"""Exit codes: all well; refused input; our fault; trained, but the release was refused or held. 2 is typer's, and so
is 130 of what Ctrl-C stopped."""

app = typer.Typer(
    name="group-models",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(release_app, name="release")
app.command()(clean)
app.command()(log)
app.command()(grants)
app.command()(report)
app.command()(explain)
app.command()(views)


class Mode(StrEnum):
    """What to do where the output exists."""

    error = "error"
    append = "append"
    overwrite = "overwrite"


Keys = Annotated[
    str | None, typer.Option(metavar="FILE", help="Scope: keys of a CSV or JSON lines file, or key ids, one a line.")
]
FailedOnly = Annotated[bool, typer.Option("--failed-only", help="Scope: keys that failed in the newest published run.")]
AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Go on with other data or another spec, or on a half-loaded source.")
]
RetrainAll = Annotated[bool, typer.Option("--retrain-all", help="Train unchanged keys too.")]


def _print_version(is_asked: bool) -> None:  # noqa: FBT001 - typer's
    if is_asked:
        typer.echo(f"group-models {importlib.metadata.version('group-models')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[  # noqa: FBT002
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Many small models, one per group, on Spark: plan, train, release, score."""


@app.command()
def init(file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")]) -> None:
    """Write a commented spec to start from."""
    from importlib.resources import files

    if file.exists():
        raise GroupModelsError(f"{file} exists; name a new file")
    template = files("group_models").joinpath("spec_template.yaml").read_text(encoding="utf-8")
    try:
        file.write_text(template, encoding="utf-8")
    except OSError as e:
        raise GroupModelsError(f"cannot write {file}: {e.strerror}; name a file in a folder that is there") from e
    say(f"wrote {file}; edit it, then: group-models plan {file}")


@app.command()
def plan(
    spec: SpecArgument,
    where: Where = None,
    keys: Keys = None,
    failed_only: FailedOnly = False,  # noqa: FBT002
    retrain_all: RetrainAll = False,  # noqa: FBT002
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Measure the source and print what a run would do; nothing is trained."""
    from group_models import api
    from group_models.planning.plans import summarise
    from group_models.reporting import report

    planned = api.plan(
        _spec(spec), where=where, keys=keys, failed_only=failed_only, retrain_all=retrain_all, warehouse=warehouse
    )
    for note in planned.notes:
        say(note)
    summary = summarise(planned)
    if as_json:
        rows = [report.as_json({**row, "key": dict(row["key"])}) for row in planned.keys.to_pylist()]
        print_json({"summary": dataclasses.asdict(summary), "keys": rows})
        return
    out().print(report.facts_table(f"Plan of {spec}", summary.facts()))


@app.command()
def train(  # noqa: PLR0913, PLR0917 - the options of one command
    spec: SpecArgument,
    where: Where = None,
    keys: Keys = None,
    failed_only: FailedOnly = False,  # noqa: FBT002
    retrain_all: RetrainAll = False,  # noqa: FBT002
    run_id: RunId = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN_ID", help="Go on with a run that started before.")] = None,
    accept_changes: AcceptChanges = False,  # noqa: FBT002
    no_release: Annotated[bool, typer.Option("--no-release", help="Train only; publish nothing.")] = False,  # noqa: FBT002
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Train one model per key and publish the run to champion."""
    from group_models import api
    from group_models.adapters.task_values import set_task_values
    from group_models.reporting import report

    scope = {"where": where, "keys": keys, "failed_only": failed_only}
    options = {**scope, "retrain_all": retrain_all, "accept_changes": accept_changes, "warehouse": warehouse}
    with stopping(spec, {**options, "no_release": no_release}), progress() as (show_progress, tell):
        run = api.train(
            _spec(spec),
            **options,  # type: ignore[arg-type] # each is what it was
            run_id=run_id,
            resume=resume,
            release=not no_release,
            say=tell,
            show_progress=show_progress,
        )
    set_task_values(run.task_values())
    if as_json:
        print_json(run.as_dict())
    else:
        out().print(report.facts_table(f"Run {run.run_id} of {run.model_set}", run.facts()))
        if worst := run.worst(5):
            out().print(report.rows_table("Worst keys on the holdout", worst, width=out().width))
    if run.refusal:
        raise typer.Exit(NOT_RELEASED)


class OnMissing(StrEnum):
    """What to do with rows whose key has no model."""

    null = "null"
    parent = "parent"
    error = "raise"


@app.command()
def score(  # noqa: PLR0913, PLR0917 - the options of one command
    spec: SpecArgument,
    source: Annotated[str, typer.Option("--input", metavar="X", help="A path or a table.")],
    output: Annotated[str, typer.Option(metavar="Y", help="A path or a table.")],
    alias: Annotated[Alias | None, typer.Option(help="Whose live set scores; champion by default.")] = None,
    run_id: RunId = None,
    mode: Annotated[Mode, typer.Option(help="What to do where the output exists.")] = Mode.error,
    on_missing: Annotated[OnMissing | None, typer.Option(help="Rows without a model; else the spec's.")] = None,
    prefix: Annotated[str, typer.Option(help="Put before the names of the added columns.")] = "",
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Score the rows of a path or table and write them with their predictions."""
    alias_name = one_of(alias, run_id)
    from group_models import api, targets
    from group_models.adapters import spark_output
    from group_models.adapters.task_values import set_task_values
    from group_models.loading import load_spec
    from group_models.reporting import report
    from group_models.texts import added, counts_text

    loaded = load_spec(_spec(spec))
    kept = {"input": source, "spec": spec, "working directory": "."}
    for path in targets.open_tables(loaded, warehouse).local_paths():
        kept["warehouse"] = path
    session = api.session()
    frame = spark_output.read_input(session, source)
    spark_output.check_output(session, output, mode.value, kept)
    missing = on_missing.value if on_missing else None
    scored = api.score(
        frame,
        loaded,
        alias=alias_name,
        run_id=run_id,
        on_missing=missing,  # type: ignore[arg-type] # an enum's value is any text to mypy
        prefix=prefix,
        warehouse=warehouse,
    )
    column = prefix + "score_status"
    before = spark_output.count_statuses(session, output, column) if mode is Mode.append else {}
    spark_output.write_output(scored, output, mode.value)
    counts = added(spark_output.count_statuses(session, output, column), before)
    scored_rows = {"output": output, "rows": sum(counts.values()), "score_status": counts}
    set_task_values(scored_rows)
    if as_json:
        print_json(scored_rows)
        return
    where = f"added to the {sum(before.values()):,} in" if before else "in"
    facts = {"rows": f"{sum(counts.values()):,} {where} {output}", "score_status": counts_text(counts)}
    out().print(report.facts_table(f"Output {output}", facts))


@app.command()
def show(
    spec: SpecArgument,
    key: Key = None,
    status: Annotated[str | None, typer.Option(help="Only keys of this status.")] = None,
    worst: Annotated[int | None, typer.Option(min=1, help="Only the N keys with the highest error.")] = None,
    run_id: RunId = None,
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """List every known key: its newest published outcome, and which model serves it."""
    from group_models import api
    from group_models.reporting import report

    rows = api.show(spec, key=key, status=status, worst=worst, run_id=run_id, warehouse=warehouse)
    if as_json:
        print_json([report.as_json(row) for row in rows])
    elif key is not None and rows:
        out().print(report.facts_table("Key", report.row_facts(rows[0])))
    else:
        out().print(report.rows_table(f"{len(rows):,} key(s) of {spec}", rows, width=out().width))
        if key is None and status is None and worst is None and (told := api.told_verdict(rows)):
            say(told)


@app.command()
def export(
    spec: SpecArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
    key: OneKey,
    alias: Annotated[Alias | None, typer.Option(help="Whose live set; champion by default.")] = None,
    run_id: RunId = None,
    warehouse: Warehouse = None,
) -> None:
    """Write the model of one key as a directory that MLflow loads."""
    alias_name = one_of(alias, run_id)
    from group_models import api
    from group_models.adapters.mlflow_models import export_model

    row = api.find_model(spec, key, alias=alias_name, run_id=run_id, warehouse=warehouse)
    export_model(row, directory)
    say(f"wrote {directory}; mlflow.pyfunc.load_model({str(directory)!r}) loads it")


def _spec(path: str) -> str:
    """Let the spec's folder and the working directory serve `source: {python: ...}` and estimators by path."""
    for folder in (str(Path(path).resolve().parent), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; nothing is raised."""
    warnings.filterwarnings("ignore")
    for told in (LibraryWarning, ServerWarning):
        warnings.filterwarnings("always", category=told)
    warnings.showwarning = _show_warning
    # pyspark logs each refused query with the JVM's stack; the message that we print says it in one line.
    # By its level: MLflow's migrations enable all loggers again (MLflow 3.17), and one that was there before pyspark
    # takes none of pyspark's fields.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    try:
        app(args=list(argv) if argv is not None else None)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else OK
    except GroupModelsError as e:
        say(f"error: {e}")
        return REFUSED
    except Exception as e:  # noqa: BLE001 - the last door: a fault of ours must not pass as success
        return _internal(e)
    return OK


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}")


def _internal(error: Exception) -> int:
    import traceback

    say("".join(traceback.format_exception(error)))
    say(f"internal error: {type(error).__name__}: {error}")
    return INTERNAL


def entry() -> None:
    """Run as a console script or a Databricks wheel task, which ignores a returned code but not SystemExit."""
    if code := main():
        sys.exit(code)
