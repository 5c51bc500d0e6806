"""What the tables know of earlier runs: of the models that serve, the newest fits, and the last run of a scope."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from group_models.live.sets import Live
from group_models.planning.incremental import PAST, History
from group_models.planning.source_checks import LastRun
from group_models.ports import Tables, Where
from group_models.tables import MANIFEST, NEW_MODEL, RUN

_MEASURED = (*NEW_MODEL, "rejected", "model_too_big")
"""Statuses of keys whose fit took as long as a fit takes; of one that was cut off nobody knows how many rows it had."""

_FITS_OF_KEY = 2
"""Fits per key up to which runs are read that do not serve: many scoped nights, or two full ones."""

_OF_FIT = ("run_id", "key_id", "status", "data_fingerprint", "spec_fingerprint", "usable_rows", "rows_used",
           "fit_seconds", "model_bytes", "finished_at", "policy", "n_parts")  # fmt: skip


def read_history(
    tables: Tables,
    model_set: str,
    live: Live,
    *,
    versions: Mapping[str, str],
    now: dt.datetime,
    retrain_all: bool = False,
) -> History:
    """Return what earlier runs say of the keys of a live set.

    The newest fit of a key is looked for in the run of its model, in its newest published one, and in the runs that
    finished last, published or not, as many as two fits of each key make.
    """
    serving = live.keys["model_run_id"]
    last = _last_finished(tables, model_set, fits=_FITS_OF_KEY * len(serving))
    runs = sorted({*serving.dropna(), *live.keys["newest_run_id"].dropna(), *last})
    if not runs:
        return History(History.none().keys, {}, versions, now, retrain_all)
    where: Where = {"model_set": [model_set], "run_id": runs}
    fits = tables.read(MANIFEST, columns=_OF_FIT, where={**where, "status": _MEASURED}).to_pandas()
    newest = _of_newest(fits)
    # Keys without a model, of a run that was not published; an outer join of a million keys would sort their ids.
    others = newest.index[~newest.index.isin(serving.index)]
    keys = _of_models(fits, serving).reindex(serving.index.append(others)).join(newest)[list(PAST)]
    started = tables.read(RUN, columns=["run_id", "versions"], where={**where, "event": ["started"]}).to_pylist()
    return History(keys, {row["run_id"]: dict(row["versions"] or {}) for row in started}, versions, now, retrain_all)


def _last_finished(tables: Tables, model_set: str, *, fits: int) -> list[str]:
    """Return the runs that finished last, newest first: the newest, and others while all have so many fits at most."""
    where: Where = {"model_set": [model_set], "event": ["finished"]}
    finished = tables.read(RUN, columns=["run_id", "at", "counts"], where=where).sort_by([("at", "descending")])
    counts = [dict(of_run or ()) for of_run in finished["counts"].to_pylist()]
    read = np.cumsum([sum(of_run.get(status, 0) for status in _MEASURED) for of_run in counts])
    return list(finished["run_id"].to_pylist()[: max(1, int(np.searchsorted(read, fits, side="right")))])


def _of_models(fits: pd.DataFrame, serving: pd.Series[str]) -> pd.DataFrame:
    """Return by key what is known of the model that serves it."""
    by_run = fits.drop_duplicates(["run_id", "key_id"]).set_index(["run_id", "key_id"])
    names = {"finished_at": "trained_at", "usable_rows": "trained_rows"}
    columns = ["finished_at", "data_fingerprint", "spec_fingerprint", "usable_rows"]
    found = by_run[columns].rename(columns=names).reindex(pd.MultiIndex.from_arrays([serving, serving.index]))
    return found.set_axis(serving.index).assign(model_run_id=serving)


def _of_newest(fits: pd.DataFrame) -> pd.DataFrame:
    """Return by key what its newest fit took."""
    newest = fits.sort_values("finished_at", kind="stable").drop_duplicates("key_id", keep="last").set_index("key_id")
    names = {"run_id": "fit_run_id", "spec_fingerprint": "fit_fingerprint", "rows_used": "fit_rows",
             "policy": "fit_policy", "n_parts": "fit_parts"}  # fmt: skip
    return pd.DataFrame(newest.rename(columns=names)[[*names.values(), "fit_seconds", "model_bytes"]])


def read_last_run(tables: Tables, model_set: str, scope: str | None, own_level: str | None = None) -> LastRun | None:
    """Return what the last finished run of a scope saw of the source, or None where there is none.

    Of runs that finished, the last is the one that finished last. Its keys are those of `own_level`, without parents;
    by default all.
    """
    where: Where = {"model_set": [model_set], "event": ["finished"], "scope": [scope]}
    finished = tables.read(RUN, columns=["run_id", "at", "source_stats"], where=where).sort_by("at")
    if not finished.num_rows:
        return None
    last = finished.slice(finished.num_rows - 1).to_pylist()[0]
    of_run: Where = {"model_set": [model_set], "run_id": [last["run_id"]]}
    of_keys: Where = {"level": [own_level]} if own_level else {}
    rows = tables.read(MANIFEST, columns=["key_id", "rows"], where={**of_run, **of_keys})
    keys: pa.Table = rows.filter(pc.greater(rows["rows"], 0))
    return LastRun(last["run_id"], dict(last["source_stats"] or {}), set(keys["key_id"].to_pylist()))
