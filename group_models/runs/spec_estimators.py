"""The estimators that a spec names, for all keys, for some or for a choice: settings, mistakes and costs."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, Family, Features, features_of
from group_models.estimators.batched_children import child_family
from group_models.estimators.children import ChildFamily
from group_models.estimators.registry import check_settings
from group_models.frames import ColumnKind
from group_models.keys import KeyKind, given_texts
from group_models.labels import NO_LABELS
from group_models.planning.deciding import Costs
from group_models.spec import Estimator, Spec, Tune


def estimator_settings(spec: Spec) -> EstimatorSettings:
    """Return the estimator as the spec says it; the labels of a classification are not known yet."""
    return _settings(spec, spec.estimator)


def _settings(spec: Spec, estimator: Estimator) -> EstimatorSettings:
    labels = NO_LABELS if spec.task == "classification" else None
    return EstimatorSettings(
        **dict(estimator), metric=spec.metric, labels=labels, class_weight=spec.class_weight,
        transform=spec.target_transform,
    )  # fmt: skip


def override_settings(spec: Spec) -> tuple[EstimatorSettings, ...]:
    """Return the estimator of the keys of each override."""
    return tuple(estimator_settings(spec.overridden(place)) for place in range(len(spec.overrides)))


def other_settings(spec: Spec) -> tuple[EstimatorSettings, ...]:
    """Return the estimators that a key may get beside the spec's."""
    return tuple(_settings(spec, each) for each in spec.others)


def estimator_mistakes(spec: Spec, kinds: Mapping[str, ColumnKind]) -> list[str]:
    """Return what is wrong with all estimators of a spec, one sentence each."""
    is_weighted = spec.sample_weight is not None or spec.class_weight is not None

    def mistakes_of(settings: EstimatorSettings, names: Sequence[str], where: str) -> list[str]:
        features = features_of({name: kinds[name] for name in names if name in kinds})
        said = check_settings(settings, features, is_weighted=is_weighted)
        return [f"{where}{mistake}" for mistake in said]

    mistakes = mistakes_of(estimator_settings(spec), spec.features, "")
    for place, settings in enumerate(override_settings(spec)):
        mistakes += mistakes_of(settings, spec.overridden(place).features, f"overrides.{place}: ")
    for place, settings in enumerate(other_settings(spec)):
        mistakes += mistakes_of(settings, spec.features, f"candidates.estimators.{place}: ")
    if spec.tune is not None and importlib.util.find_spec("optuna") is None:
        mistakes.append("tune: it needs optuna; install group-models[tune]")
    for params in spec.tune.corners() if spec.tune else ():
        tuned = estimator_settings(spec)
        tuned = dataclasses.replace(tuned, params={**tuned.params, **params})
        mistakes += mistakes_of(tuned, spec.features, "tune.space: ")
    return list(dict.fromkeys(mistakes))


def check_tracked(spec: Spec, kinds: Mapping[str, KeyKind]) -> None:
    """Refuse keys whose trials are to be tracked and that are no keys of the spec.

    Raises
    ------
    SpecError
        It names the key and the columns.
    """
    for key in spec.tune.track_keys if spec.tune else ():
        try:
            given_texts(key, kinds, spec.levels)
        except SpecError as e:
            raise SpecError([f"tune.track_keys: {said}" for said in e.mistakes]) from e


def tuning_costs(family: Family, tune: Tune) -> Costs:
    """Return what a key costs whose parameters are searched: a fit, and before it the trials that its time allows."""

    def seconds(rows: NDArray[Any], columns: int) -> NDArray[np.float64]:
        tried = (tune.trials + 1) * tune.folds * family.predicted_seconds(rows / 2, columns)
        searched = np.minimum(tried, tune.seconds) * (np.asarray(rows) >= tune.min_rows)
        return np.asarray(searched + family.predicted_seconds(rows, columns), dtype=np.float64)

    return Costs(seconds, family.predicted_model_bytes)


def costs_of(families: Sequence[Family], folds: int) -> Costs:
    """Return what a key costs that gets one of these families, tried on so many folds where there are several."""
    if len(families) == 1:
        return Costs(families[0].predicted_seconds, families[0].predicted_model_bytes)
    return Costs(
        # Each is fitted once per fold, to half of the rows on average, and the dearest may be chosen.
        lambda rows, columns: (
            sum(folds * family.predicted_seconds(rows / 2, columns) for family in families)
            + np.max([family.predicted_seconds(rows, columns) for family in families], axis=0)
        ),
        lambda rows, columns: np.max([family.predicted_model_bytes(rows, columns) for family in families], axis=0),
    )


def pooled_settings(spec: Spec, estimator: EstimatorSettings) -> EstimatorSettings:
    """Return the estimator of a key's own part: what it adds to its parent's, or what is mixed with it."""
    if spec.pooling.mode == "shrink":
        return estimator
    return EstimatorSettings(**dict(spec.pooling.estimator), metric=spec.metric)


def family_of_children(spec: Spec, estimator: EstimatorSettings, features: Features) -> ChildFamily:
    """Return the family of the models that build on parents."""
    settings, is_residual = pooled_settings(spec, estimator), spec.pooling.mode == "residual"
    return child_family(settings, features, spec.pooling.half_rows, is_residual=is_residual)
