"""Run the sides in alternation, compare what they found, and make the rows of the table."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.benchmarks import child
from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.train_sides import MODELS
from tests.benchmarks.workloads import Data, Workload

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-9
"""Relative difference up to which predictions and metrics count as the same."""

PRODUCT = {"train": "packed", "score": "streamed"}
OTHERS = {
    "train": ("plain", "plain_arrays", "joblib", "joblib_arrays", "mlflow"),
    "score": ("closure", "joblib", "joblib_arrays"),
}

Say = Callable[[str], None]


class SideError(Exception):
    """A side's process failed; the message is the last line that it said."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How the bench runs.

    Attributes
    ----------
    is_in_process
        All sides in this process and one session: for tests of the bench, its times mean nothing.
    is_full
        The workloads have the sizes that the bounds are for.
    """

    work: Path
    cores: int = 2
    repeat: int = 1
    is_in_process: bool = False
    is_full: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table before it is run: the product against another side."""

    workload: Workload
    verb: str
    other: str

    @property
    def name(self) -> str:
        """What `--only` finds it by."""
        return f"{self.workload.bench_name(self.verb)}/{self.workload.estimator}/{self.verb}/{self.other}"


@dataclasses.dataclass(frozen=True)
class SideResult:
    """What a side took, in all its runs, and what it found in the first of them; or why it failed."""

    workload: Workload
    verb: str
    side: str
    seconds: tuple[float, ...] = ()
    first: Outcome = dataclasses.field(default_factory=Outcome)
    failure: str | None = None

    @property
    def median_s(self) -> float:
        """Median seconds of the runs."""
        return statistics.median(self.seconds)

    @property
    def rows_per_s(self) -> float:
        """Rows of the workload per second."""
        return self.workload.rows / self.median_s


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes
    ----------
    worst_difference
        Largest relative difference of predictions and metrics between the two sides; None where nothing was compared.
    """

    case: Case
    product: SideResult
    other: SideResult
    worst_difference: float | None

    @property
    def ratio(self) -> float | None:
        """Wall seconds of the product over those of the other side; None where one of them failed."""
        if self.product.failure or self.other.failure:
            return None
        return self.product.median_s / self.other.median_s

    @property
    def cpu_ratio(self) -> float | None:
        """The same of the CPU seconds of the first run; None also where the other side was extrapolated."""
        first = self.other.first
        is_sampled = first.sampled_keys is not None or first.sampled_rows is not None
        if self.ratio is None or is_sampled or not first.cpu_s:
            return None
        return self.product.first.cpu_s / self.other.first.cpu_s

    @property
    def is_good(self) -> bool:
        """Whether both sides ran and found the same."""
        return self.ratio is not None and self.worst_difference is not None and self.worst_difference <= TOLERANCE


def all_cases(workloads: Sequence[Workload]) -> list[Case]:
    """Return the rows of the table, in order."""
    return [Case(w, verb, other) for w in workloads for verb in PRODUCT for other in OTHERS[verb]]


def run_cases(cases: Sequence[Case], options: Options, say: Say) -> list[Row]:
    """Run what the cases need and return one row per case; each side's files are deleted when its workload is done."""
    rows: list[Row] = []
    for workload in dict.fromkeys(case.workload for case in cases):
        of_workload = [case for case in cases if case.workload == workload]
        rows += _Bench(workload, options, say).run(of_workload)
    return rows


class _Bench:
    """The sides of one workload in one folder."""

    def __init__(self, workload: Workload, options: Options, say: Say) -> None:
        self.workload = workload
        self.options = options
        self.say = say
        self.data = Data(options.work / workload.folder)

    def run(self, cases: Sequence[Case]) -> list[Row]:
        if not self.data.is_made:
            self._run_side("data", self.data.folder)
        rows: list[Row] = []
        for verb, product in PRODUCT.items():
            of_verb = [case for case in cases if case.verb == verb]
            sides = [product, *[case.other for case in of_verb]] if of_verb else []
            if verb == "score" and of_verb:
                self._ensure_models()
            results = self._alternate(verb, sides)
            rows += [_row(case, results[product], results[case.other]) for case in of_verb]
        self._clean()
        return rows

    def _alternate(self, verb: str, sides: Sequence[str]) -> dict[str, SideResult]:
        """Run all sides once, then all again: what slows the machine for a while meets all of them."""
        results = {side: SideResult(self.workload, verb, side) for side in sides}
        for number in range(self.options.repeat):
            for side in sides:
                if results[side].failure is None:
                    results[side] = self._run_again(results[side], number)
        return results

    def _run_again(self, before: SideResult, number: int) -> SideResult:
        name = f"{before.verb}/{before.side}"
        try:
            outcome = self._run_side(name, self._out(name, number))
        except SideError as error:
            return dataclasses.replace(before, failure=str(error))
        first = before.first if before.seconds else outcome
        return dataclasses.replace(before, seconds=(*before.seconds, outcome.seconds), first=first)

    def _ensure_models(self) -> None:
        """Train what scoring takes its models from, unless the training rows did."""
        for name in ("train/packed", "train/joblib", "train/joblib_arrays"):
            if not self._out(name, 0).exists():
                self._run_side(name, self._out(name, 0))

    def _out(self, name: str, number: int) -> Path:
        return self.data.folder / "out" / f"{name.replace('/', '-')}-{number}"

    def _run_side(self, name: str, out: Path) -> Outcome:
        loop = "train/joblib" if name == "score/joblib" else "train/joblib_arrays"
        looped = self._out(loop, 0) / MODELS
        job = Job(self.workload, self.data, out, self.options.cores, self._out("train/packed", 0), looped)
        outcome = run_side(name, job, is_in_process=self.options.is_in_process)
        self.say(f"{self.workload.label}: {name} {outcome.seconds:.1f} s")
        return outcome

    def _clean(self) -> None:
        shutil.rmtree(self.data.folder / "out", ignore_errors=True)


def run_side(name: str, job: Job, *, is_in_process: bool) -> Outcome:
    """Run a side here or in a process of its own.

    Raises
    ------
    SideError
        Its process failed.
    """
    return child.run(name, job) if is_in_process else _in_child(name, job)


def _in_child(name: str, job: Job) -> Outcome:
    """Run a side in a fresh Python, and so with a fresh JVM; BLAS and OpenMP of all sides have one thread."""
    folder = job.data.folder
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name.replace('/', '-')}.{kind}" for kind in ("job.json", "outcome.json", "log")]
    files[0].write_text(child.to_json(name, job))
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    of_mlflow = {"GIT_PYTHON_REFRESH": "quiet", "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    environment = {**os.environ, **one_thread, **of_mlflow, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.benchmarks.child", str(files[0]), str(files[1])]
    with files[2].open("w") as log:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise SideError(f"{_error_line(files[2])} (exit code {done.returncode}, log: {files[2]})")
    return Outcome(**json.loads(files[1].read_text()))


def _error_line(log: Path) -> str:
    """Return the line of a log that names the last error, without the stack traces around it."""
    lines = log.read_text(errors="replace").strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return ([*lines[-1:], *named] or ["it said nothing"])[-1][:200]


def _row(case: Case, product: SideResult, other: SideResult) -> Row:
    if product.failure or other.failure:
        return Row(case, product, other, None)
    return Row(case, product, other, worst_difference(product.first, other.first))


def worst_difference(a: Outcome, b: Outcome) -> float:
    """Return the largest relative difference of what two sides found for the sample; infinite if for other things."""
    worst = _difference(a.predictions, b.predictions)
    if a.metrics.keys() != b.metrics.keys():
        return float("inf")
    return max([worst, *[_difference(a.metrics[key], b.metrics[key]) for key in a.metrics]])


def _difference(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    if a.keys() != b.keys():
        return float("inf")
    return max((_relative(a[name], b[name]) for name in a), default=0.0)


def _relative(a: float, b: float) -> float:
    # `max` would pass over a NaN.
    difference = abs(a - b) / max(1.0, abs(a))
    return difference if math.isfinite(difference) else float("inf")
