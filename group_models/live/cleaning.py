"""Remove the rows of old runs that nothing refers to any more: first planned, then told to the log, then done."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from group_models.errors import StateError
from group_models.live import releases
from group_models.live.publishing import append_acts, user
from group_models.live.releases import Act, Release
from group_models.live.retention import COLUMNS, History, Retention, plan_retention
from group_models.live.sets import read_releases
from group_models.ports import Tables, Where
from group_models.tables import MANIFEST, PLAN, RUN, STORE, TRIALS, WHOLE, utc_now
from group_models.texts import counts_text, facts_html

IDLE = dt.timedelta(days=2)
"""How long nobody must have touched what killed writers or earlier cleans have left."""


_SAID = {PLAN.name: "plan", STORE.name: "store", MANIFEST.name: "manifest"}


@dataclasses.dataclass(frozen=True)
class RunLoss:
    """What one run loses: rows by table, and bytes of models."""

    rows: Mapping[str, int]
    bytes: int

    def words(self) -> str:
        """Return the loss as a person reads it."""
        rows = {_SAID[name]: count for name, count in self.rows.items()}
        return f"{counts_text(rows)} rows; {self.bytes / 2**20:,.1f} MiB of models"


@dataclasses.dataclass(frozen=True, repr=False)
class Cleaning:
    """What a clean removes and what it keeps.

    Attributes
    ----------
    losses
        The runs that lose rows, in the order in which they started.
    parts
        What of salted keys goes in runs that stay as they are: the rows of parts that became an ensemble.
    is_done
        It has been done; else it is a plan.
    leftovers
        Folders of killed writers and earlier cleans that were removed.
    """

    model_set: str
    keep: int
    retention: Retention
    losses: Mapping[str, RunLoss]
    parts: Mapping[str, RunLoss] = dataclasses.field(default_factory=dict)
    is_done: bool = False
    leftovers: int = 0

    def facts(self) -> dict[str, str]:
        """Return the clean as fact and text."""
        rows = {name: sum(loss.rows.get(name, 0) for loss in self.losses.values()) for name in _SAID}
        whole = RunLoss(rows, sum(loss.bytes for loss in self.losses.values()))
        of_parts = RunLoss(
            {STORE.name: sum(loss.rows[STORE.name] for loss in self.parts.values())},
            sum(loss.bytes for loss in self.parts.values()),
        )
        parts = sum(bool(self.retention.manifest[run_id]) for run_id in self.losses)
        oldest = {f"oldest release of {alias}": text for alias, text in self.retention.oldest.items()}
        last = {"leftovers": f"{self.leftovers} of killed writers and earlier cleans removed"} if self.is_done else {}
        return {
            "removed" if self.is_done else "would be removed": whole.words(),
            "runs": f"{len(self.losses) - parts} go, {parts} lose rows, {len(self.retention.whole)} stay as they are",
            **({"parts of ensembles": of_parts.words()} if self.parts else {}),
            **(oldest if self.losses else {}),
            **last,
        }

    def rows(self) -> list[dict[str, str]]:
        """Return one row per run that loses rows or is kept: what goes, what stays, and why."""
        goes = {run_id: f"parts: {loss.words()}" for run_id, loss in self.parts.items()}
        goes |= {run_id: loss.words() for run_id, loss in self.losses.items()}
        stays = {run_id: f"keys: {counts_text(why)}" for run_id, why in self.retention.why.items()}
        stays |= self.retention.whole
        return [
            {"run": run_id, "goes": goes.get(run_id, ""), "stays": stays.get(run_id, "")}
            for run_id in [*goes, *(run_id for run_id in stays if run_id not in goes)]
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the clean as plain values, for JSON."""
        losses = {run_id: {"rows": dict(loss.rows), "bytes": loss.bytes} for run_id, loss in self.losses.items()}
        kept = {run_id: dict(why) for run_id, why in self.retention.why.items()}
        return {
            "model_set": self.model_set, "keep": self.keep, "is_done": self.is_done, "leftovers": self.leftovers,
            "removed": losses,
            "parts": {run_id: {"rows": dict(loss.rows), "bytes": loss.bytes} for run_id, loss in self.parts.items()},
            "kept": dict(self.retention.whole), "kept_keys": kept,
            "oldest": dict(self.retention.oldest),
        }  # fmt: skip

    def __repr__(self) -> str:
        """Return the clean in one line."""
        said = ", ".join(f"{name}: {text}" for name, text in self.facts().items())
        return f"Cleaning({self.model_set}, keep {self.keep}; {said})"

    def _repr_html_(self) -> str:
        return facts_html(f"Clean of {self.model_set}", self.facts())


def plan_clean(tables: Tables, model_set: str, *, keep: int, log: Sequence[Release] | None = None) -> Cleaning:
    """Return what a clean would remove; nothing is changed.

    Parameters
    ----------
    keep
        How many releases of each alias stay ones that can be gone back to.
    log
        The release log to plan on; by default as it is now.

    Raises
    ------
    StateError
        The model set has no run.
    """
    log = read_releases(tables, model_set) if log is None else log
    rows = tables.read(RUN, where={"model_set": [model_set]})
    if not rows.num_rows:
        raise StateError(f"model set {model_set} has no run yet, so there is nothing to clean; is the warehouse right?")
    ended = rows.filter(np.equal(rows["event"].to_numpy(zero_copy_only=False), "finished"))["run_id"].to_pylist()
    history = History(log, releases.runs_from(rows), frozenset(ended))

    def read(run_ids: Sequence[str], status: str | None = None) -> pd.DataFrame:
        where: Where = {"model_set": [model_set], "run_id": run_ids} | ({"status": [status]} if status else {})
        return pd.DataFrame(tables.read(MANIFEST, columns=COLUMNS, where=where).to_pandas())

    retention = plan_retention(history, read, keep=keep, now=utc_now())
    losses = _losses(tables, model_set, history, retention)
    kept = {run_id: retention.store[run_id] for run_id in losses}
    parted = history.finished - retention.bases
    return Cleaning(model_set, keep, retention, losses, _parts(tables, model_set, parted, kept))


def clean(tables: Tables, model_set: str, *, keep: int) -> Cleaning:
    """Remove the rows of old runs that nothing refers to, and of finished runs those of parts that are an ensemble now.

    The log says first what goes, on which it was decided: who publishes, rolls back or pins meanwhile knows.
    A clean that is killed is ended by the next one.
    """
    planned: list[Cleaning] = []

    def acts(log: Sequence[Release]) -> list[Act]:
        planned.append(plan_clean(tables, model_set, keep=keep, log=log))
        return _acts(planned[-1], log)

    append_acts(tables, model_set, acts)
    done = planned[-1]
    nothing: dict[str, frozenset[str]] = dict.fromkeys(done.losses, frozenset())
    tables.keep_only(PLAN, nothing, model_set=model_set)
    tables.keep_only(TRIALS, nothing, model_set=model_set)
    # Nothing reads a part once its ensemble is there and the run has finished, unless keys build on it.
    models = _keys_of_runs(tables, model_set, list(done.parts))
    models |= {run_id: done.retention.store[run_id] for run_id in done.losses}
    built_on = {run_id: keys for run_id, keys in models.items() if run_id in done.retention.bases}
    others = {run_id: keys for run_id, keys in models.items() if run_id not in built_on}
    tables.keep_only(STORE, built_on, model_set=model_set)
    tables.keep_only(STORE, others, model_set=model_set, where=_ENSEMBLES)
    # The manifest last: by its rows the next clean finds what a killed one has left.
    tables.keep_only(MANIFEST, {run_id: done.retention.manifest[run_id] for run_id in done.losses}, model_set=model_set)
    return dataclasses.replace(done, is_done=True, leftovers=tables.sweep(model_set=model_set, idle=IDLE))


def _acts(planned: Cleaning, log: Sequence[Release]) -> list[Act]:
    """Return a row for each run that loses rows for the first time, and for each alias whose oldest release changes."""
    if not planned.losses:
        return []
    gone = releases.cleaned(log)

    def act(alias: str, run_id: str | None = None, oldest: str | None = None) -> Act:
        return Act(
            model_set=planned.model_set, alias=alias, action="clean", run_id=run_id, target_release_id=oldest,
            by=user(), note=f"keep {planned.keep}",
        )  # fmt: skip

    runs = [act(releases.CHAMPION, run_id) for run_id in planned.losses if run_id not in gone]
    return runs + [act(alias, oldest=release_id) for alias, release_id in planned.retention.oldest.items()]


def _losses(tables: Tables, model_set: str, history: History, retention: Retention) -> dict[str, RunLoss]:
    """Return the runs that lose rows, with how many of which table, and the bytes of their models.

    A run that keeps all that it has but its plan is left alone.
    """
    where: Where = {"model_set": [model_set], "run_id": sorted(retention.manifest)}
    kept = {PLAN.name: {}, STORE.name: retention.store, MANIFEST.name: retention.manifest}
    lost = {
        table.name: _lost(tables.read(table, columns=[*columns], where=where).to_pandas(), kept[table.name])
        for table, columns in ((PLAN, _OF_ROW), (STORE, (*_OF_ROW, "model_bytes")), (MANIFEST, _OF_ROW))
    }
    counts = {name: rows["run_id"].value_counts().to_dict() for name, rows in lost.items()}
    models = lost[STORE.name].groupby("run_id")["model_bytes"].sum()
    found = {}
    for run_id in sorted(retention.manifest, key=lambda run_id: (history.runs[run_id].started_at, run_id)):
        rows = {name: of_table[run_id] for name, of_table in counts.items() if run_id in of_table}
        if rows and (set(rows) != {PLAN.name} or not retention.manifest[run_id]):
            found[run_id] = RunLoss(rows, int(models.get(run_id, 0)))
    return found


def _parts(
    tables: Tables, model_set: str, finished: Collection[str], kept: Mapping[str, frozenset[str]]
) -> dict[str, RunLoss]:
    """Return per finished run the parts of salted keys that stay, all but in the runs `kept`; nothing where none."""
    where: Where = {"model_set": [model_set], "run_id": sorted(finished)}
    rows = tables.read(STORE, columns=[*_OF_ROW, "part", "model_bytes"], where=where).to_pandas()
    parts = rows[rows["part"] != WHOLE]
    stays = [
        run_id not in kept or key_id in kept[run_id]
        for run_id, key_id in zip(parts["run_id"], parts["key_id"], strict=True)
    ]
    parts = parts[np.array(stays, dtype=np.bool_)]
    return {
        str(run_id): RunLoss({STORE.name: len(of_run)}, int(of_run["model_bytes"].sum()))
        for run_id, of_run in parts.groupby("run_id")
    }


def _keys_of_runs(tables: Tables, model_set: str, run_ids: Sequence[str]) -> dict[str, frozenset[str]]:
    where: Where = {"model_set": [model_set], "run_id": run_ids}
    rows = tables.read(STORE, columns=["run_id", "key_id"], where=where).to_pandas()
    return {str(run_id): frozenset(keys) for run_id, keys in rows.groupby("run_id")["key_id"]}


_ENSEMBLES: Where = {"part": [WHOLE]}

_OF_ROW = ("run_id", "key_id")


def _lost(rows: pd.DataFrame, kept: Mapping[str, frozenset[str]]) -> pd.DataFrame:
    places = zip(rows["run_id"], rows["key_id"], strict=True)
    stays = [key_id in kept.get(run_id, ()) for run_id, key_id in places]
    return rows[~np.array(stays, dtype=np.bool_)]
