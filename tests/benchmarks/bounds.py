"""What the product must reach: the bound of every measured value, and `python -m tests.benchmarks.bounds FILE`.

The bounds are on the loops as people write them (`joblib`, `plain`). Seconds are bounded only where they are promised
as such; all else is a ratio within one run, so that the machine matters little.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.memory import LIMITS_MB


@dataclasses.dataclass(frozen=True)
class Bound:
    """The most that the value of this name may be, and what is aimed at below it."""

    name: str
    most: float
    aim: float | None = None


def _memory() -> Iterator[Bound]:
    """Yield the bounds of all processes of every run of the product that other ways are compared with."""
    for side in ("W1/ridge/train", "W2/xgboost/train", "W6/ridge/score", "W6/xgboost/score"):
        yield from (Bound(f"{side}/{kind}, MB", limit) for kind, limit in LIMITS_MB.items())


BOUNDS = (
    Bound("W1/ridge/train/joblib", 0.4, aim=0.25),
    Bound("W1/ridge/train/plain", 1 / 8),
    Bound("W2/xgboost/train/joblib", 1.1),
    Bound("W6/ridge/score/joblib", 0.65, aim=0.5),
    Bound("W6/xgboost/score/joblib", 1.1),
    Bound("W6/ridge/score/closure", 0.1),
    Bound("W3/keys/tenfold/wall over that of a tenth of the keys", 1.5),
    Bound("W3/keys/tenfold/worker, MB", LIMITS_MB["worker"]),
    Bound("W4/skew/half/wall over 1.25 x fits / cores + the run without fits", 1.0),
    Bound("W4/skew/half/worker, MB", LIMITS_MB["worker"]),
    Bound("W5/night/changed/wall over that of the full run", 0.12),
    Bound("W5/night/changed/worker, MB", LIMITS_MB["worker"]),
    Bound("W6/ridge/score/direct, s", 2.0),
    Bound("W7/planning/keys/seconds of planning", 10.0),
    Bound("W7/planning/keys/driver's Python, MB", LIMITS_MB["driver_python"]),
    Bound("W7/planning/keys/driver's Python with Spark measuring, MB", LIMITS_MB["driver_python"]),
    Bound("W8/serving/router/one row p50, ms", 5.0),
    Bound("W8/serving/router/one row p95, ms", 25.0),
    Bound("W8/serving/router/cold start, s", 15.0),
    Bound("W9/report/page/seconds to write", 30.0),
    Bound("W9/report/page/size, MB", 10.0),
    Bound("W10/levels/gated/wall over 1.15 x that without + the run without fits", 1.0),
    Bound("W10/levels/gated/worker, MB", LIMITS_MB["worker"]),
    Bound("W11/reasons/told/wall over that without", 1.1),
    Bound("W11/reasons/told/worker, MB", LIMITS_MB["worker"]),
    *[
        Bound(f"overhead/{family}/{what}", most)
        for family in ("ridge", "object", "xgboost")
        for what, most in (("beside the estimator, ms per key", 0.2), ("storing, ms per model", 0.3))
    ],
    Bound("overhead/ridge/loads per model", 1.0),
    *_memory(),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A bound and what was measured; None where nothing was."""

    bound: Bound
    value: float | None

    @property
    def is_met(self) -> bool:
        """Whether it was measured and is not over."""
        return self.value is not None and self.value <= self.bound.most

    def __str__(self) -> str:
        """Say name, value and bound in one line."""
        value = "not measured" if self.value is None else f"{self.value:,.3g}"
        aim = "" if self.bound.aim is None else f" (aim {self.bound.aim:,.3g})"
        return f"{self.bound.name}: {value}, at most {self.bound.most:,.3g}{aim}"


def bound_of(name: str) -> Bound | None:
    """Return the bound of a value, None where it is only told."""
    return next((bound for bound in BOUNDS if bound.name == name), None)


def judge(values: Mapping[str, float], bounds: Sequence[Bound] = BOUNDS) -> list[Verdict]:
    """Return every bound with its value: one that was not measured is not met."""
    return [Verdict(bound, values.get(bound.name)) for bound in bounds]


def mistakes(found: Mapping[str, Any]) -> list[str]:
    """Return what a result of `--json` misses: bounds, and rows whose two sides found other things or failed."""
    wrong = [
        f"{row['name']}: {row['failure'] or 'the two sides differ'}" for row in found["rows"] if not row["is_same"]
    ]
    wrong += [f"{target['name']}: {target['failure']}" for target in found["targets"] if target["failure"]]
    return wrong + [str(verdict) for verdict in judge(found["values"]) if not verdict.is_met]


def main(argv: Sequence[str] | None = None) -> int:
    """Print each bound that a result misses; return 1 if there is one, 2 if it is not of the full workloads."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bounds", description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m tests.benchmarks --json FILE` wrote")
    found = json.loads(parser.parse_args(argv).file.read_text())
    if not found["settings"]["is_full"]:
        print("the bounds are those of the full workloads; run the benchmark without --small, --keys and --rows")
        return 2
    missed = mistakes(found)
    print("\n".join([f"MISSED {line}" for line in missed] or [f"all {len(BOUNDS)} bounds are met"]))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
