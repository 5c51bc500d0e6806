"""The command that prints who needs which privileges. Heavy imports are inside, so that `--help` answers at once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from group_models.cli_options import Json, SpecArgument, Warehouse, print_json


class RoleName(StrEnum):
    """The roles."""

    admin = "admin"
    data_scientist = "data-scientist"
    analyst = "analyst"


def grants(
    spec: SpecArgument,
    role: Annotated[RoleName | None, typer.Option(help="Only this one; by default all three.")] = None,
    to: Annotated[str | None, typer.Option(metavar="PRINCIPAL", help="User or group; by default ROLE.")] = None,
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Print the SQL that gives a role its privileges in the catalog; nothing is run."""
    from group_models.grants import JOBS, grants_for
    from group_models.loading import load_spec

    loaded = load_spec(spec)
    made = [grants_for(loaded, r.value, to or r.value, warehouse) for r in RoleName if role in (None, r)]
    if as_json:
        print_json({"jobs": JOBS, "roles": {m.role: {"statements": m.statements, "notes": m.notes} for m in made}})
        return
    for job, needs in JOBS.items() if role is None else ():
        typer.echo(f"-- {job}: {needs}")
    typer.echo("\n\n".join(m.sql() for m in made))
