"""What changes what an alias serves: publish, roll back, pin, unpin; the log of these acts; and what may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from group_models.errors import SpecError, StateError
from group_models.live import cleaning, pinning, publishing
from group_models.live.cleaning import Cleaning
from group_models.live.releases import Release
from group_models.live.sets import Alias, read_key_texts, read_releases, read_runs
from group_models.registering import adopt_before_act, show_release
from group_models.spec import Limits
from group_models.targets import SpecLike, alias_mistake, check_alias, find_target, no_release_text


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
    adopt_before_act(tables, loaded)
    if action == "rollback":
        if to is None and run_id is not None:
            to = publishing.release_of(tables, model_set, run_id, alias).release_id
        done = publishing.rollback(tables, model_set, target=to, alias=alias, note=note)
    else:
        limits = loaded.limits if loaded else Limits()
        run_id = run_id or publishing.newest_run(tables, model_set)
        done = publishing.publish(tables, model_set, run_id, limits=limits, alias=alias, force=force, note=note)
    show_release(tables, loaded)
    return done


def pin(
    spec: SpecLike,
    key: str | Mapping[str, Any],
    *,
    run_id: str,
    alias: Alias = "champion",
    note: str | None = None,
    warehouse: str | None = None,
) -> Release:
    """Hold one key at the model that served it after a run, through publishes and rollbacks, until `unpin`.

    Parameters
    ----------
    key
        A mapping, JSON, `a=1,b=2`, or a key id.
    run_id
        A run whose manifest has a model for the key, its own or an earlier one; it need not be published.

    Raises
    ------
    StateError
        The run left the key without a model; the message says what became of it.
    """
    check_alias(alias)
    model_set, tables, loaded = find_target(spec, warehouse)
    adopt_before_act(tables, loaded)
    done = pinning.pin(tables, model_set, key, run_id=run_id, alias=alias, note=note)
    show_release(tables, loaded)
    return done


def unpin(
    spec: SpecLike,
    key: str | Mapping[str, Any],
    *,
    alias: Alias = "champion",
    note: str | None = None,
    warehouse: str | None = None,
) -> Release:
    """Let go of a pinned key.

    Raises
    ------
    StateError
        The key is not pinned.
    """
    check_alias(alias)
    model_set, tables, loaded = find_target(spec, warehouse)
    adopt_before_act(tables, loaded)
    done = pinning.unpin(tables, model_set, key, alias=alias, note=note)
    show_release(tables, loaded)
    return done


def _check_options(action: str, alias: str, *, has_to: bool, force: bool) -> None:
    mistakes = []
    if action not in ("publish", "rollback"):
        listing = "; the log is what `list_releases` returns" if action == "list" else ""
        mistakes.append(f"action {action!r}: say publish or rollback{listing}")
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
    """Return the release log, oldest first; only rows of one run or alias where asked.

    Raises
    ------
    StateError
        There is neither a release nor a run: the name or the place may be misspelt.
    """
    model_set, tables, _ = find_target(spec, warehouse)
    log = read_releases(tables, model_set)
    if not log and not read_runs(tables, model_set).num_rows:
        raise StateError(no_release_text(tables, model_set))
    return [row for row in log if run_id in (None, row.run_id) and alias in (None, row.alias)]


def clean(spec: SpecLike, *, keep: int, dry_run: bool = True, warehouse: str | None = None) -> Cleaning:
    """Remove the models and rows of old runs that nothing refers to; by default only tell what would go.

    What stays: the newest releases of each alias with all that serves at them, pinned keys, models that serve on
    although the rest of their run goes, parents of models that stay, runs that are not finished and younger than a
    week, and runs that started since the release on which the newest one builds.

    Parameters
    ----------
    keep
        How many releases of each alias stay ones that can be gone back to.

    Returns
    -------
    Cleaning
        What goes and what stays, run by run.
    """
    if keep < 1:
        raise SpecError([f"keep {keep}: say how many releases of each alias stay, at least 1"], where="the call")
    model_set, tables, _ = find_target(spec, warehouse)
    return (
        cleaning.plan_clean(tables, model_set, keep=keep) if dry_run else cleaning.clean(tables, model_set, keep=keep)
    )


def key_texts(spec: SpecLike, log: Sequence[Release], *, warehouse: str | None = None) -> dict[str, str]:
    """Return key id to key as text, of the keys that rows of a release log pin."""
    model_set, tables, _ = find_target(spec, warehouse)
    return read_key_texts(tables, model_set, log)
