"""The views over the tables, each written once: what one row is, and its query, which is the file of its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib.resources import files

from group_models.live.manifest import FAILED
from group_models.tables import TABLES

_STARTED = (
    "SELECT model_set, run_id, min(at) AS started_at FROM {group_model_run} WHERE event = 'started' "
    "GROUP BY model_set, run_id"
)
"""The runs and when each started: a run that two processes started at once has a row of each."""

_SHARED = {
    "own_model": "CASE m.serves WHEN 'new' THEN m.run_id WHEN 'previous' THEN m.model_run_id END",
    "decides": "(m.serves = 'new' OR (m.status = 'rejected' AND m.serves = 'parent'))",
    "failed": ", ".join(f"'{status}'" for status in FAILED),
}
"""What the queries say of a manifest row `m`, as `live.folding` does: its model, and whether it decides its key."""


@dataclasses.dataclass(frozen=True)
class View:
    """One view: its name within the schema, and what one row is."""

    name: str
    comment: str

    def query(self, names: Mapping[str, str]) -> str:
        """Return the view's query, given the name in the catalog of each table and view."""
        text = files("group_models.adapters").joinpath("sql", f"{self.name}.sql").read_text(encoding="utf-8")
        return text.format(**names, **_SHARED, started=_STARTED.format(**names)).rstrip()

    def statement(self, names: Mapping[str, str]) -> str:
        """Return what makes the view, or makes it anew."""
        return f"CREATE OR REPLACE VIEW {names[self.name]} COMMENT '{self.comment}' AS\n{self.query(names)}"


VIEWS = (
    View(
        "group_model_live",
        "one row: a key and the model of its own that serves it, per alias; keys that a parent serves have none",
    ),
    View("group_model_last_outcome", "one row: what came of a key in the newest run that has it"),
    View(
        "group_model_worst",
        "one row: a model that serves as champion, placed within its level by its error on the holdout, worst first",
    ),
    View("group_model_failure", "one row: keys that failed in one run in the same way, and one of them"),
    View("group_model_last_run", "one row: the newest run of a model set; finished_at is null until it ends"),
)
"""In the order in which they can be made: some read those before them."""


def names_in(qualified: Callable[[str], str]) -> dict[str, str]:
    """Return the name in the catalog of each table and view."""
    return {name: qualified(name) for name in [each.name for each in TABLES] + [each.name for each in VIEWS]}
