"""What of a source's file is refused before Spark is started."""

from pathlib import Path

import pandas as pd
import pytest

from group_models.checking import load_checked
from group_models.errors import DataError


def test_times_in_nanoseconds_are_refused_by_the_name_of_their_column_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame({"k": ["a"], "x": [1.0], "y": [2.0], "at": pd.to_datetime(["2026-03-01"]).astype("M8[ns]")})
    spec = {"model_set": "a.b.c", "source": {"path": str(path)}, "keys": ["k"], "target": "y", "features": ["x"],
            "estimator": "ridge", "time_column": "at"}  # fmt: skip
    frame.to_parquet(path)
    with pytest.raises(DataError, match=r"reads no nanoseconds \('at'\); .*coerce_timestamps='us'"):
        load_checked(spec)
    frame.to_parquet(path, coerce_timestamps="us", allow_truncated_timestamps=True)
    assert load_checked(spec).time_column == "at"
