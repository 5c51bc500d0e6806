"""Classes beside other models, in parts, in specs and in sources: what is compared, added up, refused and read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_models.artifacts import ClassModel, StoredModel, _load_pyfunc, model_files
from group_models.binned import text_target
from group_models.class_metrics import class_metrics, log_losses
from group_models.errors import DataError, SpecError
from group_models.estimators.base import EstimatorSettings
from group_models.estimators.classes import ClassPredictor
from group_models.estimators.ensembles import EnsemblePredictor
from group_models.estimators.registry import make_family
from group_models.fitting.class_sums import ClassSums
from group_models.fitting.comparisons import Comparison, entries
from group_models.fitting.deaths import NO_LIMITS
from group_models.fitting.measures import TRAIN_MEDIAN
from group_models.fitting.measuring import Meter, Reference
from group_models.fitting.parts import judge_parts, with_metrics
from group_models.fitting.references import ModelRow
from group_models.fitting.units import fit_unit
from group_models.frames import check_columns
from group_models.labels import Labels
from group_models.live.sets import Live
from group_models.loading import load_spec
from group_models.mlmodel import MlmodelTemplate
from group_models.spec import Spec
from tests.unit.test_fitting import FEATURES, keys_of, rows_of, settings
from tests.unit.test_references import linked
from tests.unit.test_spec import SIX

LABELS = Labels(("a", "b", "c"))
CODES = [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0, 1.0, 0.0]


def class_settings(name: str = "prior", **changes: Any) -> Any:
    estimator = EstimatorSettings(name=name, metric="log_loss", labels=LABELS)
    return settings(estimator=estimator, metric="log_loss", **changes)


def says(labels: Labels, *shares: float) -> ClassPredictor:
    return ClassPredictor(labels, tuple(range(len(shares))), shares=shares)


def reference(model: ClassPredictor, number: int = 0) -> bytes:
    return ModelRow("parent", number, 0, 0, 3, "classes.bin", "", model.dump()).pack()


def test_a_key_is_compared_with_its_parent_by_the_chance_that_both_give_the_true_label() -> None:
    # The parent is of a run that knew the labels in another order, and not all of them.
    parent = says(Labels(("b", "a")), 0.2, 0.8)
    (row,) = fit_unit(rows_of(0, CODES), linked((0, -1)), class_settings(), [reference(parent)]).to_dict("records")
    own, other = log_losses(np.array([2 / 8, 4 / 8])), log_losses(np.array([0.2, 0.8]))
    beside = row["baseline_metrics"]
    assert row["metrics"]["log_loss"] == pytest.approx(own.mean())
    assert beside["parent_log_loss"] == pytest.approx(other.mean())
    assert beside["parent_difference"] == pytest.approx((own - other).mean())
    assert beside["parent_difference_se"] == pytest.approx((own - other).std(ddof=1) / np.sqrt(2))
    assert "parent_mae" not in beside


def test_sums_of_comparisons_say_what_the_rows_say_together() -> None:
    y, own, other = np.zeros(6), np.array([0.9, 0.5, 0.4, 0.1, 0.3, 1.0]), np.array([0.5, 0.5, 0.9, 0.0, np.nan, 0.2])
    halves = [Comparison.of(y[rows], own[rows], other[rows], "log_loss") for rows in (slice(0, 2), slice(2, 6))]
    found = entries({"champion": halves[0].merge(halves[1])}, 6, "log_loss")
    known = ~np.isnan(other)
    difference = log_losses(own[known]) - log_losses(other[known])
    assert found["champion_log_loss"] == pytest.approx(log_losses(other[known]).mean())
    assert found["champion_difference"] == pytest.approx(difference.mean())
    assert found["champion_difference_se"] == pytest.approx(difference.std(ddof=1) / np.sqrt(5))
    assert "champion_mae" not in found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100), st.integers(1, 5)), min_size=1, max_size=30), st.data()
)
def test_sums_of_any_parts_are_the_metrics_of_all_rows(rows: list[tuple[int, int, int]], data: Any) -> None:
    y, first, weight = (np.array(each, dtype=float) for each in zip(*rows, strict=True))
    matrix = np.column_stack([first / 200, first / 200, 1 - first / 100])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(y)), max_size=3)))
    sums = ClassSums()
    for part in np.split(np.arange(len(y)), cuts):
        sums = sums.merge(ClassSums.of(y[part], matrix[part], LABELS.names, weight[part]))
    expected = class_metrics(y, matrix, LABELS.names, weight)
    expected.pop("auc", None)
    assert sums.metrics() == pytest.approx(expected)
    assert ClassSums.from_text(sums.to_text()) == sums


def test_a_row_without_probabilities_is_counted_and_no_metric_hides_it() -> None:
    sums = ClassSums.of(np.zeros(2), np.array([[1.0, 0, 0], [np.nan] * 3]), LABELS.names)
    assert (sums.count, sums.not_finite) == (2, 1)
    assert np.isnan(sums.metrics()["log_loss"])


def test_the_parts_of_a_salted_key_are_one_model_of_the_mean_of_their_probabilities_beside_the_mean_prior() -> None:
    parts = [
        fit_unit(rows_of(0, codes), keys_of(1).assign(part=part, n_parts=2), class_settings()).to_dict("records")
        for part, codes in enumerate((CODES, CODES[::-1]))
    ]
    rows = [row for of_part in parts for row in of_part]
    assert [row["part"] for row in rows] == [2, 0, 3, 1]
    assert all(TRAIN_MEDIAN in (row["baseline_metrics"] or {}) for row in rows if row["part"] >= 2)
    outcome = judge_parts(rows, {"key_id": "k0", "n_parts": 2, "unit": 3}, class_settings())
    assert outcome.is_trained
    shares = np.mean([[4 / 8, 2 / 8, 2 / 8], [4 / 8, 2 / 8, 2 / 8]], axis=0)
    np.testing.assert_allclose(outcome.baseline, shares)
    ensemble = EnsemblePredictor((says(LABELS, 0.5, 0.5, 0.0), says(LABELS, 0.1, 0.5, 0.4)))
    stored = StoredModel(ensemble)
    x, y = pd.DataFrame({"a": [0.0, 1.0]}), np.array([0.0, 2.0])
    np.testing.assert_allclose(stored.predict(x), [[0.3, 0.5, 0.2]] * 2)
    assert stored.labels == LABELS
    beside = {"parent": Reference(lambda: says(Labels(("c", "a")), 0.6, 0.4), -1)}
    meter = Meter(lambda: stored, NO_LIMITS, references=beside, metric="log_loss", labels=LABELS)
    for at in (slice(0, 1), slice(1, 2)):
        meter.add(x[at], y[at], np.tile(outcome.baseline, (1, 1)))
    told = with_metrics(outcome, meter.measured)
    assert told["metrics"]["log_loss"] == pytest.approx(log_losses(np.array([0.3, 0.2])).mean())
    assert told["metrics"]["accuracy"] == 0.0
    assert told["baseline_metrics"]["log_loss"] == pytest.approx(log_losses(np.array([0.5, 0.25])).mean())
    assert told["baseline_metrics"]["parent_log_loss"] == pytest.approx(log_losses(np.array([0.4, 0.6])).mean())
    assert "auc" not in told["metrics"]
    of_parts = [dict(row["train_metrics"])["train_log_loss"] for row in rows if row["part"] >= 2]
    assert told["train_metrics"] == pytest.approx({"train_log_loss": np.mean(of_parts)})


def test_an_ensemble_that_answers_no_row_of_probabilities_is_a_failure_that_says_so() -> None:
    meter = Meter(lambda: says(Labels(("a",)), 1.0), NO_LIMITS, metric="log_loss", labels=LABELS)  # type: ignore[arg-type, return-value]
    meter.add(pd.DataFrame({"a": [0.0]}), np.zeros(1), np.ones((1, 3)) / 3)
    assert meter.measured.failure is not None
    assert "1 rows got predictions of shape (1, 1)" in meter.measured.failure["reason"]


@pytest.mark.parametrize(("kind", "names", "told"), [
    ("text", ("no", "yes"), "yes"), ("integer", ("3", "20"), 20), ("boolean", ("false", "true"), True),
])  # fmt: skip
def test_mlflow_loads_a_model_that_answers_with_label_and_probabilities(
    tmp_path: Any, kind: Any, names: Any, told: Any
) -> None:
    labels = Labels(names, kind)
    (tmp_path / "classes.bin").write_bytes(says(labels, 0.25, 0.75).dump())
    model = _load_pyfunc(str(tmp_path / "classes.bin"))
    assert isinstance(model, ClassModel)
    answer = model.predict(pd.DataFrame({"a": [1.0, 2.0]}, index=[5, 5]))
    assert answer.index.tolist() == [5, 5]
    assert answer["prediction"].tolist() == [told, told]
    assert answer["probabilities"].iloc[0] == dict(zip(names, (0.25, 0.75), strict=True))


def test_the_signature_of_a_classifier_has_both_outputs_and_its_files_are_read_back() -> None:
    import yaml

    estimator = EstimatorSettings(name="logistic", labels=LABELS)
    features = make_family(estimator, _features()).own.features  # type: ignore[attr-defined]
    template = MlmodelTemplate.build(
        model_set="c.s.m", run_id="r1", estimator="logistic", flavor="classes", features=features, labels=LABELS
    )
    (row,) = fit_unit(rows_of(0, CODES), keys_of(1), class_settings("logistic", template=template)).to_dict("records")
    document = yaml.safe_load(row["mlmodel"])
    assert '"type": "string", "name": "prediction"' in document["signature"]["outputs"]
    assert '"type": "map"' in document["signature"]["outputs"]
    assert set(model_files(row["mlmodel"], row["data"], row["data_file"])) >= {"MLmodel", "classes.bin"}
    assert row["format"] == 3


def _features() -> Any:
    from group_models.estimators.base import features_of

    return features_of(FEATURES)  # type: ignore[arg-type]


def test_a_model_of_numbers_is_stored_under_the_number_that_earlier_versions_read() -> None:
    (row,) = fit_unit(rows_of(0, CODES), keys_of(1), settings()).to_dict("records")
    assert row["format"] == 2


def live(**run_labels: str) -> Live:
    features = {"r1": {"x": "numeric"}, "r2": {"x": "numeric"}}
    return Live(pd.DataFrame(), features, {"k": "string"}, run_labels=run_labels)  # type: ignore[arg-type]


def test_the_labels_of_a_live_set_are_those_of_all_runs_that_serve() -> None:
    found = live(r1=Labels(("a", "c")).to_json(), r2=Labels(("a", "b", "c")).to_json()).labels
    assert found == Labels(("a", "c", "b"))
    assert live().labels is None


def test_a_live_set_of_numbers_and_classes_is_refused() -> None:
    with pytest.raises(DataError, match="run r2 predict numbers and those of run r1 classes"):
        _ = live(r1=Labels(("a",)).to_json()).labels


def mistakes_of(**changes: Any) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        load_spec({**SIX, **changes})
    return caught.value.mistakes


CLASSES = {"task": "classification", "estimator": "logistic"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({**CLASSES, "metric": "mae"}, "metric: mae is of numbers, and the task is classification"),
        ({**CLASSES, "metric": "auc"}, "metric: auc is measured of every key, and decides nothing: write log_loss"),
        ({**CLASSES, "target_transform": "log1p"}, "target_transform: log1p is of numbers"),
        ({**CLASSES, "levels": [[]], "pooling": "residual"}, "pooling: what a model adds to its parent's is a number"),
        ({**CLASSES, "oversize": "distribute"}, "oversize: distribute trains no classifier"),
        ({**CLASSES, "class_weight": {"late": 0}}, "class_weight"),
        ({"metric": "log_loss"}, "metric: log_loss is of classes; say `task: classification`"),
        ({"class_weight": "balanced"}, "class_weight: a regression has no classes"),
        ({"target_transform": "log1p", "oversize": "distribute"}, "target_transform: it does not go with `oversize:"),
        ({"target_transform": "log1p", "levels": [[]], "pooling": "residual"}, "it does not go with pooling"),
        ({"target_transform": "sqrt"}, "target_transform: should be 'log1p'"),
    ],
)
def test_what_does_not_go_with_the_task_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    found = mistakes_of(**changes)
    assert any(said in text for text in found), found


def test_a_classification_is_judged_by_log_loss_and_weights_are_known_by_the_text_of_their_label() -> None:
    spec = load_spec({**SIX, **CLASSES, "class_weight": {True: 2, 3: 1.5, "late": 1}})
    assert spec.metric == "log_loss"
    assert spec.class_weight == {"true": 2.0, "3": 1.5, "late": 1.0}
    other = load_spec({**SIX, **CLASSES})
    assert spec.fingerprint({}) != other.fingerprint({})


def test_a_spec_of_numbers_is_written_and_hashed_as_before_there_were_classes() -> None:
    spec = load_spec(SIX)
    assert "class_weight" not in spec.to_json()
    assert "target_transform" not in spec.to_json()
    assert Spec.model_fields["task"].default == "regression"


def test_targets_of_a_classification_are_text_boolean_or_integers() -> None:
    columns = {"t": "string", "b": "boolean", "i": "smallint", "d": "double", "at": "timestamp", "v": "varchar(9)"}
    for name in ("t", "b", "i", "v"):
        assert check_columns(columns, target=name, task="classification") == []
    for name in ("d", "at"):
        (said,) = check_columns(columns, target=name, task="classification")
        assert said.endswith("is text, boolean or an integer type; cast or bin it in the source")
    assert check_columns(columns, target="t") != []


def test_binned_targets_are_text_in_the_order_of_their_bins() -> None:
    hours = [30.0, 2.0, np.nan, 9.0]
    bins = pd.cut(hours, [0, 5, 24, 100])
    frame, order = text_target(pd.DataFrame({"y": bins, "x": 1.0}, index=[3, 3, 1, 0]), "y")
    assert order == ("(0, 5]", "(5, 24]", "(24, 100]")
    assert frame["y"].tolist() == ["(24, 100]", "(0, 5]", None, "(5, 24]"]
    assert frame.index.tolist() == [3, 3, 1, 0]
    named = pd.cut(hours, [0, 5, 24, 100], labels=["short", "mid", "long"])
    assert text_target(pd.DataFrame({"y": named}), "y")[1] == ("short", "mid", "long")
    intervals = pd.DataFrame({"y": pd.arrays.IntervalArray.from_breaks([0, 2, 10])})
    assert text_target(intervals, "y")[1] == ("(0, 2]", "(2, 10]")
    plain = pd.DataFrame({"y": ["b", "a"]})
    frame, order = text_target(plain, "y")
    assert frame is plain
    assert order == ()
