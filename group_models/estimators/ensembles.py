"""Parts of a salted key as one model: the mean of their predictions.

Averaging models of disjoint parts of the rows is the divide-and-conquer estimator of Zhang, Duchi and Wainwright
(2013, JMLR 14): as good as one model of all rows while each part has rows enough.
"""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.estimators.base import Predictor

Floats: TypeAlias = npt.NDArray[np.float64]
Read: TypeAlias = Callable[[bytes, str], Predictor]
"""(bytes, data file) -> the model in them."""

_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class EnsemblePredictor:
    """The models of a key's parts; it predicts the mean of what they do."""

    parts: tuple[Predictor, ...]
    data_file: ClassVar[str] = "ensemble.zip"

    @property
    def native(self) -> list[Any]:
        """The parts' scikit-learn estimators or xgboost Boosters."""
        return [part.native for part in self.parts]

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return the mean prediction of the parts, one per row; added up in the parts' order."""
        total = self.parts[0].predict(x)
        for part in self.parts[1:]:
            total = total + part.predict(x)
        return np.asarray(total / len(self.parts))

    def dump(self) -> bytes:
        """Return the model as bytes: the parts' data files in one archive."""
        return pack_parts([(part.dump(), part.data_file) for part in self.parts])

    @classmethod
    def parse(cls, data: bytes, read: Read) -> EnsemblePredictor:
        """Return the model that `dump` or `pack_parts` wrote.

        Raises
        ------
        ValueError
            The bytes are no archive of parts.
        """
        return cls(unpack_parts(data, read))


def unpack_parts(data: bytes, read: Read) -> tuple[Predictor, ...]:
    """Return the models of an archive that `pack_parts` wrote, in its order.

    Raises
    ------
    ValueError
        The bytes are no archive of parts.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            stored = [(archive.read(name), name.rpartition("/")[2]) for name in sorted(archive.namelist())]
    except zipfile.BadZipFile as e:
        raise ValueError(f"no archive of parts: {e}") from e
    if not stored:
        raise ValueError("an archive without parts")
    return tuple(read(part, data_file) for part, data_file in stored)


def pack_parts(parts: Sequence[tuple[bytes, str]]) -> bytes:
    """Return the data files of parts, given as bytes and name, as one archive: the same bytes for the same parts."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for place, (data, data_file) in enumerate(parts):
            archive.writestr(zipfile.ZipInfo(f"{place:05d}/{data_file}", _LONG_AGO), data)
    return packed.getvalue()
