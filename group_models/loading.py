"""A spec from a file or a mapping, and every mistake in it as one clear message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from group_models.errors import SpecError
from group_models.spec import Estimator, Source, Spec, is_catalog, is_uri


def load_spec(given: Spec | Mapping[str, Any] | str | Path) -> Spec:
    """Return a checked spec from a YAML file, a mapping or a spec.

    Paths in a file are relative to that file; in a mapping, to the working directory.

    Raises
    ------
    SpecError
        Every mistake at once, one sentence each.
    """
    if isinstance(given, Spec):
        mistakes = check_roles({name: getattr(given, name) for name in Spec.model_fields})
        if mistakes := mistakes + given.override_mistakes() + given.needs_time():
            raise SpecError(mistakes)
        return given
    if isinstance(given, Mapping):
        return _validated(dict(given), "the spec")
    if not isinstance(given, str | Path):
        raise SpecError([f"a {type(given).__name__} is no spec; give a file, a mapping or a Spec"], where="the call")
    path = Path(given)
    return resolve_paths(_validated(read_spec_file(path), str(path)), path.resolve().parent)


def raw_spec(given: Mapping[str, Any] | str | Path) -> dict[str, Any] | None:
    """Return the unchecked content of a spec, or None where it cannot be read as a mapping."""
    try:
        return dict(given) if isinstance(given, Mapping) else read_spec_file(Path(given))
    except SpecError:
        return None


def read_spec_file(path: Path) -> dict[str, Any]:
    """Return a spec file as a mapping, unchecked.

    Raises
    ------
    SpecError
        There is no such file, or it is not a YAML mapping.
    """
    try:
        content, doubled = _parsed(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise SpecError(
            [f"cannot read {path}: {e.strerror}; `group-models init FILE` writes one"], where="the call"
        ) from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise SpecError([f"not YAML: {e}"], where=str(path)) from e
    if content is None:
        raise SpecError(["is empty; `group-models init FILE` writes one to start from"], where=str(path))
    if not isinstance(content, dict):
        raise SpecError([f"holds a {type(content).__name__}; write a mapping of field: value"], where=str(path))
    if doubled:
        raise SpecError(doubled, where=str(path))
    return content


def _parsed(text: str) -> tuple[Any, list[str]]:
    """Return what a YAML text holds, and the fields that it gives twice, of which YAML would keep the last."""
    return yaml.safe_load(text), list(_doubled_fields(yaml.compose(text, Loader=yaml.SafeLoader)))


def _doubled_fields(node: yaml.Node | None, prefix: str = "") -> Iterator[str]:
    lines: dict[str, int] = {}
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        field, line = f"{prefix}{name.value}", name.start_mark.line + 1
        if field in lines:
            yield f"{field}: is given twice, in line {lines[field]} and in line {line}; leave one of them"
        lines.setdefault(field, line)
        yield from _doubled_fields(value, f"{field}.")


def resolve_paths(spec: Spec, folder: Path) -> Spec:
    """Return the spec with its relative paths made absolute against a folder."""
    changes: dict[str, Any] = {}
    if spec.source.path is not None:
        changes["source"] = spec.source.model_copy(update={"path": _resolved(spec.source.path, folder)})
    if spec.warehouse is not None and not is_catalog(spec.warehouse):
        changes["warehouse"] = _resolved(spec.warehouse, folder)
    return spec.model_copy(update=changes)


def _resolved(path: str, folder: Path) -> str:
    return path if is_uri(path) else str(folder / Path(path).expanduser())


_MOUNTED = ("/Volumes/", "/dbfs/")
"""Folders that a Databricks cluster sees and a client elsewhere does not."""


def is_missing(path: str | Path) -> bool:
    """Return whether a path is a local one and not there."""
    return not is_uri(str(path)) and not str(path).startswith(_MOUNTED) and not Path(path).exists()


def _validated(raw: dict[str, Any], where: str) -> Spec:
    content = _shorthands(raw)
    mistakes: list[str] = []
    spec: Spec | None = None
    try:
        spec = Spec.model_validate(content)
    except SpecError as e:
        mistakes += e.mistakes
    mistakes += check_roles(content)
    if spec is not None:
        mistakes += spec.override_mistakes() + spec.needs_time()
    if mistakes or spec is None:
        raise SpecError(mistakes, where=where)
    return spec


def _shorthands(raw: dict[str, Any]) -> dict[str, Any]:
    """Let a family's name stand for an estimator, an estimator for its object, and a DataFrame for a source."""
    content = dict(raw)
    estimator, source = content.get("estimator"), content.get("source")
    if estimator is not None:
        content["estimator"] = _estimator(estimator)
    if isinstance(candidates := content.get("candidates"), list | tuple):
        content["candidates"] = {"estimators": candidates}
    if isinstance(candidates := content.get("candidates"), Mapping) and "estimators" in candidates:
        content["candidates"] = {**candidates, "estimators": [_estimator(each) for each in candidates["estimators"]]}
    if isinstance(overrides := content.get("overrides"), list | tuple):
        content["overrides"] = [_override(each) for each in overrides]
    if hasattr(source, "columns") and not isinstance(source, Source):
        content["source"] = {"frame": source}
    return content


def _override(given: Any) -> Any:
    if isinstance(given, Mapping) and given.get("estimator") is not None:
        return {**given, "estimator": _estimator(given["estimator"])}
    return given


def _estimator(given: Any) -> Any:
    """Return an estimator as the spec's fields have it: a name and an object may stand for one."""
    if isinstance(given, str):
        return {"name": given}
    if not isinstance(given, Mapping | Estimator) and (hasattr(given, "fit") or callable(given)):
        return {"object": given}
    return given


def check_roles(content: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the roles of columns in an unchecked spec: doubled, or in two roles."""
    keys, features = names_in(content.get("keys")), names_in(content.get("features"))
    target, time = content.get("target"), content.get("time_column")
    mistakes = [f"keys: {name!r} stands twice" for name in _doubled(keys)]
    mistakes += [f"features: {name!r} stands twice" for name in _doubled(features)]
    for name in sorted(set(keys) & set(features)):
        mistakes.append(f"features: {name!r} is a key column; it is the same in all rows of a key, so leave it out")
    roles = {"keys": keys, "features": features}
    for role, names in roles.items():
        if target in names:
            mistakes.append(f"{role}: {target!r} is the target; leave it out")
        if time in names:
            mistakes.append(f"{role}: {time!r} is the time_column; leave it out")
    weight = content.get("sample_weight")
    if weight is not None and weight in (target, *keys):
        mistakes.append(f"sample_weight: {weight!r} is {'the target' if weight == target else 'a key column'}")
    if target is not None and target == time:
        mistakes.append(f"time_column: {time!r} is the target")
    return mistakes


def names_in(value: Any) -> list[str]:
    """Return the column names in an unchecked field; none where it is no list."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | tuple) else []


def _doubled(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
