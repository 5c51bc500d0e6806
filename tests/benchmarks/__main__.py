"""Command line of the benchmark: `python -m tests.benchmarks [--small] [--only NAME] [--json FILE]`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from group_models.estimators.base import EstimatorSettings
from tests.benchmarks import profiling, report
from tests.benchmarks.bounds import bound_of
from tests.benchmarks.profiling import FAMILIES
from tests.benchmarks.runner import Case, Options, Row, all_cases, run_cases
from tests.benchmarks.targets import Judged, Target, all_targets, run_targets, show_targets, targets_json, values_table
from tests.benchmarks.workloads import FULL, SMALL, Workload

Named = TypeVar("Named", Case, Target)

OVERHEAD = "overhead/{}"
RESULTS = Path(__file__).with_name("RESULTS.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit code."""
    asked = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 200)
    workloads = _workloads(asked)
    if asked.profile:
        profiling.profile_units(console, is_small=asked.small)
        return 0
    cases, aims, families = (
        _chosen(all_cases(workloads), asked.only),
        _chosen(_targets(asked), asked.only),
        _families(asked),
    )
    if not cases and not aims and not families:
        known = [case.name for case in (*all_cases(workloads), *all_targets(is_small=asked.small))]
        console.print(f"no row is named like {asked.only}; there are {known + list(map(OVERHEAD.format, FAMILIES))}")
        return 2
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as temporary:
        options = _options(asked, Path(asked.work or temporary).absolute())
        rows = run_cases(cases, options, _say)
        judged = run_targets(aims, options, _say)
    overhead = profiling.measure_overhead(is_small=not options.is_full, families=families)
    _tell(rows, judged, overhead, options, asked, console)
    return max(report.exit_code(rows) if rows else 0, int(any(one.failure for one in judged)))


def _options(asked: argparse.Namespace, work: Path) -> Options:
    is_full = not (asked.small or asked.keys or asked.rows)
    return Options(work, asked.cores, asked.repeat, is_in_process=asked.in_process, is_full=is_full)


def _tell(
    rows: Sequence[Row],
    judged: Sequence[Judged],
    overhead: Mapping[str, float],
    options: Options,
    asked: argparse.Namespace,
    console: Console,
) -> None:
    """Print and write what was measured; whether bounds are met decides `bounds.py`, not the exit code of a run."""
    told = report.values_of(rows) | overhead
    values = told | {name: value for one in judged for name, value in one.values.items()}
    if rows:
        report.show(rows, console)
    if judged:
        show_targets(judged, console, is_full=options.is_full)
    ratios = {row.case.name for row in rows}
    beside = [(name, value) for name, value in told.items() if bound_of(name) or name not in ratios]
    console.print(values_table("What was measured beside", beside, is_full=options.is_full))
    if asked.json:
        found = report.as_json(rows, options) | {"targets": targets_json(judged), "values": values}
        asked.json.write_text(json.dumps(found, indent=2))
    if asked.write_results and rows:
        report.write_results(rows, values, RESULTS, is_full=options.is_full)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--small", action="store_true", help="small workloads, without judging")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="rows with this in their name, such as ridge/train"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured as JSON")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each side; the median counts (default: 1)")
    parser.add_argument("--cores", type=int, default=2, help="cores of every side (default: 2)")
    parser.add_argument("--keys", type=int, help="keys of each workload, instead of its own")
    parser.add_argument("--rows", type=int, help="rows of each workload, instead of its own")
    parser.add_argument("--work", metavar="DIR", help="folder for data and logs, kept (default: a temporary one)")
    parser.add_argument("--write-results", action="store_true", help=f"write {RESULTS.name} beside this program")
    parser.add_argument("--profile", action="store_true", help="profile one unit of each overhead/* row instead")
    parser.add_argument("--in-process", action="store_true", help="no child processes; for tests, times mean nothing")
    return parser


def _workloads(asked: argparse.Namespace) -> list[Workload]:
    sizes = {name: getattr(asked, name) for name in ("keys", "rows") if getattr(asked, name)}
    return [dataclasses.replace(workload, **sizes) for workload in (SMALL if asked.small else FULL)]


def _targets(asked: argparse.Namespace) -> list[Target]:
    """Return the targets; they have sizes of their own, so with others only where they are named."""
    is_sized = asked.keys or asked.rows
    return [] if is_sized and not asked.only else all_targets(is_small=asked.small)


def _families(asked: argparse.Namespace) -> dict[str, tuple[EstimatorSettings, int]]:
    """Return the families whose overhead is measured; like the targets, they have sizes of their own."""
    is_sized = asked.keys or asked.rows
    words = asked.only or ([] if is_sized else [""])
    named = {OVERHEAD.format(name): name for name in FAMILIES}
    return {name: FAMILIES[name] for row, name in named.items() if any(word in row for word in words)}


def _chosen(cases: Sequence[Named], only: Sequence[str] | None) -> list[Named]:
    return [case for case in cases if not only or any(word in case.name for word in only)]


if __name__ == "__main__":
    sys.exit(main())
