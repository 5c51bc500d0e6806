"""Levels: the parents of keys, and which of them serves a key that has no model of its own.

A level is some of the key columns, in their order; the key of a level, a parent, is trained on the rows of all keys
that have its values. Levels are told from specific to general, each with some of the columns of the one before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence

from group_models.keys import GLOBAL, KeyKind, KeyTexts, level_name, texts_id


@dataclasses.dataclass(frozen=True)
class Levels:
    """The levels of a model set.

    Attributes
    ----------
    kinds
        The key columns in order and what their values are.
    parents
        The columns of each level above the keys, from specific to general.
    """

    kinds: Mapping[str, KeyKind]
    parents: tuple[tuple[str, ...], ...] = ()

    @property
    def own(self) -> str:
        """The name of the keys' own level."""
        return level_name(list(self.kinds))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all levels in the order in which they are trained: general first, the keys' own last."""
        return (*(level_name(columns) for columns in reversed(self.parents)), self.own)

    def nearest(self, keys: Iterable[KeyTexts], has_model: Container[str]) -> list[str | None]:
        """Return of each key or parent the id of the most specific parent above it that has a model, or None.

        Examples
        --------
        >>> levels = Levels({"carrier": "string", "stop": "integer"}, (("carrier",), ()))
        >>> ids = {texts_id(texts, levels.kinds): name for name, texts in (("UA's", {"carrier": "UA"}), ("all", {}))}
        >>> keys = [{"carrier": "UA", "stop": "3"}, {"carrier": "AA", "stop": None}, {"carrier": "UA"}]
        >>> [ids[found] for found in levels.nearest(keys, ids)]
        ["UA's", 'all', 'all']
        """
        known: dict[tuple[tuple[str, ...], tuple[str | None, ...]], str] = {}
        return [self._nearest(key, has_model, known) for key in keys]

    def _nearest(
        self,
        key: KeyTexts,
        has_model: Container[str],
        known: dict[tuple[tuple[str, ...], tuple[str | None, ...]], str],
    ) -> str | None:
        for level in self.parents:
            if len(level) >= len(key) or any(name not in key for name in level):
                continue
            place = level, tuple(key[name] for name in level)
            if (identity := known.get(place)) is None:
                # Many keys have one parent: its id is made once.
                identity = known[place] = texts_id(dict(zip(*place, strict=True)), self.kinds)
            if identity in has_model:
                return identity
        return None


def level_width(name: str) -> int:
    """Return how many columns a level of this name has, to put levels in order.

    Examples
    --------
    >>> level_width("carrier,stop"), level_width("global")
    (2, 0)
    """
    return 0 if name == GLOBAL else name.count(",") + 1


def level_mistake(levels: Sequence[Sequence[str]], keys: Sequence[str]) -> str | None:
    """Return what is wrong with the levels of a spec, or None.

    Examples
    --------
    >>> level_mistake([["carrier"], []], ["carrier", "stop"])
    >>> level_mistake([["stop"], ["carrier"]], ["carrier", "stop"])
    '[carrier] is not a part of [stop]; write levels from specific to general, each with some columns of the one before'
    """
    before: Sequence[str] = keys
    for level in levels:
        if len(set(level)) < len(level):
            return f"{_shown(level)} has a column twice"
        if unknown := [name for name in level if name not in keys]:
            return f"{_shown(level)} has {', '.join(map(repr, unknown))}; a level has some of the key columns"
        if not set(level) < set(before):
            what = "is the keys themselves" if set(level) == set(keys) else f"is not a part of {_shown(before)}"
            rule = "write levels from specific to general, each with some columns of the one before"
            return f"{_shown(level)} {what}; {rule}"
        before = level
    return None


def _shown(columns: Sequence[str]) -> str:
    return f"[{', '.join(columns)}]"
