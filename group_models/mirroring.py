"""Keep a registered model in step with the release log: adopt moves by hand, make versions, move aliases."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from group_models.comparing import error_together
from group_models.errors import MovedAliasError, StateError
from group_models.live import mirrors
from group_models.live.metrics import read_metric
from group_models.live.publishing import append_acts, user
from group_models.live.releases import Act, Release
from group_models.live.sets import Alias, Live, read_live, read_releases
from group_models.ports import ModelRegistry, Tables, Where
from group_models.serving.bundles import MODEL_COLUMNS, write_bundle
from group_models.spec import Metric, Registration, Scoring
from group_models.tables import MANIFEST, NEW_MODEL, STORE, WHOLE

_TRIES = 20
"""Versions of one alias that a changing log may make useless before we give up."""

_READ_KEYS = 2_000
"""Models read at once, so that memory is bounded."""


@dataclasses.dataclass(frozen=True)
class Mirroring:
    """What a model set's log is kept in step with, and by which rules."""

    tables: Tables
    model_set: str
    registry: ModelRegistry
    rules: Registration
    scoring: Scoring

    def keep_in_step(self) -> list[Release]:
        """Complete what is not shown yet, adopt what was moved by hand, and return the rows that came to the log.

        Raises
        ------
        MovedAliasError
            An alias was moved in a way that is refused.
        StateError
            The models are more than a version may hold, or the tables cannot be read or written.
        ServerError
            The registry cannot be reached, or refuses.
        """
        return [*self.adopt(), *self.show()]

    def adopt(self) -> list[Release]:
        """Make a move of an alias by hand a row of the log, or refuse it by name.

        Raises
        ------
        MovedAliasError
            It is refused.
        """
        if not self.registry.has_aliases:
            return []
        return [row for alias in mirrors.ALIASES for row in self._adopt(alias)]

    def _adopt(self, alias: str) -> list[Release]:
        log = read_releases(self.tables, self.model_set)
        shown = mirrors.last_mirror(log, alias)
        if shown is None or not mirrors.is_mirrored(log, alias):
            return []
        version = self.registry.version_of(alias)
        if version is None or version == shown.registered_version:
            return []
        if not mirrors.is_moved(log, alias, version):
            if self.registry.state_of(version) is not None:
                # Ours, and of no release: whoever made it was stopped, or is about to go on.
                return []
            raise MovedAliasError(f"{self.registry.describe()}: {mirrors.foreign_text(log, alias, version)}")
        if self.rules.on_moved_alias == "refuse":
            raise MovedAliasError(f"{self.registry.describe()}: {mirrors.moved_text(log, alias, version)}")

        def acts(log: Sequence[Release]) -> Sequence[Act]:
            # Another process may have adopted it, or released something, meanwhile.
            is_still = mirrors.is_moved(log, alias, version)
            return mirrors.adopting_acts(log, alias, version, by=user()) if is_still else []

        return append_acts(self.tables, self.model_set, acts)

    def show(self) -> list[Release]:
        """Let the registry show what the log says of each alias, and return the rows `mirror` that came."""
        return [row for alias in mirrors.ALIASES for row in self._show(cast("Alias", alias))]

    def _show(self, alias: Alias) -> list[Release]:
        for _ in range(_TRIES):
            log = read_releases(self.tables, self.model_set)
            act = mirrors.newest_act(log, alias)
            if act is None:
                return []
            live = read_live(self.tables, self.model_set, alias, log[-1].release_id)
            state = mirrors.state_of(live, self.scoring)
            if mirrors.is_mirrored(log, alias, state) or self._is_moved(log, alias):
                self._put_back(log, alias)
                return []
            if rows := self._show_act(alias, act, live, state):
                return rows
        raise StateError(f"the release log of {self.model_set} changed {_TRIES} times while a version was made")

    def _put_back(self, log: Sequence[Release], alias: Alias) -> None:
        """Move an alias that is lost, or was left by who was stopped half-way, to the version that the log names.

        One that was moved by hand since `adopt` looked is left for the next time.
        """
        shown = mirrors.last_mirror(log, alias)
        if shown is None or shown.registered_version is None or not self.registry.has_aliases:
            return
        version = self.registry.version_of(alias)
        if version != shown.registered_version and not mirrors.is_moved(log, alias, version):
            self.registry.move(alias, shown.registered_version)

    def _is_moved(self, log: Sequence[Release], alias: Alias) -> bool:
        return self.registry.has_aliases and mirrors.is_moved(log, alias, self.registry.version_of(alias))

    def _show_act(self, alias: Alias, act: Release, live: Live, state: str) -> list[Release]:
        version = self._version(live, act, state)

        def acts(log: Sequence[Release]) -> Sequence[Act]:
            if mirrors.newest_act(log, alias) != act or mirrors.is_mirrored(log, alias, state):
                return []
            return [mirrors.mirror_act(act, alias, version, state, by=user())]

        if not acts(read_releases(self.tables, self.model_set)):
            return []
        if self.registry.has_aliases:
            self.registry.move(alias, version)
        rows = append_acts(self.tables, self.model_set, acts)
        if not rows and self.registry.has_aliases:
            self._undo_move(alias)
        return rows

    def _undo_move(self, alias: Alias) -> None:
        """Move an alias to the version that the log names, after a move of ours that another process was faster than.

        It is not asked whether somebody moved it by hand: it was us, and it looks the same.
        """
        before = None
        while (shown := self._last_shown(alias)) != before and shown is not None:
            self.registry.move(alias, shown)
            before = shown

    def _last_shown(self, alias: Alias) -> str | None:
        """Return the version that the log names; None where it has something that is not shown yet."""
        log = read_releases(self.tables, self.model_set)
        shown = mirrors.last_mirror(log, alias)
        return shown.registered_version if shown is not None and mirrors.is_mirrored(log, alias) else None

    def _version(self, live: Live, act: Release, state: str) -> str:
        """Return the version that holds a state, which is made where there is none yet."""
        known = mirrors.version_of_state(read_releases(self.tables, self.model_set), state)
        return known or self.registry.find(state) or self._add(live, act, state)

    def _add(self, live: Live, act: Release, state: str) -> str:
        from group_models.adapters.mlflow_router import DATA_FILE, save_router

        self._check_size(live)
        about = {"model_set": self.model_set, "release_id": act.release_id, "state": state}
        with _building(self.model_set), tempfile.TemporaryDirectory(prefix="group-models-") as folder:
            file = Path(folder) / DATA_FILE
            write_bundle(file, live, self.scoring, read_models(self.tables, self.model_set, live))
            save_router(Path(folder) / "model", file, live, about)
            return self.registry.add(
                Path(folder) / "model", state=state, tags=self._tags(live, act), description=_description(live, act)
            )

    def _check_size(self, live: Live) -> None:
        sizes = live.keys.loc[live.keys["model_run_id"].notna(), "model_bytes"].fillna(0)
        if live.bases():
            of_bases = live.keys.dropna(subset="parent_run_id").drop_duplicates(["parent_run_id", "parent_key_id"])
            sizes = pd.concat([sizes, of_bases["parent_model_bytes"].fillna(0)])
        if (total := int(sizes.sum())) > self.rules.max_bytes:
            raise StateError(
                f"{self.model_set} serves {len(sizes):,} models of {total:,} bytes together, and a version may hold "
                f"{self.rules.max_bytes:,}: no version was registered. Raise `register: {{max_bytes: ...}}`, or train "
                "smaller models; batch scoring takes any size"
            )

    def _tags(self, live: Live, act: Release) -> dict[str, str]:
        """Return what a version says of itself; names that every registry takes."""
        own = live.own_keys()
        models = own["model_run_id"].dropna()
        metric = read_metric(self.tables, self.model_set, sorted(set(live.keys["newest_run_id"].dropna())))
        error = _error(self.tables, self.model_set, live, metric)
        return {
            "group_models_release": act.release_id,
            "group_models_run": act.run_id or "",
            "group_models_keys": str(len(own)),
            "group_models_models": str(len(models)),
            **({} if error is None else {f"group_models_{metric}": f"{error:.6g}"}),
        }


@contextlib.contextmanager
def _building(model_set: str) -> Iterator[None]:
    """Turn what the disk refuses into one sentence."""
    try:
        yield
    except (OSError, sqlite3.Error) as e:
        said = f"the router of {model_set} cannot be written to {tempfile.gettempdir()}: {e}"
        raise StateError(f"{said}. Make room there, or set TMPDIR to a folder that has it") from e


def _description(live: Live, act: Release) -> str:
    models = int(live.keys["model_run_id"].notna().sum())
    return f"{models:,} models of {act.model_set} as of release {act.release_id} ({act.action} to {act.alias})."


def _error(tables: Tables, model_set: str, live: Live, metric: Metric) -> float | None:
    """Return the error of the keys' models over the rows of their holdouts; None without any."""
    served = live.own_keys()["model_run_id"].dropna().to_dict()
    where: Where = {"model_set": [model_set], "run_id": sorted(set(served.values())), "status": NEW_MODEL}
    rows = tables.read(MANIFEST, columns=["run_id", "key_id", "metrics", "holdout_rows"], where=where).to_pylist()
    measured = [
        (dict(row["metrics"])[metric], row["holdout_rows"])
        for row in rows
        if served.get(row["key_id"]) == row["run_id"] and metric in dict(row["metrics"] or ())
    ]
    errors, rows_of = np.array(measured, dtype=np.float64).reshape(-1, 2).T
    return error_together(metric, errors, rows_of) if rows_of.sum() else None


def _places(live: Live) -> pd.DataFrame:
    """Return where the models are that serve and those that they build on: `run_id, key_id, number`, each once."""
    keys = live.keys.rename_axis("key_id").reset_index()
    own = keys[["model_run_id", "key_id", "number"]].set_axis(_PLACE, axis=1)
    bases = [keys[["parent_run_id", "parent_key_id", "parent_number"]].set_axis(_PLACE, axis=1)] if live.bases() else []
    found = pd.concat([own, *bases], ignore_index=True)
    found = found[found["run_id"].notna() & found["number"].notna()]
    return found.assign(number=found["number"].astype(np.int64)).drop_duplicates(ignore_index=True)


_PLACE = ["run_id", "key_id", "number"]


def read_models(tables: Tables, model_set: str, live: Live) -> Iterator[Mapping[str, Any]]:
    """Yield the store row of each model that serves or that one builds on, a part of them in memory at a time.

    Raises
    ------
    StateError
        The store lacks one.
    """
    stored = _places(live)
    for start in range(0, len(stored), _READ_KEYS):
        part = stored.iloc[start : start + _READ_KEYS]
        wanted = Counter(zip(part["run_id"], part["key_id"], part["number"], strict=True))
        where: Where = {
            "model_set": [model_set],
            "run_id": sorted(set(part["run_id"])),
            "key_id": sorted(set(part["key_id"])),
            "part": [WHOLE],
        }
        for row in tables.read(STORE, columns=MODEL_COLUMNS, where=where).to_pylist():
            if wanted.pop((row["run_id"], row["key_id"], row["number"]), 0):
                yield row
        if wanted:
            run_id, key_id, _ = next(iter(wanted))
            raise StateError(
                f"the store of {model_set} lacks the model of key {key_id} of run {run_id}; train it again"
            )
