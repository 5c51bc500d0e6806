"""How far a run is: worked out by hand from a plan and what its waves committed, and shown where people look."""

from __future__ import annotations

import io
import signal
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import nbformat
import pyarrow as pa
import pytest
from nbclient import NotebookClient
from rich.console import Console

from group_models.adapters.spark_interrupt import stoppable
from group_models.cli import main
from group_models.cli_progress import go_on_command
from group_models.errors import GroupModelsError, StoppedError
from group_models.fakes import MemoryTables
from group_models.planning.plans import Plan
from group_models.ports import Commit
from group_models.reporting import displays
from group_models.reporting.progress import Done, Progress
from group_models.runs.watching import Watch
from group_models.tables import PLAN, STORE, WHOLE

RUN = {"model_set": "a.b.c", "run_id": "r1"}
PLANNED = [("a", 0, 0, 1, 100.0), ("b", 1, 0, 1, 60.0), ("c", 2, 1, 2, 80.0), ("d", 4, 2, 1, 50.0)]
"""Key, first unit, wave, parts and predicted seconds; on two slots the waves take 100, 40 and 50 seconds.

One more puts the parts of c together.
"""


def plan(planned: list[tuple[str, int, int, int, float]] = PLANNED, parents: str = "") -> Plan:
    rows = [
        {**RUN, "key_id": name, "key": [("k", name)], "level": "global" if name in parents else "k", "rows": 12,
         "usable_rows": 10, "bytes": 1, "decision": "salted" if parts > 1 else "whole", "unit": unit, "wave": wave,
         "n_parts": parts, "predicted_seconds": seconds, "predicted_model_bytes": 1.0}
        for name, unit, wave, parts, seconds in planned
    ]  # fmt: skip
    return Plan.of_rows(PLAN.rows(rows), slots=2, own_level="k" if parents else None)


def stored(wave: int, *rows: tuple[str, int, str], number: int | None = None) -> pa.Table:
    """Return rows of the store given as key, part and status."""
    place = {"wave": wave, "number": wave * 1000 if number is None else number, "format": 1}
    return STORE.rows({**RUN, **place, "key_id": key, "part": part, "status": status} for key, part, status in rows)


def after(*took: float) -> Progress:
    """Return the progress after so many waves that took so long."""
    progress = Progress.of(plan())
    for wave, seconds in enumerate(took):
        progress = progress.after_wave(wave, seconds)
    return progress


def test_a_run_begins_with_what_its_plan_expects_of_each_wave():
    progress = Progress.of(plan())
    assert (progress.keys, progress.rows, progress.owed_s) == (4, 40, (100.0, 40.0, 50.0, 0.0))
    assert progress.left_s() == 3 * 5 + 190
    assert progress.text() == "0 of 4 keys, 0 of 40 rows; about 3.4 min left"


def test_a_run_that_goes_on_owes_only_what_has_no_outcome():
    done = stored(0, ("a", WHOLE, "trained"), ("c", 1, "trained"))
    progress = Progress.of(plan(), done.select(["key_id", "part"]))
    assert (progress.keys, progress.owed_s) == (4, (60.0, 40.0, 50.0, 0.0))
    everything = stored(0, ("a", WHOLE, "trained"), ("b", WHOLE, "failed"))
    gone_by = Progress.of(plan(), everything.select(["key_id", "part"])).after_wave(0, 0.2)
    assert gone_by.seen == (), "a wave that was there tells nothing of the time"
    assert gone_by.left_s() == 2 * 5 + 90


def test_time_left_follows_what_waves_took_against_the_plan():
    assert after(100 + 5).left_s() == pytest.approx(2 * 5 + 90), "as planned"
    assert after(200 + 5).left_s() == pytest.approx(2 * 5 + 90 * 210 / 110), "twice as slow, but for the trust in it"
    assert after(50.0).left_s() < after(100.0).left_s() < after(105.0, 80.0).left_s() * 10
    assert after(100.0, 40.0, 50.0).left_s() == 0


def test_waves_of_tiny_fits_say_what_a_wave_costs_and_nothing_of_the_fits():
    tiny = Progress(keys=9, rows=9, owed_s=(0.01, 600.0)).after_wave(0, 3.0)
    assert tiny.left_s() == pytest.approx(3 + 600, rel=0.01)


def test_what_a_wave_has_taken_so_far_is_no_longer_left():
    assert after().left_s(40.0) == 205 - 40
    assert after().left_s(1e6) == 205 - 105, "a wave that is late takes nothing from the others"
    shares = [after().share(0), after().share(50), after(105.0).share(), after(105.0, 45.0).share(20)]
    assert shares == sorted(shares)
    assert (shares[0], after(1.0, 1.0, 1.0, 1.0).share()) == (0, 1)


def test_a_plan_without_a_wave_is_done():
    progress = Progress.of(Plan(plan().keys.slice(0, 0), 2))
    assert (progress.share(), progress.left_s(), progress.text()) == (1, 0, "0 of 0 keys, 0 of 0 rows; no wave is left")


def test_keys_that_failed_are_counted_by_their_first_row_and_salted_ones_when_they_are_combined():
    tables, said, shown = MemoryTables(), [], []
    watch = Watch(tables, plan(), ("a.b.c", "r1"), said.append, shown.append)
    parts = plan().parts().to_pylist()

    def commit(wave: int, *rows: tuple[str, int, str], number: int) -> None:
        tables.append(STORE, stored(wave, *rows, number=number), Commit("a.b.c", "r1", number))

    def done(wave: int) -> None:
        watch.wave_done(wave, pa.Table.from_pylist([part for part in parts if part["wave"] == wave]), 1.0)

    commit(0, ("a", WHOLE, "timed_out"), number=0)
    commit(0, ("a", WHOLE, "trained"), ("b", WHOLE, "trained"), ("b", 0, "trained"), number=1)
    done(0)
    commit(1, ("c", 0, "trained"), ("c", 1, "failed"), number=1000)
    done(1)
    assert [(p.keys_done, p.failed, p.rows_done, p.waves_done) for p in shown] == [
        (0, 0, 0, 0),
        (2, 1, 20, 1),
        (2, 1, 20, 2),
    ]
    commit(3, ("c", WHOLE, "failed"), number=3000)
    commit(2, ("d", WHOLE, "trained"), number=2000)
    done(2)
    watch.combined(plan(), 2.0)
    assert (shown[-1].keys_done, shown[-1].failed, shown[-1].waves_done) == (4, 2, 4)
    assert said[0].startswith(
        "wave 1 of 4 done: 2 keys in 2 units, 1.0 s; so far 2 of 4 keys (1 failed), 20 of 40 rows; about "
    )
    assert said[1].startswith("wave 2 of 4 done: 1 key in 2 units, 1.0 s; so far 2 of 4 keys (1 failed), ")
    assert said[3] == (
        "wave 4 of 4 done: 1 salted key of 2 parts, 2.0 s; so far 4 of 4 keys (2 failed), 40 of 40 rows; "
        "no wave is left"
    )


def test_a_wave_that_puts_a_parent_together_is_counted_in_its_place():
    world = plan([("p", 0, 0, 2, 80.0), ("a", 2, 2, 1, 50.0)], parents="p")
    said: list[str] = []
    watch = Watch(MemoryTables(), world, ("a.b.c", "r1"), said.append, lambda _: None)
    assert Progress.of(world).owed_s == (40.0, 0.0, 50.0)
    assert "3 units in 3 wave(s)" in repr(world)
    parts = world.parts()
    watch.wave_done(0, parts.slice(0, 2), 1.0)
    watch.combined(world.at("global"), 1.0)
    watch.wave_done(2, parts.slice(2), 1.0)
    assert [line.split(" done")[0] for line in said] == [f"wave {place} of 3" for place in (1, 2, 3)]
    assert said[-1].endswith("no wave is left")


def test_a_terminal_has_one_bar_and_lines_above_it():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with displays.on_terminal(console) as (show, say):
        show(after(105.0).plus(Done(2, 1, 20)))
        say("[wave 1] of data is no markup")
    text = out.getvalue()
    assert "[wave 1] of data is no markup\n" in text.replace("\r", "")
    assert "wave 2 of 4 2 of 4 keys (1 failed), 20 of 40 rows; about " in text


def test_outside_a_notebook_nothing_is_displayed(capsys: pytest.CaptureFixture[str]):
    assert not displays.has_kernel()
    with displays.in_notebook() as show:
        show(after())
    assert capsys.readouterr().out == ""


def test_a_notebook_has_one_output_that_changes():
    code = """
        import IPython
        from group_models.reporting import displays
        from group_models.reporting.progress import Done, Progress
        progress = Progress(keys=4, rows=40, owed_s=(1.0, 1.0))
        with displays.in_notebook() as show:
            for each in (progress, progress.after_wave(0, 1.0).plus(Done(2, 0, 20))):
                show(each)
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(code))])
    NotebookClient(notebook, timeout=60).execute()
    (output,) = notebook.cells[0].outputs
    assert output.data["text/plain"].startswith("wave 2 of 2: 2 of 4 keys, 20 of 40 rows; about ")
    assert "<progress max='1' value='0." in output.data["text/html"]


class Session:
    """A session that knows its tags and what was interrupted, as the real ones do; those are tried with real runs."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.interrupted: list[str] = []
        self.addTag, self.removeTag, self.interruptTag = self.tags.add, self.tags.discard, self.interrupted.append


def run_in(session: Session, act: Callable[[], None]) -> None:
    with stoppable(session, "r1"):
        act()


def test_ctrl_c_becomes_an_error_that_names_the_run_and_interrupts_its_jobs_alone():
    session, before, tags = Session(), signal.getsignal(signal.SIGINT), []

    def train() -> None:
        tags.extend(session.tags)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError, match=r"run r1 was stopped; .* run_id='r1' goes on"):
        run_in(session, train)
    assert tags == session.interrupted == ["group-models-r1"]
    assert (session.tags, signal.getsignal(signal.SIGINT)) == (set(), before)


def test_a_stopped_run_is_no_error_that_a_handler_of_errors_takes():
    assert not issubclass(StoppedError, Exception)
    assert issubclass(StoppedError, KeyboardInterrupt)


def test_a_call_that_waits_for_the_jvm_ends_by_itself_and_what_it_raises_is_not_told():
    session = Session()
    waiting: dict[str, Any] = {"__name__": "py4j.clientserver", "signal": signal}
    exec("def wait(): signal.raise_signal(signal.SIGINT)", waiting)  # noqa: S102 - a frame of another module

    def train() -> None:
        waiting["wait"]()
        deadline = time.monotonic() + 10
        while not session.interrupted and time.monotonic() < deadline:
            time.sleep(0.01)
        raise GroupModelsError("wave 1 failed: the job was cancelled")

    with pytest.raises(StoppedError) as raised:
        run_in(session, train)
    assert set(session.interrupted) == {"group-models-r1"}
    assert isinstance(raised.value.__cause__, GroupModelsError)


@pytest.mark.parametrize("is_main", [True, False])
def test_an_error_of_the_run_itself_is_told_as_it_is_also_in_a_thread_which_hears_no_ctrl_c(is_main):
    session, raised = Session(), []

    def fail() -> None:
        raise GroupModelsError("wave 1 failed")

    def train() -> None:
        try:
            run_in(session, fail)
        except GroupModelsError as error:
            raised.append(str(error))

    thread = threading.Thread(target=train)
    (train if is_main else thread.start)()
    thread.join() if not is_main else None
    assert (raised, session.tags) == (["wave 1 failed"], set())


def test_the_command_that_goes_on_has_the_options_of_the_first():
    options = {"where": None, "keys": "my keys.csv", "failed_only": False, "retrain_all": True, "warehouse": "w"}
    said = "group-models train eta.yaml --keys 'my keys.csv' --retrain-all --warehouse w --run-id r1"
    assert go_on_command("eta.yaml", "r1", options) == said


def test_a_stopped_command_says_how_it_goes_on_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stopped(*_: object, **__: object) -> None:
        raise StoppedError("r1")

    monkeypatch.setattr("group_models.api.train", stopped)
    assert main(["train", "eta.yaml", "--where", "k = 1", "--no-release"]) == 130
    said = capsys.readouterr()
    assert said.err.endswith("goes on with\n  group-models train eta.yaml --where 'k = 1' --no-release --run-id r1\n")
    assert said.out == ""
