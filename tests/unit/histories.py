"""Random histories of a model set, and what must serve each key, kept in another way than the package keeps it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pandas as pd
from hypothesis import strategies as st

from group_models.live.cleans import oldest_kept
from group_models.live.folding import live_set
from group_models.live.releases import FoldPlan, Release, RunInfo, cleaned, counted, hold, pins

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COLUMNS = ["run_id", "key_id", "status", "serves", "model_run_id"]

KEYS = {"ua1": "ua", "ua2": "ua", "ua3": "ua", "dl1": "dl", "dl2": "dl", "dl3": "dl"}
"""Keys and their carriers; a scoped run is of one carrier."""

PARENTS = {"ua1": "ua2", "ua2": "dl1"}
"""Keys whose new models build on the model that served another key when their run started."""

OUTCOMES = ("new", "new", "unchanged", "failed", "kept", "to_parent", "too_small", "vanished")


class History:
    """A model set as a product would keep it, and beside it the answers, kept as dictionaries.

    The dictionaries never look at a manifest row or fold the log backwards: they replay the log forwards, and
    remember of each run what it decided.
    """

    def __init__(self) -> None:
        self.log: list[Release] = []
        self.runs: dict[str, RunInfo] = {}
        self.rows: list[tuple[str | None, ...]] = []
        self.decided: dict[str, dict[str, str | None]] = {}
        self.serving: dict[str, dict[str, str | None]] = {}
        self.begun: dict[str, str | None] = {}
        self.parents: dict[tuple[str, str], tuple[str | None, str | None]] = {}
        self.held = dict.fromkeys(("champion", "challenger"), False)
        self.now = EPOCH

    def tick(self) -> dt.datetime:
        self.now += dt.timedelta(seconds=1)
        return self.now

    def start(self, carrier: str | None, outcomes: Sequence[str]) -> str:
        run_id = self.begin(carrier)
        self.end(outcomes, run_id)
        return run_id

    def begin(self, carrier: str | None) -> str:
        run_id = f"r{len(self.runs)}"
        base = self.log[-1].release_id if self.log else None
        self.runs[run_id] = RunInfo(run_id, self.tick(), carrier is None, base)
        self.begun[run_id] = carrier
        return run_id

    def end(self, outcomes: Sequence[str], run_id: str | None = None) -> None:
        """Let a run end that has begun, by default the first; one that was cleaned meanwhile cannot."""
        left = [begun for begun in self.begun if begun not in cleaned(self.log)]
        if not left:
            return
        run_id = run_id or left[0]
        carrier = self.begun.pop(run_id)
        base = self.runs[run_id].base_release
        before = self.replay("champion", base) if base else {}
        self.decided[run_id], self.serving[run_id] = {}, {}
        for (key, of_carrier), outcome in zip(KEYS.items(), outcomes, strict=True):
            if carrier in (None, of_carrier):
                self.add_row(run_id, key, outcome, before.get(key))
                self.parents[run_id, key] = (before.get(PARENTS.get(key, "")), PARENTS.get(key))

    def add_row(self, run_id: str, key: str, outcome: str, before: str | None) -> None:
        if outcome == "vanished" and before is None:
            return  # not in the data and never had a model: no row
        if outcome == "new" or (outcome in ("unchanged", "kept") and before is None):
            row, decided = ("trained", "new", run_id), {key: run_id}
        elif outcome == "to_parent":
            row, decided = ("rejected", "parent", None), {key: None}
        else:
            status = {"kept": "rejected"}.get(outcome, outcome)
            row, decided = (status, "previous" if before else "parent", before), {}
        self.rows.append((run_id, key, *row))
        self.decided[run_id] |= decided
        self.serving[run_id][key] = row[2]

    def act(self, action: str, alias: str, **what: str | None) -> None:
        at = self.tick()
        made = Release(model_set="m", alias=alias, action=action, release_id=f"x{len(self.log)}", at=at, **what)
        self.log.append(made)
        self.held[alias] = action in ("rollback", "adopt") or (action != "publish" and self.held[alias])

    def moment_of(self, as_of: str | None) -> int:
        return len(self.log) if as_of is None else 1 + [row.release_id for row in self.log].index(as_of)

    def replay(self, alias: str, as_of: str | None) -> dict[str, str | None]:
        """Return key to model, without pins, by replaying the log forwards."""
        counts: dict[str, set[str]] = {"champion": set(), "challenger": set()}
        snapshots: dict[str, set[str]] = {}
        for row in self.log[: self.moment_of(as_of)]:
            if row.action == "publish":
                counts[row.alias] = {*counts[row.alias], row.run_id}
            elif row.action in ("rollback", "adopt"):
                counts[row.alias] = snapshots[row.target_release_id]
            snapshots[row.release_id] = counts[row.alias]
        runs = counts["champion"] | (counts["challenger"] if alias == "challenger" else set())
        live: dict[str, str | None] = {}
        for run_id in sorted(runs, key=lambda each: self.runs[each].started_at):
            live.update(self.decided[run_id])
        return live

    def expected(self, alias: str, as_of: str | None) -> dict[str, str]:
        live = self.replay(alias, as_of)
        for row in self.log[: self.moment_of(as_of)]:
            if row.alias == alias and row.action == "pin":
                live[f"pin {row.key_id}"] = self.serving[row.run_id][row.key_id]
            elif row.alias == alias and row.action == "unpin":
                live.pop(f"pin {row.key_id}", None)
        laid_over = {key: live.get(f"pin {key}", live.get(key)) for key in KEYS}
        return {key: model for key, model in laid_over.items() if model is not None}

    def folded(self, alias: str, as_of: str | None, plan: FoldPlan) -> pd.DataFrame:
        """Return the live set as the product makes it: from the rows of the runs to read and of the pins."""
        held = pins(self.log, alias, as_of)
        wanted = {*plan.run_ids, *held.values()}
        rows = pd.DataFrame(self.rows, columns=COLUMNS, dtype=object)
        return live_set(rows[rows["run_id"].isin(wanted)].iloc[::-1], plan, held)

    def naive_plan(self, alias: str, as_of: str | None) -> FoldPlan:
        runs = counted(self.log, alias, as_of)
        return FoldPlan(None, tuple(run_id for run_id in self.runs if run_id in runs))

    def finished(self) -> list[str]:
        return [run_id for run_id in self.runs if run_id not in self.begun]

    def may_pin(self, alias: str, run_id: str, key: str) -> bool:
        """Of a run that was cleaned only its models that serve now are sure to be there."""
        return run_id not in cleaned(self.log) or run_id == self.expected(alias, None).get(key)

    def may_go_back_to(self, alias: str) -> list[str]:
        first = oldest_kept(self.log, alias)
        return [row.release_id for row in self.log if row.alias == alias and (not first or row.at >= first.at)]


ALIASES = st.sampled_from(["champion", "champion", "champion", "challenger"])
SCOPES = st.sampled_from([None, None, "ua", "dl"])
ANY = st.integers(0, 99)
RECENT = st.integers(-4, -1)
EACH_KEY = st.tuples(*[st.sampled_from(OUTCOMES)] * len(KEYS))
EVENTS = st.one_of(
    st.tuples(st.just("start"), SCOPES, EACH_KEY),
    st.tuples(st.just("night"), SCOPES, EACH_KEY),
    st.tuples(st.just("night"), SCOPES, EACH_KEY),
    st.tuples(st.just("begin"), SCOPES, ANY),
    st.tuples(st.just("end"), SCOPES, EACH_KEY),
    st.tuples(st.just("publish"), ALIASES, RECENT),
    st.tuples(st.just("publish"), ALIASES, ANY),
    st.tuples(st.sampled_from(["rollback", "adopt"]), ALIASES, RECENT | ANY),
    st.tuples(st.sampled_from(["pin", "unpin"]), ALIASES, ANY),
)


def happen(history: History, event: tuple) -> None:
    """Let one event happen, where it can; a night is a run that is published when it ends, unless it is held."""
    action, alias, choice = event
    own = history.may_go_back_to(alias)
    whole = [run_id for run_id in history.finished() if run_id not in cleaned(history.log)]
    if action in ("start", "night"):
        run_id = history.start(alias, choice)
        if action == "night" and hold(history.log) is None:
            history.act("publish", "champion", run_id=run_id)
    elif action == "begin":
        history.begin(alias)
    elif action == "end":
        history.end(choice)
    elif action == "publish" and whole:
        history.act("publish", alias, run_id=whole[choice % len(whole)])
    elif action in ("rollback", "adopt") and own:
        history.act(action, alias, target_release_id=own[choice % len(own)])
    elif action == "unpin":
        history.act("unpin", alias, key_id=list(KEYS)[choice % len(KEYS)])
    elif action == "pin" and history.serving:
        places = [(run_id, key) for run_id, served in history.serving.items() for key in served]
        run_id, key = places[choice % len(places)] if places else ("", "")
        if places and history.may_pin(alias, run_id, key):
            history.act("pin", alias, key_id=key, run_id=run_id)
