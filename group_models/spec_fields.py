"""The parts of a spec, each a group of fields by theme; `spec` puts them together."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeAlias

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

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
Metric: TypeAlias = Literal["mae", "rmse", "log_loss"]
"""What decides which of two models is better, lower being better: errors in the target's units, or of classes."""

Importance: TypeAlias = Literal["auto", "permutation", "none"]
"""Of features: as each family tells it cheaply, by shuffling each, or none."""


def check_levels(levels: tuple[float, ...]) -> tuple[float, ...]:
    """Return the levels of intervals in ascending order.

    Raises
    ------
    ValueError
        One is no share between 0 and 1, or stands twice.
    """
    for level in levels:
        if not 0.0 < level < 1.0 or round(level, 4) != level:
            raise ValueError(f"{level:g} is no level; write shares between 0 and 1 of four digits at most, such as 0.9")
    if len(set(levels)) < len(levels):
        raise ValueError("a level stands twice; write each once")
    return tuple(sorted(levels))


Intervals = Annotated[tuple[float, ...], Field(strict=False, max_length=9), AfterValidator(check_levels)]
"""Shares of new rows that the bounds around a prediction are to hold."""

Oversize = Literal["salt", "sample", "distribute", "skip", "fail"]
Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False, min_length=1)]
Level = Annotated[tuple[str, ...], Field(strict=False)]


class Fields(pydantic.BaseModel):
    """A group of fields: unknown ones are refused, and none is changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class Source(Fields):
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


class Estimator(Fields):
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


class Candidates(Fields):
    """Estimators of which each key gets the simplest that its folds cannot tell from the best one.

    Attributes
    ----------
    estimators
        From simple to complex, all after the spec's `estimator`, which is the simplest.
    min_fold_rows
        Rows that each fold must have to fit and to validate on; a key with fewer gets the spec's `estimator`.
    """

    estimators: Annotated[tuple[Estimator, ...], Field(strict=False, min_length=1)]
    folds: int = Field(default=3, ge=2, le=20)
    min_fold_rows: int = Field(default=20, ge=2)


class Range(Fields):
    """The values that a parameter may have, ends included: whole numbers where both ends are; `log` for its scale."""

    low: int | float
    high: int | float
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log: low is {self.low}; a logarithm needs it above 0")
        return self


Choices = Annotated[tuple[str | int | float | bool | None, ...], Field(strict=False, min_length=1)]
"""The values that a parameter may have, one by one."""


class Tune(Fields):
    """How the parameters of the spec's estimator are searched for each key, on folds of its training rows.

    Attributes
    ----------
    space
        Parameter to the values that it may have; those beside them are as the estimator's `params` say.
    trials, seconds
        Bounds of one key's search, beside one trial with the spec's own parameters; the best until then counts.
    pruner
        `median` gives a trial up that is worse after a fold than the median of earlier ones.
    min_rows
        Training rows from which a key is tuned.
    max_failed_trials
        Trials that may fail before the search of a key ends.
    track_keys
        Keys whose trials become MLflow runs under the run's own, beside those of the model of all rows.
    """

    space: Annotated[dict[str, Range | Choices], Field(min_length=1)]
    trials: int = Field(default=20, ge=1)
    seconds: float = Field(default=60.0, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**63)
    pruner: Literal["none", "median"] = "median"
    folds: int = Field(default=3, ge=2, le=20)
    min_fold_rows: int = Field(default=20, ge=2)
    min_rows: int = Field(default=200, ge=1)
    max_failed_trials: int = Field(default=3, ge=0)
    track_keys: Annotated[tuple[str, ...], Field(strict=False)] = ()

    def corners(self) -> list[dict[str, Any]]:
        """Return parameters at the ends of the space: what an estimator says of these it says of what is between."""
        ends = [list(s) if isinstance(s, tuple) else [s.low, s.high] for s in self.space.values()]
        count = max(map(len, ends))
        return [
            {name: each[min(i, len(each) - 1)] for name, each in zip(self.space, ends, strict=True)}
            for i in range(count)
        ]


class Override(Fields):
    """What is different for the keys for which a predicate on key columns is true."""

    where: str = Field(min_length=1)
    estimator: Estimator | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    features: Names | None = None
    exclude: bool = False

    @pydantic.model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.exclude and (self.estimator or self.params or self.features):
            raise ValueError("exclude: true trains no model; leave out estimator, params and features")
        if self.estimator and self.params:
            raise ValueError("params change those of the spec's estimator; write those of this estimator inside of it")
        if not (self.exclude or self.estimator or self.params or self.features):
            raise ValueError("changes nothing; give it estimator, params, features or exclude: true")
        return self


class Holdout(Fields):
    """The rows that metrics are measured on: the newest share, a hash share, or none."""

    by: Literal["time", "hash", "none"] = "time"
    share: float = Field(default=0.2, gt=0, lt=1)
    gap_hours: float | None = Field(default=None, gt=0)

    @pydantic.model_validator(mode="after")
    def _gap_before_a_moment(self) -> Self:
        if self.gap_hours is not None and self.by != "time":
            raise ValueError(f"gap_hours is before the moment of a holdout by time; this one is by {self.by}")
        return self


class Pooling(Fields):
    """What the models of keys take from a parent, and how.

    Attributes
    ----------
    mode
        `none`: nothing. `residual`: a key's model learns what its parent gets wrong. `shrink`: its prediction and the
        parent's are mixed by a weight from its rows and what both get wrong of the last of them.
    parent
        The columns of the level whose parents it builds on; where one has no model, the next more general one.
    parts
        Parts at most that a parent is trained in: what a key learns from are predictions of those that did not see
        the row.
    estimator
        The family of what a key's model adds to its parent's; with `shrink` it is the spec's estimator.
    half_rows
        Rows at which a key's own part counts half.
    """

    mode: Literal["none", "residual", "shrink"] = "none"
    parent: Level = ()
    parts: int = Field(default=4, ge=2)
    estimator: Annotated[Estimator, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)] = Estimator(
        name="ridge", params={"alpha": 10_000.0}
    )
    half_rows: float = Field(default=50.0, ge=0)

    @pydantic.model_validator(mode="after")
    def _named_family(self) -> Self:
        if self.estimator.name is None:
            raise ValueError("estimator: needs the name of a family; an object is not taken here")
        return self


def mode_alone(value: Any) -> Any:
    """Let a mode stand for all of `pooling`."""
    return {"mode": value} if isinstance(value, str) else value


class Limits(Fields):
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


class Compute(Fields):
    """What a session cannot tell: task slots, what a worker may hold, and how long one wave may take."""

    slots: int | None = Field(default=None, ge=1)
    memory_per_worker: Bytes | None = None
    wave_s: float = Field(default=600.0, gt=0)


class RetrainWhen(Fields):
    """How much of a key must be new before it is trained again; without any of these every change is enough."""

    min_new_rows: int | None = Field(default=None, ge=1)
    min_new_share: float | None = Field(default=None, gt=0)
    max_age_days: float | None = Field(default=None, gt=0)


class Scoring(Fields):
    """How rows of keys without a model are treated, when a model is too old, and what other libraries mean."""

    on_missing: Annotated[Literal["null", "parent", "raise"], BeforeValidator(lambda v: "null" if v is None else v)] = (
        "parent"
    )
    max_age_days: float | None = Field(default=None, gt=0)
    on_library_change: Literal["warn", "refuse"] = "warn"


class Registration(Fields):
    """Where each published state becomes a version of one registered model, named like the model set."""

    registry_uri: str | None = None
    max_bytes: Bytes = 2 * 2**30
    on_moved_alias: Literal["adopt", "refuse"] = "adopt"


class Track(Fields):
    """Where each training run becomes an MLflow run."""

    experiment: str | None = Field(default=None, min_length=1)
    tracking_uri: str | None = None
