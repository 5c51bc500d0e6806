"""The benchmark runs as a whole on a tiny size, compares equal results, and says so; never how long it takes."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from tests.benchmarks import child, profiling, report, score_sides, train_sides
from tests.benchmarks.runner import ROOT, Case, Options, Row, SideResult, all_cases, worst_difference
from tests.benchmarks.sides import Job, Outcome, largest_exchange
from tests.benchmarks.workloads import FULL, KEYS, SMALL, Data, Workload

RIDGE = FULL[0]
CASE = Case(RIDGE, "train", "joblib")


def side(name, *seconds, **options):
    return SideResult(RIDGE, "train", name, tuple(seconds), **options)


def row(product=None, other=None, difference=0.0):
    return Row(CASE, product or side("packed", 1.0, 2.0, 9.0), other or side("joblib", 4.0), difference)


def printed(show):
    console = Console(width=160, file=io.StringIO())
    show(console)
    return console.file.getvalue()


def bench(*arguments):
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.spark
def test_all_rows_of_a_tiny_size_are_there_and_both_sides_of_each_found_the_same(tmp_path):
    file = tmp_path / "found.json"
    done = bench("--keys", "6", "--rows", "600", "--in-process", "--json", str(file), "--work", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = json.loads(file.read_text())
    assert [r["name"] for r in found["rows"]] == [case.name for case in all_cases(SMALL)]
    assert all(r["is_same"] and r["ratio"] > 0 for r in found["rows"])
    assert set(found["sides"]["W1/ridge/train/packed"]["phases_s"]) >= {"plan", "train", "manifest"}
    assert set(found["sides"]["W1/ridge/train/packed"]["peaks_mb"]) == set(found["memory_limits_mb"])
    assert "joblib loop" in done.stdout


def test_a_side_runs_in_a_process_of_its_own_and_says_what_it_found(tmp_path):
    data = Data(tmp_path / "data")
    job = Job(Workload("ridge", RIDGE.params, 3, 300), data, tmp_path / "out", 1, tmp_path, tmp_path)
    data.make(job.workload)
    files = [tmp_path / "job.json", tmp_path / "outcome.json"]
    files[0].write_text(child.to_json("train/joblib", job))
    subprocess.run([sys.executable, "-m", "tests.benchmarks.child", *map(str, files)], cwd=ROOT, check=True)
    outcome = Outcome(**json.loads(files[1].read_text()))
    assert outcome.seconds > 0
    assert len(outcome.predictions) == 60
    assert len(outcome.metrics) == 3
    assert all(metrics["mae"] > 0 and metrics["baseline_mae"] > 0 for metrics in outcome.metrics.values())


def test_a_job_survives_json(tmp_path):
    job = Job(RIDGE, Data(tmp_path), tmp_path / "out", 2, tmp_path / "packed", tmp_path / "looped")
    assert child.from_json(child.to_json("train/plain", job)) == ("train/plain", job)


def test_a_ratio_is_that_of_the_medians():
    assert row().ratio == 0.5


def test_a_failed_side_is_told_and_has_no_ratio():
    failed = row(other=side("joblib", failure="MemoryError: too much"), difference=None)
    assert failed.ratio is None
    assert report.results_words(failed) == "MemoryError: too much"
    assert report.exit_code([row(), failed]) == 1


def test_sides_that_found_different_predictions_fail_the_run():
    assert report.exit_code([row()]) == 0
    assert report.exit_code([row(difference=1e-6)]) == 1


def test_the_worst_difference_is_over_predictions_and_metrics_and_infinite_for_other_rows():
    a = Outcome(predictions={"1": 2.0}, metrics={"k": {"mae": 1.0}})
    assert worst_difference(a, a) == 0.0
    assert worst_difference(a, Outcome(predictions={"1": 2.0}, metrics={"k": {"mae": 1.5}})) == 0.5
    assert worst_difference(a, Outcome(predictions={"2": 2.0}, metrics=a.metrics)) == float("inf")
    assert worst_difference(a, Outcome(predictions=a.predictions)) == float("inf")


def test_a_prediction_that_is_not_finite_is_never_the_same():
    a, b = Outcome(predictions={"0": 1.0, "1": float("nan")}), Outcome(predictions={"0": 1.0, "1": 1.0})
    assert worst_difference(a, b) == worst_difference(b, a) == worst_difference(a, a) == float("inf")


def test_the_results_file_has_ratios_and_versions_and_no_seconds(tmp_path):
    file = tmp_path / "RESULTS.md"
    report.write_results(
        [row()], {CASE.name: 0.5, "W9/told": 3.0, "W5/night/changed/worker, MB": 1_200.0}, file, is_full=True
    )
    text = file.read_text()
    assert "| W1 ridge, 20,000 keys, 4,000,000 rows | train | joblib loop in memory | 0.50 | same |" in text
    assert "| W9/told | 3 | - |  |" in text
    assert "| W5/night/changed/worker, MB | 1,200 | 1,000 | MISSED |" in text
    assert "pyspark 4" in text
    assert "4.0 |" not in text


def test_the_json_has_every_row_and_side():
    found = report.as_json([row()], Options(Path("unused")))
    assert [r["ratio"] for r in found["rows"]] == [0.5]
    assert found["sides"]["W1/ridge/train/packed"]["seconds"] == [1.0, 2.0, 9.0]


def test_memory_over_its_limit_is_called_out():
    big = side("packed", 1.0, first=Outcome(peaks_mb={"worker": 1_200.0, "driver_jvm": 900.0}))
    text = printed(lambda console: console.print(report.memory_table([big])))
    assert "1,200 OVER" in text
    assert "900 OVER" not in text


def test_chunks_hold_whole_keys_and_all_rows_in_order_within_a_key():
    keys = np.arange(100) % 7
    frame = pd.DataFrame({name: keys.astype(str) for name in KEYS} | {"at": np.arange(100)})
    chunks = list(train_sides.grouped_chunks(frame, 3))
    seen = [set(chunk[KEYS[0]]) for chunk in chunks]
    assert len(chunks) == 3
    assert sum(map(len, seen)) == 7
    assert sorted(pd.concat(chunks)["at"]) == list(range(100))
    assert all(group["at"].is_monotonic_increasing for chunk in chunks for _, group in chunk.groupby(KEYS[0]))


@pytest.mark.parametrize("family", profiling.FAMILIES)
def test_the_overhead_of_a_key_is_what_the_estimator_does_not_take(family):
    found = profiling.measure_overhead(is_small=False, families={family: (profiling.FAMILIES[family][0], 4)})
    values = {name.rpartition("/")[2]: value for name, value in found.items()}
    parts = values["the estimator's own, ms per key"], values["beside the estimator, ms per key"]
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(values["all, ms per key"])
    assert values["loads per model"] == 1.0


def test_what_a_stage_writes_to_its_exchange_is_read_from_the_event_log():
    task = (
        '{"Event":"SparkListenerTaskEnd","Stage ID":%d,'
        '"Task Metrics":{"Shuffle Write Metrics":{"Shuffle Bytes Written":%d}}}'
    )
    failed = '{"Event":"SparkListenerTaskEnd","Stage ID":2}'
    other = '{"Event":"SparkListenerJobStart","Job ID":0}'
    assert largest_exchange([other, task % (1, 50), task % (2, 30), task % (2, 40), failed]) == 70
    assert largest_exchange([other]) == 0


def test_a_sampled_run_counts_for_all_rows_by_the_line_through_its_two_times():
    assert score_sides.extrapolated([(100, 3.0), (200, 4.0)], 1_000) == pytest.approx(12.0)
    assert score_sides.extrapolated([(100, 4.0), (200, 3.0)], 1_000) == 3.0


def test_an_unknown_row_is_a_usage_error():
    done = bench("--only", "catboost")
    assert done.returncode == 2
    assert "W1/ridge/train/plain" in done.stdout
