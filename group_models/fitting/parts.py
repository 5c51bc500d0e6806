"""The parts of a salted key as one outcome: what of them failed, what they are measured with, what they add up to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from group_models.evaluation import why_no_metrics
from group_models.fitting.comparisons import entries
from group_models.fitting.measured import Measured
from group_models.fitting.measures import TRAIN_MEDIAN, shares_of
from group_models.fitting.outcomes import FitSettings, identity
from group_models.fitting.part_reasons import importance_of_parts, train_errors_of_parts
from group_models.fitting.reasons import TrainErrors
from group_models.fitting.units import EMPTY_PART
from group_models.keys import key_seed
from group_models.labels import Labels
from group_models.tables import WHOLE

PART_COLUMNS = (
    "key_id", "part", "number", "status", "reason", "error_type", "error_message", "error_stage", "traceback",
    "rows_used", "estimator", "params", "baseline_metrics", "holdout_rows", "fit_seconds", "cpu_seconds", "model_bytes",
    "started_at", "finished_at", "importance", "train_metrics",
)  # fmt: skip
"""What the outcome of a salted key needs of its parts: everything but the models."""

_OF_ERROR = ("status", "error_type", "error_message", "error_stage", "traceback")


@dataclasses.dataclass(frozen=True)
class PartsOutcome:
    """What came of a salted key's parts.

    Attributes
    ----------
    columns
        Store columns of the key's one row, the model's and the metrics apart.
    measured
        The parts, as the store numbers them, whose models have not seen the holdout.
    baseline
        Mean of the medians of those parts' training rows: what the median would predict, were it salted too; of
        classes the mean share of each label.
    train_errors
        Those of the parts on their own training rows together; None where one was not measured.
    """

    key_id: str
    columns: dict[str, Any]
    measured: tuple[int, ...]
    baseline: float | tuple[float, ...]
    settings: FitSettings
    train_errors: TrainErrors | None = None

    @property
    def is_trained(self) -> bool:
        """Whether all parts have a model."""
        return bool(self.columns["status"] == "trained")

    @property
    def has_holdout(self) -> bool:
        """Whether the ensemble can be measured."""
        return self.is_trained and bool(self.measured) and self.columns["holdout_rows"] > 0


def judge_parts(rows: Sequence[Mapping[str, Any]], planned: Mapping[str, Any], settings: FitSettings) -> PartsOutcome:
    """Return what comes of a salted key.

    Parameters
    ----------
    rows
        The key's rows of the store, `PART_COLUMNS`, each part once.
    planned
        The key's row of the plan.
    """
    key_id, n_parts = planned["key_id"], planned["n_parts"]
    tried = sorted((row for row in rows if row["status"] != EMPTY_PART), key=lambda row: row["part"])
    final = [row for row in tried if row["part"] < n_parts]
    measured = [row["part"] for row in tried if _median(row) is not None]
    columns = {
        **identity(key_id, WHOLE, planned["unit"], key_seed(settings.seed, key_id), settings.estimator.label, settings),
        **_estimators(final, settings),
        "importance": importance_of_parts(final),
        "params": _shared_params(final),
        **{name: _total(final, name) for name in ("rows_used", "holdout_rows", "fit_seconds", "cpu_seconds")},
        "started_at": min(row["started_at"] for row in final),
        "finished_at": max(row["finished_at"] for row in final),
        **_status(tried, n_parts, settings.max_model_bytes),
    }
    errors = train_errors_of_parts([row for row in tried if row["part"] in measured], settings.metric)
    if errors is not None:
        columns |= errors.columns({}, settings, held_rows=0)
    baseline = _baseline(tried, settings.labels)
    outcome = PartsOutcome(key_id, columns, tuple(measured), baseline, settings, errors)
    if outcome.is_trained and not outcome.has_holdout and settings.holdout_by != "none":
        # Without a part that has not seen the holdout, what is held out is all there is.
        columns["reason"] = why_no_metrics(columns["holdout_rows"], columns["holdout_rows"])
    return outcome


def with_metrics(outcome: PartsOutcome, measured: Measured) -> dict[str, Any]:
    """Return the key's columns with the metrics of its ensemble, or with why it failed them."""
    model = measured.model
    if measured.failure is not None:
        return {**outcome.columns, **measured.failure}
    if model.not_finite:
        said = f"{model.not_finite} of {model.count} predictions on the holdout are not finite"
        return {**outcome.columns, "status": "failed", "error_stage": "evaluate", "reason": f"evaluate: {said}"}
    compared = entries(measured.compared, model.count, outcome.settings.metric)
    metrics: dict[str, Any] = {
        "metrics": model.metrics(),
        "baseline_metrics": {**measured.baseline.metrics(), **compared},
    }
    metrics |= measured.residuals.columns(outcome.settings.intervals)
    if outcome.train_errors is not None:
        metrics |= outcome.train_errors.columns(metrics, outcome.settings, held_rows=model.count)
    return {**outcome.columns, **metrics, "holdout_rows": model.count}


def _baseline(tried: Sequence[Mapping[str, Any]], labels: Labels | None) -> float | tuple[float, ...]:
    """Return what the baselines of measured parts predict together."""
    told = [dict(row["baseline_metrics"]) for row in tried if _median(row) is not None]
    if labels is not None:
        shares = [shares_of(of_train, labels) for of_train in told] or [np.zeros(len(labels.names))]
        return tuple(np.mean(shares, axis=0).tolist())
    return sum(of_train[TRAIN_MEDIAN] for of_train in told) / len(told) if told else 0.0


def _median(row: Mapping[str, Any]) -> float | None:
    """Return the training median of a part that has not seen the holdout."""
    return dict(row["baseline_metrics"] or {}).get(TRAIN_MEDIAN)


def _total(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    return sum(row[name] or 0 for row in rows)


def _estimators(rows: Sequence[Mapping[str, Any]], settings: FitSettings) -> dict[str, str]:
    """Return the estimators that were chosen for the parts, in the spec's order, where there was a choice."""
    if not settings.alternatives:
        return {}
    chosen = {row["estimator"] for row in rows}
    labels = dict.fromkeys(each.estimator.label for each in (settings, *settings.alternatives))
    return {"estimator": " + ".join(label for label in labels if label in chosen)}


def _shared_params(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the parameters that are the same for all parts; seeds and rounds are each part's own."""
    all_params = [set(dict(row["params"] or {}).items()) for row in rows]
    return dict(sorted(set.intersection(*all_params)))


def _status(tried: Sequence[Mapping[str, Any]], n_parts: int, max_model_bytes: int) -> dict[str, Any]:
    for row in tried:
        if row["status"] != "trained":
            reason = f"part {row['part'] % n_parts + 1} of {n_parts}: {row['reason']}"
            return {**{name: row[name] for name in _OF_ERROR}, "reason": reason}
    total = _total([row for row in tried if row["part"] < n_parts], "model_bytes")
    if total > max_model_bytes:
        said = f"the {n_parts} parts have {total:,} bytes; max_model_bytes is {max_model_bytes:,}"
        return {"status": "model_too_big", "reason": said, "model_bytes": total}
    return {"status": "trained"}
