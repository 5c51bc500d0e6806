"""The registry beside the log over random histories: releases, moves by hand, and stops between any two steps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group_models.errors import ServerError, StateError
from group_models.fakes import MemoryTables
from group_models.live import mirrors, publishing
from group_models.live.sets import read_live, read_releases
from group_models.mirroring import Mirroring
from group_models.spec import Limits, Registration, Scoring
from tests.unit import runs
from tests.unit.runs import SET

ALIASES = ("champion", "challenger")
RUNS = {"r0": {"a": "trained", "b": "trained"}, "r1": {"a": "trained"}, "r2": {"b": "trained"}, "r3": {"a": "trained"}}


class FakeRegistry:
    """Versions and aliases as dictionaries; `fails_in` calls it stops, before or after what it was asked for."""

    has_aliases = True

    def __init__(self):
        self.states, self.aliases = {}, {}
        self.fails_in, self.fails_after = None, False

    def _step(self, do):
        if self.fails_in is not None:
            self.fails_in -= 1
        if self.fails_in == -1 and not self.fails_after:
            raise ServerError("stopped before")
        found = do()
        if self.fails_in == -1:
            raise ServerError("stopped after")
        return found

    def version_of(self, alias):
        return self.aliases.get(alias)

    def move(self, alias, version):
        self._step(lambda: self.aliases.__setitem__(alias, version))

    def find(self, state):
        found = [version for version, held in self.states.items() if held == state]
        return found[-1] if found else None

    def state_of(self, version):
        return self.states.get(version)

    def add(self, _, *, state, tags, description):
        assert tags["group_models_models"]
        assert description
        version = str(len(self.states) + 1)
        self._step(lambda: self.states.__setitem__(version, state))
        return version

    def describe(self):
        return "the registry"


class QuickMirroring(Mirroring):
    """A version is a state alone: no file is made."""

    def _add(self, live, act, state):
        return self.registry.add(None, state=state, tags=self._tags(live, act), description="made")


def state(tables, alias):
    return mirrors.state_of(read_live(tables, SET, alias), Scoring())


def in_step(tables, registry, **rules):
    QuickMirroring(tables, SET, registry, Registration(**rules), Scoring()).keep_in_step()


def check_in_step(tables, registry):
    for alias in ALIASES:
        if mirrors.newest_act(read_releases(tables, SET), alias) is None:
            assert alias not in registry.aliases
        else:
            assert registry.states[registry.aliases[alias]] == state(tables, alias)


def act(tables, registry, step):
    """Do one step of a history; what the log refuses leaves it as it is."""
    what, alias, number, after = step
    try:
        if what == "publish":
            publishing.publish(tables, SET, f"r{number % len(RUNS)}", limits=Limits(), alias=alias, force=True)
        elif what == "rollback":
            publishing.rollback(tables, SET, target=None, alias=alias)
        elif what == "stop":
            registry.fails_in, registry.fails_after = number % 3, after
            in_step(tables, registry)
    except (StateError, ServerError):
        pass
    registry.fails_in = None
    if after and what != "stop":
        in_step(tables, registry)


def move_by_hand(tables, registry, alias, number):
    """Move an alias to a version and check that batch scoring follows, or that it is refused and nothing happens."""
    in_step(tables, registry)
    if alias not in registry.aliases:
        return
    before, log = registry.aliases[alias], read_releases(tables, SET)
    version = str(number % len(registry.states) + 1)
    registry.aliases[alias] = version
    try:
        in_step(tables, registry)
    except StateError:
        assert read_releases(tables, SET) == log
        registry.aliases[alias] = before
        return
    # A version that nothing shows any more is put back, all others are adopted.
    if version in {row.registered_version for row in log}:
        assert state(tables, alias) == registry.states[version]
        assert registry.aliases[alias] == version


ACTS = st.sampled_from(["publish", "publish", "rollback", "stop", "move", "move"])
STEPS = st.tuples(ACTS, st.sampled_from(ALIASES), st.integers(0, 9), st.booleans())


@settings(max_examples=30)
@given(st.lists(STEPS, min_size=6, max_size=14))
def test_the_aliases_serve_what_the_log_says_whatever_happened(steps):
    tables, registry = MemoryTables(), FakeRegistry()
    for day, (run_id, statuses) in enumerate(RUNS.items()):
        scope = None if run_id == "r0" else "k in (...)"
        runs.add_run(tables, run_id, day, statuses, scope=scope)
    for step in steps:
        if step[0] == "move":
            move_by_hand(tables, registry, step[1], step[2])
        else:
            act(tables, registry, step)
    in_step(tables, registry)
    check_in_step(tables, registry)
    assert all(registry.states[a] != registry.states[b] for a, b in itertools.combinations(registry.states, 2))


def test_a_version_that_other_runs_made_unreachable_is_refused_by_name():
    tables, registry = MemoryTables(), FakeRegistry()
    for day, (run_id, statuses) in enumerate(RUNS.items()):
        runs.add_run(tables, run_id, day, statuses, scope=None if run_id == "r0" else "k in (...)")
    for run_id, alias in (("r0", "champion"), ("r1", "challenger"), ("r2", "champion")):
        publishing.publish(tables, SET, run_id, limits=Limits(), alias=alias, force=True)
        in_step(tables, registry)
    of_challenger = "2"
    assert registry.states[of_challenger] != state(tables, "challenger")
    registry.aliases["champion"] = of_challenger
    with pytest.raises(StateError, match="neither a rollback of champion nor a publish to it brings back"):
        in_step(tables, registry)
