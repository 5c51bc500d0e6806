"""One MLflow run per training run, against a real server: what it says, and that it costs no trained model."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient
from sklearn.linear_model import LinearRegression

from group_models import api, registering, releasing
from group_models.adapters.mlflow_around import no_autologging
from group_models.adapters.path_tables import PathTables
from group_models.cli import main
from group_models.errors import ServerError, ServerWarning, StateError
from group_models.keys import texts_id
from group_models.live.cleaning import clean
from group_models.live.publishing import publish
from group_models.live.sets import read_releases
from group_models.loading import load_spec
from group_models.ports import Commit
from group_models.reporting import tracking
from group_models.runs import logging_runs
from group_models.spec import Limits
from group_models.tables import MANIFEST, PLAN, RUN, TRIALS
from tests import fitted
from tests.fitted import SET
from tests.servers import in_front, mlflow_server

SLOPES = {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A tracking server and registry of its own."""
    running = mlflow_server(tmp_path_factory.mktemp("mlflow")).start()
    yield running
    running.kill()


class Place:
    """A finished run in tables, and where it is to be logged."""

    def __init__(self, folder, url, experiment):
        self.tables = PathTables(folder / "warehouse", "zrl.ml")
        self.track = {"tracking_uri": url, "experiment": experiment}
        self.spec = fitted.spec(folder / "warehouse", track=self.track)
        fitted.add_run(self.tables, "r1", 0, SLOPES, failed=["broken"])
        self.client = MlflowClient(tracking_uri=url)

    def runs(self):
        found = self.client.get_experiment_by_name(self.track["experiment"])
        return [] if found is None else self.client.search_runs([found.experiment_id])

    def log_trained(self, **track):
        spec = load_spec({**self.spec, "track": {**self.track, **track}})
        return logging_runs.log_trained(self.tables, spec, "r1")


@pytest.fixture
def place(server, tmp_path, request, monkeypatch):
    # A call that a busy machine answers late is sent again: what it makes is then there twice.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    return Place(tmp_path, server.url, request.node.name)


@pytest.fixture
def impatient(monkeypatch):
    """A block in which each call is tried twice, for a second each."""

    @contextlib.contextmanager
    def block():
        with monkeypatch.context() as patched:
            for name, value in {"MAX_RETRIES": "1", "BACKOFF_FACTOR": "0", "TIMEOUT": "1"}.items():
                patched.setenv(f"MLFLOW_HTTP_REQUEST_{name}", value)
            yield patched

    return block


def text_of(place, run, name):
    return Path(place.client.download_artifacts(run.info.run_id, name)).read_text(encoding="utf-8")


def test_a_run_says_what_was_trained_on_what_and_how_well(place):
    logged = place.log_trained()
    (run,) = place.runs()
    assert (run.info.run_id, run.info.run_name, run.info.status) == (logged, "r1", "FINISHED")
    assert run.data.tags["group_models_model_set"] == SET
    assert run.data.params["estimator.name"] == "linear"
    assert run.data.params["scope"] == "all keys"
    measured = run.data.metrics
    assert (measured["keys_trained"], measured["keys_failed"], measured["keys_measured"]) == (3, 1, 3)
    assert measured["seconds_train"] == 1.5
    assert measured["holdout_rows"] == 6
    assert measured["mae"] == pytest.approx(0, abs=1e-9)
    assert (measured["mae_baseline"], measured["share_better"]) == (pytest.approx((5 + 10 + 15) / 3), 1)
    assert run.info.end_time - run.info.start_time == 180_000
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.source_type) == (SET, "path")
    assert "never-read.parquet" in used.dataset.source
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]


def test_parents_count_in_no_metric_of_the_fleet():
    ids = {"key_id": "", "key": [("k", "a")], "status": "trained", "model_set": SET, "run_id": "r1", "serves": "new"}
    rows = [
        {**ids, "level": level, "metrics": [("mae", mae)], "baseline_metrics": [("mae", 2.0)], "holdout_rows": 5}
        for level, mae in (("k", 1.0), ("global", 9.0))
    ]
    own = tracking.own_rows(MANIFEST.rows(rows), {"key_kinds": [("k", "string")]})
    assert tracking.fleet_metrics(own, "mae")["mae"] == 1.0
    assert tracking.fleet_metrics(own, "mae")["keys_measured"] == 1


def test_parents_of_a_plan_are_told_beside_the_keys(tmp_path):
    tables = PathTables(tmp_path, "zrl.ml")
    fitted.add_run(tables, "r1", 0, SLOPES)
    parent = {"model_set": SET, "run_id": "r1", "key_id": "p", "key": [], "level": "global", "decision": "whole"}
    assert tables.append(PLAN, PLAN.rows([parent]), Commit(SET, "r1", 1))
    told = json.loads(tracking.read_record(tables, SET, "r1").files["plan.json"])
    assert (told["keys"], told["decisions"]) == (3, {"whole": 3})
    assert (told["parents"]["keys"], told["parents"]["decisions"]) == (1, {"whole": 1})


def test_a_run_that_was_cleaned_is_not_logged_as_if_it_were_whole(tmp_path):
    tables = PathTables(tmp_path, "zrl.ml")
    for day, run_id in enumerate(("r1", "r2")):
        log = read_releases(tables, SET)
        fitted.add_run(tables, run_id, day, SLOPES, base=log[-1].release_id if log else None)
        publish(tables, SET, run_id, limits=Limits())
    clean(tables, SET, keep=1)
    with pytest.raises(StateError, match=r"only what still served is left of run r1 since .* cleaned"):
        tracking.read_record(tables, SET, "r1")


def test_plan_and_a_sample_of_the_manifest_are_artifacts_with_the_failures_first(place):
    place.log_trained()
    (run,) = place.runs()
    assert {file.path for file in place.client.list_artifacts(run.info.run_id)} == {
        "spec.json", "plan.json", "plan_sample.csv", "manifest_sample.csv", "report.html",
    }  # fmt: skip
    assert json.loads(text_of(place, run, "plan.json"))["keys"] == 4
    rows = pd.read_csv(io.StringIO(text_of(place, run, "manifest_sample.csv")))
    assert (len(rows), rows["status"][0], rows["key"][0]) == (4, "failed", "k=broken")


def test_the_run_table_keeps_the_mlflow_run_and_a_run_is_logged_once(place):
    logged = place.log_trained()
    assert tracking.mlflow_run_of(place.tables, SET, "r1") == logged
    assert place.log_trained() == logged
    assert logging_runs.log_run(place.spec) == ("r1", logged)
    assert len(place.runs()) == 1
    assert place.tables.read(RUN)["event"].to_pylist().count("logged") == 1


def test_f4_the_users_active_run_stays_active_and_nothing_of_ours_is_in_it(place, server):
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(server.url)
    mlflow.set_experiment("of the user")
    try:
        with mlflow.start_run() as own:
            place.log_trained()
            assert mlflow.active_run().info.run_id == own.info.run_id
            mlflow.log_metric("mine", 1.0)
        kept = mlflow.get_run(own.info.run_id)
    finally:
        mlflow.set_tracking_uri(before)
    assert kept.data.metrics == {"mine": 1.0}
    assert kept.data.params == {}
    assert not any(name.startswith("group_models") for name in kept.data.tags)


def test_f2_a_server_that_throttles_every_third_call_gets_all_of_it(place, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    with in_front(server.url, throttles=3) as front:
        logged = place.log_trained(tracking_uri=front.url)
        assert front.throttled > 0
    (run,) = place.runs()
    assert (run.info.run_id, run.info.status) == (logged, "FINISHED")
    assert len(place.client.list_artifacts(logged)) == 5


@pytest.mark.parametrize(
    "how", [{"throttles": 1}, {"sleeps_s": 3}, {"dies_after": 5}], ids=["throttles", "sleeps", "dies"]
)
def test_f2_a_server_that_answers_nothing_in_time_is_a_warning_and_is_logged_to_later(place, server, impatient, how):
    with in_front(server.url, **how) as front, impatient(), pytest.warns(ServerWarning, match="trained stands") as told:
        assert place.log_trained(tracking_uri=front.url) is None
    assert "run r1 could not be logged" in str(told[0].message)
    assert "`group-models log SPEC --run-id r1` logs it later" in str(told[0].message)
    assert tracking.mlflow_run_of(place.tables, SET, "r1") is None
    assert len(place.tables.read(MANIFEST)) == 4
    assert logging_runs.log_run(place.spec, "r1")[1] == place.runs()[0].info.run_id


@pytest.mark.slow
def test_a_server_that_is_killed_while_a_run_is_logged_costs_nothing_and_the_run_is_completed(tmp_path, impatient):
    (tmp_path / "mlflow").mkdir()
    dying = mlflow_server(tmp_path / "mlflow").start()
    place = Place(tmp_path, dying.url, "killed")

    def log_inputs_and_die(*_, **__):
        dying.kill()

    try:
        with impatient() as patched:
            patched.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
            patched.setattr(MlflowClient, "log_inputs", log_inputs_and_die)
            with pytest.warns(ServerWarning, match="`.* log SPEC --run-id r1` logs it later"):
                assert place.log_trained() is None
        dying.start()
        (half,) = place.runs()
        assert half.info.status == "RUNNING"
        (tmp_path / "spec.yaml").write_text(json.dumps(place.spec), encoding="utf-8")
        assert main(["log", str(tmp_path / "spec.yaml"), "--run-id", "r1"]) == 0
        (whole,) = place.runs()
        assert (whole.info.run_id, whole.info.status) == (half.info.run_id, "FINISHED")
        assert len(place.client.list_artifacts(whole.info.run_id)) == 5
    finally:
        dying.kill()


def test_a_server_that_is_down_is_named_to_who_logs_by_hand(place, impatient):
    down = {**place.spec, "track": {"tracking_uri": "http://127.0.0.1:9"}}
    with impatient(), pytest.raises(ServerError, match=r"run r1 could not be logged to http://127\.0\.0\.1:9"):
        logging_runs.log_run(down, "r1")


def test_runs_that_are_not_there_or_not_finished_are_refused(place):
    with pytest.raises(StateError, match="has no run 'r9'"):
        logging_runs.log_run(place.spec, "r9")
    empty = fitted.spec(place.spec["warehouse"], model_set="zrl.ml.other")
    with pytest.raises(StateError, match="has no finished run to log"):
        logging_runs.log_run(empty)


def test_a_set_is_registered_in_a_server_and_its_router_loads_from_there(place, server):
    spec = {**place.spec, "register": {}}
    releasing.release(spec, run_id="r1", force=True)
    (row,) = [row for row in read_releases(place.tables, SET) if row.action == "mirror"]
    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    mlflow.set_tracking_uri(server.url)
    # Both: an earlier test may have set a registry, which a tracking server then no longer brings along.
    mlflow.set_registry_uri(server.url)
    try:
        model = mlflow.pyfunc.load_model(f"models:/{SET}@champion")
    finally:
        mlflow.set_tracking_uri(before[0])
        mlflow.set_registry_uri(before[1])
    asked = pd.DataFrame({"k": ["a", "c", "broken"], "x": [2.0, 2.0, 2.0]})
    scored = api.score(asked, spec)
    pd.testing.assert_series_equal(model.predict(asked)["prediction"], scored["prediction"], atol=1e-9, rtol=0)
    assert scored["score_status"].tolist() == ["scored", "scored", "no_model"]
    assert row.registered_version == "1"
    assert registering.register(spec) == []


def test_f4_nothing_is_logged_by_itself_in_the_block_of_a_night_and_again_after_it(mlflow_db, tmp_path):
    mlflow.create_experiment("of the user", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("of the user")
    mlflow.sklearn.autolog(silent=True, log_models=False)
    counts = []
    try:
        with no_autologging():
            LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])
        counts.append(len(mlflow.search_runs(experiment_names=["of the user"])))
        LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])
        counts.append(len(mlflow.search_runs(experiment_names=["of the user"])))
    finally:
        mlflow.sklearn.autolog(disable=True, silent=True)
    assert counts == [0, 1]


def test_no_run_is_logged_where_the_spec_does_not_say_track(place):
    spec = load_spec({name: value for name, value in place.spec.items() if name != "track"})
    assert logging_runs.log_trained(place.tables, spec, "r1") is None
    assert place.runs() == []


def test_trials_of_keys_asked_for_are_runs_under_the_run_and_logged_once(place):
    tune = {"space": {"alpha": [1.0, 2.0]}, "track_keys": ["k=a"]}
    told = json.dumps({"metric": "mae", "tune": tune, "levels": [[]], "estimator": {"name": "ridge"}})
    fitted.add_run(place.tables, "r2", 1, SLOPES, spec=told)
    shared = {"model_set": SET, "run_id": "r2", "part": -1, "seconds": 0.5, "fold_errors": "[]"}
    complete = {"state": "complete", "error": 1.25, "params": [("alpha", "2.0")]}
    failed = {"state": "failed", "error_message": "ValueError: no", "params": [("alpha", "1.0")]}
    rows = [
        {**shared, "key_id": texts_id(key, {"k": "string"}), "trial": number, **of_trial}
        for key in ({"k": "a"}, {"k": "b"}, {})
        for number, of_trial in enumerate((complete, failed))
    ]
    place.tables.append(TRIALS, TRIALS.rows(rows), Commit(SET, "r2", 0))
    for _ in range(2):
        logging_runs.log_run(load_spec(place.spec), "r2")
    (parent,) = [run for run in place.runs() if run.data.tags.get("group_models_run") == "r2"]
    under = [run for run in place.runs() if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    nested = {run.info.run_name: run for run in under}
    assert sorted(nested) == ["global trial 0", "global trial 1", "k=a trial 0", "k=a trial 1"]
    assert len(place.runs()) == 5
    best, broken = nested["k=a trial 0"], nested["k=a trial 1"]
    assert (best.data.params, best.data.metrics) == ({"alpha": "2.0"}, {"cv_mae": 1.25, "seconds": 0.5})
    assert (best.info.status, broken.info.status) == ("FINISHED", "FAILED")
    assert broken.data.tags["group_models_error"] == "ValueError: no"
