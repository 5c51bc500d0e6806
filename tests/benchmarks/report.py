"""What the bench prints and writes: the table of ratios, the product's phases and memory, JSON and RESULTS.md."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks.bounds import bound_of
from tests.benchmarks.memory import LIMITS_MB
from tests.benchmarks.runner import Options, Row, SideResult
from tests.benchmarks.targets import bound_words, number

PRODUCT_SIDES = {"packed": "group_models.train", "streamed": "group_models.score"}
SIDE_WORDS = {
    "plain": "applyInPandas per key",
    "plain_arrays": "applyInPandas per key, on arrays",
    "joblib": "joblib loop in memory",
    "joblib_arrays": "joblib loop in memory, on arrays",
    "mlflow": "applyInPandas with mlflow.log_model",
    "closure": "mapInPandas, models in the closure",
}
_LIBRARIES = ("pyspark", "pandas", "numpy", "pyarrow", "scikit-learn", "xgboost-cpu", "xgboost", "joblib", "mlflow")


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table, then where the product's time goes and what memory it takes."""
    console.print(ratio_table(rows))
    sides = product_sides(rows)
    for side in sides:
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in side.first.phases.items())
        console.print(f"{side.workload.label}, {PRODUCT_SIDES[side.side]}: {phases} s")
    console.print(memory_table(sides))


def ratio_table(rows: Sequence[Row]) -> Table:
    """Return one row per comparison."""
    table = Table(title="Wall time of group-models over that of the other way; below 1 it is faster")
    for name in (
        "workload",
        "verb",
        "against",
        "ratio",
        "CPU ratio",
        "s",
        "other s",
        "rows/s",
        "other rows/s",
        "results",
    ):
        table.add_column(name, justify="left" if name in ("workload", "verb", "against", "results") else "right")
    for row in rows:
        numbers = [row.product, row.other]
        table.add_row(
            f"{row.case.workload.bench_name(row.case.verb)} {row.case.workload.label}",
            row.case.verb,
            SIDE_WORDS[row.case.other] + _extrapolated(row.other),
            *["-" if ratio is None else f"{ratio:.3f}" for ratio in (row.ratio, row.cpu_ratio)],
            *[_failed_or(side, f"{side.median_s:,.1f}" if side.seconds else "") for side in numbers],
            *[_failed_or(side, f"{side.rows_per_s:,.0f}" if side.seconds else "") for side in numbers],
            results_words(row),
        )
    return table


def _extrapolated(side: SideResult) -> str:
    for unit, sampled in (("keys", side.first.sampled_keys), ("rows", side.first.sampled_rows)):
        if sampled is not None:
            return f" (extrapolated from {sampled:,} {unit})"
    return ""


def _failed_or(side: SideResult, text: str) -> str:
    return "failed" if side.failure else text


def results_words(row: Row) -> str:
    """Return whether both sides found the same, or why there is nothing to compare."""
    if failure := row.product.failure or row.other.failure:
        return failure
    return f"{'same' if row.is_good else 'DIFFER'} (to {row.worst_difference:.0e})"


def product_sides(rows: Sequence[Row]) -> list[SideResult]:
    """Return the product's sides that ran, each once."""
    found = {(row.product.workload.folder, row.product.verb): row.product for row in rows}
    return [side for side in found.values() if side.failure is None]


def memory_table(sides: Sequence[SideResult]) -> Table:
    """Return the largest resident memory of the product's processes beside the limits."""
    table = Table(title="Largest resident memory of group-models, MB")
    table.add_column("workload")
    table.add_column("verb")
    for kind, limit in LIMITS_MB.items():
        table.add_column(f"{kind.replace('_', ' ')} (limit {limit:,})", justify="right")
    for side in sides:
        peaks = [_peak(side.first.peaks_mb.get(kind), limit) for kind, limit in LIMITS_MB.items()]
        table.add_row(side.workload.label, side.verb, *peaks)
    return table


def _peak(used: float | None, limit: float) -> str:
    return "-" if used is None else f"{used:,.0f}{' OVER' if used > limit else ''}"


def values_of(rows: Sequence[Row]) -> dict[str, float]:
    """Return all that bounds may be on: ratios, and the product's memory and what else it measured of itself."""
    values = {row.case.name: row.ratio for row in rows if row.ratio is not None}
    for side in product_sides(rows):
        start = f"{side.workload.bench_name(side.verb)}/{side.workload.estimator}/{side.verb}"
        values |= {f"{start}/{kind}, MB": used for kind, used in side.first.peaks_mb.items()}
        values |= {f"{start}/{what}": value for what, value in side.first.values.items()}
    return values


def as_json(rows: Sequence[Row], options: Options) -> dict[str, Any]:
    """Return all that was measured as plain values."""
    sides: dict[str, SideResult] = {}
    for row in rows:
        for side in (row.product, row.other):
            sides[f"{side.workload.bench_name(side.verb)}/{side.workload.estimator}/{side.verb}/{side.side}"] = side
    return {
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "cores": options.cores,
            "repeat": options.repeat,
            "in_process": options.is_in_process,
            "is_full": options.is_full,
        },
        "memory_limits_mb": LIMITS_MB,
        "values": values_of(rows),
        "rows": [_row_json(row) for row in rows],
        "sides": {name: _side_json(side) for name, side in sides.items()},
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "name": row.case.name,
        "workload": dataclasses.asdict(row.case.workload),
        "ratio": row.ratio,
        "cpu_ratio": row.cpu_ratio,
        "extrapolated_from_keys": row.other.first.sampled_keys,
        "extrapolated_from_rows": row.other.first.sampled_rows,
        "worst_difference": row.worst_difference,
        "is_same": row.is_good,
        "failure": row.product.failure or row.other.failure,
    }


def _side_json(side: SideResult) -> dict[str, Any]:
    return {
        "seconds": list(side.seconds),
        "cpu_s": side.first.cpu_s,
        "rows_per_s": side.rows_per_s if side.seconds else None,
        "phases_s": side.first.phases,
        "peaks_mb": side.first.peaks_mb,
        "failure": side.failure,
    }


def write_results(rows: Sequence[Row], values: Mapping[str, float], path: Path, *, is_full: bool) -> None:
    """Write machine, versions, ratios and other values as Markdown: seconds are of no use on another machine."""
    lines = [
        "# Results of the benchmark",
        "",
        "Written by `python -m tests.benchmarks --write-results`; what each side does is told in `__init__.py`.",
        "A ratio is the wall time of group-models over that of the other way, in one run on one machine; below 1",
        "group-models is faster. Expect other ratios elsewhere.",
        "",
        f"Machine: {', '.join(f'{value} {name}' for name, value in machine().items())}.",
        f"Versions: {', '.join(f'{name} {value}' for name, value in versions().items())}.",
        "",
        "| workload | verb | against | ratio | results |",
        "|---|---|---|---:|---|",
    ]
    for row in rows:
        ratio = "failed" if row.ratio is None else f"{row.ratio:.2f}"
        against = SIDE_WORDS[row.case.other] + _extrapolated(row.other)
        same = "same" if row.is_good else "not the same"
        workload = f"{row.case.workload.bench_name(row.case.verb)} {row.case.workload.label}"
        lines.append(f"| {workload} | {row.case.verb} | {against} | {ratio} | {same} |")
    names = {row.case.name for row in rows}
    lines += ["", "| what | value | bound | |", "|---|---:|---:|---|"]
    for name, value in values.items():
        if bound_of(name) or name not in names:
            lines.append(f"| {name} | {number(value)} | {' | '.join(bound_words(name, value, is_full=is_full))} |")
    path.write_text("\n".join(lines) + "\n")


def machine() -> dict[str, Any]:
    """Return what kind of machine this is, by unit."""
    return {
        "cores": os.cpu_count(),
        "GB of memory": round(psutil.virtual_memory().total / 1e9),
        "processor": platform.machine(),
        "system": platform.system(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, Java and the libraries."""
    found = {"Python": platform.python_version(), "Java": _java_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "([^"]+)"', said)
    return match[1] if match else "unknown"


def exit_code(rows: Sequence[Row]) -> int:
    """Return 0 where all rows have a ratio and equal results, else 1."""
    return 0 if rows and all(row.is_good for row in rows) else 1


def failures(rows: Sequence[Row]) -> Mapping[str, str]:
    """Return by name of the row what went wrong."""
    return {row.case.name: results_words(row) for row in rows if not row.is_good}
