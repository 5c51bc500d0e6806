"""The registered model beside the release log, in a real registry of MLflow: versions, aliases, moves by hand."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import urllib.error
import urllib.request
import warnings
from types import SimpleNamespace

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient

from group_models import api, registering, releasing
from group_models.adapters import path_commits, spark_interrupt
from group_models.adapters.mlflow_registry import MlflowRegistry
from group_models.adapters.path_tables import PathTables
from group_models.cli import main
from group_models.errors import MovedAliasError, ServerError, ServerWarning, SpecError, StateError
from group_models.live import mirrors
from group_models.live.publishing import publish, rollback
from group_models.live.sets import read_releases
from group_models.mirroring import Mirroring
from group_models.runs import preparing, training
from group_models.runs.training import Run
from group_models.spec import Limits, Registration, Scoring
from tests import fitted
from tests.fitted import SET

ASKED = pd.DataFrame({"k": ["a", "b"], "x": [1.0, 1.0]})


class Place:
    """A model set with three runs, of slopes 1, 10 and 100, and MLflow's registry beside it."""

    def __init__(self, folder, uri):
        self.uri = uri
        self.client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        self.client.create_experiment(SET, artifact_location=(folder / "artifacts").as_uri())
        self.tables = PathTables(folder / "warehouse", "zrl.ml")
        self.spec = fitted.spec(folder / "warehouse", register={"registry_uri": self.uri})
        for number, run_id in enumerate(("r1", "r2", "r3")):
            fitted.add_run(self.tables, run_id, number, {"a": 10.0**number, "b": 2 * 10.0**number})

    def publish(self, run_id, alias="champion", **options):
        return releasing.release(self.spec, run_id=run_id, alias=alias, **options)

    def version(self, alias="champion"):
        return str(self.client.get_model_version_by_alias(SET, alias).version)

    def versions(self):
        return sorted(int(v.version) for v in self.client.search_model_versions(f"name='{SET}'"))

    def move(self, version, alias="champion"):
        self.client.set_registered_model_alias(SET, alias, version)

    def routed(self, name="champion", **options):
        """Return what the registered model predicts for key `a` of x = 1: the slope of the run that serves."""
        model = mlflow.pyfunc.load_model(f"models:/{SET}@{name}")
        return round(float(model.predict(ASKED)["prediction"][0]), 6)

    def batch(self, alias="champion"):
        return round(float(api.score(ASKED, self.spec, alias=alias)["prediction"][0]), 6)

    def log(self, *actions):
        return [row for row in read_releases(self.tables, SET) if not actions or row.action in actions]

    def mirroring(self, registry=None, **rules):
        return Mirroring(
            self.tables, SET, registry or MlflowRegistry(SET, registry_uri=self.uri, tracking_uri=self.uri),
            Registration(**rules), Scoring(),
        )  # fmt: skip


@pytest.fixture
def place(tmp_path, mlflow_db):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ServerWarning)
        yield Place(tmp_path, mlflow_db)


def test_each_published_state_is_a_version_and_the_alias_points_at_the_newest(place):
    published = place.publish("r1")
    assert (place.version(), place.routed(), place.batch()) == ("1", 1.0, 1.0)
    place.publish("r2")
    assert (place.version(), place.versions(), place.routed(), place.batch()) == ("2", [1, 2], 10.0, 10.0)
    rows = place.log("mirror")
    assert [(row.alias, row.registered_version) for row in rows] == [("champion", "1"), ("champion", "2")]
    assert rows[0].target_release_id == published.release_id


def test_a_version_says_which_release_it_shows_and_how_good_it_is(place):
    published = place.publish("r1")
    version = place.client.get_model_version(SET, "1")
    assert version.status == "READY"
    assert version.tags | {"group_models_state": "", "group_models_mae": ""} == {
        "group_models_release": published.release_id, "group_models_run": "r1", "group_models_keys": "2",
        "group_models_models": "2", "group_models_state": "", "group_models_mae": "",
    }  # fmt: skip
    assert float(version.tags["group_models_mae"]) == pytest.approx(0, abs=1e-9)
    assert "2 models of zrl.ml.eta as of release" in version.description


def test_f9_one_registered_model_and_no_version_for_what_is_published_twice(place):
    for run_id in ("r1", "r2", "r2"):
        place.publish(run_id)
    assert len(place.client.search_registered_models()) == 1
    assert place.versions() == [1, 2]


def test_a_rollback_moves_the_alias_back_to_the_version_of_that_state(place):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    releasing.release(place.spec, "rollback")
    assert (place.version(), place.versions(), place.routed(), place.batch()) == ("1", [1, 2], 1.0, 1.0)


def test_a_pin_is_a_state_of_its_own(place):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    releasing.pin(place.spec, {"k": "a"}, run_id="r1")
    assert (place.version(), place.routed(), place.batch()) == ("3", 1.0, 1.0)
    releasing.unpin(place.spec, {"k": "a"})
    assert (place.version(), place.routed()) == ("2", 10.0)


def test_the_challenger_has_an_alias_of_its_own(place):
    place.publish("r1")
    place.publish("r2", "challenger")
    assert (place.routed("champion"), place.routed("challenger")) == (1.0, 10.0)
    place.publish("r2")
    assert place.version("champion") == place.version("challenger") == "2"
    place.publish("r3")
    assert (place.routed("champion"), place.routed("challenger")) == (100.0, 100.0)


def test_an_alias_moved_back_by_hand_is_adopted_as_a_rollback_and_batch_scoring_follows(place):
    first = place.publish("r1")
    place.publish("r2")
    place.move("1")
    assert place.batch() == 1.0
    (adopted,) = place.log("adopt")
    assert adopted.target_release_id == first.release_id
    assert "was moved to version 1" in adopted.note
    assert place.log()[-1].registered_version == "1"
    assert (place.version(), place.versions()) == ("1", [1, 2])
    assert registering.register(place.spec) == []


def test_an_alias_moved_forward_again_by_hand_is_adopted_too(place):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    place.move("1")
    assert place.batch() == 1.0
    place.move("2")
    assert (place.batch(), place.version()) == (10.0, "2")


def test_a_challenger_promoted_by_hand_is_adopted_as_a_publish(place):
    place.publish("r1")
    place.publish("r2", "challenger")
    place.move(place.version("challenger"))
    assert place.batch() == 10.0
    assert [(row.run_id, row.alias) for row in place.log("publish")][-1] == ("r2", "champion")
    assert (place.version(), place.versions()) == ("2", [1, 2])


def test_a_move_by_hand_is_refused_by_name_where_the_spec_says_so_and_the_log_can_go_there_itself(place):
    first = place.publish("r1")
    place.publish("r2")
    place.move("1")
    place.spec["register"]["on_moved_alias"] = "refuse"
    with pytest.raises(StateError, match=r"alias champion points at version 1, .* log at version 2: .*refuse"):
        place.batch()
    assert place.log("adopt") == []
    releasing.release(place.spec, "rollback", to=first.release_id)
    assert (place.batch(), place.version()) == (1.0, "1")


def test_a_move_by_hand_comes_before_what_is_released_after_it(place):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    place.move("1")
    place.publish("r3")
    assert [row.action for row in place.log("publish", "adopt")] == ["publish", "publish", "adopt", "publish"]
    assert (place.batch(), place.routed()) == (100.0, 100.0)
    releasing.release(place.spec, "rollback")
    assert (place.batch(), place.version()) == (1.0, "1")


@pytest.fixture
def read_only(monkeypatch):
    """Let no commit of the tables be published, as in a folder that one may only read (root may write any)."""

    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    def begin():
        monkeypatch.setattr(path_commits, "publish", refused)

    return begin


def test_who_may_not_write_the_log_scores_by_it_and_is_told(place, read_only):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    place.move("1")
    read_only()
    with pytest.warns(ServerWarning, match="aliases were not compared .* cannot write .* Permission denied"):
        assert place.batch() == 10.0


@pytest.fixture
def night(place, tmp_path, monkeypatch):
    """Return what `train` does with a run that is trained already: it publishes it."""

    def trained(_, run_id, *, release, **__):
        return release(Run(SET, run_id, {"trained": 2}, {}, place.tables))

    place.spec["source"] = {"path": str(tmp_path / "never-read.parquet")}
    ASKED.assign(y=1.0).to_parquet(place.spec["source"]["path"])
    monkeypatch.setattr(preparing, "prepare", lambda *_: SimpleNamespace(spark=None))
    monkeypatch.setattr(spark_interrupt, "stoppable", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(training, "train_run", trained)
    return lambda run_id: api.train(place.spec, run_id=run_id, spark=object())


def test_a_log_that_cannot_be_written_is_no_refusal_of_the_night_that_a_retry_publishes(place, read_only, night):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    place.move("1")
    read_only()
    with pytest.warns(ServerWarning, match="cannot write"), pytest.raises(StateError, match=r"cannot write .*release"):
        night("r3")


def test_a_run_that_found_nothing_to_train_is_not_logged(place, night, monkeypatch):
    nothing = Run(SET, "r9", {}, {}, place.tables, has_started=False)
    place.spec["track"] = {"tracking_uri": place.uri}
    monkeypatch.setattr(training, "train_run", lambda *_, **__: nothing)
    assert night("r9") == nothing


def test_a_run_of_parents_alone_was_not_asked_to_release_and_had_something_to_train(place):
    said = {has: repr(Run(SET, "r9", {}, {}, place.tables, has_started=has)) for has in (True, False)}
    assert said[True].endswith("not released: not asked to)")
    assert said[False].endswith("not released: there was nothing to train)")


@pytest.mark.parametrize(("own", "seen"), [(None, ("5", "1")), ("60", ("60", "1"))])
def test_scoring_waits_for_the_registry_in_brief_unless_told_otherwise(place, monkeypatch, own, seen):
    place.publish("r1")
    asked = []

    def version_of(self, alias):
        asked.append(tuple(os.environ[f"MLFLOW_HTTP_REQUEST_{name}"] for name in ("TIMEOUT", "MAX_RETRIES")))
        return "1"

    if own:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", own)
    monkeypatch.setattr(MlflowRegistry, "version_of", version_of)
    place.batch()
    assert asked == [seen]


def test_an_experiment_that_another_process_makes_at_the_same_time_is_used(place, monkeypatch):
    made = place.client.create_experiment("raced")
    found, really = [], MlflowClient.get_experiment_by_name

    def late(self, name):
        found.append(name)
        return None if len(found) == 1 else really(self, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", late)
    place.spec["track"] = {"experiment": "raced"}
    place.publish("r1")
    assert (place.version(), found, place.batch()) == ("1", ["raced", "raced"], 1.0)
    assert place.client.get_experiment_by_name("raced").experiment_id == made


def test_a_moved_alias_that_is_refused_refuses_the_night(place, night):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    place.move("1")
    place.spec["register"]["on_moved_alias"] = "refuse"
    assert "alias champion points at version 1" in night("r3").refusal
    assert [row.run_id for row in place.log("publish")] == ["r1", "r2"]


def test_who_may_not_write_the_log_and_releases_is_told_of_the_move_too(place, read_only):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    place.move("1")
    read_only()
    with pytest.warns(ServerWarning, match="were not compared"), pytest.raises(StateError, match="cannot write"):
        place.publish("r3")


def test_an_alias_moved_to_what_a_clean_has_ended_is_a_refused_move(place, night):
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    fitted.add_run(place.tables, "r4", 4, {"a": 4.0, "b": 8.0}, base=place.log("publish")[-1].release_id)
    place.publish("r4")
    releasing.clean(place.spec, keep=1, dry_run=False)
    place.move("1")
    assert "is before the oldest release of champion" in night("r3").refusal
    with pytest.raises(MovedAliasError, match=r"alias champion points at version 1, .* is before the oldest release"):
        place.batch()


def test_an_alias_on_a_version_that_is_not_ours_is_refused(place):
    place.publish("r1")
    place.client.create_model_version(SET, source="/not/ours")
    place.move("2")
    with pytest.raises(StateError, match=r"points at version 2, .* at version 1: group-models did not make"):
        place.batch()


def test_an_alias_that_was_deleted_comes_back_and_is_no_move(place):
    place.publish("r1")
    place.client.delete_registered_model_alias(SET, "champion")
    assert place.batch() == 1.0
    assert registering.register(place.spec) == []
    assert place.version() == "1"


def test_what_was_released_while_nothing_registered_it_is_shown_at_once_when_asked(place):
    for run_id in ("r1", "r2"):
        publish(place.tables, SET, run_id, limits=Limits())
    assert [row.registered_version for row in registering.register(place.spec)] == ["1"]
    assert (place.versions(), place.routed()) == ([1], 10.0)


def test_a_registry_that_is_down_costs_no_release_and_is_caught_up_with_later(place, monkeypatch):
    for name in ("MAX_RETRIES", "BACKOFF_FACTOR"):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", "0")
    down = dict(place.spec, register={"registry_uri": "http://127.0.0.1:9"})
    with pytest.warns(ServerWarning, match=r"what was released stands, .*`.* release register SPEC` catches"):
        releasing.release(down, run_id="r1")
    with pytest.warns(ServerWarning, match="does not show it yet"):
        releasing.release(down, run_id="r2")
    assert [row.run_id for row in place.log()] == ["r1", "r2"]
    with pytest.raises(ServerError, match=r"zrl\.ml\.eta in http://127\.0\.0\.1:9: .* failed"):
        registering.register(down)
    registering.register(place.spec)
    assert place.routed() == 10.0


def test_a_registry_that_is_down_leaves_scoring_to_the_log(place, monkeypatch):
    for name in ("MAX_RETRIES", "BACKOFF_FACTOR"):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", "0")
    place.publish("r1")
    down = dict(place.spec, register={"registry_uri": "http://127.0.0.1:9"})
    with pytest.warns(ServerWarning, match="the release log, which decides alone"):
        assert api.score(ASKED, down)["prediction"].tolist() == pytest.approx([1.0, 2.0])


def test_models_over_the_limit_are_refused_with_their_size_and_the_release_stands(place):
    place.spec["register"]["max_bytes"] = 100
    with pytest.warns(ServerWarning, match=r"2 models of [\d,]+ bytes together, and a version may hold 100"):
        place.publish("r1")
    assert (place.batch(), place.versions()) == (1.0, [])


def test_a_set_that_is_registered_nowhere_says_how_it_would_be(place):
    del place.spec["register"]
    with pytest.raises(SpecError, match=r"register: is missing; `register: \{\}`"):
        registering.register(place.spec)
    place.publish("r1")
    assert place.versions() == []


class StoppedError(Exception):
    pass


class StoppingRegistry(MlflowRegistry):
    """A registry whose user is killed before or after one of its calls."""

    stops = ""

    def add(self, directory, **about):
        version = super().add(directory, **about)
        if self.stops == "after add":
            raise StoppedError
        return version

    def move(self, alias, version):
        super().move(alias, version)
        if self.stops == "after move":
            raise StoppedError


@pytest.mark.parametrize("stops", ["after add", "after move"])
def test_who_is_killed_between_two_steps_is_completed_with_the_version_that_is_there(place, stops):
    place.publish("r1")
    publish(place.tables, SET, "r2", limits=Limits())
    registry = StoppingRegistry(SET, registry_uri=place.uri, tracking_uri=place.uri)
    registry.stops = stops
    with pytest.raises(StoppedError):
        place.mirroring(registry).keep_in_step()
    assert place.batch() == 10.0
    place.mirroring().keep_in_step()
    assert (place.version(), place.versions(), place.routed()) == ("2", [1, 2], 10.0)
    assert place.log("adopt") == []


def test_what_is_published_while_a_version_is_made_is_shown_at_last(place):
    class Slow(MlflowRegistry):
        def add(self, directory, **about):
            if not place.log("mirror"):
                publish(place.tables, SET, "r2", limits=Limits())
                place.mirroring().keep_in_step()
            return super().add(directory, **about)

    publish(place.tables, SET, "r1", limits=Limits())
    place.mirroring(Slow(SET, registry_uri=place.uri, tracking_uri=place.uri)).keep_in_step()
    assert place.routed() == 10.0
    assert [row.action for row in place.log()] == ["publish", "publish", "mirror"]


def test_what_is_published_while_an_alias_goes_back_to_an_older_version_is_no_rollback(place):
    class Slow(MlflowRegistry):
        def move(self, alias, version):
            if version == "1" and not place.log("publish")[2:]:
                publish(place.tables, SET, "r3", limits=Limits())
                place.mirroring().keep_in_step()
            super().move(alias, version)

    for run_id in ("r1", "r2"):
        place.publish(run_id)
    rollback(place.tables, SET, target=None)
    place.mirroring(Slow(SET, registry_uri=place.uri, tracking_uri=place.uri)).keep_in_step()
    assert (place.version(), place.routed(), place.batch()) == ("3", 100.0, 100.0)
    assert place.log("adopt") == []


def test_another_scoring_of_the_same_release_is_another_version_once(place):
    place.publish("r1")
    place.spec["scoring"] = {"on_missing": "null"}
    assert [row.registered_version for row in registering.register(place.spec)] == ["2"]
    assert (registering.register(place.spec), place.version(), place.log("adopt")) == ([], "2", [])
    del place.spec["scoring"]
    assert [row.registered_version for row in registering.register(place.spec)] == ["1"]
    assert (place.version(), place.batch(), place.log("adopt")) == ("1", 1.0, [])


def test_the_command_says_what_it_did_and_when_there_is_nothing_to_do(place, tmp_path, capsys):
    publish(place.tables, SET, "r1", limits=Limits())
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(place.spec), encoding="utf-8")
    assert main(["release", "register", str(spec)]) == 0
    assert "shows it as version 1" in capsys.readouterr().err
    assert main(["release", "register", str(spec), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["release", "register", str(spec)]) == 0
    assert "the registered model shows what the release log says" in capsys.readouterr().err
    assert main(["release", "list", str(spec)]) == 0
    assert "version 1" in " ".join(capsys.readouterr().out.split())
    place.publish("r2")
    place.move("1")
    assert main(["release", "register", str(spec)]) == 0
    said = capsys.readouterr().err
    assert "adopt for champion" in said
    assert "shows it as version 1" in said


UC = os.environ.get("GROUP_MODELS_UC_URI")


def ask_catalog(method, path, body=None):
    """Ask the catalog's server; what is there already, or not there, is all right."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{UC}/api/2.1/unity-catalog/{path}"
    request = urllib.request.Request(  # noqa: S310 - the server that the environment names
        url, data, {"Content-Type": "application/json"}, method=method
    )
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request):  # noqa: S310 - as above
        pass


@pytest.mark.skipif(UC is None, reason="GROUP_MODELS_UC_URI names no Unity Catalog server")
def test_the_registry_of_an_open_source_unity_catalog_gets_the_versions_and_the_log_decides(place):
    catalog, schema, _ = SET.split(".")
    ask_catalog("POST", "catalogs", {"name": catalog})
    ask_catalog("POST", "schemas", {"name": schema, "catalog_name": catalog})
    ask_catalog("DELETE", f"models/{SET}?force=true")
    place.spec["register"] = {"registry_uri": f"uc:{UC}"}
    for run_id in ("r1", "r2"):
        place.publish(run_id)
    releasing.release(place.spec, "rollback")
    assert [row.registered_version for row in place.log("mirror")] == ["1", "2", "1"]
    assert place.batch() == 1.0
    mlflow.set_registry_uri(f"uc:{UC}")
    found = [mlflow.pyfunc.load_model(f"models:/{SET}/{number}").predict(ASKED)["prediction"][0] for number in (1, 2)]
    assert found == pytest.approx([1.0, 10.0])


def test_a_version_is_found_by_its_description_where_a_registry_keeps_no_tags(place):
    place.publish("r1")
    state = place.client.get_model_version(SET, "1").tags["group_models_state"]
    place.client.delete_model_version_tag(SET, "1", "group_models_state")
    registry = MlflowRegistry(SET, registry_uri=place.uri, tracking_uri=place.uri)
    assert (registry.find(state), registry.find("other"), registry.state_of("1")) == ("1", None, state)


@pytest.mark.parametrize(
    ("registry_uri", "tracking_uri", "said"),
    [
        (None, "databricks://work", "databricks-uc://work"),
        ("databricks-uc", "http://tracks", "databricks-uc"),
        (None, "http://tracks", "http://tracks"),
        ("uc:http://catalog", None, "uc:http://catalog"),
    ],
)
@pytest.mark.usefixtures("mlflow_db")
def test_the_registry_is_the_one_that_is_named_or_that_of_the_tracking_server(registry_uri, tracking_uri, said):
    registry = MlflowRegistry(SET, registry_uri=registry_uri, tracking_uri=tracking_uri)
    assert registry.describe() == f"registered model {SET} in {said}"
    assert registry.has_aliases is not said.startswith("uc:")


class WithoutAliases(MlflowRegistry):
    """Like the registry of the open-source Unity Catalog: it knows no alias."""

    def __init__(self, uri):
        super().__init__(SET, registry_uri=uri, tracking_uri=uri)
        self.has_aliases = False

    def version_of(self, alias):
        raise NotImplementedError

    move = version_of


def test_a_registry_without_aliases_gets_the_versions_and_the_log_decides(place):
    for run_id in ("r1", "r2"):
        publish(place.tables, SET, run_id, limits=Limits())
        place.mirroring(WithoutAliases(place.uri)).keep_in_step()
    assert [row.registered_version for row in place.log("mirror")] == ["1", "2"]
    assert place.versions() == [1, 2]


def test_mirror_rows_change_nothing_of_what_serves_or_may_be_published(place):
    for run_id in ("r1", "r2", "r3"):
        place.publish(run_id)
        assert place.batch() == 10.0 ** (int(run_id[1]) - 1)
    releasing.release(place.spec, "rollback")
    assert mirrors.newest_act(place.log(), "champion").action == "rollback"
    at = [row.at for row in place.log()]
    assert at == sorted(set(at))
    assert (len(at), place.batch()) == (8, 10.0)


def test_f10_who_may_not_add_versions_is_told_what_is_needed(place, monkeypatch):
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    def denied(*_, **__):
        raise MlflowException("no", error_code=PERMISSION_DENIED)

    monkeypatch.setattr(MlflowClient, "create_model_version", denied)
    with pytest.warns(ServerWarning, match=r"making a version failed: no Only the owner .* CREATE MODEL"):
        place.publish("r1")
    assert place.log("mirror") == []


def test_a_disk_without_room_for_a_version_costs_no_release(place, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("group_models.mirroring.write_bundle", full)
    with pytest.warns(ServerWarning, match=r"router of zrl.ml.eta cannot be written to \S+: .*No space.*set TMPDIR"):
        place.publish("r1")
    assert [row.run_id for row in place.log()] == ["r1"]
