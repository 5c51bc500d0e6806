"""A unit on a laptop: ten rows, no Spark."""

import numpy as np
import pandas as pd
import pytest

from group_models.estimators.base import EstimatorSettings, features_of
from group_models.fitting.outcomes import RESULT, FitSettings
from group_models.fitting.units import fit_unit
from group_models.mlmodel import MlmodelTemplate

FEATURES = {"a": "numeric", "size (cm)": "numeric"}


class Poison:
    """An estimator that raises for one kind of data."""

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> "Poison":
        if y.max() > 100:
            raise RuntimeError("poison \x00" + "x" * 5000)
        self.mean_ = float(y.mean())
        return self

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return np.full(len(x), self.mean_)


class OwnAlarm(BaseException):
    """Not an `Exception`, as the time limit of `func_timeout` is none."""


class Quitter(Poison):
    """An estimator that tries to get out past whoever catches exceptions."""

    def __init__(self, raised: BaseException, *, late: bool = False) -> None:
        self.raised, self.late = raised, late

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> "Quitter":
        if not self.late:
            raise self.raised
        return self

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        raise self.raised


def settings(name: str | None = "ridge", obj: object = None, **changes: object) -> FitSettings:
    estimator = EstimatorSettings(name=name if obj is None else None, object=obj)
    features = features_of(FEATURES)
    template = MlmodelTemplate.build(model_set="c.s.m", run_id="r1", estimator="e", flavor="sklearn", features=features)
    values = {
        "model_set": "c.s.m", "run_id": "r1", "features": FEATURES, "estimator": estimator, "template": template,
        "refit": True, "seed": 7, "max_model_bytes": 10**6,
        "holdout_by": "time", "holdout_share": 0.2, "holdout_from_us": 8,
    }  # fmt: skip
    return FitSettings(**{**values, **changes})  # type: ignore[arg-type]


def rows_of(key_index: int, y: list[float], a: list[float] | None = None) -> pd.DataFrame:
    n = len(y)
    time = np.arange(n)
    return pd.DataFrame(
        {
            "key_index": np.int32(key_index), "time_us": time, "row_hash": time * 7, "is_holdout": time >= 8,
            "y": y, "f0": np.arange(n, dtype=float) if a is None else a, "f1": 1.0,
        }
    )  # fmt: skip


def keys_of(count: int) -> pd.DataFrame:
    return pd.DataFrame({"key_index": range(count), "key_id": [f"k{i}" for i in range(count)], "key": "{}", "unit": 3})


def test_ten_rows_of_a_line_give_a_model_without_error() -> None:
    frame = rows_of(0, [2.0 * i for i in range(10)])
    (row,) = fit_unit(frame, keys_of(1), settings()).to_dict("records")
    assert row["status"] == "trained"
    assert row["rows_used"] == 10
    assert row["holdout_rows"] == 2
    assert row["metrics"]["mae"] < 3.0
    assert row["baseline_metrics"]["mae"] == pytest.approx(10.0)
    assert row["unit"] == 3


def test_the_result_has_the_stores_columns_also_for_no_keys() -> None:
    result = fit_unit(rows_of(0, []), keys_of(0), settings())
    assert tuple(result.columns) == RESULT
    assert len(result) == 0


def test_the_order_of_the_rows_does_not_matter() -> None:
    frame = pd.concat([rows_of(0, [float(i % 4) for i in range(10)]), rows_of(1, [float(i) for i in range(10)])])
    once = fit_unit(frame, keys_of(2), settings())
    again = fit_unit(frame.sample(frac=1, random_state=3), keys_of(2).iloc[::-1], settings())
    assert once["sha256"].tolist() == again["sha256"].tolist()
    assert once["key_id"].tolist() == ["k0", "k1"]


def test_one_bad_key_is_a_row_and_the_others_are_trained() -> None:
    frame = pd.concat([rows_of(0, [1.0] * 10), rows_of(1, [500.0] * 10), rows_of(2, [2.0] * 10)])
    result = fit_unit(frame, keys_of(3), settings(obj=Poison()))
    assert result["status"].tolist() == ["trained", "failed", "trained"]
    bad = result.iloc[1]
    assert bad["error_type"] == "RuntimeError"
    assert bad["error_stage"] == "fit"
    assert len(bad["error_message"]) <= 500
    assert "\x00" not in bad["error_message"]
    assert bad["data"] is None


@pytest.mark.parametrize("late", [False, True], ids=["fit", "predict"])
@pytest.mark.parametrize(
    "raised", [SystemExit(3), OwnAlarm("too slow"), GeneratorExit()], ids=lambda raised: type(raised).__name__
)
def test_what_is_no_exception_is_a_row_too(raised: BaseException, *, late: bool) -> None:
    quitter = Quitter(raised, late=late)
    (row,) = fit_unit(rows_of(0, [1.0] * 10), keys_of(1), settings(obj=quitter)).to_dict("records")
    assert row["status"] == "failed"
    assert row["error_type"].endswith(type(raised).__name__)


def test_a_person_can_interrupt_a_fit() -> None:
    with pytest.raises(KeyboardInterrupt):
        fit_unit(rows_of(0, [1.0] * 10), keys_of(1), settings(obj=Quitter(KeyboardInterrupt())))


def test_a_key_with_no_rows_is_a_row() -> None:
    result = fit_unit(rows_of(1, [1.0] * 10), keys_of(2), settings())
    assert result["status"].tolist() == ["failed", "trained"]
    assert "no row of the key reached the fit" in result["reason"][0]


def test_infinite_values_are_named_by_their_column() -> None:
    frame = rows_of(0, [1.0] * 10, a=[np.inf, *range(9)])
    (row,) = fit_unit(frame, keys_of(1), settings()).to_dict("records")
    assert (row["status"], row["error_type"]) == ("failed", "FitError")
    assert row["reason"] == f"prepare: {row['error_message']}"
    assert row["reason"].count("infinite values in 'a'") == 1


@pytest.mark.parametrize(("count", "said"), [(5, "no row of the key falls into the holdout"), (2, None)])
def test_a_key_without_a_holdout_is_trained_and_says_so(count: int, said: str | None) -> None:
    frame = rows_of(0, [1.0, 2.0, 3.0, 4.0, 5.0][:count])
    (row,) = fit_unit(frame, keys_of(1), settings(holdout_by="time" if said else "none")).to_dict("records")
    assert row["status"] == "trained"
    assert row["metrics"] is None
    assert (row["reason"] is None) if said is None else said in row["reason"]


def test_a_key_with_all_rows_in_the_holdout_is_fitted_on_them_without_metrics() -> None:
    frame = rows_of(0, [1.0, 2.0, 3.0]).assign(is_holdout=True)
    (row,) = fit_unit(frame, keys_of(1), settings()).to_dict("records")
    assert row["rows_used"] == 3
    assert row["metrics"] is None
    assert "all rows of the key fall into the holdout" in row["reason"]


def test_without_refit_the_model_has_not_seen_the_holdout() -> None:
    (row,) = fit_unit(rows_of(0, [1.0] * 10), keys_of(1), settings(refit=False)).to_dict("records")
    assert row["rows_used"] == 8


def test_a_model_over_the_limit_is_not_stored() -> None:
    (row,) = fit_unit(rows_of(0, [1.0] * 10), keys_of(1), settings(max_model_bytes=10)).to_dict("records")
    assert row["status"] == "model_too_big"
    assert row["data"] is None
    assert row["model_bytes"] > 10
    assert "max_model_bytes is 10" in row["reason"]


def test_a_seed_comes_from_the_spec_and_the_key_alone() -> None:
    frame = pd.concat([rows_of(0, [1.0] * 10), rows_of(1, [1.0] * 10)])
    both = fit_unit(frame, keys_of(2), settings())
    alone = fit_unit(rows_of(0, [1.0] * 10), keys_of(1), settings())
    assert both["seed"][0] == alone["seed"][0]
    assert both["seed"][0] != both["seed"][1]
