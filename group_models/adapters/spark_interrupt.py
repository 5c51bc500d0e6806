"""Ctrl-C while a run is trained: its Spark jobs end, what it committed stays, and who asked hears how it goes on.

PySpark's own handler (4.0 to 4.2, classic) cancels jobs over the very connection that the main thread is waiting on.
Here a thread of its own asks for that; the call that waits for the jobs then fails in step with the JVM, and the
session can be used on. On Connect they are those of this run alone; on a classic session all of this session, and none
of others: its tags (`addTag`, 4.0 to 4.2) are known only to the thread that set them.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from group_models.adapters.spark_errors import SPARK_ERRORS
from group_models.errors import StoppedError
from group_models.ports import SparkSession

GRACE_S = 15.0
"""Seconds until a call that does not end by itself is broken off."""

_AGAIN_S = 0.5
"""Seconds between two askings: what was cancelled may be tried again, as one more job."""

_CLASSIC = "pyspark.sql.session"
"""Module of classic sessions; those of Connect are no kind of them."""

_JVM = "py4j."
"""Modules in which a classic session waits for the JVM."""


@contextlib.contextmanager
def stoppable(spark: SparkSession, run_id: str) -> Iterator[None]:
    """Let Ctrl-C stop the block and its Spark jobs, on classic and Connect sessions.

    A second Ctrl-C does not wait for the jobs to end.

    Raises
    ------
    StoppedError
        Somebody asked to stop.
    """
    stopper = _Stopper(spark, f"group-models-{run_id}")
    try:
        with stopper.listening():
            yield
    except KeyboardInterrupt as e:
        stopper.cancel_at_last()
        raise StoppedError(run_id) from e
    except Exception as e:
        # Of what was cancelled there is no failure to tell.
        if stopper.is_asked:
            raise StoppedError(run_id) from e
        raise


class _Stopper:
    """Hears Ctrl-C in the main thread and cancels what runs under one tag, or in a classic session."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._is_over = threading.Event()
        self._is_broken = False
        self.is_asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Tag what the block starts, and take Ctrl-C until its end."""
        # A run whose session forbids tags is trained all the same.
        with contextlib.suppress(*SPARK_ERRORS):
            self._spark.addTag(self._tag)
        try:
            with self._handling():
                yield
        finally:
            self._is_over.set()
            if not self._is_broken:
                with contextlib.suppress(*SPARK_ERRORS):
                    self._spark.removeTag(self._tag)

    @contextlib.contextmanager
    def _handling(self) -> Iterator[None]:
        """Take SIGINT; in a thread other than the main one it never arrives."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: Any = signal.signal(signal.SIGINT, self._heard)
        try:
            yield
        finally:
            # None is a handler that was not made in Python.
            signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

    def _heard(self, _: int, frame: FrameType | None) -> None:
        is_again, self.is_asked = self.is_asked, True
        is_waiting = _waits_for_java(frame)
        if is_again or not is_waiting:
            self._is_broken = is_waiting
            raise KeyboardInterrupt
        threading.Thread(target=self._cancel_until_over, daemon=True).start()

    def _cancel_until_over(self) -> None:
        for _ in range(round(GRACE_S / _AGAIN_S)):
            self._interrupt()
            if self._is_over.wait(_AGAIN_S):
                return
        # Sent and not only noted: the main thread waits in a system call.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def cancel_at_last(self) -> None:
        """Cancel what may still run, from a thread that no broken call of this one disturbs."""
        thread = threading.Thread(target=self._interrupt, daemon=True)
        thread.start()
        thread.join(GRACE_S)

    def _interrupt(self) -> None:
        # Whatever a session answers that is just going down: the run ends all the same.
        with contextlib.suppress(Exception):
            if type(self._spark).__module__.startswith(_CLASSIC):
                self._spark.interruptAll()
            else:
                self._spark.interruptTag(self._tag)


def _waits_for_java(frame: FrameType | None) -> bool:
    """Return whether a classic session waits for an answer of the JVM: an exception there would leave it unread."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_JVM):
            return True
        frame = frame.f_back
    return False
