"""The command `report`. Heavy imports are inside, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from group_models.cli_options import RunId, SpecArgument, Warehouse, say


def report(
    spec: SpecArgument,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")],
    run_id: RunId = None,
    key: Annotated[
        list[str] | None, typer.Option(help="A key to look at closely: a=1,b=2, or JSON, or a key_id; repeatable.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, metavar="N", help="So many of the worst keys closely, too.")] = 5,
    warehouse: Warehouse = None,
) -> None:
    """Write a finished run (by default the newest) as one HTML page that needs no network."""
    from group_models import reports

    reports.report(spec, run_id=run_id, keys=key or (), worst=worst, output=output, warehouse=warehouse)
    say(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")
