"""Manifest rows as a terminal of some width shows them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from group_models.report import rows_table

ROW: dict[str, Any] = {
    "key": {"carrier": "UA", "lane": "EWR-IAH", "depot": "EWR"},
    "status": "unchanged",
    "serves": "previous",
    "model_run_id": "r20260101-010203-abcdef",
    "rows": 1234,
    "metrics": {"mae": 12.345678},
    "baseline_metrics": {"mae": 22.5},
    "reason": "same data and spec as its model; its model is 0.1 days old",
}


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_no_word_is_broken_and_the_widest_terminal_has_all_columns(width: int):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(rows_table("Keys", [ROW, {**ROW, "status": "out_of_memory"}], width=width))
    shown = console.export_text()
    words = set(shown.replace("│", " ").replace("┃", " ").split())
    assert {"carrier=UA,", "lane=EWR-IAH,", "depot=EWR", "unchanged", "out_of_memory", "12.35"} <= words
    assert max(map(len, shown.splitlines())) <= width
    assert ({"previous", "r20260101-010203-abcdef", "1,234", "22.5", "same"} <= words) == (width > 100)
