"""What a process that we start says on standard error, without lines that nobody can act on."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator

INCUBATOR = re.compile(rb"WARNING: Using incubator modules: [^\n]*\n")
"""Said by each Java that Spark 4 starts (it asks for `jdk.incubator.vector`); no option of either keeps it quiet."""

_CHUNK = 2**16


@contextlib.contextmanager
def without(unwanted: re.Pattern[bytes]) -> Iterator[None]:
    """Leave lines out of what processes that are started meanwhile say, as long as they and this one run.

    They inherit a pipe in the place of standard error; what comes through it is handed on at once.
    """
    reader, writer = os.pipe()
    ours = os.dup(2)
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(target=_hand_on, args=(reader, ours, unwanted), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, 2)


def _hand_on(reader: int, target: int, unwanted: re.Pattern[bytes]) -> None:
    while chunk := os.read(reader, _CHUNK):
        # A line comes in one piece: Java writes it at once.
        with contextlib.suppress(OSError):
            os.write(target, unwanted.sub(b"", chunk))
    os.close(reader)
    os.close(target)
