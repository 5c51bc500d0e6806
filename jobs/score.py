"""Score a table or a file with the released models, for `spark-submit` on open-source Spark.

    spark-submit jobs/score.py fixtures/flights.yaml --input fixtures/flights.parquet --output demo/scored

Takes the arguments of `group-models score` and ends with its exit code.
A Databricks job calls the wheel's entry point instead: see databricks.yml.
"""

import sys

from group_models.cli import main

if __name__ == "__main__":
    sys.exit(main(["score", *sys.argv[1:]]))
