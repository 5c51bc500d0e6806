"""Sizes to plan: what to do with each key, and which unit of which wave trains it. Pure arithmetic on columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from group_models.errors import DataError
from group_models.incremental import History, cost_factors, kept_models
from group_models.keys import show_key
from group_models.packing import Floats, Ints, order_units, pack, unit_count
from group_models.plans import FITTED, Plan
from group_models.spec import Spec
from group_models.tables import PLAN

Predictor: TypeAlias = Callable[[Ints, int], Floats]
"""(rows per key, number of feature columns) -> seconds or bytes per key."""

SIZES = tuple(
    PLAN.arrow_schema.field(name)
    for name in (
        "key_id", "key", "level", "rows", "usable_rows", "bytes", "data_fingerprint", "train_from", "train_to",
    )
)  # fmt: skip
"""Columns of a table of sizes: one row per key, as measured."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a family is expected to need for keys of given sizes."""

    seconds: Predictor
    model_bytes: Predictor


def plan_keys(sizes: pa.Table, spec: Spec, costs: Costs, *, slots: int, history: History | None = None) -> Plan:
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

    Raises
    ------
    DataError
        `oversize: fail` and a key is oversize; the message names the keys.
    StateError
        `on_library_change: refuse` and models were trained under other versions.
    """
    sizes = sizes.sort_by("key_id")
    history = history or History.none()
    usable = sizes.column("usable_rows").to_numpy()
    decision, reason, share = _decide(sizes, spec)
    _keep_models(sizes, spec, history, decision, reason, share)
    is_fitted = np.isin(decision, FITTED)
    rows = np.ceil(usable * share).astype(np.int64)
    slower, bigger = _cost_factors(sizes, spec, history, costs)
    seconds = np.where(is_fitted, costs.seconds(rows, len(spec.features)), 0.0) * slower
    model_bytes = costs.model_bytes(rows, len(spec.features)) * bigger
    loads = np.stack([np.ceil(sizes.column("bytes").to_numpy() * share), model_bytes], axis=1)[is_fitted]
    limits = (float(spec.limits.max_unit_bytes), float(spec.limits.max_unit_model_bytes))
    count = unit_count(seconds[is_fitted], slots=slots, wave_s=spec.compute.wave_s)
    packed = pack(seconds[is_fitted], loads, limits, count)
    unit, wave, index = order_units(packed, seconds[is_fitted], slots=slots, wave_s=spec.compute.wave_s)
    columns = {
        "decision": pa.array(decision, pa.string()),
        "reason": pa.array(reason, pa.string()),
        "unit": _spread(unit, is_fitted),
        "wave": _spread(wave, is_fitted),
        "key_index": _spread(index, is_fitted),
        "n_parts": pa.array(np.ones(len(usable), np.int32), mask=~is_fitted),
        "sample_share": pa.array(share, mask=decision != "sampled"),
        "predicted_seconds": pa.array(seconds, mask=~is_fitted),
        "predicted_model_bytes": pa.array(model_bytes.astype(np.float64), mask=~is_fitted),
    }
    for name, values in columns.items():
        sizes = sizes.append_column(PLAN.arrow_schema.field(name), values)
    return Plan(sizes.select([n for n in PLAN.names if n in sizes.column_names]), slots)


def _keep_models(
    sizes: pa.Table,
    spec: Spec,
    history: History,
    decision: npt.NDArray[np.object_],
    reason: npt.NDArray[np.object_],
    share: Floats,
) -> None:
    kept = kept_models(sizes, decision, history, spec)
    is_kept = kept.astype(np.bool_)
    decision[is_kept], reason[is_kept], share[is_kept] = "unchanged", kept[is_kept], 1.0


def _cost_factors(sizes: pa.Table, spec: Spec, history: History, costs: Costs) -> tuple[Floats, Floats]:
    columns = len(spec.features)
    return cost_factors(
        sizes["key_id"],
        history,
        spec,
        lambda rows: costs.seconds(rows, columns),
        lambda rows: costs.model_bytes(rows, columns),
    )


def _decide(sizes: pa.Table, spec: Spec) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_], Floats]:
    """Return decision, reason and the share of rows kept, per key."""
    rows, usable = sizes.column("rows").to_numpy(), sizes.column("usable_rows").to_numpy()
    nbytes = sizes.column("bytes").to_numpy()
    decision = np.full(len(rows), "whole", dtype=object)
    reason = np.full(len(rows), None, dtype=object)
    share = np.ones(len(rows))
    limits = spec.limits
    is_small = usable < limits.min_rows
    decision[is_small] = "too_small"
    reason[is_small] = [f"{n} usable rows; min_rows is {limits.min_rows}" for n in usable[is_small]]
    has_no_target = (usable == 0) & (rows > 0)
    decision[has_no_target] = "no_target"
    reason[has_no_target] = [f"none of {n} rows has a finite target" for n in rows[has_no_target]]
    is_gone = rows == 0
    decision[is_gone], reason[is_gone] = "vanished", "no rows in the data; it had a model before"
    is_oversize = ~is_small & ((usable > limits.max_key_rows) | (nbytes > spec.max_key_bytes))
    if is_oversize.any():
        _decide_oversize(sizes, spec, is_oversize, decision, reason, share)
    return decision, reason, share


def _decide_oversize(
    sizes: pa.Table,
    spec: Spec,
    is_oversize: npt.NDArray[np.bool_],
    decision: npt.NDArray[np.object_],
    reason: npt.NDArray[np.object_],
    share: Floats,
) -> None:
    usable = sizes.column("usable_rows").to_numpy()[is_oversize]
    nbytes = sizes.column("bytes").to_numpy()[is_oversize]
    said = [_too_large(n, b, spec) for n, b in zip(usable, nbytes, strict=True)]
    if spec.oversize == "fail":
        raise DataError(_oversize_message(sizes.filter(pa.array(is_oversize)), said))
    if spec.oversize == "skip":
        decision[is_oversize] = "too_big"
        reason[is_oversize] = [f"{text}; oversize: skip" for text in said]
        return
    wanted = np.minimum(spec.limits.max_key_rows, usable * (spec.max_key_bytes / nbytes))
    share[is_oversize] = sample_share(usable, wanted)
    decision[is_oversize] = "sampled"
    reason[is_oversize] = [
        f"{text}; a sample of {kept:.2%} is used" for text, kept in zip(said, share[is_oversize], strict=True)
    ]


def sample_share(rows: Ints, wanted: Floats) -> Floats:
    """Return the share of rows to keep so that the kept ones almost surely stay under `wanted`.

    Each row is kept by its own hash, so the number kept is binomial: the share aims three standard deviations
    lower, but never at less than half.
    """
    return np.asarray(np.maximum(wanted - 3 * np.sqrt(wanted), wanted / 2) / rows)


def _too_large(rows: int, nbytes: int, spec: Spec) -> str:
    if rows > spec.limits.max_key_rows:
        return f"{rows:,} usable rows are over max_key_rows {spec.limits.max_key_rows:,}"
    return f"{nbytes:,} bytes are over max_key_bytes {spec.max_key_bytes:,}"


def _oversize_message(oversize: pa.Table, said: list[str]) -> str:
    keys = oversize.column("key").to_pylist()
    named = "; ".join(f"{show_key(dict(key))} ({text})" for key, text in list(zip(keys, said, strict=True))[:10])
    more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
    return (
        f"{len(keys)} oversize key(s), and the spec says `oversize: fail`: {named}{more}. Nothing was trained. "
        "Say `oversize: sample` or `skip`, or raise limits.max_key_rows / max_key_bytes."
    )


def _spread(values: Ints, is_fitted: npt.NDArray[np.bool_]) -> pa.Array:
    full = np.zeros(len(is_fitted), dtype=np.int32)
    full[is_fitted] = values
    return pa.array(full, mask=~is_fitted)
