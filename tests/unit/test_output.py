"""What `score --mode overwrite` may replace."""

from pathlib import Path

import pytest

from group_models.errors import StateError


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
