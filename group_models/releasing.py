"""What changes or lists what an alias serves: publish, roll back, and the log of both."""

from __future__ import annotations

from typing import Literal

from group_models import publishing
from group_models.errors import SpecError
from group_models.live import Alias, read_releases
from group_models.releases import Release
from group_models.spec import Limits
from group_models.targets import SpecLike, alias_mistake, find_target


def release(
    spec: SpecLike,
    action: Literal["publish", "rollback"] = "publish",
    *,
    run_id: str | None = None,
    to: str | None = None,
    alias: Alias = "champion",
    force: bool = False,
    note: str | None = None,
    warehouse: str | None = None,
) -> Release:
    """Publish a run to an alias, or roll the alias back; one row of the release log.

    Parameters
    ----------
    run_id
        Run to publish (by default the newest finished one), or whose release to roll back to.
    to
        Release to roll back to; by default the publish before the last one that counts.
    force
        Publish also where too many keys failed, or where what the run was trained against counts no longer.
    """
    _check_options(action, alias, has_to=to is not None, force=force)
    model_set, tables, loaded = find_target(spec, warehouse)
    if action == "rollback":
        if to is None and run_id is not None:
            to = publishing.release_of(tables, model_set, run_id, alias).release_id
        return publishing.rollback(tables, model_set, target=to, alias=alias, note=note)
    limits = loaded.limits if loaded else Limits()
    run_id = run_id or publishing.newest_run(tables, model_set)
    return publishing.publish(tables, model_set, run_id, limits=limits, alias=alias, force=force, note=note)


def _check_options(action: str, alias: str, *, has_to: bool, force: bool) -> None:
    mistakes = []
    if action not in ("publish", "rollback"):
        mistakes.append(f"action {action!r}: say publish or rollback")
    if mistake := alias_mistake(alias):
        mistakes.append(mistake)
    if has_to and action == "publish":
        mistakes.append("to: only a rollback goes back to a release; a publish takes run_id")
    if force and action == "rollback":
        mistakes.append("force: a rollback needs none")
    if mistakes:
        raise SpecError(mistakes, where="the call")


def list_releases(
    spec: SpecLike, *, run_id: str | None = None, alias: str | None = None, warehouse: str | None = None
) -> list[Release]:
    """Return the release log, oldest first; only rows of one run or alias where asked."""
    model_set, tables, _ = find_target(spec, warehouse)
    log = read_releases(tables, model_set)
    return [row for row in log if run_id in (None, row.run_id) and alias in (None, row.alias)]
