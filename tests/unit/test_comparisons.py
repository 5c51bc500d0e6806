"""Comparisons that are added up batch by batch say what those of all rows at once do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_models.comparing import as_metric, grouped_comparison, losses, mean_loss
from group_models.fitting.comparisons import Comparison, entries, from_text, merged, to_text

FLOATS = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))
ROWS = st.lists(st.tuples(FLOATS, FLOATS, st.one_of(FLOATS, st.just(np.nan))), min_size=1, max_size=30)


@pytest.mark.parametrize("metric", ["mae", "rmse"])
@given(ROWS, st.integers(0, 30))
def test_batches_add_up_to_the_comparison_of_all_rows(metric, rows, cut) -> None:
    y, own, other = (np.array(column) for column in zip(*rows, strict=True))
    parts = [
        Comparison.of(y[own_rows], own[own_rows], other[own_rows], metric)
        for own_rows in (slice(cut), slice(cut, None))
    ]
    found = merged({"parent": parts[0]}, {"parent": parts[1]})["parent"].values()
    wanted = {name: float(of[0]) for name, of in grouped_comparison(y, own, other, np.array([0]), metric).items()}
    for name, value in wanted.items():
        if not np.isnan(value) and name != "r2":
            scale = max(1.0, float(np.abs(losses(y, own, metric)).max()))
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-5 * scale), name
    assert found["rows"] == wanted["rows"]


def test_text_carries_comparisons_exactly() -> None:
    made = {"parent": Comparison.of(np.array([0.1, 0.7]), np.array([0.2, 1 / 3]), np.array([1e-17, np.nan]), "mae"),
            "champion": Comparison()}  # fmt: skip
    assert from_text(to_text(made)) == made


def test_a_parent_counts_where_it_predicted_all_rows_and_a_champion_where_some() -> None:
    y, own, other = np.zeros(3), np.ones(3), np.array([2.0, 2.0, np.nan])
    half = Comparison.of(y, own, other, "mae")
    found = entries({"parent": half, "champion": half}, 3)
    assert not any(name.startswith("parent") for name in found)
    assert (found["champion_rows"], found["champion_mae"], found["champion_difference"]) == (2.0, 2.0, -1.0)
    assert "champion_rows" not in entries({"champion": Comparison()}, 3)
    whole = entries({"parent": Comparison.of(y, own, y + 3, "mae")}, 3)
    assert (whole["parent_mae"], whole["parent_difference"], whole["parent_difference_se"]) == (3.0, -2.0, 0.0)


def test_loss_and_metric_are_each_others_inverse() -> None:
    assert as_metric(mean_loss(3.0, "rmse"), "rmse") == 3.0
    assert as_metric(mean_loss(3.0, "mae"), "mae") == 3.0
