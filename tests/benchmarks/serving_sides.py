"""The side of the router: how long one row takes in process, and from a fresh Python to the first answer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from tests.benchmarks.sides import Job, Outcome, measured, warm_session
from tests.benchmarks.workloads import FEATURES, KEYS

ASKED = 2_000
"""Rows that are asked for one by one: first each of another key, so that a part of the models is read meanwhile."""

_COLD = """
import sys
import pandas as pd
import mlflow.pyfunc
row = pd.read_parquet(sys.argv[2]).head(1)
answered = mlflow.pyfunc.load_model(sys.argv[1]).predict(row)
assert answered["score_status"].tolist() == ["scored"], answered
"""


def serve_router(job: Job) -> Outcome:
    """Train, make a router of all models, and ask it."""
    from group_models import api
    from group_models.loading import load_spec
    from group_models.targets import open_tables

    if not job.data.is_made:
        job.data.make(job.workload)
    spec = load_spec(job.workload.spec(job.data.rows, job.out))
    api.train(spec, spark=warm_session(job))
    rows = _rows(job.data.rows)
    folder = job.out.parent / "serving"
    folder.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(folder / "rows.parquet")
    with measured() as outcome:
        start = time.perf_counter()
        _make_router(open_tables(spec), spec.model_set, folder)
        made = time.perf_counter()
        cold_s = _cold_start(folder)
        seconds = _ask(folder, rows)
    outcome.phases = {"making the router": made - start}
    outcome.values = {
        "cold start, s": cold_s,
        "one row p50, ms": 1e3 * float(np.percentile(seconds, 50)),
        "one row p95, ms": 1e3 * float(np.percentile(seconds, 95)),
    }
    return outcome


def _rows(file: Path) -> pd.DataFrame:
    """Return rows of as many keys as there are, the numbers as MLflow takes them."""
    frame = pq.read_table(file, columns=[*KEYS, *FEATURES]).slice(0, 50 * ASKED).to_pandas()
    frame[FEATURES] = frame[FEATURES].astype(float)
    return pd.concat([frame.drop_duplicates(KEYS), frame], ignore_index=True).head(ASKED)


def _make_router(tables: object, model_set: str, folder: Path) -> None:
    from group_models.adapters.mlflow_router import save_router
    from group_models.live.sets import read_live
    from group_models.mirroring import read_models
    from group_models.serving.bundles import write_bundle
    from group_models.spec import Scoring

    live = read_live(tables, model_set)  # type: ignore[arg-type]
    write_bundle(folder / "router.sqlite", live, Scoring(), read_models(tables, model_set, live))  # type: ignore[arg-type]
    save_router(folder / "router", folder / "router.sqlite", live, {})


def _cold_start(folder: Path) -> float:
    """Return the seconds from the start of a Python to its first answer."""
    start = time.perf_counter()
    command = [sys.executable, "-c", _COLD, str(folder / "router"), str(folder / "rows.parquet")]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def _ask(folder: Path, rows: pd.DataFrame) -> list[float]:
    """Return the seconds of each row, asked for alone."""
    import mlflow

    model = mlflow.pyfunc.load_model(str(folder / "router"))
    seconds = []
    for place in range(len(rows)):
        row = rows.iloc[place : place + 1]
        start = time.perf_counter()
        model.predict(row)
        seconds.append(time.perf_counter() - start)
    return seconds
