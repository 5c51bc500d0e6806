"""Which rows of old runs nothing refers to any more. Pure.

What must stay is told by states: the sets of runs that count now, at each release that stays, and at the base of
each run that may still finish. Whatever is published or rolled back later only adds runs to one of them, and a
decision that lost against a run of a state loses against it in every larger one.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from group_models.live.cleans import kept_releases, new_oldest, oldest_kept
from group_models.live.folding import live_set, own_models
from group_models.live.releases import (
    CHALLENGER,
    CHAMPION,
    FoldPlan,
    Release,
    RunInfo,
    base_counted,
    cleaned,
    counted,
    pins,
    runs_to_fold,
)

ALIASES = (CHAMPION, CHALLENGER)

YOUNG = dt.timedelta(days=7)
"""Age up to which a run that has not finished stays: somebody may still finish it."""

COLUMNS = ("run_id", "key_id", "status", "serves", "model_run_id", "parent_key_id", "parent_run_id")
"""What is read of the manifest."""


class ReadRows(Protocol):
    """Manifest rows of these runs, columns `COLUMNS`; only those of one status where one is given."""

    def __call__(self, run_ids: Sequence[str], status: str | None = None) -> pd.DataFrame:
        """Return the rows."""


@dataclasses.dataclass(frozen=True)
class History:
    """What has happened to a model set: its release log, oldest first, its runs, and which of them finished."""

    log: Sequence[Release]
    runs: Mapping[str, RunInfo]
    finished: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Retention:
    """What a clean leaves.

    Attributes
    ----------
    whole
        Runs that are left as they are, each with why.
    manifest, store
        Of the other runs the key ids whose manifest rows and whose models stay; none for a run that goes.
    why
        Of the other runs that keep something, for what: how many keys by reason.
    oldest
        Per alias the oldest release that one can go back to from now on, where that is another than before.
    bases
        Runs with parents on which models that stay build: their keys go on learning from the parts of these.
    """

    whole: Mapping[str, str]
    manifest: Mapping[str, frozenset[str]]
    store: Mapping[str, frozenset[str]]
    why: Mapping[str, Mapping[str, int]]
    oldest: Mapping[str, str]
    bases: frozenset[str] = frozenset()


def plan_retention(history: History, read: ReadRows, *, keep: int, now: dt.datetime) -> Retention:
    """Return what is left when so many releases of each alias stay ones that can be gone back to.

    Raises
    ------
    StateError
        A run that counts is not in the run table.
    """
    kept = {alias: kept_releases(history.log, alias, keep) for alias in ALIASES}
    unfinished = _unfinished(history, now)
    states = _states(history, kept, unfinished)
    plans = {state: runs_to_fold(history.log, history.runs, state) for state in states}
    whole = _whole_runs(history, keep, plans.values(), unfinished)
    oldest = new_oldest(history.log, kept)
    pairs, bases = _pairs(history, read, whole, plans, _pinned(history.log, oldest))
    pairs = pairs[~pairs["run_id"].isin(list(whole))]
    others = [run_id for run_id in history.runs if run_id not in whole]
    manifest, store = _by_run(pairs, others), _by_run(pairs[pairs["is_model"]], others)
    return Retention(whole, manifest, store, _reasons(pairs), oldest, bases)


def _unfinished(history: History, now: dt.datetime) -> list[str]:
    """Return the runs without an end that somebody may still finish."""
    newest = _newest_runs(history)
    left = [run for run_id, run in history.runs.items() if run_id not in history.finished]
    return [run.run_id for run in left if now - run.started_at < YOUNG or run.run_id in newest]


def _newest_runs(history: History) -> list[str]:
    """Return the runs that started since the release on which the newest of them builds, that one included."""
    if not history.runs:
        return []
    newest = max(history.runs.values(), key=lambda run: (run.started_at, run.run_id))
    since = [row.at for row in history.log if row.release_id == newest.base_release]
    return [run_id for run_id, run in history.runs.items() if not since or run.started_at >= since[0]]


def _states(history: History, kept: Mapping[str, Sequence[Release]], unfinished: Sequence[str]) -> set[frozenset[str]]:
    """Return the sets of runs that count for an alias, or may come to count, before others are added."""
    moments = {alias: [None, *(row.release_id for row in kept[alias])] for alias in ALIASES}
    champion = {counted(history.log, CHAMPION, moment) for moment in moments[CHAMPION]}
    # Each alias is rolled back alone, so any state of the one may meet any of the other.
    alone = [row for row in history.log if row.alias == CHALLENGER]
    challenger = {counted(alone, CHALLENGER, moment) for moment in moments[CHALLENGER]}
    both = {first | second for first in champion for second in challenger}
    return champion | both | {base_counted(history.log, history.runs[run_id]) for run_id in unfinished}


def _whole_runs(history: History, keep: int, plans: Iterable[FoldPlan], unfinished: Sequence[str]) -> dict[str, str]:
    """Return the runs that are left as they are, with why. One that was cleaned before is whole no more."""
    why = {plan.base_run_id: "a live set is read from it" for plan in plans if plan.base_run_id}
    why |= dict.fromkeys(_newest_runs(history), "started since the release on which the newest run builds")
    for alias in ALIASES:
        published = [row for row in history.log if (row.action, row.alias) == ("publish", alias)][-keep:]
        why |= {row.run_id: f"published to {alias} as {row.release_id}" for row in published if row.run_id}
    why |= {run_id: f"not finished; `train SPEC --run-id {run_id}` finishes it" for run_id in unfinished}
    gone = cleaned(history.log)
    return {run_id: said for run_id, said in why.items() if run_id not in gone}


def _pinned(log: Sequence[Release], oldest: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the keys that are pinned now or were at a moment that can still be asked for, and to which runs."""
    firsts = {alias: _first(log, alias, oldest) for alias in ALIASES}
    found: set[tuple[str, str]] = set()
    for alias in ALIASES:
        asked = [first for first in (firsts[alias], firsts[CHAMPION]) if first]
        first = max(asked, key=lambda row: row.at, default=None)
        held = pins(log, alias, first.release_id) if first else {}
        later = [row for row in log if (row.action, row.alias) == ("pin", alias) and (not first or row.at > first.at)]
        found |= {*held.items(), *((row.key_id or "", row.run_id or "") for row in later)}
    return found


def _first(log: Sequence[Release], alias: str, oldest: Mapping[str, str]) -> Release | None:
    """Return the oldest release of an alias that can be asked for after the clean; None where all can."""
    named = [row for row in log if row.release_id == oldest.get(alias)]
    return named[0] if named else oldest_kept(log, alias)


def _pairs(
    history: History,
    read: ReadRows,
    whole: Mapping[str, str],
    plans: Mapping[frozenset[str], FoldPlan],
    pinned: set[tuple[str, str]],
) -> tuple[pd.DataFrame, frozenset[str]]:
    """Return what stays as `run_id, key_id, is_model, why`, and the runs of parents that models of it build on.

    What is no model stays in the manifest alone.
    """
    folded = {run_id for plan in plans.values() for run_id in plan.run_ids}
    rows = read(sorted({*whole, *folded, *(run_id for _, run_id in pinned)}))
    handed_over = read(sorted(history.runs), "rejected")
    handed_over = handed_over[handed_over["serves"] == "parent"]
    found = [_of_pins(rows, pinned)]
    for state, plan in plans.items():
        live = live_set(rows[rows["run_id"].isin(plan.run_ids)], plan, {})
        found += [_of_live(live), _handed_over(handed_over, state, live, history.runs)]
    found.append(_of_whole(rows, whole))
    pairs, bases = _with_parents(pd.concat(found, ignore_index=True), read, whole)
    return _distinct(pairs), bases


def _frame(run_ids: Iterable[str], key_ids: Iterable[str], why: str, *, is_model: bool) -> pd.DataFrame:
    frame = pd.DataFrame({"run_id": list(run_ids), "key_id": list(key_ids)}, dtype=object)
    return frame[frame["run_id"].notna()].assign(is_model=is_model, why=why)


def _of_live(live: pd.DataFrame) -> pd.DataFrame:
    """Return the models of a live set, and the newest row of each key, which tells its status."""
    models = _frame(live["model_run_id"], live["key_id"], "serve", is_model=True)
    return pd.concat([models, _frame(live["newest_run_id"], live["key_id"], "newest rows", is_model=False)])


def _handed_over(
    rows: pd.DataFrame, state: frozenset[str], live: pd.DataFrame, runs: Mapping[str, RunInfo]
) -> pd.DataFrame:
    """Return the rows by which a gate left a key of a state to its parent: without them an older model came back."""
    served = live.loc[live["model_run_id"].notna(), "key_id"]
    left = rows[rows["run_id"].isin(list(state)) & ~rows["key_id"].isin(served)]
    by_start = left.assign(at=left["run_id"].map({run_id: run.started_at for run_id, run in runs.items()}))
    last = by_start.sort_values(["at", "run_id"]).drop_duplicates("key_id", keep="last")
    return _frame(last["run_id"], last["key_id"], "left to the parent", is_model=False)


def _of_pins(rows: pd.DataFrame, pinned: set[tuple[str, str]]) -> pd.DataFrame:
    held = rows[_is_among(rows, {(run_id, key_id) for key_id, run_id in pinned})]
    pinned_rows = _frame(held["run_id"], held["key_id"], "pinned", is_model=False)
    return pd.concat([pinned_rows, _frame(own_models(held), held["key_id"], "pinned", is_model=True)])


def _of_whole(rows: pd.DataFrame, whole: Mapping[str, str]) -> pd.DataFrame:
    """Return the earlier models that runs which stay name as what serves on."""
    own = rows[rows["run_id"].isin(list(whole))]
    return _frame(own_models(own), own["key_id"], "named by runs that stay", is_model=True)


def _with_parents(pairs: pd.DataFrame, read: ReadRows, whole: Mapping[str, str]) -> tuple[pd.DataFrame, frozenset[str]]:
    """Add the parents on which models build, or that serve, and theirs; return also the runs that are built on."""
    bases: set[str] = set()
    known = set(_places(pairs[pairs["is_model"]]))
    children = known
    runs = {*whole, *(run_id for run_id, _ in known)}
    while runs:
        rows = read(sorted(runs))
        rows = rows[rows["parent_run_id"].notna()]
        is_child = _is_among(rows, children) | rows["run_id"].isin(list(whole)).to_numpy()
        bases |= set(rows.loc[is_child & (rows["serves"] != "parent"), "parent_run_id"])
        named = rows.loc[is_child, ["parent_run_id", "parent_key_id"]].drop_duplicates()
        parents = _frame(named["parent_run_id"], named["parent_key_id"], "parents", is_model=True)
        children = set(_places(parents)) - known
        runs = {run_id for run_id, _ in children}
        known |= children
        pairs = pd.concat([pairs, parents], ignore_index=True)
    return pairs, frozenset(bases)


def _is_among(rows: pd.DataFrame, places: Collection[tuple[str, str]]) -> npt.NDArray[np.bool_]:
    return np.array([place in places for place in _places(rows)], dtype=np.bool_)


def _places(pairs: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(pairs["run_id"], pairs["key_id"], strict=True))


def _distinct(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return each key of a run once, as a model where it is one."""
    ordered = pairs.sort_values("is_model", ascending=False, kind="stable")
    return ordered.drop_duplicates(["run_id", "key_id"], ignore_index=True)


def _by_run(pairs: pd.DataFrame, run_ids: Sequence[str]) -> dict[str, frozenset[str]]:
    found = {str(run_id): frozenset(keys) for run_id, keys in pairs.groupby("run_id")["key_id"]}
    return {run_id: found.get(run_id, frozenset()) for run_id in run_ids}


def _reasons(pairs: pd.DataFrame) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for run_id, why in zip(pairs["run_id"], pairs["why"], strict=True):
        of_run = counts.setdefault(run_id, {})
        of_run[why] = of_run.get(why, 0) + 1
    return counts
