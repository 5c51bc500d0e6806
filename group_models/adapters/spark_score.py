"""Score a Spark frame: models stream with the data, so that each is loaded once where its rows are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from group_models.adapters import crossings
from group_models.adapters import spark_columns as sc
from group_models.adapters.spark_columns import upload
from group_models.adapters.spark_labels import label_of
from group_models.adapters.spark_train import placed_units
from group_models.conformal import width_name
from group_models.frames import key_kind
from group_models.labels import Labels
from group_models.planning.packing import pack
from group_models.serving.resolving import PLANNED, PREDICTION, PROVENANCE, STATUS, Request, ScorePlan, outputs_of
from group_models.serving.routing import MODEL_LINES, Inputs, data_rows, predict_stream
from group_models.serving.statuses import NO_MODEL, SCORE_STATUSES, SCORED, Codes, Floats
from group_models.tables import WHOLE

MODEL_IX, MODEL, KEY_IX, UNITS = "model_ix", "model", "key_ix", "units"
_MAX_CROSSING = 1
"""Passed columns up to which `mapInPandas` takes them along; of wider input they stay in the JVM.

Measured with 4 M rows and 20,000 models (Spark 4.2): with one column both ways cost the same, with an id and three keys
the iterator UDF takes 11 CPU seconds where `mapInPandas` takes 16.
"""

_ROW_SECONDS, _LOAD_SECONDS = 1.5e-6, 1e-3
"""Rough costs of a row and of a model, for balancing units only."""

MAX_UNIT_MODEL_BYTES = 256 * 2**20
"""Bytes of all models of a unit, unless a single one is larger.

Spark bounds a batch by rows (10,000), and by bytes only since 4.1 (`spark.sql.execution.arrow.maxBytesPerBatch`). So
before, and wherever that is raised, a batch of a few rows per model could hold any number of models at once.
"""

_UNITS_PER_SLOT = 4
_MIN_SALT_ROWS = 20_000
NO_KEY = -1
_ANSWER = "answer"


def count_keys(frame: DataFrame, keys: Sequence[str]) -> pa.Table:
    """Return the distinct keys of a frame: `k0.., key_id, key (map), rows`, one pass over the key columns."""
    types = sc.column_types(frame)
    selected = frame.select(*[sc.named(name).alias(k) for k, name in zip(sc.key_names(len(keys)), keys, strict=True)])
    counts = selected.groupBy(*selected.columns).agg(F.count(F.lit(1)).alias("rows"))
    columns = [F.col(k) for k in selected.columns]
    kinds = [key_kind(types[name]) for name in keys]
    return counts.select(
        *selected.columns,
        sc.key_id_column(columns, kinds).alias("key_id"),
        sc.key_map(columns, keys).alias("key"),
        "rows",
    ).toArrow()


def score_frame(frame: DataFrame, store: DataFrame, plan: ScorePlan, request: Request) -> DataFrame:
    """Return the passed columns of a frame and the output columns, one row per row, in no order.

    Parameters
    ----------
    frame
        The input.
    store
        The store table's model columns (`run_id, key_id, part, number` and the model) of the runs in the plan.

    Notes
    -----
    Model rows and data rows are united, repartitioned by unit and sorted by model, the model first. So no worker
    needs a file, the driver never holds the fleet, and a retry is Spark's own.
    """
    types = sc.column_types(frame)
    names = {name: f"p{i}" for i, name in enumerate(dict.fromkeys([*request.passed, *request.features]))}
    units = _assign_units(frame.sparkSession, plan, request.slots)
    rows = _data_rows(frame, names, units, plan, request)
    models = _model_rows(store, plan, units)
    mixed = rows.unionByName(models, allowMissingColumns=True)
    ordered = _models_first(mixed.repartition(units.count, sc.UNIT))
    short = sc.feature_names(len(request.features))
    wanted = [F.col(names[name]).cast("double" if kind == "numeric" else "string").alias(f)
              for f, (name, kind) in zip(short, request.features.items(), strict=True)]  # fmt: skip
    carried = {names[name]: types[name] for name in request.passed}
    is_narrow = len(carried) <= _MAX_CROSSING and all(map(crossings.crosses_exactly, carried.values()))
    engine = _through_pandas if is_narrow else _beside_pandas
    predicted = engine(ordered, wanted, carried, plan.inputs, request.labels)
    return _with_provenance(predicted, plan, carried, request)


def _models_first(rows: DataFrame) -> DataFrame:
    """Return the rows of each partition sorted by model, the model before its data.

    By one number: Spark sorts a single integer by radix, and two columns by comparing rows (seen in Spark 4.0 to 4.2).
    """
    return rows.sortWithinPartitions(F.col(MODEL_IX).cast("bigint") * 2 + F.isnull(MODEL).cast("bigint"))


def _packed_model() -> Column:
    """Return the columns of a model, those of `routing.MODEL_LINES` and `data`, as the one that crosses to Python."""
    return sc.packed([F.col(name).cast("string") for name in MODEL_LINES]).alias(MODEL)


@dataclasses.dataclass(frozen=True)
class _Units:
    """Per key of the plan, its placed units as one flat array with offsets."""

    count: int
    offsets: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]


def _assign_units(spark: SparkSession, plan: ScorePlan, slots: int) -> _Units:
    """Spread models over units by their rows; a hot one gets several, and travels to each."""
    one_of, groups = _served_alike(plan)
    of_keys = plan.keys["rows"].to_numpy()
    rows = np.bincount(groups, of_keys, len(one_of))
    seconds = rows * _ROW_SECONDS + _LOAD_SECONDS
    aimed = int(max(1, min(len(rows) * slots, slots * _UNITS_PER_SLOT)))
    fair = max(float(seconds.sum()) / aimed, _MIN_SALT_ROWS * _ROW_SECONDS)
    salts = np.minimum(np.ceil(seconds / fair), aimed).astype(np.int64)
    owner = np.repeat(np.arange(len(rows)), salts)
    model_bytes = _model_bytes(plan)[one_of]
    unit = pack((seconds / salts)[owner], model_bytes[owner, None], (float(MAX_UNIT_MODEL_BYTES),), aimed)
    count = int(unit.max()) + 1 if len(unit) else 1
    placed = placed_units(spark, count)
    return _of_keys(_Units(count, np.concatenate([[0], np.cumsum(salts)]), placed[unit]), groups, of_keys)


def _served_alike(plan: ScorePlan) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return one key of each group that shares a model, and the group of each key; keys without one are alone.

    Keys that a parent serves are one hot key: its model travels to as many units as its rows need.
    """
    ix = plan.keys[MODEL_IX].to_numpy()
    alone = np.where(ix == NO_MODEL, np.arange(len(ix)) + plan.models.num_rows, ix)
    _, one_of, groups = np.unique(alone, return_index=True, return_inverse=True)
    return one_of, groups


def _of_keys(units: _Units, groups: npt.NDArray[np.intp], rows: npt.NDArray[np.int64]) -> _Units:
    """Return the units of each key, from those of each group of keys: as many as its rows need.

    The keys of a group lie on its units one after the other, as their rows come to. So all lists together have about
    as many units as there are keys and units, where a hot parent may serve very many keys.
    """
    salts = np.diff(units.offsets)[groups]
    in_groups = np.bincount(groups, rows, len(units.offsets) - 1).astype(np.int64)
    of_group = np.maximum(in_groups[groups], 1)
    counts = np.clip(-(-rows * salts // of_group), 1, salts)
    first = (_rows_before(groups, rows, in_groups) * salts) // of_group
    offsets = np.concatenate([[0], np.cumsum(counts)])
    turns = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - first, counts)
    places = np.repeat(units.offsets[:-1][groups], counts) + turns % np.repeat(salts, counts)
    return _Units(units.count, offsets, units.values[places])


def _rows_before(
    groups: npt.NDArray[np.intp], rows: npt.NDArray[np.int64], in_groups: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return per key the rows of the keys of its group that stand before it."""
    order = np.argsort(groups, kind="stable")
    before = np.empty(len(rows), dtype=np.int64)
    before[order] = np.cumsum(rows[order]) - rows[order]
    return np.asarray(before - (np.cumsum(in_groups) - in_groups)[groups], dtype=np.int64)


def _model_bytes(plan: ScorePlan) -> npt.NDArray[np.float64]:
    """Return the bytes of the model that each key of the plan needs, 0 where none."""
    ix = plan.keys[MODEL_IX].to_numpy()
    sizes = np.append(plan.models["model_bytes"].to_numpy(), 0).astype(np.float64)
    return np.asarray(np.where(ix == NO_MODEL, 0.0, sizes[ix]))


def _data_rows(
    frame: DataFrame, names: Mapping[str, str], units: _Units, plan: ScorePlan, request: Request
) -> DataFrame:
    """Return every row with its unit and model; a left join, so that no row is lost if the input is not stable."""
    keys = [sc.named(name).alias(k) for k, name in zip(sc.key_names(len(request.keys)), request.keys, strict=True)]
    rows = frame.select(*keys, *[sc.named(name).alias(p) for name, p in names.items()])
    known = plan.keys.select([*sc.key_names(len(request.keys)), KEY_IX, MODEL_IX])
    lists = pa.ListArray.from_arrays(pa.array(units.offsets, pa.int32()), pa.array(units.values, pa.int32()))
    assigned = upload(frame.sparkSession, known.append_column(UNITS, lists))
    joined = rows.join(F.broadcast(assigned), sc.same_key(rows, assigned, len(request.keys)), "left")
    # Where no row has a model there are no features, and a hash of nothing is refused.
    salt = F.xxhash64(F.lit(0), *[F.col(names[name]) for name in request.features])
    # An input without a row has no units.
    first = int(units.values[0]) if len(units.values) else 0
    unit = F.coalesce(F.get(UNITS, F.pmod(salt, F.size(UNITS)).cast("int")), F.lit(first))
    return joined.select(
        unit.alias(sc.UNIT),
        F.coalesce(KEY_IX, F.lit(NO_KEY)).alias(KEY_IX),
        F.coalesce(MODEL_IX, F.lit(NO_MODEL)).alias(MODEL_IX),
        *[_left_behind(name, p, request.keys) for name, p in names.items()],
    )


def _left_behind(name: str, short: str, keys: Sequence[str]) -> Column:
    """Return a column to take along; a key column only of rows whose key is not in the plan.

    The others' keys come back from the plan, so that texts are neither shuffled nor taken through Python.
    """
    return F.when(F.isnull(KEY_IX), F.col(short)).alias(short) if name in keys else F.col(short)


def _model_rows(store: DataFrame, plan: ScorePlan, units: _Units) -> DataFrame:
    """Return one row per model and unit that has rows of it."""
    model_ix = np.repeat(plan.keys[MODEL_IX].to_numpy(), np.diff(units.offsets))
    pairs = np.unique(np.stack([model_ix, units.values], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != NO_MODEL]
    # A model that others build on is wherever they are.
    bases = np.stack([plan.models["parent_ix"].to_numpy()[pairs[:, 0]], pairs[:, 1]], axis=1)
    pairs = np.unique(np.concatenate([pairs, bases[bases[:, 0] != NO_MODEL]]), axis=0)
    wanted = plan.models.take(pa.array(np.searchsorted(plan.models[MODEL_IX].to_numpy(), pairs[:, 0])))
    wanted = wanted.drop_columns("model_bytes").append_column(sc.UNIT, pa.array(pairs[:, 1], pa.int32()))
    wanted_frame = F.broadcast(upload(store.sparkSession, wanted))
    models = store.where(F.col("part") == WHOLE).drop("sha256")
    found = models.join(wanted_frame, ["run_id", "key_id", "number"])
    # Whole numbers cross to pandas without nulls: of a column with one, pandas makes a slow nullable array.
    return found.select(sc.UNIT, F.lit(NO_KEY).alias(KEY_IX), MODEL_IX, _packed_model())


def _through_pandas(
    rows: DataFrame,
    features: Sequence[Column],
    carried: Mapping[str, str],
    inputs: Mapping[int, Inputs],
    labels: Labels | None,
) -> DataFrame:
    """Predict with `mapInPandas`; the passed columns cross encoded and come back exact."""
    short = sc.feature_names(len(features))
    encoded = [column for name, spark_type in carried.items() for column in crossings.encode(name, spark_type)]
    crossing = rows.select(*encoded, *features, KEY_IX, MODEL_IX, MODEL)
    kept = [*rows.select(*encoded).columns, KEY_IX]
    schema = [crossings.crossing_schema(name, spark_type) for name, spark_type in carried.items()]
    schema += [f"{KEY_IX} int", f"{PREDICTION} {_crossing(labels)}", f"{STATUS} int"]

    def answer(batch: pd.DataFrame, prediction: Floats, status: Codes) -> pd.DataFrame:
        is_data = data_rows(batch)
        scored = batch.loc[is_data, kept]
        scored[PREDICTION], scored[STATUS] = _column(prediction[is_data]), status[is_data]
        return scored

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return predict_stream(batches, inputs, short, answer, labels)

    predicted = crossing.mapInPandas(predict, ", ".join(schema))
    decoded = [crossings.decode(name, spark_type) for name, spark_type in carried.items()]
    return predicted.select(*decoded, KEY_IX, PREDICTION, STATUS)


def _beside_pandas(
    rows: DataFrame,
    features: Sequence[Column],
    carried: Mapping[str, str],
    inputs: Mapping[int, Inputs],
    labels: Labels | None,
) -> DataFrame:
    """Predict with an iterator pandas UDF; the passed columns never leave the JVM.

    The UDF is declared nondeterministic: otherwise Spark pushes the filter on data rows below it, the model rows
    are gone, and every row is without a model (seen in Spark 4.0 to 4.2).
    """
    short = sc.feature_names(len(features))
    names = [*short, MODEL_IX, MODEL]

    def answer(_: pd.DataFrame, prediction: Floats, status: Codes) -> pd.DataFrame:
        return pd.DataFrame({PREDICTION: _column(prediction), STATUS: status})

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.DataFrame]:
        frames = (pd.DataFrame(dict(zip(names, batch, strict=True))) for batch in batches)
        return predict_stream(frames, inputs, short, answer, labels)

    predict.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.DataFrame]}
    udf: Any = pandas_udf(predict, f"{PREDICTION} {_crossing(labels)}, {STATUS} int").asNondeterministic()  # type: ignore[call-overload]
    given = rows.select(*carried, KEY_IX, *features, MODEL_IX, MODEL)
    predicted = given.withColumn(_ANSWER, udf(*[F.col(name) for name in names])).where(F.isnull(MODEL))
    return predicted.select(*carried, KEY_IX, f"{_ANSWER}.{PREDICTION}", f"{_ANSWER}.{STATUS}")


def _crossing(labels: Labels | None) -> str:
    """Return the Spark type of what crosses from Python: a number, or probabilities in the order of the labels."""
    return "double" if labels is None else "array<double>"


def _column(prediction: Floats) -> Any:
    return prediction if prediction.ndim == 1 else list(prediction)


def _known(number: Column) -> Column:
    """Return a number, null where there is none."""
    return F.when(F.isnan(number), None).otherwise(number)


def _told(labels: Labels | None) -> list[Column]:
    """Return the prediction as people read it; of classes the label and the probabilities by label."""
    if labels is None:
        return [_known(F.col(PREDICTION))]
    names, found = F.array(*[F.lit(name) for name in labels.names]), F.col(PREDICTION)
    # Of equally probable labels the first, as everywhere.
    label = label_of(F.array_position(found, F.array_max(found)) - 1, labels).cast(labels.spark_type)
    first = F.get(found, F.lit(0))
    # NaN within an array arrives as null, of which `isnan` says no (seen in Spark 4.2).
    is_known = first.isNotNull() & ~F.isnan(first)
    return [F.when(is_known, label), F.when(is_known, F.map_from_arrays(names, found))]


def _with_provenance(predicted: DataFrame, plan: ScorePlan, carried: Mapping[str, str], request: Request) -> DataFrame:
    """Join what is known of each key, and name the columns as asked."""
    own = [KEY_IX, PLANNED, *PROVENANCE, *map(width_name, plan.intervals)]
    keys = sc.key_names(len(request.keys))
    known = upload(predicted.sparkSession, plan.keys.select([*own, *keys]))
    joined = predicted.join(F.broadcast(known), KEY_IX, "left")
    planned = F.coalesce(F.col(PLANNED), F.lit(SCORE_STATUSES.index("unseen_key")))
    code = F.when(F.col(STATUS) == SCORED, planned).otherwise(F.col(STATUS))
    texts = F.array(*[F.lit(text) for text in SCORE_STATUSES])
    bounds = [
        b for level in map(width_name, plan.intervals)
        for b in (F.col(PREDICTION) - F.col(level), F.col(PREDICTION) + F.col(level))
    ]  # fmt: skip
    values = [*_told(request.labels), *map(_known, bounds), *[F.col(name) for name in PROVENANCE], F.get(texts, code)]
    names = outputs_of(plan.intervals, request.labels)
    outputs = [value.alias(request.prefix + name) for value, name in zip(values, names, strict=True)]
    key_of = dict(zip(request.keys, keys, strict=True))
    passed = [
        F.when(F.col(KEY_IX) == NO_KEY, F.col(p)).otherwise(F.col(key_of[name]).cast(carried[p])) if name in key_of
        else F.col(p)
        for p, name in zip(carried, request.passed, strict=True)
    ]  # fmt: skip
    return joined.select(*[column.alias(n) for column, n in zip(passed, request.passed, strict=True)], *outputs)
