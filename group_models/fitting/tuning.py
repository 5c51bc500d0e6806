"""The parameters that a key's estimator gets: searched on folds of its training rows, never on its holdout.

The search is Optuna's (Akiba et al., 2019, "Optuna: a next-generation hyperparameter optimization framework") with its
tree-structured Parzen estimator, asked for one trial after another: the same rows and seed give the same trials, as
long as no limit of time ends them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from group_models.estimators.base import Family, features_of
from group_models.estimators.registry import make_family
from group_models.evaluation import error_summary
from group_models.fitting.choosing import (
    Choice,
    choose_family,
    cv_metrics,
    find_folds,
    fold_error,
    places_of,
    too_few_text,
)
from group_models.fitting.deaths import NOT_THE_FITS
from group_models.fitting.folds import Chosen, Fold, Places, choose
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.unit_rows import KeyRows, Rows
from group_models.spec import Tune

TUNED = "tuned"
"""Key of `params` that says what was tried and why it was chosen."""

COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
"""States of a trial: measured on all folds, given up after some, or raised an error."""

_MAX_ERROR = 200
"""Characters of what a failed trial raised."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One set of parameters as tried; number 0 are those of the spec.

    Attributes
    ----------
    errors
        On each fold that it was measured on.
    """

    number: int
    state: str
    params: Mapping[str, Any]
    errors: tuple[float, ...]
    seconds: float
    error: str | None = None

    @property
    def mean(self) -> float | None:
        """Its error over the folds, None where it was not measured on all."""
        return float(np.mean(self.errors)) if self.state == COMPLETE else None

    def as_row(self) -> dict[str, Any]:
        """Return the trial as columns of the trials table."""
        params = {name: str(value) for name, value in self.params.items()}
        return {
            "trial": self.number, "state": self.state, "params": params, "error": self.mean,
            "fold_errors": json.dumps(self.errors), "seconds": self.seconds, "error_message": self.error,
        }  # fmt: skip


def find_choice(key: KeyRows, train: Rows, families: Sequence[Family], settings: FitSettings, seed: int) -> Choice:
    """Return the estimator that a key gets: of several, the candidate that its folds choose; of one, as tuned.

    Parameters
    ----------
    train
        The key's rows beside its holdout: nothing else is looked at.
    """
    if settings.tuning is None:
        return choose_family(key, train, families, settings, seed)
    return _tuned(key, places_of(key, train), families[0], settings, settings.tuning, seed)


def _tuned(key: KeyRows, places: Places, family: Family, settings: FitSettings, tune: Tune, seed: int) -> Choice:
    """Return the best parameters that were found, or the spec's where the folds cannot tell them apart."""
    if len(places) < tune.min_rows:
        said = f"as the spec says: {len(places)} rows are fewer than min_rows {tune.min_rows}"
        return Choice(family, settings, said, said_as=TUNED)
    folds = find_folds(key, places, settings)
    if not folds:
        return Choice(family, settings, f"as the spec says: {too_few_text(places, settings)}", said_as=TUNED)
    search = _Search(key, places, folds, settings, tune, seed)
    trials, ended = search.run()
    chosen, place = _best(trials)
    best = trials[place]
    said = _said(trials, chosen, best, ended)
    metrics = {} if chosen is None else cv_metrics(chosen, settings)
    told = json.dumps([trial.as_row() for trial in trials])
    return Choice(_family(settings, best.params), settings, said, metrics, said_as=TUNED, trials=told)


def _best(trials: Sequence[Trial]) -> tuple[Chosen | None, int]:
    """Return what the folds say of the spec's parameters and the best others, and the number of the trial chosen."""
    measured = [trial for trial in trials[1:] if trial.mean is not None and math.isfinite(trial.mean)]
    rivals = [trials[0], *sorted(measured, key=lambda trial: (trial.mean, trial.number))[:1]]
    count = max(len(trial.errors) for trial in rivals)
    chosen = choose([trial.errors if trial.state == COMPLETE else [math.nan] * max(count, 1) for trial in rivals])
    return chosen, 0 if chosen is None else rivals[chosen.place].number


def _said(trials: Sequence[Trial], chosen: Chosen | None, best: Trial, ended: str | None) -> str:
    counts = {state: sum(trial.state == state for trial in trials) for state in (COMPLETE, PRUNED, FAILED)}
    states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    of_spec = trials[0].mean
    beside = f"{of_spec:.6g}" if of_spec is not None else f"failed ({trials[0].error})"
    which = "the spec's" if best.number == 0 else f"trial {best.number} with {best.mean:.6g}"
    why = "none could be measured" if chosen is None else f"chosen: {which}; the spec's: {beside}"
    return f"{len(trials)} trials ({states}); {why}{f'; {ended}' if ended else ''}"


def _family(settings: FitSettings, params: Mapping[str, Any]) -> Family:
    estimator = dataclasses.replace(settings.estimator, params={**settings.estimator.params, **params})
    return make_family(estimator, features_of(settings.features))


class _Search:
    """The trials of one key, one after another."""

    def __init__(
        self, key: KeyRows, places: Places, folds: Sequence[Fold], settings: FitSettings, tune: Tune, seed: int
    ) -> None:
        self._key = key
        self._places = places
        self._folds = folds
        self._settings = settings
        self._tune = tune
        self._seed = seed
        self._ends_at = time.monotonic() + tune.seconds

    def run(self) -> tuple[list[Trial], str | None]:
        """Return the trials, that of the spec's parameters first, and what ended them before their number did."""
        trials = [self._trial(0, {}, None)]
        study = _study(self._tune, self._seed)
        for number in range(1, self._tune.trials + 1):
            if time.monotonic() >= self._ends_at:
                return trials, f"the {self._tune.seconds:g} seconds were over"
            asked = study.ask(_distributions(self._tune))
            trial = self._trial(number, asked.params, asked)
            _tell(study, asked, trial)
            trials.append(trial)
            if (failed := sum(each.state == FAILED for each in trials)) > self._tune.max_failed_trials:
                return trials, f"{failed} trials failed ({trial.error}), more than max_failed_trials"
        return trials, None

    def _trial(self, number: int, params: Mapping[str, Any], asked: Any) -> Trial:
        """Return one set of parameters as measured; what it raises is its state."""
        began = time.perf_counter()
        errors: list[float] = []
        state, said = self._measured(params, asked, errors)
        return Trial(number, state, dict(params), tuple(errors), time.perf_counter() - began, said)

    def _measured(self, params: Mapping[str, Any], asked: Any, errors: list[float]) -> tuple[str, str | None]:
        """Add the error on each fold to `errors`; return how that ended, and what was wrong."""
        try:
            family = _family(self._settings, params)
            for fit, validate in self._folds:
                fitted, validated = self._places[fit], self._places[validate]
                errors.append(fold_error(self._key, fitted, validated, family, self._settings, self._seed))
                if asked is not None and self._is_given_up(asked, errors):
                    return PRUNED, None
        except NOT_THE_FITS:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: a trial that fails is none
            summary = error_summary(error, "fit")
            return FAILED, f"{summary.error_type}: {summary.error_message}"[:_MAX_ERROR]
        return (COMPLETE, None) if all(map(math.isfinite, errors)) else (FAILED, "predictions that are not finite")

    def _is_given_up(self, asked: Any, errors: Sequence[float]) -> bool:
        """Return whether a trial need not be measured on its other folds: by the pruner, or since the time is over."""
        if len(errors) == len(self._folds) or not math.isfinite(errors[-1]):
            return False
        asked.report(float(np.mean(errors)), len(errors))
        return bool(asked.should_prune()) or time.monotonic() >= self._ends_at


def _study(tune: Tune, seed: int) -> Any:
    """Return a search that tells nobody of its trials and whose every choice comes from the key's seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    of_study = int(np.random.default_rng([tune.seed, seed]).integers(2**32))
    pruners = {"none": optuna.pruners.NopPruner, "median": optuna.pruners.MedianPruner}
    sampler = optuna.samplers.TPESampler(seed=of_study)
    return optuna.create_study(direction="minimize", sampler=sampler, pruner=pruners[tune.pruner]())


def _distributions(tune: Tune) -> dict[str, Any]:
    from optuna import distributions

    made: dict[str, Any] = {}
    for name, space in tune.space.items():
        if isinstance(space, tuple):
            made[name] = distributions.CategoricalDistribution(space)
        elif space.is_whole:
            made[name] = distributions.IntDistribution(int(space.low), int(space.high), log=space.log)
        else:
            made[name] = distributions.FloatDistribution(float(space.low), float(space.high), log=space.log)
    return made


def _tell(study: Any, asked: Any, trial: Trial) -> None:
    from optuna.trial import TrialState

    if trial.mean is not None:
        study.tell(asked, trial.mean)
    else:
        study.tell(asked, state=TrialState.PRUNED if trial.state == PRUNED else TrialState.FAIL)
