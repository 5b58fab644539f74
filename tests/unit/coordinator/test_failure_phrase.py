"""A deadline's error names where the lane hung, also when that is over by the time the deadline is looked at."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.coordinator.lane import failure_phrase
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
from starrocks_txn_sink.errors import BeginFailed, DeadlineExceeded, LoadFailed, OutcomeUnknown, QueryFailed
from starrocks_txn_sink.protocol.label import Aborted, Committed, Loaded, Unknown
from tests.support.lane_driver import LABEL, LaneDriver, small_limits
from tests.support.model_server import ModelServer


def hung(step: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"The batch's deadline passed before {step} was done.")


@pytest.mark.parametrize(
    ("action", "result", "phrase"),
    [
        (BeginAction("l"), BeginFailed("lost"), "begin failed (begin_failed: lost)"),
        (LoadAction("l", "items", ()), hung("load"), "the load into items failed (deadline)"),
        (CheckAction("l"), QueryFailed("lost"), "the owner check failed (query_failed: lost)"),
        (CommitAction("l"), Unknown("l", OutcomeUnknown("?")), "the commit failed (outcome_unknown: ?)"),
        (CommitAction("l"), Aborted("l", LoadFailed("no")), "the commit failed (load_failed: no)"),
        (
            RecoverAction("l", ()),
            QueryFailed("lost"),
            "the look into the ledger after the commit failed (query_failed: lost)",
        ),
    ],
)
def test_what_failed_last_is_named(action: Action, result: Result, phrase: str) -> None:
    assert failure_phrase(action, result, ", after something else failed") == f", after {phrase}"


@pytest.mark.parametrize(
    ("action", "result"),
    [
        (RollbackAction("l"), None),
        (BeginAction("l"), None),
        (LoadAction("l", "items", ()), Loaded(1, 0)),
        (CommitAction("l"), Committed("l", 1)),
    ],
)
def test_what_went_well_does_not_hide_it(action: Action, result: Result) -> None:
    assert failure_phrase(action, result, ", after begin failed") == ", after begin failed"


def lane(*tables: str) -> LaneDriver:
    """A lane with a row for each table, and no row to come."""
    driver = LaneDriver(ModelServer(), small_limits())
    for table in tables:
        driver.write_rows("p0", table, [[1]])
    driver.end("p0", 1)
    driver.core.finish(driver.clock.monotonic())
    return driver


def test_a_lane_that_has_failed_says_why() -> None:
    driver = lane("orders")
    (load,) = driver.core.tick(0.0)
    driver.core.complete(load, LoadFailed("lost"))
    assert driver.core.waiting_for == (
        f"label {LABEL} in phase failed, after the load into orders failed (load_failed: lost)"
    )


def test_what_hangs_now_comes_first() -> None:
    driver = lane("orders", "items")
    first, second = driver.loads()
    assert driver.core.waiting_for == f"loads into items, orders under label {LABEL}"
    driver.core.complete(first, LoadFailed("lost"))
    assert driver.core.waiting_for == f"loads into {second.table} under label {LABEL}"


def test_a_lane_without_rows_waits_for_them() -> None:
    assert lane().core.waiting_for == f"label {LABEL} in phase idle"
