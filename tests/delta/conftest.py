"""A session with Delta: these tests run in a process of their own (`make test-delta`), one JVM being one Spark.

The jars come through Spark's own resolution, once; where that fails the tests fail in CI and are skipped elsewhere.
"""

from __future__ import annotations

import os

import pytest

from tests.deltas import OPTIONS, require_jars

IN_SHORT = (
    "test_a_number_is_taken_once_and_its_rows_stay[connect_spark]",
    "test_of_threads_that_race_for_a_number_exactly_one_wins[spark]",
    "test_a_delta_folder_has_versions_and_views_and_parquet_have_none[connect_spark]",
    "test_a_table_of_an_older_version_gets_the_columns_and_one_of_a_newer_keeps_its_own",
)
"""What is not slow: an append takes about a second, and making the tables many. Each kind of session has its part."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip these tests where others' session without Delta may be the one of this process."""
    here = os.path.dirname(__file__)  # noqa: PTH120
    ours = [item for item in items if str(item.path).startswith(here)]
    for item in ours:
        if item.name not in IN_SHORT:
            item.add_marker(pytest.mark.slow)
    if len(ours) < len(items):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason="Delta needs a process of its own: `make test-delta`"))


@pytest.fixture(scope="session")
def more_options() -> dict[str, str]:
    """What Delta needs, found before the session that all tests share is started."""
    require_jars(OPTIONS)
    return OPTIONS
