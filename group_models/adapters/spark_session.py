"""The Spark session: the active one, the one the environment names, or one of our own on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from group_models.adapters import standard_error
from group_models.errors import PlatformError

JAVA_VERSIONS = (17, 21)
"""Java versions that Spark 4.0 to 4.2 run on and that are tested."""

_MANAGED = ("DATABRICKS_RUNTIME_VERSION", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")
"""Environment variables of a place that brings its own session: Databricks, Connect, spark-submit."""

_QUIET = Path(__file__).with_name("log4j2-quiet.properties")


def get_session() -> SparkSession:
    """Return the active session or start one.

    Raises
    ------
    PlatformError
        A session of our own needs Java 17 or 21, and there is none.
    """
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    if any(os.environ.get(name) for name in _MANAGED):
        return SparkSession.builder.appName("group-models").getOrCreate()
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with standard_error.without(standard_error.INCUBATOR):
        return _local_builder().getOrCreate()


def _local_builder() -> SparkSession.Builder:
    options = {
        "spark.master": "local[*]",
        "spark.driver.memory": os.environ.get("SPARK_DRIVER_MEMORY", "1g"),
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile="{_QUIET.as_uri()}"',
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "32",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    builder = SparkSession.builder.appName("group-models")
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder


def check_java() -> None:
    """Let Spark run on the Java of `JAVA_HOME` if that fits, else on the one on PATH.

    Raises
    ------
    PlatformError
        Neither is a Java that Spark runs on; the message says what was found and how to get one.
    """
    found = []
    for java in _candidates():
        version, home = _describe(java)
        if version in JAVA_VERSIONS:
            # Spark goes by JAVA_HOME alone where it is set.
            if os.environ.get("JAVA_HOME"):
                os.environ["JAVA_HOME"] = home
            return
        found.append(f"{java} is Java {version}" if version else f"there is no Java at {java}")
    raise PlatformError(
        f"Spark needs Java 17 or 21, and {' and '.join(found) or 'no Java was found'}. Install one (Debian: `apt "
        "install openjdk-17-jre-headless`; macOS: `brew install openjdk@17`; elsewhere: Eclipse Temurin from Adoptium) "
        "or point JAVA_HOME at it."
    )


def _candidates() -> list[str]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    return [*([str(Path(home) / "bin" / "java")] if home else []), *([on_path] if on_path else [])]


def _describe(java: str) -> tuple[int | None, str]:
    """Return version and home of a java command; asked of Java itself, since it may be a link or a launcher."""
    try:
        command = [java, "-XshowSettings:properties", "-version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return None, ""
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    home = re.search(r"java\.home = (.+)", said)
    return (int(version[1]), home[1].strip()) if version and home else (None, "")
