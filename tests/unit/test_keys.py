"""Keys: the canonical form is injective, and ids and seeds come from it and nothing else."""

from __future__ import annotations

import datetime as dt
import hashlib
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from group_models.errors import SpecError
from group_models.keys import (
    Key,
    KeyKind,
    canonical,
    key_id,
    key_json,
    key_seed,
    key_text,
    parse_key,
    parse_key_value,
    texts_id,
)

KINDS: dict[str, KeyKind] = {"carrier": "string", "stop": "integer", "is_hub": "boolean", "day": "date"}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
values = st.one_of(st.none(), texts, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.dates())
keys = st.lists(values, max_size=5).map(tuple)
typed_keys = st.tuples(
    st.none() | texts,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.booleans(),
    st.none() | st.dates(),
)


def read_back(form: str) -> Key:
    """Return the key of a canonical form: that this is possible is what injective means."""
    data, key = form.encode(), []
    while data:
        tag, data = data[:1].decode(), data[1:]
        if tag == "n":
            key.append(None)
            continue
        length, _, data = data.partition(b":")
        text, data = data[: int(length)].decode(), data[int(length) :]
        key.append(_VALUES[tag](text))
    return tuple(key)


_VALUES: dict[str, Any] = {"s": str, "i": int, "b": {"true": True, "false": False}.get, "d": dt.date.fromisoformat}


def typed(key: Key) -> list[tuple[type, Any]]:
    """Return a key such that `True` is not `1`."""
    return [(type(value), value) for value in key]


@settings(deadline=None)
@given(keys)
@example((None, "null", "n", "", " "))
@example(("s2:UA", "2", 2))
@example((unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")))
@example(("日" * 400, "\x00", "a\nb", "🛫"))
@example((True, 1, "1", "true", False, 0))
def test_the_canonical_form_can_be_read_back(key: Key):
    assert typed(read_back(canonical(key))) == typed(key)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a-b", "c"), ("a", "b-c")),
        (("a", "bc"), ("ab", "c")),
        ((None,), ("null",)),
        ((None,), ("",)),
        ((None, "a"), ("a", None)),
        (("a",), ("a", None)),
        ((1,), ("1",)),
        ((True,), ("true",)),
        ((True,), (1,)),
        ((dt.date(2025, 1, 31),), ("2025-01-31",)),
        ((unicodedata.normalize("NFC", "é"),), (unicodedata.normalize("NFD", "é"),)),
        (("A",), ("\u0391",)),
        (("a" * 400,), ("a" * 401,)),
        (("a",), ("a ",)),
        (("s1:a",), ("a",)),
    ],
)
def test_keys_that_look_alike_have_two_ids(one: Key, other: Key):
    assert key_id(one) != key_id(other)


def test_an_id_is_sixteen_bytes_of_the_digest_of_the_canonical_form():
    expected = hashlib.sha256(b"s2:UAni1:3b4:trued10:2025-01-31s2:\xc3\xa9").hexdigest()[:32]
    assert key_id(("UA", None, 3, True, dt.date(2025, 1, 31), "é")) == expected


def test_all_integer_widths_have_one_id():
    widths = [np.int8(5), np.int16(5), np.int32(5), np.int64(5), np.uint8(5)]
    assert {key_id((value,)) for value in widths} == {key_id((5,))}
    assert key_id((np.array([True])[0],)) == key_id((True,))


@pytest.mark.parametrize("value", [1.5, dt.datetime(2025, 1, 1, tzinfo=dt.UTC), b"UA", ("a",)])
def test_a_value_of_another_type_is_no_key(value: Any):
    with pytest.raises(TypeError, match="cannot be a key value"):
        key_id((value,))


@settings(deadline=None)
@given(typed_keys)
def test_a_value_as_text_is_read_back_as_its_kind(key: Key):
    texts_ = [key_text(value) for value in key]
    back = tuple(parse_key_value(text, kind) for text, kind in zip(texts_, KINDS.values(), strict=True))
    assert typed(back) == typed(key)


@settings(deadline=None)
@given(typed_keys)
def test_json_and_a_mapping_of_texts_name_the_same_key(key: Key):
    mapping = {name: key_text(value) for name, value in zip(KINDS, key, strict=True)}
    assert parse_key(key_json(list(KINDS), key), KINDS) == parse_key(mapping, KINDS) == key_id(key)


def test_a_key_is_named_in_four_ways():
    identity = key_id(("UA", 3, True, dt.date(2025, 1, 31)))
    ways = [
        "carrier=UA,stop=3,is_hub=true,day=2025-01-31",
        "day=2025-01-31,is_hub=true,stop=3,carrier=UA",
        '{"carrier": "UA", "stop": 3, "is_hub": true, "day": "2025-01-31"}',
        {"carrier": "UA", "stop": 3, "is_hub": True, "day": dt.date(2025, 1, 31)},
        identity,
    ]
    assert [parse_key(way, KINDS) for way in ways] == [identity] * 5


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ("carrier=UA", "names carrier; the key columns are carrier, stop, is_hub, day"),
        ("carrier", "is not of the form a=1,b=2"),
        ("{carrier", "is no JSON"),
        ({"carrier": "UA", "stop": "x", "is_hub": True, "day": None}, "invalid literal"),
        ({"carrier": "UA", "stop": 3, "is_hub": "yes", "day": None}, "'yes' is not a boolean"),
        ({"carrier": 3, "stop": 3, "is_hub": True, "day": None}, "3 is int, and the key's values are string"),
    ],
)
def test_a_key_that_names_nothing_says_what_would(given_: Any, said: str):
    with pytest.raises(SpecError, match=said):
        parse_key(given_, KINDS)


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1), keys)
def test_a_seed_has_31_bits_and_comes_from_seed_and_key_alone(seed: int, key: Key):
    found = key_seed(seed, key_id(key))
    assert 0 <= found < 2**31
    assert found == key_seed(seed, key_id(tuple(key)))


def test_seeds_of_two_keys_or_two_specs_differ():
    seeds = {key_seed(seed, key_id((number,))) for seed in range(20) for number in range(50)}
    assert len(seeds) == 1000


@pytest.mark.parametrize("given_", ["", " ", ","])
def test_no_text_is_not_the_global_key(given_: str):
    with pytest.raises(SpecError, match=f"key '{given_}' is empty; give JSON"):
        parse_key(given_, KINDS, [["carrier"], []])


@pytest.mark.parametrize("given_", ["global", "{}", {}])
def test_the_global_key_is_named_by_its_name_or_by_no_columns(given_: Any):
    assert parse_key(given_, KINDS, [[]]) == texts_id({}, KINDS)
    with pytest.raises(SpecError, match="the key columns are carrier"):
        parse_key({}, KINDS, [["carrier"]])


def test_a_model_of_no_key_is_refused():
    from group_models.api import load_model

    with pytest.raises(SpecError, match="no key is named; give its columns"):
        load_model("a.b.c")
