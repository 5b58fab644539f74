"""Writers of one job inside one sink."""

from __future__ import annotations

import pickle
import threading

import pytest

from starrocks_txn_sink.errors import DeadlineExceeded, Fenced
from starrocks_txn_sink.sink.lifecycle import WriteTurns


def test_a_second_writer_of_a_job_waits_and_one_of_another_job_does_not() -> None:
    turns, inside = WriteTurns(), threading.Event()

    def second() -> None:
        with turns.one_at_a_time("orders", 20):
            inside.set()

    with turns.one_at_a_time("orders", 20), turns.one_at_a_time("items", 20):
        thread = threading.Thread(target=second)
        thread.start()
        assert not inside.wait(0.1)
    assert inside.wait(20)
    thread.join(20)


def test_it_waits_no_longer_than_the_deadline() -> None:
    turns = WriteTurns()
    with (
        turns.one_at_a_time("orders", 20),
        pytest.raises(DeadlineExceeded, match=r"job orders .* did not end within 0.01 s"),
        turns.one_at_a_time("orders", 0.01),
    ):
        raise AssertionError


def test_a_turn_ends_with_an_error_too() -> None:
    turns = WriteTurns()
    with pytest.raises(ValueError, match="bad"), turns.one_at_a_time("orders", 20):
        raise ValueError("bad")
    with turns.one_at_a_time("orders", 0.01):
        pass


def test_a_run_that_lost_its_job_learns_who_has_it() -> None:
    turns = WriteTurns()
    turns.record_replacement("orders", "run-1", by="query-2")
    with pytest.raises(Fenced, match="query-2"):
        turns.refuse_replaced("orders", "run-1")
    turns.refuse_replaced("orders", "run-2")
    turns.refuse_replaced("items", "run-1")


def test_it_travels_without_what_it_knows() -> None:
    turns = WriteTurns()
    turns.record_replacement("orders", "run-1", by="query-2")
    pickle.loads(pickle.dumps(turns)).refuse_replaced("orders", "run-1")
