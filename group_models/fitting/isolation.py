"""Run one fit in a forked child process with limits, so that a fit that kills its process is a row and no dead night.

Plain Python; knows nothing of models or Spark.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import os
import pickle
import select
import signal
import stat
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import IO, Any, Self, TypeVar, cast

from group_models.errors import PlatformError
from group_models.estimators.base import Family, one_thread
from group_models.fitting.deaths import RAISED, Death, FitLimits, death_of
from group_models.fitting.guards import GRACE_S, Guard, free_bytes

T = TypeVar("T")

_POLL_S = 0.1
_CHUNK = 2**20
_END = b"end"
"""What a child sends last, after the pickle: how it ended is not always to be known."""

_LOG_BYTES = 64 * 2**10
_PR_SET_PDEATHSIG = 1


class NoChildError(PlatformError):
    """No child process can be made here; `isolation: never` does without them."""


def run_in_child(work: Callable[[], T], limits: FitLimits) -> T | Death:
    """Return what `work` returns in a forked child, or how the child died.

    The outcome comes back through a pipe and must be picklable; it may be large. The child is gone when this
    returns or raises, and so are the processes that it started. It never returns into the caller's code, runs no
    exit handlers, flushes no buffers of this process and talks to none of its sockets. It dies with this process
    (Linux). Without `memory_bytes` it may take what the machine or container has free.

    Raises
    ------
    NoChildError
        The system has no fork, or refuses another process.
    """
    start = time.monotonic()
    with tempfile.TemporaryFile() as log, _Pipe() as pipe:
        with _Child(_fork(work, limits, pipe, log)) as child:
            pipe.close_sending()
            sent, is_late = _receive(child, pipe.receiving, limits.timeout_s)
        told = _forward(log)
    if sent.endswith(_END) and not is_late:
        return cast("T | Death", pickle.loads(sent))  # noqa: S301 - our own child wrote it a moment ago
    death = death_of(child.status, told, limits, is_late=is_late)
    return dataclasses.replace(death, seconds=time.monotonic() - start, cpu_seconds=child.cpu_seconds)


def fit_in_child(fit: Callable[[], T], family: Family, limits: FitLimits) -> T | Death:
    """Do the same with a fit; one of several threads is in a thread whose OpenMP knows nothing of this process's."""

    def fit_with_threads() -> T:
        with one_thread(family):
            return fit()

    return run_in_child(fit if family.threads == 1 else lambda: in_fresh_thread(fit_with_threads), limits)


def in_fresh_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns in a thread of its own.

    GNU OpenMP keeps its pool of threads by the thread that asked for them. A forked child has the pool of the
    thread that forked and none of its threads, and waits for them for ever; a new thread starts with a new pool.
    """
    done: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - carried over to the thread that waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return done[0]


class _Pipe:
    """A pipe from a child to this process; no end outlives the block."""

    def __enter__(self) -> Self:
        self.receiving, self.sending = os.pipe()
        self._is_sending_open = True
        return self

    def close_sending(self) -> None:
        """Leave the sending end to the child alone, so that its end is the end of what is read."""
        if self._is_sending_open:
            self._is_sending_open = False
            os.close(self.sending)

    def __exit__(self, *_: object) -> None:
        self.close_sending()
        os.close(self.receiving)


class _Child:
    """A forked child; leaving the block ends it and what it started, and takes it off the system's list.

    Attributes
    ----------
    status
        As `wait` gives it; None before the end, and where somebody else waited for it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_reaped = False
        self.status: int | None = None
        self.cpu_seconds: float | None = None

    def __enter__(self) -> Self:
        # Both sides do it: whichever comes first, the group is there when it must be killed.
        with contextlib.suppress(OSError):
            os.setpgid(self._pid, self._pid)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_ended():
            self._kill(os.kill)
            self._reap(0)
        self._kill(os.killpg)

    def has_ended(self) -> bool:
        """Return whether the child has ended."""
        if not self._is_reaped:
            self._reap(os.WNOHANG)
        return self._is_reaped

    def wait(self, seconds: float) -> bool:
        """Return whether the child ended within so many seconds."""
        until = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(_POLL_S / 100)
        return self._is_reaped

    def _reap(self, option: int) -> None:
        try:
            pid, status, used = os.wait4(self._pid, option)
        except ChildProcessError:
            self._is_reaped = True
            return
        if pid:
            self._is_reaped, self.status = True, status
            self.cpu_seconds = used.ru_utime + used.ru_stime

    def _kill(self, kill: Callable[[int, int], None]) -> None:
        with contextlib.suppress(OSError):
            kill(self._pid, signal.SIGKILL)


def _fork(work: Callable[[], Any], limits: FitLimits, pipe: _Pipe, log: IO[bytes]) -> int:
    """Return the process id of a child that does the work."""
    # A watchdog's thread does not come along, and the child would wait for it.
    faulthandler.cancel_dump_traceback_later()
    parent, spare, end_with = os.getpid(), free_bytes(), _parent_death_signal()
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads. Those that matter here are OpenMP's: see `in_fresh_thread`.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except (AttributeError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else "this system has no fork"
        raise NoChildError(
            f"no child process can be made here ({why}); raise the limit on processes or memory, or write "
            "`isolation: never`, which halves a wave that dies instead"
        ) from error
    if pid:
        return pid
    code = RAISED
    try:
        _settle(parent, log.fileno(), end_with)
        with Guard(limits, spare_bytes=spare) as guard:
            outcome = guard.run(work)
        with os.fdopen(pipe.sending, "wb") as sending:
            pickle.dump(outcome, sending, protocol=pickle.HIGHEST_PROTOCOL)
            sending.write(_END)
        code = 0
    except BaseException:  # noqa: BLE001 - a child may not get back into the code of its parent
        traceback.print_exc()
    finally:
        os._exit(code)


def _settle(parent: int, log: int, end_with: Callable[[], None]) -> None:
    """Make a fresh child a process of its own: its group, its output, none of its parent's sockets."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    end_with()
    if os.getppid() != parent:
        os._exit(RAISED)
    _leave_sockets()
    for number in (1, 2):
        os.dup2(log, number)
    # New objects: the old ones may hold what the parent has not written yet.
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    faulthandler.enable(file=2)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        # Where the kernel must kill somebody, let it be this child and not the executor.
        file.write("1000")


def _parent_death_signal() -> Callable[[], None]:
    """Return what a child calls to be killed when its parent ends; loaded before the fork."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _leave_sockets() -> None:
    """Put nothing in the place of each socket: a number that is taken cannot become another file by accident."""
    nothing = os.open(os.devnull, os.O_RDWR)
    numbers: list[str] = []
    with contextlib.suppress(OSError):
        numbers = os.listdir("/dev/fd")  # noqa: PTH208 - only numbers are wanted
    for name in numbers:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.dup2(nothing, int(name))


def _receive(child: _Child, receiving: int, timeout_s: float | None) -> tuple[bytearray, bool]:
    """Return what the child sent until it ended, and whether it had to be given up.

    Its own guard is asked first, its watchdog is next. Reading goes on while it sends, so that neither waits for
    the other, and ends with the child even where a process that it started holds the pipe open.
    """
    sent = bytearray()
    until = None if timeout_s is None else time.monotonic() + timeout_s + 2 * GRACE_S
    os.set_blocking(receiving, False)
    poll = select.poll()
    poll.register(receiving, select.POLLIN)
    while True:
        has_ended = child.has_ended()
        if poll.poll(_POLL_S * 1000):
            if not (chunk := os.read(receiving, _CHUNK)):
                return sent, not child.wait(GRACE_S)
            sent += chunk
        elif has_ended:
            return sent, False
        elif until is not None and time.monotonic() > until:
            return sent, True


def _forward(log: IO[bytes]) -> str:
    """Return the end of what a child wrote, and pass it on to this process's standard error."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LOG_BYTES))
    told = log.read().decode("utf-8", "replace")
    if told:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write(told)
    return told
