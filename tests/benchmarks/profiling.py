"""What a key of a packed unit costs beside its fit, measured in this process: the rows `overhead/*` of the bench."""

from __future__ import annotations

import contextlib
import cProfile
import dataclasses
import json
import pstats
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from fixtures.shipments import shipments
from group_models.artifacts import digest
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import make_family
from group_models.fitting import units
from group_models.keys import key_id
from group_models.mlmodel import MlmodelTemplate
from group_models.serving.routing import MODEL_LINES, Inputs, Router
from group_models.serving.statuses import NO_MODEL
from group_models.tables import utc_now
from tests.benchmarks.workloads import FEATURES, HOLDOUT_SHARE, KEYS, MODEL_SET, RIDGE, TARGET, TIME, TREES

FAMILIES: Mapping[str, tuple[EstimatorSettings, int]] = {
    "ridge": (EstimatorSettings(name="ridge", params=RIDGE), 1_250),
    "object": (EstimatorSettings(object="sklearn.linear_model:LinearRegression", version="1"), 500),
    "xgboost": (EstimatorSettings(name="xgboost", params=TREES), 100),
}
"""What is fitted, and keys of the unit in full size: a sixteenth of W1 for the first."""

ROWS_PER_KEY = 200

ESTIMATOR_METHODS = (
    "fit", "refit", "predict", "contributions", "dump", "fit_groups", "refit_groups", "predict_groups",
)  # fmt: skip
"""The estimator's own work, whichever class of the package does it; all else in `fit_unit` is overhead."""

TOP = 12

_MAPS = ["params", "metrics", "baseline_metrics", "train_metrics", "importance", "interval", "coverage"]


@dataclasses.dataclass(frozen=True)
class Unit:
    """What `fit_unit` takes."""

    frame: pd.DataFrame
    references: pd.DataFrame
    settings: units.FitSettings

    @property
    def keys(self) -> int:
        """Keys of the unit."""
        return len(self.references)

    def fit(self) -> pd.DataFrame:
        """Fit the unit."""
        return units.fit_unit(self.frame, self.references, self.settings)


def measure_overhead(
    *, is_small: bool, families: Mapping[str, tuple[EstimatorSettings, int]] = FAMILIES
) -> dict[str, float]:
    """Return by name what a key costs, in milliseconds of CPU."""
    values: dict[str, float] = {}
    for name, (settings, keys) in families.items():
        unit = make_unit(settings, keys // 10 if is_small else keys)
        found = _measure_unit(unit)
        values |= {f"overhead/{name}/{what}": value for what, value in found.items()}
    return values


def profile_units(console: Console, *, is_small: bool) -> None:
    """Print the same, and for each family where the time goes under cProfile.

    That slows small functions down and is good for their order only.
    """
    for name, (settings, keys) in FAMILIES.items():
        unit = make_unit(settings, keys // 10 if is_small else keys)
        table = Table("what", "value", title=f"One unit of {name}: {unit.keys:,} keys, {len(unit.frame):,} rows")
        for what, value in _measure_unit(unit).items():
            table.add_row(what, f"{value:.3f}")
        console.print(table)
        console.print(_top_table(_profiled(unit), 1e3 / unit.keys))


def _measure_unit(unit: Unit) -> dict[str, float]:
    result = unit.fit()
    if set(result["status"]) != {"trained"}:
        raise RuntimeError(f"not all keys were trained: {result['reason'].iloc[0]}")
    total, own = _clocked(unit)
    per_key = 1e3 / unit.keys
    return {
        "all, ms per key": total * per_key,
        "the estimator's own, ms per key": own * per_key,
        "beside the estimator, ms per key": (total - own) * per_key,
        "storing, ms per model": _storing(result, unit) * per_key,
        "loads per model": _loads(result, unit) / unit.keys,
    }


def _storing(result: pd.DataFrame, unit: Unit) -> float:
    """Return the CPU seconds of each model's `MLmodel`, its digest and its row, as Arrow."""
    keys = unit.references.set_index("key_id")["key"]
    template = unit.settings.template
    start = time.process_time()
    for key, data in zip(result["key_id"], result["data"], strict=True):
        template.render(key, keys[key], utc_now())
        digest(data)
    pa.RecordBatch.from_pandas(result.drop(columns=_MAPS), preserve_index=False)
    return time.process_time() - start


def _loads(result: pd.DataFrame, unit: Unit) -> int:
    """Return how often a part of scoring loads models, whose rows arrive in batches that cut keys in two."""
    names = [f"f{i}" for i in range(len(FEATURES))]
    packed = [_packed(row) for row in result.to_dict("records")]
    models = pd.DataFrame({"model_ix": range(len(result)), "model": packed})
    rows = unit.frame[["key_index", *names]].rename(columns={"key_index": "model_ix"}).assign(model=None)
    mixed = pd.concat([models, rows]).sort_values("model_ix", kind="stable")
    router = Router({0: Inputs(dict.fromkeys(FEATURES, "numeric"), tuple(range(len(FEATURES))))})
    for start in range(0, len(mixed), 777):
        router.predict(mixed.iloc[start : start + 777], names)
    return router.loads


def _packed(row: Mapping[str, Any]) -> bytes:
    """Return a row of the store as the one value that a model crosses to a worker as."""
    lines = {"run_ix": 0, "parent_ix": NO_MODEL, "is_base": 0, **row}
    return "".join(f"{lines[name]}\n" for name in MODEL_LINES).encode() + bytes(row["data"])


def make_unit(estimator: EstimatorSettings, keys: int) -> Unit:
    """Return one unit of shipments: rows in no order, as they come out of an exchange."""
    frame = shipments(keys, keys * ROWS_PER_KEY)
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
    return Unit(shuffled, references, _settings(estimator, cutoff))


def _settings(estimator: EstimatorSettings, cutoff_us: int) -> units.FitSettings:
    features = Features(tuple(FEATURES), (), tuple(FEATURES))
    family = make_family(estimator, features)
    template = MlmodelTemplate.build(
        model_set=MODEL_SET, run_id="profile", estimator=family.name, flavor=family.flavor, features=features
    )
    return units.FitSettings(
        model_set=MODEL_SET,
        run_id="profile",
        features=dict.fromkeys(FEATURES, "numeric"),
        estimator=estimator,
        template=template,
        refit=True,
        seed=7,
        max_model_bytes=100 * 2**20,
        holdout_by="time",
        holdout_share=HOLDOUT_SHARE,
        holdout_from_us=cutoff_us,
    )


def _clocked(unit: Unit) -> tuple[float, float]:
    """Return the CPU seconds of a unit, and those inside the estimator."""
    clock = _Clock()
    with contextlib.ExitStack() as patches:
        for owner, name in _estimator_methods():
            patches.enter_context(mock.patch.object(owner, name, clock.timed(vars(owner)[name])))
        start = time.process_time()
        unit.fit()
        return time.process_time() - start, clock.seconds


def _estimator_methods() -> Iterator[tuple[type, str]]:
    """Yield the methods of all classes of the package that fit, predict or pickle, whatever module they are in."""
    modules = [module for name, module in sys.modules.items() if name.startswith("group_models.")]
    classes = {c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__}
    for owner in classes - {Router}:
        yield from ((owner, name) for name in ESTIMATOR_METHODS if callable(vars(owner).get(name)))


@dataclasses.dataclass
class _Clock:
    """CPU seconds inside the outermost of the methods that it times: a refit may call the fit."""

    seconds: float = 0.0
    _depth: int = 0

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.process_time() - start

        return timed


def _profiled(unit: Unit) -> pstats.Stats:
    profiler = cProfile.Profile()
    with warnings.catch_warnings():
        profiler.runcall(unit.fit)
    return pstats.Stats(profiler)


def _top_table(stats: pstats.Stats, per_key: float) -> Table:
    found = [
        (f"{file.rpartition('/')[2]}:{function}", own, cumulative)
        for (file, _, function), (_, _, own, cumulative, _) in stats.stats.items()  # type: ignore[attr-defined]
    ]
    table = Table("most own time (cProfile)", "own ms per key", "with calls")
    for name, own, cumulative in sorted(found, key=lambda entry: -entry[1])[:TOP]:
        table.add_row(name, f"{own * per_key:.3f}", f"{cumulative * per_key:.3f}")
    return table
