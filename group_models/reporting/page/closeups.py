"""Single keys, looked at closely: what is known of each, its past, and its rows beside their predictions. Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from group_models.reporting.page import key_charts
from group_models.reporting.page.fleet import (
    baselines,
    metric_name,
    percent,
    sensible,
    short_name,
    status_kind,
)
from group_models.reporting.page.marks import Chart
from group_models.spec import Metric
from group_models.texts import duration_text

MAX_POINTS = 400
"""Rows of a key that are drawn as dots."""

_BINS = 40
_MOST_FEATURES = 12


@dataclasses.dataclass(frozen=True)
class Observed:
    """Rows of one key and what its model says of them, or why there are none.

    Attributes
    ----------
    rows
        Columns `y`, `prediction` and, where the set has times, `at`; only rows with both numbers.
    importance
        Feature to by how much the mean absolute error of these rows rises where its values are shuffled.
    why_not
        Why there are no rows, in a sentence.
    """

    rows: pd.DataFrame = dataclasses.field(default_factory=lambda: pd.DataFrame({"y": [], "prediction": []}))
    importance: Mapping[str, float] = dataclasses.field(default_factory=dict)
    why_not: str = ""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart with its heading, and what must be said of it."""

    title: str
    chart: Chart
    note: str = ""


@dataclasses.dataclass(frozen=True)
class CloseUp:
    """A key's section of the page."""

    key_id: str
    label: str
    status: str
    kind: str
    reason: str
    facts: Sequence[tuple[str, str]]
    figures: Sequence[Figure]
    note: str = ""


def close_up(
    row: Mapping[str, Any],
    history: pd.DataFrame,
    observed: Observed,
    *,
    metric: Metric,
    target: str,
    is_refit: bool,
) -> CloseUp:
    """Return a key's section.

    Parameters
    ----------
    row
        Its row of `PageData.keys`.
    history
        Its rows of all runs, as `read_histories` has them.
    """
    figures = [*_past(history, metric, target), *_seen(row, observed, target, is_refit=is_refit)]
    shares = dict(row.get("importance") or {}) or dict(observed.importance)
    if shares:
        figures.append(_importance(shares, target, is_stored=bool(row.get("importance"))))
    return CloseUp(
        row["key_id"], row["label"], row["status"], status_kind(row["status"]), row["reason"] or "",
        _facts(row, metric), figures, observed.why_not,
    )  # fmt: skip


_BESIDE = ("bias", "r2", "accuracy", "f1", "auc")
"""Metrics that are told beside the one that decides."""


def _facts(row: Mapping[str, Any], metric: Metric) -> list[tuple[str, str]]:
    error = row["metrics"].get(metric)
    facts = [("served by", _serving(row)), ("rows", _count(row["rows"])), ("holdout rows", _count(row["holdout_rows"]))]
    facts.append((short_name(metric), "" if error is None else sensible(error)))
    for prefix, name in baselines(metric).items():
        if (other := row["baseline_metrics"].get(prefix + metric)) is not None:
            ratio = f" ({percent(error / other)} of it)" if error is not None and other > 0 else ""
            facts.append((f"{name}'s {short_name(metric)}", f"{sensible(other)}{ratio}"))
    others = [name for name in _BESIDE if name in row["metrics"] and name != metric]
    facts += [(metric_name(name), sensible(row["metrics"][name])) for name in others]
    trained = row["train_metrics"].get(f"train_{metric}")
    facts.append((f"{short_name(metric)} of training rows", "" if trained is None else sensible(trained)))
    facts.append(("judged as", "" if _is_none(row["fit_flag"]) else _flag_text(row["fit_flag"], metric)))
    for level, width in row["interval"].items():
        covered = row["coverage"].get(level)
        held = "" if covered is None else f"; such intervals held {percent(covered)} of other rows"
        facts.append((f"interval of {percent(float(level))}", f"± {sensible(width)}{held}"))
    facts.append(("fit", "" if _is_none(row["fit_seconds"]) else _fit_text(row["fit_seconds"])))
    facts += [("estimator", row["estimator"] or ""), ("error", _failure(row))]
    return [(name, text) for name, text in facts if text]


def _flag_text(flag: str, metric: Metric) -> str:
    beside = baselines(metric)[""]
    return {
        "over": f"over-fitted: its error rises from training rows to the holdout far more than the {beside}'s does",
        "under": f"under-fitted: on its own training rows hardly better than their {beside}",
        "ok": "neither over- nor under-fitted",
    }[flag]


def _serving(row: Mapping[str, Any]) -> str:
    if row["serves"] in ("new", "previous"):
        return f"{row['serves']} model of run {row['model_run_id']}"
    if row["serves"] == "parent":
        return f"its parent {row['parent']}" if row["parent"] else "its parent"
    return "no model"


def _failure(row: Mapping[str, Any]) -> str:
    if _is_none(row["error_type"]):
        return ""
    return f"{row['error_type']}: {row['error_message'] or ''}"


def _fit_text(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else duration_text(seconds)


def _is_none(value: Any) -> bool:
    return value is None or bool(pd.isna(value))


def _count(value: Any) -> str:
    return "" if _is_none(value) else f"{int(value):,}"


def _past(history: pd.DataFrame, metric: Metric, target: str) -> list[Figure]:
    """Return the key's error over runs; a single run is no past, and without errors there is nothing to draw."""
    errors = [row.get(metric, np.nan) for row in history["metrics"]]
    if len(history) < 2 or not np.isfinite(np.array(errors, dtype=float)).any():
        return []
    rows = pd.DataFrame({
        "run_id": history["run_id"],
        "error": np.array(errors, dtype=float),
        "baseline": np.array([row.get(metric, np.nan) for row in history["baseline_metrics"]], dtype=float),
    })  # fmt: skip
    rows["said"] = [
        f"{run}: {status}, {short_name(metric)} {sensible(error)}, {_count(count)} rows"
        for run, status, error, count in zip(
            history["run_id"], history["status"], rows["error"], history["rows"], strict=True
        )
    ]
    chart = key_charts.history(rows.tail(30), f"{short_name(metric)}, {target}")
    return [Figure("Error from run to run", chart, f"Solid: the model. Dashed: the key's {baselines(metric)['']}.")]


def _seen(row: Mapping[str, Any], observed: Observed, target: str, *, is_refit: bool) -> list[Figure]:
    rows = observed.rows
    if rows.empty:
        return []
    note = _fairness(row, is_refit=is_refit)
    dots = rows if len(rows) <= MAX_POINTS else rows.sample(MAX_POINTS, random_state=0)
    many = f" {MAX_POINTS} of {len(rows):,} rows, drawn by lot." if len(dots) < len(rows) else ""
    figures = [Figure("Actual against predicted", key_charts.predicted_against_actual(dots, target), note + many)]
    if "at" in rows and rows["at"].nunique() > 2:
        start = row["holdout_from"]
        from_ = None if _is_none(start) else start.isoformat()
        marked = " The dashed line is where the holdout begins." if from_ else ""
        figure = key_charts.residuals(residual_bins(rows), target, from_)
        figures.append(
            Figure("Residuals over time", figure, f"Median, and the middle four fifths of the rows.{marked}")
        )
    return figures


def _fairness(row: Mapping[str, Any], *, is_refit: bool) -> str:
    """Return what the rows are to the model: nobody shall take a fit for a forecast."""
    if row["serves"] not in ("new", "previous"):
        return "Predicted by its parent, which serves it."
    if is_refit:
        return (
            "The model was fitted again on all these rows, so they look better than new ones will; "
            "the errors above are those of the holdout, measured before."
        )
    return "Rows before the holdout are those that the model was fitted on."


def residual_bins(rows: pd.DataFrame) -> pd.DataFrame:
    """Return prediction minus actual by stretches of time: columns `at` (ISO), `low, middle, high, rows`.

    Examples
    --------
    >>> at = pd.to_datetime(["2026-01-01", "2026-01-01", "2026-03-01"], utc=True)
    >>> found = residual_bins(pd.DataFrame({"at": at, "y": [1.0, 1.0, 1.0], "prediction": [2.0, 4.0, 1.0]}))
    >>> found["middle"].tolist(), found["rows"].tolist()
    ([2.0, 0.0], [2, 1])
    """
    off = (rows["prediction"] - rows["y"]).to_numpy()
    at = pd.to_datetime(rows["at"], utc=True)
    seconds = (at - at.min()).dt.total_seconds().to_numpy()
    place = np.minimum((seconds / (seconds.max() or 1.0) * _BINS).astype(int), _BINS - 1)
    found = [
        {"at": at[place == i].min().isoformat(), **_spread(off[place == i]), "rows": int((place == i).sum())}
        for i in range(_BINS)
        if (place == i).any()
    ]
    return pd.DataFrame(found)


def _spread(values: Any) -> dict[str, float]:
    return dict(zip(("low", "middle", "high"), np.quantile(values, [0.1, 0.5, 0.9]).tolist(), strict=True))


def _importance(shares: Mapping[str, float], target: str, *, is_stored: bool) -> Figure:
    ordered = dict(sorted(shares.items(), key=lambda item: -abs(item[1]))[:_MOST_FEATURES])
    if is_stored:
        title, note = "share", "What share each feature has in what the model says."
        return Figure("Importance of the features", key_charts.importances(ordered, title), note)
    title = f"rise of the {metric_name('mae')}, {target}"
    note = "By how much the error on these rows rises where one feature's values are shuffled among them."
    return Figure("Importance of the features", key_charts.importances(ordered, title), note)


def moment_text(at: dt.datetime | None) -> str:
    """Return a moment as people read it.

    Examples
    --------
    >>> moment_text(dt.datetime(2026, 3, 1, 4, 5, 6, tzinfo=dt.UTC)), moment_text(None)
    ('2026-03-01 04:05 UTC', '')
    """
    return "" if at is None else f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
