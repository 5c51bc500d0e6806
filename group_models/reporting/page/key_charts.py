"""The charts of a single key as Vega-Lite specs: plain mappings. Pure; `drawing` makes pictures of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from group_models.reporting.page import marks
from group_models.reporting.page.fleet import sensible
from group_models.reporting.page.marks import LABEL_WIDTH, OTHER, OWN, SAID, SOFT, Chart, layer, number

_HEIGHT = 220


def history(rows: pd.DataFrame, title: str) -> Chart:
    """Return a key's error from run to run, and its median's.

    Parameters
    ----------
    rows
        Columns `run_id, said, error, baseline`, oldest first; runs without an error leave a gap.
    """
    values = [
        {"run": i, **{n: _none(row[n]) for n in ("error", "baseline")}, "said": row["said"]}
        for i, row in enumerate(rows.to_dict("records"))
    ]
    axis = {
        "labelExpr": marks.labels([str(run_id) for run_id in rows["run_id"]]), "labelLimit": 110, "grid": False,
        "labelAngle": -35 if len(values) > 3 else 0, "labelOverlap": "greedy",
    }  # fmt: skip
    x = {"field": "run", "type": "ordinal", "title": "run", "axis": axis}
    tick = {"type": "tick", "color": OTHER, "thickness": 2.5, "size": 18, "aria": False}
    layers = [
        layer(values, marks.line(OTHER, strokeDash=[4, 3]), {"x": x, "y": number("baseline", title)}),
        layer(values, marks.line(), {"x": x, "y": number("error", title, scale={"zero": True})}),
        layer(_with(values, "baseline"), tick, {"x": x, "y": number("baseline", title)}),
        layer(_with(values, "error"), marks.dots(64), {"x": x, "y": number("error", title), **SAID}),
    ]
    return marks.chart(layers, height=150)


def _none(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def _with(rows: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row[name] is not None]


def predicted_against_actual(rows: pd.DataFrame, target: str) -> Chart:
    """Return predictions against what happened, one dot per row, and the line where they agree.

    Parameters
    ----------
    rows
        Columns `y, prediction`.
    """
    low, high = (float(f(rows[["y", "prediction"]].to_numpy())) for f in (np.min, np.max))
    pad = (high - low) * 0.04 or 1.0
    ends = [{"p": v, "y": v} for v in (low - pad, high + pad)]
    values = [
        {"y": float(y), "p": float(p), "said": f"actual {sensible(y)}, predicted {sensible(p)}"}
        for y, p in zip(rows["y"], rows["prediction"], strict=True)
    ]
    scale = {"domain": [low - pad, high + pad], "nice": False, "zero": False}
    place = {"x": number("p", f"predicted {target}", scale=scale), "y": number("y", f"actual {target}", scale=scale)}
    agree = layer(ends, marks.line(marks.INK, 1), place)
    return marks.chart([layer(values, marks.dots(16, opacity=0.45), {**place, **SAID}), agree], height=_HEIGHT)


def residuals(bins: pd.DataFrame, target: str, holdout_from: str | None) -> Chart:
    """Return prediction minus actual over time: the median and the middle four fifths of each stretch of time.

    Parameters
    ----------
    bins
        Columns `at` (ISO text), `low, middle, high`, `rows`.
    """
    rows = [_told(row) for row in bins.to_dict("records")]
    axis = {"tickCount": 6, "labelOverlap": True, "grid": False}
    x = {"field": "at", "type": "temporal", "title": None, "axis": axis}
    title = f"predicted \N{MINUS SIGN} actual {target}"
    middle = {"x": x, "y": number("middle", title)}
    layers = [
        layer(rows, marks.band(), {"x": x, "y": number("low", title), "y2": {"field": "high"}}),
        layer(rows, marks.line(width=1.6), middle),
        layer(rows, marks.dots(50, opacity=0), {**middle, **SAID}),
        layer([{"zero": 0}], marks.rule(), {"y": number("zero", title)}),
    ]
    if holdout_from is not None and any(row["at"] >= holdout_from for row in rows):
        layers.append(layer([{"at": holdout_from}], marks.rule(SOFT, strokeDash=[4, 3]), {"x": x}))
    return marks.chart(layers, height=_HEIGHT)


def _told(row: Mapping[Any, Any]) -> dict[str, Any]:
    said = f"{row['at'][:10]}: median {sensible(row['middle'])} of {row['rows']:,} rows"
    return {**{name: row[name] for name in ("at", "low", "middle", "high")}, "said": said}


def importances(shares: Mapping[str, float], title: str) -> Chart:
    """Return how much each feature matters, the most important first."""
    rows = [{"feature": name, "value": float(v), "said": f"{name}: {sensible(v)}"} for name, v in shares.items()]
    axis = {"labelLimit": LABEL_WIDTH, "title": None, "grid": False, "domain": False, "ticks": False}
    y = {"field": "feature", "type": "nominal", "sort": None, "axis": axis}
    bars = layer(rows, marks.bar(color=OWN, height={"band": 0.7}), {"y": y, "x": number("value", title), **SAID})
    return marks.named_chart([bars], names=len(rows), step=20)
