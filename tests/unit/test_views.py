"""The statements of the views, and who hears that they have no place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import group_models
from group_models.adapters.view_sql import VIEWS
from group_models.cli import main
from group_models.errors import SpecError
from group_models.tables import TABLES

SPEC = {
    "model_set": "zrl.ml.eta", "source": {"table": "zrl.raw.shipments"}, "keys": ["carrier"], "target": "y",
    "features": ["x"], "estimator": "ridge", "warehouse": "delta",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "eta.yaml"
    path.write_text(yaml.safe_dump(SPEC), encoding="utf-8")
    return path


def test_views_are_printed_as_statements_that_can_be_run_again(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["views", str(file)]) == 0
    statements = capsys.readouterr().out.split(";\n\n")
    assert len(statements) == len(VIEWS) == 5
    for view, statement in zip(VIEWS, statements, strict=True):
        assert statement.startswith(f"CREATE OR REPLACE VIEW `zrl`.`ml`.`{view.name}` COMMENT 'one row: ")
        assert "{" not in statement
    assert "FROM `zrl`.`ml`.`group_model_release`" in statements[0]
    assert main(["views", str(file), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [f"zrl.ml.{view.name}" for view in VIEWS]


def test_a_view_reads_only_tables_and_views_before_it():
    known = {table.name: table.name for table in TABLES}
    for view in VIEWS:
        assert view.query(known).startswith(("WITH", "SELECT", "--"))
        known[view.name] = view.name


@pytest.mark.parametrize("options", [[], ["--create"]])
def test_tables_in_folders_have_no_catalog_for_views(
    file: Path, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main(["views", str(file), "--warehouse", str(tmp_path / "house"), *options]) == 1
    said = capsys.readouterr().err
    assert "Parquet folders under" in said
    assert "have no catalog that views could be in; they are for `warehouse: delta`" in said


def test_the_views_of_a_model_set_can_be_asked_for_by_its_name():
    assert next(iter(group_models.views("zrl.ml.eta", warehouse="delta"))) == "zrl.ml.group_model_live"
    with pytest.raises(SpecError, match="no catalog"):
        group_models.views("zrl.ml.eta", warehouse="./house")
