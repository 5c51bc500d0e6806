"""How a fit can end that gave no outcome, and what to tell whoever finds it in the morning."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
from typing import Any, Literal, TypeAlias

from group_models.evaluation import MAX_MESSAGE, MAX_TRACEBACK, Stage, error_summary, printable

Deadly: TypeAlias = Literal["crashed", "timed_out", "out_of_memory", "failed"]
"""Statuses of a fit that ended without an outcome of its own."""

_MIB = 2**20

RAISED = 70
"""Exit code of a child whose work raised."""

_OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory")
"""What libraries write before they abort for want of memory."""

_FATAL, _WATCHDOG = "Fatal Python error", "Timeout ("
"""How `faulthandler` begins when a process is killed by a signal, and when it ends one itself."""


@dataclasses.dataclass(frozen=True)
class FitLimits:
    """What one fit may take; None is no limit.

    Attributes
    ----------
    timeout_s
        Wall seconds.
    memory_bytes
        Bytes of address space beside what the process has when the fit starts.
    """

    timeout_s: float | None = None
    memory_bytes: int | None = None


NO_LIMITS = FitLimits()


@dataclasses.dataclass(frozen=True)
class Death:
    """How a fit ended that gave no outcome.

    Attributes
    ----------
    cause
        In a word or two: an exception's class, a signal, an exit code.
    reason
        Which limit was broken and what to do, in a sentence.
    log
        What the fit wrote last: a traceback, or what a C library said.
    """

    status: Deadly
    cause: str
    reason: str
    log: str = ""
    seconds: float | None = None
    cpu_seconds: float | None = None


class TimedOut(BaseException):
    """A fit took longer than its limit; no `Exception`, which an estimator might catch and go on."""


NOT_THE_FITS = (KeyboardInterrupt, TimedOut)
"""What is raised in a fit and is not its own: all else, also what is no `Exception`, is an outcome of its key."""


def death_columns(death: Death) -> dict[str, Any]:
    """Return what the row of a key says of how its fit ended without an outcome."""
    # faulthandler names the newest call first, and after the calls hundreds of modules.
    said, mark, dump = death.log.partition(_FATAL)
    told = (mark + dump.partition("Extension modules:")[0])[:MAX_TRACEBACK] if mark else said[-MAX_TRACEBACK:]
    message = said.strip()[-MAX_MESSAGE:]
    return {
        "status": death.status,
        "reason": death.reason,
        "error_type": death.cause,
        "error_message": printable(message, MAX_MESSAGE) or death.reason[:MAX_MESSAGE],
        "traceback": printable(told.strip(), MAX_TRACEBACK) or None,
        "fit_seconds": death.seconds,
        "cpu_seconds": death.cpu_seconds,
    }


class FitError(Exception):
    """A key cannot be fitted or measured, for a reason that its outcome states."""


def raised_columns(error: BaseException, stage: Stage, limits: FitLimits, *, hint: str = "") -> dict[str, Any]:
    """Return what the row of a key says of what its fit raised; `hint` follows a message that names no limit."""
    summary = error_summary(error, stage)
    told = summary.error_message
    # What we raise ourselves is a sentence; of others the class tells more, and the hint what may be behind it.
    said = limit_reason(error, limits) or (
        told if isinstance(error, FitError) else f"{summary.error_type}: {told}{hint}"
    )
    return {"status": status_of(error), "reason": f"{stage}: {said}", **dataclasses.asdict(summary)}


def or_late(limits: FitLimits) -> str:
    """Return that a worker that died may have been ended by the watchdog, to follow how it ended."""
    return "" if limits.timeout_s is None else f", or took longer than timeout_s, {limits.timeout_s:g} s"


def status_of(error: BaseException) -> Deadly:
    """Return the status of a fit that raised."""
    if isinstance(error, TimedOut):
        return "timed_out"
    return "out_of_memory" if is_memory_error(error) else "failed"


def limit_reason(error: BaseException, limits: FitLimits) -> str | None:
    """Return which limit an exception says was broken, and what to do; None where it says something else."""
    if isinstance(error, TimedOut):
        return timeout_reason(limits)
    return memory_reason(limits) if is_memory_error(error) else None


def timeout_reason(limits: FitLimits) -> str:
    """Return what to do about a fit that takes too long."""
    return (
        f"the fit took longer than timeout_s, {limits.timeout_s:g} s; raise limits.timeout_s, or give the key fewer "
        "rows (limits.max_key_rows)"
    )


def memory_reason(limits: FitLimits) -> str:
    """Return what to do about a fit that asks for too much memory."""
    if limits.memory_bytes is None:
        return (
            "the fit asked for more memory than there was (compute.memory_per_worker is not set); give the key fewer "
            "rows (limits.max_key_rows), or take fewer slots or larger workers"
        )
    return (
        f"the fit asked for more than the {limits.memory_bytes / _MIB:,.0f} MiB that one fit may take beside its "
        "data; raise compute.memory_per_worker, or give the key fewer rows (limits.max_key_rows)"
    )


def is_memory_error(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, in Python's words or in those of a C++ library."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)[:1000]


def death_of(status: int | None, told: str, limits: FitLimits, *, is_late: bool) -> Death:
    """Return what a child died of.

    Parameters
    ----------
    status
        As `wait` gives it; None where somebody else waited for the child.
    told
        The end of what it wrote to its standard error.
    is_late
        It did not end by itself.
    """
    ended = "unknown" if status is None else _ended(status)
    if is_late or (_WATCHDOG in told and ended == "exit code 1"):
        return Death("timed_out", "TimedOut", timeout_reason(limits), told)
    if any(words in told for words in _OUT_OF_MEMORY):
        return Death("out_of_memory", ended, memory_reason(limits), told)
    if ended == f"exit code {RAISED}":
        last = (told.strip().splitlines() or ["nothing"])[-1]
        return Death("failed", last.partition(":")[0], f"the fit's process raised {last}", told)
    killed = "; the kernel kills so when the memory is full" if ended == "SIGKILL" else ""
    reason = (
        f"the fit ended its process ({ended}{killed}); look at the rows of the key and at error_message, mend the "
        "estimator or leave the key out"
    )
    return Death("crashed", ended, reason, told)


def _ended(status: int) -> str:
    """Return a status of `wait` in words.

    Examples
    --------
    >>> _ended(9), _ended(3 << 8)
    ('SIGKILL', 'exit code 3')
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return signal.Signals(number).name
        return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"
