"""Tuning: parameters searched on folds of a key's training rows, the same ones each time, and within their budgets."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models.errors import SpecError
from group_models.fakes import MemoryTables
from group_models.fitting.units import fit_unit
from group_models.loading import load_spec
from group_models.planning.deciding import Costs
from group_models.ports import Commit
from group_models.runs.spec_estimators import check_tracked, estimator_mistakes, tuning_costs
from group_models.runs.trial_rows import append_trials
from group_models.spec import Tune
from group_models.tables import STORE, TRIALS, WHOLE
from tests.unit.test_choosing import keys_of, settings, world

SPACE = {"alpha": {"low": 1e-3, "high": 1e6, "log": True}}
TUNE = {"space": SPACE, "trials": 12, "min_rows": 40, "min_fold_rows": 10}
WORLD = pd.concat([world(0, 5.0), world(1, 0.0), world(2, 2.0)])


def tuned(*, params: dict[str, Any] | None = None, name: Any = "ridge", **changes: Any) -> Any:
    """Return settings of a search that begins with far too strong a penalty."""
    told = settings([name], tuning=Tune(**{**TUNE, **changes}))
    given = {"alpha": 1e6} if params is None else params
    return dataclasses.replace(told, estimator=dataclasses.replace(told.estimator, params=given))


def fit(rows: pd.DataFrame, told: Any, keys: int = 1) -> list[dict[str, Any]]:
    return fit_unit(rows, keys_of(keys), told).to_dict("records")  # type: ignore[return-value]


def trials_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    return json.loads(row["trials"])  # type: ignore[no-any-return]


def test_a_search_finds_better_parameters_than_the_spec_has_and_tells_what_it_tried():
    (row,) = fit(world(0, 5.0), tuned())
    trials = trials_of(row)
    assert [trial["trial"] for trial in trials] == list(range(13))
    assert (trials[0]["params"], trials[0]["state"]) == ({}, "complete"), "the spec's own come first"
    best = min((t for t in trials if t["state"] == "complete"), key=lambda t: t["error"])
    assert row["params"]["alpha"] == best["params"]["alpha"]
    assert row["metrics"]["cv_mae"] == row["metrics"]["cv_mae_best"] == pytest.approx(best["error"])
    assert best["error"] < trials[0]["error"] / 2
    assert row["params"]["tuned"].startswith("13 trials (")
    assert f"chosen: trial {best['trial']} with " in row["params"]["tuned"]
    assert {trial["state"] for trial in trials} <= {"complete", "pruned"}


def test_a_parent_that_keeps_its_measured_model_tells_its_trials_once():
    whole, measured = fit(world(0, 5.0), dataclasses.replace(tuned(), keeps_measured=True))
    assert len(trials_of(whole)) == 13
    assert measured["trials"] is None
    assert measured["params"]["tuned"] == whole["params"]["tuned"]


def test_the_spec_s_parameters_stay_where_the_folds_cannot_tell_better_ones():
    (row,) = fit(world(0, 0.0), tuned(params={"alpha": 1e5}))
    assert row["params"]["alpha"] == "100000.0"
    assert "chosen: the spec's" in row["params"]["tuned"]


def told_of(rows: list[dict[str, Any]]) -> list[Any]:
    """Return of each row its model and its trials, without what they took."""
    trials = [[{**trial, "seconds": 0} for trial in trials_of(row)] for row in rows]
    return [(row["sha256"], row["params"], row["metrics"], each) for row, each in zip(rows, trials, strict=True)]


def test_the_same_rows_give_the_same_trials_whatever_their_order_and_whoever_is_beside_them():
    together = told_of(fit(WORLD, tuned(), keys=3))
    assert told_of(fit(WORLD.sample(frac=1, random_state=3), tuned(), keys=3)) == together
    alone = fit_unit(world(2, 2.0), keys_of(3).iloc[[2]], tuned()).to_dict("records")
    assert told_of(alone) == together[2:]  # type: ignore[arg-type]
    other = told_of(fit(WORLD, tuned(seed=1), keys=3))
    assert [each[3] for each in other] != [each[3] for each in together]


def test_the_holdout_never_changes_a_choice():
    """Held targets in another order, and held features that would turn the choice, are in no fold."""
    poisoned = WORLD.copy()
    held = poisoned["is_holdout"]
    poisoned.loc[held, "y"] = poisoned.loc[held, "y"].sample(frac=1, random_state=1).to_numpy() * 1e3
    poisoned.loc[held, ["f0", "f1"]] = [-1e6, 1e3]
    clean, poison = (fit(rows, dataclasses.replace(tuned(), refit=False), keys=3) for rows in (WORLD, poisoned))
    for row, other in zip(clean, poison, strict=True):
        assert (row["sha256"], row["params"]) == (other["sha256"], other["params"])
        assert row["metrics"]["mae"] != other["metrics"]["mae"]


def test_a_key_with_few_rows_is_as_the_spec_says_and_tells_why():
    for changes, rule in (({"min_rows": 61}, "60 rows are fewer than min_rows 61"), ({"min_fold_rows": 16}, "too few")):
        told = tuned(**changes)
        (row,) = fit(world(0, 5.0), told if "min_rows" in changes else _folds_of(told, 16))
        assert (row["params"]["alpha"], row["trials"]) == ("1000000.0", None)
        assert row["params"]["tuned"].startswith("as the spec says: ")
        assert rule in row["params"]["tuned"]


def _folds_of(told: Any, min_fold_rows: int) -> Any:
    return dataclasses.replace(told, min_fold_rows=min_fold_rows)


class Fragile:
    """An estimator that most parameters break."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> Fragile:
        if self.depth % 2:
            raise ZeroDivisionError(f"depth {self.depth} is odd")
        self.mean_ = float(np.mean(y)) + 1.0 / (1 + self.depth)
        return self

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return np.full(len(x), self.mean_)


def test_trials_that_fail_are_counted_and_end_the_search_when_they_are_too_many():
    changes = {"space": {"depth": {"low": 1, "high": 99}}, "trials": 40, "max_failed_trials": 2, "pruner": "none"}
    (row,) = fit(world(0, 5.0), tuned(name=Fragile, params={}, **changes))
    trials = trials_of(row)
    failed = [trial for trial in trials if trial["state"] == "failed"]
    assert (row["status"], len(failed), trials[-1]["state"]) == ("trained", 3, "failed")
    assert len(trials) < 40
    assert failed[0]["error_message"].startswith("ZeroDivisionError: depth ")
    assert failed[0]["error"] is None
    assert "more than max_failed_trials" in row["params"]["tuned"]


def test_where_all_trials_fail_the_key_fails_as_its_spec_does():
    odd = {"space": {"depth": [1, 3]}, "trials": 5, "max_failed_trials": 9}
    (row,) = fit(world(0, 5.0), tuned(name=Fragile, params={"depth": 5}, **odd))
    assert (row["status"], row["error_type"]) == ("failed", "ZeroDivisionError")


def test_when_its_time_is_over_the_best_so_far_counts():
    (row,) = fit(world(0, 5.0), tuned(seconds=1e-9))
    assert [trial["trial"] for trial in trials_of(row)] == [0]
    assert row["status"] == "trained"
    assert row["params"]["tuned"].endswith("the 1e-09 seconds were over")


def test_a_pruner_gives_bad_trials_up_before_their_last_fold():
    states = {
        pruner: [trial["state"] for trial in trials_of(fit(world(0, 5.0), tuned(pruner=pruner, trials=30))[0])]
        for pruner in ("none", "median")
    }
    assert "pruned" in states["median"]
    assert set(states["none"]) == {"complete"}


def test_trials_become_rows_under_the_numbers_of_their_commits_once():
    tables = MemoryTables()
    (row,) = fit(world(0, 5.0), tuned())
    prepared: Any = type("Prepared", (), {})()
    prepared.tables, prepared.spec = tables, load_spec({**SPEC, "tune": TUNE})
    place = {"model_set": "c.s.m", "run_id": "r1", "wave": 2}
    names = [name for name in STORE.names if name in row]
    for number, part in ((2000, WHOLE), (2001, WHOLE), (2001, 4)):
        one = {**{name: row[name] for name in names}, **place, "number": number, "part": part}
        one = {name: None if value is pd.NaT or value is pd.NA else value for name, value in one.items()}
        commit = Commit("c.s.m", "r1", number + (part == 4) * 500)
        tables.append(STORE, STORE.rows([{**one, "number": commit.number}]), commit)
    for _ in range(2):
        append_trials(prepared, run_id="r1", wave=2)
    rows = tables.read(TRIALS).to_pylist()
    assert tables.numbers(TRIALS, model_set="c.s.m", owner="r1") == [2000, 2501]
    assert [(each["part"], each["trial"]) for each in rows] == [(part, i) for part in (WHOLE, 4) for i in range(13)]
    assert dict(rows[1]["params"]).keys() == {"alpha"}


SPEC = {
    "model_set": "c.s.m", "source": {"path": "x"}, "keys": ["k"], "target": "y", "features": ["a", "b"],
    "estimator": "ridge",
}  # fmt: skip
KINDS = {"a": "numeric", "b": "numeric"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tune": {"space": {}}}, "tune.space"),
        ({"tune": {"space": {"alpha": {"low": 2.0, "high": 1.0}}}}, "low 2.0 is not below high 1.0"),
        ({"tune": {"space": {"alpha": {"low": 0.0, "high": 1.0, "log": True}}}}, "a logarithm needs it above 0"),
        ({"tune": {"space": SPACE}, "candidates": ["linear"]}, "leave candidates out, or tune"),
        ({"tune": {"space": SPACE, "seconds": 600.0}}, "600 leaves no time for the fit; limits.timeout_s is 600"),
        ({"tune": {"space": SPACE}, "levels": [[]], "pooling": "residual"}, "it does not go with tune"),
    ],
)
def test_a_search_that_cannot_be_is_refused(changes, said):
    with pytest.raises(SpecError, match=said):
        load_spec(SPEC | changes)


def test_parameters_that_the_estimator_does_not_take_are_refused_by_name():
    spec = load_spec(SPEC | {"tune": {"space": {"alhpa": [1.0, 2.0], "fit_intercept": [True, False]}}})
    (said,) = estimator_mistakes(spec, KINDS)
    assert said.startswith("tune.space: estimator.params: ridge has no 'alhpa' (did you mean alpha?)")
    outside = load_spec(SPEC | {"tune": {"space": {"alpha": {"low": -1.0, "high": 1.0}}}})
    (said,) = estimator_mistakes(outside, KINDS)
    assert said.startswith("tune.space: ")


def test_keys_whose_trials_are_tracked_must_be_keys_of_the_spec():
    spec = load_spec(SPEC | {"levels": [[]], "tune": {"space": SPACE, "track_keys": ["global", "k=1", "lane=2"]}})
    with pytest.raises(SpecError, match=r"tune\.track_keys: .*lane"):
        check_tracked(spec, {"k": "string"})
    check_tracked(load_spec(SPEC), {"k": "string"})


def test_only_what_a_search_is_part_of_is_another_model():
    plain, asked = load_spec(SPEC), load_spec(SPEC | {"tune": {"space": SPACE}})
    assert asked.fingerprint({}) != plain.fingerprint({})
    assert asked.fingerprint({}) != load_spec(SPEC | {"tune": {"space": SPACE, "trials": 5}}).fingerprint({})
    assert "tune" not in json.loads(plain.to_json())
    assert asked.why_not_distributed == "no key is where the spec has tune"
    with_rule = load_spec(
        SPEC | {"tune": {"space": SPACE}, "overrides": [{"where": "k = 1", "params": {"alpha": 1.0}}]}
    )
    assert with_rule.overridden(0).tune is None


def test_a_plan_expects_the_search_of_keys_with_rows_enough_and_no_more_than_its_time():
    from group_models.estimators.base import EstimatorSettings, features_of
    from group_models.estimators.registry import make_family

    family = make_family(EstimatorSettings("random_forest"), features_of(KINDS))
    costs = tuning_costs(family, Tune(space={"max_depth": [2, 3]}, trials=4, min_rows=200, seconds=30.0))  # type: ignore[dict-item]
    assert isinstance(costs, Costs)
    rows = np.array([100.0, 1000.0, 1e9])
    alone = family.predicted_seconds(rows, 2)
    searched = costs.seconds(rows, 2) - alone
    assert searched[0] == 0
    assert searched[1] == pytest.approx(min(15 * family.predicted_seconds(rows / 2, 2)[1], 30.0))
    assert searched[2] == pytest.approx(30.0)


def test_without_optuna_a_sentence_says_what_to_install_and_nothing_else_needs_it(monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "optuna" else found(name, *more)
    )
    (said,) = estimator_mistakes(load_spec(SPEC | {"tune": {"space": SPACE}}), KINDS)
    assert said == "tune: it needs optuna; install group-models[tune]"
    assert estimator_mistakes(load_spec(SPEC), KINDS) == []
