"""Runs of classes as people read them: log loss beside the prior, on the page, in tables and for MLflow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from group_models.class_metrics import confusion_name
from group_models.comparing import as_metric, error_together, mean_loss
from group_models.fakes import MemoryTables
from group_models.reporting import tracking
from group_models.reporting.page import page
from group_models.reporting.page.reading import PageData, read_page
from group_models.reporting.report import row_facts, rows_table
from group_models.reporting.verdict import verdict_of_rows
from group_models.tables import MANIFEST
from tests import pages
from tests.unit.test_page import embedded, told

ROWS = [
    {
        "key": {"k": key}, "status": "trained", "serves": "new", "model_run_id": "r1", "rows": 50, "reason": None,
        "metrics": {"log_loss": loss, "accuracy": 0.9, "f1": 0.8, confusion_name("late", "on time"): 2.0},
        "baseline_metrics": {"log_loss": 0.7, "accuracy": 0.5}, "holdout_rows": held,
    }
    for key, loss, held in (("a", 0.2, 10), ("b", 0.5, 30))
]  # fmt: skip


def test_the_verdict_is_by_log_loss_beside_the_prior() -> None:
    found = verdict_of_rows(ROWS)
    assert found is not None
    assert found.against["prior"].error == pytest.approx((0.2 * 10 + 0.5 * 30) / 40)
    assert found.sentence().startswith("models per key pay: log_loss 0.425 beside 0.7 of the prior, -39.3%")


def test_a_table_of_keys_has_the_log_loss_and_the_priors() -> None:
    columns = [str(column.header) for column in rows_table("keys", ROWS, width=200).columns]
    assert "log_loss" in columns
    assert "prior's log_loss" in columns
    assert 'confusion ["late", "on time"] 2' in row_facts(ROWS[0])["metrics"]


def test_log_losses_are_averaged_as_they_are() -> None:
    assert mean_loss(0.5, "log_loss") == as_metric(0.5, "log_loss") == 0.5
    assert error_together("log_loss", np.array([0.2, 0.5]), np.array([10.0, 30.0])) == pytest.approx(0.425)


def test_mlflow_gets_log_loss_and_accuracy_over_the_rows_of_all_holdouts() -> None:
    maps = {name: [list(row[name].items()) for row in ROWS] for name in ("metrics", "baseline_metrics")}
    rows = pa.table({
        **{name: pa.array(values, MANIFEST.arrow_schema.field(name).type) for name, values in maps.items()},
        "holdout_rows": pa.array([10, 30], pa.int64()), "status": pa.array(["trained", "one_class"]),
    })  # fmt: skip
    found = tracking.fleet_metrics(rows, "log_loss")
    assert found["log_loss"] == pytest.approx(0.425)
    assert found["accuracy"] == pytest.approx(0.9)
    assert found["log_loss_baseline"] == pytest.approx(0.7)
    assert found["share_better"] == 1.0
    assert not {"mae", "rmse", "bias"} & set(found)


def test_the_page_tells_of_log_loss_and_the_prior_and_has_no_column_per_pair_of_labels() -> None:
    nights = MemoryTables()
    pages.add_nights(nights, 60, metric="log_loss")
    night = read_page(nights, pages.SET, "night-2")

    def of_classes(maps: dict[str, float]) -> dict[str, float]:
        return {"log_loss": maps["mae"], "accuracy": 0.8, confusion_name("a", "b"): 3.0} if maps else {}

    changed = {name: [of_classes(m) for m in night.keys[name]] for name in ("metrics", "baseline_metrics")}
    data = PageData(**{**vars(night), "keys": night.keys.assign(**changed)})
    html = page.render(data).html
    assert "LOG LOSS is the log loss" in told(html, "errors")
    assert "Against the prior" in html
    labels = [column["label"] for column in embedded(html)["columns"].values()]
    assert {"LOG LOSS", "prior's LOG LOSS", "vs prior", "accuracy"} <= set(labels)
    assert not any("confusion" in label for label in labels)
    assert "median's" not in html
