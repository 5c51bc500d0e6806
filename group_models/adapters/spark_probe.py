"""Ask the workers what they are before they train: versions of Python and libraries, and the paths they see."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from group_models.adapters.spark_source import SPARK_ERRORS, cause
from group_models.errors import PlatformError

_LIBRARIES = ("numpy", "pandas", "scikit-learn", "xgboost", "xgboost-cpu", "cloudpickle", "group-models")
_EXACT = ("group-models",)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that decide a fit, absent ones left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name.removesuffix("-cpu")] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


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
    there = _ask(spark, [path for path in paths if Path(path).exists()])
    mistakes = version_mistakes(versions(), there["versions"])
    mistakes += [f"{path} is on the driver only; workers need a shared path or a table" for path in there["missing"]]
    if mistakes:
        raise PlatformError("the workers do not match the driver: " + "; ".join(mistakes))


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
    return version if name in _EXACT else ".".join(version.split(".")[:2])


def _ask(spark: SparkSession, paths: Sequence[str]) -> dict[str, dict[str, str]]:
    wanted = list(paths)

    def answer(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for _ in batches:
            said = {"versions": versions(), "missing": [path for path in wanted if not Path(path).exists()]}
            yield pd.DataFrame({"said": [json.dumps(said)]})

    try:
        rows = spark.range(1).mapInPandas(answer, "said string").collect()
    except SPARK_ERRORS as e:
        raise PlatformError(f"the workers cannot answer what they are: {cause(e)}") from e
    return json.loads(rows[0]["said"])  # type: ignore[no-any-return]
