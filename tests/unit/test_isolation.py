"""Fits that run wild, in this process under its guards and in a child process: each ends as a value."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from group_models.fitting import guards, isolation
from group_models.fitting.deaths import Death, FitLimits, TimedOut, is_memory_error
from group_models.fitting.guards import Guard
from group_models.fitting.isolation import NoChildError, in_fresh_thread, run_in_child

MIB = 2**20
PATIENT = FitLimits(timeout_s=60.0)


def sleep():
    while True:
        time.sleep(0.01)


def hang_in_c():
    sum(itertools.repeat(0))  # never looks at signals, and holds the interpreter


def allocate():
    return float(np.ones(16 * 2**30 // 8).sum())


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def open_files():
    return sorted(file.name for file in Path("/dev/fd").iterdir())


def test_a_child_returns_what_the_work_returned():
    assert run_in_child(lambda: {"status": "trained", "n": [1, 2]}, PATIENT) == {"status": "trained", "n": [1, 2]}
    assert run_in_child(os.getpid, FitLimits()) != os.getpid()


def test_sixty_megabytes_come_back_from_a_child():
    data = run_in_child(lambda: [{"data": b"x" * (60 * MIB)}], PATIENT)[0]["data"]
    assert (len(data), data[:1], data[-1:]) == (60 * MIB, b"x", b"x")


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        (os.abort, "SIGABRT"),
        (kill_itself, "SIGKILL"),
        (lambda: ctypes.string_at(0), "SIGSEGV"),
        (lambda: os._exit(3), "exit code 3"),
        (lambda: os._exit(1), "exit code 1"),
    ],
    ids=["abort", "kill", "segfault", "exit", "exit 1"],
)
def test_work_that_ends_its_process_has_crashed(work, cause):
    death = run_in_child(work, PATIENT)
    assert isinstance(death, Death)
    assert (death.status, death.cause) == ("crashed", cause)
    assert death.reason.startswith(f"the fit ended its process ({cause}")
    assert death.seconds > 0
    assert death.cpu_seconds >= 0


def test_an_abort_tells_where_in_python_it_was():
    assert "in hang_or_abort" in _hang_or_abort_log()


def _hang_or_abort_log():
    def hang_or_abort():
        os.abort()

    return run_in_child(hang_or_abort, PATIENT).log


@pytest.mark.parametrize("work", [sleep, hang_in_c])
def test_endless_work_in_a_child_has_timed_out(work, monkeypatch):
    monkeypatch.setattr(guards, "GRACE_S", 0.2)
    death = run_in_child(work, FitLimits(timeout_s=0.3))
    assert (death.status, death.cause) == ("timed_out", "TimedOut")
    assert "longer than timeout_s, 0.3 s; raise limits.timeout_s" in death.reason
    assert work.__name__ in death.log


def test_a_child_that_is_stopped_is_given_up(monkeypatch):
    monkeypatch.setattr(isolation, "GRACE_S", 0.1)
    death = run_in_child(lambda: os.kill(os.getpid(), signal.SIGSTOP), FitLimits(timeout_s=0.2))
    assert death.status == "timed_out"


def test_an_allocation_over_the_limit_in_a_child_is_out_of_memory():
    death = run_in_child(allocate, FitLimits(timeout_s=60.0, memory_bytes=200 * MIB))
    assert death.status == "out_of_memory"
    assert "more than the 200 MiB that one fit may take" in death.reason
    assert "compute.memory_per_worker" in death.reason
    assert run_in_child(lambda: len(bytes(100 * MIB)), FitLimits(memory_bytes=200 * MIB)) == 100 * MIB


def test_a_library_that_aborts_for_want_of_memory_is_out_of_memory():
    def give_up():
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()

    death = run_in_child(give_up, FitLimits(memory_bytes=2**30))
    assert (death.status, death.cause) == ("out_of_memory", "SIGABRT")


def test_without_a_limit_a_child_may_take_what_is_free(monkeypatch):
    monkeypatch.setattr(isolation, "free_bytes", lambda: 100 * MIB)
    death = run_in_child(allocate, PATIENT)
    assert death.status == "out_of_memory"
    assert "compute.memory_per_worker is not set" in death.reason


@pytest.mark.parametrize(
    ("work", "cause", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError", "the fit's process raised ZeroDivisionError: division by zero"),
        (lambda: sys.exit("no"), "SystemExit", "the fit's process raised SystemExit: no"),
        (lambda: lambda: 1, "AttributeError", "Can't"),
    ],
    ids=["exception", "sys.exit", "not picklable"],
)
def test_what_work_raises_in_a_child_is_told(work, cause, said):
    death = run_in_child(work, PATIENT)
    assert (death.status, death.cause) == ("failed", cause)
    assert said in death.reason


def test_a_child_leaves_no_process_and_no_open_file_behind(monkeypatch):
    monkeypatch.setattr(guards, "GRACE_S", 0.1)

    def with_a_child_of_its_own(then):
        child = os.fork()
        if not child:
            time.sleep(600)
        os.write(1, str(child).encode())
        return child if then is None else then()

    before = open_files()
    grandchild = run_in_child(lambda: with_a_child_of_its_own(None), PATIENT)
    dead = run_in_child(lambda: with_a_child_of_its_own(kill_itself), PATIENT)
    late = run_in_child(lambda: with_a_child_of_its_own(sleep), FitLimits(timeout_s=0.2))
    assert [death.status for death in (dead, late)] == ["crashed", "timed_out"]
    # Others may close what they left open meanwhile, and the listing itself has a number.
    assert len(open_files()) <= len(before)
    # No child that ended is left waiting; a Java that other tests started may live on.
    with contextlib.suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)
    told = int(dead.log.split("Fatal")[0])
    for pid in (grandchild, told):
        assert _ends(pid)


def _ends(pid):
    """Whether a process goes, or is dead and only on the list of whoever takes over orphans."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(500):
        try:
            state = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


SHARING = """
    import atexit, os, socket, sys
    from group_models.fitting.deaths import FitLimits
    from group_models.fitting.isolation import run_in_child

    atexit.register(print, "goodbye")
    here, there = socket.socketpair()
    sys.stdout.write("unfinished ")

    def work():
        print("from the child")
        sys.__stdout__.flush()
        os.write(here.fileno(), b"from the child")
        return "done"

    answer = run_in_child(work, FitLimits(timeout_s=30))
    there.setblocking(False)
    try:
        leaked = there.recv(100)
    except BlockingIOError:
        leaked = None
    print(answer, leaked)
"""


def test_a_child_runs_no_exit_handlers_flushes_no_buffers_and_writes_to_no_socket():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARING)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "unfinished done None\ngoodbye\n"
    assert "from the child" in done.stderr


ORPHANING = """
    import os, time
    from group_models.fitting.deaths import FitLimits
    from group_models.fitting.isolation import run_in_child

    def work():
        os.write(9, str(os.getpid()).encode() + b"\\n")
        time.sleep(600)

    os.dup2(1, 9)
    run_in_child(work, FitLimits())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_a_child_ends_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(ORPHANING)], stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _ends(child)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_where_no_child_can_be_forked_that_is_said(number, monkeypatch):
    def refuse():
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fork", refuse)
    before = open_files()
    with pytest.raises(NoChildError, match=f"{os.strerror(number)}.*`isolation: never`"):
        run_in_child(int, PATIENT)
    assert open_files() == before


def test_a_system_without_fork_is_named(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(NoChildError, match="this system has no fork"):
        run_in_child(int, PATIENT)


def test_a_parent_that_ignores_its_children_still_gets_the_outcome():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run_in_child(lambda: "done", PATIENT) == "done"
        assert run_in_child(kill_itself, PATIENT).status == "crashed"
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.fixture
def _takes_ctrl_c():
    """Ctrl-C raises here, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_takes_ctrl_c")
def test_a_guard_returns_what_the_work_returned_and_lets_its_errors_out():
    with Guard(FitLimits(timeout_s=60.0, memory_bytes=2**30)) as guard:
        assert [guard.run(lambda i=i: i) for i in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError, match="mine"):
            guard.run(lambda: {}["mine"])
        with pytest.raises(KeyboardInterrupt):
            guard.run(lambda: signal.raise_signal(signal.SIGINT))


def test_a_guard_ends_endless_work_here_and_goes_on_with_the_next():
    with Guard(FitLimits(timeout_s=0.2)) as guard:
        death = guard.run(sleep)
        assert guard.run(lambda: "next") == "next"
    assert (death.status, death.cause) == ("timed_out", "TimedOut")
    assert "in sleep" in death.log
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_work_can_tell_by_itself_that_its_time_is_over():
    def stubborn():
        try:
            sleep()
        except Exception:  # noqa: BLE001 - what many an estimator does
            return "went on"
        except TimedOut:
            return "told"

    with Guard(FitLimits(timeout_s=0.2)) as guard:
        assert guard.run(stubborn) == "told"


WATCHED = """
    import itertools, sys, os
    from group_models.fitting import guards
    from group_models.fitting.deaths import FitLimits

    guards.GRACE_S = 0.2
    if sys.argv[1] == "without":
        sys.stderr = sys.__stderr__ = None
        os.close(2)
    with guards.Guard(FitLimits(timeout_s=0.3)) as guard:
        guard.run(lambda: None)
        guard.run(lambda: sum(itertools.repeat(0)))
"""


@pytest.mark.parametrize("stderr", ["with", "without"])
def test_work_that_hangs_in_c_loses_its_process_also_without_standard_error(stderr):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WATCHED), stderr],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert ("Timeout (" in done.stderr) == (stderr == "with")


@pytest.mark.skipif(guards.address_space() is None, reason="this system does not tell the address space")
def test_a_guard_makes_a_huge_allocation_an_error_and_lifts_its_limit_again():
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with Guard(FitLimits(memory_bytes=300 * MIB)) as guard:
        assert guard.run(allocate).status == "out_of_memory"
        assert resource.getrlimit(resource.RLIMIT_AS) == before
        assert guard.run(lambda: len(bytes(100 * MIB))) == 100 * MIB
    assert len(bytes(400 * MIB)) == 400 * MIB


def test_a_guard_keeps_to_the_limit_that_the_process_has_already():
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    low = guards.address_space() + 400 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (low, before[1]))
    try:
        with Guard(FitLimits(memory_bytes=2**40)) as guard:
            inside = guard.run(lambda: resource.getrlimit(resource.RLIMIT_AS))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert inside[0] == low


def test_memory_errors_are_told_by_class_number_and_words():
    class WrappedError(Exception):
        pass

    assert is_memory_error(MemoryError())
    assert is_memory_error(OSError(errno.ENOMEM, "no"))
    assert is_memory_error(WrappedError("std::bad_alloc"))
    assert not is_memory_error(OSError(errno.ENOSPC, "no"))
    assert not is_memory_error(ValueError("memory"))


def test_a_guard_in_another_thread_still_runs_the_work():
    def guarded():
        with Guard(PATIENT) as guard:
            return guard.run(lambda: "done")

    assert in_fresh_thread(guarded) == "done"


def test_a_fresh_thread_passes_on_what_the_work_raises():
    with pytest.raises(KeyError, match="mine"):
        in_fresh_thread(lambda: {}["mine"])


def test_a_fresh_thread_in_a_child_is_ended_at_the_limit():
    death = run_in_child(lambda: in_fresh_thread(sleep), FitLimits(timeout_s=0.2))
    assert death.status == "timed_out"


OPENMP = """
    import sys
    import numpy as np
    from xgboost import XGBRegressor
    from group_models.fitting.deaths import FitLimits
    from group_models.fitting.isolation import in_fresh_thread, run_in_child

    x = np.random.default_rng(0).normal(size=(5000, 5))

    def fit():
        return XGBRegressor(n_estimators=3, n_jobs=2).fit(x, x[:, 0]).n_estimators

    fit()
    print(run_in_child(lambda: in_fresh_thread(fit), FitLimits(timeout_s=60)))
"""


def test_a10_a_child_of_a_process_that_used_openmp_threads_fits_in_a_fresh_thread():
    pytest.importorskip("xgboost")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OPENMP)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "3\n", done.stderr[-1000:]


def test_sockets_of_the_parent_stay_usable_after_a_child():
    here, there = socket.socketpair()
    with here, there:
        run_in_child(kill_itself, PATIENT)
        here.sendall(b"still")
        assert there.recv(5) == b"still"
