"""How a run's time was spent, against its plan: wave by wave, its slowest unit, and how busy its slots were."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd
import pyarrow as pa

from group_models.keys import show_key
from group_models.planning.packing import makespan
from group_models.planning.skew import unit_seconds
from group_models.ports import Tables, Where
from group_models.tables import PLAN, STORE, WHOLE
from group_models.texts import duration_text

PLAN_COLUMNS = ("key_id", "key", "unit", "wave", "n_parts", "predicted_seconds")
FIT_COLUMNS = (
    "key_id", "part", "unit", "wave", "attempt", "number", "rows_used", "fit_seconds", "cpu_seconds", "started_at",
    "finished_at",
)  # fmt: skip
"""What `run_timing` needs of the plan, and of the rows that say what was fitted when."""

_MOST_NAMED = 3
_PLACE = ["wave", "unit"]


@dataclasses.dataclass(frozen=True)
class UnitTiming:
    """One unit: its keys (the slowest ones by name), the rows of its models, and what it took.

    Attributes
    ----------
    wall_s
        From the start of its first fit to the end of its last.
    """

    unit: int
    wave: int
    keys: int
    names: tuple[str, ...]
    rows: int
    wall_s: float
    cpu_s: float
    predicted_s: float


@dataclasses.dataclass(frozen=True)
class WaveTiming:
    """One wave: wall seconds as predicted and as they were, from the start of its first fit to the end of its last.

    Attributes
    ----------
    busy_share
        Seconds of its units over those of all slots.
    """

    wave: int
    units: int
    keys: int
    predicted_s: float
    wall_s: float
    fit_s: float
    cpu_s: float
    busy_share: float


@dataclasses.dataclass(frozen=True)
class Timing:
    """How a run's time was spent; `slots` are those of the plan or, where nobody knows, the most units at once."""

    slots: int
    waves: tuple[WaveTiming, ...]
    slowest: UnitTiming
    largest: UnitTiming
    predicted_fit_s: float
    fit_s: float
    cpu_s: float
    predicted_s: float
    wall_s: float
    busy_share: float

    def facts(self) -> dict[str, str]:
        """Return the timing in two lines."""
        slow = self.slowest
        share = slow.wall_s / self.wall_s if self.wall_s else 0.0
        return {
            "fits": (
                f"{duration_text(self.wall_s)} on {self.slots} slot(s), predicted {duration_text(self.predicted_s)}; "
                f"{duration_text(self.fit_s)} of fits, {duration_text(self.cpu_s)} of CPU; "
                f"slots busy {self.busy_share:.0%}"
            ),
            "slowest unit": (
                f"{slow.unit} of wave {slow.wave + 1}: {duration_text(slow.wall_s)} ({share:.0%} of the run's fits), "
                f"predicted {duration_text(slow.predicted_s)}; {slow.keys:,} key(s), {slow.rows:,} rows: "
                f"{'; '.join(slow.names)}{'; ...' if slow.keys > len(slow.names) else ''}"
            ),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the timing as plain values."""
        return dataclasses.asdict(self)


def read_timing(tables: Tables, model_set: str, run_id: str, *, slots: int | None = None) -> Timing | None:
    """Return the timing of a run as its tables tell it, or None where nothing was fitted."""
    where: Where = {"model_set": [model_set], "run_id": [run_id]}
    plan = tables.read(PLAN, columns=PLAN_COLUMNS, where=where)
    return run_timing(plan, tables.read(STORE, columns=FIT_COLUMNS, where=where), slots=slots)


def run_timing(plan: pa.Table, fits: pa.Table, *, slots: int | None = None) -> Timing | None:
    """Return how a run's time was spent, or None where nothing was fitted.

    Parameters
    ----------
    plan
        The run's rows of the plan table, columns `PLAN_COLUMNS`.
    fits
        Its rows of the store, columns `FIT_COLUMNS`. Rows of the manifest do too, where no key is salted: they lack
        `part` and `number`, and keys without a fit are left out.
    slots
        Tasks that ran at the same time.
    """
    rows = _fitted(fits)
    if rows.empty:
        return None
    units = _units(rows).join(_predicted(plan)).fillna({"predicted_s": 0.0})
    slots = slots or _most_at_once(rows)
    waves = _waves(rows, units, slots)
    wall = sum(wave.wall_s for wave in waves)
    return Timing(
        slots=slots,
        waves=waves,
        slowest=_unit(units, units["wall_s"].idxmax(), rows, plan),
        largest=_unit(units, units["rows"].idxmax(), rows, plan),
        predicted_fit_s=float(units["predicted_s"].sum()),
        fit_s=float(rows["fit_seconds"].sum()),
        cpu_s=float(rows["cpu_seconds"].sum()),
        predicted_s=sum(wave.predicted_s for wave in waves),
        wall_s=wall,
        busy_share=_share(float(units["wall_s"].sum()), slots * wall),
    )


def _fitted(fits: pa.Table) -> pd.DataFrame:
    """Return one row per fit; the row that puts salted parts together repeats theirs and is no fit of its own."""
    rows: pd.DataFrame = fits.select([name for name in FIT_COLUMNS if name in fits.column_names]).to_pandas()
    rows = rows[rows["started_at"].notna() & rows["unit"].notna()].fillna({"attempt": 0})
    if "part" not in rows:
        return rows.assign(part=WHOLE)
    rows = rows.sort_values("number").drop_duplicates(["key_id", "part"])
    is_part = rows["part"] != WHOLE
    # A part that was measured before its refit has two rows of one fit, and one unit.
    parts = rows[is_part].sort_values("part").drop_duplicates(["key_id", "unit"])
    return pd.concat([rows[~is_part & ~rows["key_id"].isin(parts["key_id"])], parts])


def _units(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per wave and unit; a unit that was tried again took what its tries took, not the time between."""
    sums = rows.groupby(_PLACE).agg(
        keys=("key_id", "size"), rows=("rows_used", "sum"), fit_s=("fit_seconds", "sum"), cpu_s=("cpu_seconds", "sum")
    )
    return sums.join(_spans(rows, [*_PLACE, "attempt"]).groupby(level=_PLACE).sum())


def _spans(rows: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return the seconds from the first start to the last end of each group."""
    spans = rows.groupby(by).agg(start=("started_at", "min"), end=("finished_at", "max"))
    return pd.Series((spans["end"] - spans["start"]).dt.total_seconds(), name="wall_s")


def _predicted(plan: pa.Table) -> pd.Series:
    unit, wave, seconds = unit_seconds(plan)
    return pd.Series(seconds, pd.MultiIndex.from_arrays([wave, unit], names=_PLACE), name="predicted_s")


def _waves(rows: pd.DataFrame, units: pd.DataFrame, slots: int) -> tuple[WaveTiming, ...]:
    spans = _spans(rows, ["wave", "attempt"]).groupby(level="wave").sum()
    walls = {int(wave): float(seconds) for wave, seconds in zip(spans.index, spans, strict=True)}
    return tuple(
        WaveTiming(
            wave=wave,
            units=len(of_wave),
            keys=int(of_wave["keys"].sum()),
            predicted_s=makespan(of_wave["predicted_s"].to_numpy(), slots),
            wall_s=walls[wave],
            fit_s=float(of_wave["fit_s"].sum()),
            cpu_s=float(of_wave["cpu_s"].sum()),
            busy_share=_share(float(of_wave["wall_s"].sum()), slots * walls[wave]),
        )
        for wave in sorted(walls)
        for of_wave in [units.loc[[wave]]]
    )


def _unit(units: pd.DataFrame, place: Any, rows: pd.DataFrame, plan: pa.Table) -> UnitTiming:
    found, (wave, unit) = units.loc[place], place
    of_unit = rows[(rows["wave"] == wave) & (rows["unit"] == unit)].nlargest(_MOST_NAMED, "fit_seconds")
    at = pd.Index(plan["key_id"].to_pandas()).get_indexer(of_unit["key_id"])
    keys = plan["key"].take(pa.array(at[at >= 0])).to_pylist()
    return UnitTiming(
        unit=int(unit),
        wave=int(wave),
        keys=int(found["keys"]),
        names=tuple(show_key(dict(key)) for key in keys),
        rows=int(found["rows"]),
        wall_s=float(found["wall_s"]),
        cpu_s=float(found["cpu_s"]),
        predicted_s=float(found["predicted_s"]),
    )


def _most_at_once(rows: pd.DataFrame) -> int:
    """Return how many units ran at the same time at most: what is known of the slots of a run of another session."""
    spans = rows.groupby([*_PLACE, "attempt"]).agg(start=("started_at", "min"), end=("finished_at", "max"))
    events = pd.concat([pd.Series(1, spans["start"]), pd.Series(-1, spans["end"])])
    # Of an end and a start at one moment the end comes first: one slot did both.
    ordered = events.to_frame("change").rename_axis("at").reset_index().sort_values(["at", "change"])
    return max(1, int(ordered["change"].cumsum().max()))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
