"""Writers of one job inside one sink."""

from __future__ import annotations

import threading

import pytest

from starrocks_txn_sink import SinkOptions, StarRocksSink
from starrocks_txn_sink.errors import DeadlineExceeded, Fenced
from starrocks_txn_sink.sink import session as sessions
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.sink import JobRun, write_key

OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")


def test_a_second_writer_of_a_job_waits_and_one_of_another_job_does_not() -> None:
    sink, inside = StarRocksSink(OPTIONS), threading.Event()

    def second() -> None:
        with sink._run("orders").one_at_a_time(20):
            inside.set()

    with sink._run("orders").one_at_a_time(20), sink._run("items").one_at_a_time(20):
        thread = threading.Thread(target=second)
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(20)
    thread.join(20)


def test_it_waits_no_longer_than_the_deadline() -> None:
    run = JobRun("orders")
    with (
        run.one_at_a_time(20),
        pytest.raises(DeadlineExceeded, match=r"job orders .* did not end within 0.01 s"),
        run.one_at_a_time(0.01),
    ):
        raise AssertionError


def test_a_turn_ends_with_an_error_too() -> None:
    run = JobRun("orders")
    with pytest.raises(ValueError, match="bad"), run.one_at_a_time(20):
        raise ValueError("bad")
    with run.one_at_a_time(0.01):
        pass


def origin(query: str, key: str) -> BatchOrigin:
    return BatchOrigin(0, "orders", query, key, streaming=True)


def session(key: str) -> Session:
    return Session(key, "orders", f"epoch of {key}", "checkpoint")


def test_a_run_that_lost_its_job_learns_who_has_it() -> None:
    run = JobRun("orders")
    run.replace(origin("query-1", "run-1"))
    run.open(session("run-1"))
    run.replace(origin("query-2", "run-2"))
    run.open(session("run-2"))
    assert run.session_of(origin("query-1", "run-1")) is None
    assert run.session_of(origin("query-2", "run-2")) is run.session
    with pytest.raises(Fenced, match="query-2"):
        run.replace(origin("query-1", "run-1"))


def test_calls_of_write_take_the_job_from_each_other() -> None:
    run = JobRun("orders")
    run.open(session(write_key("orders")))
    run.replace(origin("query-1", "run-1"))
    run.replace(origin(write_key("orders"), write_key("orders")))


def test_a_failed_session_is_known_until_its_labels_are_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(sessions, "clean_up", lambda _, failed, callback: calls.append((failed, callback)))
    run, failed = JobRun("orders"), session("run-1")
    run.open(failed)
    run.fail(failed, OPTIONS)
    ((session_cleaned, finish_cleaning),) = calls
    assert (run.session, run.writer, list(run.ending.values())) == (None, None, [failed])
    assert session_cleaned is failed
    finish_cleaning()
    assert run.ending == {}
