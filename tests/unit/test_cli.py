"""The command line without Spark: usage, exit codes, messages, and what an empty warehouse answers."""

from __future__ import annotations

import importlib.metadata
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from group_models import api, cli
from group_models.adapters import places
from group_models.cli import main
from group_models.errors import LibraryWarning, SpecError
from group_models.loading import load_spec

SPEC = {
    "model_set": "zrl.ml.eta",
    "source": {"path": "rows.parquet"},
    "keys": ["carrier"],
    "target": "y",
    "features": ["x"],
    "estimator": {"name": "ridge"},
    "warehouse": "house",
}


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return write(tmp_path / "spec.yaml", SPEC)


@pytest.fixture(autouse=True)
def _no_warehouse_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(places.WAREHOUSE, raising=False)


def write(file: Path, content: dict[str, Any]) -> str:
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["init", "--help"],
        ["plan", "--help"],
        ["train", "--help"],
        ["score", "--help"],
        ["show", "--help"],
        ["export", "--help"],
        ["release", "--help"],
        ["release", "list", "--help"],
        ["release", "publish", "--help"],
        ["release", "rollback", "--help"],
        ["release", "pin", "--help"],
        ["release", "unpin", "--help"],
        ["clean", "--help"],
        ["report", "--help"],
    ],
    ids=" ".join,
)
def test_help_is_printed_for_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]):
    assert main(arguments) == 0
    assert "Usage:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian", "x.yaml"], "No such command 'trian'"),
        (["train"], "Missing argument 'SPEC'"),
        (["score", "x.yaml", "--input", "a"], "Missing option '--output'"),
        (["score", "x.yaml", "--input", "a", "--output", "b", "--mode", "upsert"], "'upsert' is not one of"),
        (["score", "x.yaml", "--input", "a", "--output", "b", "--alias", "winner"], "'winner' is not one of"),
        (["show", "x.yaml", "--worst", "0"], "Invalid value for '--worst'"),
        (["train", "x.yaml", "--jobs", "3"], "No such option: --jobs"),
        (["export", "x.yaml", "out"], "Missing option '--key'"),
        (["release", "pin", "x.yaml", "--key", "carrier=UA"], "Missing option '--run-id'"),
        (["release", "unpin", "x.yaml"], "Missing option '--key'"),
        (
            ["score", "x.yaml", "--input", "a", "--output", "b", "--alias", "champion", "--run-id", "r"],
            "leave out one of",
        ),
        (
            ["export", "x.yaml", "out", "--key", "k=a", "--alias", "challenger", "--run-id", "r"],
            "leave out one of them",
        ),
        (["clean", "x.yaml"], "Missing option '--keep'"),
        (["clean", "x.yaml", "--keep", "0"], "Invalid value for '--keep'"),
    ],
)
def test_a_wrong_command_line_is_told_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_warning_about_libraries_is_a_line_and_the_noise_of_others_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    main(["init", str(tmp_path / "spec.yaml")])
    warnings.warn("numpy 1.26.4 (here 2.3.4)", LibraryWarning, stacklevel=1)
    warnings.warn("deprecated", UserWarning, stacklevel=1)
    said = capsys.readouterr().err
    assert "\nwarning: numpy 1.26.4 (here 2.3.4)\n" in said
    assert "deprecated" not in said


def test_a_bad_spec_is_refused_with_all_its_mistakes_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    bad = {**SPEC, "keys": ["carrier", "x"], "targt": "y", "limits": {"min_rows": "many"}, "model_set": "eta"}
    del bad["target"]
    assert main(["train", write(tmp_path / "bad.yaml", bad)]) == 1
    said = capsys.readouterr().err
    for mistake in (
        "targt: unknown field; did you mean target?",
        "target: is missing",
        "limits.min_rows: should be a whole number, got 'many'",
        "model_set: 'eta' has 1 level(s); write three, catalog.schema.name",
        "features: 'x' is a key column",
        "source.path: there is no",
    ):
        assert mistake in said
    assert said.startswith("error: 6 mistakes in")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot read"), ("a: [", "not YAML"), ("- a", "holds a list; write a mapping")]
)
@pytest.mark.parametrize("command", ["plan", "show"])
def test_a_file_that_is_no_spec_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: str | None, said: str
):
    file = tmp_path / "spec.yaml"
    if content is not None:
        file.write_text(content)
    assert main([command, str(file)]) == 1
    assert said in capsys.readouterr().err


def test_init_writes_a_spec_that_is_valid_and_says_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.yaml"
    assert main(["init", str(file)]) == 0
    assert capsys.readouterr().err == f"wrote {file}; edit it, then: group-models plan {file}\n"
    written = load_spec(file)
    assert (written.model_set, written.keys) == ("demo.ml.eta", ("carrier", "lane", "depot"))
    assert written.source.path == str(tmp_path / "shipments.parquet")


def test_the_defaults_that_init_writes_down_are_the_defaults(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    main(["init", str(file)])
    full = yaml.safe_load(file.read_text())
    first_six = ("model_set", "source", "keys", "target", "features", "estimator")
    bare = {name: full[name] for name in (*first_six, "time_column", "warehouse")}
    assert load_spec(full) == load_spec(bare)


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    assert main(["init", str(file)]) == 1
    assert f"{file} exists; name a new file" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_an_empty_warehouse_is_told_and_not_made(tmp_path: Path, spec: str, capsys: pytest.CaptureFixture[str]):
    for arguments in (["show", spec], ["show", spec, "--json"], ["release", "list", spec]):
        assert main(arguments) == 1
        said = capsys.readouterr().err
        assert f"model set zrl.ml.eta has no release yet in Parquet folders under {tmp_path / 'house'}" in said
    assert not (tmp_path / "house").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["release", "publish", "SPEC"], "has no finished run to publish"),
        (["release", "publish", "SPEC", "--run-id", "r1"], "has no run 'r1'"),
        (["release", "rollback", "SPEC"], "no earlier release of champion"),
        (["release", "rollback", "SPEC", "--run-id", "r1"], "run 'r1' was never published to champion"),
        (["release", "rollback", "SPEC", "--to", "x"], "there is no release 'x'; there is none yet"),
        (["release", "pin", "SPEC", "--key", "carrier=UA", "--run-id", "r1"], "has no run 'r1'"),
        (["release", "unpin", "SPEC", "--key", "carrier=UA"], "no key of champion is pinned"),
        (["show", "SPEC", "--run-id", "r1"], "has no run 'r1'"),
        (["export", "SPEC", "out", "--key", "carrier=UA"], "has no release yet"),
    ],
)
def test_what_needs_a_run_is_refused_where_there_is_none(
    spec: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
):
    assert main([spec if argument == "SPEC" else argument for argument in arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ([], None, "house"),
        ([], "elsewhere", "house"),
        (["--warehouse", "mine"], "elsewhere", "mine"),
    ],
)
def test_the_warehouse_is_the_options_else_the_specs(
    tmp_path: Path,
    spec: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    environment: str | None,
    expected: str,
):
    monkeypatch.chdir(tmp_path)
    if environment:
        monkeypatch.setenv(places.WAREHOUSE, environment)
    assert main(["export", spec, "out", "--key", "carrier=UA", *options]) == 1
    assert str(tmp_path / expected) in capsys.readouterr().err


def test_without_a_warehouse_in_the_spec_the_environment_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    bare = write(tmp_path / "bare.yaml", {name: value for name, value in SPEC.items() if name != "warehouse"})
    for environment, expected in [("elsewhere", "elsewhere"), ("", "warehouse")]:
        monkeypatch.setenv(places.WAREHOUSE, environment)
        assert main(["export", bare, "out", "--key", "carrier=UA"]) == 1
        assert f"{tmp_path / expected}/" in capsys.readouterr().err


def test_a_fault_of_ours_ends_with_3_and_a_traceback(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(api, "show", broken)
    assert main(["show", spec]) == 3
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.endswith("internal error: ZeroDivisionError: ours\n")


def test_the_console_script_leaves_with_the_code_and_silently_where_all_is_well(
    tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", ["group-models", "init", str(tmp_path / "new.yaml")])
    cli.entry()
    monkeypatch.setattr(sys, "argv", ["group-models", "release", "rollback", spec])
    with pytest.raises(SystemExit, match="1"):
        cli.entry()


def test_the_module_is_the_command(tmp_path: Path):
    command = [sys.executable, "-m", "group_models", "init", str(tmp_path / "new.yaml")]
    assert subprocess.run(command, check=False, cwd=tmp_path).returncode == 0
    assert subprocess.run(command, check=False, cwd=tmp_path, stderr=subprocess.DEVNULL).returncode == 1


def test_an_alias_beside_a_run_is_refused_by_the_functions_too(spec: str):
    for call in (
        lambda **which: api.score(pd.DataFrame(), spec, **which),
        lambda **which: api.load_model(spec, **which),
    ):
        with pytest.raises(SpecError, match="alias 'champion' and run_id 'r1': each says which models to take"):
            call(alias="champion", run_id="r1")


def test_a_missing_source_is_told_with_the_other_mistakes_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(api, "session", lambda: pytest.fail("a session was started"))
    bad = {**SPEC, "seed": "seven", "estimator": {"name": "rigde"}}
    for command in ("plan", "train"):
        assert main([command, write(tmp_path / "bad.yaml", bad)]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: 3 mistakes in ")
        assert f"source.path: there is no {tmp_path / 'rows.parquet'} (a path in a spec is relative to" in said
        assert "did you mean ridge?" in said


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_warehouse_that_is_a_file_is_refused_in_one_line(
    tmp_path: Path, spec: str, capsys: pytest.CaptureFixture[str], place: str
):
    (tmp_path / "file").write_text("mine")
    for arguments in (
        ["show", spec],
        ["release", "list", spec],
        ["export", spec, str(tmp_path / "out"), "--key", "k=a"],
    ):
        assert main([*arguments, "--warehouse", str(tmp_path / place)]) == 1
        said = capsys.readouterr().err
        assert f"{tmp_path / 'file'} is a file; embedded tables need a folder" in said
        assert "Traceback" not in said


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"group-models {importlib.metadata.version('group-models')}\n"
    assert main([]) == 2
    assert "Usage:" in capsys.readouterr().err


def test_pysparks_log_of_a_failed_query_stays_quiet_after_mlflow_enabled_all_loggers(capsys):
    assert main(["--version"]) == 0
    logger = logging.getLogger("SQLQueryContextLogger")
    logger.disabled = False
    logger.error("a failed query", errorClass="AS_PYSPARK_SAYS_IT")
    assert "failed query" not in capsys.readouterr().err
