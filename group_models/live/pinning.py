"""Hold single keys at earlier models, and let them go: one row of the release log each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from group_models.errors import StateError
from group_models.keys import parse_key
from group_models.live import releases
from group_models.live.cleans import cleaned_text
from group_models.live.folding import pin_refusal
from group_models.live.publishing import append_act, check_manifest, user
from group_models.live.releases import Act, Release
from group_models.live.sets import Alias, read_key_texts, read_levels, read_live
from group_models.ports import Tables
from group_models.tables import MANIFEST
from group_models.texts import some_of

_OF_KEY = ("run_id", "key_id", "status", "reason", "serves", "model_run_id")


def pin(
    tables: Tables,
    model_set: str,
    key: str | Mapping[str, Any],
    *,
    run_id: str,
    alias: Alias = "champion",
    note: str | None = None,
) -> Release:
    """Hold a key at the model that served it after a run, whatever is published or rolled back, until `unpin`.

    Raises
    ------
    StateError
        The run has no manifest, or its manifest has no row of the key or no model for it.
    """
    check_manifest(tables, model_set, run_id)
    levels = read_levels(tables, model_set, [run_id])
    key_id = parse_key(key, levels.kinds, levels.parents)
    where = {"model_set": [model_set], "key_id": [key_id]}

    def act(log: Sequence[Release]) -> Act:
        rows = tables.read(MANIFEST, columns=_OF_KEY, where=where).to_pandas()
        why = pin_refusal(rows, run_id)
        gone = cleaned_text(log, run_id)
        # Of a run that was cleaned, only a model that serves now is one that no clean removes meanwhile.
        if gone and read_live(tables, model_set, alias).models().get(key_id) != run_id:
            why = gone
        if why:
            raise StateError(f"key {_words(key)} (key_id {key_id}) is not pinned: {why}")
        return Act(model_set=model_set, alias=alias, action="pin", run_id=run_id, key_id=key_id, by=user(), note=note)

    return append_act(tables, model_set, act)


def unpin(
    tables: Tables,
    model_set: str,
    key: str | Mapping[str, Any],
    *,
    alias: Alias = "champion",
    note: str | None = None,
) -> Release:
    """Let go of a pinned key: it is served as if it had never been pinned.

    Raises
    ------
    StateError
        The key is not pinned.
    """

    def act(log: Sequence[Release]) -> Act:
        pinned = releases.pins(log, alias)
        if not pinned:
            raise StateError(f"no key of {alias} is pinned; `release list` shows the log")
        levels = read_levels(tables, model_set, sorted(set(pinned.values())))
        key_id = parse_key(key, levels.kinds, levels.parents)
        if key_id not in pinned:
            texts = read_key_texts(tables, model_set, log)
            held = some_of([f"{texts.get(each, each)} to run {run_id}" for each, run_id in pinned.items()])
            raise StateError(f"key {_words(key)} (key_id {key_id}) is not pinned for {alias}; pinned are {held}")
        return Act(model_set=model_set, alias=alias, action="unpin", key_id=key_id, by=user(), note=note)

    return append_act(tables, model_set, act)


def _words(key: str | Mapping[str, Any]) -> str:
    return key if isinstance(key, str) else ", ".join(f"{name}={value}" for name, value in key.items())
