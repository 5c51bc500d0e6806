"""Charts drawn as SVG that stands in the page itself: vl-convert brings Vega, needs no browser and no network."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_INK, _SOFT, _GRID = "var(--ink)", "var(--soft)", "var(--grid)"
_VERSION = "v5.20"
"""Of Vega-Lite, among those that vl-convert brings: a page looks the same whichever is its newest."""

_CONFIG: Mapping[str, Any] = {
    "background": None,
    "font": FONT,
    "padding": {"left": 10, "right": 6, "top": 4, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": _SOFT, "titleColor": _SOFT, "titleFontWeight": "normal", "labelFontSize": 11,
        "titleFontSize": 11, "gridColor": _GRID, "gridWidth": 1, "domainColor": _GRID, "tickColor": _GRID,
        "tickSize": 4, "titlePadding": 8,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False},
    "line": {"strokeCap": "round"},
}  # fmt: skip

_IDS = re.compile(r'(\bid="|url\(#|href="#)([^")]+)')


class Artist:
    """Draws the charts of one page; no two of its pictures share an id."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def draw(self, chart: Mapping[str, Any], title: str) -> str:
        """Return a chart as an SVG element with a title for who cannot see it."""
        number = next(self._numbers)
        svg = convert({**chart, "description": title})
        return _IDS.sub(rf"\g<1>c{number}-\g<2>", svg)


def convert(chart: Mapping[str, Any]) -> str:
    """Return a Vega-Lite spec as SVG text; nothing is fetched, whatever the spec names."""
    import vl_convert

    return vl_convert.vegalite_to_svg(
        dict(chart), vl_version=_VERSION, config=dict(_CONFIG), allowed_base_urls=[], show_warnings=False
    )
