"""Compare this package with the usual ways of training and scoring many small models.

Run as `python -m tests.benchmarks` from the repository's root. What is compared:

| verb | side | what it does |
|---|---|---|
| train | `packed` | `group_models.train`, the full product: measure, plan, tables, manifest, release |
| train | `plain` | `groupBy(keys).applyInPandas(...)` that returns pickles |
| train | `joblib` | all data in memory by pandas, a joblib loop over the keys |
| train | `mlflow` | `applyInPandas` with `mlflow.log_model` per key (a sample of keys, extrapolated) |
| score | `streamed` | `group_models.score` on a Spark frame |
| score | `closure` | `mapInPandas` with all models in the closure |
| score | `joblib` | all data and models in memory, a joblib loop |

Every training side reads one Parquet file, splits each key at one moment, fits, measures model and median on the
holdout, fits again on all rows, pickles the model and writes one Parquet row per key. Every scoring side reads the
same file and writes one Parquet row per row. What the other sides need not do is in their favour: they are told the
moment of the split, they write no manifest, no `MLmodel`, no digest, and a key that fails ends them.

Beside them there are targets without another side (`targets.py`): planning a million keys, one xgboost key that holds
half of all rows, and a night on which one key in a hundred changed.
"""
