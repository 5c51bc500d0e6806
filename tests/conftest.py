"""Spark sessions for the tests: a classic one and a Connect one over one server, in this process.

pyspark goes by an environment variable when it builds the expressions of one kind or the other. So each test
runs as one kind: as Connect where it is marked `connect`, as classic otherwise.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from group_models.ports import SparkSession

_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM whose queries are small and each run once: compiling them well took half of its CPU time."""

_MARKS = {"spark": pytest.mark.spark, "connect_spark": pytest.mark.connect}

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# An example that takes long on a busy machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the session that it asks for, so that nobody can forget it, and start with clusters."""
    for item in items:
        for fixture, mark in _MARKS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
    # The longest first, so that two processes end at about the same time.
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let pyspark take this test as one of the kind that it is marked as."""
    os.environ.pop(_CONNECT_MODE, None)
    if item.get_closest_marker("connect"):
        os.environ[_CONNECT_MODE] = "1"


@pytest.fixture(scope="session")
def _empty_mlflow_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database before anything is in it; making one takes seconds."""
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def mlflow_db(tmp_path: Path, _empty_mlflow_db: Path) -> Iterator[str]:
    """MLflow set to a tracking store and registry of the test's own, in sqlite; the URI of both."""
    import mlflow

    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    uri = f"sqlite:///{shutil.copy(_empty_mlflow_db, tmp_path / 'mlflow.db')}"
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    yield uri
    mlflow.set_tracking_uri(before[0])
    mlflow.set_registry_uri(before[1])


@pytest.fixture(scope="session")
def connect_port() -> int:
    """A free port for the Connect server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def more_options() -> dict[str, str]:
    """Spark options that a folder of tests adds; it then needs a process of its own."""
    return {}


@pytest.fixture(scope="session")
def _classic(
    tmp_path_factory: pytest.TempPathFactory, connect_port: int, more_options: dict[str, str]
) -> Iterator[SparkSession]:
    """A classic session on two cores, with a Connect server as a plugin of the same driver."""
    from pyspark.sql import SparkSession

    options = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(connect_port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": _SHORT_LIVED,
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **more_options,
    }
    mode = os.environ.pop(_CONNECT_MODE, None)
    session = SparkSession.builder.master("local[2]").appName("tests").config(map=options).getOrCreate()
    if mode is not None:
        os.environ[_CONNECT_MODE] = mode
    yield session
    os.environ.pop(_CONNECT_MODE, None)
    session.stop()


@pytest.fixture(scope="session")
def spark(_classic: SparkSession) -> SparkSession:
    """A classic session."""
    return _classic


@pytest.fixture(scope="session")
def connect_spark(_classic: SparkSession, connect_port: int) -> Iterator[SparkSession]:
    """A Connect session."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(f"sc://127.0.0.1:{connect_port}").create()
    yield session
    session.stop()


@pytest.fixture(
    params=[
        pytest.param("spark", marks=pytest.mark.spark),
        pytest.param("connect_spark", marks=pytest.mark.connect),
    ]
)
def any_spark(request: pytest.FixtureRequest) -> SparkSession:
    """Each kind of session in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(
    params=[
        pytest.param("spark", marks=pytest.mark.spark),
        pytest.param("connect_spark", marks=[pytest.mark.connect, pytest.mark.slow]),
    ]
)
def either_spark(request: pytest.FixtureRequest) -> SparkSession:
    """Each kind of session in turn, that of Connect among the slow tests."""
    return request.getfixturevalue(request.param)
