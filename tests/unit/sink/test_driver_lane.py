"""A lane in the driver's process ends as a task does: with its messages, its error, or because somebody stops it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, InputError
from starrocks_txn_sink.sink import driver_lane
from starrocks_txn_sink.sink.driver_lane import EndingClock, LaneCancelled, run_beside
from starrocks_txn_sink.sink.failures import Failure, is_interruption
from starrocks_txn_sink.sink.spark_jobs import SparkJobs, has_local_tasks
from starrocks_txn_sink.writer.messages import LaneReport, Message, message_batch

REPORT = LaneReport("j", 0, 7)


class Lane:
    """A lane that does what its function does, with its clock."""

    def __init__(self, does: Any = lambda _: None) -> None:
        self.does, self.threads, self.left = does, list[threading.Thread](), threading.Event()

    def __call__(self, batches: Iterator[pa.RecordBatch], clock: Clock) -> Iterator[pa.RecordBatch]:
        self.threads.append(threading.current_thread())
        assert not list(batches)
        try:
            self.does(clock)
            yield message_batch([REPORT])
        finally:
            self.left.set()


def run(lane: Any) -> list[Message] | None:
    """In a write of a sink, without Spark."""
    with SparkJobs().tag(None):
        return run_beside(lane, None)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_lane, "_LOOK_SECONDS", 0.01)


def wait_for_the_end(clock: Clock) -> None:
    """As lanes do: they look at a deadline, in short waits."""
    deadline = Deadline.after(3600, clock)
    while not deadline.expired():
        clock.sleep(60)


class Stopped(Exception):
    """What the JVM says of a stopped query."""


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Jvm:
        def sleep(self, _: float) -> None:
            raise Stopped("java.lang.InterruptedException: sleep interrupted")

    monkeypatch.setattr(driver_lane, "driver_clock", lambda _: Jvm())


def test_its_messages_are_copies_and_its_thread_has_a_name() -> None:
    lane = Lane()
    told = run(lane) or []
    assert told == [REPORT]
    assert told[0] is not REPORT
    assert [thread.name for thread in lane.threads] == ["starrocks-driver-lane"]


def test_an_error_that_leaves_it_says_what_it_is_as_a_tasks_traceback_does() -> None:
    def fail(_: Clock) -> None:
        raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError) as raised:
        run(Lane(fail))
    assert Failure.of(raised.value).message == "ZeroDivisionError: by zero"


def test_an_error_of_the_sink_comes_as_it_is() -> None:
    def fail(_: Clock) -> None:
        raise InputError("bad")

    with pytest.raises(InputError) as raised:
        run(Lane(fail))
    assert str(raised.value) == str(InputError("bad"))


@pytest.mark.usefixtures("stopped")
def test_a_stop_of_the_query_ends_its_time_and_passes_sparks_error_on() -> None:
    lane = Lane(wait_for_the_end)
    with pytest.raises(Stopped):
        run(lane)
    assert lane.left.is_set()


@pytest.mark.usefixtures("stopped")
def test_a_lane_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_lane, "_END_SECONDS", 0.05)
    go_on = threading.Event()
    lane = Lane(lambda _: go_on.wait(60))
    try:
        with pytest.raises(Stopped):
            run(lane)
        assert not lane.left.is_set()
        monkeypatch.undo()
        assert run(Lane()) is None  # it still uses what this process has for a lane
    finally:
        go_on.set()
    lane.threads[0].join(30)
    assert run(Lane()) == [REPORT]


def test_the_end_of_the_program_cancels_it_as_a_job_of_spark() -> None:
    jobs, began = SparkJobs(), threading.Event()

    def hang(clock: Clock) -> None:
        began.set()
        wait_for_the_end(clock)

    def cancel() -> None:
        began.wait(60)
        jobs.cancel()

    lane: Any = Lane(hang)
    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(LaneCancelled) as raised, jobs.tag(None):
        run_beside(lane, None)
    canceller.join(60)
    assert lane.left.is_set()
    assert is_interruption(str(raised.value))
    following: Any = Lane()
    with jobs.tag(None):
        assert run_beside(following, None) == [REPORT]


def test_nobody_goes_on_by_a_clock_whose_time_has_ended() -> None:
    clock = EndingClock()
    deadline = Deadline.after(3600, clock)
    clock.sleep(0)
    assert not deadline.expired()
    clock.end()
    for wait in (deadline.remaining, lambda: clock.sleep(3600)):
        with pytest.raises(DeadlineExceeded, match="stopped"):
            wait()
    assert clock.wall() > 0  # a report may still be made


class Context:
    def __init__(self, master: str) -> None:
        self.master = master


class Session:
    def __init__(self, master: str) -> None:
        self._sc = Context(master)


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[*,3]"])
def test_tasks_of_a_local_master_run_here(master: str) -> None:
    session: Any = Session(master)
    assert has_local_tasks(session)


@pytest.mark.parametrize("master", ["local-cluster[1,1,1024]", "yarn", "spark://host:7077", "k8s://https://local[2]"])
def test_tasks_of_a_cluster_do_not(master: str) -> None:
    session: Any = Session(master)
    assert not has_local_tasks(session)


def test_nobody_knows_the_tasks_of_a_connect_client() -> None:
    session: Any = object()
    assert not has_local_tasks(session)
