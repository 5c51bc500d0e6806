"""The command that prints or makes the views. Heavy imports are inside, so that `--help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from group_models.cli_options import Json, SpecArgument, Warehouse, print_json, say


def views(
    spec: SpecArgument,
    create: Annotated[bool, typer.Option("--create", help="Make them, or make them anew.")] = False,  # noqa: FBT002
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Print the SQL of views over the tables, for alerts and dashboards; with --create they are made."""
    from group_models import viewing

    if create:
        made = viewing.create_views(spec, warehouse=warehouse)
        for name in made:
            say(f"made the view {name}")
    statements = viewing.views(spec, warehouse=warehouse)
    if as_json:
        print_json(statements)
    elif not create:
        typer.echo("\n\n".join(f"{statement};" for statement in statements.values()))
