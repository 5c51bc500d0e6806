"""Who may do what in a catalog, as statements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_models.cli import main
from group_models.errors import SpecError
from group_models.grants import grants_for
from group_models.loading import load_spec
from group_models.spec import Spec
from group_models.tables import TABLES

SPEC = {
    "model_set": "zrl.ml.eta",
    "source": {"table": "zrl.raw.shipments"},
    "keys": ["carrier"],
    "target": "y",
    "features": ["x"],
    "estimator": "ridge",
    "warehouse": "delta",
}


def spec(**changes: Any) -> Spec:
    return load_spec(SPEC | changes)


def test_a_data_scientist_trains_and_may_not_release():
    given = grants_for(spec(), "data-scientist", "scientists").statements
    assert given == (
        "GRANT USE CATALOG ON CATALOG `zrl` TO `scientists`",
        "GRANT USE SCHEMA ON SCHEMA `zrl`.`ml` TO `scientists`",
        "GRANT SELECT ON SCHEMA `zrl`.`ml` TO `scientists`",
        "GRANT MODIFY ON TABLE `zrl`.`ml`.`group_model_plan` TO `scientists`",
        "GRANT MODIFY ON TABLE `zrl`.`ml`.`group_model_store` TO `scientists`",
        "GRANT MODIFY ON TABLE `zrl`.`ml`.`group_model_trials` TO `scientists`",
        "GRANT MODIFY ON TABLE `zrl`.`ml`.`group_model_manifest` TO `scientists`",
        "GRANT MODIFY ON TABLE `zrl`.`ml`.`group_model_run` TO `scientists`",
        "GRANT MODIFY ON TABLE `zrl`.`ml`.`group_model_commit` TO `scientists`",
        "GRANT USE SCHEMA ON SCHEMA `zrl`.`raw` TO `scientists`",
        "GRANT SELECT ON TABLE `zrl`.`raw`.`shipments` TO `scientists`",
    )


def test_an_analyst_reads_and_writes_nothing():
    given = grants_for(spec(), "analyst", "ann@example.com")
    assert given.statements == (
        "GRANT USE CATALOG ON CATALOG `zrl` TO `ann@example.com`",
        "GRANT USE SCHEMA ON SCHEMA `zrl`.`ml` TO `ann@example.com`",
        "GRANT SELECT ON SCHEMA `zrl`.`ml` TO `ann@example.com`",
    )
    assert "CREATE TABLE on the schema that scored rows are written to" in given.sql()


def test_an_admin_makes_schema_and_tables():
    given = grants_for(spec(), "admin", "admins").statements
    assert given[0] == "CREATE SCHEMA IF NOT EXISTS `zrl`.`ml`"
    assert "GRANT CREATE TABLE, SELECT, MODIFY ON SCHEMA `zrl`.`ml` TO `admins`" in given
    made = [line for line in given if line.startswith("CREATE TABLE IF NOT EXISTS `zrl`.`ml`.`group_model_")]
    assert len(made) == len(TABLES) + 1


def test_a_registered_set_needs_the_privileges_of_models():
    registered = spec(register={})
    assert any("CREATE MODEL, EXECUTE ON SCHEMA" in line for line in grants_for(registered, "admin", "a").statements)
    assert any("SELECT, EXECUTE ON SCHEMA" in line for line in grants_for(registered, "analyst", "a").statements)
    assert "only the owner of the registered model" in grants_for(registered, "admin", "a").sql()


def test_external_tables_and_other_sources_are_noted():
    elsewhere = spec(warehouse="delta:s3://bucket/models", source={"path": "s3://bucket/rows"})
    said = grants_for(elsewhere, "admin", "admins").sql()
    assert "-- and CREATE EXTERNAL TABLE on the external location of s3://bucket/models" in said
    assert "-- and what reading the source (path: s3://bucket/rows) needs" in said
    assert "LOCATION 's3://bucket/models/group_model_run'" in said


@pytest.mark.parametrize(
    ("changes", "role", "said"),
    [
        ({}, "owner", "role 'owner': say one of admin, data-scientist, analyst"),
        ({"warehouse": "folder"}, "admin", "warehouse 'folder' knows no privileges"),
        ({"warehouse": None}, "admin", "warehouse '' knows no privileges"),
        ({"model_set": "spark_catalog.ml.eta"}, "admin", "catalog spark_catalog knows no privileges"),
    ],
)
def test_what_has_no_privileges_is_refused(changes: dict[str, Any], role: str, said: str):
    with pytest.raises(SpecError, match=said):
        grants_for(spec(**changes), role, "x")


def test_the_command_prints_a_script_of_all_roles_and_what_each_job_needs(tmp_path: Path, capsys):
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(SPEC))
    assert main(["grants", str(file)]) == 0
    said = capsys.readouterr().out
    assert "-- plan: SELECT on the source and on the group_model tables" in said
    assert all(f"-- {role}: " in said for role in ("admin", "data-scientist", "analyst"))
    assert main(["grants", str(file), "--role", "analyst", "--to", "ann", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["roles"]
    assert list(told) == ["analyst"]
    assert told["analyst"]["statements"][0] == "GRANT USE CATALOG ON CATALOG `zrl` TO `ann`"
