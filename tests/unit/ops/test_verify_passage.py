"""`verify` waits for the job's ledger: through a change of StarRocks' leader, and no longer than it may."""

from __future__ import annotations

from typing import Any, cast

import pytest

from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_ops.verify.passage import Passage
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryFailed
from starrocks_txn_sink.sql.connection import LeaderConnection
from tests.support.manual_clock import ManualClock


class Leader:
    """Answers with one answer after the other, the last one for ever: an error, or the ledger's position."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers, self.looks = [*answers], 0

    def query(self, *_: Any) -> list[tuple[Any, ...]]:
        self.looks += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [("position", "shop", answer, None)]


def passage(leader: Leader, seconds: float) -> Passage:
    clock = ManualClock()
    reader = LedgerReader(cast(LeaderConnection, leader), "shop", Deadline.after(60, clock))
    return Passage(reader, "j", "shop", seconds, clock, numbered=True)


GONE = QueryFailed("The leader has gone.")


def test_it_waits_through_a_change_of_the_leader() -> None:
    leader = Leader(0, GONE, GONE, 0, 100)
    assert passage(leader, 60.0).passed(("0/20",))
    assert leader.looks == 5


def test_it_waits_no_longer_than_it_may() -> None:
    waiting = passage(Leader(0), 30.0)
    assert not waiting.passed(("0/20",))
    assert 30.0 <= waiting.clock.monotonic() < 31.0
    assert not waiting.passed(("0/20",))  # once it was in vain
    assert waiting.clock.monotonic() < 34.0


def test_it_does_not_wait_for_what_cannot_come() -> None:
    """Neither the source nor the job moves; a job that still comes, or a source that commits, is waited for."""
    at_rest = passage(Leader(0), 300.0)
    at_rest.place_now = lambda: ("0/20",)
    assert not at_rest.passed(("0/20",))
    assert 30.0 <= at_rest.clock.monotonic() < 31.0
    assert "a commit to a table of the job has to bring it there" in at_rest.last.lacks
    comes = passage(Leader(*range(33)), 300.0)
    comes.rest_seconds, comes.place_now = 1.5, lambda: ("0/20",)
    assert comes.passed(("0/20",))
    busy = passage(Leader(0), 300.0)
    busy.place_now = lambda: (str(busy.clock.monotonic()),)
    assert not busy.passed(("0/20",))
    assert busy.clock.monotonic() >= 300.0


def test_a_leader_that_does_not_come_back_is_an_error() -> None:
    with pytest.raises(QueryFailed):
        passage(Leader(0, GONE), 30.0).passed(("0/20",))
