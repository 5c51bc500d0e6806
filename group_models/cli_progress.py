"""How `train` shows how far it is, and what it says when somebody stops it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from group_models.cli_options import say
from group_models.errors import StoppedError

if TYPE_CHECKING:
    from group_models.reporting.progress import Show

STOPPED = 130
"""Exit code of what was stopped with Ctrl-C, as shells have it."""


@contextlib.contextmanager
def progress() -> Iterator[tuple[Show, Callable[[str], None]]]:
    """Yield where progress is shown and lines are said: with a bar on a terminal, else the lines alone."""
    from rich.console import Console

    from group_models.reporting import displays
    from group_models.reporting.progress import show_nothing

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield show_nothing, say
        return
    with displays.on_terminal(console) as shown:
        yield shown


@contextlib.contextmanager
def stopping(spec: str, options: Mapping[str, Any]) -> Iterator[None]:
    """End a run that is stopped with the command that goes on with it.

    Raises
    ------
    typer.Exit
        Somebody stopped it.
    """
    try:
        yield
    except StoppedError as e:
        say(f"stopped run {e.run_id}; what it committed stays. It goes on with")
        say(f"  {go_on_command(spec, e.run_id, options)}")
        raise typer.Exit(STOPPED) from e


def go_on_command(spec: str, run_id: str, options: Mapping[str, Any]) -> str:
    """Return the command that goes on with a run: the options that it was started with, and its id.

    Examples
    --------
    >>> print(go_on_command("eta.yaml", "r1", {"where": "carrier = 'UA'", "keys": None, "no_release": True}))
    group-models train eta.yaml --where 'carrier = '"'"'UA'"'"'' --no-release --run-id r1
    """
    words = ["group-models", "train", spec]
    for name, value in {**options, "run_id": run_id}.items():
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    return shlex.join(words)
