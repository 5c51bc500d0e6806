"""What a failed Spark query raises, and what of it a person needs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from pyspark.errors import PySparkException

from group_models.errors import DataError

try:
    from py4j.protocol import Py4JJavaError
except ImportError:  # a client of Spark Connect may come without it
    SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    SPARK_ERRORS = (PySparkException, Py4JJavaError)
    """Classic sessions pass some errors of the JVM through as they are."""

_RAISED = re.compile(r"(?!(org|java|scala)\.)[A-Za-z_][\w.]*(Error|Exception): ")
"""A line of a Python traceback that names the exception; the JVM's own are around it."""

_TRACEBACK = "Traceback (most recent call last):"
_NAMED = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""The line after a traceback's calls, also of what is called neither an error nor an exception."""


def cause(error: BaseException) -> str:
    """Return what a query failed of: what a worker raised, else the innermost cause in the JVM, else the first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    raised = _raised(error)
    caused = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return raised[-1] if raised else caused[-1] if caused else first_line(error)


def _raised(error: BaseException) -> list[str]:
    """Return the lines that name what Python raised in a worker: by the word, or at the end of a traceback."""
    lines, ends, is_within = str(error).splitlines(), set[int](), False
    for place, line in enumerate(lines):
        if line.rstrip().endswith(_TRACEBACK):
            is_within = True
        elif is_within and line[:1].strip():
            is_within = False
            if _NAMED.match(line):
                ends.add(place)
    return [line.strip() for place, line in enumerate(lines) if place in ends or _RAISED.match(line.strip())]


_DEAD = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure")
"""What Spark 4.0 to 4.2 say of a dead worker or executor. An EOFException alone can be a source cut off."""


def is_dead_worker(error: BaseException) -> bool:
    """Return whether a query failed since a Python worker or an executor died, and not of what one raised."""
    return _DEAD.search(str(error)) is not None and not is_from_worker(error)


def is_from_worker(error: BaseException) -> bool:
    """Return whether a query failed of what Python raised in one of its workers."""
    return bool(_raised(error))


def is_childless(error: BaseException) -> bool:
    """Return whether a query failed since its workers could make no child process."""
    return "NoChildError: " in str(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without Spark's query plan and how a classic session called it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    is_call = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    return lines[1].removeprefix(": ") if is_call else lines[0]


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """Turn the failure of a query into one sentence: `what` could not be done, and why.

    Raises
    ------
    DataError
        The query failed.
    """
    try:
        yield
    except SPARK_ERRORS as e:
        raise DataError(f"{what} failed: {cause(e)}") from e
