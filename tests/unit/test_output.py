"""What `score --mode overwrite` may replace, and what a refused input leaves behind."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from group_models.adapters import spark_output
from group_models.errors import DataError, StateError


def check(target: Path, **kept: Path) -> None:
    from group_models.adapters.spark_output import check_output

    names = {name.replace("_", " "): str(path) for name, path in kept.items()}
    check_output(None, str(target), "overwrite", names)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "scored"
    folder.mkdir()
    for name in ("part-0.parquet", "_SUCCESS", "._SUCCESS.crc"):
        (folder / name).touch()
    return folder


def test_an_earlier_output_is_replaced(output: Path, tmp_path: Path) -> None:
    check(output, working_directory=tmp_path, input=tmp_path / "rows.parquet")


def test_the_input_is_not(output: Path) -> None:
    with pytest.raises(StateError, match="is the input"):
        check(output, input=output)


def test_a_folder_that_holds_what_must_stay_is_not(output: Path) -> None:
    with pytest.raises(StateError, match="holds the warehouse"):
        check(output.parent, warehouse=output)
    with pytest.raises(StateError, match="is the working directory"):
        check(output, working_directory=output)


def test_a_folder_in_the_warehouse_is_not(output: Path) -> None:
    with pytest.raises(StateError, match="lies in the warehouse"):
        check(output, warehouse=output.parent)


def test_a_folder_that_is_no_output_is_not(output: Path) -> None:
    (output / "thesis.docx").touch()
    with pytest.raises(StateError, match=r"holds thesis.docx.*no earlier output"):
        check(output)


@pytest.mark.parametrize("used", [[], ["mine"]])
def test_a_table_that_is_not_there_leaves_no_folder_of_sparks_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: list[str]
):
    class Session:
        """Makes its warehouse when it looks for the first table, as Spark does."""

        def table(self, name: str) -> None:
            Path("spark-warehouse").mkdir()
            for file in used:
                Path("spark-warehouse", file).touch()
            raise AnalysisException(f"{name} cannot be found")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"cannot read no\.such_table"):
        spark_output.read_input(Session(), "no.such_table")
    assert Path("spark-warehouse").exists() == bool(used)
