"""Ctrl-C, really sent to `group-models train`: what was committed stays, and the command that it names goes on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_models import api
from group_models.loading import load_spec
from group_models.tables import STORE
from tests.spark.test_kills import CARRIERS, spec_of

SLOW = '''
import time
from pathlib import Path
from sklearn.linear_model import LinearRegression

class Waiting(LinearRegression):
    """Waits for a file from its second fit on."""

    def fit(self, X, y):
        begun = Path({folder!r}) / "begun"
        if not begun.exists():
            begun.touch()
        elif not (Path({folder!r}) / "go").exists():
            (Path({folder!r}) / "waits").touch()
            time.sleep(600)
        return super().fit(X, y)
'''

pytestmark = pytest.mark.slow


def command_of(folder: Path) -> list[str]:
    """Write a spec whose second wave waits, and return the command that trains it."""
    (folder / "waiting.py").write_text(SLOW.format(folder=str(folder)), encoding="utf-8")
    spec = spec_of(folder)
    changes: dict[str, Any] = {"estimator": {"object": "waiting:Waiting", "version": "1"}, "refit": False}
    (folder / "eta.yaml").write_text(yaml.safe_dump(spec | changes), encoding="utf-8")
    return ["group-models", "train", "eta.yaml", "--no-release"]


def start(command: list[str], folder: Path, **more: str) -> subprocess.Popen[str]:
    """Start a command of the package in a process group of its own, as a shell does."""
    assert command[0] == "group-models"
    words = [sys.executable, "-m", "group_models", *command[1:]]
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), str(folder)]), **more}  # noqa: PTH109
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=folder, env=around, start_new_session=True, **pipes)


@pytest.mark.parametrize("remote", ["", "local[2]"], ids=["classic", "connect"])
def test_ctrl_c_stops_a_run_and_its_jobs_and_the_command_that_it_names_goes_on(tmp_path: Path, remote: str):
    more = {"SPARK_REMOTE": remote} if remote else {}
    running = start(command_of(tmp_path), tmp_path, **more)
    try:
        deadline = time.monotonic() + 240
        while not (tmp_path / "waits").exists() and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (tmp_path / "waits").exists(), running.communicate(timeout=60)
        # To all of them, as a terminal does.
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=120)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert (running.returncode, out, "Traceback" in err) == (130, "", False), err
    # A Connect server of its own may have the last word.
    said = err.splitlines()
    assert any(line.startswith("wave 1 of 5 done: 1 key in 1 unit") for line in said)
    (told,) = [place for place, line in enumerate(said) if line.startswith("stopped run r")]
    words = shlex.split(said[told + 1])
    assert words[:-1] == ["group-models", "train", "eta.yaml", "--no-release", "--run-id"]
    where = {"model_set": ["zrl.ml.eta"], "run_id": [words[-1]]}
    tables = api.open_tables(load_spec(str(tmp_path / "eta.yaml")))
    before = tables.read(STORE, columns=["key_id", "started_at"], where=where)
    assert before.num_rows == 1, "the first wave"
    (tmp_path / "go").touch()
    goes_on = start(words, tmp_path, **more)
    out, err = goes_on.communicate(timeout=240)
    assert goes_on.returncode == 0, err
    assert f"run {words[-1]} goes on where it stopped" in err
    after = tables.read(STORE, columns=["key_id", "started_at"], where=where)
    assert after.num_rows == len(CARRIERS)
    assert before.to_pylist()[0] in after.to_pylist(), "it was not trained again"
