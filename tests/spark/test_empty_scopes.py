"""Scopes and sources in which there is nothing to train: nothing is written for such a scope, no release is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from group_models import api, targets
from group_models.cli import main
from group_models.errors import DataError, SpecError
from group_models.loading import load_spec
from group_models.ports import SparkSession
from group_models.tables import RELEASE, RUN
from tests.cases.worlds import spec_of
from tests.spark.test_going_on import rows, spec

ROWS = "carrier string, x double, y double"


def written(asked: Any) -> list[int]:
    """Return how many rows the tables of runs and of releases have."""
    tables = targets.open_tables(load_spec(asked))
    return [tables.read(table).num_rows for table in (RUN, RELEASE)]


def test_a_scope_without_a_key_is_refused_and_leaves_nothing(any_spark: SparkSession, tmp_path: Path):
    asked = spec_of(any_spark.createDataFrame([("A", 1.0, 2.0)], ROWS), tmp_path)
    api.train(asked, spark=any_spark)
    before = written(asked)
    with pytest.raises(SpecError, match=r"where \"carrier = 'ZZ'\": it names no key that is in the data or has a mod"):
        api.train(asked, where="carrier = 'ZZ'", spark=any_spark)
    with pytest.raises(SpecError, match="keys: it names no key"):
        api.train(asked, keys=["carrier=ZZ"], spark=any_spark)
    assert written(asked) == before
    planned = api.plan(asked, where="carrier = 'ZZ'", spark=any_spark)
    assert [note for note in planned.notes if "`train` refuses where" in note]


def test_a_scope_of_a_key_that_is_gone_from_the_data_is_none_without_a_key(any_spark: SparkSession, tmp_path: Path):
    both = any_spark.createDataFrame([("A", 1.0, 2.0), ("B", 1.0, 2.0)], ROWS)
    asked = spec_of(both, tmp_path)
    api.train(asked, spark=any_spark)
    asked = {**asked, "source": both.where("carrier = 'A'")}
    run = api.train(asked, where="carrier = 'B'", spark=any_spark, accept_changes=True)
    assert run.counts == {"vanished": 1}


def test_where_no_key_failed_the_failed_ones_are_no_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pq.write_table(rows({"A": 1.0}), tmp_path / "rows.parquet")
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec({"path": "rows.parquet"}, "warehouse")), encoding="utf-8")
    assert main(["train", str(file)]) == 0
    assert main(["release", "list", str(file)]) == 0
    before = written(file)
    capsys.readouterr()
    assert main(["train", str(file), "--failed-only"]) == 0
    out, err = capsys.readouterr()
    assert "no key failed in its newest published run" in err
    assert "no: there was nothing to train" in out
    assert "the source has no rows" not in err
    assert written(file) == before


def test_a_pandas_source_without_rows_is_like_any_empty_source(any_spark: SparkSession, tmp_path: Path):
    frame = pd.DataFrame({"carrier": ["A"], "x": [1.0], "y": [2.0]})
    asked = spec_of(frame[:0], tmp_path)
    assert api.plan(asked, spark=any_spark).keys.num_rows == 0
    api.train({**asked, "source": frame}, spark=any_spark)
    with pytest.raises(DataError, match="it has no rows, and 1 keys had models before"):
        api.train(asked, spark=any_spark)
    with pytest.raises(SpecError, match="the source has no column 'carrier'"):
        api.plan({**asked, "source": pd.DataFrame()}, spark=any_spark)
