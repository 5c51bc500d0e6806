"""Trials as MLflow runs under that of their training run, written by the driver."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from group_models.reporting.trial_records import TrialRecord

_PARENT = "mlflow.parentRunId"
_PAGE = 1000


def log_trials(client: MlflowClient, experiment_id: str, parent_id: str, trials: Sequence[TrialRecord]) -> None:
    """Write a nested run for each trial that has none yet; one that was left unfinished is written again."""
    if not trials:
        return
    known = _known(client, experiment_id, parent_id)
    for trial in trials:
        status, run_id = known.get(trial.name, ("", None))
        if status in ("", "RUNNING"):
            _log_trial(client, experiment_id, parent_id, trial, run_id)


def _known(client: MlflowClient, experiment_id: str, parent_id: str) -> dict[str, tuple[str, str | None]]:
    """Return name to status and id of the runs under a run."""
    found: dict[str, tuple[str, str | None]] = {}
    token = None
    while True:
        under = f"tags.`{_PARENT}` = '{parent_id}'"
        page = client.search_runs([experiment_id], under, max_results=_PAGE, page_token=token)
        found |= {run.info.run_name: (run.info.status, run.info.run_id) for run in page}
        if not (token := page.token):
            return found


def _log_trial(
    client: MlflowClient, experiment_id: str, parent_id: str, trial: TrialRecord, run_id: str | None
) -> None:
    tags, now = {_PARENT: parent_id, **trial.tags}, round(time.time() * 1000)
    if run_id is None:
        run_id = str(client.create_run(experiment_id, tags=tags, run_name=trial.name).info.run_id)
    client.log_batch(
        run_id,
        metrics=[Metric(name, value, now, 0) for name, value in trial.metrics.items()],
        params=[Param(name, text) for name, text in trial.params.items()],
        tags=[RunTag(name, text) for name, text in tags.items()],
        synchronous=True,
    )
    client.set_terminated(run_id, "FAILED" if trial.is_failed else "FINISHED")
