"""What a call is about: the model set that a caller named, its tables and, where it was given, its spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, get_args

from group_models.adapters.places import tables_of
from group_models.errors import SpecError
from group_models.live import Alias
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
