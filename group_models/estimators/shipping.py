"""An estimator for workers that cannot import its module: pickled together with the code of that module.

What travels so are modules of the user's own: files that no package manager put where Python finds them. A class that
travelled is stored with its code in every model, so the model loads where the module is absent.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib.util
import io
import site
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from group_models.estimators.base import PICKLE_PROTOCOL, EstimatorSettings, Shipped
from group_models.estimators.objects import TravelPickler, resolve

_NEVER = frozenset({"__main__", "group_models"})
"""What workers have of their own, and what cloudpickle sends by value anyway."""

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def own_modules(settings: EstimatorSettings) -> list[str]:
    """Return the top-level modules that an estimator may need and that workers may lack, by name.

    These are the one that defines it and all that were loaded here from files that are not installed. A dotted path
    must have been resolved before.
    """
    found = {name for name, module in list(sys.modules.items()) if "." not in name and _is_own(module)}
    return sorted((found | {_home(settings)}) & set(sys.modules) - _NEVER)


def _home(settings: EstimatorSettings) -> str:
    return settings.label.partition(":")[0].partition(".")[0]


def _is_own(module: types.ModuleType) -> bool:
    return _are_own([getattr(module, "__file__", None), *getattr(module, "__path__", [])])


def _are_own(places: Iterable[Any]) -> bool:
    """Return whether these are files, none of which is installed."""
    files = [Path(place).resolve() for place in places if isinstance(place, str)]
    return bool(files) and not any(file.is_relative_to(root) for file in files for root in _installed_roots())


@functools.cache
def _installed_roots() -> tuple[Path, ...]:
    roots = [sysconfig.get_path(name) for name in _INSTALLED] + site.getsitepackages() + [site.getusersitepackages()]
    return tuple({Path(root).resolve() for root in roots})


def by_name(settings: EstimatorSettings) -> Shipped:
    """Return an estimator as it travels by itself: a dotted path, or modules' classes and functions by name."""
    return _pickled(settings.object, settings, ())[0]


def with_code(settings: EstimatorSettings, modules: Iterable[str]) -> tuple[Shipped, dict[str, str]]:
    """Return an estimator with the code of these top-level modules, and what it will still import by name.

    Returns
    -------
    tuple
        The second is by name of an own module which function imports it: such an import is done where it runs, and
        what it names does not travel.

    Raises
    ------
    Exception
        Whatever does not pickle raises.
    """
    source = resolve(settings.object) if isinstance(settings.object, str) else settings.object
    return _pickled(source, settings, tuple(modules))


def _pickled(source: Any, settings: EstimatorSettings, modules: tuple[str, ...]) -> tuple[Shipped, dict[str, str]]:
    buffer = io.BytesIO()
    with _by_value(modules):
        pickler = _CodePickler(buffer, frozenset(modules))
        pickler.dump((source, dict(settings.params)))
    return Shipped(settings.label, buffer.getvalue(), tuple(sorted(pickler.used))), pickler.late_imports


@contextlib.contextmanager
def _by_value(modules: Iterable[str]) -> Iterator[None]:
    """Let cloudpickle write what these modules define, and not its name."""
    mine = [name for name in modules if name not in cloudpickle.list_registry_pickle_by_value()]
    for name in mine:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        yield
    finally:
        for name in mine:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


class _CodePickler(TravelPickler):
    """Pickles, and notes what goes by value: of which modules, and which functions import own ones when they run."""

    def __init__(self, file: io.BytesIO, modules: frozenset[str]) -> None:
        super().__init__(file, protocol=PICKLE_PROTOCOL)
        self._modules = modules
        self.used: set[str] = set()
        self.late_imports: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType | type | types.ModuleType) and _top(obj) in self._modules:
            self.used.add(_top(obj))
            if isinstance(obj, types.FunctionType):
                self._note_imports(obj)
        return super().reducer_override(obj)

    def _note_imports(self, function: types.FunctionType) -> None:
        for name in _imports(function.__code__, function.__globals__):
            if _is_found_here(name):
                self.late_imports.setdefault(name, function.__qualname__)


def _top(thing: Any) -> str:
    """Return the top-level module of a function, a class or a module."""
    name = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
    return str(name or "").partition(".")[0]


def _imports(code: types.CodeType, module: Mapping[str, Any]) -> Iterator[str]:
    """Return the top-level names of the modules that a function imports when it runs."""
    # A prefix that Python puts before the number of a name where a function has more than 255.
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            # `IMPORT_NAME` takes what the two instructions before it load: the level of a relative import, and a list.
            level, name = steps[place - 2].argval, str(step.argval)
            parent = str(module.get("__package__") or "")
            yield (parent if level else name).partition(".")[0]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports(constant, module)


def _is_found_here(name: str) -> bool:
    """Return whether a top-level name is an own module here, loaded or not."""
    if name in _NEVER or not name:
        return False
    if name in sys.modules:
        return _is_own(sys.modules[name])
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    return _are_own([spec.origin if spec.has_location else None, *(spec.submodule_search_locations or [])])
