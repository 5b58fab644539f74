"""What the driver does while StarRocks cannot serve: it waits and writes again, and it says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import (
    BeginFailed,
    CommitFailed,
    DeadlineExceeded,
    Fenced,
    InputError,
    JobHeld,
    LoadFailed,
    NoBackend,
    NotSent,
    QueryFailed,
    ReplyLost,
    StarRocksSinkError,
    TooManyTransactions,
    TransactionTimedOut,
)
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.failures import LOG_SECONDS, has_begun, outage_of, wait_out
from starrocks_txn_sink.sink.session import seconds_of_try
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import LaneCost, LaneReport, LaneTrouble, SentError, envelope
from tests.support.manual_clock import ManualClock

PLACE = {"job": "shop", "batch_id": 7}


class Waited:
    """A write that meets `errors` one after the other, then succeeds, and the events of the wait."""

    def __init__(self, *errors: Exception, stop_after: float = 1e9) -> None:
        self.clock, self.events, self.tries = ManualClock(), list[Event](), 0
        self._errors, self._stop_after = list(errors), stop_after

    def write(self) -> str:
        self.tries += 1
        if self._errors:
            raise self._errors.pop(0)
        return "written"

    def run(self, seconds: float = 600.0, served: Callable[[], bool] = lambda: True) -> str:
        def stopped() -> bool:
            return self.clock.monotonic() >= self._stop_after

        deadline = Deadline.after(seconds, self.clock)
        try:
            return self.write()
        except Exception as error:
            failed = error
        return wait_out(failed, self.write, PLACE, deadline.expired, self.events.append, stopped, self.clock, served)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event.fields for event in self.events if event.name == name]


def failed(code: str) -> LaneReport:
    return LaneReport("shop", 0, 7, trouble=LaneTrouble(failure=SentError(code)))


def lane_error(code: str) -> Exception:
    """The error of a failed Spark job: a text with the report of the lane."""
    return RuntimeError(f"Job aborted\n{envelope(failed(code))}\n\tat org.apache.spark")


@pytest.mark.parametrize("make", [lambda: NotSent("nobody"), lambda: lane_error("load_failed")])
def test_an_outage_is_waited_out_and_reported(make: Callable[[], Exception]) -> None:
    waiter = Waited(*(make() for _ in range(20)))
    assert waiter.run() == "written"
    assert waiter.tries == 21
    assert len(waiter.named("outage.met")) == 20
    waits = [fields["seconds"] for fields in waiter.named("outage.waiting")]
    assert waits[0] == 0
    assert all(LOG_SECONDS <= after - before < LOG_SECONDS + 11 for before, after in pairwise(waits))
    (ended,) = waiter.named("outage.ended")
    assert ended == {**PLACE, "seconds": waiter.clock.monotonic()}
    assert max(waiter.clock.slept) <= 1.0  # a stop is noticed within a second


def test_the_lanes_report_goes_with_its_try() -> None:
    waiter = Waited(lane_error("not_sent"))
    waiter.run()
    (outage,) = waiter.named("outage.met")
    assert (outage["code"], outage["report"]) == ("not_sent", failed("not_sent"))


@pytest.mark.parametrize(
    "error",
    [InputError("bad"), Fenced("taken over"), lane_error("fenced"), lane_error("deadline"), RuntimeError("udf")],
)
def test_an_error_that_waiting_cannot_cure_is_raised_at_once(error: Exception) -> None:
    waiter = Waited(error)
    with pytest.raises(type(error)):
        waiter.run()
    assert (waiter.tries, waiter.events) == (1, [])


def test_before_a_job_was_served_only_missing_backends_are_waited_for() -> None:
    waiter = Waited(*(NoBackend("No backend is alive.") for _ in range(3)), NotSent("nobody"))
    with pytest.raises(NotSent):
        waiter.run(served=lambda: False)
    assert (waiter.tries, len(waiter.named("outage.met"))) == (4, 3)
    assert {fields["code"] for fields in waiter.named("outage.waiting")} == {"no_backend"}


def test_a_hold_is_told_as_what_it_is() -> None:
    waiter = Waited(JobHeld("held"), JobHeld("held"), QueryFailed("gone"), QueryFailed("gone"))
    waiter.run()
    assert [event.name for event in waiter.events if event.name != "outage.met"] == [
        "job.held",
        "outage.waiting",
        "outage.ended",
    ]
    assert [fields["code"] for fields in waiter.named("job.held")] == ["job_held"]


def test_no_try_begins_after_the_deadline() -> None:
    waiter = Waited(*(QueryFailed("gone") for _ in range(1000)))
    with pytest.raises(QueryFailed):
        waiter.run(seconds=60.0)
    assert 60.0 <= waiter.clock.monotonic() < 71.0


@pytest.mark.parametrize(
    ("batch_deadline", "seconds", "time_limit"),
    [(600, 0, 600), (600, 200, 400), (600, 595, 40), (600, 700, 40), (30, 0, 30), (30, 29, 30)],
)
def test_another_try_gets_what_is_left_of_the_time(batch_deadline: float, seconds: float, time_limit: float) -> None:
    """At least the time of two replies, those to a commit and about its label, but never more than the whole."""
    clock = ManualClock()
    options = SinkOptions(
        load_url="http://h:8030",
        database="shop",
        delivery="at-least-once",
        batch_deadline=batch_deadline,
        read_timeout=20.0,
    )
    deadline = Deadline.after(batch_deadline, clock)
    clock.sleep(seconds)
    assert seconds_of_try(options, deadline) == time_limit


def test_a_server_that_hangs_after_an_outage_does_not_double_the_wait() -> None:
    clock, tries = ManualClock(), list[float]()
    options = SinkOptions(
        load_url="http://h:8030", database="shop", delivery="at-least-once", batch_deadline=600.0, read_timeout=20.0
    )
    deadline = Deadline.after(600.0, clock)

    def write() -> str:
        tries.append(clock.monotonic())
        if len(tries) < 50:
            raise NotSent("nobody")
        clock.sleep(seconds_of_try(options, deadline))
        raise DeadlineExceeded("hung")

    with pytest.raises(DeadlineExceeded):
        wait_out(NotSent("nobody"), write, PLACE, deadline.expired, lambda _: None, lambda: False, clock)
    assert tries[-1] > 300.0
    assert clock.monotonic() <= 640.0


def test_a_stop_of_the_query_ends_the_wait_with_the_last_error() -> None:
    waiter = Waited(*(CommitFailed("busy") for _ in range(1000)), stop_after=33.0)
    with pytest.raises(CommitFailed):
        waiter.run()
    assert 33.0 <= waiter.clock.monotonic() < 34.5


def test_codes_tell_outages_from_all_other_errors() -> None:
    def kinds(root: type[StarRocksSinkError]) -> set[str]:
        return {root.code}.union(*(kinds(child) for child in root.__subclasses__()))

    outages = {code for code in kinds(StarRocksSinkError) if outage_of(lane_error(code)) is not None}
    assert outages == {
        *("transport", "not_sent", "reply_lost", "bad_reply", "query_failed", "no_backend"),
        *(
            "begin_failed",
            "too_many_transactions",
            "load_failed",
            "loads_collided",
            "commit_failed",
            "threads_held",
            "job_held",
        ),
        "transaction_timed_out",
    }


def test_an_outage_after_a_begin_is_told_apart_from_a_wrong_address() -> None:
    def lane(error: StarRocksSinkError, *operations: str, failed_at: float = 0.0) -> Exception:
        requests = {"load": Counter({error.code: 1}), **{name: Counter(OK=1) for name in operations}}
        return RuntimeError(envelope(LaneReport("shop", 0, 7, cost=LaneCost(requests)).fail(error, failed_at)))

    loss, away = ReplyLost("x"), NotSent("x")
    after_begin = [LoadFailed("x"), TooManyTransactions("x"), lane(loss, "begin"), lane(loss, failed_at=1.0)]
    after_begin += [lane(away, "begin", "load"), lane(away, "load", failed_at=1.0), TransactionTimedOut("x")]
    assert [has_begun(error) for error in after_begin] == [True] * len(after_begin)
    never = [away, BeginFailed("x"), loss, lane(loss), InputError("x"), ValueError("x")]
    never += [lane(away, "begin"), lane(away, failed_at=1.0)]  # a backend that the sink cannot reach
    never.append(lane(BeginFailed("x"), failed_at=1.0))  # by a lane that begins the label itself
    assert [has_begun(error) for error in never] == [False] * len(never)
