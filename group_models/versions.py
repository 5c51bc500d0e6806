"""Versions of Python and of libraries, compared by what decides a fit: major.minor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def minor(version: str) -> str:
    """Return the part of a version that decides whether models are made and read alike.

    Examples
    --------
    >>> minor("1.7.2")
    '1.7'
    """
    return ".".join(version.split(".")[:2])


def differing(then: Mapping[str, str], now: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return those of these libraries that count as another version now, absent ones included.

    Examples
    --------
    >>> differing({"numpy": "2.2.6", "pandas": "2.3.1"}, {"numpy": "2.3.1", "pandas": "2.3.3"}, ["numpy", "pandas"])
    ['numpy']
    """
    return [name for name in names if minor(then.get(name, "")) != minor(now.get(name, ""))]
