"""What is trained and scored: shipments of any number of keys, as one Parquet file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from fixtures.shipments import shipments, shipments_table
from group_models.evaluation import holdout_cutoff

ID, TIME, TARGET = "shipment_id", "picked_up_at", "eta_hours"
KEYS = ["carrier", "lane", "depot"]
FEATURES = ["weight_kg", "distance_km", "carrier_on_time_rate_30d", "pickup_hour", "pickup_weekday", "parcels"]

MODEL_SET = "bench.ml.eta"
HOLDOUT_SHARE = 0.2
SAMPLE_KEYS, SAMPLE_ROWS = 24, 20
"""Keys, and rows of each, whose predictions are compared; also the keys that are logged to MLflow."""

MIN_ROWS = 10
"""Below the 20 rows that a key of W3 has."""

SCORING = "W6"
_HOUR_US = 3_600_000_000


@dataclasses.dataclass(frozen=True)
class Workload:
    """One estimator on so many keys and rows; rows are spread evenly over the keys.

    Attributes
    ----------
    name
        What the bench calls training it, such as `W1`; scoring is `W6` for all.
    """

    estimator: str
    params: Mapping[str, Any] = dataclasses.field(hash=False)
    keys: int
    rows: int
    name: str = "W0"

    def bench_name(self, verb: str) -> str:
        """Return the first word of the bench's names for it."""
        return SCORING if verb == "score" else self.name

    @property
    def label(self) -> str:
        """The workload for people."""
        return f"{self.estimator}, {self.keys:,} keys, {self.rows:,} rows"

    @property
    def folder(self) -> str:
        """Name of the folder with its data and what the sides make of it."""
        return f"{self.estimator}-{self.keys}-{self.rows}"

    def spec(self, data: Path, warehouse: Path) -> dict[str, Any]:
        """Return the spec of the product; all that is not said here is its default."""
        return {
            "model_set": MODEL_SET,
            "source": {"path": str(data)},
            "keys": KEYS,
            "target": TARGET,
            "features": FEATURES,
            "estimator": {"name": self.estimator, "params": dict(self.params)},
            # What the others minimise too.
            "metric": "rmse",
            "time_column": TIME,
            "holdout": {"by": "time", "share": HOLDOUT_SHARE},
            "warehouse": str(warehouse),
            "limits": {"min_rows": MIN_ROWS},
        }


RIDGE = {"alpha": 1.0}
TREES = {"n_estimators": 100, "max_depth": 4}
FULL = (Workload("ridge", RIDGE, 20_000, 4_000_000, "W1"), Workload("xgboost", TREES, 2_000, 2_000_000, "W2"))
SMALL = (Workload("ridge", RIDGE, 1_000, 200_000, "W1"), Workload("xgboost", TREES, 60, 60_000, "W2"))


@dataclasses.dataclass(frozen=True)
class Data:
    """The files of a workload in a folder."""

    folder: Path

    @property
    def rows(self) -> Path:
        """All rows, in order of pick-up."""
        return self.folder / "data.parquet"

    @property
    def sample(self) -> pd.DataFrame:
        """The rows whose predictions are compared, as pandas."""
        return pd.read_parquet(self.folder / "sample.parquet")

    @property
    def cutoff_us(self) -> int:
        """First moment of the holdout, in microseconds since 1970."""
        return int(json.loads(self._facts.read_text())["cutoff_us"])

    @property
    def is_made(self) -> bool:
        """Whether the files are there; the facts are written last."""
        return self._facts.exists()

    @property
    def _facts(self) -> Path:
        return self.folder / "facts.json"

    def make(self, workload: Workload) -> None:
        """Write the files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        frame = shipments(workload.keys, workload.rows)
        pq.write_table(shipments_table(frame), self.rows, compression="zstd")
        _sample(frame, workload).to_parquet(self.folder / "sample.parquet")
        self._facts.write_text(json.dumps({"cutoff_us": _cutoff(frame)}))


def _sample(frame: pd.DataFrame, workload: Workload) -> pd.DataFrame:
    """Return the first rows of keys that are spread evenly over all."""
    number = frame.groupby(KEYS, sort=True).ngroup().to_numpy()
    chosen = np.linspace(0, workload.keys - 1, min(SAMPLE_KEYS, workload.keys)).astype(int)
    return frame[np.isin(number, chosen)].groupby(KEYS).head(SAMPLE_ROWS).reset_index(drop=True)


def _cutoff(frame: pd.DataFrame) -> int:
    """Return the moment of the split as the product finds it: the start of an hour."""
    time_us = frame[TIME].astype("int64").to_numpy()
    hours, rows = np.unique(time_us - time_us % _HOUR_US, return_counts=True)
    cutoff = holdout_cutoff(hours, rows, HOLDOUT_SHARE)
    if cutoff is None:
        raise ValueError("all rows are of one hour; ask for more rows")
    return cutoff
