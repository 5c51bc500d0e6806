"""What goes around calls of MLflow, patience, and around calls of ours, silence. Loads no MLflow."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow's own: 7 retries that double from 4 s, of calls that may take 120 s each, and any Retry-After is waited for.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    # Standard output is for what a command was asked for.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

_BRIEF = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


def patient() -> contextlib.AbstractContextManager[None]:
    """Let each call in the block be tried five times, unless the environment says otherwise.

    A call that is throttled (429) or fails (5xx, no connection) is tried again after 1, 2, 4 and 8 seconds; one that
    is not answered fails after 20 seconds. So a server that is down costs half a minute, one that hangs two minutes.
    """
    return _set(_SETTINGS)


def brief() -> contextlib.AbstractContextManager[None]:
    """Let each call in the block be tried twice, for 5 seconds each: for what is asked on the way to something else.

    It counts also where what is called is `patient`.
    """
    return _set({**_SETTINGS, **_BRIEF})


@contextlib.contextmanager
def _set(settings: Mapping[str, str]) -> Iterator[None]:
    ours = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def default_experiment(model_set: str, tracking_uri: str) -> str:
    """Return the experiment of a model set where none is named: on Databricks its name must be an absolute path.

    Examples
    --------
    >>> default_experiment("zrl.ml.eta", "http://tracks")
    'zrl.ml.eta'
    >>> default_experiment("zrl.ml.eta", "databricks://work")
    '/Shared/zrl.ml.eta'
    """
    return f"/Shared/{model_set}" if tracking_uri.startswith("databricks") else model_set


def ensure_experiment(client: MlflowClient, name: str | None, model_set: str) -> str:
    """Return the id of an experiment, by default the model set's, which is made where it is not there."""
    from mlflow.exceptions import MlflowException

    name = name or default_experiment(model_set, client.tracking_uri)
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException as e:
        # Another process was faster.
        found = client.get_experiment_by_name(name)
        if e.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return str(found.experiment_id)


@contextlib.contextmanager
def no_autologging() -> Iterator[None]:
    """Let nothing in the block be logged by itself: a fit on the driver would go into the user's run.

    What the user has set comes back after it.
    """
    if "mlflow" not in sys.modules:
        yield
        return
    from mlflow.utils.autologging_utils import disable_autologging

    with disable_autologging():
        yield
