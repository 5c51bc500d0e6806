"""Gates on one key: which new models are rejected, and what serves instead. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from group_models.comparing import as_metric, mean_loss
from group_models.gates import ChampionGate, FleetGate, Gates, ParentGate
from group_models.spec import Metric
from group_models.texts import number_text

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]


@dataclasses.dataclass(frozen=True)
class Gated:
    """What gates say of each key.

    Attributes
    ----------
    is_rejected
        The new model does not serve.
    is_handed
        Of these, the parent serves even where the key has an earlier model.
    notes
        Why, or why there is no verdict; None for nothing to say.
    """

    is_rejected: Flags
    is_handed: Flags
    notes: Texts


def values(column: pa.ChunkedArray | pa.Array, name: str) -> Floats:
    """Return one entry of each row's map of numbers, NaN where it has none."""
    found = pc.map_lookup(column, pa.scalar(name), "first")
    return np.asarray(found.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def gate(
    metrics: pa.ChunkedArray,
    baselines: pa.ChunkedArray,
    is_tried: Flags,
    has_model: Flags,
    gates: Gates,
    metric: Metric,
) -> Gated:
    """Return which keys' new models are rejected.

    Parameters
    ----------
    metrics, baselines
        The columns `metrics` and `baseline_metrics` of each key's outcome.
    is_tried
        Which keys have a new model and are asked.
    has_model
        Which keys have an earlier model that serves.
    """
    gated = Gated(np.zeros(len(is_tried), bool), np.zeros(len(is_tried), bool), np.full(len(is_tried), None, object))
    if gates.max_metric is not None:
        gated = _over(gated, values(metrics, metric), is_tried, gates.max_metric, metric)
    if gates.parent is not None:
        gated = _behind_parent(gated, baselines, values(metrics, metric), is_tried, gates.parent, metric)
    if gates.champion is not None:
        gated = _behind_champion(gated, baselines, is_tried & has_model, gates.champion, metric)
    return gated


def _over(gated: Gated, own: Floats, is_tried: Flags, most: float, metric: Metric) -> Gated:
    is_over = is_tried & (own > most)
    notes = [f"rejected: {metric} {own[place]:.4g} is over max_metric {most:g}" for place in np.flatnonzero(is_over)]
    return dataclasses.replace(
        gated, is_rejected=gated.is_rejected | is_over, notes=_noted(gated.notes, is_over, notes)
    )


def _behind_parent(
    gated: Gated, baselines: pa.ChunkedArray, own: Floats, is_tried: Flags, rule: ParentGate, metric: Metric
) -> Gated:
    other = values(baselines, f"parent_{metric}")
    difference, error = values(baselines, "parent_difference"), values(baselines, "parent_difference_se")
    # A difference without an error of its own (one row) is no verdict.
    is_worse = is_tried & (difference > 0) & (difference > rule.standard_errors * error)
    notes = [
        f"rejected: worse than its parent, {metric} {own[p]:.4g} beside {other[p]:.4g}, by more than "
        f"{rule.standard_errors:g} standard errors"
        for p in np.flatnonzero(is_worse)
    ]
    said = _noted(gated.notes, is_worse, notes)
    is_open = is_tried & ~np.isnan(own) & np.isnan(difference)
    open_notes = ["no verdict beside its parent: they were not compared"] * int(is_open.sum())
    return Gated(gated.is_rejected | is_worse, gated.is_handed | is_worse, _noted(said, is_open, open_notes))


def _behind_champion(
    gated: Gated, baselines: pa.ChunkedArray, is_tried: Flags, rule: ChampionGate, metric: Metric
) -> Gated:
    rows = np.nan_to_num(values(baselines, "champion_rows"))
    new, old = champion_metrics(baselines, metric)
    is_known = is_tried & (rows >= rule.min_rows) & ~np.isnan(new)
    is_worse = is_known & (new > old * (1 + rule.tolerance))
    notes = [
        f"rejected: worse than the model that serves, {metric} {new[p]:.4g} beside {old[p]:.4g} on "
        f"{number_text(int(rows[p]), 'row')} that it has not seen; the tolerance is {rule.tolerance:.1%}"
        for p in np.flatnonzero(is_worse)
    ]
    said = _noted(gated.notes, is_worse, notes)
    is_open = is_tried & ~is_known
    few = [
        f"no verdict beside the model that served: {number_text(int(rows[p]), 'held out row')} that it has not seen, "
        f"min_rows is {rule.min_rows}"
        for p in np.flatnonzero(is_open)
    ]
    # What serves is known to be better than the new model; of the parent beside it nothing is.
    return Gated(gated.is_rejected | is_worse, gated.is_handed & ~is_worse, _noted(said, is_open, few))


def champion_metrics(baselines: pa.ChunkedArray, metric: Metric) -> tuple[Floats, Floats]:
    """Return the metric of each key's new model and of the one that serves, on the rows that both have not seen."""
    old = values(baselines, f"champion_{metric}")
    new = as_metric(np.maximum(mean_loss(old, metric) + values(baselines, "champion_difference"), 0.0), metric)
    return new, old


def _noted(notes: Texts, flags: Flags, said: list[str]) -> Texts:
    result = notes.copy()
    for place, text in zip(np.flatnonzero(flags).tolist(), said, strict=True):
        result[place] = text if result[place] is None else f"{result[place]}; {text}"
    return result


def fleet_refusal(
    baselines: pa.ChunkedArray, is_new: Flags, has_served: Flags, rule: FleetGate, metric: Metric
) -> str | None:
    """Return why a run must not serve by itself: its models are worse on the same rows than those that serve.

    Parameters
    ----------
    baselines
        The column `baseline_metrics` of each key's row of the manifest.
    is_new
        Which keys a new model of the run would serve.
    has_served
        Which of all keys have a model that serves now.
    """
    asked = is_new & has_served
    if not asked.any():
        return None
    rows = np.nan_to_num(values(baselines, "champion_rows"))
    new, old = champion_metrics(baselines, metric)
    is_known = asked & (rows > 0) & ~np.isnan(new)
    if not is_known.any():
        return (
            f"none of {number_text(int(asked.sum()), 'key')} with a new model has a held out row that the model that "
            "serves has not seen: whether the run is better is not known"
        )
    weights = rows[is_known]
    ours, theirs = (
        float(as_metric(np.average(mean_loss(each[is_known], metric), weights=weights), metric)) for each in (new, old)
    )
    if ours <= theirs * (1 + rule.tolerance):
        return None
    of = f"{int(weights.sum()):,} rows of {number_text(int(is_known.sum()), 'key')}"
    return (
        f"its {metric} is {ours:.4g} beside {theirs:.4g} of the models that serve, on the same {of}; the tolerance is "
        f"{rule.tolerance:.1%}"
    )
