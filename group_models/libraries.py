"""Library versions: what trained the stored models against what is installed here, told before a model is read."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias

from group_models.errors import LibraryWarning, PlatformError
from group_models.evaluation import printable
from group_models.versions import differing

Versions: TypeAlias = Mapping[str, str]
"""Name to version, of Python and of the libraries that decide a fit."""

LIBRARIES = ("numpy", "pandas", "scikit-learn", "xgboost", "xgboost-cpu", "cloudpickle", "group-models")
PICKLED = ("python", "numpy", "scikit-learn", "cloudpickle")
"""What the pickle of a named family must meet again to be read as it was written."""

_MOST_NAMED = 3


def installed() -> dict[str, str]:
    """Return the versions of Python and of the libraries that decide a fit, absent ones left out."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name.removesuffix("-cpu")] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def needed(estimator: Mapping[str, object]) -> tuple[str, ...]:
    """Return the libraries that the stored models of a spec's estimator need as they were.

    xgboost's own format needs xgboost alone; of a user's object nobody knows what is in it.

    Examples
    --------
    >>> needed({"name": "xgboost"}), needed({"name": "ridge"})
    (('xgboost',), ('python', 'numpy', 'scikit-learn', 'cloudpickle'))
    """
    if estimator.get("name") is None:
        return (*PICKLED, "pandas", "xgboost")
    return ("xgboost",) if estimator["name"] == "xgboost" else PICKLED


@dataclasses.dataclass(frozen=True)
class TrainedBy:
    """A run whose models are about to be read: what it was trained with, what matters of it, and how many keys."""

    run_id: str
    versions: Versions
    needed: tuple[str, ...]
    keys: int


def check_libraries(runs: Iterable[TrainedBy], here: Versions, on_change: Literal["warn", "refuse"]) -> None:
    """Compare what trained the models with what will read them, in major.minor, and say all differences at once.

    Warns
    -----
    LibraryWarning
        Some differ, and the spec says `warn`.

    Raises
    ------
    PlatformError
        Some differ, and the spec says `refuse`.
    """
    if not (said := library_mistakes(runs, here)):
        return
    text = f"models were trained with other libraries than are installed here: {'; '.join(said)}"
    way_out = "Install what they were trained with, or train them again"
    if on_change == "refuse":
        raise PlatformError(f"{text}. {way_out}; `scoring: {{on_library_change: warn}}` scores all the same.")
    warnings.warn(f"{text}. {way_out}.", LibraryWarning, stacklevel=2)


def library_mistakes(runs: Iterable[TrainedBy], here: Versions) -> list[str]:
    """Return one sentence per library and version that differs: which runs, and how many keys.

    Examples
    --------
    >>> run = TrainedBy("r1", {"numpy": "1.26.4"}, ("numpy",), keys=20)
    >>> library_mistakes([run], {"numpy": "2.1.0"})
    ['numpy 1.26.4 (here 2.1.0): 20 keys of run r1']
    """
    by_version: dict[tuple[str, str], list[TrainedBy]] = {}
    for run in runs:
        known = [name for name in run.needed if run.versions.get(name) is not None]
        for name in differing(run.versions, here, known):
            by_version.setdefault((name, run.versions[name]), []).append(run)
    return [
        f"{name} {there} (here {here.get(name, 'not installed')}): {_named(of_version)}"
        for (name, there), of_version in sorted(by_version.items(), key=lambda item: item[0])
    ]


def _named(runs: list[TrainedBy]) -> str:
    ids = ", ".join(run.run_id for run in runs[:_MOST_NAMED])
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return f"{sum(run.keys for run in runs):,} keys of run{'s' if len(runs) > 1 else ''} {ids}{more}"


@dataclasses.dataclass
class LoadNotes:
    """What was said while stored models were read: each text once, with the first model and how many said it."""

    first: dict[str, str] = dataclasses.field(default_factory=dict)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    @contextmanager
    def reading(self, label: str) -> Iterator[None]:
        """Note the warnings and the error of the block, which the error leaves all the same."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except Exception as error:
                self.note(f"{type(error).__name__}: {error}", label)
                raise
        for warning in caught:
            self.note(f"{warning.category.__name__}: {warning.message}", label)

    def note(self, text: str, label: str) -> bool:
        """Note one text; return whether it is new."""
        text = printable(text.replace("\n", " "), 300)
        is_new = text not in self.first
        self.first.setdefault(text, label)
        self.counts[text] = self.counts.get(text, 0) + 1
        return is_new

    def sentences(self) -> list[str]:
        """Return each text in a sentence."""
        return [f"reading {self.counts[text]:,} model(s), first {self.first[text]}: {text}" for text in self.first]
