"""Half widths of intervals beside the keys of a live set: each key's own, else those of its nearest parent. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from group_models.conformal import level_name, width_name
from group_models.levels import Levels


def levels_of(specs: Iterable[str | None]) -> tuple[float, ...]:
    """Return the levels of the intervals that specs, as JSON, ask for: those of any of them, ascending."""
    asked = [json.loads(spec or "{}").get("intervals", ()) for spec in specs]
    return tuple(sorted({float(level) for levels in asked for level in levels}))


def with_widths(keys: pd.DataFrame, stored: Sequence[Any], intervals: Sequence[float], levels: Levels) -> pd.DataFrame:
    """Return a live set's keys with a column `half_width_...` per level; NaN where neither key nor parent has one.

    Parameters
    ----------
    stored
        Of each key the manifest's `interval` of its model: pairs of level and half width, or nothing.
    """
    if not intervals:
        return keys
    own = [dict(pairs) if isinstance(pairs, list | tuple) else {} for pairs in stored]
    widths = {
        width_name(level): np.array([each.get(level_name(level), np.nan) for each in own], dtype=np.float64)
        for level in intervals
    }
    filled = {name: _filled(keys, values, levels) for name, values in widths.items()}
    return keys.assign(**filled)


def _filled(keys: pd.DataFrame, widths: Any, levels: Levels) -> Any:
    """Return half widths with those of the nearest parent that has one where a key with a model has none."""
    lacks = np.isnan(widths) & keys["model_run_id"].notna().to_numpy()
    if not levels.parents or not lacks.any():
        return widths
    is_parent = (keys["level"] != levels.own).to_numpy()
    having = set(keys.index[is_parent & ~np.isnan(widths)])
    nearest = levels.nearest(keys["key"][lacks], having)
    at = keys.index.get_indexer(pd.Index(nearest, dtype=object))
    filled = widths.copy()
    filled[lacks] = np.where(at < 0, np.nan, widths[at])
    return filled


def widths_of(keys: pd.DataFrame, key_id: str, intervals: Sequence[float]) -> dict[str, float | None]:
    """Return by level the half width of the intervals of a key's model, None where it has none."""
    found = {level_name(level): float(keys[width_name(level)][key_id]) for level in intervals}
    return {name: None if np.isnan(width) else width for name, width in found.items()}
