"""Which Java a session of our own runs on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from group_models.adapters.spark_session import check_java
from group_models.errors import PlatformError


def java(home: Path, version: str) -> Path:
    """Make a home of a Java that only tells its version."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    settings = f"    java.home = {home}\n    java.specification.version = {version}\n"
    command.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{settings}EOF\n", encoding="utf-8")
    command.chmod(0o755)
    return home


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder `path/bin` that comes first on PATH, with nothing in it."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path / "path"


def test_a_fitting_java_home_stays_and_without_one_java_on_path_does(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
):
    java(path, "21")
    check_java()
    assert "JAVA_HOME" not in os.environ
    home = java(tmp_path / "17", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    check_java()
    assert os.environ["JAVA_HOME"] == str(home)


@pytest.mark.parametrize("version", [None, "1.8", "11"])
def test_a_java_home_that_does_not_fit_gives_way_to_java_on_path(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
):
    java(path, "17")
    home = java(tmp_path / "old", version) if version else tmp_path / "nonexistent"
    monkeypatch.setenv("JAVA_HOME", str(home))
    check_java()
    assert os.environ["JAVA_HOME"] == str(path)


def test_without_a_fitting_java_it_is_said_what_was_found(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch):
    java(path, "11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nonexistent"))
    said = f"there is no Java at {tmp_path}/nonexistent/bin/java and {path}/bin/java is Java 11"
    with pytest.raises(PlatformError, match=f"Spark needs Java 17 or 21, and {said}"):
        check_java()
