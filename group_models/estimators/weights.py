"""Fits in which some rows count for more than others: a weight of 2 is a row that stands there twice."""

from __future__ import annotations

import inspect
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


def weighted_medians(values: Floats, weight: Floats, offsets: Ints) -> Floats:
    """Return the weighted median of each key's values: with whole weights, that of rows repeated so often.

    Parameters
    ----------
    values
        Shape (rows,), without NaN, the rows of each key together.
    weight
        Above 0, one per row.
    offsets
        Where each key's rows begin, and at last their number; each key has rows.

    Examples
    --------
    >>> weighted_medians(np.array([1.0, 5.0, 3.0]), np.array([2.0, 1.0, 1.0]), np.array([0, 3])).tolist()
    [2.0]
    """
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((values, owner))
    ordered = values[order]
    found = np.empty(len(offsets) - 1)
    for place, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        upto = np.cumsum(weight[order[start:end]])
        half = upto[-1] / 2
        low = np.searchsorted(upto, half, "left")
        high = min(int(np.searchsorted(upto, half, "right")), end - start - 1)
        found[place] = (ordered[start + low] + ordered[start + high]) / 2
    return found


def weighted_median(values: Floats, weight: Floats | None) -> float:
    """Return the median of values, weighted where there are weights."""
    if weight is None:
        return float(np.median(values))
    return float(weighted_medians(values, weight, np.array([0, len(values)]))[0])


def taken(weight: Floats | None, rows: Any) -> Floats | None:
    """Return the weights of some rows, None where there are none."""
    return None if weight is None else weight[rows]


def fit_pipeline(model: Any, x: Any, y: Floats, weight: Floats | None, last: Floats | None = None) -> None:
    """Fit one of our pipelines, or a bare estimator, in place.

    Scaling and the estimator are weighted, the estimator by `last` where that is given. Imputation is not: missing
    numbers get the plain median of the rows.
    """
    if weight is None and last is None:
        model.fit(x, y)
        return
    steps: list[Any] = [step for _, step in getattr(model, "steps", [(None, model)])]
    for step in steps[:-1]:
        x = _prepared(step, x, weight)
    steps[-1].fit(x, y, sample_weight=weight if last is None else last)


def _prepared(step: Any, x: Any, weight: Floats | None) -> Any:
    if weight is None:
        return step.fit_transform(x)
    if takes_weight(step):
        return step.fit(x, sample_weight=weight).transform(x)
    prepared = step.fit_transform(x)
    numeric: Any = getattr(step, "named_transformers_", {}).get("numeric")
    if not hasattr(numeric, "steps") or not takes_weight(numeric[-1]):
        return prepared
    # A column transformer passes no weights on; what it has fitted is fitted again in place.
    columns = next(names for name, _, names in step.transformers_ if name == "numeric")
    numeric[-1].fit(numeric[:-1].transform(x[columns]), sample_weight=weight)
    return step.transform(x)


def takes_weight(estimator: Any) -> bool:
    """Return whether an estimator's fit has `sample_weight`."""
    try:
        return "sample_weight" in inspect.signature(estimator.fit).parameters
    except (AttributeError, TypeError, ValueError):  # no fit; some built-in types have no signature
        return False


def last_step(estimator: Any) -> Any:
    """Return the last step of a pipeline, or the estimator itself."""
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator


def fit_arguments(estimator: Any, weight: Floats | None) -> dict[str, Any]:
    """Return the weights under the name that the fit of a user's estimator, or of its last step, takes them by."""
    if weight is None:
        return {}
    step = f"{estimator.steps[-1][0]}__" if hasattr(estimator, "steps") else ""
    return {f"{step}sample_weight": weight}


def weight_mistake(estimator: Any) -> str | None:
    """Return why a user's estimator cannot be fitted with weights, None where it can."""
    last = last_step(estimator)
    if takes_weight(last):
        return None
    where = f"the last step of its pipeline, {type(last).__name__}," if last is not estimator else "it"
    return f"{where} has no sample_weight in its fit"
