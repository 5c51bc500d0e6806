"""What a failed query says, in the words of Spark 4.2: of a dead worker, a dead executor, or of anything else."""

import pytest

from group_models.adapters.spark_errors import cause, first_line, is_childless, is_dead_worker

ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times, most recent failure: Lost task 0.0 in "
    "stage 5.0 (TID 4) (localhost executor driver): "
)
CRASHED = (
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting "
    "'spark.sql.execution.pyspark.udf.faulthandler.enabled' or'spark.python.worker.faulthandler.enabled' "
    "configuration to 'true' for the better Python traceback.\n"
    "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:704)"
)
CLASSIC = (
    f"An error occurred while calling o72.save.\n: org.apache.spark.SparkException: {ABORTED}{CRASHED}\n"
    "Caused by: java.io.EOFException\n\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)"
)
CONNECT = ABORTED + CRASHED
WITH_FAULTHANDLER = (
    ABORTED + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed) - Fatal Python error: "
    'Aborted\n\nCurrent thread 0x00007f (most recent call first):\n  File "fit.py", line 3 in fit'
)
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: Lost task 0.3 in "
    "stage 2.0 (TID 9) (10.0.0.7 executor 3): ExecutorLostFailure (executor 3 exited caused by one of the running "
    "tasks) Reason: Command exited with code 137\nDriver stacktrace:"
)
RAISED = (
    "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    '  File "fit.py", line 15, in fit\n    raise EOFError("Python worker exited unexpectedly")\n'
    "EOFError: Python worker exited unexpectedly"
)
CHILDLESS = (
    "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n[PYTHON_EXCEPTION] An "
    "exception was thrown from the Python worker: Traceback (most recent call last):\n"
    "group_models.fitting.isolation.NoChildError: no child process can be made here (Cannot allocate memory)"
    "\n SQLSTATE: 38000"
)
SOURCE_CUT_OFF = ABORTED + "java.io.EOFException: Unexpected end of input stream\nCaused by: java.io.EOFException: x"


@pytest.mark.parametrize("text", [CLASSIC, CONNECT, WITH_FAULTHANDLER, LOST])
def test_a_dead_worker_or_executor_is_told_from_the_text(text):
    assert is_dead_worker(RuntimeError(text))
    assert not is_childless(RuntimeError(text))


@pytest.mark.parametrize("text", [RAISED, CHILDLESS, SOURCE_CUT_OFF, "", "[TABLE_OR_VIEW_NOT_FOUND] no"])
def test_what_else_fails_is_no_dead_worker(text):
    assert not is_dead_worker(RuntimeError(text))


def test_workers_that_can_make_no_child_are_told_from_the_text():
    assert is_childless(RuntimeError(CHILDLESS))
    assert cause(RuntimeError(CHILDLESS)).startswith("group_models.fitting.isolation.NoChildError: no child process")


def test_how_a_classic_session_called_java_is_left_out_of_what_java_said():
    said = "An error occurred while calling o69.sql.\n: java.io.IOException: Failed to load table c.s.t (HTTP 0): null"
    assert first_line(Exception(said)) == "java.io.IOException: Failed to load table c.s.t (HTTP 0): null"


@pytest.mark.parametrize("last", ["func_timeout.exceptions.FunctionTimedOut: fit took 60 s", "KeyboardInterrupt"])
def test_what_is_called_neither_error_nor_exception_is_found_at_the_end_of_its_traceback(last: str):
    traceback = f'Traceback (most recent call last):\n  File "fit.py", line 15, in fit\n    raise it\n{last}\n'
    failed = RuntimeError(f"An exception was thrown from the Python worker:\n{traceback}\tat org.apache.spark.Task")
    assert cause(failed) == last
    assert not is_dead_worker(failed)
