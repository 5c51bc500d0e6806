"""The spec: what a user writes about one model set."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BeforeValidator, Field

from group_models.class_rules import ClassWeight, Task, Transform, metric_mistake, task_mistake, with_task
from group_models.errors import SpecError
from group_models.field_mistakes import mistakes_of
from group_models.gates import Gates
from group_models.levels import level_mistake
from group_models.spec_fields import (
    Bytes,
    Candidates,
    Compute,
    Estimator,
    Fields,
    Holdout,
    Importance,
    Intervals,
    Level,
    Limits,
    Metric,
    Names,
    Override,
    Oversize,
    Pooling,
    Registration,
    RetrainWhen,
    Scoring,
    Source,
    Track,
    Tune,
    mode_alone,
    parse_bytes,
)
from group_models.versions import minor

__all__ = [
    "Bytes",
    "Candidates",
    "ClassWeight",
    "Compute",
    "Estimator",
    "Holdout",
    "Importance",
    "Level",
    "Limits",
    "Metric",
    "Names",
    "Override",
    "Oversize",
    "ParentSpec",
    "Pooling",
    "Registration",
    "RetrainWhen",
    "Scoring",
    "Source",
    "Spec",
    "Track",
    "Tune",
    "check_run_id",
    "is_catalog",
    "is_uri",
    "name_mistake",
    "parent_fingerprint",
    "parse_bytes",
]

_NAME_PART = re.compile(r"[a-z0-9_][a-z0-9_-]*")
_RUN_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MAX_NAME = 255


_DECIDE_A_FIT = (
    "keys", "target", "features", "estimator", "metric", "time_column", "task", "holdout", "refit", "oversize", "seed",
)  # fmt: skip
"""Fields of which a change makes another model of the same rows."""

_MAY_DECIDE = ("candidates", "tune", "sample_weight", "intervals", "class_weight", "target_transform")
"""The same, of those that a spec may leave out."""


class Spec(Fields):
    """What is trained, on what, how, and within which limits.

    Raises
    ------
    SpecError
        Every mistake in the fields at once; `load_spec` adds those that columns of two roles make.
    """

    model_set: str
    source: Source
    keys: Names
    levels: Annotated[tuple[Level, ...], Field(strict=False)] = ()
    target: str = Field(min_length=1)
    features: Names
    estimator: Estimator
    metric: Annotated[Metric, BeforeValidator(metric_mistake)] = "mae"
    candidates: Candidates | None = None
    tune: Tune | None = None
    overrides: Annotated[tuple[Override, ...], Field(strict=False)] = ()
    pooling: Annotated[Pooling, BeforeValidator(mode_alone)] = Pooling()
    time_column: str | None = None
    sample_weight: str | None = Field(default=None, min_length=1)
    window_days: float | None = Field(default=None, gt=0)
    label_delay_hours: float | None = Field(default=None, gt=0)
    task: Task = "regression"
    class_weight: ClassWeight | None = None
    target_transform: Transform | None = None
    holdout: Holdout = Holdout()
    refit: bool = True
    importance: Importance = "auto"
    intervals: Intervals = ()
    limits: Limits = Limits()
    oversize: Oversize = "salt"
    isolation: Literal["auto", "always", "never"] = "auto"
    retrain_when: RetrainWhen = RetrainWhen()
    on_library_change: Literal["retrain", "keep", "refuse"] = "retrain"
    compute: Compute = Compute()
    scoring: Scoring = Scoring()
    # The metaclass of pydantic's models has a method `register`: a field of that name would warn.
    registration: Registration | None = Field(default=None, alias="register")
    gates: Gates | None = None
    track: Track | None = None
    seed: int = Field(default=7, ge=0, lt=2**63)
    warehouse: str | None = None

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except pydantic.ValidationError as e:
            raise SpecError(mistakes_of(e, type(self))) from e

    @pydantic.model_validator(mode="before")
    @classmethod
    def _metric_of_task(cls, content: Any) -> Any:
        return with_task(content)

    @pydantic.model_validator(mode="after")
    def _goes_with_task(self) -> Self:
        if mistake := task_mistake(self):
            raise ValueError(mistake)
        return self

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

    @pydantic.model_validator(mode="after")
    def _has_pooled_level(self) -> Self:
        parent = set(self.pooling.parent)
        if self.is_pooled and not any(set(level) == parent for level in self.levels):
            said = f"[{', '.join(self.pooling.parent)}]"
            raise ValueError(f"pooling: its parent {said} is no level; write `levels: [..., {said}]` in its place")
        return self

    @pydantic.model_validator(mode="after")
    def _pools_alone(self) -> Self:
        given = {"candidates": self.candidates, "tune": self.tune, "overrides": self.overrides or None,
                 "sample_weight": self.sample_weight, "holdout.gap_hours": self.holdout.gap_hours}  # fmt: skip
        if self.is_pooled and (named := [name for name, value in given.items() if value is not None]):
            raise ValueError(f"pooling: it does not go with {', '.join(named)}; leave one of them out")
        return self

    @pydantic.model_validator(mode="after")
    def _tunes_alone(self) -> Self:
        if self.tune is not None and self.candidates is not None:
            raise ValueError("tune: it searches the parameters of one estimator; leave candidates out, or tune")
        if self.tune is not None and self.tune.seconds >= self.limits.timeout_s:
            rule = f"limits.timeout_s is {self.limits.timeout_s:g} for all that a key takes"
            raise ValueError(f"tune.seconds: {self.tune.seconds:g} leaves no time for the fit; {rule}")
        return self

    @property
    def is_pooled(self) -> bool:
        """Whether models of keys build on those of parents."""
        return self.pooling.mode != "none"

    @property
    def pooled_levels(self) -> tuple[tuple[str, ...], ...]:
        """The levels on whose parents keys may build, from specific to general: the one named and those above it."""
        parent = set(self.pooling.parent)
        return tuple(level for level in self.levels if set(level) <= parent) if self.is_pooled else ()

    @property
    def why_not_distributed(self) -> str | None:
        """Why no key of this spec is distributed over a cluster, whatever its estimator; None where one may be."""
        given = {"sample_weight": self.sample_weight, "candidates": self.candidates, "tune": self.tune}
        named = [name for name, value in given.items() if value is not None]
        return f"no key is where the spec has {' and '.join(named)}" if named else None

    @property
    def others(self) -> tuple[Estimator, ...]:
        """The estimators that a key may get beside `estimator`."""
        return () if self.candidates is None else self.candidates.estimators

    def overridden(self, place: int | None) -> Self:
        """Return the spec as it is for the keys of an override; as it is for those of none."""
        if place is None:
            return self
        override = self.overrides[place]
        params = {**self.estimator.params, **override.params}
        estimator = override.estimator or self.estimator.model_copy(update={"params": params})
        # A rule that names an estimator has chosen.
        has_chosen = bool(override.estimator or override.params)
        choosing = dict.fromkeys(("candidates", "tune")) if has_chosen else {}
        features = override.features or self.features
        return self.model_copy(update={"estimator": estimator, "features": features, **choosing})

    def override_mistakes(self) -> list[str]:
        """Return what is wrong with the features of overrides, one sentence each."""
        return [
            f"overrides.{place}.features: {name!r} is none of the spec's features ({', '.join(self.features)})"
            for place, override in enumerate(self.overrides)
            for name in override.features or ()
            if name not in self.features
        ] + [
            f"overrides.{place}.features: an estimator of your own takes all features of the spec; choose in its fit"
            for place, override in enumerate(self.overrides)
            for estimator in (self.overridden(place).estimator, *self.overridden(place).others)
            if override.features and estimator.object is not None
        ]

    def needs_time(self) -> list[str]:
        """Return a sentence for each field that needs a time column where there is none."""
        if self.time_column is not None:
            return []
        given = {
            "window_days": self.window_days,
            "label_delay_hours": self.label_delay_hours,
            "holdout.gap_hours": self.holdout.gap_hours,
            "limits.max_staleness_hours": self.limits.max_staleness_hours,
        }
        said = "needs a time_column, which tells how old a row is"
        return [f"{name}: {said}" for name, value in given.items() if value is not None]

    @property
    def holdout_by(self) -> Literal["time", "hash", "none"]:
        """How the holdout is chosen: `time` needs a time column and is `hash` without one."""
        if self.holdout.by == "time" and self.time_column is None:
            return "hash"
        return self.holdout.by

    @pydantic.model_validator(mode="after")
    def _gates_can_tell(self) -> Self:
        if self.gates is not None and (mistake := self._gate_mistake(self.gates)):
            raise ValueError(mistake)
        return self

    def _gate_mistake(self, gates: Gates) -> str | None:
        if gates != Gates() and self.holdout_by == "none":
            return "gates: they judge by the holdout, and the spec says `holdout: {by: none}`"
        if gates.parent is not None and not self.levels:
            return "gates.parent: no key has a parent; say `levels`, such as [[]] for one model of all rows"
        if gates.asks_champion and self.is_pooled:
            return (
                "gates.champion and gates.fleet compare with the model that serves, and one that builds on a parent's "
                "(pooling) is not compared: leave them out, gates.parent and gates.max_metric judge such models too"
            )
        if gates.asks_champion and self.refit and self.time_column is None:
            return (
                "gates.champion and gates.fleet compare on rows that the model that serves has not seen; with `refit` "
                "it has seen all, and without a time_column nothing tells which are newer: name the time_column, or "
                "say `refit: false`"
            )
        return None

    @pydantic.model_validator(mode="after")
    def _intervals_have_residuals(self) -> Self:
        if self.intervals and self.holdout_by == "none":
            raise ValueError(
                "intervals: they are made of errors on the holdout, and the spec says `holdout: {by: none}`"
            )
        return self

    @property
    def asks_champion(self) -> bool:
        """Whether a gate compares new models with those that serve now."""
        return self.gates is not None and self.gates.asks_champion

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
        of_all = {"__all__": {"object"}}
        hidden = {"overrides": {"__all__": {"estimator": {"object"}}}, "candidates": {"estimators": of_all}}
        plain = self.model_dump(exclude={"source": {"frame"}, "estimator": {"object"}, **hidden})
        plain["source"] = {"frame": True} if self.source.frame is not None else plain["source"]
        if self.estimator.object is not None:
            plain["estimator"]["object"] = self.estimator.describe()
        for written, candidate in zip((plain["candidates"] or {}).get("estimators", ()), self.others, strict=True):
            if candidate.object is not None:
                written["object"] = candidate.describe()
        for written, override in zip(plain["overrides"], self.overrides, strict=True):
            if override.estimator is not None and override.estimator.object is not None:
                written["estimator"]["object"] = override.estimator.describe()
        self._leave_out_defaults(plain)
        return json.loads(json.dumps(plain, default=str))  # type: ignore[no-any-return]

    def _leave_out_defaults(self, plain: dict[str, Any]) -> None:
        """Remove from the plain spec what is as it was before there were such fields."""
        # A run that started before there were these goes on.
        for name in (
            "levels",
            "candidates",
            "tune",
            "overrides",
            "sample_weight",
            "window_days",
            "label_delay_hours",
            "gates",
            "class_weight",
            "target_transform",
        ):
            if not getattr(self, name):
                del plain[name]
        if self.holdout.gap_hours is None:
            del plain["holdout"]["gap_hours"]
        if not self.is_pooled:
            del plain["pooling"]
        if self.importance == "auto":
            del plain["importance"]
        if not self.intervals:
            del plain["intervals"]

    def fingerprint(self, versions: Mapping[str, str]) -> str:
        """Return the hash of all that decides a fit: the spec's part of it and library versions (major.minor)."""
        plain = self._plain()
        decides = {name: plain[name] for name in (*_DECIDE_A_FIT, *_MAY_DECIDE) if name in plain}
        if self.is_pooled:
            decides["pooling"] = plain["pooling"]
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
