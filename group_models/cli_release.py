"""The commands of the release log, `log` and `clean`. Heavy imports are inside, so that `--help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from group_models.cli_options import Alias, Json, OneKey, RunId, SpecArgument, Warehouse, out, print_json, say

release_app = typer.Typer(
    help="List, publish and roll back releases; pin keys.", no_args_is_help=True, rich_markup_mode=None
)


@release_app.command("list")
def release_list(
    spec: SpecArgument,
    run_id: RunId = None,
    alias: Annotated[Alias | None, typer.Option(help="Only rows of this alias.")] = None,
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """List the release log, oldest first."""
    from group_models import releasing
    from group_models.reporting import report

    log = releasing.list_releases(spec, run_id=run_id, alias=alias and alias.value, warehouse=warehouse)
    if as_json:
        print_json([report.as_json(entry.row()) for entry in log])
        return
    out().print(report.releases_table(log, releasing.key_texts(spec, log, warehouse=warehouse)))


@release_app.command("publish")
def release_publish(
    spec: SpecArgument,
    run_id: RunId = None,
    alias: Annotated[Alias, typer.Option(help="Where to.")] = Alias.champion,
    force: Annotated[bool, typer.Option("--force", help="Publish in spite of failures or of a rollback.")] = False,  # noqa: FBT002
    note: Annotated[str | None, typer.Option(help="Why, for the log.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Publish a run (by default the newest) to an alias."""
    from group_models import releasing

    done = releasing.release(spec, run_id=run_id, alias=alias.value, force=force, note=note, warehouse=warehouse)
    say(f"released run {done.run_id} to {done.alias} as {done.release_id}")


@release_app.command("rollback")
def release_rollback(
    spec: SpecArgument,
    to: Annotated[str | None, typer.Option(metavar="RELEASE", help="Release to go back to.")] = None,
    run_id: RunId = None,
    alias: Annotated[Alias, typer.Option(help="Which alias.")] = Alias.champion,
    note: Annotated[str | None, typer.Option(help="Why, for the log.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Go back to an earlier release (by default the one before the last)."""
    from group_models import releasing

    done = releasing.release(spec, "rollback", run_id=run_id, to=to, alias=alias.value, note=note, warehouse=warehouse)
    say(f"{done.alias} is back at release {done.target_release_id} ({done.release_id})")


@release_app.command("pin")
def release_pin(
    spec: SpecArgument,
    key: OneKey,
    run_id: Annotated[str, typer.Option(metavar="ID", help="A run that left the key with a model.")],
    alias: Annotated[Alias, typer.Option(help="For which alias.")] = Alias.champion,
    note: Annotated[str | None, typer.Option(help="Why, for the log.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Hold one key at the model that served it after a run, through all that is published or rolled back."""
    from group_models import releasing

    done = releasing.pin(spec, key, run_id=run_id, alias=alias.value, note=note, warehouse=warehouse)
    say(f"{key} is pinned to run {done.run_id} for {done.alias} ({done.release_id}); `release unpin` lets it go")


@release_app.command("unpin")
def release_unpin(
    spec: SpecArgument,
    key: OneKey,
    alias: Annotated[Alias, typer.Option(help="For which alias.")] = Alias.champion,
    note: Annotated[str | None, typer.Option(help="Why, for the log.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Let go of a pinned key."""
    from group_models import releasing

    done = releasing.unpin(spec, key, alias=alias.value, note=note, warehouse=warehouse)
    say(f"{key} is pinned for {done.alias} no more ({done.release_id})")


@release_app.command("register")
def release_register(spec: SpecArgument, warehouse: Warehouse = None, as_json: Json = False) -> None:  # noqa: FBT002
    """Bring the registered model and the release log in step."""
    from group_models import registering
    from group_models.reporting import report

    rows = registering.register(spec, warehouse=warehouse)
    if as_json:
        print_json([report.as_json(row.row()) for row in rows])
        return
    for row in rows:
        what = f"shows it as version {row.registered_version}" if row.action == "mirror" else row.note or ""
        say(f"{row.action} for {row.alias}: release {row.target_release_id or row.release_id} {what}".rstrip())
    if not rows:
        say("the registered model shows what the release log says")


def log(spec: SpecArgument, run_id: RunId = None, warehouse: Warehouse = None) -> None:
    """Log a finished run (by default the newest) to MLflow; train does so by itself where the spec says `track`."""
    from group_models.runs import logging_runs

    logged, mlflow_run_id = logging_runs.log_run(spec, run_id, warehouse=warehouse)
    say(f"run {logged} is MLflow run {mlflow_run_id}")


def clean(
    spec: SpecArgument,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="Releases of each alias that stay.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only told.")] = False,  # noqa: FBT002
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Remove the models and rows of old runs that nothing refers to."""
    from group_models import releasing
    from group_models.reporting import report

    done = releasing.clean(spec, keep=keep, dry_run=not yes, warehouse=warehouse)
    if as_json:
        print_json(done.as_dict())
        return
    out().print(report.facts_table(f"Clean of {done.model_set}, {keep} releases of each alias stay", done.facts()))
    if done.losses or done.parts:
        out().print(report.text_table("Run by run", done.rows()))
        if not yes:
            say(f"nothing was removed; `group-models clean {spec} --keep {keep} --yes` does")
