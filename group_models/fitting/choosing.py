"""Which of several estimators a key gets: tried on folds of its training rows, never on its holdout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from group_models.estimators.base import Family, features_of
from group_models.estimators.registry import make_family
from group_models.estimators.weights import taken
from group_models.evaluation import error_summary
from group_models.fitting.deaths import NOT_THE_FITS
from group_models.fitting.folds import Chosen, Fold, Places, choose, hash_folds, time_folds
from group_models.fitting.measures import metrics_of
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.unit_rows import KeyRows, Rows

CANDIDATES = "candidates"
"""Key of `params` that says what was tried and why it was chosen."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The estimator that a key gets.

    Attributes
    ----------
    settings
        The settings of the family.
    said
        What was tried and chosen, for people; None where there was nothing to choose.
    metrics
        Mean error of the chosen one over the folds and the standard error of the best one's, by name.
    said_as
        The key of `params` under which it is told.
    trials
        The trials of a search as JSON, None where there was none.
    """

    family: Family
    settings: FitSettings
    said: str | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    said_as: str = CANDIDATES
    trials: str | None = None

    def told(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome of the key with what was tried and chosen; metrics only beside those of a holdout."""
        if self.said is None:
            return outcome
        # Of a key with two models, the one that is measured and has a part of its own is not told of the trials again.
        found = {**outcome, "estimator": self.family.name, "trials": None if "part" in outcome else self.trials}
        if outcome.get("params") is not None:
            found["params"] = {**outcome["params"], self.said_as: self.said}
        if outcome.get("metrics"):
            found["metrics"] = {**outcome["metrics"], **self.metrics}
        return found


def families_of(settings: FitSettings) -> list[Family]:
    """Return the families of the estimator and of its alternatives, in the spec's order."""
    return [make_family(each.estimator, features_of(each.features)) for each in (settings, *settings.alternatives)]


def choose_family(key: KeyRows, train: Rows, families: Sequence[Family], settings: FitSettings, seed: int) -> Choice:
    """Return the first candidate that the folds cannot tell from the best one; of few rows, and of one, the first.

    Parameters
    ----------
    train
        The key's rows beside its holdout: nothing else is looked at.
    """
    if len(families) == 1:
        return Choice(families[0], settings)
    places = places_of(key, train)
    folds = find_folds(key, places, settings)
    if not folds:
        return Choice(families[0], settings, f"the first: {too_few_text(places, settings)}")
    tried = [_errors(key, places, folds, family, settings, seed) for family in families]
    chosen = choose([errors for errors, _ in tried])
    place = 0 if chosen is None else chosen.place
    said = _said(families, [why for _, why in tried], chosen)
    metrics = {} if chosen is None else cv_metrics(chosen, settings)
    return Choice(families[place], settings.choosing(place), said, metrics)


def cv_metrics(chosen: Chosen, settings: FitSettings) -> dict[str, float]:
    """Return the mean errors over the folds of the chosen and of the best one, and the standard error of the latter."""
    name = f"cv_{settings.metric}"
    return {name: chosen.means[chosen.place], f"{name}_best": chosen.means[chosen.best], "cv_se": chosen.standard_error}


def places_of(key: KeyRows, train: Rows) -> Places:
    """Return the places of the rows to train on."""
    return np.arange(len(key.y), dtype=np.intp)[train]


def find_folds(key: KeyRows, places: Places, settings: FitSettings) -> list[Fold]:
    """Return the folds of these rows, none where they are too few."""
    if key.fold is not None:
        return hash_folds(key.fold[places], min_rows=settings.min_fold_rows)
    times = key.time_us[places]
    return time_folds(times, settings.folds, min_rows=settings.min_fold_rows, gap_us=settings.gap_us)


def too_few_text(places: Places, settings: FitSettings) -> str:
    """Return why these rows have no folds."""
    return f"{len(places)} rows are too few for {settings.folds} folds of {settings.min_fold_rows}"


def _errors(
    key: KeyRows, places: Places, folds: Sequence[Fold], family: Family, settings: FitSettings, seed: int
) -> tuple[list[float], str | None]:
    """Return a candidate's error on each fold, and why it failed on one."""
    errors: list[float] = []
    for fit, validate in folds:
        try:
            errors.append(fold_error(key, places[fit], places[validate], family, settings, seed))
        except NOT_THE_FITS:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: a candidate that fails is none
            return [math.nan] * len(folds), error_summary(error, "fit").error_type
    return errors, None if all(map(math.isfinite, errors)) else "predictions that are not finite"


def fold_error(key: KeyRows, fit: Places, validate: Places, family: Family, settings: FitSettings, seed: int) -> float:
    """Return the error on some rows of what was fitted to others."""
    weights = {} if key.weight is None else {"weight": key.weight[fit]}
    fitted = family.fit(key.x.iloc[fit], key.y[fit], seed=seed, **weights)
    prediction = fitted.predict(key.x.iloc[validate])
    found = metrics_of(key.y[validate], prediction, settings.labels, taken(key.weight, validate))
    return found[settings.metric]


def _said(families: Sequence[Family], why_failed: Sequence[str | None], chosen: Chosen | None) -> str:
    """Return what was tried, in the spec's order, and which one was chosen."""
    means = chosen.means if chosen is not None else [math.nan] * len(families)
    said = []
    for place, family in enumerate(families):
        text = f"{family.name} {means[place]:.6g}" if why_failed[place] is None else f"{family.name} failed"
        is_best = chosen is not None and place == chosen.best
        marks = [why_failed[place], "best" if is_best else None, "chosen" if place == _place(chosen) else None]
        noted = ", ".join(mark for mark in marks if mark)
        said.append(f"{text} ({noted})" if noted else text)
    return "; ".join(said)


def _place(chosen: Chosen | None) -> int:
    return 0 if chosen is None else chosen.place
