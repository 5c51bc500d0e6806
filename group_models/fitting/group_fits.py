"""Fit the keys of a unit at once, where their family can: split, fit, measure, refit and store, as arrays.

Only what goes well ends here. A key with anything odd (infinite values, equations that do not hold, predictions that
are not finite) is left to `fitting`, which fits it alone and says what is wrong with it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from group_models.estimators.base import Fitted
from group_models.estimators.batched import BatchedFamily, FittedGroups, medians
from group_models.estimators.linear import Ints, Table
from group_models.estimators.weights import taken, weighted_medians
from group_models.evaluation import grouped_metrics, why_no_metrics
from group_models.fitting.intervals import GroupIntervals
from group_models.fitting.measures import TRAIN_MEDIAN
from group_models.fitting.outcomes import MEASURED, FitSettings, identity, stored_columns
from group_models.fitting.reasons import GroupImportances, GroupReasons, GroupRows, Seen, importance_columns
from group_models.fitting.references import Columns, UnitPredictions
from group_models.fitting.unit_rows import UnitRows
from group_models.keys import key_seed
from group_models.tables import WHOLE, utc_now

Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of many keys, those of each together."""

    table: Table
    y: Floats
    is_holdout: Flags
    is_gap: Flags
    offsets: Ints
    weight: Floats | None
    references: UnitPredictions
    row_hash: Ints

    @property
    def counts(self) -> Ints:
        """Rows per key."""
        return np.diff(self.offsets)

    def where(self, flags: Flags) -> _Rows:
        """Return the rows with the flag, of all keys."""
        if flags.all():
            return self
        return self._take(flags, np.add.reduceat(flags, self.offsets[:-1], dtype=np.int64))

    def of_keys(self, flags: Flags) -> _Rows:
        """Return the rows of the keys with the flag, and no others' keys."""
        if flags.all():
            return self
        return self._take(np.repeat(flags, self.counts), self.counts[flags])

    def _take(self, rows: Flags, counts: Ints) -> _Rows:
        offsets = np.concatenate([[0], np.cumsum(counts)])
        weight, references = taken(self.weight, rows), self.references.take(rows)
        held, gap, row_hash = self.is_holdout[rows], self.is_gap[rows], self.row_hash[rows]
        return _Rows(self.table.take(rows), self.y[rows], held, gap, offsets, weight, references, row_hash)

    def fitted_by(self, family: BatchedFamily, *, is_refit: bool = False) -> FittedGroups:
        """Return the models of the keys, such as are measured or, of a refit, such as are stored."""
        weights = {} if self.weight is None else {"weight": self.weight}
        fit = family.refit_groups if is_refit else family.fit_groups
        return fit(self.table, self.y, self.offsets, **weights)

    def plain(self) -> GroupRows:
        """Return the rows as what is told of models takes them."""
        return GroupRows(self.table, self.y, self.offsets, self.weight)

    def medians(self) -> Floats:
        """Return the median target of each key."""
        if self.weight is None:
            return np.ravel(medians(self.y[None, :], self.offsets))
        return weighted_medians(self.y, self.weight, self.offsets)


def fit_groups(
    unit: UnitRows, family: BatchedFamily, settings: FitSettings, references: UnitPredictions
) -> dict[int, list[dict[str, Any]]]:
    """Return the outcomes of the keys that went well, by their place in the unit."""
    started, clock, cpu = utc_now(), time.perf_counter(), time.process_time()
    table = unit.table(family.shape.numeric, tuple(family.shape.text))
    is_able = _able(unit, family)
    places = np.flatnonzero(is_able)
    if not len(places):
        return {}
    is_gap = settings.is_in_gap(unit.time_us)
    beside = unit.weight, references, unit.row_hash
    rows = _Rows(table, unit.y, unit.is_holdout, is_gap, unit.offsets, *beside).of_keys(is_able)
    done = _Done.of(rows, family, settings)
    share = rows.counts / len(rows.y)
    seconds, cpu_seconds = share * (time.perf_counter() - clock), share * (time.process_time() - cpu)
    outcomes = {}
    for own, place in enumerate(places.tolist()):
        if not done.holds[own]:
            continue
        key_id, key, number, _, _ = unit.names[place]
        seed = key_seed(settings.seed, key_id)
        shared = {
            **identity(key_id, WHOLE, number, seed, family.name, settings),
            "fit_seconds": float(seconds[own]),
            "cpu_seconds": float(cpu_seconds[own]),
            "started_at": started,
            "finished_at": utc_now(),
        }
        outcome = done.outcome(own, settings)
        final = done.fitted(own, seed)
        if settings.importance == "permutation":
            outcome |= _permutation(unit, place, done, own, seed, final, settings)
        stored = stored_columns(final, key_id, key, settings)
        outcomes[place] = [{**shared, **outcome, **stored}]
        if settings.keeps_measured and (first := done.measured_fit(own, seed)) is not None:
            median = {"holdout_rows": outcome["holdout_rows"], "baseline_metrics": {TRAIN_MEDIAN: done.median(own)}}
            kept = stored_columns(first, key_id, key, settings)
            outcomes[place].append({**shared, **kept, **median, "part": MEASURED})
    return outcomes


def _permutation(
    unit: UnitRows, place: int, done: _Done, own: int, seed: int, final: Fitted, settings: FitSettings
) -> dict[str, Any]:
    """Return the permutation importance of one key, with the model that has not seen its holdout."""
    key, first = unit.key(place), done.measured_fit(own, seed)
    held = None if first is None else np.flatnonzero(key.is_holdout)
    seen = Seen(key.x, key.y, key.weight, slice(0, len(key.y)), held)
    return importance_columns(final, first or final, seen, settings, seed)


def _able(unit: UnitRows, family: BatchedFamily) -> Flags:
    """Return which keys can be fitted with others: whole ones, with rows, of finite values."""
    counts = np.diff(unit.offsets)
    is_able: Flags = (counts > 0) & np.array([part == WHOLE for _, _, _, part, _ in unit.names], dtype=bool)
    if not family.takes_infinity and not np.isfinite(unit.numbers.sum()):
        owner = np.repeat(np.arange(len(counts)), counts)
        is_able[owner[np.isinf(unit.numbers).any(axis=0)]] = False
    return is_able


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Metrics of the keys that have a holdout and rows beside it.

    Attributes
    ----------
    flags
        Which keys these are.
    place
        Per key its place among them.
    is_finite
        Of each of them, whether all predictions are.
    """

    flags: Flags
    place: Ints
    is_finite: Flags
    metrics: Mapping[str, Floats]
    baseline: Mapping[str, Floats]
    median: Floats
    compared: Columns
    intervals: GroupIntervals | None

    @classmethod
    def of(cls, fitted: FittedGroups, train: _Rows, holdout: _Rows, levels: Sequence[float]) -> _Measured:
        """Measure what was fitted to the training rows on the held ones; keys without these have none there."""
        flags = holdout.counts > 0
        place = np.cumsum(flags) - 1
        if not flags.any():
            none = Columns({}, np.zeros(0, dtype=np.int64))
            return cls(flags, place, flags[:0], {}, {}, np.zeros(0), none, None)
        starts = holdout.offsets[:-1][flags]
        prediction = fitted.predict(holdout.table, holdout.offsets)
        known = train.of_keys(flags)
        median = known.medians()
        return cls(
            flags,
            place,
            np.logical_and.reduceat(np.isfinite(prediction), starts),
            grouped_metrics(holdout.y, prediction, starts, holdout.weight),
            grouped_metrics(holdout.y, np.repeat(median, holdout.counts[flags]), starts, holdout.weight),
            median,
            holdout.references.compared(holdout.y, prediction, starts, holdout.weight),
            GroupIntervals.of(holdout.y, prediction, holdout.row_hash, holdout.counts[flags], levels),
        )

    def columns(self, own: int) -> dict[str, Any]:
        """Return metrics and baseline of one key, if it has them."""
        if not self.flags[own]:
            return {}
        place = self.place[own]
        found = {"metrics": self.metrics, "baseline_metrics": self.baseline}
        columns = {name: {m: float(values[place]) for m, values in of.items()} for name, of in found.items()}
        columns["baseline_metrics"] |= self.compared.of_key(int(place))
        columns |= {} if self.intervals is None else self.intervals.columns(int(place))
        return columns


@dataclasses.dataclass(frozen=True)
class _Done:
    """What came of many keys: the models that did not see the holdout, and those of all rows where there are such."""

    rows: _Rows
    held: Ints
    gap: Ints
    holds: Flags
    first: FittedGroups
    measured: _Measured
    again: FittedGroups | None
    reasons: GroupReasons
    importance: GroupImportances | None
    importance_again: GroupImportances | None

    @classmethod
    def of(cls, rows: _Rows, family: BatchedFamily, settings: FitSettings) -> _Done:
        """Fit, measure and refit."""
        held, gap = (np.add.reduceat(f, rows.offsets[:-1], dtype=np.int64) for f in (rows.is_holdout, rows.is_gap))
        is_split = (held > 0) & (held + gap < rows.counts) & (settings.holdout_by != "none")
        of_split = np.repeat(is_split, rows.counts)
        is_held = rows.is_holdout & of_split
        train = rows.where(~(is_held | (rows.is_gap & of_split)))
        first = train.fitted_by(family)
        measured = _Measured.of(first, train, rows.where(is_held), settings.intervals)
        holds = first.holds.copy()
        holds[is_split] &= measured.is_finite
        again, told_again, told = None, None, None
        if settings.refit and is_split.any():
            of_keys = rows.of_keys(is_split)
            again = of_keys.fitted_by(family, is_refit=True)
            holds[is_split] &= again.holds
            told_again = GroupImportances.of(again, of_keys.plain(), settings)
        if again is None or not is_split.all():
            told = GroupImportances.of(first, train.plain(), settings)
        split = is_split, train.of_keys(is_split).plain(), held[is_split]
        maps = {"metrics": measured.metrics, "baseline_metrics": measured.baseline}
        reasons = GroupReasons.of(first, train.plain(), split, measured.median, maps, settings.metric)
        return cls(rows, held, gap, holds, first, measured, again, reasons, told, told_again)

    def fitted(self, own: int, seed: int) -> Fitted:
        """Return the model of one key that is stored."""
        if self.again is None or not self.measured.flags[own]:
            return self.first.fitted(own, seed=seed)
        return self.again.fitted(int(self.measured.place[own]), seed=seed)

    def measured_fit(self, own: int, seed: int) -> Fitted | None:
        """Return the model of one key that has not seen its holdout, None where it has none."""
        return self.first.fitted(own, seed=seed) if self.measured.flags[own] else None

    def median(self, own: int) -> float:
        """Return the median target of the rows that this model was fitted on."""
        return float(self.measured.median[self.measured.place[own]])

    def outcome(self, own: int, settings: FitSettings) -> dict[str, Any]:
        """Return what the split of one key says of it."""
        held, rows, gap = int(self.held[own]), int(self.rows.counts[own]), int(self.gap[own])
        reason = None if settings.holdout_by == "none" else why_no_metrics(held, rows, gap)
        columns = {**self.measured.columns(own), **self.reasons.columns(own), **self._importance(own)}
        return {"holdout_rows": held, "reason": reason, **columns}

    def _importance(self, own: int) -> dict[str, Any]:
        """Return the importance of the features in the model of one key that is stored."""
        is_again = self.again is not None and bool(self.measured.flags[own])
        told, place = (self.importance_again, int(self.measured.place[own])) if is_again else (self.importance, own)
        return {} if told is None else told.columns(place)
