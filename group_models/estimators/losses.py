"""What a family minimises: the loss that is the spec's metric, where it has one and the user chose none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from group_models.spec import Metric

LOSSES: Mapping[str, tuple[str, Mapping[Metric, str]]] = {
    "xgboost": ("objective", {"mae": "reg:absoluteerror", "rmse": "reg:squarederror"}),
    "hist_gradient_boosting": ("loss", {"mae": "absolute_error", "rmse": "squared_error"}),
    "gradient_boosting": ("loss", {"mae": "absolute_error", "rmse": "squared_error"}),
}
"""Family to the parameter that names its loss, and the loss of each metric.

Without one stay `ridge` and `linear`, whose least squares have a closed form, `median` and `mean`, whose names say
what they minimise, and `random_forest`: its criterion `absolute_error` takes time with the square of the rows (seven
times that of `squared_error` at 1,000 rows, scikit-learn 1.7), so that it is for the user to ask for.
"""


def with_loss(family: str, params: Mapping[str, Any], metric: Metric | None) -> dict[str, Any]:
    """Return a family's parameters with the loss that is the metric; one that they name already stays.

    Examples
    --------
    >>> with_loss("xgboost", {"max_depth": 3}, "mae")
    {'objective': 'reg:absoluteerror', 'max_depth': 3}
    >>> with_loss("gradient_boosting", {"loss": "huber"}, "mae"), with_loss("ridge", {}, "mae")
    ({'loss': 'huber'}, {})
    """
    name, losses = LOSSES.get(family, ("", {}))
    return dict(params) if metric is None or metric not in losses else {name: losses[metric], **params}
