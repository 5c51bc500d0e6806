"""Ask the workers what they are before they train: versions of Python and libraries, and the paths they see."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from group_models.adapters.spark_errors import SPARK_ERRORS, cause
from group_models.errors import PlatformError, SpecError
from group_models.libraries import installed, minor
from group_models.objects import resolve

_EXACT = ("group-models",)
_MOST_ASKED = 1000
"""Rows of the question; a session spreads them over its slots."""


versions = installed
"""The versions of Python and of the libraries that decide a fit, as workers and driver each have them."""


def check_workers(spark: SparkSession, paths: Sequence[str], dotted: str | None = None) -> None:
    """Compare the workers with the driver.

    Parameters
    ----------
    paths
        Local paths (source, warehouse) that the workers' machines must see too.
    dotted
        `package.module:attribute` of an estimator that the workers must be able to import.

    Raises
    ------
    PlatformError
        Another Python or library (major.minor), a path that only the driver sees, or a module that only the driver
        can import. One message for all.
    """
    mistakes: list[str] = []
    for there in _ask(spark, [path for path in paths if Path(path).exists()], dotted):
        mistakes += version_mistakes(versions(), there["versions"])
        mistakes += [
            f"{path} is on the driver only; workers need a shared path or a table" for path in there["missing"]
        ]
        if there["import"]:
            mistakes.append(f"{there['import']}; install the module where the workers run, or give the object itself")
    if mistakes:
        raise PlatformError("the workers do not match the driver: " + "; ".join(dict.fromkeys(mistakes)))


def version_mistakes(driver: dict[str, str], worker: dict[str, str]) -> list[str]:
    """Return the differences that matter, one sentence each.

    Examples
    --------
    >>> version_mistakes({"numpy": "2.3.4"}, {"numpy": "2.3.1"})
    []
    >>> version_mistakes({"numpy": "2.3.4"}, {})
    ['numpy is 2.3.4 on the driver and not installed on the workers']
    """
    mistakes = []
    for name, here in driver.items():
        there = worker.get(name)
        if there is None or _compared(name, here) != _compared(name, there):
            said = "not installed" if there is None else there
            mistakes.append(f"{name} is {here} on the driver and {said} on the workers")
    return mistakes


def _compared(name: str, version: str) -> str:
    return version if name in _EXACT else minor(version)


def _ask(spark: SparkSession, paths: Sequence[str], dotted: str | None) -> list[dict[str, Any]]:
    """Return what the workers say of themselves, one answer per task slot, the same ones once."""
    wanted = list(paths)

    def answer(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for _ in batches:
            missing = [path for path in wanted if not Path(path).exists()]
            said = {"versions": versions(), "missing": missing, "import": _import_mistake(dotted)}
            yield pd.DataFrame({"said": [json.dumps(said, sort_keys=True)]})

    slots = spark.range(_MOST_ASKED).mapInPandas(answer, "said string")
    try:
        rows = slots.distinct().collect()
    except SPARK_ERRORS as e:
        raise PlatformError(f"the workers cannot answer what they are: {cause(e)}") from e
    return [json.loads(row["said"]) for row in rows]


def _import_mistake(dotted: str | None) -> str | None:
    """Return why a dotted path cannot be imported here, or None."""
    if dotted is not None:
        try:
            resolve(dotted)
        except SpecError as e:
            return e.mistakes[0]
    return None
