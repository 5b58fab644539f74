"""Failures as people read them: the block, its last place on the screen, and errors that travel from a lane."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from starrocks_txn_sink.errors import LoadFailed, OptionError, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.sink.failures import (
    Failure,
    FailureBoard,
    FailureKind,
    cause_line,
    error_in_text,
    error_link,
    is_interruption,
)
from starrocks_txn_sink.writer.messages import LaneReport, LaneTrouble, SentError, envelope, read_envelope

ERRORS = "https://github.com/starrocks-txn-sink/starrocks-txn-sink/blob/main/docs/operations/errors"


LOST = """An error occurred while calling o60.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 1.0 (TID 4) (10.0.0.7 executor 2): \
ExecutorLostFailure (executor 2 exited): Exit status: 137.
Driver stacktrace:
"""


def report_of(error: StarRocksSinkError) -> LaneReport:
    return LaneReport("shop", 0, 1).fail(error)


def test_the_block_has_cause_remedy_place_and_link_in_this_order() -> None:
    error = LoadFailed("The load failed:\n disk full", hint="Free space.", label="l-1", table="orders")
    lines = Failure.of(error, job="shop", batch_id=7).block("a restart").splitlines()
    assert lines == [
        "starrocks-txn-sink: The load failed: disk full",
        "  Remedy: Free space.",
        "  Place:  job shop, micro-batch 7, label l-1, table orders",
        f"  More:   {ERRORS}/load_failed.md (transient)",
        "  Next:   a restart",
    ]


def test_a_block_neither_moves_the_terminal_nor_fills_it() -> None:
    text = Failure.of(LoadFailed("a\x1b[2Jb" * 1000)).block()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 700


def test_a_lanes_error_arrives_as_itself() -> None:
    error = RowsRejected("2 rows.", hint="Correct them.", label="l", table="t")
    report = read_envelope(f"Spark says\n{envelope(report_of(error))}\nmore")
    assert report is not None
    again = report.lane_error()
    assert (type(again), str(again)) == (RowsRejected, str(error))
    for failure in (SentError("of_a_newer_release", "2 rows."), SentError("rows_rejected")):
        assert LaneReport("shop", 0, 1, trouble=LaneTrouble(failure=failure)).lane_error() is None


def test_an_error_is_found_in_a_text_by_its_report_or_else_by_its_class() -> None:
    error = RowsRejected("2 rows.", label="l")
    assert str(error_in_text(f"x\n{envelope(report_of(error))}")) == str(error)
    error_found = error_in_text("Traceback:\nstarrocks_txn_sink.errors.OptionError: timeout is wrong.\n at org.apache")
    assert isinstance(error_found, OptionError)
    assert error_found.message == "timeout is wrong."
    assert error_in_text("ValueError: timeout is wrong") is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback (most recent call last):\n  File x\n    y\nValueError: bad\n\tat org.apache", "ValueError: bad"),
        (
            "[PATH_NOT_FOUND] Path does not exist: x. SQLSTATE: 42K03;\nplan",
            "[PATH_NOT_FOUND] Path does not exist: x. SQLSTATE: 42K03;",
        ),
        ("", "The query failed, and Spark gave no reason."),
        (
            LOST,
            "ExecutorLostFailure (executor 2 exited): Exit status: 137.",
        ),
        ("An error occurred while calling o1.start.\n: java.io.IOException: full\n\tat x", "java.io.IOException: full"),
    ],
)
def test_the_cause_is_one_line_of_sparks_text(text: str, line: str) -> None:
    assert cause_line(text) == line


def test_errors_from_outside_are_of_unknown_kind_and_say_so() -> None:
    failure = Failure.of(RuntimeError("Boom."))
    assert (failure.code, failure.kind, failure.message) == ("spark", FailureKind.UNKNOWN, "Boom.")
    assert "outside the sink" in failure.advice


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host",
            "create the topic",
        ),
        ("Failed to create new KafkaAdminClient SQLSTATE: XXKST", "kafka.bootstrap.servers"),
        ("TimeoutException: Timed out waiting for a node assignment. Call: describeTopics", "kafka.bootstrap.servers"),
        ("PythonException: \nModuleNotFoundError: No module named 'pyarrow'\n SQLSTATE: 39000", "PYSPARK_PYTHON"),
    ],
)
def test_what_spark_and_kafka_say_at_a_first_start_has_a_remedy(text: str, advice: str) -> None:
    assert advice in Failure.of(RuntimeError(text)).advice


def test_a_package_that_spark_lacks_needs_a_person() -> None:
    """No restart of the query gives Spark's tasks another Python."""
    error = RuntimeError("PythonException: \nModuleNotFoundError: No module named 'starrocks_txn_sink'\n SQLSTATE: 3")
    assert Failure.of(error).kind is FailureKind.TERMINAL


def test_a_stop_is_no_failure() -> None:
    assert is_interruption("java.lang.InterruptedException\n at")
    assert is_interruption("Job 3 cancelled as part of cancellation of all jobs")
    assert not is_interruption("ValueError: x")


def test_a_block_that_nobody_takes_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    board = FailureBoard(delay=3600)
    board.post("a", Failure.of(LoadFailed("One.")))
    board.post("b", Failure.of(LoadFailed("Two.")))
    failure = board.take("b")
    assert failure is not None
    assert failure.message == "Two."
    board.print_waiting()
    board.print_waiting()
    assert capsys.readouterr().err.count("starrocks-txn-sink:") == 1
    board.forget("a")
    assert board.take("a") is None


def test_no_timer_prints_a_failure_that_is_awaited_or_was_taken(capsys: pytest.CaptureFixture[str]) -> None:
    board = FailureBoard(delay=0)
    first, two = Failure.of(LoadFailed("One.")), Failure.of(LoadFailed("Two."))
    with board.reserve("a"):
        board.post("a", first)
        board.post("b", two)
        wait_for_timers()
        assert capsys.readouterr().err.count("starrocks-txn-sink:") == 1
        assert board.take("a") is first
    board.post("a", first)
    wait_for_timers()
    assert capsys.readouterr().err.count("starrocks-txn-sink: One.") == 1


def wait_for_timers() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and not thread.interval:
            thread.join(30)


def test_the_block_follows_the_traceback_of_a_program_that_ends() -> None:
    program = """
        from starrocks_txn_sink.errors import LoadFailed
        from starrocks_txn_sink.sink.failures import FAILURES, Failure
        FAILURES.post("q", Failure.of(LoadFailed("Busy.", hint="Wait.")))
        raise RuntimeError("what Spark raises")
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    lines = ended.stderr.rstrip().splitlines()
    assert "starrocks-txn-sink: Busy." in lines[-3:]
    assert lines.index("starrocks-txn-sink: Busy.") > lines.index("RuntimeError: what Spark raises")


def test_the_link_leads_to_the_page_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_link("spark") == f"{ERRORS}/spark.md"
    monkeypatch.setenv("STARROCKS_TXN_SINK_RUNBOOK", "https://wiki/sink")
    assert error_link("spark") == "https://wiki/sink#error-spark"
