"""Values of a Databricks job's task, for the tasks after it: `{{tasks.train.values.run_id}}`.

Elsewhere there are none, and nothing happens. Source: Databricks, "Use task values to pass information between
tasks"; `dbutils` is there in Python wheel tasks too, by `databricks.sdk.runtime`, which each runtime has.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from group_models.errors import ServerWarning

_ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"


def set_task_values(values: Mapping[str, Any]) -> None:
    """Set values (at most 48 KiB of JSON each) of the task that this process is.

    What was trained or scored is written by now: whatever the platform answers is told as a warning.
    """
    if not os.environ.get(_ON_DATABRICKS):
        return
    try:
        from databricks.sdk.runtime import dbutils

        for name, value in values.items():
            dbutils.jobs.taskValues.set(key=name, value=value)
    except Exception as e:  # noqa: BLE001 - the platform's errors are of no documented class
        warnings.warn(f"task values were not set: {type(e).__name__}: {e}", ServerWarning, stacklevel=2)
