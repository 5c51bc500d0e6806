"""What a key of a packed unit costs beside its fit: `python -m tests.benchmarks --profile`."""

from __future__ import annotations

import contextlib
import cProfile
import dataclasses
import inspect
import json
import pstats
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from fixtures.shipments import shipments
from group_models import fitting
from group_models.estimators import EstimatorSettings, Features, PickledPredictor
from group_models.families import SklearnFamily
from group_models.keys import key_id
from group_models.mlmodel import MlmodelTemplate
from tests.benchmarks.workloads import FEATURES, FULL, HOLDOUT_SHARE, KEYS, MODEL_SET, TARGET, TIME

UNITS = 16
"""Units of the whole workload on two cores: the profiled one is a sixteenth of it."""

ESTIMATOR: Mapping[str, tuple[Any, str]] = {
    "fit and refit": (SklearnFamily, "fit"),
    "predict": (PickledPredictor, "predict"),
    "pickle": (PickledPredictor, "dump"),
}
"""The estimator's own work: both fits, predicting the holdout, and pickling."""

OVERHEAD: Mapping[str, tuple[Any, str]] = {
    "slicing": (fitting, "unit_keys"),
    "checks": (fitting, "_check_rows"),
    "split": (fitting, "_split"),
    "metrics": (fitting, "_measure"),
    "seed": (fitting, "key_seed"),
    "MLmodel": (MlmodelTemplate, "render"),
    "digest": (fitting, "digest"),
    "rows": (fitting, "result_frame"),
}
"""What a key costs beside it, and the function that does it; `metrics` calls `predict`, which is taken off."""

TOP = 12


@dataclasses.dataclass(frozen=True)
class Unit:
    """What `fit_unit` takes."""

    frame: pd.DataFrame
    references: pd.DataFrame
    settings: fitting.FitSettings

    def fit(self) -> pd.DataFrame:
        """Fit the unit."""
        return fitting.fit_unit(self.frame, self.references, self.settings)


def profile_unit(console: Console, *, keys: int, rows: int) -> None:
    """Fit one unit of ridge three times in this process and print what a key costs, in milliseconds of CPU.

    Once to warm up; once with clocks on the parts; once under cProfile, which slows small functions down and is
    good for their order only.
    """
    unit = make_unit(keys, rows)
    unit.fit()
    total, seconds = _clocked(unit)
    console.print(f"One unit of ridge: {keys:,} keys, {rows:,} rows")
    console.print(_parts_table(total, seconds, 1e3 / keys))
    console.print(_top_table(_profiled(unit), 1e3 / keys))


def make_unit(keys: int, rows: int) -> Unit:
    """Return one unit of the ridge workload: rows in no order, as they come out of an exchange."""
    frame = shipments(keys, rows)
    groups = frame.groupby(KEYS, sort=True)
    names = list(groups.groups)
    time_us = frame[TIME].astype("int64").to_numpy()
    cutoff = int(np.quantile(time_us, 1 - HOLDOUT_SHARE))
    data = {
        "key_index": groups.ngroup().to_numpy(np.int32),
        "time_us": time_us,
        "row_hash": np.random.default_rng(7).integers(-(2**62), 2**62, len(frame)),
        "is_holdout": time_us >= cutoff,
        "y": frame[TARGET].to_numpy(),
    }
    data |= {f"f{i}": frame[name].to_numpy(np.float64) for i, name in enumerate(FEATURES)}
    references = pd.DataFrame(
        {
            "key_index": np.arange(keys),
            "key_id": [key_id(key) for key in names],
            "key": [json.dumps(dict(zip(KEYS, key, strict=True))) for key in names],
            "unit": 0,
        }
    )
    shuffled = pd.DataFrame(data).sample(frac=1.0, random_state=7)
    return Unit(shuffled, references, _settings(cutoff))


def _settings(cutoff_us: int) -> fitting.FitSettings:
    features = Features(tuple(FEATURES), (), tuple(FEATURES))
    template = MlmodelTemplate.build(
        model_set=MODEL_SET, run_id="profile", estimator="ridge", flavor="sklearn", features=features
    )
    return fitting.FitSettings(
        model_set=MODEL_SET,
        run_id="profile",
        features=dict.fromkeys(FEATURES, "numeric"),
        estimator=EstimatorSettings(name="ridge", params=FULL[0].params),
        template=template,
        refit=True,
        seed=7,
        max_model_bytes=100 * 2**20,
        holdout_by="time",
        holdout_share=HOLDOUT_SHARE,
        holdout_from_us=cutoff_us,
    )


def _clocked(unit: Unit) -> tuple[float, dict[str, float]]:
    """Return the CPU seconds of a unit, and those inside each part."""
    parts = {**ESTIMATOR, **OVERHEAD}
    seconds = dict.fromkeys(parts, 0.0)
    with contextlib.ExitStack() as patches:
        for part, (owner, name) in parts.items():
            patches.enter_context(mock.patch.object(owner, name, _timed(getattr(owner, name), seconds, part)))
        start = time.thread_time()
        unit.fit()
        total = time.thread_time() - start
    seconds["metrics"] -= seconds["predict"]
    return total, seconds


def _timed(function: Callable[..., Any], seconds: dict[str, float], part: str) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        result = function(*args, **kwargs)
        seconds[part] += time.thread_time() - start
        return _timed_steps(result, seconds, part) if inspect.isgenerator(result) else result

    return timed


def _timed_steps(steps: Iterator[Any], seconds: dict[str, float], part: str) -> Iterator[Any]:
    """Yield what a generator yields; the time between its steps is its own, the rest the caller's."""
    while True:
        start = time.thread_time()
        step = next(steps, None)
        seconds[part] += time.thread_time() - start
        if step is None:
            return
        yield step


def _profiled(unit: Unit) -> pstats.Stats:
    profiler = cProfile.Profile()
    with warnings.catch_warnings():
        profiler.runcall(unit.fit)
    return pstats.Stats(profiler)


def _parts_table(total: float, seconds: Mapping[str, float], per_key: float) -> Table:
    table = Table("part", "ms per key")
    overhead = total - sum(seconds[part] for part in ESTIMATOR)
    rest = overhead - sum(seconds[part] for part in OVERHEAD)
    rows = {part: seconds[part] for part in ESTIMATOR} | {"beside the estimator": overhead}
    rows |= {f"  {part}": seconds[part] for part in OVERHEAD} | {"  rest": rest, "all": total}
    for part, value in rows.items():
        table.add_row(part, f"{value * per_key:.3f}")
    return table


def _top_table(stats: pstats.Stats, per_key: float) -> Table:
    found = [
        (f"{file.rpartition('/')[2]}:{function}", own, cumulative)
        for (file, _, function), (_, _, own, cumulative, _) in stats.stats.items()  # type: ignore[attr-defined]
    ]
    table = Table("most own time (cProfile)", "own ms per key", "with calls")
    for name, own, cumulative in sorted(found, key=lambda entry: -entry[1])[:TOP]:
        table.add_row(name, f"{own * per_key:.3f}", f"{cumulative * per_key:.3f}")
    return table
