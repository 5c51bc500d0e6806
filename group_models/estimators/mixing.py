"""A key's model and its parent's, mixed by a weight: from the key's rows, and from what both get wrong of the last."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.estimators.base import Fitted
from group_models.estimators.boosters import watched_rows
from group_models.estimators.children import PARENT, REFITTED, ChildFamily, ChildPredictor, finite_parent, own_weight
from group_models.spec import Metric

Floats = npt.NDArray[np.float64]

VALIDATION_SHARE = 0.2
"""Share of a key's rows, its last ones, on which its model and its parent's are compared."""

_VALIDATED = "validated_weight"


def mixing_weight(metric: Metric, wrong: Floats, apart: Floats) -> float:
    """Return the weight of a key's model, from 0 to 1, with which its mixture with the parent's is wrong by least.

    Of `rmse` that is least squares of what the parent gets wrong on how far the two are apart (Bates and Granger 1969,
    "The combination of forecasts", Operational Research Quarterly 20); of `mae` least absolute deviations, through the
    origin the median of the ratios weighted by how far the two are apart. No weight is negative (Breiman 1996, "Stacked
    regressions", Machine Learning 24).

    Parameters
    ----------
    wrong
        Target less the parent's prediction, of rows that neither model has seen.
    apart
        The key's prediction less the parent's.

    Examples
    --------
    >>> mixing_weight("rmse", np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    0.5
    >>> mixing_weight("mae", np.array([1.0, 2.0, -9.0]), np.array([2.0, 4.0, 1.0]))
    0.5
    >>> mixing_weight("mae", np.array([1.0]), np.array([0.0]))
    0.0
    """
    differs = apart != 0
    if not differs.any():
        return 0.0
    wrong, apart = wrong[differs], apart[differs]
    if metric == "rmse":
        best = float(wrong @ apart / (apart @ apart))
    else:
        ratios, sizes = wrong / apart, np.abs(apart)
        order = np.argsort(ratios, kind="stable")
        heavy = np.cumsum(sizes[order]) >= sizes.sum() / 2
        best = float(ratios[order][np.argmax(heavy)])
    return min(max(best, 0.0), 1.0)


@dataclasses.dataclass(frozen=True)
class MixedFamily(ChildFamily):
    """A family whose models predict beside their parent: `weight * own + (1 - weight) * parent`.

    The weight is `rows / (rows + half_rows)` (`children.own_weight`) times `mixing_weight` on the last fifth of the
    rows, predicted by a model of the others; a key with too few rows for that has the first alone.
    """

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:  # noqa: ARG002 - without weights, see `Spec`
        """Fit the key's rows, and find the weight beside the measured parent."""
        given, parent = x.drop(columns=[PARENT, REFITTED]), finite_parent(x[PARENT])
        return self._mixed(self.own.fit(given, y, seed=seed), len(y), self._validated(given, y, parent, seed))

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:  # noqa: ARG002 - without weights, see `Spec`
        """Fit all rows, with the weight that was found without the holdout's."""
        given = x.drop(columns=[PARENT, REFITTED])
        validated = float(fitted.params[_VALIDATED])
        return self._mixed(self.own.refit(fitted, given, y, seed=seed), len(y), validated)

    def _validated(self, x: pd.DataFrame, y: Floats, parent: Floats, seed: int) -> float:
        watched = watched_rows(len(y), VALIDATION_SHARE)
        if watched is None:
            return 1.0
        first = self.own.fit(x.iloc[:-watched], y[:-watched], seed=seed)
        apart = first.predict(x.iloc[-watched:]) - parent[-watched:]
        return mixing_weight(self.metric, y[-watched:] - parent[-watched:], apart)

    def _mixed(self, own: Fitted, rows: int, validated: float) -> Fitted:
        weight = float(own_weight(rows, self.half_rows)) * validated
        params = {**own.params, "pooling": "shrink", "weight": f"{weight:.6g}", _VALIDATED: repr(validated)}
        predictor = ChildPredictor(own.predictor, weight, is_residual=False)
        return dataclasses.replace(own, predictor=predictor, params=params)
