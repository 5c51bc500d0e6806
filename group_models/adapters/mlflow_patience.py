"""How long we wait for an MLflow server: its own retries with back-off, fewer than MLflow's defaults make them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# MLflow's own: 7 retries that double from 4 s, of calls that may take 120 s each, and any Retry-After is waited for.
_BOUNDS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
}


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Let each call in the block be tried five times within about half a minute, unless the environment says otherwise.

    A call that is throttled (429) or fails (5xx, no connection) is tried again after 1, 2, 4 and 8 seconds.
    """
    ours = {name: value for name, value in _BOUNDS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
