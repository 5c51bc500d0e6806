"""The spec: what a user writes about one model set."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BeforeValidator, ConfigDict, Field

from group_models.errors import SpecError
from group_models.levels import level_mistake
from group_models.versions import minor

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*$", re.IGNORECASE)
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_NAME_PART = re.compile(r"[a-z0-9_][a-z0-9_-]*")
_RUN_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MAX_NAME = 255


def parse_bytes(value: Any) -> Any:
    """Return a size such as `64MiB` or `1.5 GB` in bytes; whole numbers are bytes already.

    Raises
    ------
    ValueError
        The text is not a size.

    Examples
    --------
    >>> parse_bytes("64MiB"), parse_bytes("2kB"), parse_bytes(10)
    (67108864, 2000, 10)
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        raise ValueError(f"{value!r} is not a size; write a number of bytes or, for example, 64MiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Oversize = Literal["salt", "sample", "distribute", "skip", "fail"]
Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False, min_length=1)]
Level = Annotated[tuple[str, ...], Field(strict=False)]


class _Model(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class Source(_Model):
    """Where the rows come from: exactly one of a path, a table, a query, a Python function or a frame."""

    path: str | None = None
    format: Literal["parquet", "csv", "json", "orc", "delta"] | None = None
    table: str | None = None
    sql: str | None = None
    python: str | None = None
    frame: Any = Field(default=None, repr=False)

    @pydantic.model_validator(mode="after")
    def _one_of(self) -> Self:
        given = [name for name in ("path", "table", "sql", "python", "frame") if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise ValueError(f"needs exactly one of path, table, sql, python (or a DataFrame in Python), got {said}")
        if self.format and not self.path:
            raise ValueError("format goes with path")
        return self

    def describe(self) -> str:
        """Return the source as text, for tables and people."""
        for name in ("path", "table", "sql", "python"):
            if (value := getattr(self, name)) is not None:
                return f"{name}: {value}"
        return f"frame: {type(self.frame).__module__}.{type(self.frame).__name__}"


class Estimator(_Model):
    """What is fitted per key: a named family with params, or a scikit-learn compatible object."""

    name: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    object: Any = None
    version: str | None = None
    threads: int = Field(default=1, ge=1)
    validation_share: float = Field(default=0.2, gt=0, lt=1)

    @pydantic.model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.name is None) == (self.object is None):
            raise ValueError("needs exactly one of name (a family) and object (pkg.mod:factory)")
        if self.name is not None and self.version is not None:
            raise ValueError("version goes with object; a named family has the version of its library")
        return self

    def describe(self) -> str:
        """Return the family's name or the object's dotted path."""
        if self.name is not None or isinstance(self.object, str):
            return str(self.name or self.object)
        named = self.object if hasattr(self.object, "__qualname__") else type(self.object)
        return f"{named.__module__}:{named.__qualname__}"


class Holdout(_Model):
    """The rows that metrics are measured on: the newest share, a hash share, or none."""

    by: Literal["time", "hash", "none"] = "time"
    share: float = Field(default=0.2, gt=0, lt=1)


class Limits(_Model):
    """Bounds on keys, units, models and failures."""

    min_rows: int = Field(default=30, ge=1)
    max_key_rows: int = Field(default=2_000_000, ge=1)
    max_parent_rows: int | None = Field(default=None, ge=1)
    max_key_bytes: Bytes = 64 * 2**20
    max_unit_bytes: Bytes = 64 * 2**20
    max_model_bytes: Bytes = 100 * 2**20
    max_unit_model_bytes: Bytes = 512 * 2**20
    max_failed_share: float = Field(default=0.05, ge=0, le=1)
    max_failed_keys: int = Field(default=2, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    max_vanished_share: float = Field(default=0.2, ge=0, le=1)
    max_lost_rows_share: float = Field(default=0.3, ge=0, le=1)
    max_missing_rise: float = Field(default=0.2, ge=0, le=1)
    max_staleness_hours: float | None = Field(default=None, gt=0)

    @pydantic.model_validator(mode="after")
    def _rows_in_order(self) -> Self:
        for name in ("max_key_rows", "max_parent_rows"):
            if (rows := getattr(self, name)) is not None and rows < self.min_rows:
                raise ValueError(f"{name} {rows} is below min_rows {self.min_rows}; no key could be fitted")
        return self


class Compute(_Model):
    """What a session cannot tell: task slots, what a worker may hold, and how long one wave may take."""

    slots: int | None = Field(default=None, ge=1)
    memory_per_worker: Bytes | None = None
    wave_s: float = Field(default=600.0, gt=0)


class RetrainWhen(_Model):
    """How much of a key must be new before it is trained again; without any of these every change is enough."""

    min_new_rows: int | None = Field(default=None, ge=1)
    min_new_share: float | None = Field(default=None, gt=0)
    max_age_days: float | None = Field(default=None, gt=0)


class Scoring(_Model):
    """How rows of keys without a model are treated, when a model is too old, and what other libraries mean."""

    on_missing: Annotated[Literal["null", "parent", "raise"], BeforeValidator(lambda v: "null" if v is None else v)] = (
        "parent"
    )
    max_age_days: float | None = Field(default=None, gt=0)
    on_library_change: Literal["warn", "refuse"] = "warn"


class Registration(_Model):
    """Where each published state becomes a version of one registered model, named like the model set."""

    registry_uri: str | None = None
    max_bytes: Bytes = 2 * 2**30
    on_moved_alias: Literal["adopt", "refuse"] = "adopt"


class Track(_Model):
    """Where each training run becomes an MLflow run."""

    experiment: str | None = Field(default=None, min_length=1)
    tracking_uri: str | None = None


_DECIDE_A_FIT = (
    "keys", "target", "features", "estimator", "time_column", "task", "holdout", "refit", "oversize", "seed",
)  # fmt: skip
"""Fields of which a change makes another model of the same rows."""


class Spec(_Model):
    """What is trained, on what, how, and within which limits.

    Raises
    ------
    SpecError
        Through `load_spec`: every mistake of the spec at once.
    """

    model_set: str
    source: Source
    keys: Names
    levels: Annotated[tuple[Level, ...], Field(strict=False)] = ()
    target: str = Field(min_length=1)
    features: Names
    estimator: Estimator
    time_column: str | None = None
    task: Literal["regression"] = "regression"
    holdout: Holdout = Holdout()
    refit: bool = True
    limits: Limits = Limits()
    oversize: Oversize = "salt"
    isolation: Literal["auto", "always", "never"] = "auto"
    retrain_when: RetrainWhen = RetrainWhen()
    on_library_change: Literal["retrain", "keep", "refuse"] = "retrain"
    compute: Compute = Compute()
    scoring: Scoring = Scoring()
    # The metaclass of pydantic's models has a method `register`: a field of that name would warn.
    registration: Registration | None = Field(default=None, alias="register")
    track: Track | None = None
    seed: int = Field(default=7, ge=0, lt=2**63)
    warehouse: str | None = None

    @pydantic.field_validator("model_set")
    @classmethod
    def _three_levels(cls, name: str) -> str:
        if mistake := name_mistake(name):
            raise ValueError(mistake)
        return name

    @pydantic.field_validator("levels")
    @classmethod
    def _from_specific_to_general(
        cls, levels: tuple[tuple[str, ...], ...], info: pydantic.ValidationInfo
    ) -> tuple[tuple[str, ...], ...]:
        keys = info.data.get("keys", ())
        if keys and (mistake := level_mistake(levels, keys)):
            raise ValueError(mistake)
        return tuple(tuple(name for name in keys if name in level) for level in levels)

    @property
    def holdout_by(self) -> Literal["time", "hash", "none"]:
        """How the holdout is chosen: `time` needs a time column and is `hash` without one."""
        if self.holdout.by == "time" and self.time_column is None:
            return "hash"
        return self.holdout.by

    @property
    def schema_name(self) -> str:
        """The `catalog.schema` that holds the tables."""
        return self.model_set.rpartition(".")[0]

    @property
    def max_rows(self) -> tuple[int, str]:
        """Usable rows over which a key is oversize, and the name of that limit."""
        return self.limits.max_key_rows, "max_key_rows"

    @property
    def max_key_bytes(self) -> int:
        """Bytes over which a key is oversize: no key may be larger than a unit."""
        return min(self.limits.max_key_bytes, self.limits.max_unit_bytes)

    def to_json(self) -> str:
        """Return the spec as JSON; Python objects and frames by name."""
        return json.dumps(self._plain(), sort_keys=True)

    def _plain(self) -> dict[str, Any]:
        plain = self.model_dump(exclude={"source": {"frame"}, "estimator": {"object"}})
        plain["source"] = {"frame": True} if self.source.frame is not None else plain["source"]
        if self.estimator.object is not None:
            plain["estimator"]["object"] = self.estimator.describe()
        if not self.levels:
            # A run that started before there were levels goes on.
            del plain["levels"]
        return json.loads(json.dumps(plain, default=str))  # type: ignore[no-any-return]

    def fingerprint(self, versions: Mapping[str, str]) -> str:
        """Return the hash of all that decides a fit: the spec's part of it and library versions (major.minor)."""
        plain = self._plain()
        decides = {name: plain[name] for name in _DECIDE_A_FIT}
        decides["largest key"] = [self.limits.max_key_rows, self.max_key_bytes]
        libraries = {name: minor(version) for name, version in versions.items()}
        text = json.dumps([decides, libraries], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class ParentSpec(Spec):
    """A spec as it is for the parents of its keys: in all alike but for the rows from which one is oversize."""

    @classmethod
    def of(cls, spec: Spec) -> ParentSpec:
        """Return the spec for the parents of its keys."""
        return cls.model_construct(**{name: getattr(spec, name) for name in Spec.model_fields})

    @property
    def max_rows(self) -> tuple[int, str]:
        """Usable rows over which a parent is oversize, and the name of that limit."""
        rows = self.limits.max_parent_rows
        return super().max_rows if rows is None else (rows, "max_parent_rows")

    def fingerprint(self, versions: Mapping[str, str]) -> str:
        """Return the hash of all that decides a fit of a parent."""
        return parent_fingerprint(super().fingerprint(versions), self.limits.max_parent_rows)


def parent_fingerprint(fingerprint: str, max_parent_rows: int | None) -> str:
    """Return the fingerprint of parents' fits, from that of keys' fits: the same unless parents have a limit."""
    if max_parent_rows is None:
        return fingerprint
    return hashlib.sha256(f"{fingerprint}, largest parent: {max_parent_rows}".encode()).hexdigest()[:32]


def name_mistake(name: str) -> str | None:
    """Return why a model set's name is refused, or None. The rule is Unity Catalog's, lower case included."""
    parts = name.split(".")
    if len(parts) != 3:
        return f"{name!r} has {len(parts)} level(s); write three, catalog.schema.name"
    wrong = [part for part in parts if not _NAME_PART.fullmatch(part)]
    if wrong:
        return f"{name!r}: {', '.join(map(repr, wrong))} may have only a-z, 0-9, _ and -, and not start with -"
    if len(name) > _MAX_NAME:
        return f"{name!r} has {len(name)} characters; at most {_MAX_NAME} are allowed"
    return None


def is_catalog(warehouse: str) -> bool:
    """Return whether a warehouse is a catalog's Delta tables: `delta`, or `delta:LOCATION` for external ones.

    Examples
    --------
    >>> is_catalog("delta"), is_catalog("delta:s3://bucket/x"), is_catalog("./delta"), is_catalog("deltas")
    (True, True, False, False)
    """
    return warehouse == "delta" or warehouse.startswith("delta:")


def is_uri(path: str) -> bool:
    """Return whether a path names a file system of its own: `s3://bucket/x`, `dbfs:/x`.

    Examples
    --------
    >>> is_uri("s3://bucket/x"), is_uri("dbfs:/x"), is_uri("data/x"), is_uri("C:/x")
    (True, True, False, False)
    """
    return _URI.match(path) is not None


def check_run_id(run_id: str) -> str:
    """Return a run id that keeps the alphabet.

    Raises
    ------
    SpecError
        It has other characters than letters, digits, `-`, `_`, or does not start with a letter.
    """
    if not _RUN_ID.fullmatch(run_id) or len(run_id) > _MAX_NAME:
        rule = "a run id has letters, digits, - and _, starts with a letter and is at most 255 long"
        raise SpecError([f"run id {run_id!r}: {rule}"], where="the call")
    return run_id
