"""What a side's processes take: the largest resident memory by kind, and CPU time, sampled while it works."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

LIMITS_MB = {"driver_python": 1_500, "driver_jvm": 1_500, "worker": 1_000}
"""What the product must stay under: driver (Python and JVM named apart), and each Python worker."""

INTERVAL_S = 0.2
_WORKERS = ("pyspark.daemon", "pyspark/daemon", "loky")


class ProcessWatch:
    """Sample this process and its children in a thread.

    `peaks_mb` has the largest process of each kind; memory that a forked worker shares with its parent counts in
    both. CPU time tells more than wall time on a machine that others use too.
    """

    def __init__(self) -> None:
        self.peaks_mb: dict[str, float] = {}
        self._own = psutil.Process()
        self._kinds: dict[int, str | None] = {self._own.pid: "driver_python"}
        self._cpu_before: dict[int, float] = {}
        self._cpu_s: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes since the watch began."""
        return sum(seconds - self._cpu_before.get(pid, 0.0) for pid, seconds in self._cpu_s.items())

    def __enter__(self) -> Self:
        self._sample()
        self._cpu_before = dict(self._cpu_s)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for process in [self._own, *self._own.children(recursive=True)]:
            try:
                kind = self._kind(process)
                used = process.memory_info().rss / 1e6
                self._cpu_s[process.pid] = sum(process.cpu_times()[:2])
            except psutil.Error:  # it has ended meanwhile
                continue
            if kind is not None:
                self.peaks_mb[kind] = max(self.peaks_mb.get(kind, 0.0), used)

    def _kind(self, process: psutil.Process) -> str | None:
        if process.pid not in self._kinds:
            self._kinds[process.pid] = _kind_of(process.name(), " ".join(process.cmdline()))
        return self._kinds[process.pid]


def _kind_of(name: str, command: str) -> str | None:
    if name == "java":
        return "driver_jvm"
    return "worker" if any(word in command for word in _WORKERS) else None
