"""Targets that have no other side: what the product must stay under on uneven, changed and very many keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.memory import LIMITS_MB
from tests.benchmarks.runner import Options, Say, SideError, run_side
from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.workloads import RIDGE, TREES, Data, Workload

Outcomes = Mapping[str, Outcome]


@dataclasses.dataclass(frozen=True)
class Check:
    """One value that must not be over its limit."""

    what: str
    value: float
    limit: float

    @property
    def is_met(self) -> bool:
        """Whether it is not over."""
        return self.value <= self.limit


@dataclasses.dataclass(frozen=True)
class Target:
    """Sides of one workload, and what is checked of them together."""

    name: str
    workload: Workload
    sides: tuple[str, ...]
    checks: Callable[[Outcomes, int], list[Check]]


@dataclasses.dataclass(frozen=True)
class Judged:
    """A target that was run: its checks, or why there are none."""

    target: Target
    checks: tuple[Check, ...] = ()
    outcomes: Outcomes = dataclasses.field(default_factory=dict)
    failure: str | None = None

    @property
    def is_met(self) -> bool:
        """Whether it ran and every check is met."""
        return self.failure is None and all(check.is_met for check in self.checks)


def check_planning(outcomes: Outcomes, _: int) -> list[Check]:
    """Planning alone takes little of time and of the driver's Python; with Spark measuring, the memory counts."""
    alone, with_spark = outcomes["plan/synthetic"], outcomes["plan/measured"]
    limit = LIMITS_MB["driver_python"]
    return [
        Check("seconds of planning", alone.seconds, 10.0),
        Check("driver's Python, MB", alone.peaks_mb["driver_python"], limit),
        Check("the same with Spark measuring, MB", with_spark.peaks_mb["driver_python"], limit),
    ]


def check_skew(outcomes: Outcomes, cores: int) -> list[Check]:
    """One key of half of all rows costs no more than its fits, spread over the cores, and the run without fits."""
    salted, floor = outcomes["skew/salted"], outcomes["skew/floor"]
    most = 1.25 * salted.phases["fits"] / cores + floor.seconds
    return [
        Check("wall over 1.25 x fits / cores + the run without fits", salted.seconds / most, 1.0),
        Check("worker, MB", salted.peaks_mb.get("worker", 0.0), LIMITS_MB["worker"]),
    ]


def check_night(outcomes: Outcomes, _: int) -> list[Check]:
    """A night on which one key in a hundred changed, against the full run before it."""
    night = outcomes["night/changed"]
    return [Check("wall over that of the full run", night.seconds / night.phases["full"], 0.12)]


def all_targets(*, is_small: bool) -> list[Target]:
    """Return the targets, of full or of small size; small ones show that they run, and may miss their limits."""
    keys, rows = (20_000, 100_000) if is_small else (1_000_000, 5_000_000)
    skewed = Workload("xgboost", TREES, 41, 40_000) if is_small else Workload("xgboost", TREES, 1_001, 2_000_000)
    changed = Workload("xgboost", TREES, 100, 50_000) if is_small else Workload("xgboost", TREES, 2_000, 2_000_000)
    planned = Workload("ridge", RIDGE, keys, rows)
    return [
        Target("planning/keys", planned, ("plan/synthetic", "plan/measured"), check_planning),
        Target("skew/half", skewed, ("skew/floor", "skew/salted"), check_skew),
        Target("night/changed", changed, ("night/changed",), check_night),
    ]


def run_targets(targets: Sequence[Target], options: Options, say: Say) -> list[Judged]:
    """Run the sides of each target, each in a process of its own, and judge what they measured."""
    return [_run_target(target, options, say) for target in targets]


def _run_target(target: Target, options: Options, say: Say) -> Judged:
    folder = options.work / target.name.replace("/", "-")
    outcomes: dict[str, Outcome] = {}
    for side in target.sides:
        unused = Path("unused")
        job = Job(target.workload, Data(folder), folder / side.replace("/", "-"), options.cores, unused, unused)
        try:
            outcomes[side] = run_side(side, job, is_in_process=options.is_in_process)
        except SideError as error:
            return Judged(target, outcomes=outcomes, failure=f"{side}: {error}")
        say(f"{target.name}: {side} {outcomes[side].seconds:.1f} s")
    return Judged(target, tuple(target.checks(outcomes, options.cores)), outcomes)


def show_targets(judged: Sequence[Judged], console: Console) -> None:
    """Print each check beside its limit, then where the time of each side went."""
    table = Table(title="Targets")
    for name in ("target", "workload", "what", "value", "limit", ""):
        table.add_column(name, justify="right" if name in ("value", "limit") else "left")
    for one in judged:
        if one.failure is not None:
            table.add_row(one.target.name, one.target.workload.label, one.failure, "-", "-", "FAILED")
        for check in one.checks:
            numbers = [f"{number:,.3g}" if number < 100 else f"{number:,.0f}" for number in (check.value, check.limit)]
            said = "met" if check.is_met else "MISSED"
            table.add_row(one.target.name, one.target.workload.label, check.what, *numbers, said)
    console.print(table)
    for one in judged:
        for side, outcome in one.outcomes.items():
            phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in outcome.phases.items())
            console.print(f"{one.target.name}, {side}: {outcome.seconds:.1f} s ({phases})")


def targets_json(judged: Sequence[Judged]) -> list[dict[str, object]]:
    """Return all that was measured as plain values."""
    return [
        {
            "name": one.target.name,
            "is_met": one.is_met,
            "failure": one.failure,
            "checks": [dataclasses.asdict(check) for check in one.checks],
            "sides": {side: dataclasses.asdict(outcome) for side, outcome in one.outcomes.items()},
        }
        for one in judged
    ]
