"""What each job and each role may do in a catalog, as privileges and as statements that give them. Touches nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from group_models.adapters import delta_ddl
from group_models.adapters.delta_ddl import COMMITS
from group_models.errors import SpecError
from group_models.spec import Spec, is_catalog
from group_models.tables import RELEASE, TABLES

Role: TypeAlias = Literal["admin", "data-scientist", "analyst"]
"""Who makes the tables, releases and cleans; who trains and proposes; who scores and reads."""

DOES: Mapping[Role, str] = {
    "admin": "makes the tables, trains, releases, registers, cleans",
    "data-scientist": "trains with `--no-release` and so proposes runs that an admin publishes; may not release",
    "analyst": "scores and reads; may not write to the model set's tables",
}

JOBS: Mapping[str, str] = {
    "every job": "USE CATALOG and USE SCHEMA of the model set's schema",
    "plan": "SELECT on the source and on the group_model tables",
    "train --no-release": "SELECT on the source; SELECT and MODIFY on the group_model tables but group_model_release, "
    "on which SELECT is enough; CREATE TABLE on the schema where a table is missing",
    "train, release": "the same, and MODIFY on group_model_release",
    "score, show, export": "SELECT on the group_model tables; of score also on its input, and CREATE TABLE where its "
    "output goes",
    "clean": "SELECT and MODIFY on the group_model tables",
    "views --create": "SELECT on the group_model tables and CREATE TABLE on the schema, which is also for views",
    "register": "CREATE MODEL on the schema for the first version, then to own the registered model, and EXECUTE",
    "models:/... of a registered model": "EXECUTE on the registered model",
}
"""What each job needs."""

_SESSION_CATALOG = "spark_catalog"


@dataclasses.dataclass(frozen=True)
class Grants:
    """The statements for one role, in the order in which they are run, and what they cannot say."""

    role: Role
    statements: tuple[str, ...]
    notes: tuple[str, ...]

    def sql(self) -> str:
        """Return a script."""
        head = [f"-- {self.role}: {DOES[self.role]}", *(f"-- {note}" for note in self.notes)]
        return "\n".join([*head, *(f"{statement};" for statement in self.statements)])


def grants_for(spec: Spec, role: str, principal: str, warehouse: str | None = None) -> Grants:
    """Return what gives a role its privileges on the tables of a spec.

    Parameters
    ----------
    principal
        A user, group or service principal.
    warehouse
        Where the tables are; by default what the spec says.

    Raises
    ------
    SpecError
        There is no such role, or the tables are in no catalog that knows privileges.
    """
    place = warehouse or spec.warehouse or ""
    _check(spec, role, place)
    to = _quoted(principal)
    location = place.partition(":")[2] or None
    made: Mapping[str, list[str]] = {
        "admin": _admin(spec, to, location),
        "data-scientist": _data_scientist(spec, to),
        "analyst": _analyst(spec, to),
    }
    role_: Role = role  # type: ignore[assignment] # checked
    return Grants(role_, tuple(dict.fromkeys(made[role])), tuple(_notes(spec, role_, location)))


def _check(spec: Spec, role: str, place: str) -> None:
    if role not in get_args(Role):
        raise SpecError([f"role {role!r}: say one of {', '.join(get_args(Role))}"], where="the call")
    catalog = spec.model_set.split(".", maxsplit=1)[0]
    if not is_catalog(place) or catalog == _SESSION_CATALOG:
        said = f"warehouse {place!r}" if not is_catalog(place) else f"catalog {catalog}"
        rule = "knows no privileges; they are for `warehouse: delta` in a catalog such as Unity Catalog"
        raise SpecError([f"{said} {rule}"], where="the call")


def _admin(spec: Spec, to: str, location: str | None) -> list[str]:
    schema = spec.schema_name
    more = ["CREATE MODEL", "EXECUTE"] if spec.registration is not None else []
    makes = [delta_ddl.create(delta_ddl.stored(t), _quoted(f"{schema}.{t.name}"), location) for t in (*TABLES, COMMITS)]
    return [
        f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}",
        *_use(schema, to),
        _grant(["CREATE TABLE", "SELECT", "MODIFY", *more], "SCHEMA", schema, to),
        *makes,
        *_source(spec, to),
    ]


def _data_scientist(spec: Spec, to: str) -> list[str]:
    schema = spec.schema_name
    written = [table.name for table in (*TABLES, COMMITS) if table != RELEASE]
    modify = [_grant(["MODIFY"], "TABLE", f"{schema}.{name}", to) for name in written]
    return [*_use(schema, to), _grant(["SELECT"], "SCHEMA", schema, to), *modify, *_source(spec, to)]


def _analyst(spec: Spec, to: str) -> list[str]:
    more = ["EXECUTE"] if spec.registration is not None else []
    return [*_use(spec.schema_name, to), _grant(["SELECT", *more], "SCHEMA", spec.schema_name, to)]


def _use(schema: str, to: str) -> list[str]:
    catalog = schema.split(".", maxsplit=1)[0]
    return [_grant(["USE CATALOG"], "CATALOG", catalog, to), _grant(["USE SCHEMA"], "SCHEMA", schema, to)]


def _source(spec: Spec, to: str) -> list[str]:
    table = (spec.source.table or "").replace("`", "")
    if table.count(".") != 2:
        return []
    return [*_use(table.rpartition(".")[0], to), _grant(["SELECT"], "TABLE", table, to)]


def _notes(spec: Spec, role: Role, location: str | None) -> list[str]:
    notes = []
    if role != "analyst" and not _source(spec, ""):
        notes.append(f"and what reading the source ({spec.source.describe()}) needs")
    if role == "admin" and location:
        notes.append(f"and CREATE EXTERNAL TABLE on the external location of {location}")
    if role == "admin" and spec.registration is not None:
        notes.append("only the owner of the registered model adds versions and moves aliases: let admins' jobs make it")
    if role == "data-scientist":
        notes.append("run the admin's statements first: they make the tables")
    if role == "analyst":
        notes.append("and SELECT on what is scored, CREATE TABLE on the schema that scored rows are written to")
    return notes


def _grant(privileges: Sequence[str], kind: str, name: str, to: str) -> str:
    return f"GRANT {', '.join(privileges)} ON {kind} {_quoted(name)} TO {to}"


def _quoted(name: str) -> str:
    """Return a dotted name with each part in backquotes; of a principal with an @ the whole is one part."""
    parts = [name] if "@" in name or "`" in name else name.split(".")
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)
