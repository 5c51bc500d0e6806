"""What pooling changes of a plan: parents are trained in parts, and keys that build on them never are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from group_models.keys import level_name
from group_models.planning.plans import FITTED
from group_models.spec import Spec

MIN_PARTS = 2
"""Fewest parts of a parent: of one, no model would not have seen a row."""


def deciding_spec(sizes: pa.Table, spec: Spec) -> Spec:
    """Return the spec as it decides on oversize keys of one level.

    A child is one model, of a few numbers: an oversize key is sampled where it would be salted or distributed. A
    parent that keys build on is salted where it would be distributed, for that gives no parts.
    """
    if not spec.is_pooled or not sizes.num_rows:
        return spec
    level = sizes["level"][0].as_py()
    if level == level_name(spec.keys) and spec.oversize in ("salt", "distribute"):
        return spec.model_copy(update={"oversize": "sample"})
    if level in _levels(spec) and spec.oversize == "distribute":
        return spec.model_copy(update={"oversize": "salt"})
    return spec


def _levels(spec: Spec) -> set[str]:
    return {level_name(level) for level in spec.pooled_levels}


def split_parents(
    sizes: pa.Table,
    spec: Spec,
    decision: npt.NDArray[np.object_],
    reason: npt.NDArray[np.object_],
    n_parts: npt.NDArray[np.int64],
) -> None:
    """Decide, in place, in how many parts parents are trained that keys build on: rows for all of them, at least two.

    Parameters
    ----------
    sizes
        Columns `SIZES` of the keys of one level.
    """
    if not sizes.num_rows or sizes["level"][0].as_py() not in _levels(spec):
        return
    usable = sizes["usable_rows"].to_numpy()
    parts = np.clip(usable // spec.limits.min_rows, MIN_PARTS, spec.pooling.parts)
    is_split = np.isin(decision.astype(str), FITTED) & (n_parts < parts)
    decision[is_split], n_parts[is_split] = "salted", parts[is_split]
    for place in np.flatnonzero(is_split):
        said = f"trained in {parts[place]} parts, for what its keys learn of it"
        reason[place] = "; ".join(text for text in (reason[place], said) if text)


def reserved_bytes(parents: Sequence[pa.Table], spec: Spec) -> float:
    """Return the bytes of a unit of keys that the models of their parents take: all of them, at most half of it.

    Parameters
    ----------
    parents
        Planned rows of the levels planned before the keys'.
    """
    if not spec.is_pooled or not parents:
        return 0.0
    keys = pa.concat_tables(parents)
    keys = keys.filter(pc.is_in(keys["level"], pa.array(sorted(_levels(spec)))))
    total = float(pc.sum(keys["predicted_model_bytes"]).as_py() or 0.0)
    return min(total * (2 if spec.refit else 1), spec.limits.max_unit_bytes / 2)
