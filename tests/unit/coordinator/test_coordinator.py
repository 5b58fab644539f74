from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.coordinator import MOVES, Phase
from starrocks_txn_sink.coordinator.model import LoadAction
from starrocks_txn_sink.errors import (
    DeadlineExceeded,
    InputError,
    LoadFailed,
    OutcomeUnknown,
    ServerRefused,
    TransactionTimedOut,
)
from starrocks_txn_sink.protocol.wire import Operation
from tests.support.depth import examples
from tests.support.lane_driver import LaneDriver, small_limits
from tests.support.model_server import Fault, ModelServer, plan_faults


def driver(server: ModelServer | None = None, **limits: object) -> LaneDriver:
    return LaneDriver(server or ModelServer(), small_limits(**limits))


def transaction(lane: LaneDriver, partition: str, position: int, *tables: str) -> None:
    for table in tables:
        lane.write_rows(partition, table, [[partition, position]])
    lane.end(partition, position)


def operations(server: ModelServer) -> list[Operation]:
    return [request.operation for request in server.requests]


def test_many_source_transactions_share_one_starrocks_transaction_and_one_load_a_table() -> None:
    lane = driver()
    for position in range(1, 11):
        transaction(lane, "p0", position, "orders", "items")
        transaction(lane, "p1", position, "orders")
        lane.settle()
    lane.finish()
    (receipt,) = lane.core.receipts
    assert operations(lane.server).count(Operation.LOAD) == receipt.loads == 2
    assert receipt.source_transactions == 20
    assert receipt.tables == {"orders": 20, "items": 10}
    assert [(s.partition, s.first, s.last) for s in receipt.positions] == [("p0", 1, 10), ("p1", 1, 10)]
    assert len(lane.server.tables["orders"]) == 20
    assert lane.core.buffer.buffered_bytes == 0


def test_begin_is_sent_before_any_chunk_is_ready_and_carries_the_timeout() -> None:
    lane = driver()
    lane.write_rows("p0", "orders", [[1]])
    lane.settle()
    assert operations(lane.server) == [Operation.BEGIN]
    assert lane.server.requests[0].headers["timeout"] == "600"


def test_no_rows_no_transaction() -> None:
    lane = driver()
    lane.finish()
    assert lane.server.requests == []
    assert lane.core.receipts == []


def test_one_load_per_table_at_a_time() -> None:
    lane = driver(load_bytes=1)
    transaction(lane, "p0", 1, "orders")
    lane.settle()
    lane.clock.advance(1)
    transaction(lane, "p0", 2, "orders", "items")
    first = lane.core.tick(lane.clock.monotonic())
    assert sorted(action.table for action in first if isinstance(action, LoadAction)) == ["items", "orders"]
    lane.clock.advance(1)
    transaction(lane, "p0", 3, "orders", "items")
    assert lane.core.tick(lane.clock.monotonic()) == []


def test_load_parallelism_bounds_the_loads_under_way() -> None:
    lane = driver(load_bytes=1, load_parallelism=2)
    lane.write_rows("p0", "a", [[1]])
    lane.settle()
    transaction(lane, "p0", 1, "a", "b", "c")
    assert len(lane.core.tick(lane.clock.monotonic())) == 2


def test_a_huge_source_transaction_flows_through_a_small_buffer_and_commits_once() -> None:
    lane = driver(buffer_bytes=5_000, chunk_bytes=1_000, retry_buffer_bytes=1_000)
    highest = 0
    for number in range(2_000):
        lane.write_rows("p0", f"t{number % 7}", [["x" * 50, number]])
        highest = max(highest, lane.core.buffer.buffered_bytes)
        if number % 100 == 0:
            assert lane.server.tables == {}
    lane.end("p0", 1)
    lane.finish()
    assert sum(map(len, lane.server.tables.values())) == 2_000
    assert lane.server.commits == [lane.core.receipts[0].label]
    assert highest <= 5_000 + 100


def test_many_small_regions_cannot_fill_the_buffer_for_good() -> None:
    lane = driver(buffer_bytes=2_000, chunk_bytes=1_999)
    for number in range(300):
        lane.write_rows("p0", f"t{number % 100}", [["x" * 40]])
    lane.end("p0", 1)
    lane.finish()
    assert sum(map(len, lane.server.tables.values())) == 300


def test_with_a_commit_interval_commits_come_at_clean_boundaries_in_order() -> None:
    lane = driver(commit_interval=1.0)
    for position in range(1, 31):
        transaction(lane, "p0", position, "orders", "items")
        lane.clock.advance(0.1)
        lane.settle()
    lane.finish()
    assert len(lane.core.receipts) == 3
    spans = [receipt.positions[0] for receipt in lane.core.receipts]
    assert [span.first for span in spans] == [1, spans[0].last + 1, spans[1].last + 1]
    assert lane.server.tables["orders"] == [["p0", n] for n in range(1, 31)]


def test_no_commit_inside_a_source_transaction_however_long() -> None:
    lane = driver(commit_interval=0.1)
    for _ in range(20):
        lane.write_rows("p0", "orders", [[1]])
        lane.clock.advance(10)
        lane.settle()
    assert Operation.COMMIT not in operations(lane.server)
    lane.end("p0", 1)
    lane.settle()
    assert operations(lane.server).count(Operation.COMMIT) == 1


def test_a_transaction_is_recycled_at_eighty_percent_of_its_timeout() -> None:
    lane = driver(timeout=100.0)
    transaction(lane, "p0", 1, "orders")
    lane.settle()
    lane.clock.advance(79)
    lane.settle()
    assert Operation.COMMIT not in operations(lane.server)
    lane.clock.advance(1)
    lane.settle()  # nothing is written: the clock alone decides
    assert lane.core.receipts[0].recycled
    transaction(lane, "p0", 2, "orders")
    lane.finish()
    assert len(lane.core.receipts) == 2
    assert not lane.core.receipts[1].recycled


def test_a_source_transaction_that_outlives_the_timeout_is_an_error_that_says_so() -> None:
    lane = driver(timeout=100.0)
    lane.write_rows("p0", "orders", [[1]])
    lane.settle()
    lane.clock.advance(100)
    lane.settle()
    assert isinstance(lane.core.error, TransactionTimedOut)
    assert "source partition p0" in str(lane.core.error)
    assert lane.server.open_labels() == []


def test_input_that_ends_inside_a_source_transaction_is_refused() -> None:
    lane = driver()
    lane.write_rows("p7", "orders", [[1]])
    with pytest.raises(InputError, match="p7"):
        lane.core.finish(0.0)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.NOT_SENT])
@pytest.mark.parametrize("operation", [Operation.BEGIN, Operation.LOAD])
def test_a_failed_begin_or_load_is_repeated_under_a_new_label(fault: Fault, operation: Operation) -> None:
    lane = driver(ModelServer(faults=plan_faults({(operation, 0): fault})))
    transaction(lane, "p0", 1, "orders", "items")
    lane.finish()
    (receipt,) = lane.core.receipts
    assert lane.server.tables == {"orders": [["p0", 1]], "items": [["p0", 1]]}
    assert receipt.label.endswith("_1")
    assert receipt.retries == 1
    assert lane.server.open_labels() == []


def test_without_kept_chunks_a_failed_load_fails_the_lane_and_leaves_nothing_open() -> None:
    lane = driver(ModelServer(faults=plan_faults({(Operation.LOAD, 1): Fault.REFUSED})), retry_buffer_bytes=1)
    transaction(lane, "p0", 1, "orders", "items")
    lane.finish()
    assert isinstance(lane.core.error, LoadFailed)
    assert lane.core.receipts == []
    assert lane.server.tables == {}
    assert lane.server.open_labels() == []


def test_attempts_are_bounded() -> None:
    lane = driver(ModelServer(faults=plan_faults({(Operation.LOAD, n): Fault.REFUSED for n in range(9)})))
    transaction(lane, "p0", 1, "orders")
    lane.finish()
    assert isinstance(lane.core.error, LoadFailed)
    assert operations(lane.server).count(Operation.BEGIN) == 3


def test_too_many_running_transactions_wait_their_turn_without_using_up_attempts() -> None:
    lane = driver(ModelServer(faults=plan_faults({(Operation.BEGIN, n): Fault.REFUSED for n in range(8)})))
    transaction(lane, "p0", 1, "orders")
    lane.finish()
    (receipt,) = lane.core.receipts
    assert receipt.retries == 8


def test_a_terminal_refusal_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "starrocks_txn_sink.protocol.label.refusals.load_error",
        lambda reply, label, table: ServerRefused(reply.message, label=label, table=table),
    )
    lane = driver(ModelServer(faults=plan_faults({(Operation.LOAD, 0): Fault.REFUSED})))
    transaction(lane, "p0", 1, "orders")
    lane.finish()
    assert isinstance(lane.core.error, ServerRefused)
    assert operations(lane.server).count(Operation.BEGIN) == 1


def test_a_refusal_is_the_cause_though_another_load_says_first_that_the_label_is_gone() -> None:
    gone, refused = LoadFailed("Transaction not exists"), ServerRefused("Failed to find table")
    for first, second, cause in ((gone, refused, refused), (refused, gone, refused), (gone, LoadFailed("busy"), gone)):
        lane = driver()
        transaction(lane, "p0", 1, "orders", "items")
        lane.core.finish(0.0)
        (begin,) = lane.core.tick(0.0)
        lane.core.complete(begin, None, 0.0)
        for load, error in zip(lane.core.tick(0.0), (first, second), strict=True):
            lane.core.complete(load, error, 0.0)
        assert lane.core.error is cause


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.LOST_BEFORE, Fault.LOST_AFTER])
def test_a_rollback_that_fails_does_not_hide_the_first_cause(fault: Fault) -> None:
    plan = {(Operation.LOAD, 0): Fault.REFUSED, **{(Operation.ROLLBACK, n): fault for n in range(9)}}
    lane = driver(ModelServer(faults=plan_faults(plan)), retry_buffer_bytes=1)
    transaction(lane, "p0", 1, "orders")
    lane.finish()
    assert type(lane.core.error) is LoadFailed
    assert "rollback" not in str(lane.core.error)
    assert Operation.ROLLBACK in operations(lane.server)


def test_an_unknown_outcome_ends_the_lane_and_is_never_repeated() -> None:
    lane = driver(ModelServer(faults=plan_faults({(Operation.LOAD_STATE, n): Fault.LOST_BEFORE for n in range(10**4)})))
    lane.perform = lane.perform.__class__(  # the server never says what became of it
        lane.perform.options, lane.server, lane.clock, lane.perform.deadline.earlier(30.0), lane.rng
    )
    transaction(lane, "p0", 1, "orders")
    lane.finish()
    assert isinstance(lane.core.error, OutcomeUnknown)
    assert operations(lane.server).count(Operation.BEGIN) == 1


def test_a_stop_rolls_back_what_is_open() -> None:
    lane = driver()
    transaction(lane, "p0", 1, "orders")
    lane.settle()
    lane.core.fail(DeadlineExceeded("stop"))
    lane.settle()
    assert lane.core.finished
    assert lane.server.open_labels() == []
    assert lane.server.tables == {}


def commits(lane: LaneDriver) -> bool:
    return lane.core.phase is Phase.COMMITTING


def test_a_stop_during_the_commit_waits_for_its_outcome() -> None:
    lane = driver()
    transaction(lane, "p0", 1, "orders")
    lane.core.finish(0.0)
    while not commits(lane):
        lane.waiting += lane.core.tick(0.0)
        if not commits(lane):
            lane.step()
    lane.core.fail(DeadlineExceeded("stop"))
    assert lane.core.finished is False
    lane.settle()
    assert (lane.core.finished, len(lane.core.receipts)) == (True, 1)
    assert isinstance(lane.core.error, DeadlineExceeded)


def test_the_phases_can_only_move_as_the_table_says() -> None:
    assert set(MOVES) == set(Phase)
    assert MOVES[Phase.FAILED] == frozenset()
    lane = driver()
    with pytest.raises(RuntimeError, match="cannot go from idle to committing"):
        lane.core._move(Phase.COMMITTING)


FAULTY = st.dictionaries(
    st.tuples(
        st.sampled_from([Operation.BEGIN, Operation.LOAD, Operation.COMMIT, Operation.ROLLBACK, Operation.LOAD_STATE]),
        st.integers(0, 8),
    ),
    st.sampled_from(list(Fault)),
    max_size=6,
)


@examples(300)
@given(
    faults=FAULTY,
    generation=st.sampled_from("BC"),
    seed=st.integers(0, 10**6),
    interval=st.sampled_from([None, 0.5]),
    sizes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30)), min_size=1, max_size=12),
    retry_buffer=st.sampled_from([0, 300, 100_000]),
)
def test_whatever_fails_nothing_is_torn_doubled_or_lost_silently(
    faults: dict[tuple[Operation, int], Fault],
    generation: str,
    seed: int,
    interval: float | None,
    sizes: list[tuple[str, int]],
    retry_buffer: int,
) -> None:
    server = ModelServer(generation, plan_faults(faults))
    lane = LaneDriver(server, small_limits(commit_interval=interval, retry_buffer_bytes=retry_buffer), seed)
    written = []
    for position, (partition, rows) in enumerate(sorted(sizes), start=1):
        for number in range(rows):
            lane.write_rows(partition, ["orders", "items"][number % 2], [[position, number]])
            lane.clock.advance(0.01)
            if number % 5 == seed % 5:
                lane.step()
            if lane.core.finished:
                break
        else:
            lane.end(partition, position)
            written.append((position, rows))
            continue
        break
    if not lane.core.finished:
        lane.finish()
    for label, task in server.tasks.items():
        server.publish(label)
        assert task.state != "BEGIN" or any(key[0] is Operation.ROLLBACK for key in faults)
    visible = sorted(tuple(row) for rows in server.tables.values() for row in rows)
    assert len(visible) == len(set(visible))  # not doubled
    counts = {position: sum(row[0] == position for row in visible) for position, _ in written}
    assert all(count in (0, rows) for (_, rows), count in zip(written, counts.values(), strict=True))  # not torn
    received = {row for receipt in lane.core.receipts for row in [receipt.rows]}
    if lane.core.error is None:
        assert len(visible) == sum(rows for _, rows in written)  # not lost
        assert sum(receipt.rows for receipt in lane.core.receipts) == len(visible)
    elif not isinstance(lane.core.error, OutcomeUnknown):
        assert sum(receipt.rows for receipt in lane.core.receipts) == len(visible), received
