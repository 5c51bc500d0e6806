"""The package as a whole: what it must not use, and what importing it must not load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import group_models

PACKAGE = Path(group_models.__file__).parent
REFUSED = {
    "sparkContext": r"sparkContext",
    "rdd": r"\.rdd\b",
    "RDD": r"\bRDD\b",
    "_jvm": r"\b_jvm\b",
    "_jdf": r"\b_jdf\b",
    "_jsparkSession": r"\b_jsparkSession\b",
    "cache": r"\.cache\(",
    "persist": r"\.persist\(",
}
HEAVY = ("pyspark", "mlflow", "sklearn", "pandas", "numpy", "xgboost", "scipy")


@pytest.mark.parametrize("pattern", REFUSED.values(), ids=list(REFUSED))
def test_nothing_that_a_standard_cluster_refuses_stands_in_the_package(pattern: str):
    sources = sorted(PACKAGE.rglob("*.py"))
    assert len(sources) > 30
    lines = [
        f"{source.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for source in sources
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert lines == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("rdd", "frame.rdd.map(f)"),
        ("cache", "frame.cache()"),
        ("persist", "frame.persist(level)"),
        ("_jvm", "spark._jvm.x"),
        ("_jdf", "frame._jdf"),
        ("RDD", "from pyspark import RDD"),
        ("sparkContext", "spark.sparkContext.broadcast(x)"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: str, line: str):
    assert re.search(REFUSED[pattern], line)


def loaded_after(code: str) -> list[str]:
    """Return which heavy libraries a fresh process has loaded after some code."""
    ask = f"{code}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return eval(done.stderr.splitlines()[-1])  # noqa: S307 - a list that the line above wrote


@pytest.mark.parametrize("module", ["group_models", "group_models.cli", "group_models.errors"])
def test_importing_loads_no_heavy_library(module: str):
    assert loaded_after(f"import {module}") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["score", "--help"],
        ["report", "--help"],
        ["release", "publish", "--help"],
        ["trian"],
        ["train"],
    ],
    ids=" ".join,
)
def test_help_and_usage_load_no_heavy_library(arguments: list[str]):
    assert loaded_after(f"from group_models.cli import main; main({arguments!r})") == []


def test_the_check_sees_a_heavy_library():
    assert loaded_after("import numpy") == ["numpy"]


def test_every_public_name_can_be_imported_and_no_other():
    assert {name for name in group_models.__all__ if getattr(group_models, name) is None} == set()
    with pytest.raises(AttributeError, match="module 'group_models' has no attribute 'tain'"):
        _ = group_models.tain
