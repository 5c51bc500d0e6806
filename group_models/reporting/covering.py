"""How many of the held out rows of a run's keys its intervals hold, read from its manifest."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc

from group_models.conformal import fleet_coverage
from group_models.levels import level_width
from group_models.live.manifest import FITTING
from group_models.ports import Tables, Where
from group_models.tables import MANIFEST


def read_coverage(tables: Tables, model_set: str, run_id: str) -> dict[str, float]:
    """Return by level the share over the rows of all keys that a run trained, parents apart; {} without intervals."""
    where: Where = {"model_set": [model_set], "run_id": [run_id], "status": FITTING}
    rows = tables.read(MANIFEST, columns=["level", "coverage", "holdout_rows"], where=where)
    measured = rows.filter(pc.is_valid(rows["coverage"]))
    if not measured.num_rows:
        return {}
    own = max(pc.unique(measured["level"]).to_pylist(), key=level_width)
    of_keys = measured.filter(pc.equal(measured["level"], own))
    return fleet_coverage([dict(each) for each in of_keys["coverage"].to_pylist()], of_keys["holdout_rows"].to_pylist())


def coverage_facts(coverage: Mapping[str, float]) -> dict[str, str]:
    """Return the coverage of a run as fact and text; nothing without intervals."""
    said = ", ".join(f"{share:.1%} of {float(level):.4g}" for level, share in coverage.items())
    return {"intervals hold": f"{said} (rows of the holdout, in intervals that other rows made)"} if said else {}
