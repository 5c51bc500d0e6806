"""Take columns through pandas unchanged: encode them in the JVM, decode them there again.

pandas alone loses values: a bigint beside a null becomes a double, a NaN comes back as null, a timestamp of the
year 1600 or 9999 raises (seen in Spark 4.0 to 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from group_models.frames import base_type

_FLAGGED: Mapping[str, str] = {
    "tinyint": "tinyint",
    "smallint": "smallint",
    "int": "int",
    "bigint": "bigint",
    "float": "float",
    "double": "double",
    "date": "int",
    "timestamp": "bigint",
}
"""Types that cross as a number without nulls and a null flag, and the number's type."""

_AS_THEY_ARE = ("string", "boolean", "binary")


def crosses_exactly(spark_type: str) -> bool:
    """Return whether a column of this type can be taken through pandas unchanged."""
    return spark_type in _FLAGGED or spark_type in _AS_THEY_ARE or base_type(spark_type) == "decimal"


def encode(name: str, spark_type: str) -> list[Column]:
    """Return the columns that a column crosses as."""
    column = F.col(name)
    if base_type(spark_type) == "decimal":
        return [column.cast("string").alias(name)]
    if spark_type not in _FLAGGED:
        return [column]
    number = {"date": F.unix_date, "timestamp": F.unix_micros}.get(spark_type, lambda c: c)(column)
    zero = F.lit(0).cast(_FLAGGED[spark_type])
    return [F.coalesce(number, zero).alias(name), column.isNull().alias(_flag(name))]


def crossing_schema(name: str, spark_type: str) -> str:
    """Return the schema of what `encode` gives."""
    if base_type(spark_type) == "decimal":
        return f"{name} string"
    if spark_type not in _FLAGGED:
        return f"{name} {spark_type}"
    return f"{name} {_FLAGGED[spark_type]}, {_flag(name)} boolean"


def decode(name: str, spark_type: str) -> Column:
    """Return the column that was encoded. A null that was none before can only have been a NaN."""
    column = F.col(name)
    if base_type(spark_type) == "decimal":
        return column.cast(spark_type).alias(name)
    if spark_type not in _FLAGGED:
        return column
    if spark_type in ("float", "double"):
        column = F.coalesce(column, F.lit(float("nan")).cast(spark_type))
    back = {"date": F.date_from_unix_date, "timestamp": F.timestamp_micros}.get(spark_type, lambda c: c)(column)
    return F.when(~F.col(_flag(name)), back).alias(name)


def _flag(name: str) -> str:
    return f"{name}_null"
