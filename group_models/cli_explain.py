"""The command `explain`. Heavy imports are inside, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from group_models.cli_options import Alias, Json, OneKey, RunId, SpecArgument, Warehouse, one_of, out, print_json


def explain(
    spec: SpecArgument,
    key: OneKey,
    source: Annotated[str, typer.Option("--input", metavar="X", help="A path or a table with rows of the key.")],
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="So many of its rows.")] = 5,
    alias: Annotated[Alias | None, typer.Option(help="Whose live set; champion by default.")] = None,
    run_id: RunId = None,
    warehouse: Warehouse = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Say of single rows what each feature adds to their prediction."""
    alias_name = one_of(alias, run_id)
    from group_models import explaining

    options: dict[str, Any] = {"alias": alias_name, "run_id": run_id, "warehouse": warehouse}
    found = explaining.explain_input(source, spec, key=key, rows=rows, **options)
    if as_json:
        print_json(found)
        return
    from group_models.reporting import report

    for place, row in enumerate(found, start=1):
        out().print(
            report.text_table(f"Row {place} of {len(found)}: prediction {_number(row['prediction'])}", _lines(row))
        )


def _lines(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the base value and the contributions, those of most size first."""
    ordered = sorted(row["contributions"].items(), key=lambda item: -abs(item[1] or 0.0))
    lines = [{"feature": "(base value)", "value": "", "contribution": _number(row["base_value"])}]
    values = row["features"]
    return lines + [
        {"feature": name, "value": _text(values[name]) if name in values else "", "contribution": _number(added)}
        for name, added in ordered
    ]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
