"""The Databricks bundle, offline: its jobs as the platform's own classes read them, and their commands as ours does."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
import yaml
from databricks.bundles.jobs import Job, Task

from group_models.adapters.task_values import set_task_values
from group_models.cli import app, main
from group_models.errors import ServerWarning

REPOSITORY = Path(__file__).parents[2]
BUNDLE = yaml.safe_load((REPOSITORY / "databricks.yml").read_text(encoding="utf-8"))
RESOURCES = [file for pattern in BUNDLE["include"] for file in sorted(REPOSITORY.glob(pattern))]
JOBS: dict[str, dict[str, Any]] = {
    name: job
    for file in RESOURCES
    for name, job in yaml.safe_load(file.read_text(encoding="utf-8"))["resources"]["jobs"].items()
}
TASKS = [(name, task["task_key"]) for name, job in JOBS.items() for task in job["tasks"]]


VALUES = {"spec": "/Workspace/eta.yaml", "source": "zrl.ml.shipments", "on_call": "night@zrl.example"}


def resolved(value: Any) -> Any:
    """Return a job with its variables filled in, as a deployment fills them."""
    if isinstance(value, dict):
        return {name: resolved(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolved(inner) for inner in value]
    whole = re.fullmatch(r"\$\{var\.(\w+)\}", str(value))
    return value_of(whole[1]) if whole else value


def value_of(variable: str) -> Any:
    return BUNDLE["variables"][variable].get("default", VALUES.get(variable, f"some-{variable}"))


def task(job: str, key: str) -> Task:
    (found,) = [task for task in Job.from_dict(resolved(JOBS[job])).tasks if task.task_key == key]
    return found


def texts(value: Any) -> list[str]:
    """Return all texts of nested lists and mappings."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts(inner)]
    return [text for inner in value for text in texts(inner)] if isinstance(value, list) else [str(value)]


def test_the_bundle_has_the_jobs_of_a_night_and_a_target_for_trials_and_one_for_nights():
    assert set(JOBS) == {"nightly_retrain", "retrain_on_update", "carrier_retrain"}
    assert {name: target["mode"] for name, target in BUNDLE["targets"].items()} == {
        "dev": "development",
        "prod": "production",
    }


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_one_that_the_platform_knows(name: str):
    job = Job.from_dict(resolved(JOBS[name]))
    assert job.name == name
    assert job.queue.enabled is True
    assert job.timeout_seconds > 0
    assert job.email_notifications.on_failure == [VALUES["on_call"]]
    assert [rule.metric.value for rule in job.health.rules] == ["RUN_DURATION_SECONDS"]
    (cluster,) = job.job_clusters
    assert cluster.new_cluster.data_security_mode.value == "DATA_SECURITY_MODE_STANDARD"
    with pytest.raises(ValueError, match="Unexpected field 'retries'"):
        Job.from_dict(JOBS[name] | {"retries": 2})


@pytest.mark.parametrize("name", JOBS)
def test_a_job_uses_only_variables_that_the_bundle_declares(name: str):
    used = {found for text in texts(JOBS[name]) for found in re.findall(r"\$\{var\.(\w+)\}", text)}
    assert used <= set(BUNDLE["variables"])
    assert {"spec", "on_call"} <= used


@pytest.mark.parametrize(("job", "key"), TASKS)
def test_a_task_runs_a_command_that_there_is(job: str, key: str):
    wheel = task(job, key).python_wheel_task
    (script,) = [
        found
        for found in importlib.metadata.distribution(wheel.package_name).entry_points
        if found.name == wheel.entry_point
    ]
    assert script.group == "console_scripts"
    command, *arguments = wheel.parameters
    typer.main.get_command(app).commands[command].make_context(command, arguments)
    assert task(job, key).timeout_seconds > 0
    assert task(job, key).libraries[0].whl == "../../dist/*.whl"
    assert (REPOSITORY / "jobs" / "resources" / "requirements.txt").is_file()


@pytest.mark.parametrize("job", JOBS)
def test_a_retry_of_a_training_task_goes_on_with_the_same_run(job: str):
    train = task(job, "train")
    assert train.max_retries > 0
    parameters = train.python_wheel_task.parameters
    assert parameters[parameters.index("--run-id") + 1] == "job-{{job.run_id}}"


def test_what_a_task_asks_of_its_job_is_a_parameter_of_the_job():
    for name, job in JOBS.items():
        asked = {found for text in texts(job) for found in re.findall(r"\{\{job\.parameters\.(\w+)\}\}", text)}
        assert asked == {parameter["name"] for parameter in job.get("parameters", [])}, name


def test_a_night_is_scored_and_told_also_where_its_training_was_refused():
    assert [task("nightly_retrain", key).run_if.value for key in ("score", "report")] == ["ALL_DONE", "ALL_DONE"]
    assert task("nightly_retrain", "train").email_notifications.on_failure == [VALUES["on_call"]]


def test_a_task_fails_by_the_exit_code_of_its_command(monkeypatch: pytest.MonkeyPatch):
    (script,) = [e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == "group-models"]
    monkeypatch.setattr(sys, "argv", ["group-models", "plan", "no-such-spec.yaml"])
    with pytest.raises(SystemExit) as stopped:
        script.load()()
    assert stopped.value.code == 1
    monkeypatch.setattr(sys, "argv", ["group-models", "--version"])
    assert script.load()() is None


class Platform:
    """Stands for `databricks.sdk.runtime`, which exists inside a workspace only."""

    def __init__(self, error: Exception | None = None) -> None:
        self.values: dict[str, Any] = {}
        self.error = error
        self.dbutils = types.SimpleNamespace(jobs=types.SimpleNamespace(taskValues=self))

    def set(self, key: str, value: Any) -> None:
        if self.error:
            raise self.error
        self.values[key] = value


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    platform = Platform()
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", platform)
    return platform


def test_task_values_are_set_on_databricks(platform: Platform):
    set_task_values({"run_id": "job-7", "counts": {"trained": 3}})
    assert platform.values == {"run_id": "job-7", "counts": {"trained": 3}}


def test_task_values_that_the_platform_refuses_are_a_warning(platform: Platform):
    platform.error = RuntimeError("not a task")
    with pytest.warns(ServerWarning, match="task values were not set: RuntimeError: not a task"):
        set_task_values({"run_id": "job-7"})


def test_elsewhere_there_are_no_task_values(platform: Platform, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION")
    set_task_values({"run_id": "job-7"})
    assert platform.values == {}


def test_a_refused_command_sets_none(platform: Platform):
    with mock.patch.dict("os.environ", {"GROUP_MODELS_WAREHOUSE": ""}):
        assert main(["train", "no-such-spec.yaml"]) == 1
    assert platform.values == {}
