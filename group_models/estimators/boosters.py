"""xgboost through its native API: no wrapper's cost, its own categories for text, any column names.

A model predicts what `XGBRegressor(**params, n_jobs=1, random_state=seed)` would. It is stored in xgboost's
own format (UBJSON). What the file needs beside the trees stands in a booster attribute: the original column
names where xgboost refuses them, and the values of text columns, whose places are their codes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from group_models.errors import DataError
from group_models.estimators.base import EstimatorSettings, Features, Fitted, Flavor, Floats, as_text
from group_models.estimators.losses import with_loss
from group_models.estimators.weights import taken

ATTRIBUTE = "group_models"
"""Booster attribute that holds the columns as JSON: `{"names": [...], "categories": {column: [values]}}`."""

MIN_PART_ROWS = 5
"""Fewest rows in each of the two parts that early stopping needs."""

DEFAULT_ROUNDS = 100
"""Rounds of `XGBRegressor` where the spec gives no `n_estimators`."""

_REFUSED = frozenset("[]<")
_EXACT_METHODS = ("exact", "approx")


def is_safe(name: str) -> bool:
    """Return whether xgboost takes a feature name (3.x refuses `[`, `]` and `<`).

    Examples
    --------
    >>> is_safe("size (cm)"), is_safe("x<3"), is_safe("v[0]")
    (True, False, False)
    """
    return bool(name) and not _REFUSED & set(name)


def internal_names(names: Sequence[str]) -> list[str]:
    """Return the names inside the booster: the columns' own, or `f0, f1, ...` where one of them is refused.

    Examples
    --------
    >>> internal_names(["a", "b c"]), internal_names(["a", "x<3"])
    (['a', 'b c'], ['f0', 'f1'])
    """
    if all(is_safe(name) for name in names):
        return list(names)
    return [f"f{place}" for place in range(len(names))]


@dataclasses.dataclass(frozen=True)
class Columns:
    """How a frame becomes xgboost's matrix: columns in order, and the values of each text column."""

    names: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, x: pd.DataFrame, features: Features) -> Columns:
        """Return the columns of a key's training rows, with the values that occur in them."""
        values = {name: tuple(sorted(x[name].dropna().unique())) for name in features.text}
        return cls(features.names, values)

    @property
    def is_plain(self) -> bool:
        """Whether stock xgboost predicts from the frame alone: all numeric, all names taken."""
        return not self.categories and all(is_safe(name) for name in self.names)

    @functools.cached_property
    def _codes(self) -> dict[str, pd.Index]:
        return {name: pd.Index(values, dtype=object) for name, values in self.categories.items()}

    def matrix(self, x: pd.DataFrame) -> Floats:
        """Return the columns as float64; text as codes, missing or unseen text as NaN.

        Raises
        ------
        DataError
            A column is missing.
        """
        if missing := [name for name in self.names if name not in x.columns]:
            raise DataError(f"{', '.join(missing)} missing; the model was trained on {', '.join(self.names)}")
        if not self.categories:
            ordered = x if tuple(x.columns) == self.names else x[list(self.names)]
            return ordered.to_numpy(dtype=np.float64)
        columns = [self._column(x[name]) for name in self.names]
        return np.column_stack(columns) if columns else np.empty((len(x), 0))

    def _column(self, column: pd.Series) -> Floats:
        name = str(column.name)
        if name not in self._codes:
            return column.to_numpy(dtype=np.float64)
        codes = self._codes[name].get_indexer(pd.Index(column, dtype=object)).astype(np.float64)
        return np.where(codes < 0, np.nan, codes)

    def to_json(self) -> str:
        """Return the columns as the booster attribute."""
        return json.dumps({"names": self.names, "categories": self.categories}, ensure_ascii=False)

    @classmethod
    def from_booster(cls, booster: Any) -> Columns:
        """Return the columns of a booster that was trained here."""
        text = booster.attr(ATTRIBUTE)
        if text is None:
            return cls(tuple(booster.feature_names or ()), {})
        content = json.loads(text)
        return cls(tuple(content["names"]), {name: tuple(v) for name, v in content["categories"].items()})


@dataclasses.dataclass(frozen=True)
class BoosterPredictor:
    """An xgboost Booster with what makes a frame its matrix."""

    native: Any
    columns: Columns
    data_file: ClassVar[str] = "model.ubj"

    def predict(self, x: pd.DataFrame) -> Floats:
        """Return one prediction per row."""
        if not len(x):
            return np.empty(0)
        # The matrix has no names to compare; its columns were put in order by name above.
        return np.asarray(
            self.native.inplace_predict(self.columns.matrix(x), validate_features=False), dtype=np.float64
        )

    def contributions(self, x: pd.DataFrame) -> Floats:
        """Return xgboost's SHAP values, shape (rows, features + 1): the last column is the base value.

        Of more than two labels the shape is (rows, labels, features + 1).
        """
        import xgboost

        names = internal_names(self.columns.names)
        types = ["c" if name in self.columns.categories else "q" for name in self.columns.names]
        data = xgboost.DMatrix(
            self.columns.matrix(x),
            feature_names=names,
            feature_types=types if self.columns.categories else None,
            enable_categorical=bool(self.columns.categories),
            nthread=1,
        )
        found = np.asarray(self.native.predict(data, pred_contribs=True), dtype=np.float64)
        if found.ndim == 3:
            return found
        return found.reshape(len(x), len(names) + 1)  # of no rows xgboost gives one dimension

    def dump(self) -> bytes:
        """Return the model as UBJSON."""
        return bytes(self.native.save_raw("ubj"))

    @classmethod
    def parse(cls, data: bytes, *, threads: int = 1) -> BoosterPredictor:
        """Return the model that `dump` wrote.

        Raises
        ------
        ValueError
            The bytes are no model.
        """
        import xgboost

        # xgboost 3.2 raises over wrong bytes, but over none it ends the process.
        if not data:
            raise ValueError("the data file is empty")
        # A loaded booster takes all cores unless told otherwise; in a forked worker that may hang.
        booster = xgboost.Booster({"nthread": threads}, model_file=bytearray(data))
        return cls(booster, Columns.from_booster(booster))


@dataclasses.dataclass(frozen=True)
class BoosterFamily:
    """xgboost with the spec's parameters, named as in `XGBRegressor`."""

    params: Mapping[str, Any]
    features: Features
    threads: int = 1
    validation_share: float = 0.2
    name: str = "xgboost"
    takes_float32: ClassVar[bool] = True
    takes_infinity: ClassVar[bool] = False

    @property
    def flavor(self) -> Flavor:
        """MLflow's own where stock xgboost predicts from the frame alone."""
        is_plain = not self.features.text and all(is_safe(name) for name in self.features.names)
        return "xgboost" if is_plain else "group_models"

    @property
    def rounds(self) -> int:
        """Boosting rounds asked for."""
        rounds = self.params.get("n_estimators")
        return DEFAULT_ROUNDS if rounds is None else int(rounds)

    def load(self) -> None:
        """Import xgboost."""
        import xgboost  # noqa: F401

    def predicted_seconds(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected wall seconds of one fit, by rows.

        Per round: histograms (leaves x columns x bins) and rows x columns per level; coefficients as in
        `families.RECIPES`, xgboost 3.2.
        """
        depth, size = self._depth(), np.asarray(rows, dtype=np.float64)
        leaves: Floats = np.minimum(2.0**depth, size)
        bins: Floats = np.minimum(256.0, size)
        return 1e-3 + self.rounds * (8e-5 + 6e-9 * columns * leaves * bins + 1e-9 * depth * columns * size)

    def predicted_model_bytes(self, rows: NDArray[Any], columns: int) -> Floats:
        """Return the expected bytes of one model, by rows."""
        nodes: Floats = np.minimum(2.0 ** (self._depth() + 1), np.asarray(rows, dtype=np.float64))
        return float(self.rounds) * (700 + 32 * nodes)

    def fit(self, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit one key's rows; with `early_stopping_rounds` the last of them are only watched."""
        patience = self.params.get("early_stopping_rounds")
        if patience is None:
            return self._fit_all(x, y, weight, seed=seed, rounds=self.rounds)
        watched = watched_rows(len(x), self.validation_share)
        if watched is None:
            fitted = self._fit_all(x, y, weight, seed=seed, rounds=self.rounds)
            return dataclasses.replace(fitted, params=fitted.params | too_few(len(x)))
        return self._fit_watched(x, y, weight, seed=seed, watched=watched)

    def refit(self, fitted: Fitted, x: pd.DataFrame, y: Floats, *, seed: int, weight: Floats | None = None) -> Fitted:
        """Fit all rows, after early stopping with the rounds that it chose."""
        again = self._fit_all(x, y, weight, seed=seed, rounds=fitted.rounds or self.rounds)
        return dataclasses.replace(again, params=again.params | _stopping_facts(fitted), rounds=fitted.rounds)

    def _depth(self) -> int:
        depth = self.params.get("max_depth")
        return min(depth or 16, 16) if depth is not None else 6

    def _fit_all(self, x: pd.DataFrame, y: Floats, weight: Floats | None, *, seed: int, rounds: int) -> Fitted:
        columns = Columns.of(x, self.features)
        booster = _boosted(self._native_params(seed), self._data(columns, x, y, weight), rounds)
        return self._fitted(booster, columns, seed=seed, rows=len(x))

    def _fit_watched(self, x: pd.DataFrame, y: Floats, weight: Floats | None, *, seed: int, watched: int) -> Fitted:
        import xgboost

        columns, params = Columns.of(x.iloc[:-watched], self.features), self._native_params(seed)
        first, last = slice(None, -watched), slice(-watched, None)
        train = self._data(columns, x.iloc[first], y[first], taken(weight, first))
        validation = self._data(columns, x.iloc[last], y[last], taken(weight, last), reference=train)
        booster = xgboost.train(
            params,
            train,
            self.rounds,
            evals=[(validation, "validation")],
            early_stopping_rounds=self.params["early_stopping_rounds"],
            verbose_eval=False,
        )
        best, stopped = booster.best_iteration, booster.num_boosted_rounds()
        # Unsliced, inplace_predict and XGBRegressor would use different numbers of trees (xgboost 3.2).
        fitted = self._fitted(booster[: best + 1], columns, seed=seed, rows=len(x) - watched)
        facts = {"best_iteration": str(best), "stopped_round": str(stopped)}
        return dataclasses.replace(fitted, params=fitted.params | facts, rounds=best + 1)

    def _fitted(self, booster: Any, columns: Columns, *, seed: int, rows: int) -> Fitted:
        if not columns.is_plain:
            booster.set_attr(**{ATTRIBUTE: columns.to_json()})
        params = {"random_state": seed, **self.params, "n_jobs": self.threads}
        return Fitted(BoosterPredictor(booster, columns), as_text(params), rows_used=rows)

    def _native_params(self, seed: int) -> dict[str, Any]:
        """Return the parameters as `XGBRegressor` hands them to the library (xgboost 3.2)."""
        params = {name: value for name, value in self.params.items() if value is not None}
        state = params.pop("random_state", seed)
        for wrapper in ("n_estimators", "early_stopping_rounds", "n_jobs"):
            params.pop(wrapper, None)
        return {
            "objective": "reg:squarederror",
            "verbosity": 0,
            **params,
            "seed": state,
            "nthread": self.threads,
        }

    def _data(
        self, columns: Columns, x: pd.DataFrame, y: Floats, weight: Floats | None, *, reference: Any = None
    ) -> Any:
        import xgboost

        types = ["c" if name in columns.categories else "q" for name in columns.names]
        options: dict[str, Any] = {
            "label": y,
            "weight": weight,
            "feature_names": internal_names(columns.names),
            "feature_types": types if columns.categories else None,
            "enable_categorical": bool(columns.categories),
            "nthread": self.threads,
        }
        if self.params.get("tree_method") in _EXACT_METHODS:
            return xgboost.DMatrix(columns.matrix(x), **options)
        max_bin = self.params.get("max_bin")
        return xgboost.QuantileDMatrix(columns.matrix(x), ref=reference, max_bin=max_bin, **options)


def _boosted(params: Mapping[str, Any], data: Any, rounds: int) -> Any:
    """Return what `xgboost.train` does without anything to watch, to the byte, in four fifths of its time.

    That calls callbacks and compares the columns' names in each round, and at its end writes the model and reads it
    again (`Booster.reset`), to drop what it kept for training (xgboost 3.2). Here the names are put on at the end.
    """
    import xgboost

    names, data.feature_names = data.feature_names, None
    booster = xgboost.Booster(dict(params), [data])
    for round_ in range(rounds):
        booster.update(data, round_)
    booster.feature_names = names
    return booster


def watched_rows(rows: int, share: float) -> int | None:
    """Return how many of a key's rows early stopping watches, at least 5; None if fewer than 5 would remain.

    Examples
    --------
    >>> watched_rows(100, 0.2), watched_rows(12, 0.2), watched_rows(9, 0.2)
    (20, 5, None)
    """
    watched = max(MIN_PART_ROWS, round(rows * share))
    return watched if rows - watched >= MIN_PART_ROWS else None


def too_few(rows: int) -> dict[str, str]:
    """Return the note that early stopping was left out."""
    return {"early_stopping": f"off: {rows} rows are too few"}


def _stopping_facts(fitted: Fitted) -> dict[str, str]:
    facts = ("best_iteration", "stopped_round", "early_stopping")
    return {name: fitted.params[name] for name in facts if name in fitted.params}


def booster_family(settings: EstimatorSettings, features: Features) -> BoosterFamily:
    """Return xgboost with the settings' parameters."""
    params = with_loss("xgboost", settings.params, settings.metric)
    return BoosterFamily(params, features, settings.threads, settings.validation_share)
