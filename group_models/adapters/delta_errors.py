"""What Delta and catalogs answer when something is missing or another was faster, and the way out of it."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from group_models.adapters.spark_errors import SPARK_ERRORS, cause, first_line, is_from_worker
from group_models.errors import StateError
from group_models.frames import WRITE_MICROSECONDS

T = TypeVar("T")

_TRIES = 8
"""Attempts at a statement that others' commits come in the way of."""

_SAME_COMMIT = "ConcurrentTransactionException"
_IN_THE_WAY = re.compile(
    r"Concurrent\w+Exception|MetadataChangedException|ProtocolChangedException|DELTA_CONCURRENT|DELTA_METADATA_CHANGED"
    r"|AlreadyExists|ALREADY_EXISTS|HTTP 409|CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
)

_WAYS_OUT = {
    r"data source: delta|DATA_SOURCE_NOT_FOUND|DELTA_CONFIGURE_SPARK_SESSION|NOT_SUPPORTED_CREATE_TABLE": (
        "this session has no Delta; start Spark with `--packages io.delta:delta-spark_4.2_2.13:4.4.0 --conf "
        "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension --conf "
        "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog`"
    ),
    r"TIMESTAMP\(NANOS": WRITE_MICROSECONDS,
    r"HTTP 0\b|Connection re(fused|set)|ConnectException|HttpConnectTimeout|header parser received no|HTTP 50[234]\)": (
        "the catalog's server does not answer; start it or correct its uri (spark.sql.catalog.NAME.uri), then run again"
    ),
    r"HTTP 401|: 401 -|UNAUTHENTICATED|[Ii]nvalid.*token": (
        "the catalog did not accept the token; set spark.sql.catalog.NAME.token to one that is valid"
    ),
    r"HTTP 403|: 403 -|PERMISSION_DENIED|INSUFFICIENT_PERMISSIONS|AccessDenied": (
        "ask the owner for {needs}; `group-models grants SPEC` prints the statements"
    ),
    r"[Mm]anaged (storage|location)|storage_root|MANAGED_LOCATION|storage location": (
        "the catalog has no managed location; give one to the catalog or the schema, or keep external tables with "
        "`warehouse: delta:LOCATION`"
    ),
    r"CATALOG_NOT_FOUND|[Cc]atalog \S+ (does )?not (found|exist)|[Cc]atalog not found"
    r"|REQUIRES_SINGLE_PART_NAMESPACE|Nested databases": (
        "this session knows no such catalog; create it, or configure it with spark.sql.catalog.NAME"
    ),
    r"SCHEMA_NOT_FOUND|[Ss]chema .*not (found|exist)|NoSuchNamespace|NAMESPACE_NOT_FOUND": (
        "correct the name, or create the schema: `CREATE SCHEMA catalog.schema`"
    ),
}
"""What an answer says, and what a person then does; the first that matches counts."""


def is_same_commit(error: BaseException) -> bool:
    """Return whether a write failed since another with its txnAppId was faster."""
    return _SAME_COMMIT in str(error) or "DELTA_CONCURRENT_TRANSACTION" in str(error)


def retried(act: Callable[[], T]) -> T:
    """Return what a statement gives, tried again while others' commits come in its way."""
    for attempt in range(_TRIES):
        try:
            return act()
        except SPARK_ERRORS as error:
            if attempt == _TRIES - 1 or is_same_commit(error) or not _IN_THE_WAY.search(str(error)):
                raise
            time.sleep(random.uniform(0.05, 0.1) * 2**attempt)  # noqa: S311 - spreads writers, hides nothing
    raise AssertionError("unreachable")


@contextlib.contextmanager
def explaining(what: str, *, needs: str = "the privilege", is_query: bool = False) -> Iterator[None]:
    """Turn what Spark or a catalog answers into one sentence, with the way out where there is one.

    Parameters
    ----------
    what
        What was tried, with the name of the table or schema.
    needs
        The privileges that it needs, and on what.
    is_query
        It may also fail of what a query computes: that, and whatever else has no way out, is let through.

    Raises
    ------
    StateError
        It failed.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        if is_query and (is_from_worker(error) or _way_out(str(error)) is None):
            raise
        raise StateError(f"{what} failed: {answer(error, needs=needs)}") from error


def answer(error: BaseException, *, needs: str) -> str:
    """Return what failed in a line, and the way out where there is one.

    Parameters
    ----------
    needs
        The privileges that it needs, and on what.
    """
    way_out = _way_out(str(error))
    return f"{said(error)}. The way out: {way_out.format(needs=needs)}" if way_out else said(error)


def said(error: BaseException) -> str:
    """Return what failed in a line: of what a catalog answers that is the first one, not its innermost cause."""
    of_query = is_from_worker(error) or "Job aborted" in str(error)
    return (cause(error) if of_query else first_line(error))[:300].rstrip(".")


def _way_out(text: str) -> str | None:
    return next((way_out for pattern, way_out in _WAYS_OUT.items() if re.search(pattern, text)), None)
