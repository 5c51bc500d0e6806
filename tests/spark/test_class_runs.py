"""Runs of classes: labels that differ per key, the same answers wherever they are scored, releases as of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F
from sklearn.metrics import log_loss
from xgboost import XGBClassifier

from group_models import api, releasing
from group_models.artifacts import load_model
from group_models.class_metrics import confusion_of
from group_models.errors import DataError, SpecError
from group_models.keys import key_id, key_seed
from group_models.labels import Labels
from group_models.loading import load_spec
from group_models.runs.labelling import find_labels, with_labels
from group_models.runs.preparing import prepare
from group_models.tables import STORE
from group_models.targets import open_tables
from tests.cases.worlds import MODEL_SET, by_key, scored, spec_of, tables_of

LABELS = ("early", "late", "lost", "on time")
PARAMS = {"n_estimators": 5, "max_depth": 2}
OF_KEYS = {
    "all": ("early", "late", "on time"), "two": ("early", "on time"), "one": ("late",), "rare": ("early", "late"),
    "three": ("early", "lost", "on time"),
}  # fmt: skip
ROWS = {"three": 3}


def a_world() -> pd.DataFrame:
    """Return 40 rows per key in the order of time; of `rare` one row is late; some labels are null."""
    rng = np.random.default_rng(3)
    parts = []
    for key, known in OF_KEYS.items():
        rows = ROWS.get(key, 40)
        x = rng.normal(size=rows)
        code = np.clip(np.floor((x + 1.2) * len(known) / 2.4), 0, len(known) - 1).astype(int)
        code = {"rare": (np.arange(rows) == 5).astype(int), "three": np.arange(rows)}.get(key, code)
        label = np.array(known, dtype=object)[code]
        if rows > 3:
            label[[7, 20]] = None
        at = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(rows), unit="h")
        parts.append(pd.DataFrame({"carrier": key, "at": at, "x": x, "label": label}))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(row_id=np.arange(len(frame)))


FRAME = a_world()


def spec(source: Any, folder: Any, **changes: Any) -> dict[str, Any]:
    return spec_of(
        source, folder,
        **{
            "target": "label", "task": "classification", "estimator": {"name": "xgboost", "params": PARAMS},
            "time_column": "at", "holdout": {"by": "time", "share": 0.25}, **changes,
        },
    )  # fmt: skip


def plain(key: str) -> tuple[np.ndarray, float]:
    """Return what a plain loop predicts for all rows of a key, under all labels, and its log loss on the holdout."""
    rows = FRAME[FRAME["carrier"] == key]
    usable = rows[rows["label"].notna()]
    known = sorted(usable["label"].unique())
    codes = np.array([known.index(label) for label in usable["label"]])

    def fitted(of: Any) -> Any:
        return XGBClassifier(**PARAMS, random_state=key_seed(7, key_id((key,))), n_jobs=1).fit(
            usable[["x"]][of], codes[of]
        )

    found = np.zeros((len(rows), 4))
    found[:, [LABELS.index(label) for label in known]] = fitted(codes >= 0).predict_proba(rows[["x"]])
    held = (usable["at"] >= pd.Timestamp("2026-01-02 06:00")).to_numpy()
    if not held.any():
        return found, np.nan
    first = fitted(~held)
    return found, log_loss(codes[held], first.predict_proba(usable[["x"]][held]), labels=range(len(known)))


def by_carrier(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Return manifest rows by carrier, that of all rows under None."""
    return {row["key"].get("carrier"): row for row in rows}


def matrix(scored_rows: pd.DataFrame) -> np.ndarray:
    ordered = scored_rows.sort_values("row_id")
    return np.array([[dict(row)[label] for label in LABELS] for row in ordered["probabilities"]])


def test_a_run_of_classes_equals_a_plain_loop_wherever_it_is_scored(either_spark, tmp_path):
    rows = either_spark.createDataFrame(FRAME)
    asked = spec(rows, tmp_path)
    run = api.train(asked, spark=either_spark)
    assert run.counts == {"trained": 4, "one_class": 1}
    assert run.release_id
    told = by_key(api.show(asked))
    assert (told["one"]["status"], told["one"]["serves"]) == ("one_class", "new")
    assert [(told[key]["rows"], told[key]["usable_rows"]) for key in ("all", "three")] == [(40, 38), (3, 3)]
    expected = {key: plain(key) for key in ("all", "two", "three")}
    for key in ("all", "two"):
        assert told[key]["metrics"]["log_loss"] == pytest.approx(expected[key][1], abs=1e-9)
        assert told[key]["metrics"]["log_loss"] < told[key]["baseline_metrics"]["log_loss"]
        assert sum(confusion_of(told[key]["metrics"]).values()) == told[key]["holdout_rows"]
    first = scored("pandas", rows, asked)
    for key, (found, _) in expected.items():
        own = matrix(first[first["carrier"] == key])
        np.testing.assert_allclose(own, found, atol=1e-9)
        labels = [LABELS[code] for code in found.argmax(axis=1)]
        assert first.loc[first["carrier"] == key, "prediction"].tolist() == labels
    assert set(first.loc[first["carrier"] == "one", "prediction"]) == {"late"}
    for engine in ("narrow", "wide"):
        again = scored(engine, rows, asked).sort_values("row_id")
        np.testing.assert_array_equal(matrix(again), matrix(first))
        assert again["prediction"].tolist() == first["prediction"].tolist()
        assert again.columns.tolist()[-8:] == first.columns.tolist()[-8:]
    # A filter over the scored rows reads the map; a row of an unseen key has neither.
    late = api.score(rows, asked).where(F.col("probabilities")["late"] > 0.5).count()
    assert late == (matrix(first)[:, 1] > 0.5).sum()
    unseen = FRAME.head(2).assign(carrier="new")
    answer = scored("wide", either_spark.createDataFrame(unseen), asked)
    assert answer["prediction"].isna().all()
    assert answer["probabilities"].isna().all()


@pytest.mark.slow
def test_integer_labels_keep_their_type_and_a_second_run_with_more_of_them_serves_beside_the_first(spark, tmp_path):
    codes = {"early": 1, "late": 2, "lost": 10, "on time": 20}
    frame = FRAME.assign(label=FRAME["label"].map(codes).astype("Int32"))
    some = frame[frame["carrier"].isin(["all", "one"])]
    asked = spec(spark.createDataFrame(some.astype({"label": object})), tmp_path, estimator="prior")
    api.train(asked, spark=spark)
    first = api.score(some, asked)
    assert first["prediction"].dtype == "Int64"
    assert list(first["probabilities"].iloc[0]) == ["1", "2", "20"]
    whole = {**asked, "source": spark.createDataFrame(frame.astype({"label": object}))}
    run = api.train(whole, spark=spark)
    # The other keys' data are as they were: another label in the set trains none of them again.
    assert run.counts == {"trained": 3, "unchanged": 2}
    again = api.score(frame, whole)
    assert list(again["probabilities"].iloc[0]) == ["1", "2", "10", "20"]
    own = again[again["carrier"].isin(some["carrier"])]
    assert [row["2"] for row in own["probabilities"]] == [row["2"] for row in first["probabilities"]]
    assert {row["10"] for row in own["probabilities"]} == {0.0}
    scored_rows = api.score(spark.createDataFrame(frame.drop(columns="label")), whole)
    assert dict(scored_rows.dtypes)["prediction"] == "bigint"
    assert dict(scored_rows.dtypes)["probabilities"] == "map<string,double>"
    releasing.release(whole, "rollback")
    assert list(api.score(some, whole)["probabilities"].iloc[0]) == ["1", "2", "20"]
    with pytest.raises(SpecError, match="is published with classification, the spec has regression"):
        api.plan(
            {**whole, "task": "regression", "target": "x", "features": ["row_id"], "estimator": "mean"}, spark=spark
        )


def test_the_labels_of_a_set_are_found_in_one_pass_and_checked(spark, tmp_path):
    bins = pd.cut(FRAME["x"], [-9, -1, 1, 9], labels=["low", "mid", "high"])
    asked = load_spec(spec(FRAME.assign(label=bins), tmp_path, class_weight={"mid": 2.0}))
    prepared = prepare(asked, open_tables(asked), spark)
    labels = find_labels(prepared)
    # In the order of the bins, and not of the alphabet.
    assert labels == Labels(("low", "mid", "high"))
    counts = with_labels(prepared, labels).rows().groupBy("y").count().collect()
    expected = bins.cat.codes.astype(float).value_counts().to_dict()
    assert {row["y"]: row["count"] for row in counts} == expected
    wrong = load_spec(spec(FRAME.assign(label=bins), tmp_path, class_weight={"middle": 2.0}))
    with pytest.raises(SpecError, match="class_weight: 'middle' is no label of 'label', which has low, mid, high"):
        find_labels(prepare(wrong, open_tables(wrong), spark))
    many = load_spec(
        spec(pd.DataFrame({"carrier": "a", "at": FRAME["at"][0], "x": 0.0, "label": range(300)}), tmp_path)
    )
    with pytest.raises(DataError, match="has more than 256 different values"):
        find_labels(prepare(many, open_tables(many), spark))


@pytest.mark.slow
def test_salted_keys_parents_gates_and_candidates_work_for_classes(either_spark, tmp_path):
    rng = np.random.default_rng(0)
    sizes = {"big": 900, "other": 40, "few": 6}
    frame = pd.concat(
        [pd.DataFrame({"carrier": key, "x": rng.normal(size=rows)}) for key, rows in sizes.items()], ignore_index=True
    )
    frame["label"] = np.where(frame["x"] + rng.normal(scale=0.3, size=len(frame)) > 0, "late", "on time")
    frame["at"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.permutation(len(frame)), unit="h")
    frame["row_id"] = np.arange(len(frame))
    rows = either_spark.createDataFrame(frame)
    asked = spec(
        rows, tmp_path, estimator="prior", candidates=["logistic"], levels=[[]], class_weight={"late": 2.0},
        limits={"min_rows": 20, "max_key_rows": 400, "max_parent_rows": 1000},
        gates={"parent": {"standard_errors": 50}, "champion": {"min_rows": 5, "tolerance": 0.5}}, refit=False,
    )  # fmt: skip
    run = api.train(asked, spark=either_spark)
    assert run.counts == {"trained": 2, "too_small": 1}
    told = by_carrier(api.show(asked))
    big, few = told["big"], told["few"]
    assert (big["policy"], big["n_parts"], big["estimator"]) == ("salted", 3, "logistic")
    assert (few["status"], few["serves"]) == ("too_small", "parent")
    assert {"log_loss", "accuracy", "f1"} <= set(big["metrics"])
    assert {"log_loss", "parent_log_loss", "global_log_loss", "parent_difference"} <= set(big["baseline_metrics"])
    assert big["metrics"]["log_loss"] < big["baseline_metrics"]["log_loss"]
    where = {"model_set": [MODEL_SET], "run_id": [run.run_id], "key_id": [big["key_id"]], "part": [0, 1, 2]}
    stored = tables_of(asked).read(STORE, where=where).to_pylist()
    assert len(stored) == 3
    models = [load_model(row["data"], format=row["format"], data_file=row["data_file"]) for row in stored]
    own = frame[frame["carrier"] == "big"]
    mean = np.mean([model.predict(own[["x"]]) for model in models], axis=0)
    answered = api.score(own, asked)
    np.testing.assert_allclose([list(row.values()) for row in answered["probabilities"]], mean, atol=1e-12)
    held = own["at"] >= pd.Timestamp(big["holdout_from"]).tz_localize(None)
    codes = (own["label"] == "on time").to_numpy().astype(int)
    assert big["metrics"]["log_loss"] == pytest.approx(log_loss(codes[held], mean[held]), abs=1e-9)
    # The parent answers for the key that is too small, in Spark as here.
    first = scored("pandas", rows, asked)
    again = scored("wide", rows, asked).sort_values("row_id")
    assert again["score_status"].tolist() == first["score_status"].tolist()
    assert set(first.loc[first["carrier"] == "few", "score_status"]) == {"parent"}
    assert again["prediction"].tolist() == first["prediction"].tolist()
    # A second night compares with the first one's models, by the chance that both give the true label.
    night = frame.assign(at=frame["at"] + pd.Timedelta(days=90), row_id=frame["row_id"] + len(frame))
    both = {**asked, "source": either_spark.createDataFrame(pd.concat([frame, night]))}
    api.train(both, spark=either_spark)
    assert by_carrier(api.show(both))["other"]["baseline_metrics"]["champion_rows"] > 0
    assert "champion_log_loss" in by_carrier(api.show(both))["other"]["baseline_metrics"]
    assert {row["status"] for row in api.show(both)} <= {"trained", "rejected", "too_small"}
