"""Keys: tuples of values, their canonical form and their ids.

A key is always a tuple, also for one key column. Its canonical form is injective: per column a type tag, the
length in UTF-8 bytes and the value (`s5:hello`), or `n` for null. So `('a-b', 'c')` and `('a', 'b-c')`, null
and the text `'null'`, `1` and `'1'` never meet. All integer widths share one tag, so that an id trained as
`int` is found when it is scored as `bigint`.

A parent is a key of which some columns are left open: `*` in the canonical form, and not there where its values are
a mapping. So parents of all levels and keys have ids of one kind, and none meets another.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from group_models.errors import SpecError

KeyValue: TypeAlias = str | int | bool | dt.date | None
Key: TypeAlias = tuple[KeyValue, ...]
KeyKind: TypeAlias = Literal["string", "integer", "boolean", "date"]

KeyTexts: TypeAlias = Mapping[str, str | None]
"""A key or a parent as its columns and their values as text; columns that it leaves open are not there."""

GLOBAL = "global"
"""Name of the level, and of its one key, that leaves all columns open."""

KEY_ID_LENGTH = 32
"""Hex digits of a key id: the first 16 bytes of a SHA-256."""

_KEY_ID = re.compile(f"[0-9a-f]{{{KEY_ID_LENGTH}}}")
_TAGS: Mapping[KeyKind, str] = {"string": "s", "integer": "i", "boolean": "b", "date": "d"}


def key_tag(kind: KeyKind) -> str:
    """Return the one-letter type tag of the canonical form.

    Examples
    --------
    >>> key_tag("integer")
    'i'
    """
    return _TAGS[kind]


def key_text(value: KeyValue) -> str | None:
    """Return a key value as text, the same in Python and in a Spark cast; None stays None.

    Examples
    --------
    >>> key_text(True), key_text(7), key_text(dt.date(2013, 1, 31)), key_text(None)
    ('true', '7', '2013-01-31', None)
    """
    if value is None:
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, dt.date):
        return value.isoformat()
    return str(value)


def parse_key_value(text: str | None, kind: KeyKind) -> KeyValue:
    """Return the value that `key_text` wrote; inverse of `key_text` for a column of this kind.

    Raises
    ------
    ValueError
        The text is not a value of this kind.

    Examples
    --------
    >>> parse_key_value("7", "integer"), parse_key_value("7", "string")
    (7, '7')
    """
    if text is None or kind == "string":
        return text
    if kind == "integer":
        return int(text)
    if kind == "date":
        return dt.date.fromisoformat(text)
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not a boolean; write true or false")
    return text.lower() == "true"


def canonical(key: Key) -> str:
    """Return the canonical form of a key.

    Examples
    --------
    >>> canonical(("UA", None, 3))
    's2:UAni1:3'
    """
    return "".join(_canonical_value(value) for value in key)


def _canonical_value(value: KeyValue) -> str:
    return "n" if value is None else _canonical_text(key_text(value), _kind_of(value))


def _canonical_text(text: str | None, kind: KeyKind) -> str:
    return "n" if text is None else f"{_TAGS[kind]}{len(text.encode())}:{text}"


def _kind_of(value: KeyValue) -> KeyKind:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | np.integer):
        return "integer"
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return "date"
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be a key value; use text, integer, boolean, date")


def key_id(key: Key) -> str:
    """Return the id of a key: the first 16 bytes of the SHA-256 of its canonical form, in hex.

    Examples
    --------
    >>> key_id(("UA",)) == key_id(("UA", None))
    False
    >>> len(key_id(()))
    32
    """
    return _digest(canonical(key))


def _digest(form: str) -> str:
    return hashlib.sha256(form.encode()).hexdigest()[:KEY_ID_LENGTH]


def texts_id(texts: KeyTexts, kinds: Mapping[str, KeyKind]) -> str:
    """Return the id of a key or a parent from its values as text; columns that are not there are left open.

    Examples
    --------
    >>> kinds = {"carrier": "string", "stop": "integer"}
    >>> texts_id({"carrier": "UA", "stop": "3"}, kinds) == key_id(("UA", 3))
    True
    >>> len({texts_id(texts, kinds) for texts in ({"carrier": "UA"}, {"carrier": "UA", "stop": None}, {})})
    3
    """
    parts = [_canonical_text(texts[name], kind) if name in texts else "*" for name, kind in kinds.items()]
    return _digest("".join(parts))


def key_json(columns: Sequence[str], key: Key) -> str:
    """Return a key as compact JSON, one text or null per column.

    Examples
    --------
    >>> key_json(["carrier", "stop"], ("UA", 3))
    '{"carrier":"UA","stop":"3"}'
    """
    values = {column: key_text(value) for column, value in zip(columns, key, strict=True)}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def show_key(key: KeyTexts) -> str:
    """Return a key as people write it: `carrier=UA, lane=EWR-IAH`, nulls as `null`.

    Examples
    --------
    >>> show_key({"carrier": "UA", "lane": None}), show_key({})
    ('carrier=UA, lane=null', 'global')
    """
    return ", ".join(f"{column}={'null' if text is None else text}" for column, text in key.items()) or GLOBAL


def level_name(columns: Sequence[str]) -> str:
    """Return the name of a level: its columns joined by commas, `global` for the empty level.

    Examples
    --------
    >>> level_name(["carrier", "depot"]), level_name([])
    ('carrier,depot', 'global')
    """
    return ",".join(columns) if columns else GLOBAL


def key_seed(seed: int, identity: str, part: int = -1) -> int:
    """Return the random seed of one key (31 bits): from the spec's seed and the key's id and nothing else.

    Each part of a salted key (`part` from 0) has a seed of its own.
    """
    of_part = f"{identity}/{part}" if part >= 0 else identity
    digest = hashlib.sha256(f"{seed}:{of_part}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


def parse_key(key: str | Mapping[str, Any], kinds: Mapping[str, KeyKind], levels: Sequence[Sequence[str]] = ()) -> str:
    """Return the id of a key as a person gives it: a mapping, JSON, `a=1,b=2`, or the id itself.

    Parameters
    ----------
    kinds
        The key columns in order and what their values are.
    levels
        Columns of the parents that may be named as well; the one without columns is `global`.

    Raises
    ------
    SpecError
        It does not name exactly the key columns, or a value is of another kind.

    Examples
    --------
    >>> kinds = {"carrier": "string", "stop": "integer"}
    >>> parse_key("carrier=UA,stop=3", kinds) == parse_key('{"stop": 3, "carrier": "UA"}', kinds)
    True
    >>> parse_key("carrier=UA", kinds, [["carrier"], []]) == texts_id({"carrier": "UA"}, kinds)
    True
    """
    return key if isinstance(key, str) and is_key_id(key) else texts_id(given_texts(key, kinds, levels), kinds)


def given_texts(
    key: str | Mapping[str, Any], kinds: Mapping[str, KeyKind], levels: Sequence[Sequence[str]] = ()
) -> dict[str, str | None]:
    """Return the values of a key or a parent as text; the arguments are those of `parse_key`.

    Raises
    ------
    SpecError
        As for `parse_key`.

    Examples
    --------
    >>> given_texts("global", {"carrier": "string"}, [[]]), given_texts("carrier=UA", {"carrier": "string"}, [[]])
    ({}, {'carrier': 'UA'})
    """
    given: Any = {} if key == GLOBAL and () in map(tuple, levels) else key
    if isinstance(given, str) and not given.strip(" ,"):
        # No columns are the global key, but who wrote nothing has rather forgotten them.
        raise _key_error(key, "is empty")
    named = _split_key(given) if isinstance(given, str) else given
    columns = next((level for level in levels if set(level) == set(named)), list(kinds))
    values = given_key(named if len(columns) < len(kinds) else key, {name: kinds[name] for name in columns})
    return dict(zip(columns, map(key_text, values), strict=True))


def is_key_id(text: object) -> bool:
    """Return whether something is the id of a key.

    Examples
    --------
    >>> is_key_id(key_id(("UA",))), is_key_id("UA")
    (True, False)
    """
    return isinstance(text, str) and _KEY_ID.fullmatch(text) is not None


def given_key(key: str | Mapping[str, Any], kinds: Mapping[str, KeyKind]) -> Key:
    """Return the values of a key as a person gives it: a mapping, JSON or `a=1,b=2`.

    Raises
    ------
    SpecError
        It does not name exactly the key columns, or a value is of another kind.

    Examples
    --------
    >>> given_key("carrier=UA,stop=3", {"carrier": "string", "stop": "integer"})
    ('UA', 3)
    """
    given = _split_key(key) if isinstance(key, str) else dict(key)
    if set(given) != set(kinds):
        raise _key_error(key, f"names {', '.join(given) or 'no columns'}; the key columns are {', '.join(kinds)}")
    try:
        values = tuple(_given_value(given[name], kind) for name, kind in kinds.items())
        canonical(values)
    except (TypeError, ValueError) as e:
        raise _key_error(key, str(e)) from e
    return values


def _split_key(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as e:
            raise _key_error(text, f"is no JSON ({e})") from e
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if any(not equals for _, equals, _ in pairs):
        raise _key_error(text, "is not of the form a=1,b=2")
    return {name.strip(): value for name, _, value in pairs}


def _given_value(value: Any, kind: KeyKind) -> KeyValue:
    if value is None or _kind_of(value) == kind:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        return parse_key_value(value, kind)
    raise ValueError(f"{value!r} is {type(value).__name__}, and the key's values are {kind}")


def _key_error(key: object, said: str) -> SpecError:
    way_out = 'give JSON such as {"carrier": null} for nulls, commas and =, or a key_id'
    return SpecError([f"key {key!r} {said}; {way_out}"], where="the call")
