"""The row of a bound on a server: what one command writes, a driver reads, until its seconds are over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import bound as bounds
from starrocks_txn_sink.protocol.bound import EXACT, NEAR, REACHED, Bound, ReadBound, WriteBound
from starrocks_txn_sink.protocol.label import LedgerRequest, Steps, Wait
from starrocks_txn_sink.protocol.ledger import ReadMarker, identifier
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger

BOUND = Bound("t1", "shop", {"lsn": 1 << 40, "0-1": 7}, "5:9:5,7", 60, "0/1D4C3A8")


@pytest.fixture
def connection(server: Emulator) -> Iterator[LeaderConnection]:
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="j")
    with closing(LeaderConnection(options)) as connection:
        SqlLedger(connection, "shop").create(None, Deadline.after(20, SystemClock()))
        yield connection


@pytest.fixture
def ask(connection: LeaderConnection) -> Callable[[LedgerRequest], Any]:
    ledger = SqlLedger(connection, "shop")
    return lambda request: ledger.execute(request, Deadline.after(20, SystemClock()))


def test_a_bound_is_read_as_it_was_written_and_ends(ask: Callable[[LedgerRequest], Any]) -> None:
    assert ask(ReadBound("j")) is None
    ask(WriteBound("j", BOUND))
    read = ask(ReadBound("j"))
    assert 50 <= read.seconds <= 60
    assert (replace(read, seconds=60), read.text) == (BOUND, BOUND.text)
    assert ask(ReadBound("other")) is None
    ask(WriteBound("j", replace(BOUND, token="t2", seconds=30)))
    assert ask(ReadBound("j")).token == "t2"
    ask(WriteBound("j", replace(BOUND, token="t2", seconds=0)))
    assert ask(ReadBound("j")) is None


def test_a_bound_is_over_after_its_seconds(ask: Callable[[LedgerRequest], Any], connection: LeaderConnection) -> None:
    ask(WriteBound("j", BOUND))
    table, deadline = identifier("shop", "_starrocks_txn_sink_ledger"), Deadline.after(20, SystemClock())
    for seconds, left in ((30, True), (59, True), (60, False), (100_000, False), (-100, True)):
        connection.query(
            f"UPDATE {table} SET updated_at = date_sub(now(), INTERVAL {seconds} SECOND) WHERE kind = 'bound'",
            (),
            deadline,
        )
        read = ask(ReadBound("j"))
        assert (read is not None) is left, seconds
        assert read is None or 0 < read.seconds <= 60


def test_the_driver_says_that_it_stands(ask: Callable[[LedgerRequest], Any]) -> None:
    _carried_out(bounds.reach("j", BOUND, NEAR, random.Random(1)), ask)
    assert ask(ReadMarker("j", REACHED, BOUND.reached(NEAR)))
    assert not ask(ReadMarker("j", REACHED, BOUND.reached(EXACT)))


@pytest.mark.parametrize("end", ["freed", "replaced", "silent"])
def test_a_driver_waits_for_the_end_and_no_longer_than_its_seconds(end: str) -> None:
    """A command that was killed leaves the row as it is; a clock of the server that stands still does not matter."""
    reads: list[Bound | None] = [replace(BOUND, seconds=3)] * (3 if end != "silent" else 100)
    reads += [None if end == "freed" else replace(BOUND, token="t2")]
    answers = iter(reads)
    waited = 0.0

    def answer(_: LedgerRequest) -> Bound | None:
        return next(answers)

    def wait(step: Wait) -> None:
        nonlocal waited
        waited += step.seconds

    _carried_out(bounds.await_end("j", "t1", random.Random(1)), answer, wait)
    assert waited == (3.0 if end == "silent" else 1.5)


def _carried_out(steps: Steps[Any], ask: Callable[[Any], Any], wait: Callable[[Wait], None] = lambda _: None) -> None:
    answer: object = None
    while True:
        try:
            needed = steps.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(needed, Wait):
            wait(needed)
        else:
            answer = ask(needed)
