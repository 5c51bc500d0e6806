"""Which keys keep the model that they have: same data, same spec, or too little news. Pure rules on columns."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from group_models.errors import StateError
from group_models.planning.plans import FITTED
from group_models.spec import RetrainWhen, Spec
from group_models.tables import utc_now
from group_models.versions import differing

Texts: TypeAlias = npt.NDArray[np.object_]
Flags: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Predicted: TypeAlias = Callable[[npt.NDArray[np.int64]], Floats]

PAST = ("model_run_id", "trained_at", "data_fingerprint", "spec_fingerprint", "trained_rows",
        "fit_run_id", "fit_fingerprint", "fit_rows", "fit_policy", "fit_parts",
        "fit_seconds", "model_bytes")  # fmt: skip
"""What is known of a key from earlier runs: of the model that serves it (its run, when it was trained, on which data,
by which spec, on how many usable rows), and of the newest row in which it was fitted (with what policy, in how many
parts, of which `fit_seconds` and `model_bytes` are the sums)."""


@dataclasses.dataclass(frozen=True)
class History:
    """What earlier runs say of the keys, and what tonight's run compares it with.

    Attributes
    ----------
    keys
        By key id, columns `PAST`; null where nothing is known.
    run_versions
        Per run, the library versions that it was started with.
    versions
        Library versions now.
    now
        When models have the age that counts.
    retrain_all
        No key keeps its model.
    """

    keys: pd.DataFrame
    run_versions: Mapping[str, Mapping[str, str]]
    versions: Mapping[str, str]
    now: dt.datetime
    retrain_all: bool = False

    @classmethod
    def none(cls) -> History:
        """Return the history before the first run."""
        return cls(pd.DataFrame(columns=list(PAST), index=pd.Index([], dtype=object)), {}, {}, utc_now())

    def of(self, key_ids: pa.ChunkedArray) -> pd.DataFrame:
        """Return one row per key, in the order of the keys."""
        return self.keys.reindex(key_ids.to_pandas())


def library_changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the libraries of which another version (major.minor) counts, one text each.

    Examples
    --------
    >>> library_changes({"numpy": "2.2.6", "pandas": "2.3.1"}, {"numpy": "2.3.1", "pandas": "2.3.3"})
    ['numpy 2.2.6 -> 2.3.1']
    """
    changed = differing(then, now, sorted({*then, *now}))
    return [f"{name} {then.get(name, 'none')} -> {now.get(name, 'none')}" for name in changed]


def kept_models(sizes: pa.Table, decision: Texts, history: History, spec: Spec) -> Texts:
    """Return per key why it keeps its model, None where it does not.

    Parameters
    ----------
    sizes
        As `planning.plan_keys` takes them.
    decision
        What the key's size asks for; only keys that would be fitted can keep their model instead.

    Raises
    ------
    StateError
        `on_library_change: refuse`, and models of keys in the data were trained under other versions.
    """
    kept: Texts = np.full(sizes.num_rows, None, dtype=object)
    if history.retrain_all or history.keys.empty:
        return kept
    known = history.of(sizes["key_id"])
    could_be_kept = np.isin(decision.astype(str), FITTED) & known["model_run_id"].notna().to_numpy()
    libraries = _libraries(known["model_run_id"], history)
    if spec.on_library_change == "refuse":
        _refuse_other_libraries(libraries[could_be_kept])
    could_be_kept &= has_spec(known["model_run_id"], known["spec_fingerprint"], history, spec)
    could_be_kept &= ~is_due(known, history, spec.retrain_when.max_age_days)
    if spec.on_library_change != "keep":
        could_be_kept &= libraries == ""
    said = _news(sizes, known, spec.retrain_when)
    for place in np.flatnonzero(could_be_kept & (said != "")) if _is_versioned(spec) else ():
        kept[place] = said[place] + (f"; trained with {libraries[place]}" if libraries[place] else "")
    return kept


def _is_versioned(spec: Spec) -> bool:
    """Return whether equal specs mean equal code: an object without a version may have changed unseen."""
    return all(each.object is None or each.version is not None for each in (spec.estimator, *spec.others))


def has_spec(run_ids: pd.Series[Any], fingerprints: pd.Series[Any], history: History, spec: Spec) -> Flags:
    """Return where a row of these runs was made by the present spec, whatever the libraries were then."""
    expected = {run_id: spec.fingerprint(history.run_versions.get(run_id, {})) for run_id in run_ids.dropna().unique()}
    return np.asarray(run_ids.map(expected).to_numpy(object) == fingerprints.to_numpy(object), dtype=np.bool_)


def _libraries(run_ids: pd.Series[Any], history: History) -> Texts:
    """Return per key which libraries have other versions than its model was trained with, empty for none."""
    changes = {
        run_id: ", ".join(library_changes(history.run_versions.get(run_id, {}), history.versions))
        for run_id in run_ids.dropna().unique()
    }
    return np.asarray(run_ids.map(changes).fillna("").to_numpy(object))


def _refuse_other_libraries(libraries: Texts) -> None:
    counts = Counter(said for said in libraries if said)
    if counts:
        named = "; ".join(f"{said} ({count:,} keys)" for said, count in counts.most_common())
        raise StateError(
            f"models were trained with other library versions, and the spec says `on_library_change: refuse`: {named}. "
            "Nothing was trained. Say `on_library_change: retrain` or `keep`, or train all keys with `--retrain-all`"
        )


def due_days(key_ids: Sequence[str], max_age_days: float) -> Floats:
    """Return the age at which each key is trained again: from half of `max_age_days` up to it, spread by key id.

    Examples
    --------
    >>> due_days(["00000000ab", "80000000ab"], 10.0).tolist()
    [5.0, 7.5]
    """
    share = np.array([int(key_id[:8], 16) for key_id in key_ids], dtype=np.float64) / 2**32
    return np.asarray(max_age_days * (1 + share) / 2)


def is_due(known: pd.DataFrame, history: History, max_age_days: float | None) -> Flags:
    """Return which models are so old that their key is trained again in any case."""
    if max_age_days is None:
        return np.zeros(len(known), dtype=np.bool_)
    trained_at = pd.to_datetime(known["trained_at"], utc=True)
    age = ((pd.Timestamp(history.now) - trained_at) / pd.Timedelta(days=1)).to_numpy(np.float64)
    return np.asarray(age >= due_days(list(known.index), max_age_days), dtype=np.bool_)


def _news(sizes: pa.Table, known: pd.DataFrame, asked: RetrainWhen) -> Texts:
    """Return per key why its data call for no training, empty where they do.

    News are rows added. Where rows are gone or as many as before, rows were changed or replaced: how many cannot
    be told, so such a key is trained.
    """
    same = sizes["data_fingerprint"].to_pandas().to_numpy(object) == known["data_fingerprint"].to_numpy(object)
    said: Texts = np.where(same, "same data and spec as its model", "").astype(object)
    if asked.min_new_rows is None and asked.min_new_share is None:
        return said
    before = known["trained_rows"].astype("float64").to_numpy()
    added = sizes["usable_rows"].to_numpy() - before
    # A fingerprint of null says that nobody knows what the model was trained on.
    is_little = ~same & known["data_fingerprint"].notna().to_numpy() & (added > 0)
    is_little &= (added < (asked.min_new_rows or 0)) | (added < (asked.min_new_share or 0.0) * before)
    for place in np.flatnonzero(is_little):
        said[place] = _too_little(int(added[place]), int(before[place]), asked)
    return said


def _too_little(added: int, before: int, asked: RetrainWhen) -> str:
    wanted = [f"{name} {value:g}" for name, value in asked if value is not None and name != "max_age_days"]
    return f"{added:,} new rows ({added / before:.2%} of {before:,}) are too little news for {' and '.join(wanted)}"


def cost_factors(
    key_ids: pa.ChunkedArray,
    is_distributed: Flags,
    history: History,
    spec: Spec,
    seconds: Predicted,
    model_bytes: Predicted,
    *,
    slots: int,
) -> tuple[Floats, Floats]:
    """Return per key what to multiply the predicted seconds and model bytes of one fit by, by what the newest took.

    So a key costs what it cost, and more or less as its rows have grown since. A fit by another spec tells nothing.
    Like is compared with like: what a key took in parts with what is predicted for so many parts. Seconds of a
    distributed fit are those of all slots together, and tell nothing of a fit on one; without them, a key that is
    distributed now takes its share of the slots' time.

    Parameters
    ----------
    is_distributed
        Which keys are to be distributed, over `slots`.
    seconds, model_bytes
        What is predicted for fits of so many rows.
    """
    fair = np.where(is_distributed, 1 / slots, 1.0)
    if history.keys.empty:
        return fair, np.ones(len(key_ids))
    known = history.of(key_ids)
    is_alike = has_spec(known["fit_run_id"], known["fit_fingerprint"], history, spec)
    rows = known["fit_rows"].astype("float64").fillna(0.0).to_numpy()
    parts = known["fit_parts"].astype("float64").fillna(1.0).to_numpy()
    was_distributed = (known["fit_policy"] == "distributed").to_numpy(np.bool_)
    factors, fair[is_distributed & was_distributed] = [], 1.0
    tells = {"fit_seconds": is_alike & (is_distributed | ~was_distributed), "model_bytes": is_alike}
    for name, predicted in (("fit_seconds", seconds), ("model_bytes", model_bytes)):
        took = known[name].astype("float64").to_numpy()
        expected = predicted(np.ceil(rows / parts).astype(np.int64)) * parts
        is_known = tells[name] & (rows > 0) & (took > 0) & (expected > 0)
        unknown = np.where(is_distributed, 1 / slots, 1.0) / fair if name == "fit_seconds" else np.ones(len(rows))
        factors.append(np.divide(took, expected, out=unknown, where=is_known))
    return factors[0] * fair, factors[1]


def library_note(unchanged: pa.ChunkedArray, history: History) -> str | None:
    """Return a sentence on kept models that were trained with other library versions, None where there are none."""
    libraries = _libraries(history.of(unchanged)["model_run_id"], history)
    counts = Counter(said for said in libraries if said)
    if not counts:
        return None
    named = "; ".join(f"{count:,} with {said}" for said, count in counts.most_common())
    return f"{counts.total():,} keys keep models of other library versions (on_library_change: keep): {named}"
