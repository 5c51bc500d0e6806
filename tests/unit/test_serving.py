"""A router behind MLflow's scoring server: mixed and unseen keys, missing features, clients at the same time."""

from __future__ import annotations

import concurrent.futures
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import mlflow
import pytest
import uvicorn
from mlflow.pyfunc import scoring_server

from group_models import releasing
from group_models.adapters.mlflow_router import save_router
from group_models.adapters.path_tables import PathTables
from group_models.live.sets import read_live
from group_models.mirroring import read_models
from group_models.serving.bundles import write_bundle
from group_models.spec import Scoring
from tests import fitted
from tests.servers import Server, free_port

SLOPES = {"a": 1.0, "b": 2.0, "a/b": 3.0}


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    folder = tmp_path_factory.mktemp("router")
    spec = fitted.spec(folder / "warehouse")
    tables = PathTables(folder / "warehouse", "zrl.ml")
    fitted.add_run(tables, "r1", 0, SLOPES, failed=["broken"])
    releasing.release(spec, run_id="r1", force=True)
    live = read_live(tables, fitted.SET)
    write_bundle(folder / "router.sqlite", live, Scoring(), read_models(tables, fitted.SET, live))
    save_router(folder / "router", folder / "router.sqlite", live, {})
    return folder / "router"


@pytest.fixture(scope="module")
def in_process(router):
    """MLflow's scoring server in a thread of this process."""
    flag = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"
    before = os.environ.get(flag)
    port = free_port()
    app = scoring_server.init(mlflow.pyfunc.load_model(str(router)))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
    os.environ.pop(flag)
    if before is not None:
        os.environ[flag] = before


@pytest.fixture(scope="module")
def served(router):
    """`mlflow models serve`, a process of its own."""
    port = free_port()
    command = ["mlflow", "models", "serve", "-m", str(router), "--env-manager", "local", "--port", str(port)]
    environment = os.environ["PATH"]
    # The command starts `uvicorn` from PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment])
    server = Server([*command, "--host", "127.0.0.1"], port, router.parent / "serve.log", ready="/ping")
    try:
        yield server.start().url
    finally:
        os.environ["PATH"] = environment
        server.kill()


@pytest.fixture(params=["in_process", pytest.param("served", marks=pytest.mark.slow)])
def url(request):
    return request.getfixturevalue(request.param)


def ask(url, body):
    """Return status and body of an answer; NaN, which is no JSON, raises."""
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - loopback
            return answer.status, json.loads(answer.read(), parse_constant=pytest.fail)
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def test_mixed_unseen_and_null_keys_are_answered_row_by_row(url):
    rows = [{"k": k, "x": x} for k, x in [("a", 1), ("b", 2.5), ("new", 1), (None, 1), ("a/b", None), ("broken", 1)]]
    status, answer = ask(url, {"dataframe_records": rows})
    assert status == 200
    answered = answer["predictions"]
    assert [row["score_status"] for row in answered] == [
        "scored", "scored", "unseen_key", "null_key", "scored", "no_model",
    ]  # fmt: skip
    assert [row["prediction"] for row in answered[:4]] == [pytest.approx(1.0), pytest.approx(5.0), None, None]
    assert answered[0]["model_run_id"] == "r1"
    assert (answered[2]["model_run_id"], answered[2]["model_age_days"]) == (None, None)


def test_a_frame_that_is_split_is_taken_too(url):
    split = {"columns": ["x", "k"], "data": [[3, "b"], [3, "a"]]}
    status, answer = ask(url, {"dataframe_split": split})
    assert (status, [row["prediction"] for row in answer["predictions"]]) == (200, pytest.approx([6.0, 3.0]))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"k": "a"}, "Model is missing inputs ['x']"),
        ({"x": 1.0}, "Model is missing inputs ['k']"),
        ({"k": "a", "x": "much"}, "Failed to convert column x to type"),
        ({"k": 3, "x": 1.0}, "key column 'k': 3 is int, the models' keys are string"),
    ],
)
def test_rows_that_do_not_fit_are_a_clear_400(url, row, said):
    status, answer = ask(url, {"dataframe_records": [row]})
    assert status == 400
    assert said in answer["message"]


def test_clients_at_the_same_time_get_each_their_own(url):
    asked = [(k, float(x)) for x in range(20) for k in SLOPES]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda row: ask(url, {"dataframe_records": [{"k": row[0], "x": row[1]}]}), asked))
    assert {status for status, _ in answers} == {200}
    predictions = [answer["predictions"][0]["prediction"] for _, answer in answers]
    assert predictions == pytest.approx([SLOPES[k] * x for k, x in asked], abs=1e-9)
