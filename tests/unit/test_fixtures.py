"""The flights and the shipments are what the other tests and the documentation say they are."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from fixtures import make_flights
from fixtures.shipments import (
    NULLABLE_FEATURES,
    SCHEMA,
    key_sizes,
    main,
    shipments,
    shipments_table,
)

FIXTURES = Path(make_flights.__file__).parent
KEYS = ["carrier", "lane", "depot"]


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return pq.read_table(make_flights.OUT)


def test_the_committed_flights_have_the_documented_counts(flights):
    make_flights.check_flights(flights)
    assert make_flights.EXPECTED == {
        "rows": 336_776,
        "keys": 439,
        "smallest key": 1,
        "largest key": 5_694,
        "lanes": 224,
        "carriers": 16,
        "depots": 3,
        "missing air times": 9_430,
        "missing arrival delays": 9_430,
    }


def test_flights_with_other_counts_are_refused(flights):
    with pytest.raises(ValueError, match="'rows': \\(10, 336776\\)"):
        make_flights.check_flights(flights.slice(0, 10))


def test_the_committed_flights_are_what_the_script_makes(flights):
    assert flights.equals(make_flights.flights_table())


def test_making_the_flights_twice_gives_the_same_bytes(tmp_path):
    make_flights.write_flights(tmp_path / "one.parquet")
    make_flights.write_flights(tmp_path / "two.parquet")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_missing_flight_values_are_nulls_and_never_nan(flights):
    assert flights.schema.equals(make_flights.SCHEMA)
    floats = [field.name for field in flights.schema if pa.types.is_floating(field.type)]
    assert not any(pc.any(pc.is_nan(flights[name])).as_py() for name in floats)
    nulls = {name: flights[name].null_count for name in flights.column_names if flights[name].null_count}
    assert nulls["wind_direction_deg"] == 9_796
    assert nulls["wind_gust_mph"] == 256_391
    assert set(nulls) == {*make_flights.WEATHER.values(), "air_time_min", "arrival_delay_min"}


def test_the_flight_id_numbers_the_rows_from_zero(flights):
    assert flights["flight_id"].to_pylist() == list(range(flights.num_rows))


def test_the_schedule_columns_agree_with_the_departure_time(flights):
    frame = flights.to_pandas()
    at = frame["scheduled_departure"].dt
    assert (at.hour == frame["departure_hour"]).all()
    assert (at.minute == frame["departure_minute"]).all()
    assert (at.weekday == frame["weekday"]).all()
    assert (at.dayofyear == frame["day_of_year"]).all()
    assert (frame["lane"].str.split("-").str[0] == frame["depot"]).all()


@pytest.mark.parametrize(
    ("spec", "columns"),
    [("flights.yaml", make_flights.SCHEMA.names), ("shipments.yaml", SCHEMA.names)],
)
def test_the_specs_name_only_columns_that_the_data_has(spec, columns):
    read = yaml.safe_load((FIXTURES / spec).read_text())
    assert {*read["keys"], *read["features"], read["target"], read["time_column"]} <= set(columns)


def test_the_same_seed_gives_the_same_shipments_and_another_seed_others():
    first = shipments(9, 500, skew=1.1, seed=3, null_features=0.1)
    pd.testing.assert_frame_equal(first, shipments(9, 500, skew=1.1, seed=3, null_features=0.1))
    assert not first["eta_hours"].equals(shipments(9, 500, skew=1.1, seed=4)["eta_hours"])


@pytest.mark.parametrize(("n_keys", "n_rows"), [(1, 1), (1, 40), (17, 17), (439, 10_000)])
def test_shipments_have_exactly_the_keys_and_rows_asked_for(n_keys, n_rows):
    frame = shipments(n_keys, n_rows, skew=1.1)
    assert len(frame) == n_rows
    assert len(frame[KEYS].drop_duplicates()) == n_keys
    assert frame["shipment_id"].tolist() == list(range(n_rows))


def test_no_two_shipments_of_a_key_are_picked_up_at_the_same_time():
    frame = shipments(3, 30_000, largest_share=0.99)
    assert not frame.duplicated([*KEYS, "picked_up_at"]).any()
    assert frame["picked_up_at"].is_monotonic_increasing


def test_without_skew_keys_differ_by_at_most_one_row():
    assert key_sizes(7, 100).tolist() == [15, 15, 14, 14, 14, 14, 14]


def test_the_skew_is_a_zipf_exponent():
    sizes = key_sizes(100, 1_000_000, skew=1.0)
    assert sizes.sum() == 1_000_000
    np.testing.assert_allclose(sizes[0] / sizes[[1, 3, 9]], [2, 4, 10], rtol=0.01)


def test_the_largest_share_makes_one_huge_key():
    counts = shipments(10, 1_000, largest_share=0.91).groupby(KEYS).size()
    assert sorted(counts) == [10] * 9 + [910]


@pytest.mark.parametrize(
    ("n_keys", "n_rows", "largest_share"), [(0, 5, None), (6, 5, None), (5, 10, 0.9), (1, 10, 0.5)]
)
def test_sizes_that_cannot_be_are_refused(n_keys, n_rows, largest_share):
    with pytest.raises(ValueError, match="row"):
        key_sizes(n_keys, n_rows, largest_share=largest_share)


def test_nulls_come_in_the_share_asked_for_and_only_where_documented():
    table = shipments_table(shipments(5, 20_000, null_features=0.1, null_target=0.03))
    assert table.schema.equals(SCHEMA)
    shares = {name: table[name].null_count / 20_000 for name in SCHEMA.names if table[name].null_count}
    expected = dict.fromkeys(NULLABLE_FEATURES, 0.1) | {"eta_hours": 0.03}
    assert shares == pytest.approx(expected, abs=0.01)


def test_nulls_leave_the_other_values_as_they_were():
    whole, holed = shipments(5, 200), shipments(5, 200, null_features=0.3, null_target=0.3)
    assert not whole.isna().any().any()
    pd.testing.assert_frame_equal(holed.where(holed.notna(), whole), whole)


def test_each_key_has_a_law_of_its_own():
    frame = shipments(4, 4_000)
    features = ["weight_kg", "distance_km", "carrier_on_time_rate_30d"]
    slopes = [
        np.linalg.lstsq(np.c_[group[features], np.ones(len(group))], group["eta_hours"], rcond=None)[0]
        for _, group in frame.groupby(KEYS)
    ]
    weight_slopes = sorted(slope[0] for slope in slopes)
    assert weight_slopes[0] > 0
    assert weight_slopes[-1] > 1.05 * weight_slopes[0]


def test_the_script_writes_the_same_rows_as_the_library(tmp_path):
    main([str(tmp_path / "out.parquet"), "--keys", "5", "--rows", "60", "--skew", "0.5", "--seed", "3"])
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.equals(shipments_table(shipments(5, 60, skew=0.5, seed=3)))
