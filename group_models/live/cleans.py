"""What cleans have left of a release log: which runs lost rows, and which releases one can still go back to. Pure.

A clean writes to the log what it is going to remove before it does: a row for each run that is about to lose rows,
and one for each alias of which releases end to be ones that can be gone back to. So whoever decides something on
the log knows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from group_models.errors import StateError
from group_models.live.releases import CHANGING, AsOf, Release, cleaned


def oldest_kept(log: Sequence[Release], alias: str) -> Release | None:
    """Return the oldest release of an alias that cleans have left, None where they have left all."""
    by = _last_clean(log, alias)
    return None if by is None else next(row for row in log if row.release_id == by.target_release_id)


def kept_releases(log: Sequence[Release], alias: str, keep: int) -> list[Release]:
    """Return the newest releases of an alias, up to so many, that can be gone back to; oldest first."""
    first = oldest_kept(log, alias)
    changing = [row for row in log if row.alias == alias and row.action in CHANGING]
    return [row for row in changing if first is None or row.at >= first.at][-keep:]


def new_oldest(log: Sequence[Release], kept: Mapping[str, Sequence[Release]]) -> dict[str, str]:
    """Return per alias the oldest of these releases, where an older one could be gone back to until now."""
    found = {}
    for alias, rows in kept.items():
        reachable = kept_releases(log, alias, len(log))
        if rows and reachable[0] != rows[0]:
            found[alias] = rows[0].release_id
    return found


def check_kept(log: Sequence[Release], aliases: Sequence[str], as_of: AsOf) -> None:
    """Refuse a moment whose live set a clean has removed models of.

    Parameters
    ----------
    log
        Oldest first.
    aliases
        Those whose publishes count for what is asked.

    Raises
    ------
    StateError
        It names the clean and the oldest release that is left.
    """
    if as_of is None:
        return
    moment = as_of if isinstance(as_of, dt.datetime) else next((r.at for r in log if r.release_id == as_of), None)
    for alias in aliases:
        by, first = _last_clean(log, alias), oldest_kept(log, alias)
        if by is not None and first is not None and moment is not None and moment < first.at:
            raise StateError(
                f"{as_of} is before the oldest release of {alias} that is left, {first.release_id}: models of it were "
                f"removed when {_who(by)}"
            )


def cleaned_text(log: Sequence[Release], run_id: str) -> str | None:
    """Return when and by whom a run was cleaned, as a sentence; None where it never was."""
    by = cleaned(log).get(run_id)
    return None if by is None else f"only what still served is left of run {run_id} since {_who(by)}"


def _last_clean(log: Sequence[Release], alias: str) -> Release | None:
    rows = [row for row in log if row.action == "clean" and row.alias == alias and row.target_release_id is not None]
    return rows[-1] if rows else None


def _who(by: Release) -> str:
    return f"{by.by or 'somebody'} cleaned ({by.note}) at {by.at:%Y-%m-%d %H:%M:%S} UTC"
