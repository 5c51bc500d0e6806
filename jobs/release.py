"""List, publish or roll back releases, pin and unpin keys, for `spark-submit` on open-source Spark.

    spark-submit jobs/release.py list fixtures/flights.yaml

Takes the arguments of `group-models release` and ends with its exit code.
A Databricks job calls the wheel's entry point instead: see databricks.yml.
"""

import sys

from group_models.cli import main

if __name__ == "__main__":
    sys.exit(main(["release", *sys.argv[1:]]))
