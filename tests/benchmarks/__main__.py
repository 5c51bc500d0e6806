"""Command line of the benchmark: `python -m tests.benchmarks [--small] [--only NAME] [--json FILE]`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from tests.benchmarks import profiling, report
from tests.benchmarks.runner import Case, Options, all_cases, run_cases
from tests.benchmarks.targets import Target, all_targets, run_targets, show_targets, targets_json, values_table
from tests.benchmarks.workloads import FULL, SMALL, Workload

Named = TypeVar("Named", Case, Target)

OVERHEAD = "overhead"
RESULTS = Path(__file__).with_name("RESULTS.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit code."""
    asked = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 200)
    workloads = _workloads(asked)
    if asked.profile:
        profiling.profile_units(console, is_small=asked.small)
        return 0
    is_full = not (asked.small or asked.keys or asked.rows)
    has_overhead = any(word in OVERHEAD for word in asked.only) if asked.only else is_full or asked.small
    cases = _chosen(all_cases(workloads), asked.only)
    aims = _chosen(_targets(asked), asked.only)
    if not cases and not aims and not has_overhead:
        names = [OVERHEAD, *[c.name for c in (*all_cases(workloads), *all_targets(is_small=asked.small))]]
        console.print(f"no row is named like {asked.only}; there are {names}")
        return 2
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as temporary:
        work = Path(asked.work or temporary).absolute()
        options = Options(work, asked.cores, asked.repeat, is_in_process=asked.in_process, is_full=is_full)
        rows = run_cases(cases, options, _say)
        judged = run_targets(aims, options, _say)
    overhead = profiling.measure_overhead(is_small=not is_full) if has_overhead else {}
    told = report.values_of(rows) | overhead
    if rows:
        report.show(rows, console)
    if judged:
        show_targets(judged, console, is_full=is_full)
    beside = [("", name, value) for name, value in told.items() if name not in {case.name for case in cases}]
    console.print(values_table("What else was measured of group-models", beside, is_full=is_full))
    values = told | {name: value for one in judged for name, value in one.values.items()}
    if asked.json:
        found = report.as_json(rows, options) | {"targets": targets_json(judged), "values": values}
        asked.json.write_text(json.dumps(found, indent=2))
    if asked.write_results and rows:
        report.write_results(rows, values, RESULTS, is_full=is_full)
    return max(
        report.exit_code(rows) if rows else 0, int(any(one.failure or (is_full and not one.is_met) for one in judged))
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--small", action="store_true", help="small workloads, for about a minute")
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


def _chosen(cases: Sequence[Named], only: Sequence[str] | None) -> list[Named]:
    return [case for case in cases if not only or any(word in case.name for word in only)]


if __name__ == "__main__":
    sys.exit(main())
