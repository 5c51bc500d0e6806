"""Every mistake of a spec that shows without Spark, at once: structure, Parquet columns, estimator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic

from group_models.errors import DataError, SpecError
from group_models.estimators.base import EstimatorSettings, Features, features_of
from group_models.estimators.registry import check_settings
from group_models.frames import WRITE_MICROSECONDS, check_columns, column_kind
from group_models.labels import NO_LABELS
from group_models.loading import is_missing, load_spec, names_in, raw_spec
from group_models.spec import Estimator, Spec, is_uri

_SIMPLE: Mapping[pa.DataType, str] = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.binary(): "binary",
    pa.string(): "string",
    pa.large_string(): "string",
}


def load_checked(given: Spec | Mapping[str, Any] | str | Path) -> Spec:
    """Return a checked spec, or say all that is wrong with it, what its Parquet source lacks included.

    Raises
    ------
    SpecError
        Every mistake at once, before a Spark session is started.
    """
    mistakes: list[str] = []
    spec: Spec | None = None
    try:
        spec = load_spec(given)
    except SpecError as e:
        raw = raw_spec(given) if isinstance(given, Mapping | str | Path) else None
        if raw is None:
            raise
        where, mistakes = e.where, [*e.mistakes]
    else:
        raw, where = {name: getattr(spec, name) for name in Spec.model_fields}, "the spec"
    mistakes += [said for said in source_mistakes(raw, _folder(given)) if said not in mistakes]
    if mistakes or spec is None:
        raise SpecError(mistakes, where=where)
    return spec


def _folder(given: Spec | Mapping[str, Any] | str | Path) -> Path:
    return Path.cwd() if isinstance(given, Spec | Mapping) else Path(given).resolve().parent


def source_mistakes(raw: Mapping[str, Any], folder: Path) -> list[str]:
    """Return what is wrong between an unchecked spec and its source, as far as no Spark is needed to see it."""
    features = names_in(raw.get("features"))
    given = _file_source(raw.get("source"), folder)
    if given is not None and is_missing(given[0]):
        said = f"source.path: there is no {given[0]} (a path in a spec is relative to the spec's file)"
        # Nobody knows which features are text; numbers are what every estimator takes.
        return [said, *_estimator_mistakes(raw, features_of(dict.fromkeys(features, "numeric")))]
    columns = _parquet_columns(*given) if given is not None else None
    if columns is None:
        return []
    target, time_column, weight = (raw.get(name) for name in ("target", "time_column", "sample_weight"))
    mistakes = check_columns(
        columns,
        keys=names_in(raw.get("keys")),
        features=features,
        target=target if isinstance(target, str) else None,
        time_column=time_column if isinstance(time_column, str) else None,
        sample_weight=weight if isinstance(weight, str) else None,
        task="classification" if raw.get("task") == "classification" else "regression",
    )
    kinds = {name: kind for name in features if name in columns and (kind := column_kind(columns[name]))}
    return mistakes + _estimator_mistakes(raw, features_of(kinds))


def _estimator_mistakes(raw: Mapping[str, Any], features: Features) -> list[str]:
    estimator = raw.get("estimator")
    given = {"name": estimator} if isinstance(estimator, str) else estimator
    try:
        estimator = given if isinstance(given, Estimator) else Estimator.model_validate(given)
    except pydantic.ValidationError:
        return []
    labels = NO_LABELS if raw.get("task") == "classification" else None
    is_weighted = bool(raw.get("sample_weight") or raw.get("class_weight"))
    return check_settings(EstimatorSettings(**dict(estimator), labels=labels), features, is_weighted=is_weighted)


def _file_source(source: Any, folder: Path) -> tuple[Path, Any] | None:
    """Return path and format of a source that is local files, or None."""
    given = dict(source) if isinstance(source, Mapping | pydantic.BaseModel) else {}
    path = given.get("path")
    if not isinstance(path, str) or is_uri(path):
        return None
    return folder / Path(path).expanduser(), given.get("format")


def _parquet_columns(file: Path, format_: Any) -> dict[str, str] | None:
    """Return name to Spark type of a local Parquet source, or None where only Spark can tell."""
    if format_ not in (None, "parquet"):
        return None
    if file.is_dir():
        file = next(iter(sorted(file.glob("*.parquet"))), file)
    if not file.is_file() or file.suffix != ".parquet":
        return None
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as e:
        raise DataError(f"cannot read the source {file}: {e}; is it a whole Parquet file?") from e
    if fine := [field.name for field in schema if pa.types.is_timestamp(field.type) and field.type.unit == "ns"]:
        named = ", ".join(map(repr, fine))
        raise DataError(f"cannot read the source {file}: Spark reads no nanoseconds ({named}); {WRITE_MICROSECONDS}")
    return {field.name: _spark_type(field.type) for field in schema}


def _spark_type(kind: pa.DataType) -> str:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "array<>"
    return "struct<>" if pa.types.is_struct(kind) else "map<>" if pa.types.is_map(kind) else str(kind)
