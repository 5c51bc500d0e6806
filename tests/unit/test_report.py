"""Manifest rows as a terminal of some width shows them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from group_models.reporting.report import rows_table

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


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_no_word_is_broken_and_a_wide_terminal_has_all_columns(width: int):
    console = Console(width=width, record=True, file=io.StringIO())
    other = {**ROW, "status": "out_of_memory", "pinned_run_id": "one", "reason": None}
    console.print(rows_table("Keys", [ROW, other], width=width))
    shown = console.export_text()
    words = set(shown.replace("│", " ").replace("┃", " ").split())
    assert {"carrier=UA,", "lane=EWR-IAH,", "depot=EWR", "unchanged", "out_of_memory", "12.35"} <= words
    assert max(map(len, shown.splitlines())) <= width
    assert all(line.endswith(("│", "┃")) for line in shown.splitlines() if line[0] in "│┃")
    assert ({"previous", "r20260101-010203-abcdef", "1,234", "22.5", "same"} <= words) == (width == 160)


def test_a_table_without_rows_has_its_columns():
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(rows_table("Keys", []))
    assert "median's mae" in console.export_text()
