"""Small texts for people."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts as text.

    Examples
    --------
    >>> counts_text({"trained": 1200, "failed": 2})
    '1,200 trained, 2 failed'
    """
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def added(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return counts without what was counted before.

    Examples
    --------
    >>> added({"scored": 5, "no_model": 2}, {"scored": 3, "no_model": 2})
    {'scored': 2}
    """
    return {name: more for name, count in after.items() if (more := count - before.get(name, 0))}


def flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields as one level of dotted names.

    Examples
    --------
    >>> flat({"seed": 7, "limits": {"min_rows": 30}})
    {'seed': 7, 'limits.min_rows': 30}
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def number_text(count: int, name: str) -> str:
    """Return a number of things.

    Examples
    --------
    >>> number_text(1, "unit"), number_text(1200, "key")
    ('1 unit', '1,200 keys')
    """
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that a person would choose.

    Examples
    --------
    >>> duration_text(3.14), duration_text(754), duration_text(9000)
    ('3.1 s', '12.6 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def some_of(names: Sequence[str], count: int = 5) -> str:
    """Return the first few of many names as a message shows them.

    Examples
    --------
    >>> some_of(["a", "b", "c"], 2)
    'a, b and 1 more'
    >>> some_of([])
    'none'
    """
    shown = ", ".join(names[:count])
    return f"{shown} and {len(names) - count} more" if len(names) > count else shown or "none"


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Return facts as an HTML table; text from data is escaped.

    Examples
    --------
    >>> facts_html("Run", {"key": "<b>"})
    "<table><caption>Run</caption><tr><th style='text-align:left'>key</th>\
<td style='text-align:left'>&lt;b&gt;</td></tr></table>"
    """
    style = " style='text-align:left'"
    rows = "".join(
        f"<tr><th{style}>{html.escape(name)}</th><td{style}>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"
