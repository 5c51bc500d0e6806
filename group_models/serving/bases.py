"""The models that others build on among those that an input needs: in front of them, so that they are there first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from group_models.serving.statuses import NO_MODEL

MODELS = pa.schema({
    "run_id": pa.string(), "key_id": pa.string(), "number": pa.int64(), "sha256": pa.string(),
    "model_bytes": pa.int64(), "model_ix": pa.int32(), "run_ix": pa.int32(), "parent_ix": pa.int32(),
    "is_base": pa.int32(),
})  # fmt: skip
"""The models of a `ScorePlan`."""

_PLACE = ["run_id", "key_id"]


def has_base(known: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return where what a model builds on is stored too, or it builds on nothing."""
    if "parent_run_id" not in known:
        return np.ones(len(known), dtype=np.bool_)
    return np.asarray(known["parent_run_id"].isna() | known["parent_number"].notna(), dtype=np.bool_)


def bases_first(served: pd.DataFrame, known: pd.DataFrame) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Return all models that are needed, those that others build on first, and where those that serve keys are.

    Parameters
    ----------
    served
        The models that serve keys: `run_id, key_id, number, sha256, model_bytes`.
    known
        Of each its row of the live set.
    """
    bases = _bases(known)
    if bases.empty:
        return served.assign(parent_ix=NO_MODEL, is_base=0), np.arange(len(served))
    place_of = pd.MultiIndex.from_frame(bases[_PLACE])
    as_base = place_of.get_indexer(pd.MultiIndex.from_frame(served[_PLACE]))
    parents = pd.MultiIndex.from_arrays([known["parent_run_id"], known["parent_key_id"]])
    served = served.assign(parent_ix=place_of.get_indexer(parents), is_base=0)
    rest = served[as_base < 0]
    table = pd.concat([bases.assign(parent_ix=NO_MODEL, is_base=1), rest], ignore_index=True)
    places = np.where(as_base < 0, len(bases) + np.cumsum(as_base < 0) - 1, as_base)
    return table, places.astype(np.int64)


def _bases(known: pd.DataFrame) -> pd.DataFrame:
    """Return the models that these build on, each once."""
    if "parent_run_id" not in known:
        return pd.DataFrame(columns=[*_PLACE, "number", "sha256", "model_bytes"])
    children = known[known["parent_run_id"].notna()]
    columns = {"parent_run_id": "run_id", "parent_key_id": "key_id", "parent_number": "number",
               "parent_sha256": "sha256", "parent_model_bytes": "model_bytes"}  # fmt: skip
    found = children[list(columns)].rename(columns=columns).reset_index(drop=True)
    found = found.drop_duplicates(_PLACE).sort_values(_PLACE)
    number, size = found["number"].astype(np.int64), found["model_bytes"].fillna(0).astype(np.int64)
    return found.assign(number=number, model_bytes=size)
