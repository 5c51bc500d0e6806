"""Parts of salted keys to ensembles: measured together on the holdout by the scoring path, then put into one model."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_columns import upload
from group_models.adapters.spark_references import MODEL, References, linked_keys, models_of, session_of
from group_models.adapters.spark_score import MODEL_IX
from group_models.adapters.spark_train import is_holdout, placed_units
from group_models.artifacts import NEWEST, StoredModel, digest, load_model
from group_models.estimators.base import one_thread
from group_models.estimators.ensembles import EnsemblePredictor, pack_parts
from group_models.evaluation import Floats
from group_models.fitting.deaths import FitLimits
from group_models.fitting.measured import MEASURED_TYPES, Measured
from group_models.fitting.measuring import Meter, references_of
from group_models.fitting.outcomes import RESULT, FitSettings, result_frame, result_table
from group_models.fitting.references import NO_REFERENCE
from group_models.frames import Roles
from group_models.labels import Labels
from group_models.mlmodel import MlmodelTemplate
from group_models.spec import Metric
from group_models.tables import STORE, utc_now

ROWS_PER_UNIT = 200_000
"""Holdout rows that one task measures an ensemble on; more are spread over several."""

UNITS_PER_SLOT = 4
"""Most units per task slot that one holdout is spread over: each gets a copy of the ensemble."""

BASELINE, UNITS, IS_DATA = "baseline", "units", "is_data"
_FOUND = {sc.UNIT: "int", MODEL_IX: "int", **MEASURED_TYPES}


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """One salted key whose parts are to be measured together.

    Attributes
    ----------
    parts
        The parts (as the store numbers them) that have not seen the holdout.
    baseline
        What the ensemble of the parts' medians predicts; of classes the shares of the labels.
    links
        The numbers of the references that are its parent and its global model.
    """

    key_id: str
    parts: Sequence[int]
    holdout_rows: int
    baseline: float | tuple[float, ...]
    links: tuple[int, int] = (NO_REFERENCE, NO_REFERENCE)


def measure_ensembles(  # noqa: PLR0913 - all that decides a measurement
    rows: DataFrame,
    plan: DataFrame,
    store: DataFrame,
    ensembles: Sequence[Ensemble],
    *,
    roles: Roles,
    key_types: Mapping[str, str],
    settings: FitSettings,
    references: References,
    slots: int,
) -> dict[str, Measured]:
    """Return, by key id, what came of measuring each ensemble and its baseline over the key's holdout.

    Parameters
    ----------
    rows
        The source as `spark_columns.fit_columns` gives it.
    plan
        The salted keys as rows of the plan table: `key_id, key`.
    store
        The parts' rows of the store that count: `key_id, part, data, data_file`.

    Notes
    -----
    The holdout streams past the ensemble as an input does when it is scored: a holdout of any size is in no
    place at once, and a large one is spread over tasks, each of which gets the ensemble. The limits are those of one
    fit: tasks that run one after another share its time.
    Rows are added up in the order of their hashes and tasks in that of their units, so that the metrics of the same
    rows on the same number of slots are the same to the last bit, however the source was partitioned.
    """
    most = UNITS_PER_SLOT * slots
    counts = [min(most, max(1, -(-ensemble.holdout_rows // ROWS_PER_UNIT))) for ensemble in ensembles]
    placed = placed_units(rows.sparkSession, sum(counts))
    starts = np.cumsum(counts) - counts
    units = [placed[start : start + count].tolist() for start, count in zip(starts, counts, strict=True)]
    data = _holdout_rows(rows, plan, ensembles, units, roles=roles, key_types=key_types, settings=settings)
    models = _measured_models(store, ensembles, units)
    mixed = data.unionByName(models, allowMissingColumns=True)
    if not references.is_empty:
        mixed = mixed.unionByName(_reference_rows(ensembles, units, references), allowMissingColumns=True)
    ordered = mixed.repartition(len(placed), sc.UNIT).sortWithinPartitions(MODEL_IX, IS_DATA, sc.HASH)
    limits, features, metric = settings.limits, list(roles.features), settings.metric
    links, labels, keeps_residuals = [each.links for each in ensembles], settings.labels, bool(settings.intervals)
    shares = [np.asarray(ensemble.baseline) for ensemble in ensembles]
    # As many tasks as there are slots run at a time: of more, each has less of the time that the ensemble has.
    rounds = [-(-count // slots) for count in counts]

    def measure(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return _measured(
            batches, features, limits, rounds, links, metric, (labels, shares), keeps_residuals=keeps_residuals
        )

    schema = ", ".join(f"{name} {kind}" for name, kind in _FOUND.items())
    found = ordered.mapInPandas(measure, schema).toArrow().sort_by(sc.UNIT).to_pylist()
    by_ix = [[row for row in found if row[MODEL_IX] == ix] for ix in range(len(ensembles))]
    return {ensemble.key_id: Measured.of_rows(rows) for ensemble, rows in zip(ensembles, by_ix, strict=True)}


def _holdout_rows(
    rows: DataFrame,
    plan: DataFrame,
    ensembles: Sequence[Ensemble],
    units: Sequence[Sequence[int]],
    *,
    roles: Roles,
    key_types: Mapping[str, str],
    settings: FitSettings,
) -> DataFrame:
    """Return the held out rows of the salted keys, each in one of its ensemble's units."""
    assigned = pa.table(
        {
            "key_id": pa.array([ensemble.key_id for ensemble in ensembles], pa.string()),
            MODEL_IX: pa.array(range(len(ensembles)), pa.int32()),
            BASELINE: pa.array([_number(ensemble.baseline) for ensemble in ensembles], pa.float64()),
            UNITS: pa.array(units, pa.list_(pa.int32())),
        }
    )
    keys = plan.join(F.broadcast(upload(rows.sparkSession, assigned)), "key_id").select(
        *sc.typed_keys(key_types), MODEL_IX, BASELINE, UNITS
    )
    held = rows.where(sc.is_usable() & is_holdout(settings))
    joined = held.join(F.broadcast(keys), sc.same_key(held, keys, len(roles.keys)))
    unit = F.get(UNITS, sc.part_of("measure", settings.seed, F.size(UNITS)))
    return joined.select(
        unit.alias(sc.UNIT),
        MODEL_IX,
        F.lit(True).alias(IS_DATA),  # noqa: FBT003 - a literal column
        BASELINE,
        sc.HASH,
        sc.TIME,
        sc.TARGET,
        *sc.weight_columns(rows),
        *sc.feature_names(len(roles.features)),
    )


def _number(baseline: float | tuple[float, ...]) -> float:
    """Return the baseline that travels with the rows; shares are few, and go with the code."""
    return 0.0 if isinstance(baseline, tuple) else baseline


def _measured_models(store: DataFrame, ensembles: Sequence[Ensemble], units: Sequence[Sequence[int]]) -> DataFrame:
    """Return each ensemble of measured parts as a model row in each of its units."""
    wanted = [
        {"key_id": ensemble.key_id, "part": part, MODEL_IX: ix, UNITS: list(units[ix])}
        for ix, ensemble in enumerate(ensembles)
        for part in ensemble.parts
    ]
    schema = pa.schema({"key_id": pa.string(), "part": pa.int32(), MODEL_IX: pa.int32(), UNITS: pa.list_(pa.int32())})
    wanted_parts = F.broadcast(upload(store.sparkSession, pa.Table.from_pylist(wanted, schema)))
    parts = store.join(wanted_parts, ["key_id", "part"])
    schema_text = f"{MODEL_IX} int, {UNITS} array<int>, format int, data_file string, sha256 string, data binary"

    def assemble(frame: pd.DataFrame) -> pd.DataFrame:
        packed = _packed(frame)
        row = {
            MODEL_IX: frame[MODEL_IX].iloc[:1].to_numpy(), UNITS: [frame[UNITS].iloc[0]], "format": NEWEST,
            "data_file": EnsemblePredictor.data_file, "sha256": digest(packed), "data": packed,
        }  # fmt: skip
        return pd.DataFrame(row)

    packed = parts.groupBy(MODEL_IX).applyInPandas(assemble, schema_text)
    return packed.select(
        F.explode(UNITS).alias(sc.UNIT),
        MODEL_IX,
        F.lit(False).alias(IS_DATA),  # noqa: FBT003 - a literal column
        "format",
        "data_file",
        "sha256",
        "data",
    )


def _reference_rows(ensembles: Sequence[Ensemble], units: Sequence[Sequence[int]], references: References) -> DataFrame:
    """Return the models that ensembles are compared with, as model rows in each of their units."""
    wanted = [
        {"key_id": ensemble.key_id, sc.UNIT: unit, sc.INDEX: ix,
         "parent": ensemble.links[0], "global": ensemble.links[1]}
        for ix, ensemble in enumerate(ensembles)
        for unit in units[ix]
    ]  # fmt: skip
    found = models_of(linked_keys(wanted, session_of(references)), references)
    return found.select(sc.UNIT, F.lit(-1).alias(MODEL_IX), F.lit(False).alias(IS_DATA), MODEL)  # noqa: FBT003


def _packed(frame: pd.DataFrame) -> bytes:
    """Return the models of one key's parts as one data file, in the parts' order."""
    ordered = frame.sort_values("part")
    return pack_parts(list(zip(ordered["data"], ordered["data_file"], strict=True)))


def _measured(
    batches: Iterable[pd.DataFrame],
    features: Sequence[str],
    limits: FitLimits,
    rounds: Sequence[int],
    links: Sequence[tuple[int, int]],
    metric: Metric,
    classes: tuple[Labels | None, Sequence[Floats]],
    *,
    keeps_residuals: bool,
) -> Iterator[pd.DataFrame]:
    """Yield what came of the ensemble of a partition: its own row comes first, then those of its holdout."""
    meter: Meter | None = None
    labels, shares = classes
    unit = ix = -1
    beside: list[bytes] = []
    shorts = dict(zip(sc.feature_names(len(features)), features, strict=True))
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in batches:
            is_data = batch[IS_DATA].to_numpy(np.bool_)
            for row in batch[~is_data].to_dict("records"):
                if row[MODEL_IX] < 0:
                    beside.append(row[MODEL])
                    continue
                unit, ix = row[sc.UNIT], row[MODEL_IX]
                references = references_of(beside, links[ix], ix)
                load = functools.partial(_load, row)
                meter = Meter(load, limits, rounds=rounds[ix], references=references, metric=metric, labels=labels)
            if meter is not None and is_data.any():
                rows = batch[is_data]
                x = rows[list(shorts)].rename(columns=shorts).reset_index(drop=True)
                y, baseline = (rows[name].to_numpy(np.float64) for name in (sc.TARGET, BASELINE))
                baseline = baseline if labels is None else np.tile(shares[ix], (len(y), 1))
                weight = rows[sc.WEIGHT].to_numpy(np.float64) if sc.WEIGHT in rows else None
                row_hash = rows[sc.HASH].to_numpy(np.int64) if keeps_residuals else None
                meter.add(x, y, baseline, rows[sc.TIME].to_numpy(np.int64), weight, row_hash)
    if meter is not None:
        yield meter.measured.row({sc.UNIT: unit, MODEL_IX: ix})


def _load(row: Mapping[Any, Any]) -> StoredModel:
    return load_model(row["data"], format=int(row["format"]), data_file=row["data_file"], sha256=row["sha256"])


def combine(
    store: DataFrame,
    outcomes: Mapping[str, Mapping[str, Any]],
    templates: Mapping[str, MlmodelTemplate],
    keys: Mapping[str, str],
) -> DataFrame:
    """Return the store rows (columns `RESULT`) of ensembles, lazily: what is known of each, and its model.

    Parameters
    ----------
    store
        The parts of these ensembles: `key_id, part, data, data_file`; parts without a model are left out.
    outcomes
        Key id to the columns of its outcome, the model's apart.
    keys
        Key id to the key as JSON.
    """

    def assemble(frame: pd.DataFrame) -> pd.DataFrame:
        key_id, packed = str(frame["key_id"].iloc[0]), _packed(frame)
        model = {
            "mlmodel": templates[key_id].render(key_id, keys[key_id], utc_now()),
            "data": packed,
            "data_file": EnsemblePredictor.data_file,
            "model_bytes": len(packed),
            "sha256": digest(packed),
        }
        return result_frame([{**outcomes[key_id], **model}])

    wanted = store.where(F.col("key_id").isin(list(outcomes)) & F.col("data").isNotNull())
    return wanted.groupBy("key_id").applyInPandas(assemble, schema=STORE.spark_schema(RESULT))


def of_these(models: DataFrame, counting: pa.Table) -> DataFrame:
    """Return the rows of these keys, parts and numbers."""
    wanted = upload(models.sparkSession, counting)
    return models.join(F.broadcast(wanted), counting.column_names, "left_semi")


def with_failed(frame: DataFrame, failed: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return store rows (columns `RESULT`) with those of keys that have no model."""
    return frame.unionByName(of_rows(frame.sparkSession, failed))


def of_rows(spark: SparkSession, outcomes: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return outcomes as a frame of columns `RESULT`."""
    return upload(spark, result_table(outcomes))
