"""The registered model of a model set, for those who release and score: in step, or a warning and a way to catch up."""

from __future__ import annotations

import contextlib
import warnings

from group_models.adapters.mlflow_around import brief
from group_models.errors import GroupModelsError, MovedAliasError, ServerError, ServerWarning, SpecError
from group_models.live.releases import Release
from group_models.mirroring import Mirroring
from group_models.ports import Tables
from group_models.spec import Spec
from group_models.targets import SpecLike, find_target


def register(spec: SpecLike, *, warehouse: str | None = None) -> list[Release]:
    """Bring the registered model and the release log in step, and return the rows that came to the log.

    What the registry does not show yet becomes a version, and an alias that was moved by hand a release. By itself
    this happens whenever something is published or rolled back.

    Raises
    ------
    SpecError
        The spec does not say `register`.
    MovedAliasError
        An alias was moved in a way that is refused.
    StateError
        The models are more than a version may hold, or the tables cannot be read or written.
    ServerError
        The registry cannot be reached, or refuses.
    """
    _, tables, loaded = find_target(spec, warehouse)
    if loaded is None or loaded.registration is None:
        said = "register: is missing; `register: {}` makes each published state a version of a registered model"
        raise SpecError([said])
    return _mirroring(tables, loaded).keep_in_step()


def adopt_moves(tables: Tables, spec: Spec | None, *, is_brief: bool = False) -> list[Release]:
    """Make a move of an alias by hand a release, before somebody goes by the log; nothing where none is registered.

    Parameters
    ----------
    is_brief
        Wait seconds and not minutes for a registry that does not answer.

    Raises
    ------
    MovedAliasError
        It was moved in a way that is refused.

    Warns
    -----
    ServerWarning
        The registry cannot be asked, or the log not be written: the log as it is decides alone.
    """
    if spec is None or spec.registration is None:
        return []
    try:
        with brief() if is_brief else contextlib.nullcontext():
            rows = _mirroring(tables, spec).adopt()
    except MovedAliasError:
        raise
    except GroupModelsError as e:  # who only scores need not be allowed to write, nor reach the registry
        _warn(f"aliases were not compared with the release log, which decides alone: {e}")
        return []
    return [*rows, *(show_release(tables, spec) if rows else [])]


def adopt_before_act(tables: Tables, spec: Spec | None) -> None:
    """Adopt a move by hand before something is released; one that is refused gives way to what is released now."""
    with contextlib.suppress(MovedAliasError):
        adopt_moves(tables, spec)


def show_release(tables: Tables, spec: Spec | None) -> list[Release]:
    """Let the registry show what was just released; nothing where none is registered.

    Warns
    -----
    ServerWarning
        It does not show it yet: the release stands.
    """
    if spec is None or spec.registration is None:
        return []
    try:
        return _mirroring(tables, spec).show()
    except GroupModelsError as e:  # what was released stands, and nobody shall lose a night to its mirror
        catch_up = "`group-models release register SPEC` catches up"
        _warn(f"what was released stands, and its registered model does not show it yet: {e}. {catch_up}")
        return []


def show_gated(tables: Tables, spec: Spec) -> None:
    """Let the registry show a run that a gate left challenger, as `show_release` does; nothing without that gate."""
    if spec.gates is not None and spec.gates.fleet is not None:
        show_release(tables, spec)


def _mirroring(tables: Tables, spec: Spec) -> Mirroring:
    try:
        from group_models.adapters.mlflow_registry import MlflowRegistry
    except ImportError as e:
        raise ServerError("`register` needs mlflow; install group-models[mlflow]") from e
    rules, track = spec.registration, spec.track
    if rules is None:
        raise SpecError(["register: is missing"])
    registry = MlflowRegistry(
        spec.model_set,
        registry_uri=rules.registry_uri,
        tracking_uri=track.tracking_uri if track else None,
        experiment=track.experiment if track else None,
    )
    return Mirroring(tables, spec.model_set, registry, rules, spec.scoring)


def _warn(text: str) -> None:
    warnings.warn(text, ServerWarning, stacklevel=3)
