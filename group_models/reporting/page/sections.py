"""The sections of a page but for the single keys: what a run says in words, numbers and charts. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from group_models.levels import level_width
from group_models.live.manifest import FAILED, FITTING
from group_models.reporting.page import charts, fleet
from group_models.reporting.page.changes import Changes, compare
from group_models.reporting.page.closeups import Figure, moment_text
from group_models.reporting.page.fleet import Ratios, percent, sensible, signed
from group_models.reporting.page.reading import PageData
from group_models.reporting.verdict import verdict_of_rows
from group_models.texts import counts_text, duration_text
from group_models.verdicts import Verdict

MOST_RANKED = 10


@dataclasses.dataclass(frozen=True)
class Tile:
    """A number that everybody looks for first: what it is, the number, and what it is against."""

    name: str
    value: str
    note: str = ""
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a run in a few words (`kind` is `good`, `bad` or `kept`), and why in a sentence."""

    kind: str
    said: str
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Errors:
    """The keys' errors: how they are spread, beside baselines, and the keys at both ends."""

    metric: str
    name: str
    target: str
    figures: Sequence[Figure]
    measured: int


def outcome(data: PageData) -> Outcome:
    """Return what came of a run: published or not, and why."""
    if not data.finished:
        said = f"`train SPEC --run-id {data.run_id}` goes on with it"
        return Outcome("kept", "This run has not finished", said)
    if data.finished.get("refusal"):
        return Outcome("bad", "Not released", str(data.finished["refusal"]))
    if not data.releases:
        return Outcome("kept", "Trained, not released")
    last = data.releases[-1]
    return Outcome("good", f"Released to {last.alias}", f"{moment_text(last.at)}, by {last.by or 'nobody named'}")


def paid(data: PageData) -> Verdict | None:
    """Return whether the models that the run trained for keys pay, None where none was measured."""
    own = data.own
    tried = own[own["status"].isin(FITTING)]
    held = [None if pd.isna(count) else int(count) for count in tried["holdout_rows"]]
    maps = zip(tried["metrics"], tried["baseline_metrics"], held, strict=True)
    return verdict_of_rows(
        [dict(zip(("metrics", "baseline_metrics", "holdout_rows"), row, strict=True)) for row in maps], data.metric
    )


def headline(data: PageData) -> str:
    """Return in one sentence which models serve the keys."""
    own = data.own
    counts = own["serves"].value_counts()
    served = int(counts.drop("none", errors="ignore").sum())
    said = f"{served:,} of {len(own):,} keys are served by a model"
    if served:
        said += f" ({counts_text({n: int(counts[n]) for n in ('new', 'previous', 'parent') if n in counts})})"
    return said + "."


def tiles(data: PageData, pays: Verdict | None) -> list[Tile]:
    """Return the numbers that stand at the top."""
    own = data.own
    counts = {name: count for name, count, _ in fleet.status_counts(own)}
    failed = sum(counts.get(status, 0) for status in FAILED)
    tried = failed + sum(counts.get(status, 0) for status in FITTING)
    found = [Tile("keys trained", f"{counts.get('trained', 0):,}", f"of {len(own):,} keys")]
    found.append(Tile("keys failed", f"{failed:,}", f"of {tried:,} tried", "bad" if failed else "good"))
    if pays is not None:
        best = pays.strongest
        kind = {"pay": "good", "do not pay": "bad"}.get(pays.word, "")
        note = f"{signed(best.change)} beside the {best.name}'s {sensible(best.other, best.error)}"
        found.append(Tile(f"{fleet.short_name(pays.metric)} of all rows", sensible(best.error), note, kind))
        found.append(Tile(f"better than the {best.name}", percent(best.keys_better), f"of {best.keys:,} measured keys"))
    seconds = dict(data.finished.get("seconds") or ())
    if seconds:
        phases = sorted(seconds.items(), key=lambda item: -item[1])[:2]
        note = ", ".join(f"{name} {duration_text(s)}" for name, s in phases)
        found.append(Tile("time", duration_text(sum(seconds.values())), note))
    return found


def errors(data: PageData) -> Errors | None:
    """Return the section of the keys' errors, or None where none was measured."""
    own = data.own
    values = fleet.values_of(own["metrics"], data.metric)
    if not np.isfinite(values).any():
        return None
    target, metric = str(data.spec.get("target", "the target")), fleet.short_name(data.metric)
    title = f"{metric}, {target}"
    known = fleet.known_baselines(own, data.metric)
    # Two are as many as a chart can show beside the keys' own; the tables and the ratios have all.
    baselines = dict(list(known.items())[:2])
    worst, best = fleet.ranked(values, MOST_RANKED)
    ends = [_ranked(own, values, baselines, places, title, name) for places, name in ((worst, "worst"), (best, "best"))]
    figures = [
        _distribution(values, baselines, title),
        *(_ratios(each, metric) for each in fleet.ratios(own, data.metric)),
    ]
    figures += [each for each in ends if each is not None]
    if rows := fleet.by_rows(pd.to_numeric(own["rows"]).to_numpy(dtype=np.float64), values):
        note = "Keys in bins of about equally many: their median, and where four fifths of them lie."
        figures.append(Figure("Error by the number of rows", charts.errors_by_rows(rows, title), note))
    count = int(np.isfinite(values).sum())
    return Errors(metric, fleet.metric_name(data.metric), target, figures, count)


def _distribution(values: fleet.Floats, baselines: dict[str, fleet.Floats], title: str) -> Figure:
    together = np.concatenate([values, *baselines.values()])
    top = fleet.histogram(together).edges[-1]
    shapes = {name: fleet.histogram(each, upto=top) for name, each in baselines.items()}
    chart = charts.error_histogram(fleet.histogram(values, upto=top), shapes, title)
    lines = " and ".join(f"{'solid' if name in fleet.SIMPLEST else 'dashed'} line: the {name}'s" for name in baselines)
    note = f"Bars: the keys' models{'; ' + lines if lines else ''}. The last bin holds all errors above it, too."
    return Figure("How large the errors are", chart, note)


def _ratios(found: Ratios, metric: str) -> Figure:
    chart = charts.ratio_histogram(found.values, f"{metric} as a share of the {found.name}'s")
    note = f"{found.better:,} of {len(found.values):,} keys are better than their {found.name} (green, below 100%)."
    return Figure(f"Against the {found.name}", chart, note)


def _ranked(
    keys: pd.DataFrame,
    values: fleet.Floats,
    baselines: dict[str, fleet.Floats],
    places: list[int],
    title: str,
    name: str,
) -> Figure | None:
    if not places:
        return None
    labels = [
        ", ".join("null" if v is None else v for v in key.values()) or "global"
        for key in keys["key"].to_numpy()[places]
    ]
    chart = charts.key_errors(labels, values[places], {n: each[places] for n, each in baselines.items()}, title)
    ticks = [f"{'short' if name in fleet.SIMPLEST else 'long'} tick: its {name}" for name in baselines]
    note = "; ".join(["Dot: the key's model", *ticks]) + "."
    return Figure(f"The {len(places)} {name} keys", chart, note)


def changes(data: PageData) -> Changes | None:
    """Return what changed since the run before, or None where there was none."""
    if data.before is None:
        return None
    before = data.before.keys
    now, then = data.own.set_index("key_id"), before[before["level"].isin(set(data.own["level"]))]
    return compare(data.before.run_id, then, now, data.metric, (data.before.started, data.started))


def changed_figure(changed: Changes, data: PageData) -> Figure | None:
    """Return how the errors of keys with new models in both runs changed, or None where there are none."""
    if not len(changed.ratios):
        return None
    chart = charts.ratio_histogram(changed.ratios, f"{fleet.short_name(data.metric)} now as a share of then")
    return Figure("How the errors changed", chart, "Green: lower than in the run before.")


def typical_error(data: PageData) -> float | None:
    """Return the median of the keys' errors, by which numbers beside each other have the same decimals."""
    values = fleet.values_of(data.own["metrics"], data.metric)
    return float(np.nanmedian(values)) if np.isfinite(values).any() else None


def time_figures(data: PageData) -> list[Figure]:
    """Return how the fits' time was spent: wave by wave where there are several, and by key."""
    figures = []
    if data.timing is not None:
        note = "Upper bars: as the plan predicted; lower bars: from the start of the first fit to the end of the last."
        figures.append(Figure("Fits, wave by wave", charts.waves(data.timing), note))
    seconds = pd.to_numeric(data.keys["fit_seconds"], errors="coerce").to_numpy(dtype=np.float64)
    if shares := fleet.cumulative_share(seconds):
        note = "How uneven the keys are. Dashed: if all keys took the same time."
        figures.append(Figure("Where the time goes", charts.fit_shares(shares), note))
    return figures


def level_lines(data: PageData) -> list[tuple[str, str]]:
    """Return the levels of a run with their outcomes, the keys' own first; [] where it has no parents."""
    levels = sorted(set(data.keys["level"]), key=level_width, reverse=True)
    if len(levels) < 2:
        return []
    return [(name, counts_text(_counts(data.keys[data.keys["level"] == name]))) for name in levels]


def _counts(keys: pd.DataFrame) -> dict[str, int]:
    return {name: count for name, count, _ in fleet.status_counts(keys)}


def run_facts(data: PageData) -> list[tuple[str, str]]:
    """Return what is told of the run itself."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(dict(data.started["versions"] or ()).items()))
    facts = {
        "run": data.run_id,
        "started": moment_text(data.started["at"]),
        "finished": moment_text(data.finished.get("at")),
        "scope": data.started["scope"] or "all keys",
        "source": data.started["source"] or "",
        "source version": data.started["source_version"] or "",
        "rows read": f"{data.finished['rows']:,}" if data.finished.get("rows") is not None else "",
        "compared with run": data.before.run_id if data.before else "",
        "MLflow run": data.finished.get("mlflow_run_id") or "",
        "libraries": versions,
        "group-models": data.started["code_version"] or "",
    }
    return [(name, text) for name, text in facts.items() if text]


def spec_text(data: PageData) -> str:
    """Return the run's spec as people read it."""
    return json.dumps(data.spec, indent=2, ensure_ascii=False)
