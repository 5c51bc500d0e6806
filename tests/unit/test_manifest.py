"""Plan, store and live set to manifest rows."""

import pyarrow as pa
import pytest

from group_models.errors import StateError
from group_models.manifest import RunIdentity, compose, count_statuses, first_rows, missing_keys, release_refusal
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
    plan = plan_of(a="whole", b="whole", c="too_small", d="vanished", e="whole")
    store = store_of(("a", "trained", 0), ("b", "failed", 0), ("e", "failed", 0))
    rows = {row["key_id"]: row for row in compose(plan, store, {"b": "r1", "d": "r1"}, RUN).to_pylist()}
    assert {k: (r["status"], r["serves"], r["model_run_id"]) for k, r in rows.items()} == {
        "a": ("trained", "new", "r2"),
        "b": ("failed", "previous", "r1"),
        "c": ("too_small", "none", None),
        "d": ("vanished", "previous", "r1"),
        "e": ("failed", "none", None),
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
