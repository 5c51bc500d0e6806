"""What a clean leaves: small worlds by hand, and random histories that must not notice it."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator

import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from group_models.errors import StateError
from group_models.live import retention
from group_models.live.cleans import check_kept
from group_models.live.folding import live_set
from group_models.live.releases import cleaned, runs_to_read
from group_models.live.retention import Retention, plan_retention
from tests.unit.histories import COLUMNS, EVENTS, History, happen

KEEP = st.integers(1, 3)
AGES = st.sampled_from([dt.timedelta(0), dt.timedelta(days=8)])
CLEANED = st.one_of(EVENTS, EVENTS, EVENTS, EVENTS, EVENTS, st.tuples(st.just("clean"), KEEP, AGES))


class Cleaned(History):
    """A history with cleans; beside the manifest rows it has the models."""

    def __init__(self) -> None:
        super().__init__()
        self.models: set[tuple[str, str]] = set()

    def end(self, outcomes, run_id=None) -> None:
        before, begun = len(self.rows), dict(self.begun)
        super().end(outcomes, run_id)
        self.models |= {(row[0], row[1]) for row in self.rows[before:] if row[3] == "new"}
        for ended in set(begun) - set(self.begun):
            # What its manifest repeats must still be there to read.
            base = self.runs[ended].base_release
            served = self.live("champion", base, with_pins=False) if base else pd.DataFrame(columns=["key_id"])
            assert models_of(served) == self.served_at(base)

    def served_at(self, base: str | None) -> dict[str, str]:
        return {key: model for key, model in self.replay("champion", base).items() if model} if base else {}

    def read(self, run_ids, status=None) -> pd.DataFrame:
        wanted = [row for row in self.rows if row[0] in run_ids and status in (None, row[2])]
        new = [self.parents[row[0], row[1]] if row[3] == "new" else (None, None) for row in wanted]
        columns = [*retention.COLUMNS[:5], "parent_run_id", "parent_key_id"]
        named = [(*row, run_id, key if run_id else None) for row, (run_id, key) in zip(wanted, new, strict=True)]
        return pd.DataFrame(named, columns=columns, dtype=object)

    def plan(self, keep: int, age: dt.timedelta) -> Retention:
        past = retention.History(self.log, self.runs, frozenset(self.finished()))
        return plan_retention(past, self.read, keep=keep, now=self.now + age)

    def clean(self, keep: int, age: dt.timedelta) -> Retention:
        done = self.plan(keep, age)
        for run_id in sorted(set(done.manifest) - set(cleaned(self.log))):
            self.act("clean", "champion", run_id=run_id)
        for alias, release_id in done.oldest.items():
            self.act("clean", alias, target_release_id=release_id)
        self.rows = [row for row in self.rows if row[0] in done.whole or row[1] in done.manifest[row[0]]]
        self.models = {(r, key) for r, key in self.models if r in done.whole or key in done.store[r]}
        return done

    def is_kept(self, alias: str, as_of: str | None) -> bool:
        try:
            check_kept(self.log, ["champion", alias], as_of)
        except StateError:
            return False
        return True

    def questions(self) -> Iterator[tuple[str, str | None]]:
        """What may be asked: each alias, now and as of each release that is left."""
        moments = [None, *(row.release_id for row in self.log if row.action != "clean")]
        return (each for each in itertools.product(("champion", "challenger"), moments) if self.is_kept(*each))

    def live(self, alias: str, as_of: str | None, *, with_pins: bool = True) -> pd.DataFrame:
        plan = runs_to_read(self.log, self.runs, alias, as_of)
        rows = pd.DataFrame([row for row in self.rows if row[0] in plan.run_ids], columns=COLUMNS, dtype=object)
        found = self.folded(alias, as_of, plan) if with_pins else live_set(rows, plan, {})
        return found.sort_values("key_id", ignore_index=True)

    def lacking(self, models: dict[str, str]) -> list[tuple[str, str]]:
        """Return which of these models, or of the parents that they build on, are not there."""
        wanted = {(run_id, key) for key, run_id in models.items()}
        while more := {self.parents[each] for each in wanted if self.parents[each][0]} - wanted:
            wanted |= more  # type: ignore[arg-type]
        return sorted(wanted - self.models)


def models_of(live: pd.DataFrame) -> dict[str, str]:
    """Return key to model, keys without one left out."""
    served = live[live["model_run_id"].notna()] if len(live) else live.assign(model_run_id=None)
    return dict(zip(served["key_id"], served["model_run_id"], strict=True))


def live_event(history: Cleaned, event: tuple) -> None:
    if event[0] == "clean":
        history.clean(event[1], event[2])
    else:
        happen(history, event)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, min_size=5, max_size=18), KEEP, AGES)
def test_a_clean_changes_no_live_set_that_can_still_be_asked_for(events, keep, age):
    history = Cleaned()
    for event in events:
        happen(history, event)
    before = {asked: history.live(*asked) for asked in history.questions()}
    history.clean(keep, age)
    left = list(history.questions())
    assert ("champion", None) in left
    for asked in left:
        pd.testing.assert_frame_equal(history.live(*asked), before[asked])
        assert history.lacking(history.expected(*asked)) == []


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CLEANED, min_size=8, max_size=24))
def test_whatever_happens_between_cleans_the_live_sets_are_those_of_a_history_without_them(events):
    history = Cleaned()
    for event in [*events, ("clean", 2, dt.timedelta(0)), ("night", None, ("new", "failed") * 3)]:
        live_event(history, event)
    for asked in history.questions():
        served = models_of(history.live(*asked))
        assert served == history.expected(*asked)
        assert history.lacking(served) == []
