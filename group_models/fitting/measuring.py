"""Measure an ensemble on a share of its key's holdout, batch by batch, within the limits of a fit. Plain Python."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from group_models.estimators.base import Predictor
from group_models.evaluation import Floats, Stage
from group_models.fitting.deaths import Death, FitLimits, death_columns, memory_reason, raised_columns
from group_models.fitting.guards import Guard
from group_models.fitting.summing import RegressionSums

FAILURE = ("status", "reason", "error_type", "error_message", "error_stage", "traceback")
"""Columns of a store row that say how the measuring of an ensemble failed."""

_STAGE: Stage = "evaluate"
_LEAST_S = 0.001


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came of the rows that an ensemble was measured on.

    Attributes
    ----------
    failure
        Columns `FAILURE` of the first thing that stopped it; None where nothing did.
    """

    model: RegressionSums = dataclasses.field(default_factory=RegressionSums)
    baseline: RegressionSums = dataclasses.field(default_factory=RegressionSums)
    failure: dict[str, Any] | None = None

    def merge(self, other: Measured) -> Measured:
        """Return what came of the rows of both; of two failures the first."""
        return Measured(
            self.model.merge(other.model), self.baseline.merge(other.baseline), self.failure or other.failure
        )


class Meter:
    """Measures one ensemble; once its model failed it, the rest of its rows is let by.

    Parameters
    ----------
    load
        Reads the model, within the limits too.
    limits
        What reading the model and all its predictions may take together; waiting for rows does not count.
    rounds
        How many meters of the same ensemble follow one another, each with its share of the time.
    """

    def __init__(self, load: Callable[[], Predictor], limits: FitLimits, *, rounds: int = 1) -> None:
        self._load = load
        self._limits = limits
        self._time_s = None if limits.timeout_s is None else limits.timeout_s / rounds
        self._model: Predictor | None = None
        self._seconds = 0.0
        self.measured = Measured()

    def add(self, x: pd.DataFrame, y: Floats, baseline: Floats, weight: Floats | None = None) -> None:
        """Take in rows of the holdout: their features, targets, what the baseline predicts, and weights if any."""
        if self.measured.failure is not None:
            return
        clock = time.perf_counter()
        found = self._guarded(x)
        self._seconds += time.perf_counter() - clock
        if isinstance(found, dict):
            self.measured = dataclasses.replace(self.measured, failure=found)
            return
        sums = Measured(RegressionSums.of(y, found, weight), RegressionSums.of(y, baseline, weight))
        self.measured = self.measured.merge(sums)

    def _guarded(self, x: pd.DataFrame) -> Floats | dict[str, Any]:
        """Return the predictions, or columns `FAILURE`."""
        left = None if self._time_s is None else max(self._time_s - self._seconds, _LEAST_S)
        try:
            with Guard(dataclasses.replace(self._limits, timeout_s=left)) as guard:
                done = guard.run(lambda: self._predict(x))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: its key gets a row
            return raised_columns(error, _STAGE, self._limits)
        return self._ended(done) if isinstance(done, Death) else done

    def _predict(self, x: pd.DataFrame) -> Floats:
        if self._model is None:
            self._model = self._load()
        found = np.asarray(self._model.predict(x), dtype=np.float64)
        if found.shape != (len(x),):
            raise ValueError(f"{len(x)} rows got predictions of shape {found.shape}")
        return found

    def _ended(self, death: Death) -> dict[str, Any]:
        said = memory_reason(self._limits)
        if death.status == "timed_out":
            said = (
                f"the ensemble took longer than timeout_s, {self._limits.timeout_s:g} s, to predict its holdout; raise "
                "limits.timeout_s, or give the key fewer parts (limits.max_key_rows)"
            )
        columns = death_columns(dataclasses.replace(death, reason=f"{_STAGE}: {said}"))
        return {**{name: columns.get(name) for name in FAILURE}, "error_stage": _STAGE}
