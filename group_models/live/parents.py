"""Parents in the tables: which of them serves a key now, and what came of them in a run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

import pandas as pd
import pyarrow.compute as pc

from group_models.keys import KeyTexts, level_name
from group_models.live.manifest import count_levels
from group_models.live.sets import Live, read_key_kinds
from group_models.planning.plans import levels_text
from group_models.ports import Tables
from group_models.tables import MANIFEST
from group_models.texts import counts_text

_SERVED_BY = {"new": "their own model", "previous": "their own model", "parent": "a parent's", "none": "none"}


def serving_parents(live: Live, keys: Iterable[KeyTexts]) -> list[str | None]:
    """Return of each key the id of the most specific parent above it that has a model in a live set, or None."""
    if not live.levels.parents:
        return [None for _ in keys]
    own = live.keys["level"] == live.levels.own
    return live.levels.nearest(keys, set(live.keys.index[~own & live.keys["model_run_id"].notna()]))


def serving_key(live: Live, key_id: str, texts: KeyTexts | None) -> str | None:
    """Return the id of the key whose model serves a key: its own, that of its nearest parent, or None.

    Parameters
    ----------
    texts
        The key's values, where they are known; of a key that no run has seen they are what tells its parents.
    """
    if key_id in live.keys.index:
        if not pd.isna(live.keys["model_run_id"][key_id]):
            return key_id
        texts = live.keys["key"][key_id]
    return None if texts is None else serving_parents(live, [texts])[0]


@dataclasses.dataclass(frozen=True)
class Parents:
    """The parents of a run.

    Attributes
    ----------
    statuses
        By level, specific ones first, its parents by status.
    served
        How many keys are served by their own model, that of a parent, or none.
    """

    statuses: Mapping[str, Mapping[str, int]]
    served: Mapping[str, int]

    def facts(self) -> dict[str, str]:
        """Return the parents as fact and text; nothing where there are none."""
        facts = {"parents": levels_text(self.statuses)} if self.statuses else {}
        return {**facts, "keys served by": counts_text(self.served)} if facts or "a parent's" in self.served else {}


def read_parents(tables: Tables, model_set: str, run_id: str) -> Parents:
    """Return what came of the parents of a run, as its manifest tells it."""
    where = {"model_set": [model_set], "run_id": [run_id]}
    rows = tables.read(MANIFEST, columns=["level", "status", "serves"], where=where)
    own_level = level_name(list(read_key_kinds(tables, model_set, [run_id])))
    own = rows.filter(pc.equal(rows["level"], own_level))
    statuses = {level: counts for level, counts in count_levels(rows).items() if level != own_level}
    return Parents(statuses, dict(Counter(_SERVED_BY[serves] for serves in own["serves"].to_pylist()).most_common()))
