"""Sizes to plan: what to do with each key, and which unit of which wave trains it. Pure arithmetic on columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from group_models.errors import DataError
from group_models.keys import show_key
from group_models.planning.incremental import History, cost_factors, kept_models
from group_models.planning.packing import Floats, Ints, order_units, pack, unit_count
from group_models.planning.plans import FITTED, Plan
from group_models.planning.pooled import deciding_spec, split_parents
from group_models.planning.skew import over_limits
from group_models.planning.windows import LEFT_OUT, left_out_text
from group_models.spec import Spec
from group_models.tables import PLAN

_TOLERANCE = 1.1
"""Times its limit from which a salted part is too big; parts aim three standard deviations lower."""

Predictor: TypeAlias = Callable[[Ints, int], Floats]
"""(rows per key, number of feature columns) -> seconds or bytes per key."""

SIZES = tuple(
    PLAN.arrow_schema.field(name)
    for name in (
        "key_id", "key", "level", "rows", "usable_rows", "bytes", *LEFT_OUT, "data_fingerprint", "train_from",
        "train_to",
    )
)  # fmt: skip
"""Columns of a table of sizes: one row per key, as measured."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a family is expected to need for keys of given sizes."""

    seconds: Predictor
    model_bytes: Predictor


def plan_keys(
    sizes: pa.Table,
    spec: Spec,
    costs: Costs,
    *,
    slots: int,
    history: History | None = None,
    why_not: str | None = None,
    reserved_bytes: float = 0.0,
) -> Plan:
    """Decide, pack and order: the plan of one run.

    Parameters
    ----------
    sizes
        Columns `SIZES`, one row per key in any order. A key with no rows had a model before and is gone now.
    costs
        Expected seconds and model bytes of the family.
    slots
        Tasks that run at the same time.
    history
        What earlier runs say: keys that may keep their model, and what the newest fits took.
    why_not
        With `oversize: distribute`, why oversize keys cannot be distributed here; they are salted then.
    reserved_bytes
        Bytes of each unit that other rows than those of its keys take.

    Raises
    ------
    DataError
        `oversize: fail` and a key is oversize; the message names the keys.
    StateError
        `on_library_change: refuse` and models were trained under other versions.
    """
    sizes = sizes.sort_by("key_id")
    history = history or History.none()
    decided = decide(sizes, deciding_spec(sizes, spec), why_not)
    split_parents(sizes, spec, decided.decision, decided.reason, decided.n_parts)
    _keep_models(sizes, spec, history, decided)
    is_fitted = np.isin(decided.decision, FITTED)
    rows = np.ceil(sizes.column("usable_rows").to_numpy() * decided.share / decided.n_parts).astype(np.int64)
    part_bytes = np.ceil(sizes.column("bytes").to_numpy() * decided.share / decided.n_parts)
    is_distributed = decided.decision == "distributed"
    slower, bigger = _cost_factors(sizes, is_distributed, spec, history, costs, slots=slots)
    seconds = np.where(is_fitted, costs.seconds(rows, len(spec.features)), 0.0) * slower
    model_bytes = np.asarray(costs.model_bytes(rows, len(spec.features)) * bigger, dtype=np.float64)
    is_packed = is_fitted & ~is_distributed
    placed = _place_keys(
        seconds[is_packed],
        np.stack([part_bytes, model_bytes], axis=1)[is_packed],
        decided.n_parts[is_packed],
        spec,
        slots=slots,
        reserved_bytes=reserved_bytes,
    )
    placed = _place_last(placed, is_distributed[is_fitted], decided.n_parts[is_packed])
    columns = {
        "decision": pa.array(decided.decision, pa.string()),
        "reason": pa.array(decided.reason, pa.string()),
        **{name: _spread(values, is_fitted) for name, values in placed.items()},
        "n_parts": pa.array(decided.n_parts.astype(np.int32), mask=~is_fitted),
        "sample_share": pa.array(decided.share, mask=decided.share == 1.0),
        "predicted_seconds": pa.array(seconds * decided.n_parts, mask=~is_fitted),
        "predicted_model_bytes": pa.array(model_bytes * decided.n_parts, mask=~is_fitted),
    }
    for name, values in columns.items():
        sizes = sizes.append_column(PLAN.arrow_schema.field(name), values)
    return Plan(sizes.select([n for n in PLAN.names if n in sizes.column_names]), slots)


def _keep_models(sizes: pa.Table, spec: Spec, history: History, decided: Decided) -> None:
    kept = kept_models(sizes, decided.decision, history, spec)
    is_kept = kept.astype(np.bool_)
    decided.decision[is_kept], decided.reason[is_kept] = "unchanged", kept[is_kept]
    decided.n_parts[is_kept], decided.share[is_kept] = 1, 1.0


def _cost_factors(
    sizes: pa.Table, is_distributed: npt.NDArray[np.bool_], spec: Spec, history: History, costs: Costs, *, slots: int
) -> tuple[Floats, Floats]:
    columns = len(spec.features)
    return cost_factors(
        sizes["key_id"],
        is_distributed,
        history,
        spec,
        lambda rows: costs.seconds(rows, columns),
        lambda rows: costs.model_bytes(rows, columns),
        slots=slots,
    )


def _place_keys(
    seconds: Floats, loads: Floats, n_parts: Ints, spec: Spec, *, slots: int, reserved_bytes: float
) -> dict[str, Ints]:
    """Return unit, wave and place in the unit of each fitted key.

    A salted key has consecutive units, one to a part and nothing else in them; its `unit` is the first.

    Parameters
    ----------
    seconds, loads
        Of one part of each key, shapes (keys,) and (keys, 2): data bytes and model bytes.
    """
    limits = (float(spec.limits.max_unit_bytes) - reserved_bytes, float(spec.limits.max_unit_model_bytes))
    owner = np.repeat(np.arange(len(n_parts)), n_parts)
    is_part = (n_parts > 1)[owner]
    count = unit_count(seconds[owner], slots=slots, wave_s=spec.compute.wave_s)
    unit = np.empty(len(owner), dtype=np.int64)
    unit[~is_part] = pack(seconds[owner][~is_part], loads[owner][~is_part], limits, count)
    unit[is_part] = np.arange(int(is_part.sum())) + (unit[~is_part].max(initial=-1) + 1)
    unit, wave, index = order_units(unit, seconds[owner], slots=slots, wave_s=spec.compute.wave_s)
    first = np.concatenate([[0], np.cumsum(n_parts)[:-1]]).astype(np.int64) if len(n_parts) else owner
    # The parts of a key are one wave's, the first part's; a wave that this leaves empty is none.
    wave = np.unique(wave[first], return_inverse=True)[1].astype(np.int64) if len(first) else wave
    return {"unit": unit[first], "wave": wave, "key_index": index[first]}


def _place_last(placed: dict[str, Ints], is_distributed: npt.NDArray[np.bool_], n_parts: Ints) -> dict[str, Ints]:
    """Return where all fitted keys are: each distributed one alone in a unit and a wave after all others."""
    every = {name: np.zeros(len(is_distributed), dtype=np.int64) for name in placed}
    count = np.arange(int(is_distributed.sum()))
    for name, values in placed.items():
        every[name][~is_distributed] = values
    # A salted key goes up to the unit of its last part.
    for name, last in (("unit", placed["unit"] + n_parts - 1), ("wave", placed["wave"])):
        every[name][is_distributed] = count + (last.max(initial=-1) + 1)
    return every


@dataclasses.dataclass(frozen=True)
class Decided:
    """What becomes of each key, before it has a unit: arrays of one value per key.

    Attributes
    ----------
    n_parts
        Parts that the key is trained in; 1 where it is not salted.
    share
        Share of its rows that is kept.
    """

    decision: npt.NDArray[np.object_]
    reason: npt.NDArray[np.object_]
    n_parts: Ints
    share: Floats


def decide(sizes: pa.Table, spec: Spec, why_not: str | None = None) -> Decided:
    """Return what becomes of each key, in the order of the sizes; `why_not` as in `plan_keys`.

    Raises
    ------
    DataError
        `oversize: fail` and a key is oversize; the message names the keys.
    """
    rows, usable = sizes.column("rows").to_numpy(), sizes.column("usable_rows").to_numpy()
    decision = np.full(len(rows), "whole", dtype=object)
    reason = np.full(len(rows), None, dtype=object)
    decided = Decided(decision, reason, np.ones(len(rows), dtype=np.int64), np.ones(len(rows)))
    limits = spec.limits
    is_small = usable < limits.min_rows
    decision[is_small] = "too_small"
    reason[is_small] = [f"{n} usable rows; min_rows is {limits.min_rows}" for n in usable[is_small]]
    has_no_target = (usable == 0) & (rows > 0)
    decision[has_no_target] = "no_target"
    reason[has_no_target] = [f"none of {n} rows has a finite target" for n in rows[has_no_target]]
    left_out = _left_out(sizes)
    for place in np.flatnonzero(is_small & (left_out != "")):
        decision[place] = "too_small"
        reason[place] = f"{usable[place]} usable rows; min_rows is {limits.min_rows}; left out: {left_out[place]}"
    is_gone = rows == 0
    decision[is_gone], reason[is_gone] = "vanished", "no rows in the data; it had a model before"
    is_oversize = oversize_keys(sizes, spec)
    if is_oversize.any():
        _decide_oversize(sizes, spec, is_oversize, decided, why_not)
    return decided


def _left_out(sizes: pa.Table) -> npt.NDArray[np.object_]:
    """Return per key which rows with a target are left out and why, empty for none."""
    said: npt.NDArray[np.object_] = np.full(sizes.num_rows, "", dtype=object)
    if any(pc.any(pc.greater(sizes[name], 0)).as_py() for name in LEFT_OUT):
        said[:] = [left_out_text(counts) for counts in sizes.select(list(LEFT_OUT)).to_pylist()]
    return said


def oversize_keys(sizes: pa.Table, spec: Spec) -> npt.NDArray[np.bool_]:
    """Return which keys are too large to be fitted whole."""
    is_enough = sizes.column("usable_rows").to_numpy() >= spec.limits.min_rows
    return np.asarray(over_limits(sizes, spec) & is_enough)


def _decide_oversize(
    sizes: pa.Table, spec: Spec, is_oversize: npt.NDArray[np.bool_], decided: Decided, why_not: str | None
) -> None:
    usable = sizes.column("usable_rows").to_numpy()[is_oversize]
    nbytes = sizes.column("bytes").to_numpy()[is_oversize]
    said = [_too_large(n, b, spec) for n, b in zip(usable, nbytes, strict=True)]
    if spec.oversize == "fail":
        raise DataError(_oversize_message(sizes.filter(pa.array(is_oversize)), said, spec.max_rows[1]))
    if spec.oversize == "skip":
        decided.decision[is_oversize] = "too_big"
        decided.reason[is_oversize] = [f"{text}; oversize: skip" for text in said]
        return
    share = sample_share(usable, np.minimum(spec.max_rows[0], usable * (spec.max_key_bytes / nbytes)))
    if spec.oversize == "sample":
        decided.decision[is_oversize] = "sampled"
        decided.share[is_oversize] = share
        used = [f"a sample of {kept:.2%} is used" for kept in share]
    elif spec.oversize == "distribute" and why_not is None:
        decided.decision[is_oversize] = "distributed"
        used = ["trained over the whole cluster"] * len(share)
    else:
        parts = np.ceil(1 / share).astype(np.int64)
        decided.decision[is_oversize] = "salted"
        decided.n_parts[is_oversize] = parts
        why = f", not distributed: {why_not}" if spec.oversize == "distribute" else ""
        used = [f"trained in {n} parts{why}" for n in parts]
    decided.reason[is_oversize] = [f"{text}; {how}" for text, how in zip(said, used, strict=True)]
    if spec.oversize == "sample" or "salted" in decided.decision[is_oversize]:
        each = usable * share if spec.oversize == "sample" else usable / np.ceil(1 / share)
        is_wide = usable * (spec.max_key_bytes / nbytes) < spec.max_rows[0]
        _leave_thin(np.flatnonzero(is_oversize), np.where(is_wide, each, np.inf), spec, decided)


def _leave_thin(places: npt.NDArray[np.intp], rows: Floats, spec: Spec, decided: Decided) -> None:
    """Leave out the keys of which a part, or a sample, that is within the bytes has fewer rows than a key must have."""
    for at, kept in zip(places, rows, strict=True):
        if kept >= spec.limits.min_rows:
            continue
        decided.decision[at], decided.n_parts[at], decided.share[at] = "too_big", 1, 1.0
        decided.reason[at] = (
            f"{decided.reason[at].partition(';')[0]}; within max_key_bytes are {int(kept):,} of its wide rows, fewer "
            f"than min_rows {spec.limits.min_rows:,}: raise max_key_bytes and max_unit_bytes, or leave the widest text "
            "feature out"
        )


def thin_parts(plan: Plan, largest: Mapping[str, int], spec: Spec) -> Plan:
    """Return the plan with the salted keys sampled of which a part stays too big, as identical rows stay together.

    All parts of such a key are sampled alike, not the one alone that is too big: so each row of the key goes on
    counting as much as another, and the plan has one share per key. What that costs is rows of parts that would fit.

    Parameters
    ----------
    largest
        Key id to the rows of the key's largest part.
    """
    keys = plan.keys
    found = np.array([largest.get(key_id, 0) for key_id in keys["key_id"].to_pylist()], dtype=np.int64)
    usable, nbytes = keys["usable_rows"].to_numpy(), keys["bytes"].to_numpy()
    wanted = np.minimum(spec.max_rows[0], usable * (spec.max_key_bytes / np.maximum(nbytes, 1)))
    # Parts differ by chance: what is a little over is none that identical rows keep together.
    is_thinned = found > _TOLERANCE * wanted
    if not is_thinned.any():
        return plan
    share, reason = np.ones(len(found)), keys["reason"].to_pylist()
    share[is_thinned] = sample_share(found[is_thinned], wanted[is_thinned])
    for place in np.flatnonzero(is_thinned).tolist():
        said = f"identical rows stay in one part, the largest has {found[place]:,}"
        reason[place] = f"{reason[place]}; {said}: a sample of {share[place]:.2%} is used"
    before = keys["sample_share"].to_numpy(zero_copy_only=False)
    shares = pa.array(np.where(is_thinned, share, before), from_pandas=True)
    for name, values in (("sample_share", shares), ("reason", pa.array(reason, pa.string()))):
        place = keys.column_names.index(name)
        keys = keys.set_column(place, keys.schema.field(name), values)
    return dataclasses.replace(plan, keys=keys)


def sample_share(rows: Ints, wanted: Floats) -> Floats:
    """Return the share of rows to keep so that the kept ones almost surely stay under `wanted`.

    Each row is kept by its own hash, so the number kept is binomial: the share aims three standard deviations
    lower, but never at less than half. A salted key's parts are such samples too, and together all its rows.
    """
    return np.asarray(np.maximum(wanted - 3 * np.sqrt(wanted), wanted / 2) / rows)


def _too_large(rows: int, nbytes: int, spec: Spec) -> str:
    most, name = spec.max_rows
    if rows > most:
        return f"{rows:,} usable rows are over {name} {most:,}"
    return f"{nbytes:,} bytes are over max_key_bytes {spec.max_key_bytes:,}"


def _oversize_message(oversize: pa.Table, said: list[str], limit: str) -> str:
    keys = oversize.column("key").to_pylist()
    named = "; ".join(f"{show_key(dict(key))} ({text})" for key, text in list(zip(keys, said, strict=True))[:10])
    more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
    return (
        f"{len(keys)} oversize key(s), and the spec says `oversize: fail`: {named}{more}. Nothing was trained. "
        f"Say `oversize: salt`, `sample` or `skip`, or raise limits.{limit} / max_key_bytes."
    )


def _spread(values: Ints, is_fitted: npt.NDArray[np.bool_]) -> pa.Array:
    full = np.zeros(len(is_fitted), dtype=np.int32)
    full[is_fitted] = values
    return pa.array(full, mask=~is_fitted)
