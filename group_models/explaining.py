"""Why a key's model predicts what it does: what each feature adds to the predictions of single rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from group_models import artifacts
from group_models.api import find_served, session
from group_models.errors import DataError, ModelError, SpecError
from group_models.estimators.base import one_thread
from group_models.estimators.contributions import contributions
from group_models.frames import ColumnKind, feature_frame, key_values
from group_models.keys import KeyKind, KeyTexts, key_text, show_key
from group_models.live.sets import Alias
from group_models.targets import SpecLike

BASE, CONTRIBUTION = "base_value", "contribution_"
"""The column of what is predicted before any feature counts, and what stands before each feature's name."""


@dataclasses.dataclass(frozen=True)
class _Served:
    """The model that serves a key: its row of the store, what it reads, and the key itself."""

    row: Mapping[str, Any]
    features: Mapping[str, ColumnKind]
    key: KeyTexts
    kinds: Mapping[str, KeyKind]


def explain(
    frame: pd.DataFrame,
    spec: SpecLike,
    *,
    key: str | Mapping[str, Any] | None = None,
    alias: Alias | None = None,
    run_id: str | None = None,
    warehouse: str | None = None,
    **key_columns: Any,
) -> pd.DataFrame:
    """Return, for rows of one key, the prediction, a base value, and what each feature adds to it.

    Parameters
    ----------
    frame
        Rows with the features; where it has the key's columns, only its rows of that key are explained.
    key
        As for `load_model`; or the key's columns by name.

    Returns
    -------
    Under the frame's index: `prediction`, `base_value` and a `contribution_...` per feature; the last ones sum to the
    prediction, to nine digits (of xgboost, which computes in single precision, to five). `contribution_(parent)` is
    what a model that builds on a parent's makes of the parent's prediction as such.

    Raises
    ------
    ModelError
        Of such a model no contributions are known that sum to the prediction.
    DataError
        The frame lacks a feature, or has no row of the key.
    """
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"a {type(frame).__name__} is not explained; filter it and call toPandas() on it")
    if key is None and not key_columns:
        raise SpecError(["no key is named; give its columns, or key="], where="the call")
    served = _served(spec, key if key is not None else key_columns, alias, run_id, warehouse)
    return explained(_of_key(frame, served), served.row, served.features, show_key(served.key))


def explain_input(
    source: str,
    spec: SpecLike,
    *,
    key: str,
    rows: int,
    alias: Alias | None = None,
    run_id: str | None = None,
    warehouse: str | None = None,
) -> list[dict[str, Any]]:
    """Return the first rows of a key in a path or table: their features, and what `explain` says of them.

    Spark is started only where the input is no local one of Parquet files.
    """
    served = _served(spec, key, alias, run_id, warehouse)
    frame = _read(source, served, rows)
    found = explained(_of_key(frame, served), served.row, served.features, show_key(served.key))
    names = [name for name in found.columns if name.startswith(CONTRIBUTION)]
    return [
        {
            "features": {name: _plain(frame[name][at]) for name in served.features},
            "prediction": _plain(found["prediction"][at]),
            BASE: _plain(found[BASE][at]),
            "contributions": {name.removeprefix(CONTRIBUTION): _plain(found[name][at]) for name in names},
        }
        for at in found.index
    ]


def explained(
    frame: pd.DataFrame, row: Mapping[str, Any], features: Mapping[str, ColumnKind], label: str
) -> pd.DataFrame:
    """Return what the model in a row of the store says of the rows of a frame; see `explain`."""
    x = feature_frame(frame, features)
    what = f"the model of key {label} of run {row['run_id']}"
    stored = {name: row[name] for name in ("format", "data_file", "sha256")}
    with one_thread():
        model = artifacts.load_model(row["data"], what=what, **stored)
        try:
            found = contributions(model.predictor, x)
        except ModelError as e:
            raise ModelError(f"{what}: {e}") from e
        columns = {"prediction": model.predict(x), BASE: found.base}
    columns |= {CONTRIBUTION + name: values for name, values in found.of.items()}
    return pd.DataFrame(columns).set_index(frame.index)


def _served(
    spec: SpecLike, key: str | Mapping[str, Any], alias: Alias | None, run_id: str | None, warehouse: str | None
) -> _Served:
    row, live, asked = find_served(spec, key, alias=alias, run_id=run_id, warehouse=warehouse)
    return _Served(row, live.run_features[row["run_id"]], asked, live.key_kinds)


def _of_key(frame: pd.DataFrame, served: _Served) -> pd.DataFrame:
    """Return the rows of the key, all of them where the frame has none of its columns."""
    is_own = np.ones(len(frame), dtype=bool)
    for name in served.key:
        if name in frame.columns:
            texts = [key_text(value) for value in key_values(frame[name], served.kinds[name])]
            is_own &= np.array([text == served.key[name] for text in texts], dtype=bool)
    if not is_own.any():
        raise DataError(f"the input has no row of key {show_key(served.key)}; name another key or input")
    return frame[is_own]


def _read(source: str, served: _Served, rows: int) -> pd.DataFrame:
    from group_models.adapters.parquet_rows import read_rows

    columns: Sequence[str] = list(dict.fromkeys([*served.key, *served.features]))
    if Path(source).exists() and (Path(source).is_dir() or source.endswith(".parquet")):
        found = read_rows(source, [served.key], served.kinds, columns)
        return found.head(rows).reset_index(drop=True)
    from group_models.adapters.spark_output import read_input
    from group_models.adapters.spark_rows import rows_of_key

    return rows_of_key(read_input(session(), source), served.key, columns, rows)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: None for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
