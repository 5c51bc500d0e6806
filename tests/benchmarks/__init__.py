"""Compare this package with the usual ways of training and scoring many small models.

Run as `make bench` or `python -m tests.benchmarks` from the repository's root. The workloads (`--only W1` and so on):

| name | what |
|---|---|
| W1 | train 20,000 keys, 4 million rows, ridge |
| W2 | train 2,000 keys, 2 million rows, xgboost of 100 trees of depth 4 |
| W3 | train 200,000 keys on the rows of W1, against W1 in the same run |
| W4 | train xgboost with half of 2 million rows in one key |
| W5 | train W2 again on a night on which one key in a hundred changed |
| W6 | score W1 and W2; a pandas frame of 1,000 rows of 10 keys directly |
| W7 | plan 1,000,000 keys |
| W8 | ask a router of 20,000 models row by row |
| W9 | write the report of 20,000 keys |
| W10 | train W1 with a parent of all rows, baselines and gates |
| overhead | what a key of a unit costs beside its fit, in one process |

W1, W2 and W6 are compared with other ways, which for these are:

| verb | side | what it does |
|---|---|---|
| train | `packed` | `group_models.train`, the full product: measure, plan, tables, manifest, release |
| train | `plain` | `groupBy(keys).applyInPandas(...)` that returns pickles |
| train | `joblib` | all data in memory by pandas, a joblib loop over the keys |
| train | `mlflow` | `applyInPandas` with `mlflow.log_model` per key (a sample of keys, extrapolated) |
| score | `streamed` | `group_models.score` on a Spark frame |
| score | `closure` | `mapInPandas` with all models in the closure (a sample of rows, extrapolated) |
| score | `joblib` | all data and models in memory, a joblib loop |

`plain` and `joblib` are what people write: `model.fit(group[FEATURES], group[TARGET])` on the frames of a `groupby`,
`model.predict(group[FEATURES])`. The bounds (`bounds.py`) are on these. Beside them `plain_arrays` and `joblib_arrays`
are the same by somebody who minds the time: scikit-learn checks the columns of a frame one by one, so that small keys
fit and predict far faster as arrays. `closure` predicts arrays, which makes its bound the harder one.

Every training side reads one Parquet file, splits each key at one moment, fits, measures model and median on the
holdout, fits again on all rows, pickles the model and writes one Parquet row per key. Every scoring side reads the
same file and writes one Parquet row per row. What the other sides need not do is in their favour: they are told the
moment of the split, they write no manifest, no `MLmodel`, no digest, and a key that fails ends them.

The other workloads are targets without another side (`targets.py`). `make bench-check` holds the JSON of a full run
against the bounds; small workloads are printed without judging, because fixed costs decide there.
"""
