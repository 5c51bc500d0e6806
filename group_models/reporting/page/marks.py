"""What the charts of a page are made of: layers, axes and marks of Vega-Lite as plain mappings. Pure.

Colours are names of the page's CSS variables, so that one picture serves light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Chart: TypeAlias = dict[str, Any]
Part: TypeAlias = Mapping[str, Any]

INK, SOFT, GRID, OWN, OTHER, GOOD, BAD = (
    f"var(--{name})" for name in ("ink", "soft", "grid", "own", "other", "good", "bad")
)

WIDTH, HEIGHT = 400, 190
"""Pixels of a plot without its axes; with them it fits a phone and two of them a page."""

LABEL_WIDTH = 150
"""Pixels for names beside a plot, which is narrower by about that."""

SAID = {"description": {"field": "said", "type": "nominal"}}
"""What is said of a mark, to a screen reader and to a mouse."""


def chart(layers: Sequence[Part], *, height: float = HEIGHT, width: float = WIDTH) -> Chart:
    """Return a chart of layers, the lowest first."""
    return {"width": width, "height": height, "layer": list(layers)}


def named_chart(layers: Sequence[Part], *, names: int, step: int) -> Chart:
    """Return a chart with a line for each name beside it, so many pixels high."""
    return chart(layers, height=max(3, names) * step, width=WIDTH - LABEL_WIDTH + 30)


def layer(rows: Sequence[Part], mark: Part, encoding: Part) -> dict[str, Any]:
    """Return one layer: its rows, what is drawn of them, and what of each column decides."""
    return {"data": {"values": list(rows)}, "mark": dict(mark), "encoding": dict(encoding)}


def number(field: str, title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of numbers."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def bar(**more: Any) -> dict[str, Any]:
    """Return bars."""
    return {"type": "bar", **more}


def line(colour: str = OWN, width: float = 2, **more: Any) -> dict[str, Any]:
    """Return a line; what is said of it is said at its points."""
    return {"type": "line", "color": colour, "strokeWidth": width, "aria": False, **more}


def rule(colour: str = INK, width: float = 1, **more: Any) -> dict[str, Any]:
    """Return a straight line from one side to the other."""
    return {"type": "rule", "color": colour, "strokeWidth": width, "aria": False, **more}


def band() -> dict[str, Any]:
    """Return an area around a line."""
    return {"type": "area", "color": OWN, "opacity": 0.18, "aria": False}


def dots(size: float = 46, opacity: float = 1) -> dict[str, Any]:
    """Return dots; those of no opacity are there only to say what is where they are."""
    return {"type": "point", "filled": True, "size": size, "color": OWN, "opacity": opacity}


def shortened(text: str, length: int = 24) -> str:
    """Return text of at most so many characters, the middle left out where it has more: keys often differ at the end.

    Examples
    --------
    >>> shortened("UA, EWR-SFO"), shortened("a very long name of a key, and its end")
    ('UA, EWR-SFO', 'a very long …and its end')
    """
    half = length // 2
    return text if len(text) <= length else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half + 1 :]}"


def labels(texts: Sequence[str]) -> str:
    r"""Return Vega's expression for the label of each place: its text, whatever that holds.

    Examples
    --------
    >>> labels(["a", "b'"])
    "({0: 'a', 1: 'b\\u0027'})[datum.value]"
    """
    return f"({{{', '.join(f'{place}: {_quoted(text)}' for place, text in enumerate(texts))}}})[datum.value]"


def _quoted(text: str) -> str:
    return "'" + "".join(c if c.isalnum() or c in " =-_,.:" else f"\\u{ord(c):04x}" for c in _halves(text)) + "'"


def _halves(text: str) -> str:
    """Return text with each character beyond the first 65,536 as its two halves, as JavaScript writes it."""
    halves = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(int.from_bytes(halves[i : i + 2])) for i in range(0, len(halves), 2))
