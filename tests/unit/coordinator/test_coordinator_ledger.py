"""The coordinator with a ledger, step by step: what it asks for, in which order, and what each result leads to."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from starrocks_txn_sink.coordinator.coordinator import Phase, SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.model import (
    Action,
    BeginAction,
    CheckAction,
    Chunk,
    CommitAction,
    LoadAction,
    PositionSpan,
    RecoverAction,
    RegionRows,
    Result,
    RollbackAction,
)
from starrocks_txn_sink.coordinator.write_buffer import Contents, TransactionBatch, WriteBuffer
from starrocks_txn_sink.errors import (
    CommitFailed,
    DeadlineExceeded,
    Fenced,
    LoadFailed,
    OutcomeUnknown,
    StarRocksSinkError,
    TransactionTimedOut,
)
from starrocks_txn_sink.protocol.label import Aborted, Committed, Loaded, Unknown
from tests.support.lane_driver import small_limits

LEDGER = "ledger"
SPANS = (PositionSpan("p", 1, 1, 1, "d"),)
UNKNOWN = Unknown("L0", OutcomeUnknown("?", label="L0"))
FENCED = Fenced("taken over")


class Lane:
    """One lane, driven by hand. `entered` lists the labels under which the ledger's rows were made."""

    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.entered: list[str] = []
        self.core = SharedTransactionCoordinator(
            "job",
            3,
            9,
            WriteBuffer(small_limits(**limits)),
            (f"L{n}" for n in range(100)),
            random.Random(1),
            lambda: 1_000.0 + self.now,
            self._entries,
        )

    def _entries(self, label: str, batch: Contents) -> Chunk:
        assert isinstance(batch, TransactionBatch)
        assert batch.closed
        self.entered.append(label)
        chunk = Chunk("", LEDGER)
        chunk.append(memoryview(b",{}"), 1)
        return chunk

    def rows(self, *tables: str, position: int = 1, size: int = 4) -> None:
        for table in tables:
            self.core.take(RegionRows("p", table, memoryview(b"," + b"x" * (size - 1)), 1), self.now)
        self.core.take(PositionSpan("p", position, position, 1, "d"), self.now)

    def tick(self) -> list[Action]:
        return self.core.tick(self.now)

    def one(self) -> Any:
        (action,) = self.tick()
        return action

    def done(self, action: Action, result: Result = None, seconds: float = 1.0) -> None:
        self.now += seconds
        self.core.complete(action, result, self.now)

    def phase(self) -> Phase:
        return self.core.phase

    def loaded(self) -> None:
        """Up to the moment before the check: begun, and all loads accepted."""
        self.core.finish(self.now)
        self.done(self.one())
        for load in self.tick():
            assert isinstance(load, LoadAction)
            self.done(load, Loaded(7, 1))

    def sent(self) -> CommitAction:
        """Up to the commit."""
        self.loaded()
        check = self.one()
        assert check == CheckAction("L0")
        self.done(check)
        commit = self.one()
        assert isinstance(commit, CommitAction)
        assert commit == CommitAction("L0")
        return commit


def test_positions_travel_with_the_data_and_the_owner_is_checked_after_the_last_load() -> None:
    lane = Lane()
    lane.rows("a", "b")
    lane.core.finish(lane.now)
    begin = lane.one()
    assert begin == BeginAction("L0")
    lane.done(begin)
    loads = lane.tick()
    assert [load.table for load in loads if isinstance(load, LoadAction)] == [LEDGER, "a", "b"]
    for load in loads:
        assert lane.core.phase is Phase.OPEN
        assert lane.tick() == []
        lane.done(load, Loaded(None, 0))
    check = lane.one()
    assert (check, lane.core.phase) == (CheckAction("L0"), Phase.CHECKING)
    assert lane.tick() == []
    lane.done(check)
    commit = lane.one()
    assert (commit, lane.core.phase) == (CommitAction("L0"), Phase.COMMITTING)
    assert lane.tick() == []
    lane.done(commit, Committed("L0", None))
    assert lane.core.finished
    assert lane.entered == ["L0"]
    assert lane.core.buffer.buffered_bytes == 0


def test_a_receipt_says_whose_it_is() -> None:
    lane = Lane()
    lane.rows("a")
    lane.done(lane.sent(), Committed("L0", None))
    (receipt,) = lane.core.receipts
    assert (receipt.job, receipt.lane, receipt.batch_id) == ("job", 3, 9)
    assert (receipt.label, receipt.txn_id) == ("L0", 7)
    assert (receipt.attempts, receipt.retries, receipt.loads, receipt.recycled) == (1, 2, 1, False)
    assert receipt.committed_at == 1_000.0 + lane.now
    assert receipt.positions == SPANS
    assert [(r.partition, r.table, r.rows, r.bytes) for r in receipt.regions] == [("p", "a", 1, 4)]


@pytest.mark.parametrize("error", [FENCED, DeadlineExceeded("late")])
def test_who_is_not_the_owner_any_more_rolls_back_and_stops(error: StarRocksSinkError) -> None:
    lane = Lane()
    lane.rows("a")
    lane.loaded()
    lane.done(lane.one(), error)
    rollback = lane.one()
    assert rollback == RollbackAction("L0")
    lane.done(rollback)
    assert lane.core.finished
    assert lane.core.error is error
    assert lane.core.receipts == []
    assert lane.tick() == []


def test_an_unknown_outcome_is_recovered_and_may_turn_out_committed() -> None:
    lane = Lane()
    lane.rows("a")
    lane.done(lane.sent(), UNKNOWN)
    recover = lane.one()
    assert recover == RecoverAction("L0", SPANS)
    assert lane.core.phase is Phase.RECOVERING
    assert lane.tick() == []
    lane.done(recover, Committed("L0", None))
    (receipt,) = lane.core.receipts
    assert receipt.retries == 3
    assert lane.core.finished


def test_an_unknown_outcome_that_was_none_is_tried_again_with_new_ledger_rows() -> None:
    lane = Lane()
    lane.rows("a")
    lane.done(lane.sent(), UNKNOWN)
    lane.done(lane.one(), Aborted("L0", CommitFailed("not there")))
    lane.done(lane.one())
    assert lane.tick() == []
    lane.now += 10
    lane.done(lane.one())
    loads = lane.tick()
    assert [load.label for load in loads] == ["L1", "L1"]
    assert lane.entered == ["L0", "L1"]
    for load in loads:
        lane.done(load, Loaded(8, 0))
    lane.done(lane.one())
    lane.done(lane.one(), Committed("L1", 8))
    (receipt,) = lane.core.receipts
    assert (receipt.label, receipt.attempts, receipt.txn_id) == ("L1", 2, 8)
    assert lane.core.buffer.buffered_bytes == 0


@pytest.mark.parametrize("result", [FENCED, UNKNOWN])
def test_a_recovery_that_cannot_tell_ends_the_lane(result: Any) -> None:
    lane = Lane()
    lane.rows("a")
    lane.done(lane.sent(), UNKNOWN)
    lane.done(lane.one(), result)
    assert lane.core.phase is Phase.FAILED
    assert lane.core.error is (result if result is FENCED else UNKNOWN.error)
    assert lane.tick() == []


def test_a_stop_waits_for_a_commit_and_for_its_recovery_and_then_ends() -> None:
    lane, stop = Lane(), StarRocksSinkError("stop")
    lane.rows("a")
    commit = lane.sent()
    lane.core.fail(stop)
    assert lane.phase() is Phase.COMMITTING
    lane.done(commit, UNKNOWN)
    lane.core.fail(StarRocksSinkError("a later one"))
    assert lane.phase() is Phase.RECOVERING
    lane.done(lane.one(), Committed("L0", None))
    assert lane.phase() is Phase.FAILED
    assert lane.core.error is stop
    assert len(lane.core.receipts) == 1
    lane.core.fail(StarRocksSinkError("too late"))
    assert lane.core.error is stop


def test_a_stop_during_the_check_rolls_back_once_the_check_has_ended() -> None:
    lane, stop = Lane(), LoadFailed("stop")
    lane.rows("a")
    lane.loaded()
    check = lane.one()
    lane.core.fail(stop)
    assert lane.tick() == []
    lane.done(check)
    lane.done(lane.one())
    assert lane.core.phase is Phase.FAILED
    assert lane.core.error is stop


def test_a_second_transaction_starts_counting_at_zero() -> None:
    lane = Lane(commit_interval=1.0)
    lane.rows("a")
    lane.now = 2.0
    lane.rows("a", position=2)
    lane.rows("b", position=3)
    lane.core.finish(lane.now)
    for label in ("L0", "L1"):
        lane.done(lane.one())
        for load in lane.tick():
            lane.done(load, Loaded(None, 1))
        lane.done(lane.one())
        lane.done(lane.one(), Committed(label, None))
    first, second = lane.core.receipts
    assert (first.retries, second.retries) == (2, 2)
    assert [(s.first, s.last) for r in (first, second) for s in r.positions] == [(1, 2), (3, 3)]
    assert second.attempts == 1


def test_a_full_buffer_sends_the_largest_regions_away_until_half_of_it_is_frozen() -> None:
    lane = Lane(buffer_bytes=100, chunk_bytes=1000, load_bytes=1)
    for table, size in (("a", 10), ("b", 30), ("c", 25), ("d", 35)):
        lane.core.take(RegionRows("p", table, memoryview(b"x" * size), 1), lane.now)
    lane.done(lane.one())
    assert [(load.table, load.bytes) for load in lane.tick() if isinstance(load, LoadAction)] == [("d", 35), ("b", 30)]


def test_retries_wait_longer_each_time_and_the_buffer_is_counted_back() -> None:
    lane = Lane(max_attempts=4)
    lane.rows("a", size=40)
    lane.core.finish(lane.now)
    waits = []
    for _ in range(3):
        lane.done(lane.one(), seconds=0)
        ledger, load = lane.tick()
        lane.done(ledger, Loaded(None, 0), seconds=0)
        lane.done(load, LoadFailed("no"), seconds=0)
        assert lane.core.buffer.buffered_bytes == 0
        lane.done(lane.one(), seconds=0)
        assert lane.core.buffer.buffered_bytes == 40
        began = lane.now
        while lane.core._not_before > lane.now:
            assert lane.tick() == []
            lane.now += 0.01
        waits.append(lane.now - began)
    assert 0.1 <= waits[0] <= 0.22 <= waits[1] + 0.03 <= 0.45 <= waits[2] + 0.06 <= 0.9


def test_an_outlived_transaction_names_its_label_and_who_is_still_open() -> None:
    lane = Lane()
    lane.core.take(RegionRows("p", "a", memoryview(b",x"), 1), lane.now)
    lane.done(lane.one())
    lane.now = 700.0
    assert lane.one() == RollbackAction("L0")
    error = lane.core.error
    assert isinstance(error, TransactionTimedOut)
    assert error.context == {"label": "L0"}
    assert "source partition p is still inside" in error.message


def test_a_micro_batch_that_outlives_its_one_transaction_blames_no_source_transaction() -> None:
    """Spark repeats it after a restart, whatever limit it has then; so that is no advice."""
    lane = Lane(recycle_at=math.inf)
    lane.core.take(RegionRows("p", "a", memoryview(b",x"), 1), lane.now)
    lane.done(lane.one())
    lane.now = 700.0
    assert lane.one() == RollbackAction("L0")
    error = lane.core.error
    assert isinstance(error, TransactionTimedOut)
    assert error.message == "The micro-batch took longer than the timeout of its StarRocks transaction, 600 s."
    assert "Spark repeats the micro-batch as planned" in error.advice


def test_loads_that_lasted_until_the_timeout_are_named_and_repeated_under_a_new_label() -> None:
    lane = Lane()
    lane.rows("a", size=40)
    lane.core.finish(lane.now)
    lane.done(lane.one())
    loads = lane.tick()
    lane.now = 700.0
    assert lane.tick() == []  # the label is rolled back when its loads have ended
    error = lane.core.error
    assert isinstance(error, LoadFailed)
    assert "during the load into a, ledger" in error.message
    for load in loads:
        lane.done(load, LoadFailed("the label has ended"))
    lane.done(lane.one())
    lane.now += 1.0
    assert lane.one() == BeginAction("L1")


def test_whole_rows_that_were_not_loaded_before_the_timeout_are_loaded_under_a_new_label() -> None:
    lane = Lane()
    lane.rows("a", size=40)
    begin = lane.one()
    lane.core.finish(lane.now)
    lane.done(begin, seconds=700.0)
    lane.done(lane.one())
    assert lane.core.error is None
    lane.now += 1.0
    assert lane.one() == BeginAction("L1")


@pytest.mark.parametrize("seconds", [299.0, 301.0])
def test_a_slow_load_inside_a_source_transaction_is_the_cause_if_it_took_most_of_the_time(seconds: float) -> None:
    lane = Lane()
    lane.core.take(RegionRows("p", "a", memoryview(b"x" * 2000), 1), lane.now)
    lane.done(lane.one())
    lane.now += 600.0 - seconds
    assert isinstance(lane.one(), LoadAction)
    lane.now += seconds
    assert lane.tick() == []
    assert isinstance(lane.core.error, LoadFailed if seconds > 300 else TransactionTimedOut)


def test_what_gathers_during_a_failure_stays_counted_with_what_is_put_back() -> None:
    lane = Lane(commit_interval=1.0)
    lane.rows("a", size=40)
    lane.now = 2.0
    lane.rows("a", position=2, size=10)
    lane.done(lane.one())
    ledger, load = lane.tick()
    lane.rows("b", position=3, size=30)
    lane.done(ledger, Loaded(None, 0))
    lane.done(load, LoadFailed("no"))
    assert lane.core.buffer.buffered_bytes == 30
    lane.done(lane.one())
    assert lane.core.buffer.buffered_bytes == 80
    assert lane.core.buffer.buffered_peak == 83  # with the ledger's row


def test_full_buffers_send_what_is_too_little_for_a_load_otherwise() -> None:
    lane = Lane(buffer_bytes=100, load_bytes=1_000)
    lane.core.take(RegionRows("p", "a", memoryview(b"x" * 99), 1), lane.now)
    lane.done(lane.one())
    assert lane.tick() == []
    lane.core.take(RegionRows("p", "a", memoryview(b"x"), 1), lane.now)
    assert [(load.table, load.bytes) for load in lane.tick() if isinstance(load, LoadAction)] == [("a", 100)]


def test_recycling_counts_from_the_begin() -> None:
    lane = Lane(timeout=100.0)
    lane.now = 50.0
    lane.rows("a")
    lane.done(lane.one(), seconds=0)
    lane.now = 129.0
    assert lane.tick() == []
    lane.now = 130.0
    assert [load.table for load in lane.tick() if isinstance(load, LoadAction)] == [LEDGER, "a"]


def test_loads_inside_a_source_transaction_count_and_the_servers_number_is_kept() -> None:
    lane = Lane(load_bytes=4, chunk_bytes=4)
    lane.core.take(RegionRows("p", "a", memoryview(b",xxx"), 1), lane.now)
    lane.done(lane.one())
    lane.done(lane.one(), Loaded(7, 0), seconds=3)
    lane.core.take(PositionSpan("p", 1, 1, 1, "d"), lane.now)
    lane.core.finish(lane.now)
    lane.done(lane.one(), Loaded(None, 0))
    lane.done(lane.one())
    lane.done(lane.one(), Committed("L0", 8))
    (receipt,) = lane.core.receipts
    assert receipt.txn_id == 8
    assert receipt.loads == 1
