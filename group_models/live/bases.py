"""The parents that live models build on: which model of theirs, and where it is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

OF_BASE = ("number", "sha256", "model_bytes")
"""What is known of a parent's model, in the columns `parent_...` of its children's rows."""


def with_bases(
    keys: pd.DataFrame, of_models: Callable[[Sequence[str]], pd.DataFrame]
) -> tuple[pd.DataFrame, list[str]]:
    """Return live keys with `parent_number`, `parent_sha256` and `parent_model_bytes`, and the runs of those parents.

    Parameters
    ----------
    keys
        Live keys with `parent_key_id` and `parent_run_id` of the models that build on a parent's.
    of_models
        What is known of the models of these runs, by run and key.
    """
    runs = sorted(set(keys["parent_run_id"].dropna()))
    described = of_models(runs) if runs else None
    at = pd.MultiIndex.from_arrays([keys["parent_run_id"], keys["parent_key_id"]])
    found = None if described is None else described.reindex(at)
    columns = {f"parent_{name}": None if found is None else found[name].array for name in OF_BASE}
    return keys.assign(**columns), runs
