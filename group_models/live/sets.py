"""The live set as it is in the tables: which model serves each key of an alias, and what is known of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from group_models.errors import DataError, StateError
from group_models.frames import ColumnKind
from group_models.keys import KeyKind, key_json, show_key
from group_models.labels import Labels, union
from group_models.levels import Levels
from group_models.libraries import Versions, needed
from group_models.live import releases
from group_models.live.bases import with_bases
from group_models.live.cleans import check_kept, cleaned_text
from group_models.live.folding import live_set
from group_models.live.manifest import first_rows
from group_models.live.widths import levels_of, with_widths
from group_models.ports import LOG_OWNER, Tables, Where
from group_models.tables import MANIFEST, NEW_MODEL, RELEASE, RUN, STORE, WHOLE

Alias = Literal["champion", "challenger"]

T = TypeVar("T")

_FOLDED = ("run_id", "key_id", "status", "serves", "model_run_id", "level", "key", "parent_key_id", "parent_run_id")
_OF_MODEL = ("run_id", "key_id", "finished_at", "sha256", "model_bytes", "parent_key_id", "parent_run_id", "interval")


@dataclasses.dataclass(frozen=True)
class Live:
    """Which model serves each key.

    Attributes
    ----------
    keys
        By `key_id`: `model_run_id` (None where no own model serves), `status` and `newest_run_id` of the newest
        published row, `is_pinned`, `level`, `key` (dict), `key_json`, `trained_at`, `sha256`,
        `model_bytes`, and `number`, the commit of the model in the store (null where it is not there); of a model
        that builds on a parent's, `parent_key_id`, `parent_run_id`, `parent_number`, `parent_sha256` and
        `parent_model_bytes` of that one.
    run_features
        Per run that trained a live model, its feature columns and their kinds, in order.
    key_kinds
        The key columns and what their values are.
    run_libraries
        Per such run, the library versions that it was trained with, and those that its models need.
    pinned
        Key id to the run that it is pinned to.
    parents
        The columns of the levels whose models serve keys without one, as the newest run that counts and answers for
        all keys has them.
    run_labels
        Per run that trained a live model of classes, its labels as `Labels.to_json` writes them.
    intervals
        The levels of which scored rows get bounds: those of the specs of the runs that trained live models.
    """

    keys: pd.DataFrame
    run_features: Mapping[str, Mapping[str, ColumnKind]]
    key_kinds: Mapping[str, KeyKind]
    run_libraries: Mapping[str, tuple[Versions, tuple[str, ...]]] = dataclasses.field(default_factory=dict)
    pinned: Mapping[str, str] = dataclasses.field(default_factory=dict)
    parents: Sequence[Sequence[str]] = ()
    run_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    intervals: Sequence[float] = ()

    @functools.cached_property
    def labels(self) -> Labels | None:
        """The labels that the probabilities of scored rows stand under; None where models predict numbers.

        Raises
        ------
        DataError
            Some models predict numbers and others classes.
        """
        others = sorted(set(self.run_features) - set(self.run_labels))
        if others and self.run_labels:
            raise DataError(
                f"the live models of run {others[0]} predict numbers and those of run {min(self.run_labels)} classes; "
                "retrain the others, or roll back"
            )
        return union(Labels.parse(self.run_labels[run_id]) for run_id in sorted(self.run_labels))

    @property
    def levels(self) -> Levels:
        """The levels of the model set."""
        return Levels(self.key_kinds, tuple(map(tuple, self.parents)))

    def models(self) -> dict[str, str]:
        """Return key id to the run of the model that serves it, keys without one left out."""
        served = self.keys["model_run_id"].dropna()
        return dict(zip(served.index, served, strict=True))

    def bases(self) -> dict[str, tuple[str, str]]:
        """Return key id to the key and the run of the parent that its model builds on, those alone that do."""
        children = self.keys[self.keys["parent_run_id"].notna()] if "parent_run_id" in self.keys else self.keys[:0]
        if children.empty:
            return {}
        pairs = zip(children["parent_key_id"], children["parent_run_id"], strict=True)
        return dict(zip(children.index, pairs, strict=True))

    def own_keys(self) -> pd.DataFrame:
        """Return the rows of the keys, without those of their parents."""
        return self.keys[self.keys["level"] == self.levels.own]

    def ages(self, now: dt.datetime) -> dict[str, float]:
        """Return key id to the age in days of the model that serves it, keys without one left out."""
        ages = pd.Series(age_days(self.keys["trained_at"], now), self.keys.index).dropna()
        return {str(key_id): float(age) for key_id, age in ages.items()}

    def features(self, runs: Sequence[str]) -> dict[str, ColumnKind]:
        """Return all feature columns that the models of these runs need.

        Raises
        ------
        DataError
            Two runs were trained on one column in two kinds.
        """
        union: dict[str, ColumnKind] = {}
        for run_id in runs:
            for name, kind in self.run_features[run_id].items():
                if union.setdefault(name, kind) != kind:
                    raise DataError(
                        f"feature column {name!r} is {union[name]} in some live models and {kind} in those of run "
                        f"{run_id}; retrain the others, or roll back"
                    )
        return union


def age_days(trained_at: pd.Series, now: dt.datetime) -> npt.NDArray[np.float64]:
    """Return the age in days of models that were trained at these moments, NaN for none."""
    age = (pd.Timestamp(now) - pd.to_datetime(trained_at, utc=True)) / pd.Timedelta(days=1)
    return np.asarray(age, dtype=np.float64)


def read_releases(tables: Tables, model_set: str) -> list[releases.Release]:
    """Return the release log of a model set, oldest first."""
    return releases.releases_from(tables.read(RELEASE, where={"model_set": [model_set]}))


def newest_release(tables: Tables, model_set: str) -> str | None:
    """Return the id of the newest row of the release log, None before the first."""
    log = read_releases(tables, model_set)
    return log[-1].release_id if log else None


def read_runs(tables: Tables, model_set: str) -> pa.Table:
    """Return the `started` rows of a model set's runs."""
    return tables.read(RUN, where={"model_set": [model_set], "event": ["started"]})


def read_live(
    tables: Tables, model_set: str, alias: Alias = "champion", as_of: str | dt.datetime | None = None
) -> Live:
    """Return the live set of an alias, folded from the release log, now or as of a release or a moment.

    Raises
    ------
    StateError
        There is no such release, or a clean has removed models that served then.
    """

    def read(log: Sequence[releases.Release]) -> Live:
        check_kept(log, sorted({releases.CHAMPION, alias}), as_of)
        return _fold(tables, model_set, log, alias, as_of, releases.pins(log, alias, as_of))

    return _on_one_log(tables, model_set, read)


def _fold(
    tables: Tables,
    model_set: str,
    log: Sequence[releases.Release],
    alias: str,
    as_of: releases.AsOf,
    pinned: Mapping[str, str],
) -> Live:
    started = read_runs(tables, model_set)
    plan = releases.runs_to_read(log, releases.runs_from(started), alias, as_of)
    rows = _manifest_rows(tables, model_set, sorted({*plan.run_ids, *pinned.values()}))
    described = _described(tables, model_set, live_set(rows, plan, pinned), rows, started, plan.run_ids)
    return dataclasses.replace(described, pinned=pinned)


def _on_one_log(tables: Tables, model_set: str, read: Callable[[Sequence[releases.Release]], T]) -> T:
    """Return what is read of the rows that a log names; once more where a clean came meanwhile and removed some."""
    while True:
        numbers = tables.numbers(RELEASE, model_set=model_set, owner=LOG_OWNER)
        log = read_releases(tables, model_set)
        result = read(log)
        if numbers == tables.numbers(RELEASE, model_set=model_set, owner=LOG_OWNER):
            return result
        if releases.cleaned(log) == releases.cleaned(read_releases(tables, model_set)):
            return result


def read_key_kinds(tables: Tables, model_set: str, runs: Sequence[str] | None = None) -> dict[str, KeyKind]:
    """Return the key columns of these runs, by default of those that count for champion; empty where none does."""
    if runs is None:
        runs = sorted(releases.counted(read_releases(tables, model_set), "champion"))
    started = read_runs(tables, model_set)
    return _key_kinds(started.filter(pc.is_in(started["run_id"], pa.array(runs, pa.string()))))


def read_task(tables: Tables, model_set: str) -> str | None:
    """Return the task of the run that started last of those that count for champion; None where none does."""
    runs = sorted(releases.counted(read_releases(tables, model_set), "champion"))
    started = read_runs(tables, model_set)
    specs = started.filter(pc.is_in(started["run_id"], pa.array(runs, pa.string()))).sort_by("at")["spec"].to_pylist()
    return str(json.loads(specs[-1] or "{}").get("task", "regression")) if specs else None


def read_levels(tables: Tables, model_set: str, runs: Sequence[str]) -> Levels:
    """Return the levels of the newest of these runs that answers for all keys, without one of the newest."""
    started = read_runs(tables, model_set)
    of_runs = started.filter(pc.is_in(started["run_id"], pa.array(runs, pa.string())))
    return Levels(_key_kinds(of_runs), _parents(of_runs))


def read_key_texts(tables: Tables, model_set: str, log: Sequence[releases.Release]) -> dict[str, str]:
    """Return key id to key as text, of the keys that rows of a release log pin."""
    pinned = [(row.run_id, row.key_id) for row in log if row.action == "pin"]
    if not pinned:
        return {}
    runs, key_ids = (sorted(set(column)) for column in zip(*pinned, strict=True))
    where: Where = {"model_set": [model_set], "run_id": runs, "key_id": key_ids}
    rows = tables.read(MANIFEST, columns=["key_id", "key"], where=where).to_pylist()
    return {row["key_id"]: show_key(dict(row["key"])) for row in rows}


def read_without_pins(tables: Tables, model_set: str, as_of: str | None) -> Live:
    """Return champion's live set without pins: what a run's manifest repeats for keys that it does not decide.

    Parameters
    ----------
    as_of
        The run's base release; None is before the first one, when nothing was served.
    """
    if as_of is None:
        return _fold(tables, model_set, [], releases.CHAMPION, None, {})
    return _on_one_log(tables, model_set, lambda log: _fold(tables, model_set, log, releases.CHAMPION, as_of, {}))


def read_run(tables: Tables, model_set: str, run_id: str) -> Live:
    """Return what one run's manifest says serves each key, released or not.

    Raises
    ------
    StateError
        There is no finished run of this id, or a clean has removed what nothing referred to.
    """
    check_not_cleaned(tables, model_set, run_id)
    rows = _manifest_rows(tables, model_set, [run_id])
    if rows.empty and not tables.numbers(MANIFEST, model_set=model_set, owner=run_id):
        known = sorted(set(read_runs(tables, model_set)["run_id"].to_pylist()))
        said = f"it has {', '.join(known[-5:])}" if known else "it has none"
        raise StateError(f"model set {model_set} has no run {run_id!r} with a manifest ({said})")
    rows = _with_named_parents(tables, model_set, rows.drop_duplicates("key_id")).set_index("key_id")
    folded = rows[["model_run_id", "status"]].assign(newest_run_id=run_id, is_pinned=False).reset_index()
    return _described(tables, model_set, folded, rows.reset_index(), read_runs(tables, model_set), [run_id])


def _with_named_parents(tables: Tables, model_set: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Add the rows of parents that serve keys of a run and are none of its own: those of the runs that trained them."""
    named = rows.loc[rows["serves"] == "parent", ["parent_run_id", "parent_key_id"]].drop_duplicates()
    named = named[~named["parent_key_id"].isin(rows["key_id"])]
    others = _manifest_rows(tables, model_set, sorted(set(named["parent_run_id"])))
    wanted = set(zip(named["parent_run_id"], named["parent_key_id"], strict=True))
    is_wanted = [place in wanted for place in zip(others["run_id"], others["key_id"], strict=True)]
    added = others[is_wanted].drop_duplicates("key_id")
    return pd.concat([rows, added]) if len(added) else rows


def check_not_cleaned(tables: Tables, model_set: str, run_id: str) -> None:
    """Refuse a run of which a clean has removed rows: it must not be taken for the whole.

    Raises
    ------
    StateError
        It names the clean.
    """
    if why := cleaned_text(read_releases(tables, model_set), run_id):
        raise StateError(f"model set {model_set}: {why}; `show` says what serves each key now, `train` trains anew")


def _manifest_rows(tables: Tables, model_set: str, runs: Sequence[str]) -> pd.DataFrame:
    where: Where = {"model_set": [model_set], "run_id": list(runs)}
    rows = tables.read(MANIFEST, columns=_FOLDED, where=where) if runs else MANIFEST.empty().select(_FOLDED)
    return pd.DataFrame(rows.to_pandas(maps_as_pydicts="strict"))


def _described(
    tables: Tables,
    model_set: str,
    folded: pd.DataFrame,
    rows: pd.DataFrame,
    started: pa.Table,
    counting: Sequence[str],
) -> Live:
    """Add to the folded keys what the manifest says of them and of their models; levels are those of `counting`."""
    known = rows[["key_id", "level", "key"]].drop_duplicates("key_id").set_index("key_id")
    keys = folded.set_index("key_id").join(known)
    keys["key_json"] = [key_json(list(key), tuple(key.values())) for key in keys["key"]]
    runs = sorted(set(keys["model_run_id"].dropna()))
    of_model = _of_models(tables, model_set, runs)
    at = pd.MultiIndex.from_arrays([keys["model_run_id"], keys.index])
    described = of_model.reindex(at)
    for name in of_model.columns.drop("interval"):
        keys[name] = described[name].to_numpy() if name != "trained_at" else described[name].array
    keys, base_runs = with_bases(keys, lambda base_runs: _of_models(tables, model_set, base_runs))
    runs = sorted({*runs, *base_runs})
    serving = started.filter(pc.is_in(started["run_id"], pa.array(runs, pa.string())))
    newest = sorted(set(keys["newest_run_id"].dropna()))
    published = started.filter(pc.is_in(started["run_id"], pa.array(newest, pa.string())))
    kinds = _key_kinds(serving if serving.num_rows else published)
    of_levels = started.filter(pc.is_in(started["run_id"], pa.array(counting, pa.string())))
    parents, intervals = _parents(of_levels), levels_of(serving["spec"].to_pylist())
    keys = with_widths(keys, described["interval"].tolist(), intervals, Levels(kinds, parents))
    return Live(
        keys, _run_features(serving), kinds, _run_libraries(serving), parents=parents,
        run_labels=_run_labels(serving), intervals=intervals,
    )  # fmt: skip


def _of_models(tables: Tables, model_set: str, runs: Sequence[str]) -> pd.DataFrame:
    """Return by (run, key) what manifest and store know of the models of these runs."""
    where: Where = {"model_set": [model_set], "run_id": list(runs)}
    # Runs that leave most keys unchanged have a row for each of them all the same.
    trained: Where = {**where, "status": NEW_MODEL}
    manifest = tables.read(MANIFEST, columns=_OF_MODEL, where=trained) if runs else MANIFEST.empty().select(_OF_MODEL)
    described = manifest.to_pandas().drop_duplicates(["run_id", "key_id"]).set_index(["run_id", "key_id"])
    columns = ("run_id", "key_id", "part", "number")
    store = (
        tables.read(STORE, columns=columns, where={**where, "part": [WHOLE]}) if runs else STORE.empty().select(columns)
    )
    numbers = store.to_pandas().groupby(["run_id", "key_id"])["number"].min()
    described = described.rename(columns={"finished_at": "trained_at"})
    return pd.DataFrame(described.join(numbers.astype("Int64")))


def _run_features(started: pa.Table) -> dict[str, dict[str, ColumnKind]]:
    pairs = zip(started["run_id"].to_pylist(), started["feature_kinds"].to_pylist(), strict=True)
    return {run_id: dict(kinds) for run_id, kinds in pairs}


def _run_labels(started: pa.Table) -> dict[str, str]:
    pairs = zip(started["run_id"].to_pylist(), started["labels"].to_pylist(), strict=True)
    return {run_id: labels for run_id, labels in pairs if labels is not None}


def _run_libraries(started: pa.Table) -> dict[str, tuple[Versions, tuple[str, ...]]]:
    rows = started.select(["run_id", "versions", "spec"]).to_pylist()
    return {row["run_id"]: (dict(row["versions"] or ()), _needed(json.loads(row["spec"] or "{}"))) for row in rows}


def _needed(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the libraries that the models of a spec need, those of what children add included."""
    estimators = [spec.get("estimator", {})]
    if "pooling" in spec:
        estimators.append(spec["pooling"]["estimator"])
    return tuple(dict.fromkeys(name for each in estimators for name in needed(each)))


def _parents(started: pa.Table) -> tuple[tuple[str, ...], ...]:
    """Return the levels of the newest of these runs that answers for all keys, without one of the newest.

    A scoped run is of a few keys: it must not say what serves all the others.
    """
    full = started.filter(pc.is_null(started["scope"]))
    specs = (full if full.num_rows else started).sort_by("at")["spec"].to_pylist()
    return tuple(map(tuple, json.loads(specs[-1] or "{}").get("levels", ()))) if specs else ()


def _key_kinds(started: pa.Table) -> dict[str, KeyKind]:
    """Return the key columns that these runs were trained with: all the same ones in one order, as ids need it."""
    rows = started.sort_by("at").to_pylist()
    kinds = list(rows[-1]["key_kinds"]) if rows else []
    if other := [row["run_id"] for row in rows if list(row["key_kinds"]) != kinds]:
        said = f"run {other[0]} has others, or has them in another order"
        raise StateError(f"the live models have different key columns ({said}); roll back, or retrain")
    return dict(kinds)


def stored_model(
    tables: Tables, model_set: str, run_id: str, key_id: str, *, sha256: str | None = None
) -> dict[str, Any]:
    """Return the store row of one key's model.

    Parameters
    ----------
    sha256
        The digest that the manifest has; it takes the place of the store's own.

    Raises
    ------
    StateError
        The run has no model of the key.
    """
    where: Where = {"model_set": [model_set], "run_id": [run_id], "key_id": [key_id], "part": [WHOLE]}
    rows = tables.read(STORE, where=where)
    row = first_rows(rows).to_pylist()[0] if rows.num_rows else {"data": None}
    if row["data"] is None:
        raise StateError(f"model set {model_set}, run {run_id}: no model of key {key_id} in the store")
    return {**row, "sha256": sha256 or row["sha256"]}
