"""The charts of a page as Vega-Lite specs: plain mappings. Pure; `drawing` makes pictures of them.

Colours are names of the page's CSS variables, so that one picture serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from group_models.reporting.page.fleet import Floats, Histogram, RowsBin, percent, sensible
from group_models.reporting.timing import Timing

Chart: TypeAlias = dict[str, Any]

INK, SOFT, GRID, OWN, OTHER, GOOD, BAD, CARD = (
    f"var(--{name})" for name in ("ink", "soft", "grid", "own", "other", "good", "bad", "card")
)

WIDTH, HEIGHT = 400, 190
"""Pixels of a plot without its axes; with them it fits a phone and two of them a page."""

RATIO_TOP = 2.0
"""Ratio of errors at which its histogram is cut."""

_LABEL_WIDTH = 150


def _chart(layers: Sequence[Mapping[str, Any]], *, height: float = HEIGHT, width: float = WIDTH) -> Chart:
    return {"width": width, "height": height, "layer": list(layers)}


def _layer(rows: Sequence[Mapping[str, Any]], mark: Mapping[str, Any], encoding: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": {"values": list(rows)}, "mark": dict(mark), "encoding": dict(encoding)}


def _x(field: str, title: str, **more: Any) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title, **more}


_SAID = {"description": {"field": "said", "type": "nominal"}}
"""What is said of a mark, to a screen reader and to a mouse."""


def error_histogram(own: Histogram, baselines: Mapping[str, Histogram], title: str) -> Chart:
    """Return how many keys have which error: bars, and a line for what they are compared with."""
    bars = [
        {"from": lo, "to": hi, "keys": int(n), "said": f"{n:,} keys: {sensible(lo, hi)} to {_upto(hi, i, own)}"}
        for i, (lo, hi, n) in enumerate(_bins(own))
    ]
    place = {"x": _x("from", title, scale={"nice": False}, bin="binned"), "x2": {"field": "to"}}
    height = {"y": _x("keys", "keys", axis={"tickMinStep": 1})}
    layers = [_layer(bars, {"type": "bar", "color": OWN, "binSpacing": 1}, {**place, **height, **_SAID})]
    for name, each in baselines.items():
        steps = [{"from": lo, "keys": int(n)} for lo, _, n in _bins(each)]
        steps.append({"from": float(each.edges[-1]), "keys": int(each.counts[-1])})
        line = {"type": "line", "interpolate": "step-after", "color": OTHER, "strokeWidth": 1.6, "aria": False}
        line |= {} if name == "median" else {"strokeDash": [4, 3]}
        layers.append(_layer(steps, line, {"x": _x("from", title), **height}))
    return _chart(layers)


def _bins(each: Histogram) -> list[tuple[float, float, int]]:
    return list(zip(each.edges[:-1].tolist(), each.edges[1:].tolist(), each.counts.tolist(), strict=True))


def _upto(high: float, place: int, each: Histogram) -> str:
    is_last = place == len(each.counts) - 1
    return "and more" if is_last and each.is_cut else sensible(high)


def ratio_histogram(ratios: Floats, title: str) -> Chart:
    """Return how many keys have which ratio of two errors: below one is better and green, above it worse."""
    edges = np.linspace(0, RATIO_TOP, 41)
    counts, _ = np.histogram(np.minimum(ratios[np.isfinite(ratios)], RATIO_TOP - 1e-9), edges)
    bars = [
        {
            "from": lo, "to": hi, "keys": int(n), "colour": GOOD if hi <= 1.0 + 1e-9 else BAD,
            "said": f"{n:,} keys: {percent(lo)} to {'and more' if hi >= RATIO_TOP else percent(hi)}",
        }
        for lo, hi, n in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    ]  # fmt: skip
    axis = {"format": "%", "values": [0, 0.5, 1, 1.5, 2], "labelExpr": "datum.value >= 2 ? '200% +' : datum.label"}
    encoding = {
        "x": _x("from", title, scale={"domain": [0, RATIO_TOP]}, axis=axis, bin="binned"),
        "x2": {"field": "to"},
        "y": _x("keys", "keys", axis={"tickMinStep": 1}),
        "color": {"field": "colour", "type": "nominal", "scale": None},
        **_SAID,
    }
    one = {"type": "rule", "color": INK, "strokeWidth": 1.2, "aria": False}
    return _chart(
        [_layer(bars, {"type": "bar", "binSpacing": 1}, encoding), _layer([{"x": 1}], one, {"x": _x("x", title)})]
    )


def _top(values: Sequence[float]) -> float:
    return max([value for value in values if math.isfinite(value)], default=1.0) or 1.0


def key_errors(labels: Sequence[str], own: Floats, baselines: Mapping[str, Floats], title: str) -> Chart:
    """Return the errors of some keys, one line each: a dot for its own, a tick for each baseline."""
    rows = [
        {"place": i, "zero": 0, "error": float(value), "said": f"{label}: {sensible(value)}"}
        for i, (label, value) in enumerate(zip(labels, own, strict=True))
    ]
    texts = {str(i): shortened(label) for i, label in enumerate(labels)}
    names = {
        "labelExpr": f"({{{', '.join(f'{i}: {_quoted(text)}' for i, text in texts.items())}}})[datum.value]",
        "labelLimit": _LABEL_WIDTH, "labelPadding": 8, "title": None, "grid": False, "domain": False, "ticks": False,
    }  # fmt: skip
    y = {"field": "place", "type": "ordinal", "axis": names}
    top = _top([*own.tolist(), *(v for each in baselines.values() for v in each.tolist())]) * 1.04
    x = _x("error", title, scale={"domain": [0, top], "nice": False})
    stems = {"type": "rule", "color": GRID, "strokeWidth": 1.5, "aria": False}
    layers = [_layer(rows, stems, {"y": y, "x": {**x, "field": "zero"}, "x2": {"field": "error"}})]
    for name, errors in baselines.items():
        ticks = [
            {"place": i, "error": float(value), "said": f"{labels[i]}: {name} {sensible(value)}"}
            for i, value in enumerate(errors)
            if np.isfinite(value)
        ]
        tick = {"type": "tick", "color": OTHER, "thickness": 2.5, "size": 12}
        tick |= {} if name == "median" else {"thickness": 1.5, "size": 18}
        layers.append(_layer(ticks, tick, {"y": y, "x": x, **_SAID}))
    dots = {"type": "point", "filled": True, "size": 70, "color": OWN, "opacity": 1}
    layers.append(_layer(rows, dots, {"y": y, "x": x, **_SAID}))
    return _chart(layers, height=max(3, len(labels)) * 22, width=WIDTH - _LABEL_WIDTH + 30)


def shortened(text: str, length: int = 24) -> str:
    """Return text of at most so many characters, the middle left out where it has more: keys often differ at the end.

    Examples
    --------
    >>> shortened("UA, EWR-SFO"), shortened("a very long name of a key, and its end")
    ('UA, EWR-SFO', 'a very long …and its end')
    """
    half = length // 2
    return text if len(text) <= length else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half + 1 :]}"


def _quoted(text: str) -> str:
    """Return text as a literal of Vega's expressions."""
    return "'" + "".join(c if c.isalnum() or c in " =-_,.:" else f"\\u{ord(c):04x}" for c in _bmp(text)) + "'"


def _bmp(text: str) -> str:
    """Return text with each character beyond the first 65,536 as its two halves, as JavaScript writes it."""
    halves = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(int.from_bytes(halves[i : i + 2])) for i in range(0, len(halves), 2))


def errors_by_rows(bins: Sequence[RowsBin], title: str) -> Chart:
    """Return errors by the keys' number of rows: the median, and the middle four fifths as a band."""
    rows = [
        {
            "rows": each.rows, "low": each.low, "middle": each.middle, "high": each.high,
            "said": f"{each.keys:,} keys with about {each.rows:,.0f} rows: median {sensible(each.middle)}, "
            f"four fifths from {sensible(each.low)} to {sensible(each.high)}",
        }
        for each in bins
    ]  # fmt: skip
    x = _x(
        "rows",
        "rows of the key (logarithmic)",
        scale={"type": "log", "nice": False},
        axis={"format": "~s", "tickCount": 6},
    )
    band = {"type": "area", "color": OWN, "opacity": 0.18, "aria": False}
    line = {"type": "line", "color": OWN, "strokeWidth": 2, "aria": False}
    dot = {"type": "point", "filled": True, "size": 46, "color": OWN, "opacity": 1}
    return _chart([
        _layer(rows, band, {"x": x, "y": _x("low", title), "y2": {"field": "high"}}),
        _layer(rows, line, {"x": x, "y": _x("middle", title)}),
        _layer(rows, dot, {"x": x, "y": _x("middle", title), **_SAID}),
    ])  # fmt: skip


def waves(timing: Timing) -> Chart:
    """Return the seconds of each wave, predicted and actual."""
    rows = [
        {"wave": f"wave {wave.wave + 1}", "what": what, "seconds": seconds, "colour": colour,
         "said": f"wave {wave.wave + 1}: {what} {seconds:,.2f} s, {wave.units:,} units, {wave.keys:,} keys"}
        for wave in timing.waves
        for what, seconds, colour in (("predicted", wave.predicted_s, OTHER), ("actual", wave.wall_s, OWN))
    ]  # fmt: skip
    axis = {"title": None, "grid": False, "ticks": False, "labelPadding": 8, "labelOverlap": True}
    encoding = {
        "y": {"field": "wave", "type": "ordinal", "sort": None, "axis": axis},
        "yOffset": {"field": "what", "sort": ["predicted", "actual"]},
        "x": _x("seconds", "seconds of fits", axis={"grid": True, "tickCount": 5}),
        "color": {"field": "colour", "type": "nominal", "scale": None},
        **_SAID,
    }
    bars = {"type": "bar", "height": {"band": 0.8}}
    height = min(max(1.6, len(timing.waves)) * 38, 420)
    return _chart([_layer(rows, bars, encoding)], height=height, width=WIDTH - 30)


def fit_shares(shares: Sequence[tuple[float, float]]) -> Chart:
    """Return which share of the fits' time the slowest keys took, beside even keys."""
    rows = [
        {"keys": keys, "time": time, "said": f"the slowest {percent(keys, 1)} of the keys: {percent(time)} of the time"}
        for keys, time in shares
    ]
    x = _x("keys", "share of keys, slowest first", axis={"format": "%", "tickCount": 5}, scale={"domain": [0, 1]})
    y = _x("time", "share of fit time", axis={"format": "%", "tickCount": 5}, scale={"domain": [0, 1]})
    even = [{"keys": 0, "time": 0}, {"keys": 1, "time": 1}]
    dashed = {"type": "line", "color": OTHER, "strokeDash": [4, 3], "strokeWidth": 1.4, "aria": False}
    dots = {"type": "point", "size": 90, "opacity": 0, "filled": True}
    return _chart([
        _layer(even, dashed, {"x": x, "y": y}),
        _layer(rows, {"type": "line", "color": OWN, "strokeWidth": 2, "aria": False}, {"x": x, "y": y}),
        _layer(rows, dots, {"x": x, "y": y, **_SAID}),
    ])  # fmt: skip


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
    names = ", ".join(f"{i}: {_quoted(str(run_id))}" for i, run_id in enumerate(rows["run_id"]))
    axis = {"labelExpr": f"({{{names}}})[datum.value]", "labelAngle": -35 if len(values) > 3 else 0, "labelLimit": 110,
            "labelOverlap": "greedy", "grid": False}  # fmt: skip
    x = {"field": "run", "type": "ordinal", "title": "run", "axis": axis}
    layers = []
    for field, colour, dash in (("baseline", OTHER, [4, 3]), ("error", OWN, [1, 0])):
        y = _x(field, title, scale={"zero": True})
        line = {"type": "line", "color": colour, "strokeWidth": 2, "strokeDash": dash, "aria": False}
        layers.append(_layer(values, line, {"x": x, "y": y}))
    tick = {"type": "tick", "color": OTHER, "thickness": 2.5, "size": 18, "aria": False}
    layers.append(_layer([v for v in values if v["baseline"] is not None], tick, {"x": x, "y": _x("baseline", title)}))
    dot = {"type": "point", "filled": True, "size": 64, "color": OWN, "opacity": 1}
    layers.append(
        _layer([v for v in values if v["error"] is not None], dot, {"x": x, "y": _x("error", title), **_SAID})
    )
    return _chart(layers, height=150)


def _none(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


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
    scale = {"domain": [low - pad, high + pad], "nice": False, "zero": False}
    values = [
        {"y": float(y), "p": float(p), "said": f"actual {sensible(y)}, predicted {sensible(p)}"}
        for y, p in zip(rows["y"], rows["prediction"], strict=True)
    ]
    x, y = _x("p", f"predicted {target}", scale=scale), _x("y", f"actual {target}", scale=scale)
    dots = {"type": "point", "filled": True, "size": 16, "color": OWN, "opacity": 0.45}
    line = {"type": "line", "color": INK, "strokeWidth": 1, "aria": False}
    return _chart([_layer(values, dots, {"x": x, "y": y, **_SAID}), _layer(ends, line, {"x": x, "y": y})], height=220)


def residuals(bins: pd.DataFrame, target: str, holdout_from: str | None) -> Chart:
    """Return prediction minus actual over time: the median and the middle four fifths of each stretch of time.

    Parameters
    ----------
    bins
        Columns `at` (ISO text), `low, middle, high`, `rows`.
    """
    rows: list[dict[str, Any]] = [
        {
            **{str(n): v for n, v in row.items()},
            "said": f"{row['at'][:10]}: median {sensible(row['middle'])} of {row['rows']:,} rows",
        }
        for row in bins.to_dict("records")
    ]
    x = {
        "field": "at",
        "type": "temporal",
        "title": None,
        "axis": {"tickCount": 6, "labelOverlap": True, "grid": False},
    }
    title = f"predicted \N{MINUS SIGN} actual {target}"
    band = {"type": "area", "color": OWN, "opacity": 0.18, "aria": False}
    line = {"type": "line", "color": OWN, "strokeWidth": 1.6, "aria": False}
    dots = {"type": "point", "size": 50, "opacity": 0, "filled": True}
    zero = {"type": "rule", "color": INK, "strokeWidth": 1, "aria": False}
    layers = [
        _layer(rows, band, {"x": x, "y": _x("low", title), "y2": {"field": "high"}}),
        _layer(rows, line, {"x": x, "y": _x("middle", title)}),
        _layer(rows, dots, {"x": x, "y": _x("middle", title), **_SAID}),
        _layer([{"zero": 0}], zero, {"y": _x("zero", title)}),
    ]
    if holdout_from is not None and any(row["at"] >= holdout_from for row in rows):
        dashed = {"type": "rule", "color": SOFT, "strokeDash": [4, 3], "aria": False}
        layers.append(_layer([{"at": holdout_from}], dashed, {"x": x}))
    return _chart(layers, height=220)


def importances(shares: Mapping[str, float], title: str) -> Chart:
    """Return how much each feature matters, the most important first."""
    rows = [{"feature": name, "value": float(v), "said": f"{name}: {sensible(v)}"} for name, v in shares.items()]
    axis = {"labelLimit": _LABEL_WIDTH, "title": None, "grid": False, "domain": False, "ticks": False}
    y = {"field": "feature", "type": "nominal", "sort": None, "axis": axis}
    bars = {"type": "bar", "color": OWN, "height": {"band": 0.7}}
    layers = [_layer(rows, bars, {"y": y, "x": _x("value", title), **_SAID})]
    return _chart(layers, height=max(3, len(rows)) * 20, width=WIDTH - _LABEL_WIDTH + 30)
