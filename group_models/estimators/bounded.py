"""A model with the intervals around its predictions: what is exported and loaded of a set with `intervals`.

The store has the model alone, and the manifest its half widths: scoring adds the bounds itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from group_models.conformal import bound_names
from group_models.estimators.base import Floats, Predictor
from group_models.estimators.ensembles import Read
from group_models.estimators.wrapping import split_header, with_header


@dataclasses.dataclass(frozen=True)
class BoundedPredictor:
    """A model and, by level, the half width of its interval; None where a key has too few rows for one."""

    model: Predictor
    half_widths: Mapping[str, float | None]
    data_file: ClassVar[str] = "bounded.bin"

    @property
    def native(self) -> Any:
        """What is native of the model."""
        return self.model.native

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row."""
        return self.model.predict(x)

    def with_bounds(self, prediction: Floats) -> pd.DataFrame:
        """Return predictions with the columns of their bounds."""
        return pd.DataFrame({"prediction": prediction, **bounds(prediction, self.half_widths)})

    def dump(self) -> bytes:
        """Return the model as bytes: a line of JSON, then its own data file."""
        return pack_bounded(self.model.dump(), self.model.data_file, self.half_widths)

    @classmethod
    def parse(cls, data: bytes, read: Read) -> BoundedPredictor:
        """Return the model that `dump` or `pack_bounded` wrote.

        Raises
        ------
        ValueError
            The bytes are no such model.
        """
        said, own = split_header(data)
        return cls(read(own, str(said["data_file"])), said["half_widths"])


def pack_bounded(data: bytes, data_file: str, half_widths: Mapping[str, float | None]) -> bytes:
    """Return a model's data file with its half widths as one data file."""
    return with_header({"half_widths": dict(half_widths), "data_file": data_file}, data)


def bounds(prediction: Floats, half_widths: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the bounds of each level around predictions, from a half width for all rows, one per row, or None."""
    found: dict[str, Floats] = {}
    for level, width in half_widths.items():
        beside = np.asarray(np.nan if width is None else width, dtype=np.float64)
        lower, upper = bound_names(level)
        found |= {lower: prediction - beside, upper: prediction + beside}
    return found
