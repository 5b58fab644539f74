"""Dead claims: which owner rows of lanes may go, and that no other one does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import Fenced, QueryFailed, QueryRefused
from starrocks_txn_sink.protocol.fencing import Scope, delete_dead_claims, take_over
from starrocks_txn_sink.protocol.label import LedgerRequest, Steps, run
from starrocks_txn_sink.protocol.ledger import (
    DRIVER,
    LANE,
    POSITION,
    DeleteClaims,
    Owner,
    ReadOwners,
    WriteClaim,
    row_id,
)
from tests.support.manual_clock import ManualClock
from tests.support.model_ledger import ModelLedger
from tests.support.model_server import ModelServer

MINE = Owner("mine", "e2", "checkpoint")


class Watched:
    """The model ledger; `before` gets each request before it is answered, and may raise."""

    def __init__(self, before: Callable[[LedgerRequest], None] = lambda _: None) -> None:
        self.server = ModelServer()
        self.ledger = ModelLedger(self.server)
        self.before = before
        self.asked: list[LedgerRequest] = []

    def execute(self, question: LedgerRequest, deadline: Deadline) -> Any:
        self.asked.append(question)
        self.before(question)
        return self.ledger.execute(question, deadline)

    def claims(self) -> list[str]:
        return sorted(name for _, kind, name in self.server.store.ledger if kind == LANE)

    def claim(self, epoch: str, batch: int = 0, lane: int | None = 0, token: str = "t") -> None:
        owner = Owner(token, epoch, "checkpoint", batch, lane)
        self.ledger.execute(WriteClaim("job", owner), Deadline.after(1.0, ManualClock()))


def play(steps: Steps[Any], ledger: Watched) -> Any:
    clock = ManualClock()
    return run(steps, ledger.server, clock, Deadline.after(60.0, clock), ledger)


def forget(ledger: Watched, mine: Owner = MINE) -> Any:
    return play(delete_dead_claims("job", mine, random.Random(0)), ledger)


def owned() -> Watched:
    ledger = Watched()
    ledger.claim("e2", lane=None, token="mine")
    return ledger


def test_claims_of_earlier_runs_go_and_those_of_this_run_stay() -> None:
    ledger = owned()
    for epoch, batch, lane in (("e0", 3, 0), ("e1", 7, 1), ("e1", 7, 0), ("e2", 0, 0)):
        ledger.claim(epoch, batch, lane)
    assert forget(ledger) == 3
    assert ledger.claims() == ["e2/0/0"]
    assert forget(ledger) == 0


def test_another_job_and_positions_are_left_alone() -> None:
    ledger = owned()
    other = Owner("t", "e1", "checkpoint", 0, 0)
    ledger.ledger.execute(WriteClaim("another", other), Deadline.after(1.0, ManualClock()))
    ledger.server.store.ledger[("job", POSITION, "p")] = {"epoch": "e1"}
    before = dict(ledger.server.store.ledger)
    assert forget(ledger) == 0
    assert ledger.server.store.ledger == before


def test_a_driver_that_lost_the_job_removes_nothing() -> None:
    """Also when it lost it after it had looked for dead claims: the rows of the newer run are not on its list."""
    ledger = owned()
    ledger.claim("e1")

    def overtake(question: LedgerRequest) -> None:
        if isinstance(question, ReadOwners):
            ledger.claim("e3", lane=None, token="newer")
            ledger.claim("e3")

    ledger.before = overtake
    with pytest.raises(Fenced):
        forget(ledger)
    assert ledger.claims() == ["e1/0/0", "e3/0/0"]


def test_a_removal_that_is_carried_out_late_takes_no_newer_claim_along() -> None:
    ledger = owned()
    ledger.claim("e1")

    def overtake(question: LedgerRequest) -> None:
        if isinstance(question, DeleteClaims):
            ledger.claim("e3", lane=None, token="newer")
            ledger.claim("e3")

    ledger.before = overtake
    forget(ledger)
    assert ledger.claims() == ["e3/0/0"]


def test_each_run_removes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starrocks_txn_sink.protocol.fencing.MAX_DELETED_CLAIMS", 2)
    ledger = owned()
    for batch in range(5):
        ledger.claim("e1", batch)
    left = []
    for _ in range(3):
        forget(ledger)
        left.append(len(ledger.claims()))
    assert left == [3, 1, 0]


def test_an_unanswered_removal_is_not_repeated_and_a_refused_one_is_said() -> None:
    for error, raised in ((QueryFailed("lost"), False), (QueryRefused("no DELETE"), True)):
        ledger = owned()
        ledger.claim("e1")

        def fail(question: LedgerRequest, error: Exception = error) -> None:
            if isinstance(question, DeleteClaims):
                raise error

        ledger.before = fail
        if raised:
            with pytest.raises(QueryRefused):
                forget(ledger)
        else:
            assert forget(ledger) == 1
        assert sum(isinstance(question, DeleteClaims) for question in ledger.asked) == 1


def test_in_every_version_a_claim_is_missing_only_when_its_run_is_fenced() -> None:
    """A sleeper of the old run reads owner and claim at any moment of the new run's start."""
    ledger = Watched()
    ledger.claim("e1", lane=None, token="old")
    ledger.claim("e1", 7, 0, token="retry")
    seen = []

    def look(_: LedgerRequest) -> None:
        rows = ledger.server.store.ledger
        owner = rows[("job", DRIVER, "")]["token"]
        seen.append((owner == "old", ("job", LANE, "e1/7/0") in rows))

    ledger.before = look
    rng = random.Random(0)
    taken = play(take_over(Scope("job", "shop", Owner("", "e2", "checkpoint")), lambda: f"{rng.random()}", rng), ledger)
    forget(ledger, taken.owner)
    look(ReadOwners("job"))
    assert seen[0] == (True, True)
    assert seen[-1] == (False, False)
    assert (True, False) not in seen


def test_the_statements_name_rows_by_their_keys() -> None:
    sql, ids = DeleteClaims("job", ("e1/0/0", "e1/1/0")).statement("shop")
    assert sql == "DELETE FROM `shop`.`_starrocks_txn_sink_ledger` WHERE id IN (%s, %s)"
    assert ids == (row_id("job", LANE, "e1/0/0"), row_id("job", LANE, "e1/1/0"))
