"""Small data, specs for it, and the plain pandas loop that a run's models must equal.

The loop shares nothing with the package but the key's seed and id: it splits, fits and measures by hand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import threadpoolctl
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBRegressor

from group_models.keys import key_seed, texts_id

if TYPE_CHECKING:
    from group_models.ports import SparkFrame, SparkSession

MODEL_SET = "zrl.ml.eta"
KEYS = ("carrier", "stop")
NUMERIC = ("a", "b", "is_fragile")
SEED = 7
MIN_ROWS = 20
SHARE = 0.2

SIZES: Mapping[tuple[str | None, int | None], int] = {
    ("UA", 1): 90,
    ("UA", 2): 60,
    (None, 1): 50,
    ("Ünï-日本", 3): 40,
    ("null", None): 35,
    ("", 2): 31,
    ("old", 9): 30,
    ("new", 9): 25,
    ("AA", 1): 7,
}
"""Usable rows per key: null keys and the text 'null', unicode, empty text, too few rows (`AA`)."""

FITTED = tuple(key for key, rows in SIZES.items() if rows >= MIN_ROWS)

SCHEMA = pa.schema(
    {
        "row_id": pa.int64(),
        "carrier": pa.string(),
        "stop": pa.int32(),
        "at": pa.timestamp("us", tz="UTC"),
        "a": pa.float64(),
        "b": pa.int32(),
        "is_fragile": pa.bool_(),
        "color": pa.string(),
        "y": pa.float64(),
    }
)

_START = pd.Timestamp("2025-01-01", tz="UTC")
_HOURS = 4000
_COLORS = ("red", "blue", "grün", None)


def rows(sizes: Mapping[tuple[str | None, int | None], int] = SIZES, *, seed: int = 0) -> pa.Table:
    """Return the world's rows in random order.

    `at` is a whole hour, unique within a key. All rows of `old` are before all rows of `new`. Each key has one
    row more, whose target is null, NaN or infinite.
    """
    rng = np.random.default_rng(seed)
    frame = pd.concat([_rows_of_key(key, count, rng) for key, count in sizes.items()], ignore_index=True)
    frame.insert(0, "row_id", np.arange(len(frame)))
    return pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False).take(rng.permutation(len(frame)))


def _rows_of_key(key: tuple[str | None, int | None], count: int, rng: np.random.Generator) -> pd.DataFrame:
    carrier, stop = key
    n = count + 1
    first, last = {"old": (0, 1000), "new": (_HOURS - 60, _HOURS)}.get(carrier or "", (0, _HOURS))
    numbers = rng.normal(size=(n, 2))
    color = rng.integers(0, len(_COLORS), n)
    y = 3 * numbers[:, 0] - numbers[:, 1] + 2 * color + rng.normal(scale=0.3, size=n) + 10 * (stop or 0)
    y[0] = (np.nan, np.inf, -np.inf)[count % 3]
    a = np.where(rng.random(n) < 0.1, np.nan, numbers[:, 0])
    return pd.DataFrame(
        {
            "carrier": pd.Series([carrier] * n, dtype=object),
            "stop": pd.array([stop] * n, dtype="Int32"),
            "at": _START + pd.to_timedelta(rng.permutation(np.arange(first, last))[:n], unit="h"),
            "a": a,
            "b": np.round(numbers[:, 1] * 100).astype(np.int32),
            "is_fragile": rng.random(n) < 0.3,
            "color": pd.Series([_COLORS[i] for i in color], dtype=object),
            "y": y,
        }
    )


def pandas_rows(table: pa.Table) -> pd.DataFrame:
    """Return rows as pandas, integers with nulls as `Int32`."""
    return table.to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)


def spark_rows(spark: SparkSession, table: pa.Table, partitions: int = 2) -> SparkFrame:
    """Return rows as a Spark frame in so many partitions."""
    return spark.createDataFrame(table).repartition(partitions)


def plan_of(frame: SparkFrame) -> str:
    """Return the physical plan as Spark prints it."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        frame.explain()
    return said.getvalue()


@contextlib.contextmanager
def through_pandas() -> Iterator[None]:
    """Let `mapInPandas` take more columns along than pays, up to eight."""
    from group_models.adapters import spark_score

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_score, "_MAX_CROSSING", 8)
        yield


def spec(source: Any, warehouse: Any, **changes: Any) -> dict[str, Any]:
    """Return a spec of the world: ridge on the numeric features, unless told otherwise."""
    return {
        "model_set": MODEL_SET,
        "source": source,
        "keys": list(KEYS),
        "target": "y",
        "features": list(NUMERIC),
        "estimator": {"name": "ridge", "params": {"alpha": 0.5}},
        "time_column": "at",
        "holdout": {"by": "time", "share": SHARE},
        "seed": SEED,
        "warehouse": str(warehouse),
        "limits": {"min_rows": MIN_ROWS},
        **changes,
    }


@dataclasses.dataclass(frozen=True)
class Sample:
    """An estimator as a spec names it, and the same written out by hand.

    `make` takes the key's seed and returns what is fitted; `stop` and `refit` are for early stopping: rows and
    seed to a fitted model and what it was fitted on, and the refit of all rows after it.
    """

    estimator: Any
    make: Callable[[int], Any]
    features: Sequence[str] = NUMERIC
    stop: Callable[[pd.DataFrame, np.ndarray, int], tuple[Any, int]] | None = None
    refit: Callable[[Any, pd.DataFrame, np.ndarray, int], Any] | None = None


def imputed(estimator: Any) -> Pipeline:
    """Return an estimator after median imputation."""
    return make_pipeline(SimpleImputer(strategy="median"), estimator)


ABSOLUTE = "reg:absoluteerror"
"""What xgboost minimises where the spec says nothing: its metric is `mae`."""

SAMPLES: Mapping[str, Sample] = {
    "ridge": Sample(
        {"name": "ridge", "params": {"alpha": 0.5}},
        lambda _: make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), Ridge(alpha=0.5)),
    ),
    "gradient_boosting": Sample(
        {"name": "gradient_boosting", "params": {"n_estimators": 6, "subsample": 0.7}},
        lambda seed: imputed(
            GradientBoostingRegressor(loss="absolute_error", n_estimators=6, subsample=0.7, random_state=seed)
        ),
    ),
    "hist_gradient_boosting": Sample(
        {"name": "hist_gradient_boosting", "params": {"max_iter": 6, "min_samples_leaf": 5}},
        lambda seed: HistGradientBoostingRegressor(
            loss="absolute_error", max_iter=6, min_samples_leaf=5, random_state=seed
        ),
    ),
    "random_forest": Sample(
        {"name": "random_forest", "params": {"n_estimators": 5, "max_depth": 4}},
        lambda seed: imputed(RandomForestRegressor(n_estimators=5, max_depth=4, random_state=seed)),
    ),
    "xgboost": Sample(
        {"name": "xgboost", "params": {"n_estimators": 6, "max_depth": 3, "subsample": 0.7}},
        lambda seed: XGBRegressor(
            objective=ABSOLUTE, n_estimators=6, max_depth=3, subsample=0.7, n_jobs=1, random_state=seed
        ),
    ),
    "linear": Sample(
        "linear", lambda _: make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), LinearRegression())
    ),
    "median": Sample("median", lambda _: DummyRegressor(strategy="median")),
    "mean": Sample("mean", lambda _: DummyRegressor(strategy="mean")),
    "object": Sample(
        {"object": imputed(ExtraTreesRegressor(n_estimators=5, max_depth=4)), "version": "1"},
        lambda seed: imputed(ExtraTreesRegressor(n_estimators=5, max_depth=4, random_state=seed)),
    ),
}
"""Every estimator, small; where it draws random numbers, so that a wrong seed shows."""


class ByHand:
    """Text columns encoded by hand in front of an estimator: `one_hot`, `codes` or `category`."""

    def __init__(self, how: str, estimator: Any, text: str = "color") -> None:
        self.how, self.estimator, self.text = how, estimator, text

    def fit(self, x: pd.DataFrame, y: np.ndarray) -> ByHand:
        self.values = sorted(set(x[self.text].dropna()))
        self.medians = x.drop(columns=self.text).median()
        numbers = x.drop(columns=self.text).fillna(self.medians)
        self.means, self.scales = numbers.mean(), numbers.std(ddof=0).replace(0.0, 1.0)
        self.estimator.fit(self._encoded(x), y)
        return self

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return self.estimator.predict(self._encoded(x))

    def _encoded(self, x: pd.DataFrame) -> Any:
        text = x[self.text]
        if self.how == "category":
            return x.assign(**{self.text: pd.Categorical(text, categories=self.values)})
        if self.how == "codes":
            codes = pd.Categorical(text, categories=self.values).codes.astype(float)
            return np.column_stack([np.where(codes < 0, np.nan, codes), x.drop(columns=self.text)])
        one_hot = np.column_stack([(text == value).to_numpy(float) for value in self.values])
        numbers = (x.drop(columns=self.text).fillna(self.medians) - self.means) / self.scales
        return np.column_stack([one_hot, numbers])


MIXED = ("a", "color", "b")

TEXT_SAMPLES: Mapping[str, Sample] = {
    "ridge": Sample(SAMPLES["ridge"].estimator, lambda _: ByHand("one_hot", Ridge(alpha=0.5)), MIXED),
    "hist_gradient_boosting": Sample(
        SAMPLES["hist_gradient_boosting"].estimator,
        lambda seed: ByHand(
            "codes",
            HistGradientBoostingRegressor(
                loss="absolute_error", max_iter=6, min_samples_leaf=5, categorical_features=[0], random_state=seed
            ),
        ),
        MIXED,
    ),
    "xgboost": Sample(
        SAMPLES["xgboost"].estimator,
        lambda seed: ByHand(
            "category",
            XGBRegressor(
                objective=ABSOLUTE,
                n_estimators=6,
                max_depth=3,
                subsample=0.7,
                n_jobs=1,
                random_state=seed,
                enable_categorical=True,
            ),
        ),
        MIXED,
    ),
}
"""Estimators with a text feature among the numeric ones."""


def _boosted(seed: int, rounds: int, **more: Any) -> XGBRegressor:
    shared = {"objective": ABSOLUTE, "max_depth": 3, "learning_rate": 0.5, "n_jobs": 1}
    return XGBRegressor(n_estimators=rounds, random_state=seed, **shared, **more)


def _stop_early(x: pd.DataFrame, y: np.ndarray, seed: int) -> tuple[Any, int]:
    watched = max(5, round(len(x) * 0.25))
    model = _boosted(seed, 60, early_stopping_rounds=3)
    model.fit(x[:-watched], y[:-watched], eval_set=[(x[-watched:], y[-watched:])], verbose=False)
    return model, len(x) - watched


EARLY_STOPPING = Sample(
    {
        "name": "xgboost",
        "params": {"n_estimators": 60, "max_depth": 3, "learning_rate": 0.5, "early_stopping_rounds": 3},
        "validation_share": 0.25,
    },
    lambda seed: _boosted(seed, 60),
    stop=_stop_early,
    refit=lambda stopped, x, y, seed: _boosted(seed, stopped.best_iteration + 1).fit(x, y),
)


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the loop makes of one key."""

    model: Any
    rows_used: int
    holdout_rows: int
    metrics: dict[str, float] | None
    baseline_metrics: dict[str, float] | None
    measured: Any = None
    """The model that has not seen the holdout."""


def loop(
    frame: pd.DataFrame,
    sample: Sample,
    *,
    is_holdout: pd.Series | None,
    refit: bool = True,
    columns: Sequence[str] = KEYS,
) -> dict[tuple[Any, ...], Expected]:
    """Return the models of a plain pandas loop by key, or by the columns of a level.

    Parameters
    ----------
    frame
        All rows, as `pandas_rows` gives them.
    is_holdout
        Per `row_id` whether the row is held out; None for no holdout.
    """
    usable = frame[np.isfinite(frame["y"])].sort_values("at", na_position="first")
    with threadpoolctl.threadpool_limits(1):
        return {
            key: _fit(dict(zip(columns, key, strict=True)), of_key, sample, is_holdout, refit=refit)
            for key, of_key in by_key(usable, columns)
            if len(of_key) >= MIN_ROWS
        }


def by_key(frame: pd.DataFrame, columns: Sequence[str] = KEYS) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield each key, or each value of these columns, and its rows."""
    if not columns:
        yield (), frame
        return
    for key, of_key in frame.groupby(list(columns), dropna=False, sort=False):
        yield tuple(None if pd.isna(value) else value for value in key), of_key


def _fit(
    key: Mapping[str, Any], rows: pd.DataFrame, sample: Sample, is_holdout: pd.Series | None, *, refit: bool
) -> Expected:
    texts = {name: None if value is None else str(value) for name, value in key.items()}
    seed = key_seed(SEED, texts_id(texts, {"carrier": "string", "stop": "integer"}))
    x, y = inputs(rows, sample.features), rows["y"].to_numpy()
    held = np.zeros(len(rows), bool) if is_holdout is None else is_holdout.loc[rows["row_id"]].to_numpy()
    is_measured = bool(held.any()) and not held.all()
    fitted = ~held if is_measured else np.ones(len(rows), bool)
    model, used = first_fit(sample, x[fitted], y[fitted], seed)
    first = model
    measured = baseline = None
    if is_measured:
        median = np.full(int(held.sum()), np.median(y[~held]))
        measured, baseline = metrics(y[held], model.predict(x[held])), metrics(y[held], median)
    # Early stopping leaves rows out of a fit as a holdout does.
    if refit and used < len(x):
        model = sample.refit(model, x, y, seed) if sample.refit else sample.make(seed).fit(x, y)
        used = len(x)
    return Expected(model, used, int(held.sum()), measured, baseline, first)


def first_fit(sample: Sample, x: pd.DataFrame, y: np.ndarray, seed: int) -> tuple[Any, int]:
    """Return the model of a first fit, and the rows that it was fitted on."""
    return sample.stop(x, y, seed) if sample.stop else (sample.make(seed).fit(x, y), len(x))


def inputs(frame: pd.DataFrame, features: Sequence[str]) -> pd.DataFrame:
    """Return features as estimators get them: numbers as float64, text as objects."""
    columns = {name: frame[name] if frame[name].dtype == object else frame[name].astype(float) for name in features}
    return pd.DataFrame(columns).reset_index(drop=True)


def metrics(y: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """Return the metrics of a holdout by scikit-learn's functions; r2 of one row as the package defines it."""
    alone = 1.0 if np.array_equal(y, prediction) else 0.0
    return {
        "mae": mean_absolute_error(y, prediction),
        "rmse": mean_squared_error(y, prediction) ** 0.5,
        "r2": r2_score(y, prediction) if len(y) > 1 else alone,
        "bias": float(np.mean(prediction - y)),
    }


def time_holdout(frame: pd.DataFrame, share: float = SHARE) -> pd.Series:
    """Return per `row_id` whether the row is at or after the cutoff, found by trying every time."""
    usable = frame[np.isfinite(frame["y"])]
    held = {at: abs((usable["at"] >= at).mean() - share) for at in usable["at"].unique() if at != usable["at"].min()}
    cutoff = max((at for at in held if held[at] == min(held.values())), default=None)
    return pd.Series((frame["at"] >= cutoff).to_numpy(), index=frame["row_id"].to_numpy())


def predictions(frame: pd.DataFrame, models: Mapping[tuple[Any, ...], Expected], sample: Sample) -> pd.Series:
    """Return the loop's prediction per `row_id`; NaN where a key has no model."""
    found = pd.Series(np.nan, index=frame["row_id"].to_numpy())
    with threadpoolctl.threadpool_limits(1):
        for key, of_key in by_key(frame):
            if key in models:
                found.loc[of_key["row_id"]] = models[key].model.predict(inputs(of_key, sample.features))
    return found


def key_of(row: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return the key of a manifest row as the world writes it."""
    key = dict(row["key"])
    return key["carrier"], None if key["stop"] is None else int(key["stop"])


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return cases, few of them, such that each pair of values of two axes is together in one."""
    product = [(case, _pairs(case)) for case in itertools.product(*axes)]
    wanted = set().union(*(pairs for _, pairs in product))
    cases = []
    while wanted:
        case, pairs = max(product, key=lambda candidate: len(candidate[1] & wanted))
        cases.append(case)
        wanted -= pairs
    return cases


def _pairs(case: Sequence[Any]) -> set[Any]:
    return set(itertools.combinations(enumerate(case), 2))
