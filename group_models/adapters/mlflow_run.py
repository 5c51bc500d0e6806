"""One MLflow run per training run, by explicit ids only: the user's active run is none of ours."""

from __future__ import annotations

import contextlib
import datetime as dt
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from group_models.adapters.mlflow_around import ensure_experiment, patient
from group_models.adapters.mlflow_trials import log_trials
from group_models.errors import ServerError
from group_models.reporting.tracking import RunRecord


def log_record(record: RunRecord, *, tracking_uri: str | None, experiment: str | None) -> str:
    """Write a record to its MLflow run, which is made unless there is one already, and return that run's id.

    Whoever was stopped half-way, or throttled to the end of all retries, is completed by the same call.

    Parameters
    ----------
    experiment
        Name of the experiment; by default that of the model set (on Databricks in `/Shared`).

    Raises
    ------
    ServerError
        The tracking server cannot be reached, or refuses.
    """
    with _asking(tracking_uri, record):
        client = MlflowClient(tracking_uri=tracking_uri)
        experiment_id = ensure_experiment(client, experiment, record.model_set)
        run_id = _find_run(client, experiment_id, record) or _make_run(client, experiment_id, record)
        at = _millis(record.finished_at)
        client.log_batch(
            run_id,
            metrics=[Metric(name, value, at, 0) for name, value in record.metrics.items()],
            params=[Param(name, text) for name, text in record.params.items()],
            tags=[RunTag(name, text) for name, text in record.tags.items()],
            synchronous=True,
        )
        dataset = DatasetInput(Dataset(**record.dataset), [InputTag("mlflow.data.context", "training")])
        client.log_inputs(run_id, datasets=[dataset])
        _log_files(client, run_id, record)
        log_trials(client, experiment_id, run_id, record.trials)
        client.set_terminated(run_id, "FINISHED", end_time=at)
        return run_id


@contextlib.contextmanager
def _asking(tracking_uri: str | None, record: RunRecord) -> Iterator[None]:
    place = tracking_uri or "MLflow's tracking server"
    try:
        with patient():
            yield
    except (MlflowException, OSError) as e:
        said = e.message if isinstance(e, MlflowException) else str(e)
        raise ServerError(f"run {record.run_id} could not be logged to {place}: {said}") from e


def _find_run(client: MlflowClient, experiment_id: str, record: RunRecord) -> str | None:
    """Return the run that an earlier attempt made."""
    same = f"tags.group_models_run = '{record.run_id}' AND tags.group_models_model_set = '{record.model_set}'"
    found = client.search_runs([experiment_id], same, max_results=1)
    return str(found[0].info.run_id) if found else None


def _make_run(client: MlflowClient, experiment_id: str, record: RunRecord) -> str:
    made = client.create_run(
        experiment_id, start_time=_millis(record.started_at), tags=dict(record.tags), run_name=record.run_id
    )
    return str(made.info.run_id)


def _log_files(client: MlflowClient, run_id: str, record: RunRecord) -> None:
    with tempfile.TemporaryDirectory(prefix="group-models-") as folder:
        for name, content in record.files.items():
            (Path(folder) / name).write_text(content, encoding="utf-8")
        client.log_artifacts(run_id, folder)


def _millis(at: dt.datetime) -> int:
    return int(at.timestamp() * 1000)
