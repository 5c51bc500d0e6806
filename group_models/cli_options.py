"""What the commands share: the options that several take, and how they print."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Alias(StrEnum):
    """The aliases of a model set."""

    champion = "champion"
    challenger = "challenger"


SpecArgument = Annotated[str, typer.Argument(metavar="SPEC", help="The spec's YAML file.")]
Warehouse = Annotated[
    str | None, typer.Option(help="Folder of the embedded tables; else the spec's or GROUP_MODELS_WAREHOUSE.")
]
Where = Annotated[str | None, typer.Option(metavar="SQL", help="Scope: a predicate on the key columns.")]
RunId = Annotated[str | None, typer.Option(metavar="ID", help="A run's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
Key = Annotated[str | None, typer.Option(help='A key: a=1,b=2, or JSON {"a": null}, or a key_id.')]
OneKey = Annotated[str, typer.Option("--key", help='A key: a=1,b=2, or JSON {"a": null}, or a key_id.')]


def one_of(alias: Alias | None, run_id: str | None) -> Literal["champion", "challenger"] | None:
    """Return the alias that was given, if any; a usage error where a run is given too."""
    if alias is not None and run_id is not None:
        raise typer.BadParameter(
            "each says which models to take; leave out one of them", param_hint="--alias, --run-id"
        )
    return None if alias is None else alias.value


def out() -> Console:
    """Return the terminal, or a wide page where the output goes elsewhere."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def say(line: str) -> None:
    """Print a line beside the output."""
    typer.echo(line, err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    typer.echo(json.dumps(value, indent=2, default=str, ensure_ascii=False))
