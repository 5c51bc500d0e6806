"""What became of a scored row, and predictions with the status of each."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.artifacts import StoredModel
from group_models.labels import Labels, aligned

Floats: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.int32]
ScoreStatus: TypeAlias = Literal[
    "scored", "parent", "unseen_key", "no_model", "null_key", "bad_input", "model_failed", "too_old"
]

SCORE_STATUSES: tuple[ScoreStatus, ...] = (
    "scored", "parent", "unseen_key", "no_model", "null_key", "bad_input", "model_failed", "too_old",
)  # fmt: skip
"""What became of a scored row; workers send the place in this tuple."""

SCORED, BAD_INPUT, MODEL_FAILED = (SCORE_STATUSES.index(s) for s in ("scored", "bad_input", "model_failed"))

NO_MODEL = -1
"""`model_ix` of rows without a model, and `parent_ix` of models that build on none."""


def no_predictions(rows: int, labels: Labels | None = None) -> Floats:
    """Return NaN for so many rows: numbers, or where there are labels a row of probabilities each."""
    return np.full(rows if labels is None else (rows, len(labels.names)), np.nan)


def predict_rows(model: StoredModel | None, x: pd.DataFrame, labels: Labels | None = None) -> tuple[Floats, Codes]:
    """Return prediction and status code per row; a row that its model refuses is `bad_input`, by itself.

    Where there are labels, a prediction is the probabilities of these.
    """
    nothing = no_predictions(len(x), labels)
    try:
        prediction = None if model is None else _predicted(model, x, labels)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code: its rows get a status
        prediction = None
    if prediction is None or prediction.shape != nothing.shape:
        return nothing, np.full(len(x), MODEL_FAILED, dtype=np.int32)
    return judged(prediction)


def _predicted(model: StoredModel, x: pd.DataFrame, labels: Labels | None) -> Floats:
    found = np.asarray(model.predict(x), dtype=np.float64)
    own = None if labels is None else model.labels
    return found if labels is None or own is None else aligned(found, own, labels)


def judged(prediction: Floats) -> tuple[Floats, Codes]:
    """Return predictions with NaN for those that are not finite, and the status code of each."""
    is_finite = np.isfinite(prediction)
    if prediction.ndim == 1:
        kept = np.where(is_finite, prediction, np.nan)
    else:
        is_finite = np.asarray(is_finite.all(axis=1))
        kept = np.where(is_finite[:, None], prediction, np.nan)
    return kept, np.where(is_finite, SCORED, BAD_INPUT).astype(np.int32)
