"""What must hold for any data: ids, plans in real partitions, hashes, and columns that only pass by."""

from __future__ import annotations

import datetime as dt
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import group_models
from group_models.adapters import spark_columns, spark_score, spark_sizes, spark_train
from group_models.frames import roles
from group_models.keys import Key, key_id
from group_models.ports import SparkFrame, SparkSession
from tests import worlds

# A session is made once and serves all examples. Each example is a Spark job, too slow to look for a smaller one.
one_job_each = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

BIG = 2**53 + 1


class TestKeyIds:
    """Spark and Python give a key the same id."""

    COLUMNS = pa.schema(
        {
            "text": pa.string(),
            "tiny": pa.int8(),
            "small": pa.int16(),
            "medium": pa.int32(),
            "big": pa.int64(),
            "flag": pa.bool_(),
            "day": pa.date32(),
        }
    )
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    rows = st.tuples(
        st.none() | texts,
        *[st.none() | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)],
        st.none() | st.booleans(),
        st.none() | st.dates(),
    )
    ODD: tuple[str | None, ...] = (
        None, "null", "NULL", "", " ", "n", "s1:a", "a,b=c", "a-b", "a\x1fb", "a\x00", "\n", "'\"`\\", "日" * 400, "🛫",
        unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "\u200b", "İ", "ß",
    )  # fmt: skip
    odd = tuple(
        (text, tiny, 2**15 - 1, -(2**31), big, flag, day)
        for text, tiny, big, flag, day in zip(
            ODD,
            itertools.cycle([None, 0, -128, 127]),
            itertools.cycle([None, BIG, -(2**63), 2**63 - 1, 0]),
            itertools.cycle([None, True, False]),
            itertools.cycle(
                [None, dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(2025, 2, 28), dt.date(9999, 12, 31)]
            ),
            strict=False,
        )
    )

    @one_job_each
    @given(batch=st.lists(rows, min_size=150, max_size=150))
    @example(batch=odd)
    def test_they_are_those_of_python(self, any_spark: SparkSession, batch: Sequence[Key]):
        columns = [
            pa.array(values, kind) for values, kind in zip(zip(*batch, strict=True), self.COLUMNS.types, strict=True)
        ]
        frame = any_spark.createDataFrame(pa.table(columns, schema=self.COLUMNS))
        counted = spark_score.count_keys(frame, self.COLUMNS.names).to_pylist()
        found = {tuple(row[f"k{i}"] for i in range(len(columns))): row["key_id"] for row in counted}
        assert found == {key: key_id(key) for key in batch}
        assert sum(row["rows"] for row in counted) == len(batch)


class TestPlacement:
    """A unit has a partition of its own; the largest is in the first."""

    @pytest.mark.parametrize("count", [1, 2, 7, 50, 200])
    def test_the_chosen_ids_land_in_one_partition_each_in_their_order(self, any_spark: SparkSession, count: int):
        ids = spark_train.placed_units(any_spark, count)
        assert len(set(ids.tolist())) == count
        units = pa.table({"place": pa.array(range(count), pa.int32()), "unit": pa.array(ids, pa.int32())})
        landed = (
            any_spark.createDataFrame(units)
            .repartition(count, "unit")
            .select("place", F.spark_partition_id().alias("partition"))
            .toArrow()
            .to_pylist()
        )
        assert sorted((row["place"], row["partition"]) for row in landed) == [(i, i) for i in range(count)]

    @pytest.mark.parametrize("units", [3, 8])
    def test_each_unit_of_a_wave_is_trained_in_its_own_partition_the_largest_in_the_first(
        self, any_spark: SparkSession, tmp_path: Path, units: int
    ):
        spec = worlds.spec(
            worlds.spark_rows(any_spark, worlds.rows(), 5),
            tmp_path,
            estimator={"object": partition_teller(), "version": "1"},
            holdout={"by": "none"},
            compute={"slots": units},
        )
        run = group_models.train(spec, spark=any_spark, release=False)
        rows = {worlds.key_of(row): row for row in group_models.show(spec, run_id=run.run_id)}
        frame = worlds.pandas_rows(worlds.rows())
        told = group_models.score(frame, spec, run_id=run.run_id)
        partition = {
            worlds.key_of({"key": {"carrier": None if pd.isna(c) else c, "stop": None if pd.isna(s) else s}}): p
            for c, s, p in zip(told["carrier"], told["stop"], told["prediction"], strict=True)
        }
        fitted = {key: row for key, row in rows.items() if row["status"] == "trained"}
        assert set(fitted) == set(worlds.FITTED)
        assert {row["unit"] for row in fitted.values()} == set(range(units))
        assert {key: partition[key] for key in fitted} == {key: row["unit"] for key, row in fitted.items()}
        if units == len(fitted):
            largest = max(worlds.SIZES, key=lambda key: worlds.SIZES[key])
            assert (rows[largest]["unit"], partition[largest]) == (0, 0.0)


def partition_teller() -> type:
    """Return an estimator that predicts the partition in which it was fitted."""

    class PartitionTeller:
        def fit(self, x: Any, y: Any) -> PartitionTeller:
            from pyspark import TaskContext

            self.partition = TaskContext.get().partitionId()
            return self

        def predict(self, x: Any) -> np.ndarray:
            return np.full(len(x), float(self.partition))

    return PartitionTeller


class TestHashes:
    """Holdout, sample and fingerprint come from a row's values alone."""

    N = 20_000

    def numbered(self) -> pa.Table:
        numbers = np.arange(self.N)
        keys = pa.array(np.where(numbers % 7 == 0, "x", "y"))
        at = pa.array(numbers * 3_600_000_000, pa.timestamp("us", tz="UTC"))
        half = pa.array(np.where(numbers % 3 == 0, None, numbers / 2), pa.float64())
        return pa.table({"k": keys, "at": at, "i": numbers, "x": half, "y": numbers % 11 * 1.0})

    def fit_columns(self, frame: SparkFrame) -> tuple[SparkFrame, Any]:
        found = roles(spark_columns.column_types(frame), keys=["k"], features=["i", "x"], target="y", time_column="at")
        return spark_columns.fit_columns(frame, found), found

    def flags(self, frame: SparkFrame, choices: Sequence[tuple[str, int, float]]) -> pd.DataFrame:
        """Return which rows (by `i`) each (purpose, seed, share) chooses."""
        chosen = [
            spark_columns.is_chosen(purpose, seed, share).alias(f"c{place}")
            for place, (purpose, seed, share) in enumerate(choices)
        ]
        columns, _ = self.fit_columns(frame)
        return columns.select("f0", *chosen).toPandas().set_index("f0").sort_index()

    def test_they_do_not_depend_on_the_partitions_or_the_order_of_rows(self, any_spark: SparkSession):
        table, found = self.numbered().slice(0, 3000), []
        order = np.random.default_rng(1).permutation(table.num_rows)
        for rows, partitions in [(table, 1), (table.take(order), 7), (table.take(order[::-1]), 50)]:
            frame = any_spark.createDataFrame(rows).repartition(partitions)
            columns, used = self.fit_columns(frame)
            sizes = spark_sizes.measure(columns, used).sort_by("key_id")
            cutoff = spark_sizes.measure_cutoff(columns, 0.2)
            flags = self.flags(frame, [("holdout", 7, 0.2), ("sample", 7, 0.3)])
            found.append((sizes.to_pylist(), cutoff, flags.sum().tolist(), flags.to_numpy().tobytes()))
        assert found[0] == found[1] == found[2]
        assert found[0][1] == 2400 * 3_600_000_000
        assert sorted((row["rows"], row["usable_rows"]) for row in found[0][0]) == [(429, 429), (2571, 2571)]

    def test_choices_for_two_purposes_or_two_seeds_are_independent(self, spark: SparkSession):
        choices = [("holdout", 7, 0.2), ("sample", 7, 0.3), ("salt", 7, 0.5), ("fold", 7, 0.5), ("holdout", 8, 0.2)]
        flags = self.flags(spark.createDataFrame(self.numbered()), choices).to_numpy(float)
        assert len(flags) == self.N
        shares = np.array([share for _, _, share in choices])
        assert np.all(np.abs(flags.mean(axis=0) - shares) < 4 * np.sqrt(shares * (1 - shares) / self.N))
        correlation = np.corrcoef(flags, rowvar=False)
        assert np.all(np.abs(correlation[np.triu_indices(len(choices), 1)]) < 4 / np.sqrt(self.N))

    def test_a_larger_share_chooses_the_same_rows_and_more(self, spark: SparkSession):
        flags = self.flags(spark.createDataFrame(self.numbered()), [("sample", 7, 0.1), ("sample", 7, 0.3)])
        assert not (flags["c0"] & ~flags["c1"]).any()
        assert flags["c0"].sum() < flags["c1"].sum()

    ROW = ("at", "p", "q", "text", "y")
    BASE = (
        (1, 1.0, None, "a", 5.0),
        (2, None, 1.0, None, 6.0),
        (3, 2.0, 2.0, "", 7.0),
    )

    def variants(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return by name what differs from the base by something that a fit could see."""
        found = {"base": [*self.BASE]}
        other = {"at": 9, "p": 9.5, "q": -0.5, "text": "other", "y": 1.5}
        for place, (row, (i, name)) in enumerate(itertools.product(range(3), enumerate(self.ROW))):
            for value in (other[name], None):
                if self.BASE[row][i] != value and (name, value) != ("y", None):
                    rows = [list(r) for r in self.BASE]
                    rows[row][i] = value
                    found[f"{place}: {name} of row {row} is {value!r}"] = [tuple(r) for r in rows]
        swapped = [(at, q, p, text, y) for at, p, q, text, y in self.BASE]
        for row in range(2):
            turned = [swapped[row] if i == row else values for i, values in enumerate(self.BASE)]
            found[f"null and value of row {row} swapped"] = turned
        for name, i in (("p", 1), ("text", 3), ("y", 4), ("at", 0)):
            rows = [list(r) for r in self.BASE]
            rows[0][i], rows[2][i] = rows[2][i], rows[0][i]
            found[f"{name} of rows 0 and 2 swapped"] = [tuple(r) for r in rows]
        found["row 0 twice"] = [*self.BASE, self.BASE[0]]
        found["row 2 gone"] = [*self.BASE[:2]]
        return found

    def fingerprints(self, spark: SparkSession, variants: dict[str, list[tuple[Any, ...]]]) -> dict[str, str]:
        kinds = [pa.timestamp("us", tz="UTC"), pa.float64(), pa.float64(), pa.string(), pa.float64()]
        rows = [(name, *row) for name, of_variant in variants.items() for row in of_variant]
        arrays = [pa.array([row[0] for row in rows])]
        arrays += [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds, start=1)]
        frame = spark.createDataFrame(pa.table(arrays, names=["variant", *self.ROW]))
        used = roles(
            spark_columns.column_types(frame),
            keys=["variant"],
            features=["p", "q", "text"],
            target="y",
            time_column="at",
        )
        sizes = spark_sizes.measure(spark_columns.fit_columns(frame, used), used).to_pylist()
        return {dict(row["key"])["variant"]: row["data_fingerprint"] for row in sizes}

    def test_the_fingerprint_changes_with_any_value(self, any_spark: SparkSession):
        variants = self.variants()
        found = self.fingerprints(any_spark, variants)
        assert set(found) == set(variants)
        assert len(variants) > 25
        alike: dict[str, list[str]] = {}
        for name, fingerprint in found.items():
            alike.setdefault(fingerprint, []).append(name)
        assert [names for names in alike.values() if len(names) > 1] == []

    def test_the_fingerprint_does_not_change_with_the_order_or_with_rows_without_a_target(self, spark: SparkSession):
        same = {
            "base": [*self.BASE],
            "turned": [*self.BASE[::-1]],
            "more": [*self.BASE, (4, 1.0, 1.0, "a", None), (5, 1.0, 1.0, "a", float("nan"))],
        }
        found = self.fingerprints(spark, same)
        assert len(found) == 3
        assert len(set(found.values())) == 1
        assert found["base"].startswith("3-")


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture
def model_set(any_spark: SparkSession, warehouse: Path) -> str:
    """A released model set, trained by whichever session is first to ask."""
    if not any(warehouse.iterdir()):
        group_models.train(worlds.spec(any_spark.createDataFrame(worlds.rows()), warehouse), spark=any_spark)
    return worlds.MODEL_SET


TYPES: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false", "null"),
    "tinyint": ("127Y", "-128Y", "null"),
    "smallint": ("32767S", "-32768S", "null"),
    "int": ("2147483647", "-2147483648", "null"),
    "bigint": (f"{BIG}L", "null", f"-{BIG}L", "9223372036854775807L", "-9223372036854775807L"),
    "float": ("float('NaN')", "null", "float('-0.0')", "float('0.0')", "float('Infinity')", "1.1F", "1.4E-45F"),
    "double": ("double('NaN')", "null", "double('-0.0')", "0.0D", "double('-Infinity')", "0.1D", "4.9E-324D"),
    "decimal(38,18)": (
        "cast('12345678901234567890.123456789012345678' as decimal(38,18))",
        "null",
        "cast('-0.000000000000000001' as decimal(38,18))",
        "cast('0' as decimal(38,18))",
    ),
    "decimal(5,0)": ("cast(99999 as decimal(5,0))", "null"),
    "string": ("'Ünï-日本 🛫'", "null", "''", "'null'", "'NaN'", "'a\\u0000b'"),
    "binary": ("X'00FF'", "null", "X''", "X'C328'"),
    "date": ("date'1600-02-29'", "null", "date'9999-12-31'", "date'0001-01-01'", "date'1970-01-01'"),
    "timestamp": (
        "timestamp'1600-01-01 00:00:00.000001'",
        "null",
        "timestamp'9999-12-31 23:59:59.999999'",
        "timestamp'0001-01-01 00:00:00'",
        "timestamp'1969-12-31 23:59:59.999999'",
    ),
    "timestamp_ntz": (
        "timestamp_ntz'1600-01-01 00:00:00.000001'",
        "null",
        "timestamp_ntz'9999-12-31 23:59:59.999999'",
        "timestamp_ntz'2025-03-30 02:30:00'",
    ),
    "interval year to month": ("interval '-3-11' year to month", "null"),
    "interval day to second": ("interval '106751991 04:00:54.775807' day to second", "null"),
    "array<double>": ("array(double('NaN'), null, double('-0.0'))", "null", "array()"),
    "array<timestamp>": ("array(timestamp'9999-12-31 23:59:59.999999', null)", "null"),
    "map<string,bigint>": (f"map('a', {BIG}L, '', null)", "null", "map()"),
    "struct": (
        f"named_struct('n', {BIG}L, 't', timestamp'1600-01-01 00:00:00')",
        "null",
        "named_struct('n', null, 't', null)",
    ),
    "array<struct>": (f"array(named_struct('m', map(1, array({BIG}L, null))))", "null"),
    "interval": ("make_interval(1, 2, 3, 4, 5, 6, 7.000008)", "null"),
    "variant": ("parse_json('{\"a\": [1, null, 9007199254740993]}')", "null"),
    "time": ("time'23:59:59.999999'", "null", "time'00:00:00'"),
    "void": ("null",),
}  # fmt: skip
"""SQL literals of every type that a frame can have, those that pandas would change among them."""

CROSSING = (
    ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    ("decimal(38,18)", "decimal(5,0)", "string", "binary", "date", "timestamp"),
)
"""Types that cross pandas, as many at once as `wide_crossing` lets through."""

_AS_TEXT = ("float", "double", "array<double>", "map<string,bigint>", "array<struct>", "interval")
"""Types that set operations refuse, or in which they take -0.0 for 0.0."""


def known_types(spark: SparkSession) -> list[str]:
    """Return the types that this session has; Spark 4.1 and later read `time`, and refuse some of what needs it."""
    try:
        spark.sql(f"select {TYPES['time'][0]}").collect()
    except PySparkException:
        return [name for name in TYPES if name != "time"]
    return list(TYPES)


def typed_rows(spark: SparkSession, types: Sequence[str]) -> SparkFrame:
    """Return rows of several keys with a column per type: keys that are scored, unseen, null and without a model."""
    keys = ("'UA', 1", "null, 1", "'no such', 1", "'AA', 1", "null, null")
    count = 2 * max(len(TYPES[name]) for name in types)
    rows = [
        f"({i}L, {keys[i % len(keys)]}, {i}.5D, {i}, {str(i % 2 == 0).lower()}, "
        + ", ".join(TYPES[name][i % len(TYPES[name])] for name in types)
        + ")"
        for i in range(count)
    ]
    names = ["id", "carrier", "stop", "a", "b", "is_fragile", *[f"c{i}" for i in range(len(types))]]
    query = f"select * from values {', '.join(rows)} as t({', '.join(names)})"  # noqa: S608 - literals of this file
    return spark.sql(query).repartition(3)


def comparable(types: Sequence[str]) -> list[str]:
    """Return `id` and the typed columns as SQL that set operations compare exactly."""
    return ["id"] + [
        f"to_json(c{i}) as c{i}" if name == "variant" else f"string(c{i}) as c{i}" if name in _AS_TEXT else f"c{i}"
        for i, name in enumerate(types)
    ]


def check_passed(frame: SparkFrame, scored: SparkFrame, types: Sequence[str]) -> None:
    before, after = frame.selectExpr(*comparable(types)), scored.selectExpr(*comparable(types))
    assert scored.select(*frame.columns).schema.simpleString() == frame.schema.simpleString()
    lost, made = before.exceptAll(after), after.exceptAll(before)
    differences = lost.selectExpr("'lost' as how", "id").unionAll(made.selectExpr("'made' as how", "id")).collect()
    assert differences == []


@pytest.fixture(autouse=True, scope="module")
def wide_crossing() -> Iterator[None]:
    """Let `mapInPandas` take more columns along than pays, so that all types go through pandas."""
    with worlds.through_pandas():
        yield


class TestPassedByColumns:
    """Columns that only pass by come back exactly, whatever their type."""

    @pytest.mark.parametrize("types", CROSSING, ids=["numbers", "others"])
    def test_they_come_back_through_pandas(
        self, any_spark: SparkSession, model_set: str, warehouse: Path, types: Sequence[str]
    ):
        frame = typed_rows(any_spark, types)
        passed = ["id", *[f"c{i}" for i in range(len(types))]]
        scored = group_models.score(frame, model_set, columns=passed, warehouse=str(warehouse), slots=2)
        assert "MapInPandas" in worlds.plan_of(scored)
        check_passed(frame.select(*passed), scored, types)

    def test_they_come_back_beside_pandas(self, any_spark: SparkSession, model_set: str, warehouse: Path):
        types = known_types(any_spark)
        frame = typed_rows(any_spark, types)
        scored = group_models.score(frame, model_set, warehouse=str(warehouse), slots=2)
        plan = worlds.plan_of(scored)
        assert "MapInPandas" not in plan
        assert "ArrowEvalPython" in plan
        check_passed(frame, scored, types)

    def test_the_comparison_sees_what_pandas_would_change(self, spark: SparkSession):
        types = ("bigint", "double", "float", "array<double>", "map<string,bigint>", "struct")
        frame = typed_rows(spark, types)
        changes = [
            ("c0", "if(c0 is null, null, c0 - 1)"),
            ("c1", "if(c1 = 0, 0.0D, c1)"),
            ("c1", "if(isnan(c1), null, c1)"),
            ("c2", "if(isnan(c2), null, c2)"),
            ("c3", "transform(c3, v -> if(v = 0, 0.0D, v))"),
            ("c4", "transform_values(c4, (k, v) -> v - 1)"),
            ("c5", "if(c5 is null, named_struct('n', null, 't', null), c5)"),
        ]
        for name, changed in changes:
            with pytest.raises(AssertionError):
                check_passed(frame, frame.withColumn(name, F.expr(changed)), types)

    rows = st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(),
        st.none() | st.floats(width=32),
        st.none() | st.decimals("-1e19", "1e19", places=18, allow_nan=False),
        st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        st.none() | st.binary(),
        st.none() | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)),  # noqa: DTZ001
        st.none() | st.dates(),
    )
    KINDS = (
        pa.int64(), pa.float64(), pa.float32(), pa.decimal128(38, 18), pa.string(), pa.binary(),
        pa.timestamp("us", tz="UTC"), pa.date32(),
    )  # fmt: skip
    DRAWN = ("bigint", "double", "float", "decimal(38,18)", "string", "binary", "timestamp", "date")

    @pytest.mark.parametrize("engine", ["mapInPandas", "iterator UDF"])
    @one_job_each
    @given(batch=st.lists(rows, min_size=30, max_size=60))
    @example(batch=[(BIG, -0.0, 0.1, Decimal("0.1"), "", b"", dt.datetime(1600, 1, 1), None), (None,) * 8])  # noqa: DTZ001
    def test_any_values_come_back(
        self, any_spark: SparkSession, model_set: str, warehouse: Path, engine: str, batch: list[tuple[Any, ...]]
    ):
        columns = {f"c{i}": pa.array([row[i] for row in batch], kind) for i, kind in enumerate(self.KINDS)}
        numbers = np.arange(len(batch))
        keys = {"carrier": ["UA"] * len(batch), "stop": pa.array([1] * len(batch), pa.int32())}
        features = {"a": numbers * 1.0, "b": numbers, "is_fragile": numbers % 2 == 0}
        frame = any_spark.createDataFrame(pa.table({"id": numbers} | columns | keys | features)).repartition(3)
        asked = (list(columns), self.DRAWN) if engine == "mapInPandas" else (None, self.DRAWN)
        scored = group_models.score(frame, model_set, columns=asked[0], warehouse=str(warehouse), slots=2)
        assert ("MapInPandas" in worlds.plan_of(scored)) == (engine == "mapInPandas")
        # Eight columns are all that goes through pandas, so there is no id among them.
        id_ = F.lit(0).alias("id") if asked[0] else F.col("id")
        check_passed(frame.select(id_, *columns), scored.select(id_, *columns), asked[1])


class TestWhatIsDoneWithTheResult:
    """Spark must not move a filter, a limit or a pruned column below the models."""

    STATUSES = ("scored", "scored", "unseen_key", "no_model", "null_key")

    def frame(self, spark: SparkSession) -> SparkFrame:
        return typed_rows(spark, ["float", "timestamp"])

    @pytest.fixture(params=["mapInPandas", "iterator UDF"])
    def scored(
        self, request: pytest.FixtureRequest, any_spark: SparkSession, model_set: str, warehouse: Path
    ) -> SparkFrame:
        frame = self.frame(any_spark)
        columns = ["id", "carrier", "a"]
        if request.param == "iterator UDF":
            frame, columns = frame.withColumn("t", F.array("id")), None
        scored = group_models.score(frame, model_set, columns=columns, warehouse=str(warehouse), slots=2)
        assert ("MapInPandas" in worlds.plan_of(scored)) == (request.param == "mapInPandas")
        return scored

    @pytest.fixture
    def expected(self, any_spark: SparkSession, model_set: str, warehouse: Path) -> pd.DataFrame:
        """The direct path's answer, by id."""
        frame = self.frame(any_spark).select("id", *worlds.KEYS, *worlds.NUMERIC).toPandas()
        found = group_models.score(frame, model_set, warehouse=str(warehouse)).set_index("id").sort_index()
        assert found["score_status"].tolist() == [self.STATUSES[i % 5] for i in found.index]
        return found

    def test_it_is_the_same_as_of_the_frame_itself(
        self, any_spark: SparkSession, scored: SparkFrame, expected: pd.DataFrame
    ):
        good = expected[expected["score_status"] == "scored"]
        ids = lambda frame: sorted(row["id"] for row in frame.select("id").collect())  # noqa: E731
        assert ids(scored.where("score_status = 'scored'")) == good.index.tolist()
        assert ids(scored.where("prediction is null")) == expected.index[expected["prediction"].isna()].tolist()
        assert ids(scored.where("id < 4 and carrier = 'UA'")) == [0]
        highest = [row["id"] for row in scored.orderBy(F.desc("prediction"), "id").limit(3).collect()]
        assert highest == good["prediction"].sort_values(ascending=False).index[:3].tolist()
        counts = {row["score_status"]: row["count"] for row in scored.groupBy("score_status").count().collect()}
        assert counts == expected["score_status"].value_counts().to_dict()
        assert scored.groupBy().count().collect()[0]["count"] == len(expected)
        assert len(scored.limit(5).collect()) == 5
        assert scored.select("id").count() == len(expected)
        named = any_spark.createDataFrame([("UA", "United")], "carrier string, name string")
        joined = {row["id"]: row["prediction"] for row in scored.join(named, "carrier").collect()}
        assert joined == pytest.approx(good.loc[good["carrier"] == "UA", "prediction"].to_dict(), abs=1e-9)


class TestUploads:
    """What the driver knows of keys reaches Spark whole, in as many pieces as it takes."""

    @pytest.mark.parametrize("rows", [0, 1, 2, 7])
    def test_they_are_the_table(self, any_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows: int):
        monkeypatch.setattr(spark_columns, "_UPLOAD_ROWS", 2)
        table = pa.table(
            {
                "text": pa.array(["a", None, "c", "", "e", "f", "g"][:rows], pa.string()),
                "number": pa.array(range(rows), pa.int32()),
                "units": pa.array([list(range(i)) for i in range(rows)], pa.list_(pa.int32())),
            }
        )
        found = spark_columns.upload(any_spark, table)
        assert found.schema.simpleString() == "struct<text:string,number:int,units:array<int>>"
        assert found.toArrow().sort_by("number").to_pylist() == table.to_pylist()

    def test_an_empty_chunk_hides_nothing_that_comes_after_it(self, any_spark: SparkSession):
        pieces = [pa.table({"number": pa.array(numbers, pa.int32())}) for numbers in ([1, 2], [], [3])]
        found = spark_columns.upload(any_spark, pa.concat_tables(pieces))
        assert sorted(row["number"] for row in found.collect()) == [1, 2, 3]


class TestRowCounts:
    """As many rows come out as go in."""

    COLUMNS = "row_id long, carrier string, stop int, a double, b int, is_fragile boolean"
    ENGINES = pytest.mark.parametrize("extra", ["row_id", "array(row_id)"], ids=["mapInPandas", "iterator UDF"])

    def check(self, frame: SparkFrame, model_set: str, warehouse: Path, rows: int, extra: str) -> list[Any]:
        columns = None if "array" in extra else ["row_id"]
        scored = group_models.score(
            frame.withColumn("extra", F.expr(extra)), model_set, columns=columns, warehouse=str(warehouse), slots=2
        )
        assert scored.count() == rows
        found = scored.select("row_id", "prediction", "score_status").collect()
        assert len(found) == rows
        return found

    @ENGINES
    def test_of_an_empty_input_none(self, any_spark: SparkSession, model_set: str, warehouse: Path, extra: str):
        self.check(any_spark.createDataFrame([], self.COLUMNS), model_set, warehouse, 0, extra)

    @ENGINES
    @pytest.mark.parametrize(("rows", "partitions"), [(3, 50), (100, 7)])
    def test_of_few_rows_in_many_partitions(
        self, any_spark: SparkSession, model_set: str, warehouse: Path, rows: int, partitions: int, extra: str
    ):
        given_ = worlds.rows().slice(0, rows).drop_columns(["y", "at", "color"])
        found = self.check(any_spark.createDataFrame(given_).repartition(partitions), model_set, warehouse, rows, extra)
        assert sorted(row["row_id"] for row in found) == sorted(given_["row_id"].to_pylist())
        direct = group_models.score(worlds.pandas_rows(given_), model_set, warehouse=str(warehouse))
        assert {row["row_id"]: row["score_status"] for row in found} == dict(
            zip(direct["row_id"], direct["score_status"], strict=True)
        )

    @ENGINES
    def test_of_rows_that_all_have_one_key_or_none_that_is_known(
        self, any_spark: SparkSession, model_set: str, warehouse: Path, extra: str
    ):
        ids = "id as row_id, 'Q' as carrier, 1 as stop, 1.0D as a, 1 as b, true as is_fragile"
        unseen = self.check(any_spark.range(40).selectExpr(*ids.split(", ")), model_set, warehouse, 40, extra)
        assert {(row["prediction"], row["score_status"]) for row in unseen} == {(None, "unseen_key")}
