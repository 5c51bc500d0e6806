"""What models and families that have another one within take over from it, and how such a model is written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from group_models.estimators.base import Family, Floats


def with_header(header: Mapping[str, Any], data: bytes) -> bytes:
    r"""Return a data file: what is told of the model within as a line of JSON, then the data file of that.

    Examples
    --------
    >>> with_header({"data_file": "model.pkl"}, b"...")
    b'{"data_file": "model.pkl"}\n...'
    """
    return json.dumps(header).encode() + b"\n" + data


def split_header(data: bytes) -> tuple[dict[str, Any], bytes]:
    r"""Return what `with_header` put together.

    Raises
    ------
    ValueError
        The first line is no JSON.

    Examples
    --------
    >>> split_header(b'{"data_file": "model.pkl"}\n...')
    ({'data_file': 'model.pkl'}, b'...')
    """
    header, _, within = data.partition(b"\n")
    return json.loads(header), within


@dataclasses.dataclass(frozen=True)
class WrappedFamily:
    """What a family that fits another one, `own`, to other rows or another target has of it."""

    own: Family

    @property
    def name(self) -> str:
        """The name of the family within."""
        return self.own.name

    @property
    def threads(self) -> int:
        """Threads of one fit."""
        return self.own.threads

    @property
    def takes_float32(self) -> bool:
        """Whether it computes in single precision."""
        return self.own.takes_float32

    @property
    def takes_infinity(self) -> bool:
        """Whether infinite values are left to the estimator."""
        return self.own.takes_infinity

    def load(self) -> None:
        """Import what a fit needs."""
        self.own.load()

    def predicted_seconds(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit, by rows."""
        return self.own.predicted_seconds(rows, columns)

    def predicted_model_bytes(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected bytes of one model, by rows."""
        return self.own.predicted_model_bytes(rows, columns)
