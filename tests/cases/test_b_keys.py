"""Group keys: nulls, numbers, separators, odd characters, lengths, types."""

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from group_models import api
from group_models.errors import DataError
from group_models.frames import check_columns
from group_models.keys import key_id
from tests.cases.worlds import ENGINES, by_key, scored, trained, values


def test_b1_rows_of_a_null_key_are_trained_and_scored_like_any_other(spark, tmp_path):
    names = ["a", None, "b", None]
    level = {"a": 1.0, "b": 2.0, None: 3.0}
    rows = [(names[i % 4], i, float(i), level[names[i % 4]]) for i in range(120)]
    frame = spark.createDataFrame(rows, "carrier string, row_id int, x double, y double")
    world = trained(frame, tmp_path)
    manifest = by_key(api.show(world.spec))
    assert {key: (row["status"], row["rows"]) for key, row in manifest.items()} == {
        "a": ("trained", 30),
        "b": ("trained", 30),
        None: ("trained", 60),
    }
    for engine in ENGINES:
        out = scored(engine, frame, world.spec)
        assert values(out) == {row_id: y for _, row_id, _, y in rows}
        assert set(out["score_status"]) == {"scored"}


@pytest.mark.parametrize("engine", ENGINES)
def test_b1_rows_of_a_null_key_that_was_not_trained_are_kept_and_say_null_key(spark, lines, engine):
    rows = [("A", 1, 1.0, 2, 3), (None, 2, 1.0, 2, 3), (None, 3, 1.0, 2, 3)]
    frame = spark.createDataFrame(rows, "carrier string, row_id bigint, a double, b int, c bigint")
    out = scored(engine, frame, lines.spec)
    assert values(out, "score_status") == {1: "scored", 2: "null_key", 3: "null_key"}
    assert values(out) == {1: pytest.approx(123), 2: None, 3: None}


@pytest.mark.parametrize("spark_type", ["float", "double"])
def test_b2_a_float_key_is_refused_with_the_types_that_can_be_keys(spark_type):
    mistakes = check_columns({"carrier": spark_type}, keys=["carrier"])
    said = "a key column is text, an integer type, boolean or date; cast it in the source"
    assert mistakes == [f"keys: 'carrier' is {spark_type}; {said}"]


def test_b2_a_float_key_column_is_refused_for_models_of_text_keys_when_scoring(spark, lines):
    frame = spark.createDataFrame(
        [(float("nan"), 1, 1.0, 2, 3)], "carrier double, row_id bigint, a double, b int, c bigint"
    )
    with pytest.raises(DataError, match="'carrier' is double"):
        api.score(frame, lines.spec)
    with pytest.raises(DataError, match=r"key column 'carrier': 1\.5 is float, the models' keys are string"):
        api.score(pd.DataFrame({"carrier": [1.5], "a": [1.0], "b": [2], "c": [3]}), lines.spec)


@pytest.fixture(scope="module")
def stops(spark, tmp_path_factory):
    """Integer keys 1 to 5, the target ten times the key."""
    rows = [(stop, float(x), 10.0 * stop) for stop in range(1, 6) for x in range(4)]
    frame = spark.createDataFrame(rows, "stop int, x double, y double")
    return trained(frame, tmp_path_factory.mktemp("stops"), keys=["stop"])


@pytest.mark.parametrize("engine", ENGINES)
def test_b3_integer_keys_are_found_in_a_batch_that_has_a_null_key(spark, stops, engine):
    frame = spark.createDataFrame([(1, 1, 0.0), (None, 2, 0.0), (5, 3, 0.0)], "stop int, row_id int, x double")
    assert frame.toPandas()["stop"].dtype == np.float64
    out = scored(engine, frame, stops.spec)
    assert values(out) == {1: 10.0, 2: None, 3: 50.0}
    assert values(out, "score_status") == {1: "scored", 2: "null_key", 3: "scored"}


@pytest.mark.parametrize(
    ("engine", "spark_type"), [("narrow", "tinyint"), ("wide", "bigint"), ("pandas", "smallint"), ("pandas", "bigint")]
)
def test_b3_another_width_of_integer_is_the_same_key(spark, stops, engine, spark_type):
    frame = spark.createDataFrame([(4, 1, 0.0)], f"stop {spark_type}, row_id int, x double")
    assert values(scored(engine, frame, stops.spec)) == {1: 40.0}


@pytest.mark.parametrize(
    ("spark_type", "key"), [("string", "1"), ("string", "01"), ("decimal(10,0)", Decimal(1)), ("double", 1.5)]
)
def test_b3_text_decimals_and_fractions_are_refused_and_not_called_unseen(spark, stops, spark_type, key):
    frame = spark.createDataFrame([(key, 1, 0.0)], f"stop {spark_type}, row_id int, x double")
    with pytest.raises(DataError, match=rf"'stop' is {re.escape(spark_type)}.*cast it"):
        api.score(frame, stops.spec)
    with pytest.raises(DataError, match=r"key column 'stop': .* the models' keys are integer; cast it"):
        api.score(frame.toPandas(), stops.spec)


SEPARATED = [("a-b", "c"), ("a", "b-c"), ("a", ""), ("", "a"), (None, "x"), ("None", "x"), ("null", "x"), (None, None)]
ODD = [
    "a/b",
    "a",
    "a%2Fb",
    "x:y",
    "..",
    ".",
    "",
    " ",
    "na\u00efve",
    "nai\u0308ve",
    "\U0001f69a",
    'it\'s "q"',
    "a\nb",
    "a\\b",
]
LONG = ["x" * 300 + digit * 40 + "y" * 60 for digit in "12"] + ["\U0001f69a" * 100]
KEYS = [*SEPARATED, *[(text, "odd") for text in ODD], *[(text, "long") for text in LONG]]
"""Keys whose target is their place in this list."""


@pytest.fixture(scope="module")
def odd(spark, tmp_path_factory):
    rows = [(*key, float(x), float(place)) for place, key in enumerate(KEYS) for x in range(2)]
    frame = spark.createDataFrame(rows, "left string, right string, x double, y double")
    return trained(frame, tmp_path_factory.mktemp("odd"), keys=["left", "right"])


@pytest.fixture(scope="module")
def odd_scored(spark, odd):
    """Score of each key by each way of scoring."""
    rows = [(*key, place, 0.0) for place, key in enumerate(KEYS)]
    frame = spark.createDataFrame(rows, "left string, right string, row_id int, x double")
    return {engine: values(scored(engine, frame, odd.spec)) for engine in ENGINES}


def places(keys):
    return [KEYS.index(key) for key in keys]


@pytest.mark.parametrize("engine", ENGINES)
def test_b4_keys_that_a_separator_would_join_alike_have_their_own_models(odd, odd_scored, engine):
    rows = by_key(api.show(odd.spec))
    assert {rows[key]["status"] for key in SEPARATED} == {"trained"}
    assert len({rows[key]["key_id"] for key in SEPARATED}) == len(SEPARATED)
    assert [odd_scored[engine][place] for place in places(SEPARATED)] == places(SEPARATED)


def test_b4_a_number_and_its_text_are_different_keys():
    assert len({key_id(key) for key in [(1, "1"), ("1", 1), ("1", "1"), (1, 1), (True, "1")]}) == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_b6_keys_of_any_characters_are_scored_by_their_own_models(odd_scored, engine):
    wanted = places((text, "odd") for text in ODD)
    assert [odd_scored[engine][place] for place in wanted] == wanted


def test_b6_the_manifest_keeps_keys_verbatim_and_no_file_is_named_after_one(odd):
    rows = by_key(api.show(odd.spec))
    assert set(rows) == set(KEYS)
    files = [path.relative_to(odd.spec["warehouse"]) for path in Path(odd.spec["warehouse"]).rglob("*")]
    assert len(files) > 20
    assert [file for file in files if not re.fullmatch(r"[\w.=/-]+", str(file), re.ASCII)] == []
    assert [file for file in files if any(row["key_id"] in str(file) for row in rows.values())] == []


def test_b6_the_model_of_any_key_is_loaded_by_its_values(odd):
    for place in (*places((text, "odd") for text in ODD), *places([(None, None)])):
        model = api.load_model(odd.spec, key=dict(zip(("left", "right"), KEYS[place], strict=True)))
        assert model.predict(pd.DataFrame({"x": [0.0]})).tolist() == [place]


@pytest.mark.parametrize("engine", ENGINES)
def test_b7_long_keys_with_equal_ends_have_their_own_models(odd, odd_scored, engine):
    wanted = places((text, "long") for text in LONG)
    rows = by_key(api.show(odd.spec))
    assert [len(text) for text in LONG] == [400, 400, 100]
    assert len({rows[text, "long"]["key_id"] for text in LONG}) == 3
    assert [odd_scored[engine][place] for place in wanted] == wanted


@pytest.mark.parametrize(
    "spark_type", ["timestamp", "timestamp_ntz", "decimal(5,2)", "binary", "array<string>", "struct<a:int>"]
)
def test_b11_a_key_type_whose_text_is_not_one_thing_is_refused_up_front(spark_type):
    mistakes = check_columns({"carrier": spark_type}, keys=["carrier"])
    assert len(mistakes) == 1
    assert mistakes[0].startswith(f"keys: 'carrier' is {spark_type}; a key column is text")


def test_b11_date_and_boolean_keys_do_not_depend_on_the_time_zone_of_the_session(spark, tmp_path, monkeypatch):
    days = [dt.date(2024, 3, 10), dt.date(2024, 11, 3), dt.date(1900, 1, 1), None]
    keys = [(day, flag) for day in days for flag in (True, False)]
    rows = [(*key, place, float(x), float(place)) for place, key in enumerate(keys) for x in range(2)]
    ddl = "day date, is_late boolean, row_id int, x double, y double"
    world = trained(spark.createDataFrame(rows, ddl), tmp_path, keys=["day", "is_late"])
    assert {row["status"] for row in api.show(world.spec)} == {"trained"}
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        once = spark.createDataFrame(rows[::2], ddl)
        out = {engine: values(scored(engine, once, world.spec)) for engine in ENGINES}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [out[engine] for engine in ENGINES] == [{place: place for place in range(8)}] * 3
    midnight = pd.DataFrame({"day": pd.to_datetime([days[0]]), "is_late": [True], "x": [0.0]})
    assert api.score(midnight, world.spec)["prediction"].tolist() == [0.0]
