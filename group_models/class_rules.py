"""What a spec may say of a classification, and of a regression's transformed target. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from group_models.labels import label_text

Task: TypeAlias = Literal["regression", "classification"]
Transform: TypeAlias = Literal["log1p"]


def _by_text(given: Any) -> Any:
    """Return weights by the text of their label, however YAML or Python wrote it."""
    return {label_text(name): weight for name, weight in given.items()} if isinstance(given, Mapping) else given


ClassWeight: TypeAlias = Annotated[
    Literal["balanced"] | dict[str, Annotated[float, Field(gt=0)]], BeforeValidator(_by_text)
]
"""How much the rows of each label count: alike (`balanced`), or so much; a label that is not named counts 1."""

_OF_NUMBERS = ("mae", "rmse")
_MEASURED = ("auc", "f1", "accuracy")


def with_task(content: Any) -> Any:
    """Return unchecked fields with the metric that goes with their task, where they name none."""
    if not isinstance(content, Mapping) or content.get("task") != "classification":
        return content
    return {**content, "metric": content.get("metric") or "log_loss"}


def metric_mistake(metric: Any) -> Any:
    """Return a metric, or say of one that is measured beside it why it decides nothing.

    Raises
    ------
    ValueError
        It is one that is no mean over rows.
    """
    if metric in _MEASURED:
        raise ValueError(f"{metric} is measured of every key, and decides nothing: write log_loss, or leave it out")
    return metric


def task_mistake(spec: Any) -> str | None:
    """Return what of a spec does not go with its task, or None."""
    return _regression_mistake(spec) if spec.task == "regression" else _classification_mistake(spec)


def _classification_mistake(spec: Any) -> str | None:
    if spec.metric in _OF_NUMBERS:
        return f"metric: {spec.metric} is of numbers, and the task is classification: write log_loss, or leave it out"
    if spec.target_transform is not None:
        return f"target_transform: {spec.target_transform} is of numbers, and the task is classification; leave it out"
    if spec.is_pooled:
        return "pooling: what a model adds to its parent's is a number, and the task is classification; leave it out"
    if spec.intervals:
        return f"intervals: they are around a number, and the spec says `task: {spec.task}`; leave them out"
    if spec.oversize == "distribute":
        return "oversize: distribute trains no classifier; say salt, sample, skip or fail"
    return None


def _regression_mistake(spec: Any) -> str | None:
    if spec.metric == "log_loss":
        return "metric: log_loss is of classes; say `task: classification`, or take mae or rmse"
    if spec.class_weight is not None:
        return "class_weight: a regression has no classes; say `task: classification`, or leave it out"
    if spec.target_transform is None:
        return None
    if spec.is_pooled:
        return "target_transform: it does not go with pooling; leave one of them out"
    if spec.oversize == "distribute":
        return "target_transform: it does not go with `oversize: distribute`; say salt, sample, skip or fail"
    return None
