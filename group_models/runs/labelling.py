"""The labels of a classification: those of the source's target, or those that the run started with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from group_models.adapters.spark_columns import named
from group_models.adapters.spark_errors import failing
from group_models.adapters.spark_labels import measure_labels
from group_models.errors import DataError, SpecError
from group_models.estimators.base import EstimatorSettings
from group_models.labels import MAX_LABELS, Labels, ordered
from group_models.runs.preparing import Prepared


def find_labels(prepared: Prepared) -> Labels | None:
    """Return the labels of the whole source, whatever the scope; None of a regression.

    So a carrier's models give their probabilities under the same labels in its own run and in a full one.

    Raises
    ------
    DataError
        The target has too many different values to be a class.
    SpecError
        `class_weight` names a label that is not there.
    """
    roles, spec = prepared.roles, prepared.spec
    if roles.labels is None:
        return None
    with failing("looking for the labels of the target"):
        found = measure_labels(prepared.frame, named(roles.target), MAX_LABELS)
    if len(found) > MAX_LABELS:
        raise DataError(
            f"target: {roles.target!r} has more than {MAX_LABELS} different values, and a classification tells at most "
            f"{MAX_LABELS} labels apart; bin it in the source, or say `task: regression`"
        )
    labels = ordered(found, roles.labels.kind, prepared.label_order)
    if unknown := [name for name in _weighted(spec.class_weight) if name not in labels.names]:
        raise SpecError([
            f"class_weight: {unknown[0]!r} is no label of {roles.target!r}, which has {', '.join(labels.names[:20])}"
        ])  # fmt: skip
    return labels


def _weighted(rule: Any) -> Sequence[str]:
    return list(rule) if isinstance(rule, dict) else []


def with_labels(prepared: Prepared, labels: Labels | None) -> Prepared:
    """Return what is prepared, told these labels."""
    if labels is None:
        return prepared

    def told(estimator: EstimatorSettings) -> EstimatorSettings:
        return dataclasses.replace(estimator, labels=labels)

    return dataclasses.replace(
        prepared,
        roles=dataclasses.replace(prepared.roles, labels=labels),
        estimator=told(prepared.estimator),
        override_estimators=tuple(map(told, prepared.override_estimators)),
        others=tuple(map(told, prepared.others)),
    )
