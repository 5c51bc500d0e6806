"""What an MLflow run says of a training run, read from the tables: at the end of it, or whenever it is asked for."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from group_models.comparing import error_together
from group_models.errors import StateError
from group_models.evaluation import Floats
from group_models.keys import level_name, show_key
from group_models.live.manifest import FITTING, count_statuses
from group_models.live.metrics import spec_metric
from group_models.live.sets import check_not_cleaned, read_runs
from group_models.ports import Tables, Where
from group_models.reporting.trial_records import TrialRecord, read_trials
from group_models.reporting.verdict import verdict_of
from group_models.run_rows import append_run_row
from group_models.spec import Metric
from group_models.tables import MANIFEST, PLAN, RUN, utc_now
from group_models.texts import flat

LOGGED = "logged"
"""Event of a run: there is an MLflow run of it."""

SAMPLE_ROWS = 1_000
"""Rows of plan and manifest that are logged: of the whole they are a sample, worst first."""

_MAX_PARAM, _MAX_PARAMS = 500, 100
_MANIFEST = (
    "key_id", "key", "status", "serves", "reason", "error_type", "error_message", "rows", "usable_rows", "rows_used",
    "metrics", "baseline_metrics", "holdout_rows", "fit_seconds", "model_bytes", "policy", "n_parts", "model_run_id",
    "train_metrics", "fit_flag", "importance", "interval", "coverage",
)  # fmt: skip
_PLAN = (
    "key_id", "key", "decision", "reason", "rows", "usable_rows", "bytes", "unit", "wave", "n_parts",
    "predicted_seconds",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What is logged of one training run.

    Attributes
    ----------
    dataset
        The source: `name`, `digest`, `source_type`, `source` (JSON), `schema` (JSON), `profile` (JSON).
    files
        Name to content of the artifacts.
    trials
        The trials of tuning that become nested runs.
    """

    model_set: str
    run_id: str
    started_at: dt.datetime
    finished_at: dt.datetime
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    dataset: Mapping[str, str]
    files: Mapping[str, str]
    trials: tuple[TrialRecord, ...] = ()


def read_record(tables: Tables, model_set: str, run_id: str) -> RunRecord:
    """Return what is logged of a finished run.

    Raises
    ------
    StateError
        There is no such run, it has not finished, or a clean has removed rows of it.
    """
    check_not_cleaned(tables, model_set, run_id)
    where: Where = {"model_set": [model_set], "run_id": [run_id]}
    events = {row["event"]: row for row in tables.read(RUN, where=where).sort_by("at").to_pylist()}
    if "started" not in events:
        raise StateError(f"model set {model_set} has no run {run_id!r}; `show` lists keys and their runs")
    if "finished" not in events:
        raise StateError(f"run {run_id} has not finished; `train SPEC --run-id {run_id}` goes on with it")
    started, finished = events["started"], events["finished"]
    manifest, plan = (tables.read(table, where=where) for table in (MANIFEST, PLAN))
    spec = json.loads(started["spec"] or "{}")
    metric = spec_metric(spec)
    return RunRecord(
        model_set,
        run_id,
        started["at"],
        finished["at"],
        params=_params(spec, started),
        metrics=fleet_metrics(own_rows(manifest, started), metric)
        | _verdict_metrics(own_rows(manifest, started), metric)
        | _run_metrics(finished),
        tags=_tags(model_set, run_id, started, finished),
        dataset=_dataset(model_set, started, finished, plan),
        files={
            "spec.json": json.dumps(spec, indent=2, sort_keys=True),
            "plan.json": json.dumps(_plan_facts(plan, started), indent=2),
            "plan_sample.csv": _csv(plan, _PLAN, worst="predicted_seconds"),
            "manifest_sample.csv": _csv(_worst_first(manifest, metric), _MANIFEST),
        },
        trials=read_trials(tables, (model_set, run_id), spec, dict(started["key_kinds"])),
    )


def own_rows(rows: pa.Table, started: Mapping[str, Any]) -> pa.Table:
    """Return the rows of plan or manifest of the keys, without those of parents: their rows are the keys' again."""
    return rows.filter(_is_own(rows, started))


def _is_own(rows: pa.Table, started: Mapping[str, Any]) -> pa.ChunkedArray:
    return pc.equal(rows["level"], level_name(list(dict(started["key_kinds"]))))


def fleet_metrics(manifest: pa.Table, metric: Metric) -> dict[str, float]:
    """Return the metrics of all keys of a run together: over the rows of the holdouts, and quantiles over keys.

    With the metric `mae`, `mae_baseline` is that of each key's training median, of which `share_better` of the keys
    have a lower one, and `mae_key_p50` and `mae_key_p90` are those of keys; with another metric they are its.
    """
    rows = manifest.select(["metrics", "baseline_metrics", "holdout_rows"]).to_pylist()
    measured = [
        (dict(row["metrics"]), dict(row["baseline_metrics"] or ()), row["holdout_rows"])
        for row in rows
        if row["metrics"] and row["holdout_rows"]
    ]
    found = {f"keys_{status}": float(count) for status, count in count_statuses(manifest).items()}
    found["keys_measured"] = float(len(measured))
    if not measured:
        return found
    weights = np.array([count for _, _, count in measured], dtype=np.float64)
    own = np.array([m.get(metric, np.nan) for m, _, _ in measured])
    baseline = np.array([b.get(metric, np.nan) for _, b, _ in measured])
    found |= {
        "holdout_rows": float(weights.sum()),
        **_together([m for m, _, _ in measured], weights, metric),
        f"{metric}_baseline": error_together(metric, baseline, weights),
        "share_better": float((own < baseline).mean()),
        f"{metric}_key_p50": float(np.median(own)),
        f"{metric}_key_p90": float(np.quantile(own, 0.9)),
    }
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _together(metrics: Sequence[Mapping[str, float]], weights: Floats, metric: Metric) -> dict[str, float]:
    """Return the metrics over the rows of all holdouts, those that are means over rows."""

    def of_keys(name: str) -> Floats:
        return np.array([each.get(name, np.nan) for each in metrics])

    if metric == "log_loss":
        losses, right = of_keys("log_loss"), of_keys("accuracy")
        together = error_together("log_loss", losses, weights)
        return {"log_loss": together, "accuracy": float(np.average(right, weights=weights))}
    return {
        "mae": error_together("mae", of_keys("mae"), weights),
        "rmse": error_together("rmse", of_keys("rmse"), weights),
        "bias": float(np.average(of_keys("bias"), weights=weights)),
    }


def _verdict_metrics(manifest: pa.Table, metric: Metric) -> dict[str, float]:
    """Return what simpler models come to on the same rows, and how the keys' models do beside them."""
    tried = manifest.filter(pc.is_in(manifest["status"], pa.array(FITTING)))
    verdict = verdict_of(tried, metric)
    return verdict.metrics() if verdict else {}


def _run_metrics(finished: Mapping[str, Any]) -> dict[str, float]:
    whole = {name: float(finished[name]) for name in ("rows", "keys", "waves") if finished[name] is not None}
    covered = dict(finished.get("coverage") or ())
    whole |= {f"coverage_{level}": float(share) for level, share in covered.items()}
    return whole | {f"seconds_{phase}": float(value) for phase, value in finished["seconds"] or ()}


def _params(spec: Mapping[str, Any], started: Mapping[str, Any]) -> dict[str, str]:
    """Return the spec flat, its values cut to what every MLflow takes; the whole of it is an artifact."""
    known = {"scope": started["scope"] or "all keys", "source": started["source"] or ""}
    fields = flat({name: value for name, value in spec.items() if name not in known})
    texts = known | {n: ", ".join(map(str, value)) if isinstance(value, list) else value for n, value in fields.items()}
    named = {"".join(c if c.isalnum() or c in "_-. /" else "_" for c in name): text for name, text in texts.items()}
    return {name: str(text)[:_MAX_PARAM] for name, text in list(named.items())[:_MAX_PARAMS] if text not in (None, "")}


def _tags(model_set: str, run_id: str, started: Mapping[str, Any], finished: Mapping[str, Any]) -> dict[str, str]:
    versions = {f"version_{name}": version for name, version in started["versions"] or ()}
    refusal = {"refusal": finished["refusal"][:_MAX_PARAM]} if finished["refusal"] else {}
    own = {"model_set": model_set, "run": run_id, "code": started["code_version"] or "", **versions, **refusal}
    return {f"group_models_{name}".replace("-", "_"): text for name, text in own.items()}


def _dataset(model_set: str, started: Mapping[str, Any], finished: Mapping[str, Any], plan: pa.Table) -> dict[str, str]:
    kind, _, place = (started["source"] or "unknown: ").partition(": ")
    fingerprints = sorted(str(each) for each in plan["data_fingerprint"].to_pylist())
    columns = [*(started["key_kinds"] or ()), *(started["feature_kinds"] or ())]
    types = {"numeric": "double", "integer": "long", "date": "datetime", "boolean": "boolean"}
    schema = [{"type": types.get(kind_, "string"), "name": name, "required": False} for name, kind_ in columns]
    return {
        "name": model_set,
        "digest": hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()[:16],
        "source_type": kind,
        "source": json.dumps({"source": place, "version": started["source_version"], "scope": started["scope"]}),
        "schema": json.dumps({"mlflow_colspec": schema}),
        "profile": json.dumps({"num_rows": finished["rows"], "num_keys": finished["keys"]}),
    }


def _plan_facts(plan: pa.Table, started: Mapping[str, Any]) -> dict[str, Any]:
    parents = plan.filter(pc.invert(_is_own(plan, started)))
    return {**_facts(own_rows(plan, started)), "parents": _facts(parents)}


def _facts(plan: pa.Table) -> dict[str, Any]:
    frame = plan.select(["decision", "usable_rows", "unit", "wave", "predicted_seconds"]).to_pandas()
    return {
        "keys": len(frame),
        "decisions": {str(name): int(count) for name, count in frame["decision"].value_counts().items()},
        "units": int(frame["unit"].nunique()),
        "waves": int(frame["wave"].nunique()),
        "usable_rows": int(frame["usable_rows"].fillna(0).sum()),
        "predicted_fit_seconds": float(frame["predicted_seconds"].fillna(0).sum()),
    }


def _worst_first(manifest: pa.Table, metric: Metric) -> pa.Table:
    """Return the rows with those first that have no new model, then by error."""
    errors = [dict(metrics or ()).get(metric) for metrics in manifest["metrics"].to_pylist()]
    is_new = [serves == "new" for serves in manifest["serves"].to_pylist()]
    order = pd.DataFrame({"is_new": is_new, "error": np.array(errors, dtype=np.float64)})
    return manifest.take(pa.array(order.sort_values(["is_new", "error"], ascending=[True, False], kind="stable").index))


def _csv(rows: pa.Table, columns: tuple[str, ...], worst: str | None = None) -> str:
    if worst is not None:
        rows = rows.sort_by([(worst, "descending")])
    frame = rows.slice(0, SAMPLE_ROWS).select(list(columns)).to_pandas()
    frame["key"] = [show_key(dict(key)) for key in frame["key"]]
    for name in {*MANIFEST.maps} & {*columns} - {"key"}:
        frame[name] = [json.dumps(dict(each)) if each is not None else "" for each in frame[name]]
    text = io.StringIO()
    frame.to_csv(text, index=False)
    return text.getvalue()


def mlflow_run_of(tables: Tables, model_set: str, run_id: str) -> str | None:
    """Return the MLflow run of a run, None where there is none yet."""
    where: Where = {"model_set": [model_set], "run_id": [run_id], "event": [LOGGED]}
    found = tables.read(RUN, columns=["mlflow_run_id"], where=where)["mlflow_run_id"].to_pylist()
    return found[-1] if found else None


def append_logged(tables: Tables, model_set: str, run_id: str, mlflow_run_id: str) -> None:
    """Write which MLflow run a run has.

    Raises
    ------
    StateError
        The rows of the run go on changing.
    """
    row = {"model_set": model_set, "run_id": run_id, "event": LOGGED, "at": utc_now(), "mlflow_run_id": mlflow_run_id}
    append_run_row(tables, row)


def newest_finished(tables: Tables, model_set: str) -> str:
    """Return the run that started last of those that finished.

    Raises
    ------
    StateError
        There is none.
    """
    where: Where = {"model_set": [model_set], "event": ["finished"]}
    finished = set(tables.read(RUN, columns=["run_id"], where=where)["run_id"].to_pylist())
    for run_id in reversed(read_runs(tables, model_set).sort_by("at")["run_id"].to_pylist()):
        if run_id in finished:
            return str(run_id)
    raise StateError(f"model set {model_set} has no finished run to log; `group-models train` makes one")
