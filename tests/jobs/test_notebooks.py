"""The notebooks, each cell run by a real kernel against what a run left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pyarrow.parquet as pq
import yaml
from nbclient import NotebookClient

from group_models import api
from tests import worlds

if TYPE_CHECKING:
    import pytest

    from group_models.ports import SparkSession

NOTEBOOKS = Path(__file__).parents[2] / "jobs" / "notebooks"


def with_parameters(notebook: nbformat.NotebookNode, **values: object) -> nbformat.NotebookNode:
    """Put values in the place of those of the cell that is tagged `parameters`."""
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert {line.split(" = ")[0] for line in cell.source.splitlines()} == set(values)
    cell.source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    return notebook


def shown(notebook: nbformat.NotebookNode) -> str:
    """Return what the cells printed, as text."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(output.get("data", {}).get("text/plain", output.get("text", "")) for output in outputs)


def test_the_ad_hoc_notebook_runs_against_what_a_run_left(
    connect_spark: SparkSession, connect_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = worlds.rows({("UA", 1): 90, ("UA", 2): 60})
    pq.write_table(rows, tmp_path / "rows.parquet")
    spec = worlds.spec({"path": "rows.parquet"}, tmp_path / "house")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    api.train(str(tmp_path / "spec.yaml"), spark=connect_spark)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{connect_port}")
    notebook = with_parameters(
        nbformat.read(NOTEBOOKS / "score_ad_hoc.ipynb", as_version=4),
        SPEC=str(tmp_path / "spec.yaml"),
        KEY={"carrier": "UA", "stop": 1},
        ROWS=str(tmp_path / "rows.parquet"),
    )
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = " ".join(shown(notebook).split())
    assert "'status': 'trained'" in said
    assert "Name: prediction, dtype: float64" in said
    assert f"score_status scored {rows.num_rows} dtype" in said, "the pandas frame"
    assert f"score_status count 0 scored {rows.num_rows}" in said, "the Spark frame"
