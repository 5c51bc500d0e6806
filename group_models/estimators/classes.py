"""Models of classes: what a key's own classifier says of the labels that it knows, as probabilities of all labels.

A key knows the labels of its own rows; the set of all keys has more. A classifier is fitted to its own labels only,
coded 0, 1, ... as xgboost wants them, and the model of the key puts its probabilities under the labels of the set, 0
under those that the key has never seen.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from group_models.estimators.base import Floats, PickledPredictor, Predictor
from group_models.estimators.ensembles import EnsemblePredictor, Read
from group_models.estimators.wrapping import split_header, with_header
from group_models.labels import Labels


@dataclasses.dataclass(frozen=True)
class ClassPredictor:
    """The model of a key's classes.

    Attributes
    ----------
    labels
        The labels of the set.
    codes
        Places in them of the labels that the key's rows have, ascending.
    own
        What tells those apart; None where every row gets `shares`.
    shares
        Probabilities of the key's labels where there is nothing to tell them apart.
    """

    labels: Labels
    codes: tuple[int, ...]
    own: Predictor | None = None
    shares: tuple[float, ...] = ()
    data_file: ClassVar[str] = "classes.bin"

    @property
    def native(self) -> Any:
        """The scikit-learn classifier or the xgboost Booster; None of a constant model."""
        return None if self.own is None else self.own.native

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return the probability of each label of the set, shape (rows, labels).

        Raises
        ------
        ValueError
            The classifier did not answer one probability per row and label.
        """
        found = np.zeros((len(x), len(self.labels.names)))
        if len(x):
            found[:, list(self.codes)] = self.shares if self.own is None else self._own_probabilities(self.own, x)
        return found

    def _own_probabilities(self, own: Predictor, x: pd.DataFrame) -> Floats:
        given = _probabilities(own, x)
        if given.shape != (len(x), len(self.codes)):
            said = f"{len(x)} rows of {len(self.codes)} labels got probabilities of shape {given.shape}"
            raise ValueError(f"{said}; one a row and label is needed")
        return given

    def dump(self) -> bytes:
        """Return the model as bytes: a line of JSON, then the data file of the key's classifier, if there is one."""
        header = {
            "labels": self.labels.to_json(), "codes": self.codes, "shares": self.shares,
            "data_file": None if self.own is None else self.own.data_file,
        }  # fmt: skip
        return with_header(header, b"" if self.own is None else self.own.dump())

    @classmethod
    def parse(cls, data: bytes, read: Read) -> ClassPredictor:
        """Return the model that `dump` wrote.

        Raises
        ------
        ValueError
            The bytes are no model of classes.
        """
        said, within = split_header(data)
        own = None if said["data_file"] is None else read(within, str(said["data_file"]))
        return cls(Labels.parse(said["labels"]), tuple(said["codes"]), own, tuple(said["shares"]))


def _probabilities(own: Predictor, x: pd.DataFrame) -> Floats:
    """Return the probabilities of a classifier that was fitted to labels 0, 1, ..., in this order."""
    if isinstance(own, PickledPredictor):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
            return np.asarray(own.native.predict_proba(own.given(x)), dtype=np.float64)
    found = own.predict(x)
    if found.ndim == 2:
        return found
    # Of two labels xgboost gives the probability of the second, in single precision; so does `XGBClassifier` the first.
    second = found.astype(np.float32)
    return np.column_stack([1 - second, second]).astype(np.float64)


def labels_of(predictor: Predictor) -> Labels | None:
    """Return the labels that the columns of a model's predictions stand for; None of one that predicts numbers."""
    if isinstance(predictor, EnsemblePredictor):
        return labels_of(predictor.parts[0])
    return predictor.labels if isinstance(predictor, ClassPredictor) else None
