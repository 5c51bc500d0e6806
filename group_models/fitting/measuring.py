"""Measure an ensemble on a share of its key's holdout, batch by batch, within the limits of a fit. Plain Python."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from group_models.comparing import Ints
from group_models.estimators.base import Predictor
from group_models.evaluation import Floats, Stage
from group_models.fitting.comparisons import Comparison
from group_models.fitting.deaths import NOT_THE_FITS, Death, FitLimits, death_columns, memory_reason, raised_columns
from group_models.fitting.guards import Guard
from group_models.fitting.intervals import Residuals
from group_models.fitting.measured import FAILURE, Measured, sums_of
from group_models.fitting.measures import comparable
from group_models.fitting.references import NAMES, ModelRow, ensemble_of, predicted
from group_models.labels import Labels
from group_models.spec import Metric

_STAGE: Stage = "evaluate"
_LEAST_S = 0.001
_NOTHING = -(2**63) - 1
"""Before the time of any row, those without a time included."""


@dataclasses.dataclass
class Reference:
    """A model that ensembles are compared with, on rows newer than it has seen."""

    load: Callable[[], Predictor]
    seen_until_us: int
    _model: Predictor | None = None

    def predict_newer(self, x: pd.DataFrame, time_us: Ints, y: Floats, labels: Labels | None = None) -> Floats:
        """Return what it is compared by; NaN for rows that it has seen, and for all where it fails."""

        def loaded() -> Predictor:
            if self._model is None:
                self._model = self.load()
            return self._model

        return np.where(time_us > self.seen_until_us, predicted(loaded, x, y, labels), np.nan)


def references_of(models: Sequence[bytes], links: tuple[int, int], index: int) -> dict[str, Reference]:
    """Return the references of one key by name, from packed `ModelRow`s.

    Parameters
    ----------
    links
        The numbers of its parent and of the global model.
    index
        That of the key, which its champion's row names.
    """
    rows = sorted((ModelRow.parse(packed) for packed in models), key=lambda row: row.part)
    found = {}
    for name, role, number in zip(NAMES, ("parent", "parent", "champion"), (*links, index), strict=True):
        own = [row for row in rows if (row.role, row.reference) == (role, number)]
        if own:
            seen = own[0].seen_until_us if role == "champion" else _NOTHING
            found[name] = Reference(functools.partial(ensemble_of, own), seen)
    return found


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
    references
        By name, the models that it is compared with.
    labels
        Of models of classes the labels of the set.
    """

    def __init__(
        self,
        load: Callable[[], Predictor],
        limits: FitLimits,
        *,
        rounds: int = 1,
        references: Mapping[str, Reference] = MappingProxyType({}),
        metric: Metric = "mae",
        labels: Labels | None = None,
    ) -> None:
        self._load = load
        self._limits = limits
        self._time_s = None if limits.timeout_s is None else limits.timeout_s / rounds
        self._model: Predictor | None = None
        self._seconds = 0.0
        self._references = dict(references)
        self._metric = metric
        self._labels = labels
        self.measured = Measured()

    def add(
        self,
        x: pd.DataFrame,
        y: Floats,
        baseline: Floats,
        time_us: Ints | None = None,
        weight: Floats | None = None,
        row_hash: Ints | None = None,
    ) -> None:
        """Take in rows of the holdout: features, targets, what the baseline predicts, times, and weights if any.

        Their hashes are given where the residuals are to be kept.
        """
        if self.measured.failure is not None:
            return
        clock = time.perf_counter()
        found = self._guarded(x)
        self._seconds += time.perf_counter() - clock
        if isinstance(found, dict):
            self.measured = dataclasses.replace(self.measured, failure=found)
            return
        compared = self._compared(x, y, found, np.zeros(len(y), dtype=np.int64) if time_us is None else time_us, weight)
        model, simple = (sums_of(y, each, self._labels, weight) for each in (found, baseline))
        residuals = Residuals() if row_hash is None else Residuals(np.abs(found - y), row_hash)
        sums = Measured(model, simple, compared=compared, residuals=residuals)
        self.measured = self.measured.merge(sums)

    def _compared(
        self, x: pd.DataFrame, y: Floats, prediction: Floats, time_us: Ints, weight: Floats | None
    ) -> dict[str, Comparison]:
        """Return how the references do on the same rows; one that breaks a limit is asked no more."""
        found, own = {}, comparable(prediction, y, self._labels)
        for name, reference in list(self._references.items()):
            with Guard(self._limits) as guard:
                done = guard.run(functools.partial(reference.predict_newer, x, time_us, y, self._labels))
            if isinstance(done, Death):
                del self._references[name]
                continue
            found[name] = Comparison.of(y, own, done, self._metric, weight)
        return found

    def _guarded(self, x: pd.DataFrame) -> Floats | dict[str, Any]:
        """Return the predictions, or columns `FAILURE`."""
        left = None if self._time_s is None else max(self._time_s - self._seconds, _LEAST_S)
        try:
            with Guard(dataclasses.replace(self._limits, timeout_s=left)) as guard:
                done = guard.run(lambda: self._predict(x))
        except NOT_THE_FITS:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: its key gets a row
            return raised_columns(error, _STAGE, self._limits)
        return self._ended(done) if isinstance(done, Death) else done

    def _predict(self, x: pd.DataFrame) -> Floats:
        if self._model is None:
            self._model = self._load()
        found = np.asarray(self._model.predict(x), dtype=np.float64)
        if found.shape != ((len(x),) if self._labels is None else (len(x), len(self._labels.names))):
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
