"""Log training runs to MLflow: at their end, and later those that could not be logged then."""

from __future__ import annotations

import dataclasses
import warnings

from group_models.errors import GroupModelsError, PlatformError, ServerWarning
from group_models.ports import Tables
from group_models.reporting import tracking
from group_models.reporting.page.page import run_page
from group_models.spec import Spec, Track
from group_models.targets import SpecLike, find_target


def log_run(spec: SpecLike, run_id: str | None = None, *, warehouse: str | None = None) -> tuple[str, str]:
    """Log a finished run (by default the newest) to MLflow and return its id and that of its MLflow run.

    Where and in which experiment the spec's `track` says, else what MLflow is set to. A run that was logged before is
    logged once more into the same MLflow run.

    Raises
    ------
    StateError
        There is no such run, or it has not finished.
    ServerError
        The tracking server cannot be reached, or refuses.
    """
    model_set, tables, loaded = find_target(spec, warehouse)
    run_id = run_id or tracking.newest_finished(tables, model_set)
    track = loaded.track if loaded else None
    return run_id, _log(tables, model_set, run_id, track or Track())


def log_trained(tables: Tables, spec: Spec, run_id: str) -> str | None:
    """Log a run that was just trained, where the spec says `track`, and return the id of its MLflow run.

    Warns
    -----
    ServerWarning
        It could not be logged: what was trained stands, and the command to log it is named.
    """
    if spec.track is None:
        return None
    if (known := tracking.mlflow_run_of(tables, spec.model_set, run_id)) is not None:
        return known
    try:
        return _log(tables, spec.model_set, run_id, spec.track)
    except GroupModelsError as e:  # the models are trained and stored, and nobody shall lose a night to its log
        later = f"`group-models log SPEC --run-id {run_id}` logs it later"
        warnings.warn(f"what was trained stands, but {e}. {later}", ServerWarning, stacklevel=2)
        return None


MAX_PAGE_KEYS = 100_000
"""Keys of a run up to which its page is among the files of its MLflow run."""


def _with_page(record: tracking.RunRecord, tables: Tables) -> tracking.RunRecord:
    """Return a record with the run's page among its files; without the `report` extra there is none.

    Warns
    -----
    ServerWarning
        The page could not be made; all else is logged.
    """
    if record.metrics.get("keys", 0) > MAX_PAGE_KEYS:
        return record
    try:
        page = run_page(tables, record.model_set, record.run_id)
    except PlatformError:
        return record
    except Exception as e:  # noqa: BLE001 - a picture of the run must not keep the run itself from being logged
        warnings.warn(f"run {record.run_id} is logged without its report: {e}", ServerWarning, stacklevel=2)
        return record
    return dataclasses.replace(record, files={**record.files, "report.html": page.html})


def _log(tables: Tables, model_set: str, run_id: str, track: Track) -> str:
    try:
        from group_models.adapters.mlflow_run import log_record
    except ImportError as e:
        raise PlatformError("logging a run needs mlflow; install group-models[mlflow]") from e
    record = _with_page(tracking.read_record(tables, model_set, run_id), tables)
    logged = log_record(record, tracking_uri=track.tracking_uri, experiment=track.experiment)
    if tracking.mlflow_run_of(tables, model_set, run_id) != logged:
        tracking.append_logged(tables, model_set, run_id, logged)
    return logged
