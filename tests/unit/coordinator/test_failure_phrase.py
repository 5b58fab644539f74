"""A deadline's error names where the lane hung, also when that is over by the time the deadline is looked at."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.coordinator.coordinator import failure_phrase
from starrocks_txn_sink.coordinator.model import (
    Action,
    BeginAction,
    CheckAction,
    CommitAction,
    LoadAction,
    RecoverAction,
    Result,
    RollbackAction,
)
from starrocks_txn_sink.errors import (
    BeginFailed,
    DeadlineExceeded,
    LoadFailed,
    OutcomeUnknown,
    QueryFailed,
    StarRocksSinkError,
    TooManyTransactions,
)
from starrocks_txn_sink.protocol.label import Aborted, Committed, Loaded, Unknown
from tests.support.lane_driver import LaneDriver, small_limits
from tests.support.model_server import ModelServer


def hung(step: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"The batch's deadline passed before {step} was done.")


@pytest.mark.parametrize(
    ("action", "result", "said"),
    [
        (BeginAction("l"), BeginFailed("lost"), "begin failed (begin_failed: lost)"),
        (LoadAction("l", "items", ()), hung("load"), "the load into items failed (deadline)"),
        (CheckAction("l"), QueryFailed("lost"), "the owner check failed (query_failed: lost)"),
        (CommitAction("l"), Unknown("l", OutcomeUnknown("?")), "the commit failed (outcome_unknown: ?)"),
        (CommitAction("l"), Aborted("l", LoadFailed("no")), "the commit failed (load_failed: no)"),
        (RecoverAction("l", ()), QueryFailed("lost"), "the take-over after the commit failed (query_failed: lost)"),
    ],
)
def test_what_failed_last_is_named(action: Action, result: Result, said: str) -> None:
    assert failure_phrase(action, result, ", after something else failed") == f", after {said}"


@pytest.mark.parametrize(
    ("action", "result"),
    [
        (RollbackAction("l"), None),
        (RollbackAction("l"), hung("rollback")),
        (BeginAction("l"), None),
        (LoadAction("l", "items", ()), Loaded(1, 0)),
    ],
)
def test_what_went_well_and_rollbacks_do_not_hide_it(action: Action, result: Result) -> None:
    assert failure_phrase(action, result, ", after begin failed") == ", after begin failed"


def test_a_commit_ends_all_trouble() -> None:
    assert failure_phrase(CommitAction("l"), Committed("l", 1), ", after begin failed") == ""


def lane() -> LaneDriver:
    lane = LaneDriver(ModelServer(), small_limits())
    lane.write_rows("p0", "orders", [[1]])
    lane.end("p0", 1)
    lane.core.finish(lane.clock.monotonic())
    return lane


def complete(lane: LaneDriver, result: Result) -> Action:
    """The one action that is due ends with `result`."""
    (action,) = lane.core.tick(lane.clock.monotonic())
    lane.core.complete(action, result, lane.clock.monotonic())
    return action


@pytest.mark.parametrize(
    ("well", "error", "place"),
    [
        ([], BeginFailed("lost"), "begin"),
        ([None], LoadFailed("lost"), "the load into orders"),
    ],
    ids=["begin", "load"],
)
def test_a_lane_that_rolls_back_or_waits_for_its_next_try_says_why(
    well: list[Result], error: StarRocksSinkError, place: str
) -> None:
    driven = lane()
    for result in well:
        complete(driven, result)
    complete(driven, error)
    assert "in phase aborting, after " + place in driven.core.waiting_for
    assert isinstance(complete(driven, None), RollbackAction)
    assert "in phase idle, after " + place in driven.core.waiting_for


def test_what_hangs_now_comes_first() -> None:
    driven = lane()
    complete(driven, BeginFailed("lost"))
    complete(driven, None)
    driven.clock.advance(60)
    complete(driven, None)
    driven.core.tick(driven.clock.monotonic())
    assert driven.core.waiting_for.startswith("loads into orders under label")
    assert "begin" not in driven.core.waiting_for


def test_a_full_database_says_so_and_what_helps() -> None:
    driven = lane()
    complete(driven, TooManyTransactions("current running txns on db 7 is 1000, larger than limit 1000."))
    complete(driven, None)
    assert "(too_many_transactions: current running txns on db 7 is 1000, larger than limit 1000)" in (
        driven.core.waiting_for
    )
    assert driven.core.advice is not None
    assert "max_running_txn_num_per_db" in driven.core.advice
    driven.clock.advance(60)
    complete(driven, None)
    driven.core.tick(driven.clock.monotonic())
    assert driven.core.advice is None  # the loads hang now


def test_a_full_database_is_asked_less_and_less_often() -> None:
    driven, waits = lane(), []
    for _ in range(8):
        complete(driven, TooManyTransactions("full"))
        complete(driven, None)
        began = driven.clock.monotonic()
        while driven.core._not_before > driven.clock.monotonic():
            driven.clock.advance(0.1)
        waits.append(driven.clock.monotonic() - began)
    assert waits[0] < 0.4
    assert 5 <= waits[-1] <= 10.2
    assert driven.core.error is None
