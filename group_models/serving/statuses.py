"""What became of a scored row, and predictions with the status of each."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.artifacts import StoredModel

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


def predict_rows(model: StoredModel | None, x: pd.DataFrame) -> tuple[Floats, Codes]:
    """Return prediction and status code per row; a row that its model refuses is `bad_input`, by itself."""
    try:
        prediction = None if model is None else np.asarray(model.predict(x), dtype=np.float64)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code: its rows get a status
        prediction = None
    if prediction is None or prediction.shape != (len(x),):
        return np.full(len(x), np.nan), np.full(len(x), MODEL_FAILED, dtype=np.int32)
    return judged(prediction)


def judged(prediction: Floats) -> tuple[Floats, Codes]:
    """Return predictions with NaN for those that are not finite, and the status code of each."""
    is_finite = np.isfinite(prediction)
    return np.where(is_finite, prediction, np.nan), np.where(is_finite, SCORED, BAD_INPUT).astype(np.int32)
