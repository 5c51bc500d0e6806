"""Nightly operations: results evaluated once, reruns, vanished keys, what is kept of errors."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from group_models import api, releasing
from group_models.adapters import spark_output
from group_models.errors import StateError
from group_models.evaluation import MAX_MESSAGE, MAX_TRACEBACK
from group_models.live.manifest import STORE_COLUMNS, RunIdentity, compose
from group_models.tables import MANIFEST, PLAN, STORE
from tests.cases.worlds import ENGINES, FAULTS, by_key, scored, spec_of, tables_of, trained, values


def counting(folder):
    """An estimator that leaves a line in its key's file each time it is fitted; workers get it by value."""

    class Counting(BaseEstimator, RegressorMixin):
        def fit(self, X, y):
            with open(f"{folder}/{int(X['number'].iloc[0])}", "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write("fitted\n")
            self.mean_ = float(np.mean(y))
            return self

        def predict(self, X):
            return np.full(len(X), self.mean_)

    return Counting


def test_h1_each_key_is_fitted_once_however_often_the_result_is_looked_at(spark, tmp_path):
    folder = tmp_path / "fits"
    folder.mkdir()
    rows = [
        (carrier, 10 * number + i, float(number), float(number))
        for number, carrier in enumerate("ABC")
        for i in range(5)
    ]
    frame = spark.createDataFrame(rows, "carrier string, row_id int, number double, y double")
    changes = {"features": ["number"], "estimator": {"object": counting(str(folder)), "version": "1"}}
    world = trained(frame, tmp_path, **changes)
    for _ in range(2):
        assert len(api.show(world.spec)) == 3
        assert "trained" in repr(world.run)
        assert "3 trained" in world.run._repr_html_()
        out = api.score(frame, world.spec)
        assert out.count() == len(out.toPandas()) == 15
    assert {file.name: file.read_text() for file in folder.iterdir()} == {str(n): "fitted\n" for n in range(3)}


def test_h7_the_same_day_scored_twice_is_the_same_rows(spark, lines, tmp_path):
    frame = lines.frame.where("row_id < 10")
    path = str(tmp_path / "scored")
    assert spark_output.count_statuses(spark, f"file://{path}", "score_status") == {}
    for mode in ("error", "overwrite", "overwrite"):
        spark_output.check_output(spark, path, mode, {"input": "elsewhere"})
        spark_output.write_output(api.score(frame, lines.spec), path, mode)
        assert spark_output.count_statuses(spark, path, "score_status") == {"scored": 10}
    with pytest.raises(StateError, match="scored exists; say --mode append or --mode overwrite"):
        spark_output.check_output(spark, path, "error", {"input": "elsewhere"})
    assert values(spark.read.parquet(path).toPandas())[9] == pytest.approx(-9.0)


def test_h7_a_finished_run_id_is_answered_and_not_trained_again(spark, lines, tmp_path):
    spec = lines.copied_to(tmp_path)
    tables = tables_of(spec)
    before = [tables.read(table).num_rows for table in (PLAN, STORE, MANIFEST)]
    again = api.train(spec, run_id=lines.run.run_id, spark=spark)
    assert again.is_repeated
    assert (again.counts, again.release_id) == ({"trained": 2}, lines.run.release_id)
    assert [tables.read(table).num_rows for table in (PLAN, STORE, MANIFEST)] == before == [2, 2, 2]
    assert len(releasing.list_releases(spec)) == 1


def test_h7_a_used_run_id_is_refused_for_another_spec_or_scope(spark, lines):
    with pytest.raises(StateError, match=r"was used by another spec \(seed was 7, is 8\)"):
        api.train({**lines.spec, "seed": 8}, run_id=lines.run.run_id, spark=spark)
    with pytest.raises(StateError, match="was used for the scope all keys, now it is carrier = 'A'"):
        api.train(lines.spec, where="carrier = 'A'", run_id=lines.run.run_id, spark=spark)


def test_h10_a_vanished_key_stays_in_the_manifest_and_is_served_by_its_old_model(nights):
    rows = by_key(api.show(nights.second.spec))
    assert (rows["A"]["status"], rows["A"]["serves"]) == ("trained", "new")
    gone = rows["B"]
    assert (gone["status"], gone["serves"]) == ("vanished", "previous")
    assert (gone["run_id"], gone["model_run_id"]) == (nights.second.run.run_id, nights.first.run.run_id)
    assert gone["rows"] == 0
    assert gone["reason"] == "no rows in the data; it had a model before; its model is 0.0 days old"


def test_h10_a_vanished_key_is_scored_by_its_old_model_with_its_age(nights):
    out = nights.scored[1].set_index("carrier").loc["B"]
    assert (out["prediction"], out["score_status"]) == (pytest.approx(5.0), "scored")
    assert (out["model_run_id"], out["model_status"]) == (nights.first.run.run_id, "vanished")
    assert 0 < out["model_age_days"] < 1
    assert nights.scored[1].set_index("carrier").loc["A", "model_age_days"] < out["model_age_days"]


@pytest.mark.parametrize("engine", ENGINES)
def test_h10_a_model_over_the_age_of_the_spec_is_too_old_and_still_predicts(spark, nights, engine):
    frame = spark.createDataFrame([("A", 1, 5.0), ("B", 2, 5.0)], "carrier string, row_id int, x double")
    for max_age_days, status in ((1e-9, "too_old"), (1.0, "scored")):
        spec = {**nights.second.spec, "scoring": {"max_age_days": max_age_days}}
        out = scored(engine, frame, spec)
        assert values(out, "score_status") == {1: status, 2: status}
        assert values(out) == {1: pytest.approx(50.0), 2: pytest.approx(5.0)}


def test_h10_the_manifest_says_which_of_the_models_that_go_on_serving_are_too_old():
    decisions = {"gone": "vanished", "small": "too_small", "fresh": "too_small", "unserved": "too_small"}
    plan = PLAN.rows(
        {"model_set": "c.s.m", "run_id": "r2", "key_id": key, "key": [("carrier", key)], "level": "carrier",
         "rows": 0, "usable_rows": 0, "bytes": 0, "decision": decision, "reason": "planned"}
        for key, decision in decisions.items()
    )  # fmt: skip
    live, ages = dict.fromkeys(["gone", "small", "fresh"], "r1"), {"gone": 9.0, "small": 8.04, "fresh": 1.0}
    run = RunIdentity("c.s.m", "r2", "f", max_age_days=7.0)
    rows = compose(plan, STORE.empty().select(STORE_COLUMNS), live, run, ages=ages).to_pylist()
    assert {row["key_id"]: row["reason"] for row in rows} == {
        "gone": "planned; its model is 9.0 days old: too_old, max_age_days is 7",
        "small": "planned; its model is 8.0 days old: too_old, max_age_days is 7",
        "fresh": "planned",
        "unserved": "planned",
    }


def bad(key, data):
    """The rows of one key; a feature that is infinite keeps ridge from being fitted."""
    version, is_bad = data
    return [(key, float("inf") if is_bad and not i else float(i), float(i * version)) for i in range(10)]


def night(spark, folder, data, **options):
    """Train a night of ridges on keys given as version and whether they fail."""
    rows = [row for key in sorted(data) for row in bad(key, data[key])]
    frame = spark.createDataFrame(rows, "carrier string, x double, y double")
    spec = spec_of(frame, folder, estimator="ridge", limits={"min_rows": 5, "max_failed_keys": 2})
    return spec, api.train(spec, spark=spark, **options)


def test_h4_failed_keys_alone_are_tried_again_and_keep_their_last_good_model(spark, tmp_path):
    keys = [f"k{i}" for i in range(10)]
    night(spark, tmp_path, dict.fromkeys(keys, (4, False)), run_id="good")
    data = {key: (2, key in ("k3", "k7")) for key in keys}
    _, run = night(spark, tmp_path, data, run_id="first")
    assert run.counts == {"trained": 8, "failed": 2}
    spec, again = night(spark, tmp_path, {**data, "k3": (3, False)}, run_id="second", failed_only=True)
    assert again.counts == {"failed": 1, "trained": 1}
    second = by_key(api.show(spec, run_id="second"))
    assert {key: (row["status"], row["serves"], row["model_run_id"]) for key, row in second.items()} == {
        "k3": ("trained", "new", "second"),
        "k7": ("failed", "previous", "good"),
    }
    served = {key: row["model_run_id"] for key, row in by_key(api.show(spec)).items()}
    assert served == {**dict.fromkeys(keys, "first"), "k3": "second", "k7": "good"}
    _, third = night(spark, tmp_path, {**data, "k3": (3, False), "k7": (3, False)}, failed_only=True)
    assert third.counts == {"trained": 1}
    _, none = night(spark, tmp_path, data, failed_only=True)
    assert none.counts == {}


def test_h10_an_unchanged_key_keeps_its_model_and_says_since_when(spark, tmp_path):
    first = {"same": (1, False), "other": (1, False), "gone": (1, False)}
    night(spark, tmp_path, first, run_id="one")
    later = {"same": (1, False), "other": (2, False)}
    spec, run = night(spark, tmp_path, later, run_id="two", accept_changes=True)
    assert run.counts == {"trained": 1, "unchanged": 1, "vanished": 1}
    rows = by_key(api.show(spec))
    assert {key: (row["status"], row["serves"], row["model_run_id"], row["run_id"]) for key, row in rows.items()} == {
        "same": ("unchanged", "previous", "one", "two"),
        "other": ("trained", "new", "two", "two"),
        "gone": ("vanished", "previous", "one", "two"),
    }
    assert rows["same"]["reason"] == "same data and spec as its model; its model is 0.0 days old"
    assert rows["same"]["rows"] == 10
    back, run = night(spark, tmp_path, {**first, "other": (2, False)}, run_id="three")
    assert run.counts == {"unchanged": 3}
    assert {row["model_run_id"] for row in api.show(back, status="unchanged")} == {"one", "two"}


def test_h10_a_model_of_a_rolled_back_run_does_not_make_a_key_unchanged(spark, tmp_path):
    for run_id, version in (("one", 1), ("two", 2)):
        spec, _ = night(spark, tmp_path, {"a": (version, False)}, run_id=run_id)
    releasing.release(spec, "rollback")
    _, run = night(spark, tmp_path, {"a": (2, False)}, run_id="three", release=False)
    assert run.counts == {"trained": 1}


EXPECTED_ERRORS = {
    "fit": ("ValueError", "fit"),
    "evaluate": ("ZeroDivisionError", "evaluate"),
    "refit": ("KeyError", "refit"),
    "serialize": ("TypeError", "serialize"),
    "long": ("RuntimeError", "fit"),
}


@pytest.mark.parametrize("key", FAULTS)
def test_h11_each_fault_is_a_row_with_type_message_stage_and_traceback(fates, key):
    row = by_key(api.show(fates.spec, status="failed"))[key]
    assert (row["error_type"], row["error_stage"]) == EXPECTED_ERRORS[key]
    assert row["reason"].startswith(f"{row['error_stage']}: {row['error_type']}: ")
    assert row["traceback"].rstrip().splitlines()[-1].startswith(row["error_type"])
    assert 0 < len(row["error_message"]) <= MAX_MESSAGE
    assert 0 < len(row["traceback"]) <= MAX_TRACEBACK


def test_h11_long_and_binary_messages_are_cut_and_escaped(fates):
    rows = by_key(api.show(fates.spec, status="failed"))
    assert rows["fit"]["error_message"] == r"bad \x00\x1b[31m bytes \udcff"
    assert rows["long"]["error_message"].startswith("long long ")
    assert rows["long"]["error_message"].endswith("...")
    for row in rows.values():
        for name in ("reason", "error_message", "traceback"):
            assert [c for c in row[name] if not c.isprintable() and c not in "\n\t"] == []
    assert fates.run.counts["failed"] == len(FAULTS)
