"""What the cases share: a spec to vary, small worlds, the three ways to score, and one unit without Spark."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from group_models import api, targets
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import make_family
from group_models.fitting.outcomes import FitSettings
from group_models.fitting.units import fit_unit
from group_models.keys import key_id
from group_models.loading import load_spec
from group_models.mlmodel import MlmodelTemplate
from group_models.payloads import unpack
from tests.worlds import through_pandas

MODEL_SET = "zrl.ml.eta"

ENGINES = ("narrow", "wide", "pandas")
"""The ways to score: Spark rows that cross pandas whole, Spark rows that stay in the JVM, and a pandas frame."""

FAULTS = {"fit": 1, "evaluate": 2, "refit": 3, "serialize": 4, "long": 5}
"""Keys of the world `fates` that fail, each in its own way, and the number that tells the estimator how."""

GOOD = [f"good{i:02d}" for i in range(20)]
"""Its keys that are trained."""


@dataclasses.dataclass(frozen=True)
class World:
    """A trained and released model set."""

    spec: dict[str, Any]
    frame: Any
    run: Any

    def copied_to(self, folder: Path) -> dict[str, Any]:
        """Return the spec over a copy of the tables, to be damaged at will."""
        shutil.copytree(self.spec["warehouse"], folder / "warehouse")
        return {**self.spec, "warehouse": str(folder / "warehouse")}


def spec_of(source: Any, folder: Path, **changes: Any) -> dict[str, Any]:
    """Return a spec: the median of `y` per carrier on all rows, its tables in a folder, two slots."""
    return {
        "model_set": MODEL_SET,
        "source": source,
        "keys": ["carrier"],
        "target": "y",
        "features": ["x"],
        "estimator": "median",
        "holdout": {"by": "none"},
        "limits": {"min_rows": 1},
        "compute": {"slots": 2},
        "warehouse": str(folder / "warehouse"),
        **changes,
    }


def trained(frame: Any, folder: Path, **changes: Any) -> World:
    """Train and release what a spec says of a Spark frame."""
    spec = spec_of(frame, folder, **changes)
    return World(spec, frame, api.train(spec, spark=frame.sparkSession))


def tables_of(spec: dict[str, Any]) -> Any:
    """Return the tables of a spec."""
    return targets.open_tables(load_spec(spec))


def by_key(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Return manifest rows by key: its value where there is one key column, else the tuple of its values."""
    keys = [tuple(row["key"].values()) for row in rows]
    assert len(set(keys)) == len(keys)
    return {key if len(key) > 1 else key[0]: row for key, row in zip(keys, rows, strict=True)}


def scored(engine: str, frame: Any, spec: Any, **options: Any) -> pd.DataFrame:
    """Score a Spark frame in one of the three ways."""
    if engine == "pandas":
        return api.score(frame.toPandas(), spec, **options)
    with through_pandas():
        return api.score(frame if engine == "narrow" else widened(frame), spec, **options).toPandas()


def widened(frame: Any) -> Any:
    """Add a column that cannot cross pandas, so that passed columns stay in the JVM."""
    from pyspark.sql import functions as F

    return frame.withColumn("tags", F.array(F.lit("x")))


def values(frame: pd.DataFrame, name: str = "prediction", *, by: str = "row_id") -> dict[Any, Any]:
    """Return a column as a dictionary by row id; null is None."""
    assert frame[by].is_unique
    return {row: None if pd.isna(value) else value for row, value in zip(frame[by], frame[name], strict=True)}


def fit_keys(
    x: pd.DataFrame,
    y: Any,
    *,
    keys: Any = None,
    is_holdout: Any = None,
    estimator: EstimatorSettings,
    text: tuple[str, ...] = (),
    refit: bool = True,
) -> list[dict[str, Any]]:
    """Fit one unit without Spark and return its rows as dictionaries, one per key in order of appearance.

    Parameters
    ----------
    keys
        Key per row; all rows are one key by default.
    is_holdout
        Flag per row; no holdout by default.
    """
    names = np.array(["one"] * len(x) if keys is None else keys, dtype=object)
    index, distinct = pd.factorize(names)
    kinds = {name: "text" if name in text else "numeric" for name in x.columns}
    columns = {f"f{i}": x[name].to_numpy() for i, name in enumerate(kinds)}
    held = np.zeros(len(x), dtype=bool) if is_holdout is None else np.asarray(is_holdout)
    frame = pd.DataFrame(
        {"key_index": index, "time_us": np.arange(len(x)), "row_hash": np.arange(len(x)), "is_holdout": held, "y": y}
        | columns
    )
    references = pd.DataFrame(
        {
            "key_index": np.arange(len(distinct)),
            "key_id": [key_id((name,)) for name in distinct],
            "key": [json.dumps({"carrier": name}) for name in distinct],
            "unit": 0,
        }
    )
    features = Features(tuple(n for n in kinds if n not in text), text, tuple(kinds))
    family = make_family(estimator, features)
    settings = FitSettings(
        model_set=MODEL_SET,
        run_id="r1",
        features=kinds,
        estimator=estimator,
        template=MlmodelTemplate.build(
            model_set=MODEL_SET, run_id="r1", features=features, flavor=family.flavor, estimator=family.name
        ),
        refit=refit,
        metric=estimator.metric or "mae",
        seed=7,
        max_model_bytes=2**20,
        holdout_by="none" if is_holdout is None else "hash",
        holdout_share=0.2,
        holdout_from_us=None,
    )
    return fit_unit(frame, references, settings).to_dict("records")


def unpickled(row: dict[str, Any]) -> Any:
    """Return the estimator in a row of the store."""
    return pickle.loads(unpack(row["data"], row["data_file"])[0])
