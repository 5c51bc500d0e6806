"""Train the models of a spec, for `spark-submit` on open-source Spark.

    spark-submit jobs/train.py fixtures/flights.yaml --where "carrier = 'UA'"

Takes the arguments of `group-models train` and ends with its exit code.
A Databricks job calls the wheel's entry point instead: see databricks.yml.
"""

import sys

from group_models.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
