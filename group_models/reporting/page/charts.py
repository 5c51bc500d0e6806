"""The charts of all keys of a run as Vega-Lite specs: plain mappings. Pure; `drawing` makes pictures of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from group_models.reporting.page import marks
from group_models.reporting.page.fleet import SIMPLEST, Floats, Histogram, RowsBin, percent, sensible
from group_models.reporting.page.marks import BAD, GOOD, GRID, INK, LABEL_WIDTH, OTHER, OWN, SAID, Chart, layer, number
from group_models.reporting.timing import Timing

RATIO_TOP = 2.0
"""Ratio of errors at which its histogram is cut."""

_WHOLE = {"axis": {"tickMinStep": 1}}
_SHARES = {"axis": {"format": "%", "tickCount": 5}, "scale": {"domain": [0, 1]}}


def error_histogram(own: Histogram, baselines: Mapping[str, Histogram], title: str) -> Chart:
    """Return how many keys have which error: bars, and a line for what they are compared with."""
    bars = [
        {"from": lo, "to": hi, "keys": int(n), "said": f"{n:,} keys: {sensible(lo, hi)} to {_upto(hi, i, own)}"}
        for i, (lo, hi, n) in enumerate(_bins(own))
    ]
    place = {"x": number("from", title, scale={"nice": False}, bin="binned"), "x2": {"field": "to"}}
    encoding = {**place, "y": number("keys", "keys", **_WHOLE), **SAID}
    lines = [_steps(each, title, is_dashed=name not in SIMPLEST) for name, each in baselines.items()]
    return marks.chart([layer(bars, marks.bar(color=OWN, binSpacing=1), encoding), *lines])


def _steps(each: Histogram, title: str, *, is_dashed: bool) -> dict[str, Any]:
    steps = [{"from": lo, "keys": int(n)} for lo, _, n in _bins(each)]
    steps.append({"from": float(each.edges[-1]), "keys": int(each.counts[-1])})
    line = marks.line(OTHER, 1.6, interpolate="step-after", **({"strokeDash": [4, 3]} if is_dashed else {}))
    return layer(steps, line, {"x": number("from", title), "y": number("keys", "keys", **_WHOLE)})


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
        "x": number("from", title, scale={"domain": [0, RATIO_TOP]}, axis=axis, bin="binned"),
        "x2": {"field": "to"},
        "y": number("keys", "keys", **_WHOLE),
        "color": {"field": "colour", "type": "nominal", "scale": None},
        **SAID,
    }
    one = layer([{"x": 1}], marks.rule(INK, 1.2), {"x": number("x", title)})
    return marks.chart([layer(bars, marks.bar(binSpacing=1), encoding), one])


def key_errors(labels: Sequence[str], own: Floats, baselines: Mapping[str, Floats], title: str) -> Chart:
    """Return the errors of some keys, one line each: a dot for its own, a tick for each baseline."""
    rows = [
        {"place": i, "zero": 0, "error": float(value), "said": f"{label}: {sensible(value)}"}
        for i, (label, value) in enumerate(zip(labels, own, strict=True))
    ]
    axis = {
        "labelExpr": marks.labels([marks.shortened(label) for label in labels]), "labelLimit": LABEL_WIDTH,
        "labelPadding": 8, "title": None, "grid": False, "domain": False, "ticks": False,
    }  # fmt: skip
    x = number("error", title, scale={"domain": [0, _top(own, *baselines.values())], "nice": False})
    place = {"y": {"field": "place", "type": "ordinal", "axis": axis}, "x": x}
    stems = layer(rows, marks.rule(GRID, 1.5), {**place, "x": {**x, "field": "zero"}, "x2": {"field": "error"}})
    ticks = [_ticks(labels, errors, name, place) for name, errors in baselines.items()]
    return marks.named_chart(
        [stems, *ticks, layer(rows, marks.dots(70), {**place, **SAID})], names=len(labels), step=22
    )


def _top(*errors: Iterable[float]) -> float:
    return 1.04 * (max((v for each in errors for v in each if math.isfinite(v)), default=1.0) or 1.0)


def _ticks(labels: Sequence[str], errors: Floats, name: str, place: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        {"place": i, "error": float(value), "said": f"{labels[i]}: {name} {sensible(value)}"}
        for i, value in enumerate(errors)
        if np.isfinite(value)
    ]
    shape = {"thickness": 2.5, "size": 12} if name in SIMPLEST else {"thickness": 1.5, "size": 18}
    return layer(rows, {"type": "tick", "color": OTHER, **shape}, {**place, **SAID})


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
    axis = {"format": "~s", "tickCount": 6}
    x = number("rows", "rows of the key (logarithmic)", scale={"type": "log", "nice": False}, axis=axis)
    middle = {"x": x, "y": number("middle", title)}
    return marks.chart([
        layer(rows, marks.band(), {"x": x, "y": number("low", title), "y2": {"field": "high"}}),
        layer(rows, marks.line(), middle),
        layer(rows, marks.dots(), {**middle, **SAID}),
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
        "x": number("seconds", "seconds of fits", axis={"grid": True, "tickCount": 5}),
        "color": {"field": "colour", "type": "nominal", "scale": None},
        **SAID,
    }
    height = min(max(1.6, len(timing.waves)) * 38, 420)
    return marks.chart([layer(rows, marks.bar(height={"band": 0.8}), encoding)], height=height, width=marks.WIDTH - 30)


def fit_shares(shares: Sequence[tuple[float, float]]) -> Chart:
    """Return which share of the fits' time the slowest keys took, beside even keys."""
    rows = [
        {"keys": keys, "time": time, "said": f"the slowest {percent(keys, 1)} of the keys: {percent(time)} of the time"}
        for keys, time in shares
    ]
    place = {"x": number("keys", "share of keys, slowest first", **_SHARES)}
    place["y"] = number("time", "share of fit time", **_SHARES)
    even = [{"keys": 0, "time": 0}, {"keys": 1, "time": 1}]
    return marks.chart([
        layer(even, marks.line(OTHER, 1.4, strokeDash=[4, 3]), place),
        layer(rows, marks.line(), place),
        layer(rows, marks.dots(90, opacity=0), {**place, **SAID}),
    ])  # fmt: skip
