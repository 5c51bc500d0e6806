"""What an outcome says of why its model predicts as it does: importance of features, training errors, fit flag."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.estimators.base import Fitted
from group_models.estimators.batched import FittedGroups
from group_models.estimators.children import PARENT, REFITTED
from group_models.estimators.contributions import OF_PARENT
from group_models.estimators.importances import group_importances, importance_of, permuted, spread_places
from group_models.estimators.linear import Ints, Table
from group_models.estimators.weights import taken
from group_models.evaluation import Floats
from group_models.fit_errors import MIN_FLAG_ROWS, fit_flags, grouped_errors
from group_models.fitting.deaths import NOT_THE_FITS
from group_models.fitting.measures import baseline_prediction, metrics_of, train_baseline
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.unit_rows import Rows
from group_models.labels import Labels
from group_models.spec import Metric

Importance: TypeAlias = Mapping[str, float] | None

MAX_TRAIN_ROWS = 10_000
"""Training rows of a key that is fitted alone on which its error is measured, spread evenly over all."""

MAX_SHUFFLED_ROWS = 2_000
"""Rows of a key that are shuffled for a permutation importance."""

TRAIN = "train_"
"""Before the name of a metric that is of training rows."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """Rows of one key or part: all, and which of them the measured model was fitted on; `held` None for no holdout."""

    x: pd.DataFrame
    y: Floats
    weight: Floats | None
    train: Rows
    held: Rows | None

    def baseline(self, labels: Labels | None) -> dict[str, float]:
        """Return what the baseline is made of: the median of the training rows, of classes their shares."""
        return train_baseline(self.y[self.train], labels, taken(self.weight, self.train))


def importance_columns(
    final: Fitted, measured: Fitted, seen: Seen, settings: FitSettings, seed: int
) -> dict[str, Importance]:
    """Return `importance` of a model that is stored; nothing where the spec asks for none."""
    if settings.importance == "none":
        return {}
    try:
        if settings.importance == "permutation":
            return {"importance": _permuted(measured, seen, settings, seed)}
        return {"importance": importance_of(final.predictor, seen.x)}
    except NOT_THE_FITS:
        raise
    except BaseException:  # noqa: BLE001 - user code: a model of which nothing is told is a model all the same
        return {"importance": None}


def _permuted(measured: Fitted, seen: Seen, settings: FitSettings, seed: int) -> dict[str, float]:
    """Return the rise of the error on the holdout, or without one on the rows of the fit."""
    rows = np.arange(len(seen.y))[seen.train if seen.held is None else seen.held]
    rows = rows[spread_places(len(rows), MAX_SHUFFLED_ROWS)]
    y, weight = seen.y[rows], taken(seen.weight, rows)

    def error(x: pd.DataFrame) -> float:
        return metrics_of(y, measured.predict(x), settings.labels, weight)[settings.metric]

    found = permuted(error, seen.x.iloc[rows].reset_index(drop=True), seed=seed)
    return {OF_PARENT if name == PARENT else name: share for name, share in found.items() if name != REFITTED}


@dataclasses.dataclass(frozen=True)
class TrainErrors:
    """Errors of a model and of its baseline on rows that the model was fitted on, by metric."""

    rows: int
    own: Mapping[str, float]
    base: Mapping[str, float]

    @classmethod
    def of(
        cls, fitted: Fitted, seen: Seen, labels: Labels | None, baseline: Mapping[str, float] | None = None
    ) -> TrainErrors | None:
        """Return the errors of a model on its training rows; None where it does not predict them all.

        Parameters
        ----------
        baseline
            What the baseline is made of, where not of these rows alone.
        """
        rows = np.arange(len(seen.y))[seen.train]
        rows = rows[spread_places(len(rows), MAX_TRAIN_ROWS)]
        y, weight = seen.y[rows], taken(seen.weight, rows)
        try:
            own = _errors(y, fitted.predict(seen.x.iloc[rows]), labels, weight)
        except NOT_THE_FITS:
            raise
        except BaseException:  # noqa: BLE001 - user code: what cannot be measured is no failure
            return None
        base = _errors(y, baseline_prediction(len(y), baseline or seen.baseline(labels), labels), labels, weight)
        return cls(len(rows), own, base) if all(map(np.isfinite, own.values())) else None

    def columns(self, measured: Mapping[str, Any], settings: FitSettings, *, held_rows: int) -> dict[str, Any]:
        """Return `train_metrics` and `fit_flag`; `measured` has `metrics` and `baseline_metrics`, if there are any."""
        return {"train_metrics": train_metrics(self.own), "fit_flag": self._flag(measured, settings.metric, held_rows)}

    def _flag(self, measured: Mapping[str, Any], metric: Metric, held_rows: int) -> str | None:
        if not measured.get("metrics") or min(self.rows, held_rows) < MIN_FLAG_ROWS:
            return None
        holdout, base = (dict(measured[name])[metric] for name in ("metrics", "baseline_metrics"))
        errors = self.own[metric], holdout, self.base[metric], base
        flag: str | None = fit_flags(*(np.array([error]) for error in errors))[0]
        return flag


def _errors(y: Floats, prediction: Floats, labels: Labels | None, weight: Floats | None) -> dict[str, float]:
    if labels is None:
        return _one(grouped_errors(y, prediction, np.zeros(1, dtype=np.int64), weight))
    return {"log_loss": metrics_of(y, prediction, labels, weight)["log_loss"]}


def _one(errors: Mapping[str, Floats]) -> dict[str, float]:
    return {name: float(values[0]) for name, values in errors.items()}


def train_metrics(errors: Mapping[str, float]) -> dict[str, float]:
    """Return errors of training rows under names that say so."""
    return {TRAIN + name: value for name, value in errors.items()}


@dataclasses.dataclass(frozen=True)
class GroupRows:
    """Rows of many keys, those of each together; each key has some."""

    table: Table
    y: Floats
    offsets: Ints
    weight: Floats | None

    def errors(self, prediction: Floats) -> dict[str, Floats]:
        """Return the errors of each key's predictions."""
        return grouped_errors(self.y, prediction, self.offsets[:-1], self.weight)


@dataclasses.dataclass(frozen=True)
class GroupReasons:
    """The same of many keys that were fitted at once: lists by key, so that each one's columns take microseconds."""

    metrics: Sequence[str]
    train: Sequence[Sequence[float]]
    flags: Sequence[str | None]

    @classmethod
    def of(
        cls,
        first: FittedGroups,
        train: GroupRows,
        split: tuple[npt.NDArray[np.bool_], GroupRows, Ints],
        medians: Floats,
        measured: Mapping[str, Mapping[str, Floats]],
        metric: Metric,
    ) -> GroupReasons:
        """Measure what was fitted on its own rows.

        Parameters
        ----------
        split
            Which keys have a holdout, their training rows, and the held out rows of each.
        medians, measured
            Of these keys: medians of their training rows; `metrics` and `baseline_metrics` on the holdout.
        """
        found = train.errors(first.predict(train.table, train.offsets))
        has_holdout, known, held = split
        flags = np.full(len(has_holdout), None, dtype=object)
        if has_holdout.any():
            rows = np.diff(known.offsets)
            base = known.errors(np.repeat(medians, rows))[metric]
            holdout, base_holdout = (measured[name][metric] for name in ("metrics", "baseline_metrics"))
            of_split = fit_flags(found[metric][has_holdout], holdout, base, base_holdout)
            of_split[np.minimum(rows, held) < MIN_FLAG_ROWS] = None
            flags[has_holdout] = of_split
        names = [TRAIN + name for name in found]
        return cls(names, np.stack(list(found.values()), axis=1).tolist(), flags.tolist())

    def columns(self, own: int) -> dict[str, Any]:
        """Return the columns of one key."""
        errors = dict(zip(self.metrics, self.train[own], strict=True))
        return {"train_metrics": errors, "fit_flag": self.flags[own]}


@dataclasses.dataclass(frozen=True)
class GroupImportances:
    """The importance of features of many models that were fitted at once; None where nothing tells it."""

    names: Sequence[str]
    values: Sequence[Sequence[float]]

    @classmethod
    def of(cls, fitted: FittedGroups, rows: GroupRows, settings: FitSettings) -> GroupImportances | None:
        """Return the shares of each key's model, on the rows that it was fitted to."""
        found = group_importances(fitted, rows.table, rows.offsets) if settings.importance == "auto" else None
        return None if found is None else cls(list(found), np.stack(list(found.values()), axis=1).tolist())

    def columns(self, place: int) -> dict[str, Any]:
        """Return the column of one key."""
        return {"importance": dict(zip(self.names, self.values[place], strict=True))}
