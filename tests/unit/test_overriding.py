"""Keys under a rule of their own: planned, fitted and fingerprinted as by a spec of their own, and no other key is."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, Features
from group_models.estimators.registry import make_family
from group_models.fitting.units import fit_unit
from group_models.keys import key_id
from group_models.live.manifest import RunIdentity, compose
from group_models.loading import load_spec
from group_models.planning.deciding import SIZES, Costs, plan_keys
from group_models.planning.overriding import OVERRIDE, overrides_notes, plan_overrides
from group_models.planning.plans import Plan
from group_models.spec import ParentSpec, Spec
from group_models.tables import PLAN, STORE
from tests.unit.test_fitting import keys_of, rows_of, settings

BASE = {
    "model_set": "c.s.m", "source": {"path": "x"}, "keys": ["k"], "target": "y", "features": ["a", "b"],
    "estimator": {"name": "ridge", "params": {"alpha": 2.0}},
}  # fmt: skip
RULES = [
    {"where": "k = 'a'", "estimator": "xgboost"},
    {"where": "k in ('b', 'c')", "params": {"solver": "svd"}, "features": ["b"]},
    {"where": "k = 'd'", "exclude": True},
]
SPEC = load_spec({**BASE, "overrides": RULES})
PLACES = {"a": 0, "b": 1, "c": 1, "d": 2, "e": None, "f": None}


def mistakes_of(**rule: object) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec({**BASE, "overrides": [{"where": "k = 'a'", **rule}]})
    return str(caught.value)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({}, "changes nothing; give it estimator, params, features or exclude: true"),
        ({"exclude": True, "params": {"alpha": 1}}, "exclude: true trains no model"),
        ({"estimator": "median", "params": {"alpha": 1}}, "write those of this estimator inside of it"),
        ({"features": ["z"]}, r"overrides.0.features: 'z' is none of the spec's features \(a, b\)"),
        ({"estimator": {"object": "m:f"}, "features": ["a"]}, "an estimator of your own takes all features"),
    ],
)
def test_a_rule_that_means_nothing_is_refused_by_its_place(rule, said):
    assert pc.match_substring_regex(pa.array([mistakes_of(**rule)]), said)[0].as_py()


def test_an_unknown_field_of_a_rule_or_of_candidates_names_those_that_there_are():
    assert "overrides.0.wher: unknown field; did you mean where?" in mistakes_of(wher="k = 'a'")
    with pytest.raises(SpecError, match=r"candidates\.foldz: unknown field; did you mean folds\?"):
        load_spec({**BASE, "candidates": {"estimators": ["ridge"], "foldz": 3}})


def test_a_rule_changes_what_it_names_and_keeps_the_rest():
    assert SPEC.overridden(None) is SPEC
    assert (SPEC.overridden(0).estimator.name, SPEC.overridden(0).features) == ("xgboost", ("a", "b"))
    second = SPEC.overridden(1)
    assert (second.estimator.name, second.estimator.params) == ("ridge", {"alpha": 2.0, "solver": "svd"})
    assert second.features == ("b",)
    assert isinstance(ParentSpec.of(SPEC).overridden(1), ParentSpec)


def test_only_keys_under_a_rule_have_another_fingerprint_for_it():
    plain = load_spec(BASE)
    assert "overrides" not in plain.to_json()
    assert SPEC.fingerprint({}) == SPEC.overridden(2).fingerprint({}) == plain.fingerprint({})
    assert len({SPEC.overridden(place).fingerprint({}) for place in (None, 0, 1)}) == 3


def sizes(rows: int = 50) -> pa.Table:
    table = pa.Table.from_pylist(
        [{"key_id": key_id((name,)), "key": [("k", name)], "level": "k", "rows": rows, "usable_rows": rows,
          "bytes": 8 * rows, "data_fingerprint": "1-2-3"} for name in PLACES],
        schema=pa.schema(list(SIZES)),
    )  # fmt: skip
    return table.append_column(OVERRIDE, pa.array(list(PLACES.values()), pa.int32())).sort_by("key_id")


def planned(of: pa.Table, spec: Spec = SPEC) -> Plan:
    asked = []

    def plan_alike(of_keys: pa.Table, its: Spec, place: int | None) -> Plan:
        asked.append((place, its.estimator.name, its.features))
        costs = Costs(lambda rows, columns: rows * columns * 1.0, lambda rows, _: rows * 10.0)
        return plan_keys(of_keys, its, costs, slots=2)

    plan = plan_overrides(of, spec, plan_alike)
    assert asked == [(None, "ridge", ("a", "b")), (0, "xgboost", ("a", "b")), (1, "ridge", ("b",))]
    return plan


def test_each_unit_of_a_plan_has_keys_of_one_rule_and_all_rules_share_the_waves():
    plan = planned(sizes())
    rows = {row["key"][0][1]: row for row in plan.keys.to_pylist()}
    assert {name: rows[name][OVERRIDE] for name in rows} == PLACES
    by_unit = pd.DataFrame(plan.parts().to_pylist()).groupby("unit")[OVERRIDE]
    assert all(len({str(place) for place in places}) == 1 for _, places in by_unit)
    assert plan.waves == 1
    assert {rows[name]["predicted_seconds"] for name in ("a", "b", "e")} == {100.0, 50.0}
    assert Plan.of_rows(plan.rows("c.s.m", "r1"), slots=2).parts().equals(plan.parts())


def test_an_excluded_key_has_a_row_that_says_so_and_no_unit():
    row = {row["key"][0][1]: row for row in planned(sizes()).keys.to_pylist()}["d"]
    assert (row["decision"], row["unit"]) == ("deferred", None)
    assert row["reason"] == "overrides[2] (k = 'd'): exclude"
    assert overrides_notes(planned(sizes()).keys, SPEC) == [
        "overrides hold for keys and parents: 1 by \"k = 'a'\", 2 by \"k in ('b', 'c')\", 1 by \"k = 'd'\""
    ]


def test_the_manifest_has_the_fingerprint_of_each_keys_rule_and_excluded_keys_keep_what_served():
    plan = planned(sizes())
    fitted = plan.keys.filter(pc.is_valid(plan.keys["unit"]))["key_id"].to_pylist()
    shared = {"model_set": "c.s.m", "run_id": "r1", "wave": 0, "number": 0, "part": -1, "format": 2}
    store = STORE.rows([{**shared, "key_id": each, "status": "trained"} for each in fitted])
    run = RunIdentity("c.s.m", "r1", "own", overrides=[("first", "p1"), ("second", "p2"), ("third", "p3")])
    live = {key_id(("d",)): "r0"}
    rows = {row["key"][0][1]: row for row in compose(PLAN.conform(_named(plan.keys)), store, live, run).to_pylist()}
    assert {name: row["spec_fingerprint"] for name, row in rows.items()} == {
        "a": "first", "b": "second", "c": "second", "d": "third", "e": "own", "f": "own",
    }  # fmt: skip
    assert (rows["d"]["status"], rows["d"]["serves"], rows["d"]["model_run_id"]) == ("deferred", "previous", "r0")
    unknown = RunIdentity("c.s.m", "r1", "own", overrides=None)
    again = {
        row["key"][0][1]: row for row in compose(PLAN.conform(_named(plan.keys)), store, live, unknown).to_pylist()
    }
    assert (again["a"]["spec_fingerprint"], again["e"]["spec_fingerprint"]) == (None, "own")


def _named(keys: pa.Table) -> pa.Table:
    count = keys.num_rows
    return keys.append_column("model_set", pa.array(["m"] * count)).append_column("run_id", pa.array(["r"] * count))


def test_a_unit_fits_each_key_by_its_rule_on_its_features():
    base = settings("ridge")
    other = settings("median")
    narrow = settings("xgboost", features={"size (cm)": "numeric"})
    told = settings("ridge", overrides=(other, narrow))
    frame = pd.concat([rows_of(i, [2.0 * n + i for n in range(10)]) for i in range(3)])
    rows = fit_unit(frame, keys_of(3).assign(override=[np.nan, 0, 1]), told).to_dict("records")
    assert [row["estimator"] for row in sorted(rows, key=lambda row: row["key_id"])] == ["ridge", "median", "xgboost"]
    by_key = {row["key_id"]: row for row in rows}
    (alone,) = fit_unit(rows_of(0, [2.0 * n for n in range(10)]), keys_of(1), base).to_dict("records")
    assert by_key["k0"]["sha256"] == alone["sha256"]
    # The one feature of the third key is constant: its model can do no better than a mean.
    assert by_key["k2"]["metrics"]["mae"] > 5
    assert EstimatorSettings("median").label == by_key["k1"]["estimator"]
    alike = fit_unit(frame, keys_of(3), told)
    assert set(alike["estimator"]) == {"ridge"}


@pytest.mark.parametrize(
    "name", ["ridge", "median", "random_forest", "gradient_boosting", "hist_gradient_boosting", "xgboost"]
)
def test_a_model_of_fewer_features_predicts_a_frame_of_all_of_them_in_any_order(name):
    """As scoring does, which hands each model the features of the spec."""
    rng = np.random.default_rng(1)
    x = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    y = (x["a"] - 2 * x["c"]).to_numpy()
    own = x[["a", "c"]]
    family = make_family(EstimatorSettings(name), Features(("a", "c"), (), ("a", "c")))
    fitted = family.fit(own, y, seed=1)
    np.testing.assert_array_equal(fitted.predict(x[["c", "b", "a"]]), fitted.predict(own))
