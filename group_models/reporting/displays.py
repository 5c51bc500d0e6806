"""Where the progress of a run is seen while it goes on: a bar on a terminal, or a line in a notebook's output."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from group_models.reporting.progress import Progress, Show, show_nothing

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_REDRAWN_PER_S = 2
_BAR_WIDTH = 24


@contextlib.contextmanager
def on_terminal(console: Console) -> Iterator[tuple[Show, Callable[[str], None]]]:
    """Keep a bar at the bottom of a terminal; yields where progress is shown, and how lines above it are said."""
    from rich.live import Live

    bar = _Bar()
    with Live(get_renderable=bar.draw, console=console, refresh_per_second=_REDRAWN_PER_S, transient=True):
        yield bar.show, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Bar:
    """The newest progress, drawn with the time that has gone by since it was told."""

    def __init__(self) -> None:
        self._told: tuple[Progress, float] | None = None

    def show(self, progress: Progress) -> None:
        """Draw this from now on."""
        self._told = (progress, time.monotonic())

    def draw(self) -> RenderableType:
        """Return what is to be seen now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._told is None:
            return Text("")
        progress, since = self._told
        elapsed = time.monotonic() - since
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=progress.share(elapsed), width=_BAR_WIDTH)
        line.add_row(bar, Text(progress.wave_text()), Text(progress.text(elapsed)))
        return line


@contextlib.contextmanager
def in_notebook() -> Iterator[Show]:
    """Show progress as one output of the notebook's cell, changed in its place; nothing outside a notebook."""
    if not has_kernel():
        yield show_nothing
        return
    yield _Output().show


class _Output:
    """One output of a cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, progress: Progress) -> None:
        """Put this in the place of what was shown before."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(progress, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(progress)


def has_kernel() -> bool:
    """Return whether this process is a notebook's; whoever runs one has loaded IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
