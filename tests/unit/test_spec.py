"""The spec: what it takes, and every mistake as one sentence."""

from pathlib import Path

import pytest
import yaml

from group_models.adapters.spark_source import open_source
from group_models.errors import SpecError
from group_models.loading import load_spec
from group_models.spec import Source, Spec, check_run_id, name_mistake, parse_bytes

SIX = {
    "model_set": "zrl.ml.eta",
    "source": {"path": "shipments.parquet"},
    "keys": ["carrier", "lane"],
    "target": "eta_hours",
    "features": ["weight_kg"],
    "estimator": {"name": "ridge"},
}


def mistakes_of(**changes: object) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        load_spec({**SIX, **changes})
    return caught.value.mistakes


def test_the_first_six_fields_are_enough() -> None:
    spec = load_spec(SIX)
    assert spec.limits.min_rows == 30
    assert spec.limits.max_key_bytes == 64 * 2**20
    assert spec.oversize == "salt"
    assert spec.refit is True
    assert spec.seed == 7


def test_a_spec_that_is_made_in_python_says_its_mistakes_in_the_same_words() -> None:
    wrong = {**SIX, "model_set": "eta", "keys": [], "sed": 1}
    with pytest.raises(SpecError) as caught:
        Spec(**wrong)
    assert [said.split(":")[0] for said in caught.value.mistakes] == ["model_set", "keys", "sed"]
    assert caught.value.mistakes == mistakes_of(model_set="eta", keys=[], sed=1)
    assert Spec(**SIX) == load_spec(SIX)


@pytest.mark.parametrize("name", SIX)
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name}: is missing"):
        load_spec({key: value for key, value in SIX.items() if key != name})


def test_all_mistakes_are_told_at_once() -> None:
    said = mistakes_of(featurs=1, seed="7", limits={"min_row": 3}, features=["carrier", "eta_hours"])
    assert len(said) == 5
    assert any("featurs: unknown field; did you mean features?" in text for text in said)
    assert any("limits.min_row: unknown field; did you mean min_rows?" in text for text in said)
    assert any("'carrier' is a key column" in text for text in said)
    assert any("'eta_hours' is the target" in text for text in said)


@pytest.mark.parametrize("given", [{}, {"path": "a", "table": "b"}, {"format": "csv", "table": "b"}])
def test_a_source_is_exactly_one_thing(given: dict[str, str]) -> None:
    assert len(mistakes_of(source=given)) == 1


@pytest.mark.parametrize("given", [{}, {"name": "ridge", "object": "a:b"}, {"name": "ridge", "version": "1"}])
def test_an_estimator_is_a_name_or_an_object(given: dict[str, str]) -> None:
    assert len(mistakes_of(estimator=given)) == 1


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("models", "1 level"),
        ("schema.m", "2 level"),
        ("c.s.m.x", "4 level"),
        ("C.s.m", "a-z"),
        ("c.s.", "a-z"),
        ("c.s.m x", "a-z"),
        ("c.s.-m", "not start with -"),
        (f"c.s.{'m' * 300}", "at most 255"),
    ],
)
def test_a_model_set_is_named_like_a_unity_catalog_model(name: str, rule: str) -> None:
    assert rule in str(name_mistake(name))


@pytest.mark.parametrize("name", ["c.s.m", "zrl_.ml.eta_model", "c.s.m-x", "_a.b1.c2"])
def test_a_right_name_is_taken(name: str) -> None:
    assert name_mistake(name) is None


@pytest.mark.parametrize("run_id", ["", "1a", "-a", "a b", "a/b", "ä", "a" * 256])
def test_a_run_id_of_another_alphabet_is_refused(run_id: str) -> None:
    with pytest.raises(SpecError, match="starts with a letter"):
        check_run_id(run_id)


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "specs" / "eta.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump({**SIX, "warehouse": "../wh"}))
    monkeypatch.chdir("/")
    spec = load_spec(file)
    assert spec.source.path == str(file.parent / "shipments.parquet")
    assert Path(str(spec.warehouse)).resolve() == tmp_path / "wh"


def test_a_path_with_a_scheme_stays(tmp_path: Path) -> None:
    file = tmp_path / "eta.yaml"
    file.write_text(yaml.safe_dump({**SIX, "source": {"path": "s3://bucket/x"}}))
    assert load_spec(file).source.path == "s3://bucket/x"


@pytest.mark.parametrize("text", ["a: [", "just text", ""])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "eta.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"not YAML|mapping"):
        load_spec(file)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SpecError, match=r"cannot read nowhere.yaml.*init"):
        load_spec("nowhere.yaml")


@pytest.mark.parametrize("text", ["64MB2", "many", "-1", "1.5.2GB"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64MiB"):
        parse_bytes(text)


def test_a_null_in_yaml_means_a_null_prediction() -> None:
    assert load_spec({**SIX, "scoring": {"on_missing": None}}).scoring.on_missing == "null"


def test_without_a_time_column_the_holdout_is_by_hash() -> None:
    assert load_spec(SIX).holdout_by == "hash"
    assert load_spec({**SIX, "time_column": "at"}).holdout_by == "time"
    assert load_spec({**SIX, "holdout": {"by": "none"}}).holdout_by == "none"


def test_the_fingerprint_covers_what_decides_a_fit_and_nothing_else() -> None:
    versions = {"numpy": "2.3.4"}
    base = load_spec(SIX).fingerprint(versions)
    assert load_spec({**SIX, "warehouse": "x", "compute": {"slots": 3}}).fingerprint(versions) == base
    assert load_spec(SIX).fingerprint({"numpy": "2.3.9"}) == base
    assert load_spec(SIX).fingerprint({"numpy": "2.4.0"}) != base
    assert load_spec({**SIX, "seed": 8}).fingerprint(versions) != base
    assert load_spec({**SIX, "metric": "mae"}).fingerprint(versions) == base
    assert load_spec({**SIX, "metric": "rmse"}).fingerprint(versions) != base


def test_an_estimator_object_and_a_frame_may_stand_for_themselves() -> None:
    pd = pytest.importorskip("pandas")
    linear = pytest.importorskip("sklearn.linear_model")
    spec = load_spec({**SIX, "source": pd.DataFrame({"a": [1]}), "estimator": linear.LinearRegression()})
    assert spec.source.describe() == "frame: pandas.core.frame.DataFrame"
    assert spec.estimator.describe().endswith("LinearRegression")
    assert "LinearRegression" in spec.to_json()


def test_a_checked_spec_is_returned_as_it_is() -> None:
    spec = load_spec(SIX)
    assert isinstance(spec, Spec)
    assert load_spec(spec) is spec


def test_a_source_function_that_is_nowhere_is_a_mistake_in_the_source() -> None:
    with pytest.raises(SpecError, match=r"1 mistake in the source:\n.*'nosuch.mod:rows': module nosuch.mod cannot be"):
        open_source(None, Source(python="nosuch.mod:rows"))  # type: ignore[arg-type]


def test_a_field_that_stands_twice_in_the_file_is_told(tmp_path: Path) -> None:
    text = "seed: 1\nkeys: [a]\nestimator: {name: ridge, params: {alpha: 1, alpha: 2}}\nseed: 2\nsource: {path: x}\n"
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        load_spec(tmp_path / "s.yaml")
    assert refused.value.mistakes == (
        "estimator.params.alpha: is given twice, in line 3 and in line 3; leave one of them",
        "seed: is given twice, in line 1 and in line 4; leave one of them",
    )


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("# nothing yet\n", encoding="utf-8")
    with pytest.raises(SpecError, match="is empty; `group-models init FILE` writes one"):
        load_spec(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keys": []}, "keys: needs at least one name, got []"),
        ({"keys": [1]}, "keys.0: should be text, got 1"),
        ({"keys": [""]}, "keys.0: should not be empty, got ''"),
        ({"features": "x"}, "features: should be a list, got 'x'"),
        ({"source": "rows.parquet"}, "source: should be a mapping of field: value, got 'rows.parquet'"),
        ({"limits": {"min_rows": 1.5}}, "limits.min_rows: should be a whole number, got 1.5"),
        ({"refit": "yes"}, "refit: should be true or false, got 'yes'"),
        ({"source": {"path": "x", "table": "y"}}, "source: needs exactly one of path, table, sql, python"),
    ],
)
def test_mistakes_are_told_in_the_words_of_a_spec(given: dict[str, object], said: str) -> None:
    (mistake,) = mistakes_of(**given)
    assert mistake.startswith(said)
