"""Plan, store and live set to manifest rows."""

import dataclasses

import pyarrow as pa
import pytest

from group_models.errors import StateError
from group_models.keys import show_key, texts_id
from group_models.levels import Levels
from group_models.live.manifest import (
    RunIdentity,
    compose,
    count_levels,
    count_statuses,
    first_rows,
    levels_refusal,
    manifest_refusal,
    missing_keys,
    release_refusal,
)
from group_models.spec import Limits
from group_models.tables import PLAN, STORE

RUN = RunIdentity("c.s.m", "r2", "spec")
SHARED = {"model_set": "c.s.m", "run_id": "r2"}


def plan_of(**decisions: str) -> pa.Table:
    rows = [
        {**SHARED, "key_id": k, "key": [("k", k)], "level": "k", "decision": d, "rows": 5} for k, d in decisions.items()
    ]
    return PLAN.rows(rows)


def store_of(*rows: tuple[str, str, int]) -> pa.Table:
    return STORE.rows(
        [
            {**SHARED, "key_id": k, "status": s, "number": n, "wave": 0, "part": -1, "format": 1, "sha256": f"{k}{n}"}
            for k, s, n in rows
        ]
    )


def test_each_key_has_one_row_and_what_serves_it() -> None:
    plan = plan_of(a="whole", b="whole", c="too_small", d="vanished", e="whole", f="whole")
    store = store_of(("a", "trained", 0), ("b", "failed", 0), ("e", "failed", 0), ("f", "one_class", 0))
    rows = {row["key_id"]: row for row in compose(plan, store, {"b": "r1", "d": "r1"}, RUN).to_pylist()}
    assert {k: (r["status"], r["serves"], r["model_run_id"]) for k, r in rows.items()} == {
        "a": ("trained", "new", "r2"),
        "b": ("failed", "previous", "r1"),
        "c": ("too_small", "none", None),
        "d": ("vanished", "previous", "r1"),
        "e": ("failed", "none", None),
        "f": ("one_class", "new", "r2"),
    }
    assert rows["a"]["policy"] == "whole"
    assert rows["c"]["policy"] is None


def test_of_two_rows_of_a_key_the_one_with_the_lowest_number_counts() -> None:
    store = store_of(("a", "failed", 1001), ("a", "trained", 1000))
    assert first_rows(store)["number"].to_pylist() == [1000]
    assert compose(plan_of(a="whole"), store, {}, RUN).to_pylist()[0]["sha256"] == "a1000"


def test_a_key_without_an_outcome_stops_the_manifest() -> None:
    plan = plan_of(a="whole", b="sampled", c="too_small")
    assert missing_keys(plan, store_of(("a", "trained", 0))) == ["b"]
    with pytest.raises(StateError, match=r"1 of 3 keys have no outcome.*--run-id r2"):
        compose(plan, store_of(("a", "trained", 0)), {}, RUN)


def test_no_keys_give_no_rows() -> None:
    manifest = compose(plan_of(), store_of(), {}, RUN)
    assert manifest.num_rows == 0
    assert count_statuses(manifest) == {}


def test_statuses_are_counted_most_first() -> None:
    manifest = compose(plan_of(a="too_small", b="too_small", c="no_target"), store_of(), {}, RUN)
    assert list(count_statuses(manifest).items()) == [("too_small", 2), ("no_target", 1)]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"trained": 100, "failed": 2}, None),
        ({"trained": 10, "failed": 2}, None),
        ({"trained": 100, "failed": 5}, None),
        ({"trained": 10, "failed": 3}, "3 of 13 keys failed"),
        ({"trained": 90, "failed": 5, "crashed": 5}, "5 failed, 5 crashed"),
        ({"failed": 1}, "none of 1 keys"),
        ({"too_small": 9}, None),
        ({}, None),
    ],
)
def test_a_run_is_refused_where_too_many_of_the_tried_keys_failed(counts: dict[str, int], said: str | None) -> None:
    refusal = release_refusal(counts, Limits())
    assert (refusal is None) if said is None else said in str(refusal)


LEVELS = Levels({"k": "string", "s": "string"}, (("k",), ()))
IDS = {name: texts_id(texts, LEVELS.kinds) for name, texts in (("UA", {"k": "UA"}), ("AA", {"k": "AA"}), ("all", {}))}


def levelled(**outcomes: tuple[dict[str, str], str]) -> tuple[pa.Table, pa.Table]:
    """Return plan and store of keys and parents given as (key, outcome)."""
    plan, store = [], []
    for key, outcome in outcomes.values():
        is_fitted = outcome in ("trained", "failed")
        level = ",".join(key) or "global"
        row = {**SHARED, "key_id": texts_id(key, LEVELS.kinds), "key": list(key.items()), "level": level}
        plan.append({**row, "decision": "whole" if is_fitted else outcome, "rows": 5})
        if is_fitted:
            store.append((row["key_id"], outcome, 0))
    return PLAN.rows(plan), store_of(*store)


def test_what_has_no_model_is_served_by_its_most_specific_parent_with_one() -> None:
    plan, store = levelled(
        small=({"k": "UA", "s": "1"}, "too_small"),
        fails=({"k": "AA", "s": "1"}, "failed"),
        keeps=({"k": "UA", "s": "2"}, "failed"),
        ua=({"k": "UA"}, "trained"),
        aa=({"k": "AA"}, "failed"),
        whole=({}, "failed"),
    )
    kept = texts_id({"k": "UA", "s": "2"}, LEVELS.kinds)
    live = {kept: "r1", IDS["all"]: "r0"}
    rows = {show_key(dict(r["key"])): r for r in compose(plan, store, live, RUN, levels=LEVELS).to_pylist()}
    served = ("serves", "model_run_id", "parent_key_id", "parent_run_id")
    assert {name: tuple(row[column] for column in served) for name, row in rows.items()} == {
        "k=UA, s=1": ("parent", None, IDS["UA"], "r2"),
        "k=AA, s=1": ("parent", None, IDS["all"], "r0"),
        "k=UA, s=2": ("previous", "r1", None, None),
        "k=UA": ("new", "r2", None, None),
        "k=AA": ("parent", None, IDS["all"], "r0"),
        "global": ("previous", "r0", None, None),
    }


def test_parents_are_fits_of_their_own_fingerprint() -> None:
    plan, store = levelled(own=({"k": "UA", "s": "1"}, "trained"), ua=({"k": "UA"}, "trained"), all=({}, "unchanged"))

    def found(run: RunIdentity, levels: Levels | None = LEVELS) -> dict[str, str]:
        rows = compose(plan, store, {}, run, levels=levels).to_pylist()
        return {row["level"]: row["spec_fingerprint"] for row in rows}

    run = dataclasses.replace(RUN, parent_fingerprint="parents")
    assert found(run) == {"k,s": "spec", "k": "parents", "global": "parents"}
    assert found(RUN) == found(run, None) == dict.fromkeys(("k,s", "k", "global"), "spec")


def test_without_a_parent_that_has_a_model_nothing_serves() -> None:
    plan, store = levelled(small=({"k": "UA", "s": "1"}, "too_small"), ua=({"k": "UA"}, "failed"))
    rows = compose(plan, store, {}, RUN, levels=LEVELS).to_pylist()
    assert {(row["serves"], row["parent_key_id"]) for row in rows} == {("none", None)}


@pytest.mark.parametrize("failing", ["k,s", "k", "global"])
def test_d2_no_level_hides_that_all_models_of_another_fail(failing: str) -> None:
    counts: dict[str, dict[str, int]] = {level: {"trained": 40, "unchanged": 5} for level in ("k,s", "k", "global")}
    limits = Limits(max_failed_share=1.0, max_failed_keys=99)
    assert levels_refusal(counts, limits) is None
    counts[failing] = {"failed": 2, "crashed": 1, "unchanged": 7}
    said = f"level {failing}: none of 3 keys could be trained (2 failed, 1 crashed)"
    assert str(levels_refusal(counts, limits)).startswith(said)
    counts[failing] |= {"trained": 1}
    assert levels_refusal(counts, limits) is None


def test_d2_a_failed_parent_of_which_an_earlier_model_serves_holds_back_no_good_keys() -> None:
    plan, store = levelled(
        good=({"k": "UA", "s": "1"}, "trained"),
        ua=({"k": "UA"}, "trained"),
        whole=({}, "failed"),
    )

    def refusal(live: dict[str, str]) -> str | None:
        return manifest_refusal(compose(plan, store, live, RUN, levels=LEVELS), Limits())

    assert refusal({IDS["all"]: "r0"}) is None
    assert str(refusal({})).startswith("level global: none of 1 keys could be trained (1 failed)")


def test_d2_keys_of_which_all_fail_are_refused_whatever_serves_them() -> None:
    own = {"k": "UA", "s": "1"}
    plan, store = levelled(bad=(own, "failed"), ua=({"k": "UA"}, "trained"), whole=({}, "trained"))
    manifest = compose(plan, store, {texts_id(own, LEVELS.kinds): "r0"}, RUN, levels=LEVELS)
    assert str(manifest_refusal(manifest, Limits())).startswith("level k,s: none of 1 keys")


def test_the_share_of_failed_keys_is_that_of_keys_and_parents() -> None:
    counts = {"k": {"trained": 10, "failed": 2}, "global": {"failed": 1, "trained": 1}}
    assert levels_refusal(counts, Limits()) == release_refusal({"trained": 11, "failed": 3}, Limits())
    assert levels_refusal({"k": {"failed": 1}}, Limits()) == "none of 1 keys could be trained (1 failed)"


def test_levels_are_counted_specific_ones_first() -> None:
    plan, _ = levelled(a=({}, "too_small"), b=({"k": "UA", "s": "1"}, "too_small"), c=({"k": "UA"}, "too_big"))
    counts = count_levels(compose(plan, store_of(), {}, RUN))
    assert list(counts.items()) == [("k,s", {"too_small": 1}), ("k", {"too_big": 1}), ("global", {"too_small": 1})]


def test_a_row_names_the_parent_that_its_model_builds_on_whichever_run_trained_it() -> None:
    plan = plan_of(a="whole", b="unchanged", c="whole", d="whole", e="unchanged")
    of_child = {"status": "trained", "params": [("parent_key_id", "all"), ("parent_run_id", "r1"), ("alpha", "1.0")]}
    failed, alone = {"status": "failed"}, {"status": "trained", "params": [("alpha", "1.0")]}
    made = {"a": of_child, "c": failed, "d": alone}
    store = STORE.rows(
        [{**SHARED, "number": 0, "wave": 0, "part": -1, "format": 2, "key_id": k, **v} for k, v in made.items()]
    )
    live, bases = {"b": "r0", "c": "r0", "e": "r0"}, {"b": ("all", "r0"), "c": ("all", "r0"), "d": ("all", "r0")}
    rows = {row["key_id"]: row for row in compose(plan, store, live, RUN, bases=bases).to_pylist()}
    assert {k: (r["serves"], r["parent_key_id"], r["parent_run_id"]) for k, r in rows.items()} == {
        "a": ("new", "all", "r1"),
        "b": ("previous", "all", "r0"),
        "c": ("previous", "all", "r0"),
        "d": ("new", None, None),
        "e": ("previous", None, None),
    }
