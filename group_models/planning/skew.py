"""How uneven a plan is before it runs: what one key costs all others, and what other settings would change.

Everything is told of the fits alone, as the plan predicts them; Spark's own time comes on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from group_models.keys import show_key
from group_models.planning.packing import Floats, makespan, part_rows, unit_count, wave_of_units
from group_models.spec import Oversize, ParentSpec, Spec
from group_models.texts import counts_text, duration_text

Replan: TypeAlias = Callable[[pa.Array, Spec], pa.Table]
"""(key ids, a spec) -> rows of the plan that the spec makes of these keys alone."""

SLOT_FACTORS = (0.5, 1, 2, 4)
"""Times the present slots for which the run's time is told."""

_MOST_REPLANNED = 10_000
"""Oversize keys, largest first, that the policies are compared on; more than these are no few large keys."""

_MOST_NAMED = 3
_DECIDES = 1.5
"""Times the ideal from which the largest key is said to decide how long the run takes."""

_WORTH_S = 5.0
"""Seconds that must be lost before a warning is worth reading."""


@dataclasses.dataclass(frozen=True)
class WaveForecast:
    """One wave as predicted: wall seconds of its units in the planned order, and if they could be split at will."""

    wave: int
    units: int
    seconds: float
    ideal_seconds: float


@dataclasses.dataclass(frozen=True)
class Skew:
    """How uneven a plan is.

    Attributes
    ----------
    seconds, ideal_seconds
        Wall seconds of all fits as planned, and if they could be split at will.
    waves
        The same, wave by wave.
    seconds_by_slots
        Wall seconds with other numbers of slots. Approximate but for the plan's own: keys larger than a fair unit
        stand alone, all others are taken for equal units, and bounds on a unit's bytes are left out.
    oversize_keys, oversize_share
        Keys over the spec's limits, and their share of all usable rows.
    policies
        What each `oversize` policy would do with them, in words; empty without such keys.
    warnings
        What somebody should change, in sentences.
    """

    slots: int
    seconds: float
    ideal_seconds: float
    waves: tuple[WaveForecast, ...]
    seconds_by_slots: Mapping[int, float]
    oversize_keys: int
    oversize_share: float
    policies: Mapping[str, str]
    warnings: tuple[str, ...]

    def facts(self) -> dict[str, str]:
        """Return what a person wants to know of it as fact and text."""
        by_slots = ", ".join(f"{duration_text(s)} on {n:,}" for n, s in self.seconds_by_slots.items())
        facts = {"fit time by slots": f"about {by_slots}"}
        if len(self.waves) > 1:
            facts["longest wave"] = self._longest_wave()
        if self.oversize_keys:
            facts["oversize keys"] = f"{self.oversize_keys:,} with {self.oversize_share:.1%} of all rows"
            facts |= {f"oversize: {policy}": text for policy, text in self.policies.items()}
        numbered = len(self.warnings) > 1
        return facts | {f"warning {i}" if numbered else "warning": w for i, w in enumerate(self.warnings, 1)}

    def _longest_wave(self) -> str:
        longest = max(self.waves, key=lambda wave: wave.seconds)
        return (
            f"{longest.wave + 1} of {len(self.waves)}: {longest.units:,} units, {duration_text(longest.seconds)}, "
            f"ideally {duration_text(longest.ideal_seconds)}"
        )


def describe_skew(keys: pa.Table, spec: Spec, *, slots: int, replan: Replan, own_level: str | None = None) -> Skew:
    """Return how uneven a plan is.

    Parameters
    ----------
    keys
        Rows of the plan.
    replan
        Called with the oversize keys alone, once per policy: few, however many keys there are.
    own_level
        Level of the keys; rows of other levels are parents, which count for time alone. None where all are keys.
    """
    is_own = _is_own(keys, own_level)
    waves = wave_forecasts(keys, slots)
    seconds = sum(wave.seconds for wave in waves)
    jobs = job_seconds(keys)
    is_oversize = oversize(keys, spec) & is_own
    usable = _numbers(keys, "usable_rows") * is_own
    by_slots = {slots: seconds} | {
        n: forecast(jobs, slots=n, wave_s=spec.compute.wave_s) for n in _slot_numbers(slots) if n != slots
    }
    return Skew(
        slots=slots,
        seconds=seconds,
        ideal_seconds=float(jobs.sum()) / slots,
        waves=waves,
        seconds_by_slots=dict(sorted(by_slots.items())),
        oversize_keys=int(is_oversize.sum()),
        oversize_share=float(usable[is_oversize].sum() / max(usable.sum(), 1)),
        policies=_policies(keys, spec, is_oversize, slots, replan) if is_oversize.any() else {},
        warnings=tuple(_warnings(keys, spec, is_own, seconds, float(jobs.sum()) / slots)),
    )


def _is_own(keys: pa.Table, own_level: str | None) -> npt.NDArray[np.bool_]:
    if own_level is None:
        return np.ones(keys.num_rows, dtype=np.bool_)
    return np.asarray(pc.equal(keys["level"], own_level).to_numpy(), dtype=np.bool_)


def _slot_numbers(slots: int) -> list[int]:
    return sorted({max(1, int(slots * factor)) for factor in SLOT_FACTORS})


def over_limits(keys: pa.Table, spec: Spec) -> npt.NDArray[np.bool_]:
    """Return which keys are over the spec's limits on one key, by rows or bytes; of sizes or rows of a plan."""
    usable, nbytes = _numbers(keys, "usable_rows"), _numbers(keys, "bytes")
    return np.asarray((usable > spec.max_rows[0]) | (nbytes > spec.max_key_bytes))


def oversize(keys: pa.Table, spec: Spec) -> npt.NDArray[np.bool_]:
    """Return which keys of a plan need a policy: of those over the limits all but unchanged and small ones."""
    is_asked = (_parts(keys) > 0) | pc.equal(keys["decision"], "too_big").to_numpy()
    return np.asarray(over_limits(keys, spec) & is_asked)


def job_seconds(keys: pa.Table) -> Floats:
    """Return the predicted seconds of all that cannot be divided: each fitted key, each part of a salted one."""
    parts = _parts(keys)
    owner, _ = part_rows(parts)
    return np.asarray((_numbers(keys, "predicted_seconds") / np.maximum(parts, 1))[owner])


def _parts(keys: pa.Table) -> npt.NDArray[np.int64]:
    """Return in how many parts each key is fitted, 0 for one that is not."""
    is_fitted = ~np.isnan(_numbers(keys, "predicted_seconds"))
    return np.where(is_fitted, np.nan_to_num(_numbers(keys, "n_parts"), nan=1.0), 0).astype(np.int64)


def unit_seconds(keys: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """Return unit, wave and predicted seconds of each unit, in order; a salted key's parts are units in a row."""
    owner, place = part_rows(_parts(keys))
    first, of_key = (np.nan_to_num(_numbers(keys, name)).astype(np.int64)[owner] for name in ("unit", "wave"))
    unit, inverse = np.unique(first + place, return_inverse=True)
    wave = np.zeros(len(unit), dtype=np.int64)
    wave[inverse] = of_key
    return unit, wave, np.bincount(inverse, weights=job_seconds(keys), minlength=len(unit)).astype(np.float64)


def wave_forecasts(keys: pa.Table, slots: int) -> tuple[WaveForecast, ...]:
    """Return each wave of a plan as predicted."""
    _, wave, seconds = unit_seconds(keys)
    return tuple(
        WaveForecast(int(w), len(of_wave), makespan(of_wave, slots), float(of_wave.sum()) / slots)
        for w in np.unique(wave)
        for of_wave in [seconds[wave == w]]
    )


def forecast(jobs: Floats, *, slots: int, wave_s: float) -> float:
    """Return about how many wall seconds jobs take when they are packed for so many slots, without packing them."""
    if not len(jobs):
        return 0.0
    count = unit_count(jobs, slots=slots, wave_s=wave_s)
    large = jobs[jobs > jobs.sum() / count]
    small = int(min(max(count - len(large), 1), len(jobs) - len(large)))
    rest = (jobs.sum() - large.sum()) / max(small, 1)
    units = np.sort(np.concatenate([large, np.full(small, rest)]))[::-1]
    wave = wave_of_units(units, slots=slots, wave_s=wave_s)
    return sum(makespan(units[wave == w], slots) for w in np.unique(wave))


def _policies(
    keys: pa.Table, spec: Spec, is_oversize: npt.NDArray[np.bool_], slots: int, replan: Replan
) -> dict[str, str]:
    """Return what each policy would do with the oversize keys, in words."""
    rows = np.where(is_oversize, _numbers(keys, "usable_rows"), -1)
    largest = np.argsort(-rows, kind="stable")[: min(int(is_oversize.sum()), _MOST_REPLANNED)]
    over = keys.take(pa.array(largest))
    ids = over["key_id"].combine_chunks()
    others = job_seconds(keys.select(["n_parts", "predicted_seconds"]).filter(pa.array(~is_oversize)))
    said: dict[str, str] = {}
    for policy in get_args(Oversize):
        if policy == "fail":
            said[policy] = f"the run is refused before training, naming {_named(over)}"
            continue
        is_xgboost = spec.estimator.name == "xgboost"
        refused = spec.why_not_distributed if is_xgboost else "only xgboost can be distributed"
        is_salted = policy == "distribute" and refused is not None
        planned = replan(ids, spec.model_copy(update={"oversize": "salt" if is_salted else policy}))
        jobs = np.concatenate([others, job_seconds(planned)])
        seconds = forecast(jobs, slots=slots, wave_s=spec.compute.wave_s)
        why = f"{refused}: " if is_salted else ""
        said[policy] = f"{why}{_decided(planned)}; about {duration_text(seconds)}"
    return {p: f"{text} (the spec's)" if p == spec.oversize else text for p, text in said.items()}


def _decided(planned: pa.Table) -> str:
    """Return what becomes of the oversize keys under one policy."""
    decision = np.asarray(planned["decision"].to_numpy(zero_copy_only=False)).astype(str)
    usable, share = _numbers(planned, "usable_rows"), np.nan_to_num(_numbers(planned, "sample_share"), nan=1.0)
    said = []
    for name, count in sorted(_counts(decision).items()):
        of_name = decision == name
        rows, kept = usable[of_name].sum(), (usable * share)[of_name].sum()
        more = {
            "salted": f" in {_parts(planned)[of_name].sum():,} parts, all rows used",
            "sampled": f" to {kept:,.0f} of {rows:,.0f} rows ({kept / rows:.1%})",
            "too_big": ", no new model",
            "distributed": " over the whole cluster, one after another",
        }
        said.append(counts_text({name: count}) + more.get(name, ""))
    return ", ".join(said)


def _counts(values: npt.NDArray[np.str_]) -> dict[str, int]:
    names, counts = np.unique(values, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _named(keys: pa.Table) -> str:
    rows = keys.slice(0, _MOST_NAMED).select(["key", "usable_rows"]).to_pylist()
    more = f" and {keys.num_rows - _MOST_NAMED:,} more" if keys.num_rows > _MOST_NAMED else ""
    return "; ".join(f"{show_key(dict(row['key']))} ({row['usable_rows']:,} rows)" for row in rows) + more


def _warnings(keys: pa.Table, spec: Spec, is_own: npt.NDArray[np.bool_], seconds: float, ideal: float) -> list[str]:
    """Return what somebody should change, in sentences."""
    said = _one_key(keys, spec, is_own, seconds, ideal), _left_out(keys.filter(pa.array(is_own)))
    return [text for text in said if text]


def _one_key(keys: pa.Table, spec: Spec, is_own: npt.NDArray[np.bool_], seconds: float, ideal: float) -> str | None:
    """Return the sentence about a key that all others wait for, or None."""
    of_key = np.nan_to_num(_numbers(keys, "predicted_seconds")) / np.maximum(_parts(keys), 1)
    # A distributed key has all slots: nothing waits for it that could run.
    of_key[pc.equal(keys["decision"], "distributed").to_numpy()] = 0.0
    at = int(of_key.argmax()) if len(of_key) else -1
    if at < 0 or of_key[at] < _DECIDES * ideal or seconds - ideal < _WORTH_S:
        return None
    usable = _numbers(keys, "usable_rows")
    share = usable[at] / max(usable[is_own].sum(), 1)
    row = keys.slice(at, 1).to_pylist()[0]
    share_used = np.nan_to_num(_numbers(keys, "sample_share"), nan=1.0)[at]
    parts = max(_parts(keys)[at], 1)
    rows_of_fit = usable[at] * share_used / parts
    fair = max(spec.limits.min_rows, int(rows_of_fit * ideal / of_key[at]))
    most, limit = (spec if is_own[at] else ParentSpec.of(spec)).max_rows
    limit = limit if is_own[at] else "max_parent_rows"
    way_out = f"lower limits.{limit} (now {most:,}; about {_rounded(fair):,} would do)"
    if spec.oversize != "salt":
        way_out = f"say `oversize: salt` and {way_out}"
    return (
        f"one key decides how long the run takes: {show_key(dict(row['key']))} with {share:.1%} of "
        f"all rows needs {duration_text(of_key[at])} of {duration_text(seconds)}, ideally it would be "
        f"{duration_text(ideal)}; salt it{' more' if parts > 1 else ''}: {way_out}"
    )


def _left_out(keys: pa.Table) -> str | None:
    """Return the sentence about oversize keys that get no model, or None."""
    is_left = pc.equal(keys["decision"], "too_big").to_numpy()
    if not is_left.any():
        return None
    usable = _numbers(keys, "usable_rows")
    share = usable[is_left].sum() / usable.sum()
    left = keys.select(["key", "usable_rows"]).filter(pa.array(is_left))
    return (
        f"{left.num_rows:,} key(s) with {share:.1%} of all rows get no new model: {_named(left)}; "
        "`oversize: salt` would train them"
    )


def _rounded(rows: int) -> int:
    """Return a number with two digits that count, never above the number.

    Examples
    --------
    >>> _rounded(123_456), _rounded(7)
    (120000, 7)
    """
    step = int(10 ** max(len(str(rows)) - 2, 0))
    return rows // step * step


def _numbers(keys: pa.Table, name: str) -> Floats:
    """Return a column as float64, nulls as NaN."""
    return np.asarray(keys[name].to_numpy(zero_copy_only=False), dtype=np.float64)
