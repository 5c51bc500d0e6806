"""Lines that are left out of what started processes say."""

from __future__ import annotations

import subprocess
import sys

_STARTED = """
import sys
sys.stderr.write("before\\nWARNING: Using incubator modules: jdk.incubator.vector\\nafter\\n")
sys.stderr.flush()
input()
sys.stderr.write("late\\n")
"""

_PROGRAM = f"""
import subprocess, sys, threading
from group_models.adapters.standard_error import INCUBATOR, without

with without(INCUBATOR):
    started = subprocess.Popen([sys.executable, "-c", {_STARTED!r}], stdin=subprocess.PIPE)
print("ours", file=sys.stderr, flush=True)
started.communicate(b"go\\n")
for thread in threading.enumerate():
    if thread.daemon:
        thread.join()
"""


def test_the_line_is_left_out_and_all_else_is_handed_on_as_long_as_the_process_runs():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert sorted(done.stderr.splitlines()) == ["after", "before", "late", "ours"]
