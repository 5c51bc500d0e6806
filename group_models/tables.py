"""The tables, each written once.

From a `Table` come the DDL, the Arrow schema, empty frames and the tests; no column list stands anywhere else.
All tables live in one schema and are shared by its model sets. They are append-only (`clean` apart).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

ColumnType: TypeAlias = Literal[
    "string", "int", "bigint", "double", "timestamp", "binary",
    "map<string,string>", "map<string,double>", "map<string,bigint>",
]  # fmt: skip

_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<string,double>": pa.map_(pa.string(), pa.float64()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
}


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: its name, its Spark SQL type, what it means, and whether it may be null."""

    name: str
    type: ColumnType
    comment: str
    nullable: bool = True

    def ddl(self) -> str:
        """Return the column's definition in Spark SQL."""
        null = "" if self.nullable else " NOT NULL"
        return f"`{self.name}` {self.type}{null} COMMENT '{self.comment.replace(chr(39), chr(39) * 2)}'"


@dataclasses.dataclass(frozen=True)
class Table:
    """One table: its name within the schema, what one row is, and its columns.

    Commits to it are numbered per model set and run or, where `is_log`, in one log per model set.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    is_log: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(column.name for column in self.columns)

    @property
    def maps(self) -> tuple[str, ...]:
        """The names of the columns that are maps, in order: what Arrow gives them as are pairs."""
        return tuple(column.name for column in self.columns if column.type.startswith("map<"))

    @functools.cached_property
    def arrow_schema(self) -> pa.Schema:
        """The table as an Arrow schema."""
        return pa.schema([pa.field(c.name, _ARROW[c.type], nullable=c.nullable) for c in self.columns])

    def ddl(self) -> str:
        """Return the column list of a CREATE TABLE or of a Spark schema."""
        return ", ".join(column.ddl() for column in self.columns)

    def spark_schema(self, columns: Sequence[str] | None = None) -> str:
        """Return `name type, ...` of these columns (all by default), as Spark's `schema` arguments take it."""
        wanted = self.names if columns is None else columns
        types = {column.name: column.type for column in self.columns}
        return ", ".join(f"`{name}` {types[name]}" for name in wanted)

    def empty(self) -> pa.Table:
        """Return the table with no rows."""
        return self.arrow_schema.empty_table()

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
        """Return rows given as mappings as an Arrow table of this schema; absent columns are null.

        Raises
        ------
        ValueError
            A row has a column that the table has not, or a null where none may be.
        """
        given = [dict(row) for row in rows]
        unknown = sorted({name for row in given for name in row} - set(self.names))
        if unknown:
            raise ValueError(f"table {self.name} has no column {', '.join(unknown)}; it has {', '.join(self.names)}")
        return self.conform(pa.Table.from_pylist(given, schema=self.arrow_schema))

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return Arrow rows cast to this table's schema, absent columns as null.

        Raises
        ------
        ValueError
            A column that may not be null holds a null.
        """
        columns = [self._conform_column(rows, column) for column in self.columns]
        return pa.table(columns, schema=self.arrow_schema)

    def _conform_column(self, rows: pa.Table, column: Column) -> pa.ChunkedArray:
        kind = _ARROW[column.type]
        if column.name not in rows.column_names:
            values = pa.chunked_array([pa.nulls(rows.num_rows, kind)])
        else:
            values = rows.column(column.name)
            values = values if values.type == kind else values.cast(kind)
        if values.null_count and not column.nullable:
            raise ValueError(f"table {self.name}: column {column.name} holds {values.null_count} nulls and may not")
        return values


NEW_MODEL = ("trained", "one_class")
"""Statuses of keys whose new model serves."""

WHOLE = -1
"""`part` of a store row that holds the model of a whole key, not one of its salted parts."""


def utc_now() -> dt.datetime:
    """Return the present moment in UTC, with microseconds."""
    return dt.datetime.now(dt.UTC)


_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


def moment(micros_: int) -> dt.datetime:
    """Return whole microseconds since 1970 as a moment in UTC.

    Examples
    --------
    >>> moment(1_500_000)
    datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=datetime.timezone.utc)
    """
    return _EPOCH + dt.timedelta(microseconds=micros_)


def micros(at: dt.datetime) -> int:
    """Return a moment as whole microseconds since 1970; inverse of `moment`."""
    return (at - _EPOCH) // dt.timedelta(microseconds=1)


def _required(name: str, type_: ColumnType, comment: str) -> Column:
    return Column(name, type_, comment, nullable=False)


_MODEL_SET = _required("model_set", "string", "name of the model set, catalog.schema.name")
_RUN_ID = _required("run_id", "string", "the training run")
_KEY_ID = _required("key_id", "string", "first 16 bytes of the SHA-256 of the key in canonical form, hex")
_KEY = _required("key", "map<string,string>", "key columns and their values as text")
_LEVEL = _required("level", "string", "key columns of this level joined by commas; global for none")
_ROWS = (
    Column("rows", "bigint", "rows of the key in the data"),
    Column("usable_rows", "bigint", "rows with a finite target that are not left out"),
    Column("bytes", "bigint", "estimated bytes of the usable rows as the fit sees them"),
    Column("old_rows", "bigint", "rows with a target before the window, left out; null without window_days"),
    Column("immature_rows", "bigint", "rows whose label may not be known yet, left out; null without a delay"),
    Column("unweighted_rows", "bigint", "rows without a weight above 0, left out; null without sample_weight"),
)
_FINGERPRINT = Column("data_fingerprint", "string", "row count and sum of row hashes of the fit columns")
_TRAINED_TIMES = (
    Column("train_from", "timestamp", "oldest usable row"),
    Column("train_to", "timestamp", "newest usable row"),
)
_PLACE = (
    Column("unit", "int", "unit that trained the key; the first one of a salted key"),
    Column("wave", "int", "wave of that unit"),
)
_OUTCOME = (
    _required("status", "string", "outcome of the key in this run"),
    Column("reason", "string", "why, in a sentence"),
    Column("error_type", "string", "class of the exception"),
    Column("error_message", "string", "its message, cut"),
    Column("error_stage", "string", "prepare, fit, evaluate, refit or serialize"),
    Column("traceback", "string", "its traceback, cut"),
)
_FIT = (
    Column("rows_used", "bigint", "rows that the stored model was fitted on"),
    Column("estimator", "string", "family or dotted path"),
    Column("params", "map<string,string>", "parameters as fitted: spec, seed, threads, best iteration"),
    Column("metrics", "map<string,double>", "metrics on the holdout"),
    Column(
        "baseline_metrics",
        "map<string,double>",
        "the same metrics of the training median, and as parent_mae, champion_mae, ... those of what else is compared",
    ),
    Column("train_metrics", "map<string,double>", "train_mae, train_rmse, ...: of rows that the measured model saw"),
    Column("fit_flag", "string", "over, under or ok: errors on training rows beside the holdout, and the median's"),
    Column("importance", "map<string,double>", "share of each feature in what the model says; sums to 1"),
    Column("interval", "map<string,double>", "half width of the interval around a prediction, by level"),
    Column("coverage", "map<string,double>", "share of held out rows inside intervals that others made, by level"),
    Column("holdout_from", "timestamp", "first moment of the holdout"),
    Column("holdout_rows", "bigint", "usable rows in the holdout"),
    Column("fit_seconds", "double", "wall seconds of the key in its unit"),
    Column("cpu_seconds", "double", "CPU seconds of the same, on all threads"),
)
_STORED = (
    Column("model_bytes", "bigint", "bytes of the data file"),
    Column("sha256", "string", "SHA-256 of the data file, hex"),
)
_FITTED_AT = (
    Column("seed", "bigint", "random seed of the key"),
    Column("started_at", "timestamp", "when the key's fit started"),
    Column("finished_at", "timestamp", "when it ended"),
)

PLAN = Table(
    "group_model_plan",
    "one row: what a run decided to do with one key, and where",
    (
        _MODEL_SET, _RUN_ID, _KEY_ID, _KEY, _LEVEL, *_ROWS, _FINGERPRINT,
        _required("decision", "string", "whole, sampled, salted or distributed; else the status it leads to"),
        Column("reason", "string", "why, in a sentence"),
        *_PLACE,
        Column("key_index", "int", "place of the key in its unit"),
        Column("override", "int", "place of the override that holds for the key, from 0; null for none"),
        Column("n_parts", "int", "parts that a salted key is split into"),
        Column("sample_share", "double", "share of the rows that is kept; null for all"),
        Column("predicted_seconds", "double", "expected seconds of the fit"),
        Column("predicted_model_bytes", "double", "expected bytes of the stored model"),
        *_TRAINED_TIMES,
        Column("holdout_from", "timestamp", "first moment of the holdout, the same for all keys"),
        Column("rows_after", "timestamp", "rows up to it are before the window, for all keys"),
        Column("rows_until", "timestamp", "labels of rows after it may not be known yet, for all keys"),
    ),
)  # fmt: skip

STORE = Table(
    "group_model_store",
    "one row: one key (or one part of a salted key) as tried by one wave; with data it is an MLflow pyfunc",
    (
        _MODEL_SET, _RUN_ID,
        _required("wave", "int", "wave that committed the row"),
        _required("number", "bigint", "number of the commit; of rows with the same key and part the lowest counts"),
        _KEY_ID,
        _required(
            "part", "int", "-1 for a whole key, 0 of a parent before its refit; part of a salted one, then before that"
        ),
        _required("format", "int", "format of mlmodel and data"),
        Column("mlmodel", "string", "the MLmodel file"),
        Column("data", "binary", "the data file; null where there is no model"),
        Column("data_file", "string", "name of the data file beside MLmodel"),
        *_STORED, *_OUTCOME, *_FIT,
        Column("unit", "int", "unit that tried the key"),
        Column("attempt", "int", "attempt of the wave, from 0"),
        *_FITTED_AT,
        Column("trials", "string", "of a key that was tuned, its trials as JSON, as they go to the trials table"),
    ),
)  # fmt: skip

TRIALS = Table(
    "group_model_trials",
    "one row: parameters that were tried for a key, or for a part of a salted one, on folds of its training rows",
    (
        _MODEL_SET, _RUN_ID, _KEY_ID,
        _required("part", "int", "-1 for a whole key; else the part of a salted one"),
        _required("trial", "int", "number of the trial; 0 has the spec's parameters"),
        _required("state", "string", "complete, pruned (given up after some folds) or failed"),
        Column("params", "map<string,string>", "the parameters that were searched"),
        Column("error", "double", "mean error over the folds, by the spec's metric; null unless complete"),
        Column("fold_errors", "string", "errors on the folds that were measured, as JSON"),
        Column("seconds", "double", "wall seconds of the trial"),
        Column("error_message", "string", "why it failed"),
    ),
)  # fmt: skip

MANIFEST = Table(
    "group_model_manifest",
    "one row: the outcome of one key in one run, and which model serves the key after it",
    (
        _MODEL_SET, _RUN_ID, _KEY_ID, _LEVEL, _KEY,
        _OUTCOME[0],
        _required("serves", "string", "new, previous, parent or none"),
        Column("model_run_id", "string", "run that trained the model that serves"),
        *_OUTCOME[1:],
        Column("policy", "string", "whole, sampled, salted or distributed; null where nothing was fitted"),
        Column("n_parts", "int", "parts of a salted key"),
        *_ROWS, *_FIT,
        Column("parent_key_id", "string", "key of the parent that serves, or that the model builds on"),
        Column("parent_run_id", "string", "run that trained the model of that parent"),
        *_PLACE,
        Column("attempt", "int", "attempt of the wave, from 0"),
        *_STORED, _FINGERPRINT,
        Column("spec_fingerprint", "string", "hash of what the spec says of a fit"),
        *_TRAINED_TIMES, *_FITTED_AT,
    ),
)  # fmt: skip

RUN = Table(
    "group_model_run",
    "one row: a run started, was planned, finished or logged, or went on although something had changed",
    (
        _MODEL_SET, _RUN_ID,
        _required("event", "string", "started, planned, accepted, finished or logged"),
        _required("at", "timestamp", "when"),
        Column("scope", "string", "predicate on key columns, or number and digest of a list; null for all keys"),
        Column("base_release", "string", "newest release row when the run started"),
        Column("spec", "string", "the spec as JSON"),
        Column("spec_fingerprint", "string", "hash of what the spec says of a fit"),
        Column("source", "string", "where the rows came from"),
        Column("source_version", "string", "version of the source where it has versions"),
        Column("rows", "bigint", "rows read"),
        Column("keys", "bigint", "keys in scope"),
        Column("counts", "map<string,bigint>", "keys by status"),
        Column("seconds", "map<string,double>", "wall seconds by phase"),
        Column("coverage", "map<string,double>", "share of all keys' held out rows inside intervals, by level"),
        Column("waves", "int", "waves"),
        Column("key_kinds", "map<string,string>", "key columns and what their values are"),
        Column("source_stats", "map<string,double>", "what tells a half-loaded source: rows, newest, missing"),
        Column("feature_kinds", "map<string,string>", "feature columns in order, numeric or text"),
        Column("refusal", "string", "why a finished run was not released, where it should have been"),
        Column("labels", "string", "labels of a classification in order, and their kind, as JSON"),
        Column("versions", "map<string,string>", "library versions"),
        Column("code_version", "string", "version of group-models"),
        Column("mlflow_run_id", "string", "MLflow run of this run"),
        Column("changes", "string", "accepted: what had changed, or what speaks against the source"),
        Column("stored_before", "string", "accepted: numbers of the store's commits until then, joined by commas"),
    ),
)  # fmt: skip

RELEASE = Table(
    "group_model_release",
    "one row: an act that changes what an alias serves",
    (
        _MODEL_SET,
        _required("release_id", "string", "id of the row"),
        _required("alias", "string", "champion or challenger"),
        _required("action", "string", "publish, rollback, pin, unpin, adopt, mirror or clean"),
        Column("run_id", "string", "run that is published, pinned or cleaned"),
        Column(
            "target_release_id", "string",
            "release that a rollback or adopt goes back to, that a mirror copies, or that a clean leaves as the oldest",
        ),
        Column("key_id", "string", "key of a pin"),
        _required("at", "timestamp", "when; strictly ascending"),
        Column("by", "string", "who"),
        Column("note", "string", "why"),
        Column("registered_version", "string", "version of the registered model that a mirror made"),
    ),
    is_log=True,
)  # fmt: skip

TABLES: tuple[Table, ...] = (PLAN, STORE, TRIALS, MANIFEST, RUN, RELEASE)
