"""What other models predict of the rows that a unit holds out: parents, the global model, the champion.

Such models travel to the unit as rows of their own. A parent is here the model that has not seen the holdout, never
the one that is served, which was fitted again on all rows: that one would know the answers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.artifacts import load_model
from group_models.comparing import ROWS, grouped_comparison
from group_models.estimators.base import Predictor
from group_models.estimators.classes import labels_of
from group_models.estimators.ensembles import EnsemblePredictor
from group_models.estimators.linear import LinearForm, LinearForms
from group_models.fitting.deaths import NOT_THE_FITS
from group_models.fitting.measures import comparable
from group_models.fitting.unit_rows import UnitRows
from group_models.labels import Labels
from group_models.spec import Metric

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Role: TypeAlias = Literal["parent", "champion"]

NAMES = ("parent", "global", "champion")
"""What a key is compared with, in the order of the columns of `UnitPredictions.values`."""

NO_REFERENCE = -1
"""Place of a reference that there is not."""

HEADER = ("role", "reference", "part", "seen_until_us", "format", "data_file", "sha256")
"""What is told of a model before its data, a line each: it travels as one column."""


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """One stored model that came with a unit.

    Attributes
    ----------
    reference
        Of a parent its number, which its keys name; of a champion the index of its key.
    part
        The part of a salted parent, or what else orders the models of one reference.
    seen_until_us
        Of a champion the newest moment that it was trained on; only rows after it are fair.
    """

    role: Role
    reference: int
    part: int
    seen_until_us: int
    format: int
    data_file: str
    sha256: str
    data: bytes = dataclasses.field(repr=False)

    def pack(self) -> bytes:
        """Return the row as one value: a line for each of `HEADER`, then the data."""
        return "".join(f"{getattr(self, name)}\n" for name in HEADER).encode() + self.data

    @classmethod
    def parse(cls, packed: bytes) -> ModelRow:
        """Return the row that is packed into one value."""
        *lines, data = packed.split(b"\n", len(HEADER))
        role, reference, part, seen, format_, data_file, sha256 = (line.decode() for line in lines)
        return cls(role, int(reference), int(part), int(seen), int(format_), data_file, sha256, data)  # type: ignore[arg-type]

    def load(self) -> Predictor:
        """Return the model ready to predict."""
        what = f"the {self.role}'s model"
        return load_model(
            self.data, format=self.format, data_file=self.data_file, sha256=self.sha256 or None, what=what
        ).predictor


@dataclasses.dataclass(frozen=True)
class UnitPredictions:
    """What the references predict: `values` has shape (names, rows of the unit), NaN where there is nothing."""

    values: Floats
    metric: Metric = "mae"

    @classmethod
    def none(cls, rows: int, metric: Metric = "mae") -> UnitPredictions:
        """Return that nothing is known of so many rows."""
        return cls(np.full((0, rows), np.nan), metric)

    def take(self, rows: Any) -> UnitPredictions:
        """Return the predictions of some rows."""
        return dataclasses.replace(self, values=self.values[:, rows])

    def compared(self, y: Floats, prediction: Floats, starts: Ints, weight: Floats | None = None) -> Columns:
        """Return what is stored of each key about its references, see `Columns`."""
        return Columns(
            {
                name: grouped_comparison(y, prediction, other, starts, self.metric, weight)
                for name, other in zip(NAMES, self.values, strict=False)
                if not np.isnan(other).all()
            },
            np.diff(np.append(starts, len(y))),
        )


@dataclasses.dataclass(frozen=True)
class Columns:
    """Per reference the numbers of many keys, as entries of `baseline_metrics`: `parent_mae, champion_rows, ...`."""

    found: Mapping[str, Mapping[str, Floats]]
    rows: Ints

    def of_key(self, place: int) -> dict[str, float]:
        """Return the entries of one key."""
        own = {
            name: {what: float(of_keys[place]) for what, of_keys in values.items()}
            for name, values in self.found.items()
        }
        return entries_of(own, int(self.rows[place]))


def entries_of(found: Mapping[str, Mapping[str, float]], rows: int) -> dict[str, float]:
    """Return what is known of a key's references as entries of `baseline_metrics`, of so many rows held out.

    A parent or the global model counts where it predicted all of these rows, a champion where some.
    """
    entries: dict[str, float] = {}
    for name, values in found.items():
        if name == "champion" and values[ROWS]:
            entries |= {f"{name}_{what}": value for what, value in values.items()}
        elif name != "champion" and values[ROWS] == rows:
            entries |= {f"{name}_{what}": value for what, value in values.items() if what != ROWS}
    return {name: value for name, value in entries.items() if np.isfinite(value)}


def links(parent: int, over_all: int) -> bytes:
    """Return which references are a key's parent and its global model, as one value to travel."""
    return json.dumps([parent, over_all]).encode()


def predict_held(
    unit: UnitRows, keys: Sequence[bytes | None], models: Sequence[bytes], metric: Metric, labels: Labels | None = None
) -> UnitPredictions:
    """Return what the references predict of the unit's held out rows; of classes the chance of each row's own label.

    Parameters
    ----------
    keys
        Per key of the unit, in its order, its `links`; None where it has none.
    models
        Packed `ModelRow`s.
    """
    values = np.full((len(NAMES), len(unit.y)), np.nan)
    rows = [ModelRow.parse(packed) for packed in models]
    owner = np.repeat(np.arange(len(unit.names)), np.diff(unit.offsets))
    held = unit.is_holdout & ~np.isnan(unit.y)
    asked = np.array([json.loads(each) if each else (NO_REFERENCE, NO_REFERENCE) for each in keys], dtype=np.int64)
    asked = asked.reshape(len(keys), 2)
    for reference, of_parent in _by_reference(rows, "parent").items():
        is_asked = (asked == reference).any(axis=1)
        places = np.flatnonzero(held & is_asked[owner])
        if len(places):
            prediction = _predicted(of_parent, unit, places, labels)
            for name in range(2):
                is_own = asked[owner[places], name] == reference
                values[name, places[is_own]] = prediction[is_own]
    _predict_champions(unit, _by_reference(rows, "champion"), held, values[NAMES.index("champion")], labels)
    return UnitPredictions(values, metric)


def _by_reference(rows: Sequence[ModelRow], role: Role) -> dict[int, list[ModelRow]]:
    found: dict[int, list[ModelRow]] = {}
    for row in sorted(rows, key=lambda row: (row.reference, row.part)):
        if row.role == role and row.data:
            found.setdefault(row.reference, []).append(row)
    return found


def _predicted(rows: Sequence[ModelRow], unit: UnitRows, places: Ints, labels: Labels | None) -> Floats:
    return predicted(lambda: ensemble_of(rows), unit.x(places), unit.y[places], labels)


def ensemble_of(rows: Sequence[ModelRow]) -> Predictor:
    """Return the models of one reference as one: the mean of a parent's parts."""
    return EnsemblePredictor(tuple(row.load() for row in rows))


def predicted(load: Callable[[], Predictor], x: pd.DataFrame, y: Floats, labels: Labels | None) -> Floats:
    """Return what a reference is compared by; NaN for all where its model fails: it is no comparison then."""
    try:
        model = load()
        prediction = comparable(np.asarray(model.predict(x), dtype=np.float64), y, labels, labels_of(model))
    except NOT_THE_FITS:
        raise
    except BaseException:  # noqa: BLE001 - a user's stored model: its keys are not compared with it
        return np.full(len(x), np.nan)
    return np.where(np.isfinite(prediction), prediction, np.nan)


def _predict_champions(
    unit: UnitRows,
    champions: Mapping[int, Sequence[ModelRow]],
    held: npt.NDArray[np.bool_],
    values: Floats,
    labels: Labels | None,
) -> None:
    """Predict each key's fair rows with the model that serves it now, in place; linear models all at once."""
    forms: list[tuple[LinearForm, Ints]] = []
    for place, index in enumerate(unit.indices):
        rows = champions.get(index)
        if rows is None:
            continue
        own = slice(int(unit.offsets[place]), int(unit.offsets[place + 1]))
        fair = np.flatnonzero(held[own] & (unit.time_us[own] > rows[0].seen_until_us)) + own.start
        form = _form(rows) if len(fair) else None
        if form is not None and form.shape.names == tuple(unit.features):
            forms.append((form, fair))
        elif len(fair):
            values[fair] = _predicted(rows, unit, fair, labels)
    for numeric, text in dict.fromkeys((form.shape.numeric, tuple(form.shape.text)) for form, _ in forms):
        alike = [each for each in forms if (each[0].shape.numeric, tuple(each[0].shape.text)) == (numeric, text)]
        places = np.concatenate([fair for _, fair in alike])
        owner = np.repeat(np.arange(len(alike)), [len(fair) for _, fair in alike])
        table = unit.table(numeric, text).take(places)
        prediction = LinearForms.of([form for form, _ in alike], table).predict(table, owner)
        values[places] = np.where(np.isfinite(prediction), prediction, np.nan)


def _form(rows: Sequence[ModelRow]) -> LinearForm | None:
    try:
        model = rows[0].load()
    except Exception:  # noqa: BLE001 - what cannot be read is no comparison
        return None
    return model if isinstance(model, LinearForm) else None
