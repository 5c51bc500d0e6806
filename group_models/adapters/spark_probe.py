"""Ask the workers what they are before they train: versions of Python and libraries, and the paths they see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from group_models.adapters.spark_errors import SPARK_ERRORS, cause
from group_models.errors import PlatformError
from group_models.libraries import installed
from group_models.versions import minor

_EXACT = ("group-models",)
_MOST_ASKED = 1000
"""Rows of the question; a session spreads them over its slots."""


versions = installed
"""The versions of Python and of the libraries that decide a fit, as workers and driver each have them."""


def check_workers(spark: SparkSession, paths: Sequence[str]) -> None:
    """Compare the workers with the driver.

    Parameters
    ----------
    paths
        Local paths (source, warehouse) that the workers' machines must see too.

    Raises
    ------
    PlatformError
        Another Python or library (major.minor), or a path that only the driver sees. One message for all.
    """
    mistakes: list[str] = []
    wanted = [path for path in paths if Path(path).exists()]

    def answer() -> dict[str, Any]:
        return {"versions": versions(), "missing": [path for path in wanted if not Path(path).exists()]}

    for there in ask_workers(spark, answer):
        mistakes += version_mistakes(versions(), there["versions"])
        mistakes += [
            f"{path} is on the driver only; workers need a shared path or a table" for path in there["missing"]
        ]
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


def ask_workers(spark: SparkSession, answer: Callable[[], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the workers answer (plain values), one answer per task slot, the same ones once."""

    def tell(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for _ in batches:
            yield pd.DataFrame({"said": [json.dumps(answer(), sort_keys=True)]})

    slots = spark.range(_MOST_ASKED).mapInPandas(tell, "said string")
    try:
        rows = slots.distinct().collect()
    except SPARK_ERRORS as e:
        raise PlatformError(f"the workers cannot answer what they are: {cause(e)}") from e
    return [json.loads(row["said"]) for row in rows]
