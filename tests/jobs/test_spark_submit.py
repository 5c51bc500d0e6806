"""The built wheel through real `spark-submit`: the jobs' exit codes and what they write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pyspark
import pytest
import yaml

from tests import worlds

REPOSITORY = Path(__file__).parents[2]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"

# Beside the jobs on the path: it notes which package the job and its workers have imported.
WITNESS = """
import pathlib
import group_models

NOTES = pathlib.Path(__file__).parent / "imported"

def note(who):
    (NOTES / who).write_text(group_models.__file__)

def rows(spark):
    NOTES.mkdir(exist_ok=True)
    note("job")
    return spark.read.parquet(str(pathlib.Path(__file__).with_name("rows.parquet")))

class Mean:
    def fit(self, x, y):
        note("worker")
        if len(y) and y.min() < -1e6:
            raise ValueError("no such world")
        self.mean = float(y.mean())
        return self

    def predict(self, x):
        return [self.mean] * len(x)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the repository and installed into a folder of its own."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(wheels), str(REPOSITORY)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel_file,) = wheels.glob("*.whl")
    subprocess.run([*pip, "--target", str(target), str(wheel_file)], check=True, capture_output=True, text=True)
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, a witness and the specs."""
    path = tmp_path_factory.mktemp("job")
    pq.write_table(worlds.rows(), path / "rows.parquet")
    (path / "witness.py").write_text(WITNESS)
    good = worlds.spec(
        {"python": "witness:rows"},
        "warehouse",
        estimator={"object": "witness:Mean", "version": "1"},
        holdout={"by": "none"},
    )
    write(path / "good.yaml", good)
    write(path / "bad.yaml", {**good, "features": ["a", "stop"], "seed": "seven"})
    hopeless = {"path": "hopeless.parquet"}
    pq.write_table(_hopeless(), path / "hopeless.parquet")
    write(path / "hopeless.yaml", {**good, "source": hopeless, "model_set": "zrl.ml.hopeless"})
    return path


def _hopeless() -> Any:
    table = worlds.rows({("UA", 1): 25})
    return table.set_column(table.column_names.index("y"), "y", [[-1e7] * table.num_rows])


def write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(content), encoding="utf-8")


def submit(installed: Path, folder: Path, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a job as a user does, with the wheel and the folder on the path, and nothing of the repository.

    `spark-submit` hands on as standard output whatever the job prints, its standard error too.
    """
    given = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment = given | {
        "PYTHONPATH": f"{installed}{os.pathsep}{folder}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # A JVM that lives for seconds is done sooner without its second compiler.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    options = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
    command = [str(SUBMIT), *options, str(REPOSITORY / "jobs" / f"{job}.py"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.spark
class TestJobs:
    """In the order of a night: train, list, score; then what is refused."""

    def test_a_night_of_training_and_scoring(self, installed: Path, folder: Path):
        trained = submit(installed, folder, "train", "good.yaml", "--run-id", "night")
        assert trained.returncode == 0, trained.stdout[-4000:]
        assert "Run night of zrl.ml.eta" in trained.stdout
        assert f"{len(worlds.FITTED)} trained, 1 too_small" in trained.stdout
        assert "wave 1 of 1 done" in trained.stdout
        notes = {note.name: note.read_text() for note in (folder / "imported").iterdir()}
        assert notes == dict.fromkeys(["job", "worker"], str(installed / "group_models" / "__init__.py"))

        listed = submit(installed, folder, "release", "list", "good.yaml")
        assert listed.returncode == 0, listed.stdout[-4000:]
        assert "1 release(s)" in listed.stdout
        assert "night" in listed.stdout

        scored = submit(installed, folder, "score", "good.yaml", "--input", "rows.parquet", "--output", "scored")
        assert scored.returncode == 0, scored.stdout[-4000:]
        found, rows = pd.read_parquet(folder / "scored"), worlds.pandas_rows(worlds.rows())
        assert len(found) == len(rows)
        mean = rows[(rows["carrier"] == "UA") & (rows["stop"] == 1) & rows["y"].abs().lt(1e9)]["y"].mean()
        assert found[(found["carrier"] == "UA") & (found["stop"] == 1)]["prediction"].unique() == pytest.approx(mean)
        assert found["prediction"].notna().sum() == sum(worlds.SIZES[key] + 1 for key in worlds.FITTED)

    def test_a_bad_spec_ends_with_1_and_all_its_mistakes(self, installed: Path, folder: Path):
        done = submit(installed, folder, "train", "bad.yaml")
        assert done.returncode == 1
        assert "seed: should be a whole number, got 'seven'" in done.stdout
        assert "features: 'stop' is a key column" in done.stdout
        assert "Traceback" not in done.stdout

    @pytest.mark.slow
    def test_a_run_whose_release_is_refused_ends_with_4(self, installed: Path, folder: Path):
        done = submit(installed, folder, "train", "hopeless.yaml")
        assert done.returncode == 4, done.stdout[-4000:]
        assert "none of 1 keys could be trained (1 failed)" in done.stdout
