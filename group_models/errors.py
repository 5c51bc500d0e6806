"""What can go wrong, as one root class and five kinds.

Every message says what happened, to which key, column, table or file, which rule it broke and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class GroupModelsError(Exception):
    """Root of all errors that this package raises on purpose."""


class SpecError(GroupModelsError):
    """The spec cannot be used; `mistakes` holds one sentence per mistake, all found at once."""

    def __init__(self, mistakes: Sequence[str], *, where: str = "the spec") -> None:
        self.mistakes = tuple(mistakes)
        self.where = where
        lines = "\n".join(f"  - {mistake}" for mistake in self.mistakes)
        plural = "mistake" if len(self.mistakes) == 1 else "mistakes"
        super().__init__(f"{len(self.mistakes)} {plural} in {where}:\n{lines}")


class DataError(GroupModelsError):
    """The data or the frame to score does not fit the spec or the stored models."""


class StateError(GroupModelsError):
    """What is asked contradicts what the tables say: an unknown run, a used run id, a refused release."""


class MovedAliasError(StateError):
    """An alias of a registered model was moved by hand, and no release can be made of that."""


class ModelError(GroupModelsError):
    """A stored model is missing, altered or of a format that this version cannot read."""


class PlatformError(GroupModelsError):
    """Java, Spark, a worker or a library is missing or does not match the driver."""


class ServerError(PlatformError):
    """MLflow's registry or tracking server cannot be reached, or refuses."""


class ServerWarning(UserWarning):
    """What was released or trained stands, and MLflow does not show it yet."""


class LibraryWarning(UserWarning):
    """Stored models were trained with other libraries, or said something while they were read."""


class StoppedError(KeyboardInterrupt):
    """Somebody stopped a run with Ctrl-C; `run_id` goes on with it.

    A kind of KeyboardInterrupt, as no handler of errors is to take it for one.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id} was stopped; what it committed stays, and the same call with run_id={run_id!r} goes on"
        )
