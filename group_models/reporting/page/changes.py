"""What changed from one run to the next: keys, their outcomes and errors, the spec, the libraries. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from group_models.reporting.page.fleet import Floats, values_of
from group_models.texts import flat

SAME = 0.01
"""Share by which an error may differ and still be called the same."""

_UNTOLD = ("warehouse", "compute", "track", "registration")
"""What of a spec changes no model."""


@dataclasses.dataclass(frozen=True)
class Changes:
    """What changed since the run before.

    Attributes
    ----------
    came, went
        Labels of the keys that only one of the runs has.
    moves
        (status then, status now, keys), of keys whose status differs, most keys first.
    ratios
        Error now over error then, one per key with new metrics in both.
    movers
        Key id, label, error then and now, of the keys whose error changed most (by its difference), either way.
    settings, versions
        (name, then, now) of what differs in the spec and in the libraries.
    rows
        Rows of all keys then and now.
    """

    run_id: str
    came: tuple[str, ...]
    went: tuple[str, ...]
    moves: tuple[tuple[str, str, int], ...]
    ratios: Floats
    movers: tuple[tuple[str, str, float, float], ...]
    settings: tuple[tuple[str, str, str], ...]
    versions: tuple[tuple[str, str, str], ...]
    rows: tuple[int, int]

    @property
    def better(self) -> int:
        """Keys whose error fell by more than `SAME`."""
        return int((self.ratios < 1 - SAME).sum())

    @property
    def worse(self) -> int:
        """Keys whose error rose by more than `SAME`."""
        return int((self.ratios > 1 + SAME).sum())


def compare(
    run_id: str,
    before: pd.DataFrame,
    now: pd.DataFrame,
    metric: str,
    started: tuple[Mapping[str, Any], Mapping[str, Any]],
    *,
    most_movers: int = 8,
) -> Changes:
    """Return what changed between two runs.

    Parameters
    ----------
    before, now
        Their keys, by `key_id`: columns `label, status, rows, metrics, model_run_id`.
    started
        Their `started` rows.
    """
    both = now.index.intersection(before.index, sort=False)
    then, today = before.loc[both], now.loc[both]
    errors = values_of(then["metrics"], metric), values_of(today["metrics"], metric)
    # What a model that serves on tells is what it told then.
    is_new = (
        (then["model_run_id"] != today["model_run_id"]).to_numpy() & np.isfinite(errors[0]) & np.isfinite(errors[1])
    )
    return Changes(
        run_id,
        tuple(now["label"][~now.index.isin(before.index)]),
        tuple(before["label"][~before.index.isin(now.index)]),
        _moves(then["status"], today["status"]),
        errors[1][is_new & (errors[0] > 0)] / errors[0][is_new & (errors[0] > 0)],
        _movers(today[is_new], errors[0][is_new], errors[1][is_new], most_movers),
        _differences(*(_settings(row) for row in started)),
        _differences(*(dict(row["versions"] or ()) for row in started)),
        (int(before["rows"].sum()), int(now["rows"].sum())),
    )


def _moves(then: pd.Series, now: pd.Series) -> tuple[tuple[str, str, int], ...]:
    changed = then[then != now].to_frame("then").assign(now=now[then != now])
    counts = changed.value_counts(["then", "now"]).items()
    return tuple((str(pair[0]), str(pair[1]), int(count)) for pair, count in counts)  # type: ignore[index]


def _movers(keys: pd.DataFrame, then: Floats, now: Floats, count: int) -> tuple[tuple[str, str, float, float], ...]:
    order = np.argsort(-np.abs(now - then), kind="stable")[:count]
    return tuple(
        (str(keys.index[i]), str(keys["label"].iloc[i]), float(then[i]), float(now[i]))
        for i in order
        if then[i] != now[i]
    )


def _settings(started: Mapping[str, Any]) -> dict[str, Any]:
    spec = json.loads(started["spec"] or "{}")
    return flat({name: value for name, value in spec.items() if name not in _UNTOLD})


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Return (name, then, now) of what differs; lists as what left and what came.

    Examples
    --------
    >>> _differences({"seed": 7, "features": ["a"]}, {"seed": 8, "features": ["a", "c"]})
    (('features', '', '+ c'), ('seed', '7', '8'))
    """
    names = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    return tuple((name, *_texts(then.get(name), now.get(name))) for name in names)


def _texts(then: Any, now: Any) -> tuple[str, str]:
    if isinstance(then, list) and isinstance(now, list):
        left, came = ([each for each in a if each not in b] for a, b in ((then, now), (now, then)))
        if left or came:
            return _listed("\N{MINUS SIGN}", left), _listed("+", came)
        return _text(then), _text(now)
    return _text(then), _text(now)


def _listed(sign: str, names: list[Any]) -> str:
    return f"{sign} {', '.join(map(_text, names))}" if names else ""


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
