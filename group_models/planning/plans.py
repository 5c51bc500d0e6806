"""A plan as a value: what a run does with each key, and where; to print, to compare, to test."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from group_models.keys import show_key
from group_models.levels import level_width
from group_models.planning.packing import makespan, part_rows
from group_models.planning.skew import Skew
from group_models.planning.windows import LEFT_OUT, NO_BOUNDS, Bounds, left_out_text
from group_models.tables import PLAN, WHOLE, micros
from group_models.texts import counts_text, facts_html

FITTED = ("whole", "sampled", "salted", "distributed")
"""Decisions that lead to a fit; every other decision is the key's status."""

_MOMENTS = ("holdout_from", "rows_after", "rows_until")
"""Columns of the plan table that are the same for all keys of a run."""


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """What a run does with each key, and where; no data in it.

    Attributes
    ----------
    keys
        One row per key, ordered by key id: the columns of the plan table that differ from key to key.
    slots
        Tasks that run at the same time.
    holdout
        How the holdout is chosen, in words.
    holdout_from
        First moment of the holdout, where it is by time.
    bounds
        The moments between which rows are trained on.
    source_stats
        What tells a half-loaded source; empty for a plan that was read back, unless its run has kept it.
    notes
        Sentences for people on what this plan does.
    skew
        How uneven it is; None of a plan that was read back.
    own_level
        The keys' own level; rows of other levels are parents. None where there are no parents.
    """

    keys: pa.Table
    slots: int
    holdout: str = ""
    holdout_from: dt.datetime | None = None
    bounds: Bounds = NO_BOUNDS
    source_stats: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skew: Skew | None = None
    own_level: str | None = None

    @classmethod
    def of_rows(cls, rows: pa.Table, *, slots: int, own_level: str | None = None) -> Self:
        """Return the plan that rows of the plan table hold, those of one run."""
        names = [name for name in PLAN.names if name not in ("model_set", "run_id", *_MOMENTS)]
        holdout_from, after, until = (_first(rows[name]) for name in _MOMENTS)
        bounds = Bounds(*(None if at is None else micros(at) for at in (after, until)))
        return cls(rows.select(names), slots, holdout_from=holdout_from, bounds=bounds, own_level=own_level)

    def rows(self, model_set: str, run_id: str) -> pa.Table:
        """Return the plan as rows of the plan table."""
        moments = (self.holdout_from, self.bounds.after, self.bounds.until)
        shared = {"model_set": model_set, "run_id": run_id, **dict(zip(_MOMENTS, moments, strict=True))}
        columns = {name: self.keys[name] for name in self.keys.column_names}
        for name, value in shared.items():
            columns[name] = pa.array([value] * self.keys.num_rows, PLAN.arrow_schema.field(name).type)
        return PLAN.conform(pa.table(columns))

    @property
    def is_fitted(self) -> npt.NDArray[np.bool_]:
        """Which keys are fitted."""
        return np.isin(self.column("decision").astype(str), FITTED)

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """Return one column as a numpy array."""
        return np.asarray(self.keys.column(name).to_numpy())

    def own(self) -> Self:
        """Return the plan of the keys alone, without their parents."""
        return self if self.own_level is None else self.at(self.own_level)

    def at(self, level: str) -> Self:
        """Return the plan of one level alone."""
        return dataclasses.replace(self, keys=self.keys.filter(pc.equal(self.keys["level"], level)))

    def levels(self) -> dict[str, tuple[str, ...]]:
        """Return the levels of which keys are fitted, in the order of their waves, and the columns of each."""
        fitted = self.keys.filter(pa.array(self.is_fitted))
        first = fitted.group_by("level").aggregate([("wave", "min")]).sort_by("wave_min")["level"].to_pylist()
        return {level: tuple(dict(fitted["key"][pc.index(fitted["level"], level).as_py()].as_py())) for level in first}

    def decisions(self) -> dict[str, int]:
        """Return how many keys have each decision, most first."""
        counts = pc.value_counts(self.keys.column("decision").combine_chunks()).to_pylist()
        return {c["values"]: c["counts"] for c in sorted(counts, key=lambda c: (-c["counts"], c["values"]))}

    def parts(self) -> pa.Table:
        """Return one row per part that is fitted, `WHOLE` keys included: what the keys' units do.

        Columns `key_id, part, unit, wave, is_thinned, (override,) usable_rows, bytes, predicted_seconds,
        predicted_model_bytes`; of a salted key, rows, bytes and seconds are those of the mean part.
        """
        fitted = self.keys.filter(pa.array(self.is_fitted))
        n_parts = fitted["n_parts"].to_numpy().astype(np.int64)
        owner, place = part_rows(n_parts)
        columns = {name: fitted[name].take(pa.array(owner)) for name in ("key_id", "wave")}
        columns["part"] = pa.array(np.where(n_parts[owner] > 1, place, WHOLE), pa.int32())
        columns["unit"] = pa.array(fitted["unit"].to_numpy()[owner] + place, pa.int32())
        if "override" in fitted.column_names:
            columns["override"] = fitted["override"].take(pa.array(owner))
        is_sampled = fitted["sample_share"].is_valid().take(pa.array(owner))
        columns["is_thinned"] = pc.and_(pc.greater_equal(columns["part"], 0), is_sampled)
        for name in ("usable_rows", "bytes", "predicted_seconds", "predicted_model_bytes"):
            columns[name] = pa.array((fitted[name].to_numpy() / n_parts)[owner])
        return pa.table(columns)

    def units(self) -> pa.Table:
        """Return one row per unit, in the order they run: `unit, wave, keys, rows, bytes, predicted_seconds`."""
        sums = (
            self.parts()
            .group_by(["unit", "wave"])
            .aggregate([("key_id", "count"), ("usable_rows", "sum"), ("bytes", "sum"), ("predicted_seconds", "sum")])
        )
        names = ["unit", "wave", "keys", "rows", "bytes", "predicted_seconds"]
        return sums.rename_columns(names).sort_by("unit")

    @property
    def waves(self) -> int:
        """Number of waves up to the last one that trains units."""
        last = pc.max(self.keys.column("wave")).as_py()
        return 0 if last is None else last + 1

    def units_of_wave(self, wave: int) -> list[int]:
        """Return the units of one wave, largest first."""
        parts = self.parts()
        of_wave = parts.filter(pc.equal(parts["wave"], wave))
        return sorted(pc.unique(of_wave["unit"]).to_pylist())

    @property
    def has_salted(self) -> bool:
        """Whether parts become ensembles, in one more wave after the others."""
        return bool((self.column("decision") == "salted").any())

    def __repr__(self) -> str:
        """Return the plan in one line."""
        summary = summarise(self)
        return (
            f"Plan({summary.keys:,} keys: {counts_text(summary.decisions)}; {summary.units} units in {summary.waves} "
            f"wave(s) on {summary.slots} slot(s); about {summary.predicted_seconds:,.1f} s of fits)"
        )

    def _repr_html_(self) -> str:
        return facts_html("Plan", summarise(self).facts())


@dataclasses.dataclass(frozen=True)
class Summary:
    """A plan in numbers; keys and rows are without those of parents.

    Attributes
    ----------
    decisions
        Keys by decision.
    parents
        By level, from specific to general, its parents by decision.
    largest_key, largest_share
        The fitted key with most usable rows, and its share of all usable rows.
    unit_skew
        Predicted seconds of the largest unit over the mean of all units.
    predicted_seconds, ideal_seconds
        Wall seconds of all units on the slots in the planned order, and if they could be split at will.
    """

    keys: int
    rows: int
    usable_rows: int
    decisions: dict[str, int]
    units: int
    waves: int
    slots: int
    holdout: str
    largest_key: str | None
    largest_rows: int
    largest_share: float
    largest_unit_rows: int
    unit_skew: float
    predicted_seconds: float
    ideal_seconds: float
    skew: Skew | None = None
    parents: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    bounds: str = ""
    left_out: str = ""

    def facts(self) -> dict[str, str]:
        """Return the plan as fact and text."""
        largest = "none"
        if self.largest_key is not None:
            largest = f"{self.largest_key}: {self.largest_rows:,} rows, {self.largest_share:.1%} of all"
        return {
            "keys": f"{self.keys:,} ({counts_text(self.decisions)})",
            **({"parents": levels_text(self.parents)} if self.parents else {}),
            "rows": f"{self.rows:,}, {self.usable_rows:,} of them {self._usable()}",
            **({"window": f"rows {self.bounds}"} if self.bounds else {}),
            "units": f"{self.units:,} in {self.waves} wave(s) on {self.slots} slot(s)"
            if self.units
            else "none to train",
            "largest key": largest,
            "holdout": self.holdout,
            **(self._unit_facts() if self.units else {}),
            **(self.skew.facts() if self.skew else {}),
        }

    def _usable(self) -> str:
        return f"usable; left out: {self.left_out}" if self.left_out else "with a target"

    def _unit_facts(self) -> dict[str, str]:
        return {
            "largest unit": f"{self.unit_skew:.2f} times the mean unit, {self.largest_unit_rows:,} rows",
            "predicted fit time": f"{self.predicted_seconds:,.1f} s, ideally {self.ideal_seconds:,.1f} s",
        }


def levels_text(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return counts by level as text.

    Examples
    --------
    >>> levels_text({"carrier": {"whole": 11, "too_small": 2}, "global": {"salted": 1}})
    'carrier 13 (11 whole, 2 too_small); global 1 (1 salted)'
    """
    return "; ".join(f"{name} {sum(each.values()):,} ({counts_text(each)})" for name, each in counts.items())


def summarise(plan: Plan) -> Summary:
    """Return a plan in numbers."""
    own, units = plan.own(), plan.units()
    seconds = units["predicted_seconds"].to_numpy().astype(np.float64)
    rows = np.where(own.is_fitted, own.column("usable_rows"), 0).astype(np.int64)
    usable = int(own.column("usable_rows").sum()) if own.keys.num_rows else 0
    largest = int(rows.argmax()) if rows.any() else None
    wave = units["wave"].to_numpy()
    return Summary(
        keys=own.keys.num_rows,
        rows=int(own.column("rows").sum()) if own.keys.num_rows else 0,
        usable_rows=usable,
        decisions=own.decisions(),
        units=units.num_rows,
        waves=count_waves(plan),
        slots=plan.slots,
        holdout=plan.holdout,
        largest_key=None if largest is None else show_key(dict(own.keys["key"][largest].as_py())),
        largest_rows=0 if largest is None else int(rows[largest]),
        largest_share=0.0 if largest is None else float(rows[largest] / usable),
        largest_unit_rows=int(units["rows"].to_numpy().max()) if units.num_rows else 0,
        unit_skew=float(seconds.max() / seconds.mean()) if units.num_rows else 0.0,
        predicted_seconds=sum(makespan(seconds[wave == w], plan.slots) for w in range(plan.waves)),
        ideal_seconds=float(seconds.sum() / plan.slots),
        skew=plan.skew,
        parents=_parents(plan),
        bounds=str(plan.bounds),
        left_out=left_out_text({name: pc.sum(own.keys[name]).as_py() for name in LEFT_OUT}),
    )


def _first(moments: pa.ChunkedArray) -> dt.datetime | None:
    known = moments.drop_null()
    return known[0].as_py() if len(known) else None


def _parents(plan: Plan) -> dict[str, dict[str, int]]:
    """Return the decisions of each level of parents, the most specific level first."""
    if plan.own_level is None:
        return {}
    others = [name for name in pc.unique(plan.keys["level"]).to_pylist() if name != plan.own_level]
    return {level: plan.at(level).decisions() for level in sorted(others, key=level_width, reverse=True)}


def moved(keys: pa.Table, unit: int, wave: int) -> pa.Table:
    """Return rows of a plan with their units and waves after so many others."""
    for name, first in (("unit", unit), ("wave", wave)):
        place, field = keys.column_names.index(name), keys.schema.field(name)
        keys = keys.set_column(place, field, pc.add(keys[name], pa.scalar(first, pa.int32())))
    return keys


def count_waves(plan: Plan) -> int:
    """Return how many waves a plan has, with those that put the parts of salted keys together."""
    last_level = next(reversed(plan.levels()), None)
    return plan.waves + (last_level is not None and plan.at(last_level).has_salted)


def count_units(plan: Plan) -> int:
    """Return how many units a plan has; those of a salted key are its first and as many after it as it has parts."""
    last = pc.max(pc.add(plan.keys["unit"], plan.keys["n_parts"])).as_py()
    return 0 if last is None else int(last)
