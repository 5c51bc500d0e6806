"""Run one side in a process of its own: `python -m tests.benchmarks.child JOB.json OUTCOME.json`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    level_sides,
    reason_sides,
    report_sides,
    score_sides,
    serving_sides,
    target_sides,
    train_sides,
)
from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.workloads import Data, Workload

SIDES: Mapping[str, Callable[[Job], Outcome]] = {
    "train/packed": train_sides.train_packed,
    "train/plain": train_sides.train_plain,
    "train/plain_arrays": train_sides.train_plain_arrays,
    "train/joblib": train_sides.train_joblib,
    "train/joblib_arrays": train_sides.train_joblib_arrays,
    "train/mlflow": train_sides.train_mlflow,
    "score/streamed": score_sides.score_streamed,
    "score/closure": score_sides.score_closure,
    "score/joblib": score_sides.score_joblib,
    "score/joblib_arrays": score_sides.score_joblib_arrays,
    "plan/synthetic": target_sides.plan_synthetic,
    "plan/measured": target_sides.plan_measured,
    "keys/data": target_sides.make_both_data,
    "keys/few": target_sides.train_few,
    "keys/many": target_sides.train_many,
    "skew/salted": target_sides.train_skewed,
    "skew/floor": target_sides.train_skewed_floor,
    "night/changed": target_sides.train_changed,
    "serve/router": serving_sides.serve_router,
    "report/page": report_sides.write_report,
    "levels/floor": level_sides.train_floor,
    "levels/none": level_sides.train_alone,
    "levels/gated": level_sides.train_gated,
    "reasons/none": reason_sides.train_plain,
    "reasons/told": reason_sides.train_told,
}


def make_data(job: Job) -> Outcome:
    """Write the workload's files, in a child too: the rows should not stay in the parent's memory."""
    job.data.make(job.workload)
    return Outcome()


def run(side: str, job: Job) -> Outcome:
    """Run a side, or make the data."""
    return make_data(job) if side == "data" else SIDES[side](job)


def to_json(side: str, job: Job) -> str:
    """Return a side and its job as text."""
    return json.dumps({"side": side, **dataclasses.asdict(job)}, default=str)


def from_json(text: str) -> tuple[str, Job]:
    """Return what `to_json` wrote."""
    given: dict[str, Any] = json.loads(text)
    side = given.pop("side")
    given["workload"] = Workload(**given["workload"])
    given["data"] = Data(Path(given["data"]["folder"]))
    paths = {name: Path(given[name]) for name in ("out", "packed", "looped")}
    return side, Job(**given | paths)


def main() -> None:
    """Run the job of the first file and write its outcome to the second."""
    side, job = from_json(Path(sys.argv[1]).read_text())
    outcome = run(side, job)
    Path(sys.argv[2]).write_text(json.dumps(dataclasses.asdict(outcome)))


if __name__ == "__main__":
    main()
