"""Fit the keys of a unit that build on parents: to what their parent gets wrong of rows that it has not seen.

The parents' models come with the unit's rows. A parent is trained in parts, and a row is predicted by the parts that
it is in none of: a prediction by a model that has seen the row would be too good, and a child would learn nothing from
it (Breiman 1996, "Stacked regressions", Machine Learning 24).
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.artifacts import load_model
from group_models.estimators.base import Predictor, features_of, one_thread
from group_models.estimators.batched_children import child_family
from group_models.estimators.children import PARENT, REFITTED
from group_models.estimators.registry import make_family
from group_models.estimators.wrapping import split_header
from group_models.fitting.deaths import NOT_THE_FITS, Death, death_columns, raised_columns
from group_models.fitting.guards import Guard
from group_models.fitting.isolation import NoChildError, run_in_child
from group_models.fitting.outcomes import FitSettings, PoolSettings, identity, result_frame
from group_models.fitting.unit_rows import UnitRows
from group_models.fitting.units import fit_rows, predict_references
from group_models.keys import key_seed
from group_models.tables import WHOLE, utc_now

Floats = npt.NDArray[np.float64]
Outcomes = list[dict[str, Any]]

PARENT_IX, PARENT_PART, PARENT_MODEL = "parent_ix", "parent_part", "parent_model"
"""Columns of a pooled unit: of keys and models which parent it is, of rows the part of their parent that they are in,
and a packed model."""

ALONE = "without pooling: no parent of it has a model in parts by this spec"
"""Why a key of a pooled run is trained as it would be without pooling."""


@dataclasses.dataclass(frozen=True)
class PartModel:
    """The model of one part of a parent.

    Attributes
    ----------
    part, n_parts
        Which rows of the parent it was fitted on.
    is_measured, is_final
        Whether it has seen no row of the holdout, and whether it serves.
    is_newer
        Its holdout began after that of the present run: of that one's rows it may have seen some.
    """

    key_id: str
    run_id: str
    part: int
    n_parts: int
    is_measured: bool
    is_final: bool
    is_newer: bool
    predictor: Predictor

    @classmethod
    def parse(cls, packed: bytes) -> PartModel:
        """Return the model that is packed into one value: a line of JSON, then its data file.

        Raises
        ------
        ModelError
            The bytes are not those that were stored.
        """
        said, data = split_header(packed)
        how = {name: said.pop(name) for name in ("format", "data_file", "sha256")}
        what = f"part {said['part'] % said['n_parts']} of the parent {said['key_id']} of run {said['run_id']}"
        return cls(**said, predictor=load_model(data, **how, what=what))


@dataclasses.dataclass(frozen=True)
class ParentModel:
    """A parent as its children learn from it: the models of its parts."""

    parts: Sequence[PartModel]

    def columns(self, x: pd.DataFrame, part: npt.NDArray[np.int64], is_holdout: npt.NDArray[np.bool_]) -> Floats:
        """Return what it predicts for rows, shape (2, rows): the columns `PARENT` and `REFITTED`.

        Parameters
        ----------
        part
            Per row the part of the parent that it is in.
        """
        found = np.stack([np.asarray(each.predictor.predict(x), dtype=np.float64) for each in self.parts])
        own = np.array([each.part % each.n_parts for each in self.parts])
        sees = own[:, None] == part[None, :]
        is_measured, is_final = (
            np.array([getattr(each, name) for each in self.parts]) for name in ("is_measured", "is_final")
        )
        # None of the measured ones has seen the holdout: of its rows all of them predict, as all serve.
        if not any(each.is_newer for each in self.parts):
            is_blind = is_measured[:, None] & is_holdout[None, :]
        else:
            is_blind = np.zeros_like(sees)
        measured = _mean_where(found, is_measured[:, None] & (~sees | is_blind))
        return np.stack([measured, _mean_where(found, is_final[:, None] & ~sees)])


def _mean_where(values: Floats, flags: npt.NDArray[np.bool_]) -> Floats:
    """Return the mean of each column over the rows with the flag; NaN over none."""
    counts = flags.sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(flags, values, 0.0).sum(axis=0) / counts)


def fit_pooled_unit(
    frame: pd.DataFrame,
    references: pd.DataFrame,
    parents: pd.DataFrame,
    settings: FitSettings,
    models: Sequence[bytes] = (),
) -> pd.DataFrame:
    """Fit every key of a unit, those that have a parent to what it gets wrong; the others as without pooling.

    Parameters
    ----------
    frame, references, models
        As for `units.fit_unit`; of each row also `parent_part int`, of each key `parent_ix int`, null without a parent.
    parents
        One row per model of a part of a parent: `parent_ix int, parent_model bytes` (see `PartModel.parse`).

    Returns
    -------
    As `units.fit_unit`. The `params` of a child name its parent, `parent_key_id` and `parent_run_id`.
    """
    if settings.pooling is None:
        raise ValueError("the settings are of a run without pooling; use fit_unit")
    has_parent = references[PARENT_IX].notna().to_numpy()
    alone, children = references[~has_parent], references[has_parent]
    outcomes: dict[int, Outcomes] = {}
    with warnings.catch_warnings(), Guard(settings.limits) as guard:
        warnings.simplefilter("ignore")
        if len(alone):
            outcomes |= _fit_alone(frame, alone, models, settings, guard)
        if len(children):
            outcomes |= _fit_children(frame, children, parents, models, settings, guard)
    return result_frame([outcome for index in sorted(outcomes) for outcome in outcomes[index]])


def _indexes(references: pd.DataFrame) -> list[int]:
    """Return the key indexes in the order of a unit's keys."""
    return sorted(references["key_index"].astype(int).tolist())


def _fit_alone(
    frame: pd.DataFrame, references: pd.DataFrame, models: Sequence[bytes], settings: FitSettings, guard: Guard
) -> dict[int, Outcomes]:
    family = make_family(settings.estimator, features_of(settings.features))
    with one_thread(family):
        unit = UnitRows.of(frame, references, settings.features)
        predicted = predict_references(unit, references, models, settings, guard)
        found = fit_rows(unit, [family], settings, guard, predicted)
    for outcome in (outcome for of_key in found for outcome in of_key):
        outcome["reason"] = "; ".join(said for said in (ALONE, outcome.get("reason")) if said)
    return dict(zip(_indexes(references), found, strict=True))


def _fit_children(
    frame: pd.DataFrame,
    references: pd.DataFrame,
    parents: pd.DataFrame,
    models: Sequence[bytes],
    settings: FitSettings,
    guard: Guard,
) -> dict[int, Outcomes]:
    pooling: PoolSettings = settings.pooling  # type: ignore[assignment]
    how = {"is_residual": pooling.is_residual}
    family = child_family(pooling.estimator, features_of(settings.features), pooling.half_rows, **how)
    keys = references.sort_values("key_index")
    clock, cpu = time.perf_counter(), time.process_time()
    with one_thread(family):
        above = _predict_parents(_rows_with_part(frame, keys, settings), keys, parents, settings, guard)
        if isinstance(above, dict):
            return _all_failed(keys, family.name, settings, above)
        took = {"fit_seconds": time.perf_counter() - clock, "cpu_seconds": time.process_time() - cpu}
        # What they are compared with reads the features alone.
        rows = UnitRows.of(frame, keys, settings.features)
        predicted = predict_references(rows, keys, models, settings, guard)
        unit = _beside(rows, above)
        augmented = dataclasses.replace(settings, features=unit.features, template=pooling.template)
        found = fit_rows(unit, [family], augmented, guard, predicted)
    _tell_parents(found, keys, parents, np.diff(unit.offsets) / max(len(unit.y), 1), took)
    return dict(zip(_indexes(references), found, strict=True))


def _tell_parents(
    found: Sequence[Outcomes], keys: pd.DataFrame, parents: pd.DataFrame, share: Floats, took: Mapping[str, float]
) -> None:
    """Add to outcomes which parent each key builds on, and its share of the time that predicting by parents took."""
    headers = {
        int(ix): split_header(packed)[0] for ix, packed in zip(parents[PARENT_IX], parents[PARENT_MODEL], strict=True)
    }
    for of_key, ix, of_rows in zip(found, keys[PARENT_IX].astype(int), share.tolist(), strict=True):
        named = {f"parent_{name}": headers[ix][name] for name in ("key_id", "run_id")}
        for outcome in of_key:
            outcome.update({name: (outcome.get(name) or 0.0) + of_rows * seconds for name, seconds in took.items()})
            if "params" in outcome:
                outcome["params"] = {**outcome["params"], **named}


def _rows_with_part(frame: pd.DataFrame, keys: pd.DataFrame, settings: FitSettings) -> UnitRows:
    """Return the rows with the part of its parent that each is in as one more feature, ordered as the rows are."""
    part = f"f{len(settings.features)}"
    return UnitRows.of(frame.rename(columns={PARENT_PART: part}), keys, {**settings.features, PARENT: "numeric"})


def _predict_parents(
    rows: UnitRows, keys: pd.DataFrame, parents: pd.DataFrame, settings: FitSettings, guard: Guard
) -> Floats | dict[str, Any]:
    """Return what parents predict, shape (2, rows): the columns `PARENT` and `REFITTED`; or of an outcome why not."""

    def predict() -> Floats:
        return _parent_columns(rows, keys, parents, settings)

    try:
        done = run_in_child(predict, settings.limits) if settings.is_isolated else guard.run(predict)
    except (NoChildError, *NOT_THE_FITS):
        raise
    except BaseException as error:  # noqa: BLE001 - users' code in the parents' models: keys get rows
        return raised_columns(error, "prepare", settings.limits)
    return death_columns(done) if isinstance(done, Death) else done


def _parent_columns(rows: UnitRows, keys: pd.DataFrame, parents: pd.DataFrame, settings: FitSettings) -> Floats:
    of_rows = np.repeat(keys[PARENT_IX].to_numpy(np.int64), np.diff(rows.offsets))
    x = rows.x(np.arange(len(rows.y)))[list(settings.features)]
    columns = np.full((2, len(of_rows)), np.nan)
    for ix in np.unique(of_rows).tolist():
        own = np.flatnonzero(of_rows == ix)
        parent = _parsed(parents.loc[parents[PARENT_IX] == ix, PARENT_MODEL].tolist())
        in_part = rows.numbers[-1][own].astype(np.int64)
        columns[:, own] = parent.columns(x.iloc[own].reset_index(drop=True), in_part, rows.is_holdout[own])
    columns[0] = np.where(_is_split(rows, settings), columns[0], columns[1])
    return columns


def _beside(rows: UnitRows, above: Floats) -> UnitRows:
    """Return rows with the parents' predictions after their features."""
    features = {**rows.features, PARENT: "numeric", REFITTED: "numeric"}
    return dataclasses.replace(rows, features=features, numbers=np.vstack([rows.numbers, above]))


def _parsed(packed: Sequence[bytes]) -> ParentModel:
    return ParentModel(sorted(map(PartModel.parse, packed), key=lambda each: each.part))


def _is_split(rows: UnitRows, settings: FitSettings) -> npt.NDArray[np.bool_]:
    """Return the rows of keys that are measured: the others' one fit is the one that serves."""
    counts = np.diff(rows.offsets)
    held = np.bincount(np.repeat(np.arange(len(counts)), counts), rows.is_holdout, len(counts))
    is_split = (held > 0) & (held < counts) & (settings.holdout_by != "none")
    return np.asarray(np.repeat(is_split, counts), dtype=np.bool_)


def _all_failed(
    keys: pd.DataFrame, estimator: str, settings: FitSettings, columns: Mapping[str, Any]
) -> dict[int, Outcomes]:
    """Return the outcomes of keys whose parents cannot predict."""
    now = utc_now()
    said = {**columns, "reason": f"{columns['reason']} (predicting by its parent)", "started_at": now}
    found = {}
    for row in _records(keys):
        seed = key_seed(settings.seed, row["key_id"])
        who = identity(row["key_id"], WHOLE, int(row["unit"]), seed, estimator, settings)
        found[int(row["key_index"])] = [{**who, **said, "finished_at": now}]
    return found


def _records(references: pd.DataFrame) -> list[Mapping[Any, Any]]:
    return list(references[["key_index", "key_id", "unit"]].to_dict("records"))
