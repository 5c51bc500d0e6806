"""Until when the model that serves a key has seen rows: only newer ones tell fairly whether another is better. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from group_models.spec import Spec

_NOTHING = -(2**63)
"""Before all times: a model that has seen no row of the holdout."""


@dataclasses.dataclass(frozen=True)
class Refit:
    """What decides which rows a run's models have seen.

    Attributes
    ----------
    held
        How rows are held out, told so that equal ones hold out the same rows; None where by time or not at all.
    """

    refit: bool
    time_column: str | None
    held: tuple[Any, ...] | None

    @classmethod
    def of(cls, spec: Spec) -> Refit:
        """Return it of a spec."""
        is_hash = spec.holdout_by == "hash"
        return cls(spec.refit, spec.time_column, (spec.holdout.share, spec.seed) if is_hash else None)

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Refit:
        """Return it of a spec as a run keeps it."""
        holdout = plain.get("holdout") or {}
        by, time_column = holdout.get("by"), plain.get("time_column")
        is_hash = by == "hash" or (by == "time" and time_column is None)
        held = (holdout.get("share"), plain.get("seed")) if is_hash else None
        return cls(bool(plain.get("refit")), time_column, held)


def seen_until(rows: pd.DataFrame, runs: Mapping[str, Refit], now: Refit) -> pd.Series:
    """Return the newest moment that each model has seen, in micros since 1970; null where no row can be fair.

    Parameters
    ----------
    rows
        Manifest rows of the models: `run_id`, `metrics`, `train_to`, `holdout_from`. A model without metrics was
        fitted on all rows of its key.
    runs
        How each run was trained.
    now
        How the run is trained that is compared with them: its holdout is what they are compared on.
    """
    how = [runs.get(run_id) for run_id in rows["run_id"]]
    held_out = np.array([each is not None and not each.refit for each in how], dtype=bool) & rows["metrics"].notna()
    by_time = np.array([each is not None and each.time_column is not None for each in how], dtype=bool)
    by_time &= now.time_column is not None
    by_hash = np.array(
        [each is not None and each.held is not None and each.held == now.held for each in how], dtype=bool
    )
    found = pd.Series(pd.NA, rows.index, dtype="Int64")
    found[by_time] = _micros(rows["train_to"])[by_time]
    before_holdout = held_out & by_time & rows["holdout_from"].notna()
    found[before_holdout] = _micros(rows["holdout_from"])[before_holdout] - 1
    found[held_out & by_hash] = _NOTHING
    return found


def _micros(times: pd.Series) -> pd.Series:
    at = pd.to_datetime(times, utc=True).dt.as_unit("us")
    return at.astype("int64").astype("Int64").where(at.notna())
