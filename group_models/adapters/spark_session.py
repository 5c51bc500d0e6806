"""The Spark session: the active one, the one the environment names, or one of our own on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

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
    """Refuse a machine without a Java that Spark runs on.

    Raises
    ------
    PlatformError
        There is no Java, or one of another version; the message says how to get one.
    """
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    found = _java_version(java) if java else None
    if found not in JAVA_VERSIONS:
        said = "no Java was found" if found is None else f"{java} is Java {found}"
        raise PlatformError(
            f"Spark needs Java 17 or 21, and {said}. Install one (Debian: `apt install openjdk-17-jre-headless`; "
            "macOS: `brew install openjdk@17`; elsewhere: Eclipse Temurin from Adoptium) or point JAVA_HOME at it."
        )


def _java_version(java: str) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None
