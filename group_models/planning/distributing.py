"""What `xgboost.spark` is told to train one key over a cluster, and what it cannot take. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from group_models.estimators.base import EstimatorSettings, Fitted, as_text
from group_models.estimators.boosters import ATTRIBUTE, BoosterFamily, BoosterPredictor, Columns

MIN_WORKERS = 2
"""Fewest workers that share a key: one alone would be an ordinary fit."""

_DECIDED_HERE = ("early_stopping_rounds", "n_estimators", "n_jobs")


def refusal(estimator: EstimatorSettings, slots: int) -> str | None:
    """Return why an estimator cannot be trained over so many slots, whatever the session; None if it may be tried.

    Examples
    --------
    >>> refusal(EstimatorSettings("ridge"), 8)
    'only the estimator xgboost can be distributed, not ridge'
    >>> refusal(EstimatorSettings("xgboost"), 1)
    'distributing needs 2 task slots, and there is 1'
    """
    if estimator.name != "xgboost":
        return f"only the estimator xgboost can be distributed, not {estimator.label}"
    if estimator.params.get("tree_method") == "exact":
        return "the tree_method exact cannot be distributed; hist and approx can"
    if slots < MIN_WORKERS:
        return f"distributing needs {MIN_WORKERS} task slots, and there is {slots}"
    return None


def regressor_params(family: BoosterFamily, *, seed: int, rounds: int, is_watched: bool) -> dict[str, Any]:
    """Return the parameters of `SparkXGBRegressor` for what the family would fit on one machine.

    Threads are not among them: xgboost gives each worker as many as Spark gives a task (`spark.task.cpus`).

    Parameters
    ----------
    is_watched
        Early stopping watches some of the rows.

    Examples
    --------
    >>> from group_models.estimators.base import Features
    >>> family = BoosterFamily({"max_depth": 3, "early_stopping_rounds": 5}, Features((), (), ()))
    >>> regressor_params(family, seed=1, rounds=9, is_watched=False)["n_estimators"]
    9
    """
    given = {n: value for n, value in family.params.items() if value is not None and n not in _DECIDED_HERE}
    stopping = {"early_stopping_rounds": family.params["early_stopping_rounds"]} if is_watched else {}
    defaults = {"objective": "reg:squarederror", "random_state": seed, "verbosity": 0}
    return {**defaults, **given, **stopping, "n_estimators": rounds, "verbose": False}


def stored_form(family: BoosterFamily, booster: Any, columns: Columns, *, seed: int, rows: int, workers: int) -> Fitted:
    """Return a booster as the per-key family returns and stores its own.

    Parameters
    ----------
    rows
        Rows that it was fitted on.
    """
    if not columns.is_plain:
        booster.set_attr(**{ATTRIBUTE: columns.to_json()})
    params = {"random_state": seed, **family.params, "num_workers": workers}
    params.pop("n_jobs", None)
    return Fitted(BoosterPredictor(booster, columns), as_text(params), rows_used=rows)


def stopped(fitted: Fitted, best: int, last: int) -> Fitted:
    """Return a fit with what early stopping found: the best round and the last one, counted as xgboost does."""
    facts = {"best_iteration": str(best), "stopped_round": str(last)}
    return dataclasses.replace(fitted, params=fitted.params | facts, rounds=best + 1)
