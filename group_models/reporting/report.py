"""Plans, runs and manifest rows as people read them: lines and tables for a terminal, a table for a notebook."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from group_models.comparing import simplest
from group_models.keys import show_key
from group_models.live.metrics import first_metric
from group_models.live.releases import Release
from group_models.spec import Metric
from group_models.texts import some_of


def _row_columns(metric: Metric) -> tuple[str, ...]:
    """Return the columns of manifest rows as people read them, with the metric that is the first one of the rows."""
    return ("key", "status", "serves", "model_run_id", "rows", metric, _of_median(metric), "reason")


def _of_median(metric: Metric) -> str:
    return f"{simplest(metric)}'s {metric}"


def _left_out(metric: Metric) -> tuple[str, ...]:
    """Return what a narrow terminal does without, in this order; `--json` has everything."""
    return (_of_median(metric), "model_run_id", "rows", "serves", "reason")


def facts_table(title: str, facts: Mapping[str, str]) -> RichTable:
    """Return facts as a terminal table."""
    table = RichTable(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts.items():
        table.add_row(name, plain(text))
    return table


def rows_table(title: str, rows: Sequence[Mapping[str, Any]], *, width: int = 160) -> RichTable:
    """Return manifest rows as a terminal table, the columns that a person asks for first.

    Words are whole: columns for which a terminal of this width has no room are left out.
    """
    metric = first_metric(rows)
    cells = [dict(zip(_row_columns(metric), _cells(row, metric), strict=True)) for row in rows]
    widths = _fitting(cells, metric, width)
    table = RichTable(title=title, title_justify="left", pad_edge=False)
    for name, wide in widths.items():
        is_number = name in ("rows", metric, _of_median(metric))
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", width=wide)
    for row in cells:
        table.add_row(*[row[name] for name in widths])
    return table


def _fitting(cells: Sequence[Mapping[str, Text]], metric: Metric, width: int) -> dict[str, int]:
    """Return the columns for which there is room, and how wide each is; `key` and `reason` share what is left."""
    columns = _row_columns(metric)
    texts = {name: [name, *[row[name].plain for row in cells]] for name in columns}
    least = {name: max(len(word) for text in texts[name] for word in text.split()) for name in columns}
    least["reason"] = max(least["reason"], min(_READABLE, max(map(len, texts["reason"]))))
    for name in _left_out(metric):
        if sum(least.values()) + _BESIDE * len(least) <= width:
            break
        del least[name]
    spare = max(width - sum(least.values()) - _BESIDE * len(least), 0)
    # Columns of several words, those first that are to be on one line before others.
    for name in [name for name in ("serves", _of_median(metric), "key", "reason") if name in least]:
        more = min(max(map(len, texts[name])) - least[name], spare)
        least[name], spare = least[name] + more, spare - more
    return least


_READABLE = 24
"""Cells without which a reason is a column of single words."""

_BESIDE = 3
"""Cells beside each column's text: its border and padding."""


def _cells(row: Mapping[str, Any], metric: str) -> list[Text]:
    error = _number((row["metrics"] or {}).get(metric))
    baseline = _number((row["baseline_metrics"] or {}).get(metric))
    texts = [
        show_key(row["key"]),
        row["status"],
        f"{row['serves']}, pinned" if row.get("pinned_run_id") else row["serves"],
        row["model_run_id"] or "",
        f"{row['rows'] or 0:,}",
    ]
    return [plain(text) for text in [*texts, error, baseline, row["reason"] or ""]]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def plain(text: str) -> Text:
    """Return text that rich prints as it is, brackets included."""
    return Text(text)


def row_facts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return one manifest row as fact and text, columns without a value left out."""
    facts = {}
    for name, value in row.items():
        if value is None or value == {}:
            continue
        if name == "key":
            facts[name] = show_key(value)
        elif name == "importance":
            most_first = sorted(value.items(), key=lambda share: -share[1])
            facts[name] = ", ".join(f"{feature} {share:.1%}" for feature, share in most_first)
        elif isinstance(value, dict):
            facts[name] = ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
        else:
            facts[name] = str(value)
    return facts


def releases_table(log: Sequence[Release], keys: Mapping[str, str]) -> RichTable:
    """Return a release log as a terminal table, oldest first; `keys` has the text of the key ids that are pinned."""
    table = RichTable(title=f"{len(log)} release(s)", title_justify="left", pad_edge=False)
    for name in ("release_id", "alias", "action", "of what", "at (UTC)", "by", "note"):
        table.add_column(name, overflow="fold")
    for rows in _acts(log):
        row, what = rows[-1], some_of([_subject(each, keys) for each in rows])
        at = f"{row.at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}"
        texts = [row.release_id, row.alias, row.action, what, at, row.by or "", row.note or ""]
        table.add_row(*[plain(text) for text in texts])
    return table


def _acts(log: Sequence[Release]) -> list[list[Release]]:
    """Return the rows of a log act by act: a clean has one for each run."""
    acts: list[list[Release]] = []
    for row in log:
        if row.action == "clean" and acts and acts[-1][-1].action == "clean":
            acts[-1].append(row)
        else:
            acts.append([row])
    return acts


def _subject(release: Release, keys: Mapping[str, str]) -> str:
    """Return what an act is about: a run, a release, or a key and where it is pinned."""
    if release.action == "clean" and release.target_release_id:
        return f"{release.alias} before release {release.target_release_id}"
    key = keys.get(release.key_id or "", release.key_id)
    parts = {"key": key, "run": release.run_id, "release": release.target_release_id}
    parts |= {"version": release.registered_version}
    return " to ".join(f"{name} {value}" for name, value in parts.items() if value is not None)


def text_table(title: str, rows: Sequence[Mapping[str, str]]) -> RichTable:
    """Return rows of text as a terminal table, a column for each name."""
    table = RichTable(title=title, title_justify="left", pad_edge=False)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*[plain(text) for text in row.values()])
    return table


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its times as ISO text and its binary columns left out."""
    return {
        name: value.isoformat() if isinstance(value, dt.datetime) else value
        for name, value in row.items()
        if not isinstance(value, bytes)
    }
