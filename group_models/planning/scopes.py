"""The keys that a run answers for: all, those of a predicate, or those of a list."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from group_models.errors import SpecError
from group_models.keys import KeyKind, KeyTexts, given_key, is_key_id, key_id, key_text

KeysLike: TypeAlias = str | Path | Sequence[Any]
"""A list of keys: a file, or keys as a person gives them (mappings, tuples, `a=1,b=2`, key ids)."""

KEYS, FAILED_KEYS = "keys", "failed keys"
"""What a scope's text says of a list: keys that somebody named, or those that failed before."""

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Scope:
    """The keys that a run answers for; by default all.

    Attributes
    ----------
    where
        A predicate on key columns, or None.
    keys
        Key id to the key's texts, or None where it is no list.
    text
        What the run table says; None for all keys. Equal for equal scopes.
    """

    where: str | None = None
    keys: Mapping[str, KeyTexts] | None = None
    text: str | None = None

    @classmethod
    def of_where(cls, where: str) -> Self:
        """Return the keys for which a predicate is true."""
        return cls(where=where, text=where)

    @classmethod
    def of_keys(cls, keys: Mapping[str, KeyTexts], what: str = KEYS) -> Self:
        """Return the keys of a list."""
        digest = hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]
        return cls(keys=keys, text=f"{what}: {len(keys)} ({digest})")

    @property
    def has_no_failed_key(self) -> bool:
        """Whether it is the keys that failed before, and none did."""
        return list_of(self.text) == FAILED_KEYS and not self.keys

    def describe(self) -> str:
        """Return the scope for people."""
        return self.text or "all keys"

    def holds(self, key_ids: Sequence[str]) -> list[bool]:
        """Return which keys are on the list."""
        return [self.keys is None or key in self.keys for key in key_ids]


def list_of(text: str | None) -> str | None:
    """Return what a scope's text says of its list, None where it is no list; no predicate starts like one.

    Examples
    --------
    >>> list_of("failed keys: 2 (0011)"), list_of("carrier = 'keys: 2'"), list_of(None)
    ('failed keys', None, None)
    """
    return next((what for what in (KEYS, FAILED_KEYS) if text is not None and text.startswith(f"{what}: ")), None)


@dataclasses.dataclass(frozen=True)
class Ask:
    """Which keys and which run a caller asks for.

    Attributes
    ----------
    run_id
        Of a new run, or of one that goes on.
    resume
        The run that must be there and goes on.
    """

    where: str | None = None
    keys: KeysLike | None = None
    failed_only: bool = False
    run_id: str | None = None
    resume: str | None = None

    def check(self) -> None:
        """Refuse what makes no sense together.

        Raises
        ------
        SpecError
            Every mistake at once.
        """
        named = {"where": self.where is not None, "keys": self.keys is not None, "failed_only": self.failed_only}
        given = [name for name, is_given in named.items() if is_given]
        mistakes = []
        if len(given) > 1:
            mistakes.append(f"{' and '.join(given)}: each of them says which keys a run answers for; give one")
        if self.resume is not None and given:
            mistakes.append(f"resume: run {self.resume} answers for the keys it was started for; leave out {given[0]}")
        if self.resume is not None and self.run_id is not None:
            mistakes.append("run_id: resume names the run already; leave out one of them")
        if mistakes:
            raise SpecError(mistakes, where="the call")


def read_keys(
    given: KeysLike, kinds: Mapping[str, KeyKind], known: Callable[[], Mapping[str, KeyTexts]]
) -> dict[str, KeyTexts]:
    """Return the keys of a list by key id; a key that stands twice is one key.

    Parameters
    ----------
    given
        A file (CSV with the key columns as header, where an empty field is null; JSON lines; or one key id a line)
        or keys.
    kinds
        The key columns in order and what their values are.
    known
        Asked for the keys that the model set knows, by key id, where the list has key ids.

    Raises
    ------
    SpecError
        The file cannot be read, has other columns, or keys that are none; the first few are named.
    """
    is_file = isinstance(given, str | Path)
    entries = _file_entries(Path(given)) if isinstance(given, str | Path) else _entries(given, list(kinds))
    found, ids, mistakes = _sorted_out(entries, kinds)
    texts = known() if ids else {}
    found |= {identity: texts[identity] for identity in ids if identity in texts}
    mistakes += [f"{place}: {identity}: {_UNKNOWN}" for identity, place in ids.items() if identity not in texts]
    if not found and not mistakes:
        mistakes = [f"{'the file' if is_file else 'keys'} names no key"]
    if mistakes:
        more = [f"and {len(mistakes) - _SHOWN} more"] if len(mistakes) > _SHOWN else []
        raise SpecError(mistakes[:_SHOWN] + more, where=str(given) if is_file else "the call")
    return found


_UNKNOWN = "no published run knows a key of this id; write its key columns instead"


def _sorted_out(
    entries: Iterable[tuple[str, Any]], kinds: Mapping[str, KeyKind]
) -> tuple[dict[str, KeyTexts], dict[str, str], list[str]]:
    """Return the keys by id, the key ids with the place of each, and what is wrong with the rest."""
    keys: dict[str, KeyTexts] = {}
    ids: dict[str, str] = {}
    mistakes: list[str] = []
    for place, entry in entries:
        if is_key_id(entry):
            ids.setdefault(entry, place)
            continue
        try:
            key = given_key(entry, kinds)
        except SpecError as e:
            mistakes += [f"{place}: {said}" for said in e.mistakes]
        else:
            keys[key_id(key)] = dict(zip(kinds, map(key_text, key), strict=True))
    return keys, ids, mistakes


def _entries(given: Sequence[Any], columns: list[str]) -> Iterator[tuple[str, Any]]:
    for number, entry in enumerate(given, 1):
        if isinstance(entry, tuple) and len(entry) == len(columns):
            yield f"key {number}", dict(zip(columns, entry, strict=True))
        elif isinstance(entry, str | Mapping):
            yield f"key {number}", entry
        else:
            rule = f"give a mapping, a tuple of {len(columns)} values, text such as a=1,b=2, or a key id"
            raise SpecError([f"key {number} is {entry!r}; {rule}"], where="the call")


def _file_entries(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield place and entry of each line of a file that is not blank."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        said = e.strerror if isinstance(e, OSError) else f"not UTF-8 ({e})"
        raise SpecError([f"cannot read the list of keys: {said}"], where=str(file)) from e
    # Not `splitlines`, which also splits inside of texts, at U+2028 and the like.
    lines = text.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("{"):
        yield from _json_entries(lines, file)
    elif is_key_id(first):
        yield from ((f"line {n}", line.strip()) for n, line in enumerate(lines, 1) if line.strip())
    else:
        yield from _csv_entries(text, file)


def _json_entries(lines: Sequence[str], file: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", dict(json.loads(line))
        except (TypeError, ValueError) as e:
            raise SpecError([f"line {number} is no JSON object ({e}): {line[:80]!r}"], where=str(file)) from e


def _csv_entries(text: str, file: Path) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                said = f"line {reader.line_num} has another number of fields than the header"
                raise SpecError([said], where=str(file))
            yield f"line {reader.line_num}", {name.strip(): value or None for name, value in row.items()}
    except csv.Error as e:
        raise SpecError([f"line {reader.line_num} is no CSV ({e})"], where=str(file)) from e
