"""The pieces of a wave whose worker dies of one of its keys: halves, and the row of the key that is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from group_models.fitting.deaths import or_late
from group_models.fitting.outcomes import FitSettings, identity
from group_models.keys import key_seed
from group_models.tables import utc_now


def halves(parts: pa.Table) -> list[pa.Table]:
    """Return parts in two pieces: half of their units each, or of one unit half of its keys.

    Parameters
    ----------
    parts
        Columns of `Plan.parts`, two rows or more.
    """
    units = sorted(pc.unique(parts["unit"]).to_pylist())
    if len(units) == 1:
        middle = parts.num_rows // 2
        ordered = parts.sort_by("key_id")
        return [ordered.slice(0, middle), ordered.slice(middle)]
    is_first = pc.is_in(parts["unit"], pa.array(units[: len(units) // 2], parts["unit"].type))
    return [parts.filter(is_first), parts.filter(pc.invert(is_first))]


def crashed_row(part: Mapping[str, Any], settings: FitSettings, estimator: str) -> dict[str, Any]:
    """Return the store row of a part whose worker died with it alone; its place in the wave is added by the wave.

    How the worker ended stands in its executor's standard error only, also where the watchdog ended it.
    """
    now = utc_now()
    key_id, number = part["key_id"], part["part"]
    seed = key_seed(settings.seed, key_id, number)
    return {
        **identity(key_id, number, part["unit"], seed, estimator, settings),
        "model_set": settings.model_set,
        "run_id": settings.run_id,
        "status": "crashed",
        "reason": (
            f"the fit ended its worker{or_late(settings.limits)}; the standard error of the executor says how. "
            "`isolation: auto` tells more; mend the estimator or leave the key out"
        ),
        "error_type": "dead worker",
        "started_at": now,
        "finished_at": now,
    }
