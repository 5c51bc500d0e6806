"""What goes around calls of MLflow, patience, and around calls of ours, silence. Loads no MLflow."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

# MLflow's own: 7 retries that double from 4 s, of calls that may take 120 s each, and any Retry-After is waited for.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    # Standard output is for what a command was asked for.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Let each call in the block be tried five times within about half a minute, unless the environment says otherwise.

    A call that is throttled (429) or fails (5xx, no connection) is tried again after 1, 2, 4 and 8 seconds.
    """
    ours = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


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
