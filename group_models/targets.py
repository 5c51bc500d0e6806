"""What a call is about: the model set that a caller named, its tables and, where it was given, its spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, get_args

from group_models.adapters.places import tables_of
from group_models.errors import SpecError, StateError
from group_models.live.sets import Alias, Live, read_live, read_releases, read_run, read_runs
from group_models.loading import load_spec
from group_models.ports import Tables
from group_models.spec import Spec, name_mistake

SpecLike: TypeAlias = Spec | Mapping[str, Any] | str | Path
"""A spec: checked, as a mapping, or as the path of a YAML file."""


def open_tables(spec: Spec, warehouse: str | None = None) -> Tables:
    """Return the tables of a spec's schema."""
    return tables_of(spec.schema_name, warehouse or spec.warehouse)


def find_target(spec: SpecLike, warehouse: str | None) -> tuple[str, Tables, Spec | None]:
    """Return model set, tables and spec of what a caller named: a spec, or a model set by its name."""
    is_file = isinstance(spec, str) and (Path(spec).exists() or spec.endswith((".yaml", ".yml")))
    if isinstance(spec, str) and not is_file and name_mistake(spec) is None:
        return spec, tables_of(spec.rpartition(".")[0], warehouse), None
    loaded = load_spec(spec)
    return loaded.model_set, open_tables(loaded, warehouse), loaded


def check_alias(alias: str) -> None:
    """Refuse what is no alias.

    Raises
    ------
    SpecError
        It names the aliases.
    """
    if mistake := alias_mistake(alias):
        raise SpecError([mistake], where="the call")


def check_one_of(alias: str | None, run_id: str | None) -> None:
    """Refuse an alias beside a run, and what is no alias.

    Raises
    ------
    SpecError
        It says which one to leave out.
    """
    if alias is not None and run_id is not None:
        said = f"alias {alias!r} and run_id {run_id!r}: each says which models to take; leave out one of them"
        raise SpecError([said], where="the call")
    check_alias(alias or "champion")


def alias_mistake(alias: str) -> str | None:
    """Return why something is no alias, or None."""
    known = get_args(Alias)
    return None if alias in known else f"alias {alias!r}: say {' or '.join(known)}"


def find_live(
    tables: Tables, model_set: str, alias: Alias | None, run_id: str | None = None, as_of: str | None = None
) -> Live:
    """Return the live set of an alias (champion by default) or what one run's manifest says.

    Raises
    ------
    StateError
        Nothing is published, or there is no such run.
    """
    if run_id is not None:
        return read_run(tables, model_set, run_id)
    live = read_live(tables, model_set, alias or "champion", as_of)
    if live.keys.empty and not any(r.action == "publish" for r in read_releases(tables, model_set)):
        raise StateError(no_release_text(tables, model_set))
    return live


def no_release_text(tables: Tables, model_set: str) -> str:
    """Return what is said where nothing is published: a wrong name or place, or a run that waits for its release."""
    runs = read_runs(tables, model_set).sort_by("at")["run_id"].to_pylist()
    said = f"model set {model_set} has no release yet in {tables.describe()}; "
    if not runs:
        return said + "`group-models train` makes one"
    return said + f"its newest run is {runs[-1]}: see `show --run-id`, `release publish`"


def unknown_key(model_set: str, run_id: str | None, key: object, identity: str) -> str:
    """Return what is said of a key that the live set, or the run asked for, does not have."""
    named = f"key_id {identity}" if key == identity else f"key {key!r} (key_id {identity})"
    if run_id is None:
        return f"model set {model_set}: no published run knows {named}"
    return f"run {run_id} of model set {model_set}: {named} was not among the keys of that run; leave the run out"
