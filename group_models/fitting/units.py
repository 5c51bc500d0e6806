"""Fit one unit: the only code that runs user code. Plain pandas and numpy; runs on ten rows on a laptop."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.estimators.base import Family, Fitted, one_thread
from group_models.estimators.batched import BatchedFamily
from group_models.estimators.weights import taken
from group_models.evaluation import Stage, infinite_columns, why_no_metrics
from group_models.fitting.choosing import families_of
from group_models.fitting.deaths import Death, FitError, death_columns, raised_columns
from group_models.fitting.group_fits import fit_groups
from group_models.fitting.guards import Guard
from group_models.fitting.intervals import interval_columns
from group_models.fitting.isolation import fit_in_child, run_in_child
from group_models.fitting.measures import baseline_metrics, comparable, metrics_of, not_finite
from group_models.fitting.outcomes import (
    MEASURED,
    FitSettings,
    identity,
    one_class_columns,
    result_frame,
    stored_columns,
)
from group_models.fitting.reasons import Seen, TrainErrors, importance_columns, train_metrics
from group_models.fitting.references import UnitPredictions, predict_held
from group_models.fitting.tuning import find_choice
from group_models.fitting.unit_rows import KeyRows, Rows, UnitRows, numeric_names
from group_models.frames import ColumnKind
from group_models.keys import key_seed
from group_models.tables import WHOLE, utc_now

EMPTY_PART = "too_small"
"""Status of a part that no row fell into: a key of few distinct rows. The ensemble goes without it."""

Floats: TypeAlias = npt.NDArray[np.float64]
Outcomes: TypeAlias = dict[int, list[dict[str, Any]]]


def fit_unit(
    frame: pd.DataFrame, references: pd.DataFrame, settings: FitSettings, models: Sequence[bytes] = ()
) -> pd.DataFrame:
    """Fit every key of a unit; a key that fails is a row that says why.

    Parameters
    ----------
    frame
        One row per training row: `key_index int, time_us int, row_hash int, is_holdout bool, y float`, and the
        features as `f0, f1, ...` (float64 with NaN, or text with None) in the order of `settings.features`; where
        rows have weights, `w float` above 0; where estimators are chosen on folds by hash, `fold int`. Any order of
        rows, any index.
    references
        One row per key: `key_index int, key_id str, key str (JSON), unit int`; of a part of a salted key also
        `part int, n_parts int`; `override int` where the spec has overrides, null for none; where models came along,
        `links binary`: which of them the key is compared with.
    models
        Models that the unit's keys are compared with, each a packed `references.ModelRow`.

    Returns
    -------
    Columns `RESULT`, in order of key index: one row per row of `references`. A part that was measured and then
    refitted has two: its model under `part`, and under `part + n_parts` the one that has not seen the holdout,
    for measuring the ensemble. So has a whole key where the settings say `keeps_measured`.

    Raises
    ------
    NoChildError
        Keys are to be isolated where no child process can be made.
    """
    if "override" not in references or references["override"].isna().all():
        return _fit_alike(frame, references, settings, settings.features, models)
    # Planned units have keys of one override; any others are taken apart.
    found = [
        _fit_alike(frame, of_place, settings.of(of_place["override"].iloc[0]), settings.features, models)
        for _, of_place in references.groupby("override", dropna=False)
    ]
    return pd.concat(found, ignore_index=True)


def _fit_alike(
    frame: pd.DataFrame,
    references: pd.DataFrame,
    settings: FitSettings,
    given: Mapping[str, ColumnKind],
    models: Sequence[bytes],
) -> pd.DataFrame:
    """Fit keys of the same settings; `given` are the features that the frame has."""
    families = families_of(settings)
    for other in families[1:]:
        # Before the limits, which reach only libraries that are loaded.
        other.load()
    with one_thread(families[0]), warnings.catch_warnings(), Guard(settings.limits) as guard:
        warnings.simplefilter("ignore")
        # What a key is compared with may read features that its own estimator does not.
        unit = UnitRows.of(frame, references, given)
        predicted = predict_references(unit, references, models, settings, guard)
        fitted = fit_rows(unit.only(settings.features), families, settings, guard, predicted)
        return result_frame([outcome for of_key in fitted for outcome in of_key])


def fit_rows(
    unit: UnitRows, families: Sequence[Family], settings: FitSettings, guard: Guard, predicted: UnitPredictions
) -> list[list[dict[str, Any]]]:
    """Return the outcomes of each key of a unit, in the unit's order."""
    together = _fit_together(unit, families, settings, guard, predicted)

    def outcomes_of(place: int) -> list[dict[str, Any]]:
        key = unit.key(place)
        return _fit_guarded(key, families, settings, guard, predicted.take(key.rows))

    return [together.get(place) or outcomes_of(place) for place in range(len(unit.names))]


def predict_references(
    unit: UnitRows, references: pd.DataFrame, models: Sequence[bytes], settings: FitSettings, guard: Guard
) -> UnitPredictions:
    """Return what the models that came along predict; nothing where that breaks a limit or kills its process."""
    none = UnitPredictions.none(len(unit.y), settings.metric)
    if not models or not len(unit.y):
        return none
    ordered = references.sort_values("key_index")
    links = ordered["links"].tolist() if "links" in ordered else [None] * len(ordered)

    def predict() -> UnitPredictions:
        return predict_held(unit, links, models, settings.metric, settings.labels)

    done = run_in_child(predict, settings.limits) if settings.is_isolated else guard.run(predict)
    return none if isinstance(done, Death) else done


def _fit_together(
    unit: UnitRows, families: Sequence[Family], settings: FitSettings, guard: Guard, predicted: UnitPredictions
) -> dict[int, list[dict[str, Any]]]:
    """Return the outcomes of the keys that the family fits at once, by place; where that breaks a limit, of none."""
    family = families[0]
    if not isinstance(family, BatchedFamily) or settings.is_isolated or settings.is_choosing:
        return {}
    done = guard.run(lambda: fit_groups(unit, family, settings, predicted))
    return {} if isinstance(done, Death) else done


def _fit_guarded(
    key: KeyRows, families: Sequence[Family], settings: FitSettings, guard: Guard, predicted: UnitPredictions
) -> list[dict[str, Any]]:
    """Return the outcome of one key or part, also where its fit breaks a limit or kills its process."""
    started = utc_now()

    def fit() -> list[dict[str, Any]]:
        return _fit_key(key, families, settings, predicted)

    done = fit_in_child(fit, families[0], settings.limits) if settings.is_isolated else guard.run(fit)
    if not isinstance(done, Death):
        return done
    seed = key_seed(settings.seed, key.key_id, key.part)
    times = {"started_at": started, "finished_at": utc_now()}
    return [{**_identity(key, families[0], settings, seed), **times, **death_columns(done)}]


def _fit_key(
    key: KeyRows, families: Sequence[Family], settings: FitSettings, predicted: UnitPredictions
) -> list[dict[str, Any]]:
    """Return the outcome of one key or part; nothing that its fit raises gets out."""
    started, clock, cpu = utc_now(), time.perf_counter(), time.process_time()
    progress = _Progress()
    seed = key_seed(settings.seed, key.key_id, key.part)
    try:
        outcomes = _train_key(key, families, settings, seed, progress, predicted)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the one catch-all: a failure is a row
        outcomes = [raised_columns(error, progress.stage, settings.limits, hint=_hint(key, settings))]
    shared = {
        **_identity(key, families[0], settings, seed),
        "fit_seconds": time.perf_counter() - clock,
        "cpu_seconds": time.process_time() - cpu,
        "started_at": started,
        "finished_at": utc_now(),
    }
    return [{**shared, **outcome} for outcome in outcomes]


def _identity(key: KeyRows, family: Family, settings: FitSettings, seed: int) -> dict[str, Any]:
    shared = identity(key.key_id, key.part, key.unit, seed, family.name, settings)
    return {**shared, "holdout_rows": int(key.is_holdout.sum())}


@dataclasses.dataclass
class _Progress:
    """The stage that a key's fit is in, for the outcome of one that fails."""

    stage: Stage = "prepare"


def _train_key(
    key: KeyRows,
    families: Sequence[Family],
    settings: FitSettings,
    seed: int,
    progress: _Progress,
    predicted: UnitPredictions,
) -> list[dict[str, Any]]:
    if key.part != WHOLE and not len(key.y):
        return [{"status": EMPTY_PART, "reason": "no row of the key falls into this part"}]
    _check_rows(key, families[0], settings)
    train, holdout, reason = _split(key, settings)
    progress.stage = "fit"
    choice = find_choice(key, train, families, settings, seed)
    family, settings = choice.family, choice.settings
    fitted = family.fit(key.x.iloc[train], key.y[train], seed=seed, **_weights(taken(key.weight, train)))
    seen = Seen(key.x, key.y, key.weight, train, holdout)
    if key.part != WHOLE:
        parts = _part_outcomes(fitted, key, seen, family, settings, seed, progress)
        return [choice.told(part) for part in parts]
    measured: dict[str, Any] = {}
    if holdout is not None:
        progress.stage = "evaluate"
        measured = _measure(fitted, key, seen, holdout, settings, predicted)
    if (errors := TrainErrors.of(fitted, seen, settings.labels)) is not None:
        held_rows = int(key.is_holdout.sum()) if measured else 0
        measured |= errors.columns(measured, settings, held_rows=held_rows)
    final = _refit(fitted, key, family, settings, seed, progress)
    measured |= importance_columns(final, fitted, seen, settings, seed)
    columns = {"reason": reason, **measured, **stored_columns(final, key.key_id, key.key, settings)}
    outcomes = [columns | one_class_columns(final, columns)]
    if settings.keeps_measured and holdout is not None:
        kept = {"baseline_metrics": seen.baseline(settings.labels), "part": MEASURED}
        outcomes.append({**stored_columns(fitted, key.key_id, key.key, settings), **kept})
    return [choice.told(outcome) for outcome in outcomes]


def _refit(
    fitted: Fitted, key: KeyRows, family: Family, settings: FitSettings, seed: int, progress: _Progress
) -> Fitted:
    if settings.refit and fitted.rows_used < len(key.y):
        progress.stage = "refit"
        fitted = family.refit(fitted, key.x, key.y, seed=seed, **_weights(key.weight))
    progress.stage = "serialize"
    return fitted


def _weights(weight: Floats | None) -> dict[str, Floats]:
    """Return weights as an argument, where there are any."""
    return {} if weight is None else {"weight": weight}


def _part_outcomes(
    fitted: Fitted,
    key: KeyRows,
    seen: Seen,
    family: Family,
    settings: FitSettings,
    seed: int,
    progress: _Progress,
) -> list[dict[str, Any]]:
    """Return the rows of a part: its model, and before it the one that the ensemble is measured with.

    What is measured is what has the median of its training rows beside it: where no row of the part is left to
    train on but the holdout's, nothing has.
    """
    is_leaking = _unseen(key, settings).all() and settings.holdout_by != "none"
    # A part of one's own estimator predicts first where the ensemble is measured, and there its key answers for it.
    errors = None if settings.estimator.name is None else TrainErrors.of(fitted, seen, settings.labels)
    beside = {} if errors is None else train_metrics(errors.base)
    baseline = None if is_leaking else {**seen.baseline(settings.labels), **beside}
    of_train: dict[str, Any] = {"baseline_metrics": baseline}
    of_train["train_metrics"] = None if errors is None else train_metrics(errors.own)
    final = _refit(fitted, key, family, settings, seed, progress)
    importance = importance_columns(final, fitted, seen, settings, seed)
    if final is fitted:
        return [{**of_train, **importance, **stored_columns(final, key.key_id, key.key, settings)}]
    part = {"part": key.part + key.n_parts}
    measured = {**stored_columns(fitted, key.key_id, key.key, settings), **of_train, **part}
    return [measured, {**importance, **stored_columns(final, key.key_id, key.key, settings)}]


def _hint(key: KeyRows, settings: FitSettings) -> str:
    """Return which columns hold infinite values: the commonest cause of a failure that names no column."""
    said = infinite_columns(key.numbers, numeric_names(settings.features), float32=False)
    return f" (infinite values in {', '.join(map(repr, said))})" if said else ""


def _check_rows(key: KeyRows, family: Family, settings: FitSettings) -> None:
    if not len(key.y):
        raise FitError("no row of the key reached the fit; a sample of identical rows can be empty: `oversize: skip`")
    if family.takes_infinity:
        return
    if said := infinite_columns(key.numbers, numeric_names(settings.features), float32=family.takes_float32):
        raise FitError(f"infinite values in {', '.join(map(repr, said))}; make them null or finite in the source")


def _split(key: KeyRows, settings: FitSettings) -> tuple[Rows, Rows | None, str | None]:
    """Return the rows to train on, the holdout (None without one), and why there is none."""
    everything = slice(0, len(key.y))
    if settings.holdout_by == "none":
        return everything, None, None
    is_unseen = _unseen(key, settings)
    held, unseen = int(key.is_holdout.sum()), int(is_unseen.sum())
    reason = why_no_metrics(held, len(key.y), unseen - held)
    # A part without held rows is measured with the others, on theirs: it too must not see what is near to them.
    is_split = reason is None if key.part == WHOLE else unseen < len(key.y)
    return (_rows(~is_unseen), _rows(key.is_holdout), reason) if is_split else (everything, None, reason)


def _unseen(key: KeyRows, settings: FitSettings) -> npt.NDArray[np.bool_]:
    """Return which rows a measured model must not have seen: the holdout and the gap before it."""
    return key.is_holdout | settings.is_in_gap(key.time_us)


def _rows(flags: npt.NDArray[np.bool_]) -> Rows:
    """Return the places of the rows with the flag: a slice where they stand together, of which frames are views."""
    places = np.flatnonzero(flags)
    first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    return slice(first, last) if last - first == len(places) else places


def _measure(
    fitted: Fitted, key: KeyRows, seen: Seen, holdout: Rows, settings: FitSettings, predicted: UnitPredictions
) -> dict[str, Any]:
    """Return metrics of the model, of its baseline (median or prior) and of its references, on the holdout only."""
    y, weight, labels = key.y[holdout], taken(key.weight, holdout), settings.labels
    prediction = fitted.predict(key.x.iloc[holdout])
    if wrong := not_finite(prediction):
        raise FitError(f"{wrong} of {len(y)} predictions on the holdout are not finite")
    own = comparable(prediction, y, labels)
    compared = predicted.take(holdout).compared(y, own, np.zeros(1, dtype=np.int64), weight).of_key(0)
    return {
        "metrics": metrics_of(y, prediction, labels, weight),
        "baseline_metrics": baseline_metrics(y, seen.baseline(labels), labels, weight) | compared,
        **interval_columns(y, prediction, key.row_hash[holdout], settings.intervals),
    }
