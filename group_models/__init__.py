"""Many small models, one per group, on Spark: plan, train, release, score.

Importing this package loads neither pyspark, mlflow nor scikit-learn; the first call does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from group_models.api import load_model, plan, score, show, train
    from group_models.explaining import explain
    from group_models.loading import load_spec
    from group_models.registering import register
    from group_models.releasing import clean, list_releases, pin, release, unpin
    from group_models.reports import report
    from group_models.runs.logging_runs import log_run
    from group_models.spec import Spec
    from group_models.viewing import create_views, views

__all__ = [
    "Spec", "clean", "create_views", "explain", "list_releases", "load_model", "load_spec",
    "log_run", "pin", "plan", "register", "release", "report", "score", "show", "train", "unpin", "views",
]  # fmt: skip

_MODULES = {
    "Spec": "spec",
    "explain": "explaining",
    "load_spec": "loading",
    "log_run": "runs.logging_runs",
    "register": "registering",
    "report": "reports",
    **dict.fromkeys(("create_views", "views"), "viewing"),
    **dict.fromkeys(("clean", "list_releases", "pin", "release", "unpin"), "releasing"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'api')}"), name)
