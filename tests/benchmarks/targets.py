"""Targets that have no other side: what the product must stay under on uneven, changed and very many keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.bounds import bound_of
from tests.benchmarks.runner import Options, Say, SideError, run_side
from tests.benchmarks.sides import Job, Outcome
from tests.benchmarks.workloads import RIDGE, TREES, Data, Workload

Outcomes = Mapping[str, Outcome]


@dataclasses.dataclass(frozen=True)
class Target:
    """Sides of one workload, and what is measured of them together."""

    name: str
    workload: Workload
    sides: tuple[str, ...]
    measure: Callable[[Outcomes, int], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Judged:
    """A target that was run: what was measured, or why it failed."""

    target: Target
    measured: Mapping[str, float] = dataclasses.field(default_factory=dict)
    outcomes: Outcomes = dataclasses.field(default_factory=dict)
    failure: str | None = None

    @property
    def values(self) -> dict[str, float]:
        """The measured values by the names that their bounds have."""
        return {f"{self.target.name}/{what}": value for what, value in self.measured.items()}

    @property
    def is_met(self) -> bool:
        """Whether it ran and no value is over its bound."""
        bounds = {name: bound_of(name) for name in self.values}
        return self.failure is None and all(b is None or self.values[name] <= b.most for name, b in bounds.items())


def measure_planning(outcomes: Outcomes, _: int) -> dict[str, float]:
    """Planning alone takes little of time and of the driver's Python; with Spark measuring, the memory counts."""
    alone, with_spark = outcomes["plan/synthetic"], outcomes["plan/measured"]
    return {
        "seconds of planning": alone.seconds,
        "driver's Python, MB": alone.peaks_mb["driver_python"],
        "driver's Python with Spark measuring, MB": with_spark.peaks_mb["driver_python"],
    }


def measure_keys(outcomes: Outcomes, _: int) -> dict[str, float]:
    """Cost grows with rows, not with keys: ten times the keys on the same number of rows."""
    many, few = outcomes["keys/many"], outcomes["keys/few"]
    return {"wall over that of a tenth of the keys": many.seconds / few.seconds, **_worker(many)}


def measure_skew(outcomes: Outcomes, cores: int) -> dict[str, float]:
    """One key of half of all rows costs no more than its fits, spread over the cores, and the run without fits."""
    salted, floor = outcomes["skew/salted"], outcomes["skew/floor"]
    most = 1.25 * salted.phases["fits"] / cores + floor.seconds
    return {"wall over 1.25 x fits / cores + the run without fits": salted.seconds / most, **_worker(salted)}


def measure_night(outcomes: Outcomes, _: int) -> dict[str, float]:
    """A night on which one key in a hundred changed, against the full run before it."""
    night = outcomes["night/changed"]
    return {"wall over that of the full run": night.seconds / night.phases["full"], **_worker(night)}


def measure_levels(outcomes: Outcomes, _: int) -> dict[str, float]:
    """A parent of all rows costs one more pass over them at most; baselines and gates a little of the whole."""
    gated = outcomes["levels/gated"]
    most = 1.15 * outcomes["levels/none"].seconds + outcomes["levels/floor"].seconds
    return {"wall over 1.15 x that without + the run without fits": gated.seconds / most, **_worker(gated)}


def measure_reasons(outcomes: Outcomes, _: int) -> dict[str, float]:
    """Importance of features and intervals, told of each key, cost a tenth of the run."""
    told = outcomes["reasons/told"]
    return {"wall over that without": told.seconds / outcomes["reasons/none"].seconds, **_worker(told)}


def measure_router(outcomes: Outcomes, _: int) -> dict[str, float]:
    """One row of a router of all models answers at once, also of a key whose model was not read yet."""
    return dict(outcomes["serve/router"].values)


def measure_report(outcomes: Outcomes, _: int) -> dict[str, float]:
    """The page of all keys is written while somebody waits, and is small enough to be sent."""
    page = outcomes["report/page"]
    return {"seconds to write": page.seconds, **page.values}


def _worker(outcome: Outcome) -> dict[str, float]:
    return {"worker, MB": outcome.peaks_mb["worker"]} if "worker" in outcome.peaks_mb else {}


def all_targets(*, is_small: bool) -> list[Target]:
    """Return the targets, of full or of small size; small ones show that they run, and are not judged."""
    planned = Workload("ridge", RIDGE, 20_000, 100_000) if is_small else Workload("ridge", RIDGE, 1_000_000, 5_000_000)
    many = Workload("ridge", RIDGE, 2_000, 40_000) if is_small else Workload("ridge", RIDGE, 200_000, 4_000_000)
    skewed = Workload("xgboost", TREES, 41, 40_000) if is_small else Workload("xgboost", TREES, 1_001, 2_000_000)
    changed = Workload("xgboost", TREES, 100, 50_000) if is_small else Workload("xgboost", TREES, 2_000, 2_000_000)
    served = Workload("ridge", RIDGE, 500, 20_000) if is_small else Workload("ridge", RIDGE, 20_000, 400_000)
    fleet = Workload("ridge", RIDGE, 300, 30_000) if is_small else Workload("ridge", RIDGE, 20_000, 4_000_000)
    return [
        Target("W3/keys/tenfold", many, ("keys/data", "keys/few", "keys/many"), measure_keys),
        Target("W4/skew/half", skewed, ("skew/floor", "skew/salted"), measure_skew),
        Target("W5/night/changed", changed, ("night/changed",), measure_night),
        Target("W7/planning/keys", planned, ("plan/synthetic", "plan/measured"), measure_planning),
        Target("W8/serving/router", served, ("serve/router",), measure_router),
        Target("W9/report/page", served, ("report/page",), measure_report),
        Target("W10/levels/gated", fleet, ("levels/floor", "levels/none", "levels/gated"), measure_levels),
        Target("W11/reasons/told", fleet, ("reasons/none", "reasons/told"), measure_reasons),
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
    return Judged(target, target.measure(outcomes, options.cores), outcomes)


def show_targets(judged: Sequence[Judged], console: Console, *, is_full: bool) -> None:
    """Print each value, in full size beside its bound, then where the time of each side went."""
    values = [(name, value) for one in judged for name, value in one.values.items()]
    console.print(values_table("Targets", values, is_full=is_full))
    for one in judged:
        if one.failure is not None:
            console.print(f"{one.target.name} FAILED: {one.failure}")
        for side, outcome in one.outcomes.items():
            phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in outcome.phases.items())
            console.print(f"{one.target.name}, {side}: {outcome.seconds:.1f} s ({phases})")


def values_table(title: str, values: Sequence[tuple[str, float]], *, is_full: bool) -> Table:
    """Return values by name beside their bounds; in small size fixed costs decide: no bound."""
    table = Table(title=title)
    for name in ("what", "value", "bound", ""):
        table.add_column(name, justify="right" if name in ("value", "bound") else "left")
    for name, value in values:
        table.add_row(name, number(value), *bound_words(name, value, is_full=is_full))
    return table


def bound_words(name: str, value: float, *, is_full: bool) -> tuple[str, str]:
    """Return the bound of a value and whether it is met."""
    bound = bound_of(name) if is_full else None
    return ("-", "") if bound is None else (number(bound.most), "met" if value <= bound.most else "MISSED")


def number(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def targets_json(judged: Sequence[Judged]) -> list[dict[str, object]]:
    """Return all that was measured as plain values."""
    return [
        {
            "name": one.target.name,
            "is_met": one.is_met,
            "failure": one.failure,
            "values": one.values,
            "sides": {side: dataclasses.asdict(outcome) for side, outcome in one.outcomes.items()},
        }
        for one in judged
    ]
