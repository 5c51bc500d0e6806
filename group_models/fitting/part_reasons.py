"""What is told of an ensemble from what is told of its parts: importance of features, errors on training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from group_models.comparing import error_together
from group_models.fitting.reasons import TRAIN, TrainErrors
from group_models.spec import Metric

_NUMBERS: tuple[Metric, ...] = ("mae", "rmse")


def importance_of_parts(rows: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the mean of the parts' shares, as their mean is what predicts; None where a part has none."""
    told = [dict(row["importance"] or {}) for row in rows]
    if not all(told):
        return None
    names = dict.fromkeys(name for shares in told for name in shares)
    return {name: sum(shares.get(name, 0.0) for shares in told) / len(told) for name in names}


def train_errors_of_parts(rows: Sequence[Mapping[str, Any]], metric: Metric) -> TrainErrors | None:
    """Return the errors of all parts on their own training rows, each as many as it has; None where one has none.

    They are those of models of a part each: the ensemble itself is measured on the holdout alone.
    """
    own = [dict(row["train_metrics"] or {}) for row in rows]
    base = [dict(row["baseline_metrics"] or {}) for row in rows]
    metrics = _NUMBERS if metric in _NUMBERS else (metric,)
    if not rows or not all(TRAIN + name in found for name in metrics for found in (*own, *base)):
        return None
    counts = np.array([row["rows_used"] or 1 for row in rows], dtype=np.float64)

    def together(of_parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {m: error_together(m, np.array([each[TRAIN + m] for each in of_parts]), counts) for m in metrics}

    return TrainErrors(int(counts.sum()), together(own), together(base))
