"""The table of all keys as compact columns that travel in the page, and how anything travels in it safely. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.class_metrics import without_confusion
from group_models.reporting.page.fleet import decimals, known_baselines, short_name, values_of
from group_models.reporting.page.reading import PageData

Values: TypeAlias = Sequence[Any] | npt.NDArray[Any] | pd.Series

Kind: TypeAlias = Literal["text", "number", "percent", "seconds", "bytes", "time"]

MAX_ROWS = 100_000
"""Keys that a page holds; of more, those come first that have no new model, then those with the highest error."""

_MAX_TEXT = 300

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of the table, or one fact that only an opened key shows.

    Attributes
    ----------
    is_shown
        It is a column of the table.
    digits
        Decimals of its numbers.
    """

    name: str
    label: str
    kind: Kind
    values: Values
    is_shown: bool = False
    digits: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the column for the page: numbers rounded, texts as codes of distinct ones, -1 for none."""
        head = {
            "name": self.name,
            "label": self.label,
            "kind": self.kind,
            "shown": self.is_shown,
            "digits": self.digits,
        }
        if self.kind == "text":
            codes, texts = pd.factorize(pd.Series(self.values, dtype=object))
            return {**head, "codes": codes.tolist(), "texts": [str(text)[:_MAX_TEXT] for text in texts]}
        return {**head, "values": _rounded(self.values, self.digits + 1)}


def _rounded(values: Values, digits: int) -> list[float | int | None]:
    numbers = np.asarray(pd.to_numeric(pd.Series(np.asarray(values)), errors="coerce"), dtype=np.float64)
    rounded = np.round(numbers, digits)
    is_whole = bool((rounded[np.isfinite(rounded)] % 1 == 0).all())
    return [None if not np.isfinite(v) else int(v) if is_whole else float(v) for v in rounded.tolist()]


def table_columns(data: PageData) -> list[Column]:
    """Return the columns of the table of all keys, those of an opened key after them."""
    keys = _first_rows(data.keys, data.metric)
    return [*_of_keys(keys, data), *_outcome(keys), *_errors(keys, data), *_costs(keys), *_told(keys, data)]


def _first_rows(keys: pd.DataFrame, metric: str) -> pd.DataFrame:
    if len(keys) <= MAX_ROWS:
        return keys
    order = pd.DataFrame({"is_new": keys["serves"] == "new", "error": -values_of(keys["metrics"], metric)})
    return keys.loc[order.sort_values(["is_new", "error"], kind="stable").index[:MAX_ROWS]]


def _of_keys(keys: pd.DataFrame, data: PageData) -> list[Column]:
    def text(name: str) -> list[str]:
        values = [(key.get(name, _ALL), name in key) for key in keys["key"]]
        return ["null" if value is None and is_there else value for value, is_there in values]

    columns = [Column(f"key:{name}", name, "text", text(name), is_shown=True) for name in data.kinds]
    if len(set(keys["level"])) > 1:
        columns.append(Column("level", "level", "text", keys["level"].tolist(), is_shown=True))
    return columns


_ALL = "\N{MIDDLE DOT}"
"""Shown where a parent leaves a key column open."""


def _outcome(keys: pd.DataFrame) -> list[Column]:
    return [
        Column("status", "status", "text", keys["status"].tolist(), is_shown=True),
        Column("serves", "serves", "text", keys["serves"].tolist(), is_shown=True),
        Column("rows", "rows", "number", keys["rows"], is_shown=True),
    ]


def _errors(keys: pd.DataFrame, data: PageData) -> list[Column]:
    metric, own = data.metric, values_of(keys["metrics"], data.metric)
    digits = decimals(float(np.nanmedian(own))) if np.isfinite(own).any() else 2
    columns = [Column("error", short_name(metric), "number", own, is_shown=True, digits=digits)]
    for name, errors in known_baselines(keys, metric).items():
        columns.append(Column(f"of {name}", f"{name}'s {short_name(metric)}", "number", errors, digits=digits))
        ratio = np.divide(own, errors, out=np.full(len(own), np.nan), where=np.isfinite(errors) & (errors > 0))
        columns.append(Column(f"vs {name}", f"vs {name}", "percent", ratio, is_shown=True, digits=2))
    if data.before is not None:
        then = values_of(data.before.keys["metrics"], metric)
        before = pd.Series(then, data.before.keys.index).reindex(keys["key_id"]).to_numpy()
        columns.append(Column("before", f"{short_name(metric)} before", "number", before, is_shown=True, digits=digits))
    return columns


def _costs(keys: pd.DataFrame) -> list[Column]:
    seconds = pd.to_numeric(keys["fit_seconds"], errors="coerce")
    digits = decimals(float(seconds.median())) if seconds.notna().any() else 3
    return [
        Column("fit_seconds", "fit, s", "seconds", seconds, is_shown=True, digits=min(digits, 4)),
        Column("reason", "reason", "text", keys["reason"].tolist(), is_shown=True),
    ]


def _told(keys: pd.DataFrame, data: PageData) -> list[Column]:
    """Return what only an opened key shows."""
    texts = {"parent": "parent", "estimator": "estimator", "model_run_id": "model of run", "policy": "policy",
             "error_type": "error", "error_stage": "stage", "error_message": "message"}  # fmt: skip
    columns = [Column(name, label, "text", keys[name].tolist()) for name, label in texts.items()]
    columns.append(Column("params", "parameters", "text", [_params(each) for each in keys["params"]]))
    numbers = {"usable_rows": "usable rows", "rows_used": "rows fitted", "holdout_rows": "holdout rows"}
    columns += [Column(name, label, "number", keys[name]) for name, label in numbers.items()]
    # Confusion counts are of each key's own labels: of a fleet they would be a column per pair.
    names = {name for each in keys["metrics"] for name in without_confusion(each)}
    for name in sorted(names - {data.metric}):
        values = values_of(keys["metrics"], name)
        typical = float(np.nanmedian(np.abs(values))) if np.isfinite(values).any() else 0.0
        columns.append(Column(f"metric:{name}", name, "number", values, digits=decimals(typical)))
    columns.append(Column("model_bytes", "model", "bytes", keys["model_bytes"]))
    times = {"train_from": "oldest row", "train_to": "newest row"}
    columns += [Column(name, label, "time", _epoch_seconds(keys[name])) for name, label in times.items()]
    return [*columns, Column("key_id", "key_id", "text", keys["key_id"].tolist())]


def _params(params: Mapping[str, str]) -> str | None:
    return ", ".join(f"{name}={value}" for name, value in params.items() if name not in _SEEDS) or None


_SEEDS = ("seed", "random_state")
"""What differs from key to key and tells nobody anything."""


def _epoch_seconds(times: pd.Series) -> list[float | None]:
    return [None if pd.isna(at) else float(at.timestamp()) for at in times]


def embedded(value: Any) -> str:
    r"""Return JSON that may stand in a script element whatever texts it holds.

    Examples
    --------
    >>> embedded(["</script>"])
    '["\\u003c/script\\u003e"]'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)
