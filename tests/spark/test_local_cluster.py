"""From training to scores on a cluster whose executors are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pyspark
import pytest

import group_models
from group_models.artifacts import load_model
from tests import worlds
from tests.cases.worlds import spec_of

CHILD = Path(__file__).with_name("local_cluster.py")
POISONED = Path(__file__).with_name("poisoned_cluster.py")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return what a local cluster needs: a Spark home for its executors, in which they may also write."""
    home = tmp_path / "spark-home"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    given = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return given | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # JVMs that live for seconds are done sooner without their second compiler.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }


@pytest.mark.cluster
def test_training_and_scoring_on_two_executors_equal_the_loop(tmp_path: Path, environment: dict[str, str]):
    table, rows = worlds.rows(), tmp_path / "rows.parquet"
    pq.write_table(table, rows)
    spec = worlds.spec({"path": str(rows)}, tmp_path / "warehouse")
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, str(CHILD), str(rows), str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads((tmp_path / "done.json").read_text())
    assert told["counts"] == {"trained": len(worlds.FITTED), "too_small": 1}
    assert told["release_id"] is not None
    assert told["processes"] == 2

    frame = worlds.pandas_rows(table)
    expected = worlds.loop(frame, worlds.SAMPLES["ridge"], is_holdout=worlds.time_holdout(frame))
    wanted = worlds.predictions(frame, expected, worlds.SAMPLES["ridge"]).sort_index()
    scored = pd.read_parquet(tmp_path / "scored").set_index("row_id").sort_index()
    pd.testing.assert_series_equal(scored["prediction"], wanted, check_names=False, rtol=0, atol=1e-9)
    for row in group_models.show(spec, status="trained"):
        assert row["metrics"] == (pytest.approx(expected[worlds.key_of(row)].metrics) if row["metrics"] else None)


BESIDE = """
from sklearn.linear_model import LinearRegression


class Line(LinearRegression):
    pass


def make():
    return Line()
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_i5_executors_get_the_code_of_a_module_that_the_driver_alone_can_import(tmp_path: Path, environment):
    rows = pd.DataFrame([(k, i, float(i), 2.0 * i) for k in "AB" for i in range(5)],
                        columns=["carrier", "row_id", "x", "y"])  # fmt: skip
    rows.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "beside_the_spec.py").write_text(BESIDE)
    spec = spec_of({"path": str(tmp_path / "rows.parquet")}, tmp_path, estimator={"object": "beside_the_spec:make"})
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path / "rows.parquet"), str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads((tmp_path / "done.json").read_text())["counts"] == {"trained": 2}
    scored = pd.read_parquet(tmp_path / "scored")
    assert scored["prediction"].tolist() == pytest.approx((2.0 * scored["x"]).tolist())
    # This process has not got the module either, and reads what was stored.
    row = group_models.api.find_model(spec, {"carrier": "A"})
    model = load_model(row["data"], format=row["format"], data_file=row["data_file"])
    assert "beside_the_spec" not in sys.modules
    assert model.predict(pd.DataFrame({"x": [21.0]})).tolist() == pytest.approx([42.0])


@pytest.mark.cluster
@pytest.mark.slow
def test_on_a_cluster_poison_keys_are_rows_and_a_killed_executor_costs_no_key(tmp_path: Path, environment, counted):
    done = subprocess.run(
        [sys.executable, str(POISONED), str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads((tmp_path / "done.json").read_text())
    good = {f"good{place}": "trained" for place in range(6)}

    poisoned = told["poisoned"]
    counted.update(poisoned["counts"])
    assert {key: status for key, (status, *_) in poisoned["statuses"].items()} == {
        **good, "killed": "crashed", "aborted": "crashed", "endless": "timed_out", "huge": "out_of_memory",
        "deaf": "timed_out",
    }  # fmt: skip
    assert "SIGABRT" in poisoned["statuses"]["aborted"][1]
    # Spark tries a unit again whose worker died, and there each fit has its own process: no job fails.
    assert [line for line in poisoned["said"] if "died" in line] == []
    assert {attempt for _, _, attempt in poisoned["statuses"].values()} == {0}

    assert {key: status for key, (status, *_) in told["executor"]["statuses"].items()} == {**good, "victim": "trained"}
    counted["executors killed"] += (tmp_path / "executor-killed").exists()
    counted["keys trained in spite of it"] += told["executor"]["counts"]["trained"]
    assert counted["executors killed"] == 1
