"""Guards around one fit in this process: a clock and a memory limit, so that most fits that run wild become rows.

Plain Python; knows nothing of models or Spark. What these guards cannot hold dies in `isolation`'s child process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from group_models.fitting.deaths import Death, FitLimits, TimedOut, memory_reason, timeout_reason

T = TypeVar("T")

GRACE_S = 2.0
"""Seconds after the limit until a fit that does not answer loses its process."""


class Guard:
    """The clock and the memory limit of the fits of one unit, one after the other.

    At its limit a fit gets `TimedOut` raised into it (main thread only: Python delivers signals there). One that
    is deep in C code does not see that and loses its process `GRACE_S` later, at the latest, by `faulthandler`,
    whose watchdog needs no cooperation. So a Spark worker dies, and its wave is fitted again in child processes.

    Parameters
    ----------
    spare_bytes
        The memory limit where `limits` has none.

    Notes
    -----
    A process has one alarm and one watchdog. Those that Spark 4.1 sets on request
    (`spark.python.worker.tracebackDumpIntervalSeconds`) are replaced.
    """

    def __init__(self, limits: FitLimits, *, spare_bytes: int | None = None) -> None:
        self._limits = limits
        self._memory_bytes = spare_bytes if limits.memory_bytes is None else limits.memory_bytes
        self._is_counting = False
        self._watched_since: float | None = None
        self._handler: Any = None
        self._sink: int | None = None
        self._takes_alarms = False

    def __enter__(self) -> Self:
        """Take the process's alarm."""
        is_main = threading.current_thread() is threading.main_thread()
        self._takes_alarms = self._limits.timeout_s is not None and is_main and hasattr(signal, "setitimer")
        if self._takes_alarms:
            self._handler = signal.signal(signal.SIGALRM, self._ring)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the alarm back."""
        self._stop()
        if self._watched_since is not None:
            faulthandler.cancel_dump_traceback_later()
            self._watched_since = None
        if self._takes_alarms:
            signal.signal(signal.SIGALRM, self._handler or signal.SIG_DFL)
        if self._sink is not None:
            os.close(self._sink)
            self._sink = None

    def run(self, work: Callable[[], T]) -> T | Death:
        """Return what `work` returns, or how it broke a limit; what else it raises gets out."""
        soft = None
        try:
            try:
                self._start()
                soft = _limit_memory(self._memory_bytes)
                return work()
            finally:
                self._stop()
                _restore_memory(soft)
        except TimedOut as late:
            # The alarm rings once. It may have rung in the lines above, so they are repeated.
            self._stop()
            _restore_memory(soft)
            return Death("timed_out", "TimedOut", timeout_reason(self._limits), _told(late))
        except MemoryError as error:
            return Death("out_of_memory", "MemoryError", memory_reason(self._limits), _told(error))

    def _start(self) -> None:
        if self._limits.timeout_s is None:
            return
        self._watch(self._limits.timeout_s)
        if self._takes_alarms:
            self._is_counting = True
            signal.setitimer(signal.ITIMER_REAL, self._limits.timeout_s)

    def _stop(self) -> None:
        self._is_counting = False
        if self._takes_alarms:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_counting:
            self._is_counting = False
            raise TimedOut(timeout_reason(self._limits))

    def _watch(self, timeout_s: float) -> None:
        """Let the process end by itself between `timeout_s` and `timeout_s + GRACE_S` from now.

        The watchdog is a thread: one for each key would cost more than a small fit, so it is set anew only now and
        then.
        """
        now = time.monotonic()
        if self._watched_since is None or now - self._watched_since > GRACE_S / 2:
            faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=self._stderr())
            self._watched_since = now

    def _stderr(self) -> int:
        """Return where a traceback can be written: standard error, or nowhere where there is none."""
        for stream in (sys.stderr, sys.__stderr__):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                number = int(stream.fileno())  # type: ignore[union-attr] # None in some programs without a console
                os.fstat(number)
                return number
        if self._sink is None:
            self._sink = os.open(os.devnull, os.O_WRONLY)
        return self._sink


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _limit_memory(more: int | None) -> int | None:
    """Let the address space grow by so many bytes at most; return the soft limit that was there, None if unchanged."""
    size = address_space() if more is not None else None
    if more is None or size is None:
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size + more
    if soft != resource.RLIM_INFINITY and soft <= wanted:
        return None
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    return soft


def _restore_memory(soft: int | None) -> None:
    if soft is None:
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.getrlimit(resource.RLIMIT_AS)[1]))


def address_space() -> int | None:
    """Return the bytes of this process's address space; None where the system does not tell (all but Linux)."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - per fit: a Path costs more than the read
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def free_bytes() -> int | None:
    """Return the memory that this machine or container has free; None where it does not tell."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        info = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(int(info.partition("MemAvailable:")[2].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        # "max" where the container has no limit, which is no number.
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        found.append(limit - int((group / "memory.current").read_text(encoding="ascii")))
    return max(min(found), 0) if found else None
