"""How well a fleet predicts: `python -m tests.benchmarks.quality` (`make quality`), on the flights of New York City.

One model of all flights, one xgboost per key as people write it, and a fleet of keys that build on one model, side by
side. How the fleet builds on it is chosen by validation inside the training days; the test days are seen once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from group_models import api

FLIGHTS = Path(__file__).parents[2] / "fixtures" / "flights.parquet"
TARGETS = ("air_time_min", "arrival_delay_min")
KEYS = ("carrier", "lane", "depot")
FEATURES = (
    "departure_hour", "departure_minute", "weekday", "season_cos", "scheduled_arrival_minute", "scheduled_elapsed_min",
    "distance_miles", "temperature_f", "dew_point_f", "humidity_percent", "wind_direction_deg", "wind_speed_mph",
    "wind_gust_mph", "precipitation_in", "pressure_mb", "visibility_miles",
)  # fmt: skip
"""Known before departure; the day of the year is left out, which trees cannot extrapolate."""

LAST_TRAINING_DAY, LAST_FITTING_DAY = 292, 241
"""Test days are those after the first; validation days those after the second, up to the first."""

TREES = {"n_estimators": 300, "max_depth": 6, "learning_rate": 0.05, "subsample": 0.8}
NAIVE = {"n_estimators": 100, "max_depth": 4, "objective": "reg:squarederror"}
LIMITS = {"min_rows": 30, "max_key_rows": 2_000_000, "max_unit_bytes": "256MiB", "max_key_bytes": "256MiB"}


def _pooled(mode: str, **more: Any) -> dict[str, Any]:
    return {"levels": [[]], "pooling": {"mode": mode, **more}}


def _ridge(alpha: float) -> dict[str, Any]:
    return {"estimator": {"name": "ridge", "params": {"alpha": alpha}}}


FLEETS: Mapping[str, Mapping[str, Any]] = {
    "residual, alpha 1,000": _pooled("residual", **_ridge(1e3)),
    "residual, alpha 10,000": _pooled("residual", **_ridge(1e4)),
    "residual, alpha 100,000": _pooled("residual", **_ridge(1e5)),
    "shrink": _pooled("shrink"),
}
"""What validation chooses from: how a key's model builds on that of all flights."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Test errors of one target, the mean absolute error in minutes over the rows that all models predict."""

    target: str
    chosen: str
    rows: int
    keys: int
    errors: Mapping[str, float]
    shares: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as plain values."""
        return dataclasses.asdict(self)


class Flights:
    """The flights with one target, and the models that are trained on them, each in a warehouse of its own."""

    def __init__(self, target: str, folder: Path) -> None:
        frame = pd.read_parquet(FLIGHTS)
        self.frame = frame[frame[target].notna()].assign(fleet="all")
        self.target, self.folder = target, folder
        self._count = 0

    def rows(self, first: int, last: int) -> pd.DataFrame:
        """Return the flights from one day of the year to another."""
        return self.frame[self.frame["day_of_year"].between(first, last)].reset_index(drop=True)

    def predictions(self, until: int, asked: pd.DataFrame, changes: Mapping[str, Any]) -> pd.Series:
        """Return what models of the flights until a day predict of others."""
        self._count += 1
        folder = self.folder / f"{self.target}-{self._count}"
        folder.mkdir()
        self.rows(1, until).to_parquet(folder / "rows.parquet", coerce_timestamps="us")
        spec = {
            "model_set": "demo.flights.quality",
            "source": {"path": str(folder / "rows.parquet")},
            "keys": list(KEYS),
            "target": self.target,
            "features": list(FEATURES),
            "estimator": {"name": "xgboost", "params": TREES},
            "metric": "mae",
            "time_column": "scheduled_departure",
            "limits": LIMITS,
            "warehouse": str(folder / "warehouse"),
            **changes,
        }
        api.train(spec, say=_quiet)
        return pd.Series(api.score(asked, spec)["prediction"].to_numpy(), index=asked.index)

    def errors(self, until: int, asked: pd.DataFrame, changes: Mapping[str, Any]) -> pd.Series:
        """Return the absolute errors of those predictions; NaN where there is no prediction."""
        return (self.predictions(until, asked, changes) - asked[self.target]).abs()


def _quiet(_: str) -> None:
    pass


def choose(flights: Flights) -> str:
    """Return which fleet has the least error on the validation days, trained on those before."""
    asked = flights.rows(LAST_FITTING_DAY + 1, LAST_TRAINING_DAY)
    found = {name: flights.errors(LAST_FITTING_DAY, asked, fleet).mean() for name, fleet in FLEETS.items()}
    for name, error in found.items():
        _say(f"{flights.target}: {name}: {error:.3f} on the validation days")
    return min(found, key=lambda name: found[name])


def compare(flights: Flights) -> Scores:
    """Return the errors on the test days of the models of all flights, per key, and of the fleet that was chosen."""
    chosen = choose(flights)
    asked = flights.rows(LAST_TRAINING_DAY + 1, 366)
    sides: Mapping[str, Mapping[str, Any]] = {
        "global": {"keys": ["fleet"]},
        "naive": {"estimator": {"name": "xgboost", "params": NAIVE}},
        "fleet": FLEETS[chosen],
    }
    errors = pd.DataFrame({name: flights.errors(LAST_TRAINING_DAY, asked, of) for name, of in sides.items()})
    is_told = errors.notna().all(axis=1)
    errors, keys = errors[is_told], asked.loc[is_told, list(KEYS)].apply("|".join, axis=1)
    by_key = errors.groupby(keys).mean()
    shares = {name: float((by_key["fleet"] <= by_key[name]).mean()) for name in ("global", "naive")}
    means = {name: float(errors[name].mean()) for name in sides}
    return Scores(flights.target, chosen, len(errors), len(by_key), means, shares)


def table(scores: Sequence[Scores]) -> Table:
    """Return the scores as people read them."""
    shown = Table(title="Mean absolute error on the test days, minutes")
    for name in ("target", "rows", "keys", "global", "naive", "fleet", "better than global", "than naive", "fleet is"):
        shown.add_column(name)
    for each in scores:
        values = [f"{each.errors[name]:.3f}" for name in ("global", "naive", "fleet")]
        shares = [f"{each.shares[name]:.0%} of keys" for name in ("global", "naive")]
        shown.add_row(each.target, f"{each.rows:,}", f"{each.keys:,}", *values, *shares, each.chosen)
    return shown


def failures(scores: Sequence[Scores]) -> Iterator[str]:
    """Yield what speaks against fleets: one that predicts worse than what is simpler."""
    for each in scores:
        for name in ("global", "naive"):
            if not each.errors["fleet"] < each.errors[name]:
                yield f"{each.target}: fleet {each.errors['fleet']:.3f} is not below {name} {each.errors[name]:.3f}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare on each target; return 1 where a fleet is not the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one")
    parser.add_argument("--json", type=Path, help="write the scores to a file")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        scores = [compare(Flights(target, Path(folder))) for target in asked.target or TARGETS]
    Console(width=None if sys.stdout.isatty() else 160).print(table(scores))
    if asked.json:
        asked.json.write_text(json.dumps([each.as_dict() for each in scores], indent=2), encoding="utf-8")
    for said in (found := list(failures(scores))):
        _say(said)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
