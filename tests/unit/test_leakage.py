"""Nothing that knows the holdout looks good, and what there is nothing to learn from looks no better than a median."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from group_models.fitting.outcomes import MEASURED
from group_models.fitting.references import ModelRow, links
from group_models.fitting.units import fit_unit
from group_models.tables import WHOLE
from group_models.verdicts import Verdict, judge
from tests.unit.test_fitting import keys_of, rows_of, settings

KEYS, ROWS = 40, 40


def frame(*, of_noise: bool, seed: int = 0) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    made = []
    for key in range(KEYS):
        a = draws.normal(size=ROWS)
        y = 3 * a + draws.normal(size=ROWS)
        made.append(rows_of(key, (draws.permutation(y) if of_noise else y).tolist(), a.tolist()))
    return pd.concat(made).assign(is_holdout=lambda rows: rows["time_us"] >= ROWS * 0.7)


def verdict(rows: pd.DataFrame, asked: Any, models: Any = (), pairs: Any = None) -> Verdict:
    keys = keys_of(KEYS) if pairs is None else keys_of(KEYS).assign(links=[links(*pairs)] * KEYS)
    found = fit_unit(rows, keys, asked, models).to_dict("records")
    of = {name: np.array([row["baseline_metrics"].get(entry, np.nan) for row in found])
          for name, entry in (("median", "mae"), ("parent", "parent_mae"))}  # fmt: skip
    own = np.array([row["metrics"]["mae"] for row in found])
    judged = judge(np.array([float(row["holdout_rows"]) for row in found]), own, of, "mae")
    assert judged is not None
    return judged


@pytest.mark.parametrize("name", ["ridge", "gradient_boosting"])
def test_models_of_a_shuffled_target_do_not_pay_and_those_of_the_target_itself_do(name: str) -> None:
    assert verdict(frame(of_noise=True), settings(name)).word != "pay"
    assert verdict(frame(of_noise=False), settings(name)).word == "pay"


def by_heart() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(n_neighbors=1)


def test_a_parent_is_measured_before_it_has_seen_the_holdout() -> None:
    rows = frame(of_noise=True)
    of_all = rows.assign(key_index=np.int32(0), row_hash=np.arange(len(rows)))
    stored = fit_unit(of_all, keys_of(1), settings(obj=by_heart, keeps_measured=True)).set_index("part")
    models = {
        part: ModelRow("parent", 0, 0, 0, row["format"], row["data_file"], row["sha256"], row["data"]).pack()
        for part, row in stored.iterrows()
    }
    honest = verdict(rows, settings(), [models[MEASURED]], (0, 0)).against["parent"]
    leaking = verdict(rows, settings(), [models[WHOLE]], (0, 0)).against["parent"]
    assert leaking.other < 1e-9
    assert honest.other > honest.error
