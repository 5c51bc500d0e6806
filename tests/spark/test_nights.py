"""A soak: simulated nights, each with the manifest and the live set that a plain model of it says."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from group_models import api, targets
from group_models.errors import DataError
from group_models.live.sets import read_live
from group_models.loading import load_spec
from group_models.ports import SparkSession
from group_models.tables import MANIFEST, PLAN, RUN, STORE, WHOLE
from tests import nights
from tests.nights import Expected, Feed, Night, Row
from tests.spark.test_kills import driver

OUTCOMES = {"trained", "unchanged", "failed", "vanished", "too_small", "refused", "not released", "salted"}
"""What the nights of a soak must have seen, each at least once."""


class House:
    """The model set over its nights; `train` is one attempt of a night, for those who want to disturb it."""

    def __init__(self, spark: SparkSession, warehouse: Path) -> None:
        self.spark, self.warehouse = spark, warehouse

    def spec(self, night: Night) -> dict[str, Any]:
        return nights.spec(self.spark.createDataFrame(nights.table(night)), self.warehouse)

    def train(self, night: Night, run_id: str) -> Any:
        return api.train(self.spec(night), run_id=run_id, spark=self.spark)

    def rows(self, run_id: str) -> dict[str, Row]:
        found = api.show(nights.MODEL_SET, run_id=run_id, warehouse=str(self.warehouse))
        return {
            r["key"]["key"]: Row(r["status"], r["serves"], r["model_run_id"], r["rows"], r["policy"]) for r in found
        }

    def live(self) -> dict[str, str]:
        tables = targets.open_tables(load_spec(nights.spec({"path": "x"}, self.warehouse)))
        live = read_live(tables, nights.MODEL_SET)
        keys = {key_id: key["key"] for key_id, key in live.keys["key"].items()}
        return {keys[key_id]: run_id for key_id, run_id in live.models().items()}

    def stored(self, run_id: str) -> tuple[int, int]:
        """Return how many keys a run planned and of how many it has an outcome, parts apart."""
        tables = targets.open_tables(load_spec(nights.spec({"path": "x"}, self.warehouse)))
        where = {"model_set": [nights.MODEL_SET], "run_id": [run_id]}
        outcomes = tables.read(STORE, columns=["key_id"], where={**where, "part": [WHOLE]})
        return tables.read(PLAN, where=where).num_rows, outcomes.num_rows


def soak(house: House, count: int, seed: int) -> Counter[str]:
    """Live through so many nights and return how often each outcome came up."""
    feed, expected, seen = Feed(seed), Expected(), Counter[str]()
    for number in range(count):
        run_id = f"night-{number}"
        half = feed.half()
        if half is not None and expected.is_refused(half):
            seen["refused"] += 1
            with pytest.raises(DataError, match=r"looks half-loaded.*max_vanished_share 50%"):
                house.train(half, run_id)
            assert house.stored(run_id) == (0, 0)
            assert house.live() == expected.live()
        run = house.train(feed.now, run_id)
        rows = expected.manifest(feed.now, run_id)
        assert house.rows(run_id) == rows
        tried = sum(row.status in ("trained", "failed") for row in rows.values())
        assert house.stored(run_id) == (len(rows), tried)
        is_published = expected.finish(feed.now, run_id)
        seen["not released"] += not is_published
        assert (run.release_id is not None, run.refusal is None) == (is_published, is_published)
        assert house.live() == expected.live()
        seen.update(row.status for row in rows.values())
        seen["salted"] += sum((row.status, row.policy) == ("trained", "salted") for row in rows.values())
        feed.turn()
    return seen


def test_five_nights_leave_exactly_what_a_plain_model_says(spark: SparkSession, tmp_path: Path, counted: Counter[str]):
    seen = soak(House(spark, tmp_path), 5, seed=260)
    counted.update({"nights": 5, **seen})
    assert set(+seen) == OUTCOMES


class KilledHouse(House):
    """On some nights the driver is killed with SIGKILL at a random moment before the night is trained again.

    Those nights have a wave for each unit, so that there are many moments.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        super().__init__(spark, folder / "warehouse")
        self._folder = folder
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self.kills: Counter[str] = Counter()

    def spec(self, night: Night, **changes: Any) -> dict[str, Any]:
        rows = self._folder / "rows.parquet"
        pq.write_table(nights.table(night), rows)
        return nights.spec({"path": str(rows)}, self.warehouse, **changes)

    def train(self, night: Night, run_id: str) -> Any:
        if self._random.random() < 0.3:
            self._kill(night, run_id)
        return super().train(night, run_id)

    def _kill(self, night: Night, run_id: str) -> None:
        before, wanted = len(self._written()), self._random.randint(1, 12)
        spec = self.spec(night, compute={"slots": 2, "wave_s": 1e-6})
        with driver(spec, self._folder, run_id=run_id) as process:
            while process.poll() is None and len(self._written()) < before + wanted:
                time.sleep(0.005)
            is_killed = process.poll() is None
        left = {table.name: bool(self._commits(table.name, run_id)) for table in (RUN, PLAN, STORE, MANIFEST)}
        last = [name for name, is_there in left.items() if is_there]
        self.kills[f"killed after {last[-1] if last else 'nothing'}" if is_killed else "ended by itself"] += 1

    def _written(self) -> list[Path]:
        """Return the commits and the folders of writers at work."""
        return [path for path in self.warehouse.glob("zrl/ml/*/*/*/*") if path.is_dir()]

    def _commits(self, table: str, run_id: str) -> list[Path]:
        return [path for path in self.warehouse.glob(f"zrl/ml/{table}/*/{run_id}/*") if path.name.isdigit()]


@pytest.mark.slow
def test_thirty_nights_of_which_some_are_killed_leave_exactly_what_a_plain_model_says(
    spark: SparkSession, tmp_path: Path, counted: Counter[str]
):
    house = KilledHouse(spark, tmp_path, seed=5)
    seen = soak(house, 30, seed=4)
    counted.update({"nights": 30, **house.kills, **seen})
    assert set(+seen) == OUTCOMES
    assert sum(count for moment, count in house.kills.items() if moment.startswith("killed")) >= 5
