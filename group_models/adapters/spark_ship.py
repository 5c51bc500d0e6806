"""Let the workers have a user's estimator: by name where they can import its modules, with their code elsewhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from group_models.adapters.spark_probe import ask_workers
from group_models.errors import PlatformError, SpecError
from group_models.estimators.base import EstimatorSettings, Shipped
from group_models.estimators.objects import resolve
from group_models.estimators.shipping import by_name, own_modules, with_code


def ship(spark: SparkSession, settings: EstimatorSettings) -> EstimatorSettings:
    """Return the settings as every worker can read them, after it was tried there.

    A named family stays as it is, and so does an object that the workers can load by the names of its modules.
    Else the code of the modules that they lack goes with it. So does, where it can be sent, that of modules that they
    find only since they run in the folder of the driver (a local session): who reads the models later will not.

    Raises
    ------
    PlatformError
        The workers can have the estimator in neither way; it names the module and what to do.
    """
    if settings.object is None:
        return settings
    absent, mistake = _tried(spark, by_name(settings), own_modules(settings))
    if not absent:
        if mistake is not None:
            raise PlatformError(f"{_what(settings)} cannot be loaded by the workers: {mistake}; {_WAY_OUT}")
        return settings
    try:
        shipped = _with_code(spark, settings, absent)
    except PlatformError:
        if mistake is None:
            return settings
        raise
    goes_by_name = not shipped.modules and mistake is None
    return settings if goes_by_name else dataclasses.replace(settings, object=shipped, params={})


_WAY_OUT = "install what is missing where the workers run"


def _what(settings: EstimatorSettings) -> str:
    return f"estimator.object {settings.label!r}"


def _with_code(spark: SparkSession, settings: EstimatorSettings, absent: Sequence[str]) -> Shipped:
    """Return the estimator with the code of modules that the workers lack, after they have loaded it."""
    lacking = f"{_what(settings)}: the workers cannot import"
    try:
        shipped, late = with_code(settings, absent)
    except Exception as e:
        raise PlatformError(
            f"{lacking} its module, and its code cannot be sent to them ({type(e).__name__}: {e}); keep what does not "
            f"pickle (locks, sessions, compiled code) out of the module, or install it where the workers run"
        ) from e
    lacking = f"{lacking} {', '.join(shipped.modules) or 'its module'}"
    unknown, mistake = _tried(spark, shipped, sorted(late))
    if mistake is not None:
        raise PlatformError(f"{lacking}, and with its code they cannot load it: {mistake}; {_WAY_OUT}")
    if unknown:
        told = ", ".join(f"{name} (in {late[name]})" for name in unknown)
        raise PlatformError(
            f"{lacking}; its code can be sent to them, but not what a function imports when it runs: {told}. Import it "
            "at the top of the module, as a module or a name of its own, or install it where the workers run"
        )
    return shipped


def _tried(spark: SparkSession, shipped: Shipped, names: Sequence[str]) -> tuple[list[str], str | None]:
    """Return which of these modules some worker lacks, and why one cannot load the estimator, if so."""
    answers = ask_workers(spark, _question(shipped, list(names)))
    absent = {name for answer in answers for name in answer["absent"]}
    mistakes = [answer["mistake"] for answer in answers if answer["mistake"] is not None]
    return sorted(absent), mistakes[0] if mistakes else None


def _question(shipped: Shipped, names: list[str]) -> Callable[[], dict[str, Any]]:
    """Return what a worker answers; of this module, which a worker imports by its name."""

    def answer() -> dict[str, Any]:
        return {"absent": [name for name in names if not _is_there(name)], "mistake": _load_mistake(shipped)}

    return answer


def _is_there(name: str) -> bool:
    """Return whether a top-level module is found here, and would be from any folder."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or [])]
    folders = {Path(place).resolve().parent for place in places if place and spec.has_location}
    paths = {Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    return Path.cwd() not in folders or Path.cwd() in paths


def _load_mistake(shipped: Shipped) -> str | None:
    """Return why the estimator cannot be loaded here, or None."""
    try:
        source, _ = shipped.load()
        if isinstance(source, str):
            resolve(source)
    except SpecError as e:
        return e.mistakes[0]
    except Exception as e:  # noqa: BLE001 - unpickling runs code of any class
        return f"{type(e).__name__}: {e}"
    return None
