"""A lane: its rows reach the label that the driver has begun, once and in order, and any failure is final."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.lane import MOVES, Phase
from starrocks_txn_sink.coordinator.model import LoadAction, RegionRows
from starrocks_txn_sink.errors import (
    BeginFailed,
    DeadlineExceeded,
    InputError,
    LoadFailed,
    ServerRefused,
    TransactionTimedOut,
)
from starrocks_txn_sink.protocol.label import Begun, Loaded
from starrocks_txn_sink.protocol.wire import Operation
from tests.support.depth import examples
from tests.support.lane_driver import LABEL, LaneDriver, small_limits
from tests.support.model_server import Fault, ModelServer, plan_faults


def driver(server: ModelServer | None = None, **limits: object) -> LaneDriver:
    return LaneDriver(server or ModelServer(), small_limits(**limits))


def transaction(lane: LaneDriver, partition: str, position: int, *tables: str) -> None:
    for table in tables:
        lane.write_rows(partition, table, [[partition, position]])
    lane.end(partition, position)


def operations(server: ModelServer) -> list[Operation]:
    return [request.operation for request in server.requests]


def test_many_source_transactions_share_one_load_a_table() -> None:
    lane = driver()
    for position in range(1, 11):
        transaction(lane, "p0", position, "orders", "items")
        transaction(lane, "p1", position, "orders")
        lane.settle()
    lane.finish()
    receipt = lane.core.receipt
    assert receipt is not None
    assert operations(lane.server).count(Operation.LOAD) == receipt.loads == 2
    assert receipt.source_transactions == 20
    assert receipt.tables == {"orders": 20, "items": 10}
    assert [(span.partition, span.first, span.last) for span in receipt.positions] == [("p0", 1, 10), ("p1", 1, 10)]
    assert lane.core.buffer.buffered_bytes == 0
    lane.commit()
    assert len(lane.server.tables["orders"]) == 20


def test_a_receipt_says_whose_it_is() -> None:
    lane = driver()
    transaction(lane, "p0", 1, "orders")
    lane.clock.advance(3)
    lane.core.finish(lane.clock.monotonic())
    lane.settle()
    receipt = lane.core.receipt
    assert receipt is not None
    assert (receipt.job, receipt.batch_id, receipt.label) == ("job", 0, LABEL)
    assert receipt.txn_id == lane.server.tasks[LABEL].txn_id
    assert (receipt.attempts, receipt.retries, receipt.loads, receipt.recycled) == (1, 0, 1, False)
    assert receipt.committed_at == lane.clock.wall()
    assert [(region.partition, region.table, region.rows) for region in receipt.regions] == [("p0", "orders", 1)]


def test_a_lane_under_a_driver_s_label_only_loads() -> None:
    lane = driver(ModelServer(faults=plan_faults({(Operation.LOAD, 1): Fault.REFUSED})))
    transaction(lane, "p0", 1, "orders", "items")
    lane.finish()
    assert isinstance(lane.core.error, LoadFailed)
    assert set(operations(lane.server)) == {Operation.BEGIN, Operation.LOAD}
    assert operations(lane.server).count(Operation.BEGIN) == 1  # by the test


def test_no_rows_no_load() -> None:
    lane = driver()
    lane.finish()
    assert operations(lane.server) == [Operation.BEGIN]
    assert (lane.core.phase, lane.core.receipt) == (Phase.DONE, None)


def beginning(server: ModelServer | None = None) -> LaneDriver:
    """A lane that begins its label, after an hour of reading: far longer than the label's timeout."""
    lane = LaneDriver(server or ModelServer(), small_limits(), lane_begins=True)
    lane.clock.advance(3600)
    transaction(lane, "p0", 1, "orders", "items")
    return lane


def test_a_lane_that_reads_for_long_begins_the_label_with_its_first_loads() -> None:
    lane = beginning()
    lane.settle()
    assert operations(lane.server) == []  # rows wait for a load that is worth its request
    lane.clock.advance(3600)
    lane.finish()
    assert operations(lane.server) == [Operation.BEGIN, Operation.LOAD, Operation.LOAD]
    receipt = lane.core.receipt
    assert receipt is not None
    assert (receipt.loads, receipt.tables, lane.core.buffer.buffered_bytes) == (2, {"orders": 1, "items": 1}, 0)
    lane.commit()
    assert len(lane.server.tables["orders"]) == 1


def test_a_label_that_a_lane_has_begun_ages_from_then_on() -> None:
    lane = beginning()
    lane.core.finish(lane.clock.monotonic())
    (begin,) = lane.core.tick(lane.clock.monotonic())
    assert lane.core.tick(lane.clock.monotonic()) == []  # its loads wait
    lane.core.complete(begin, lane.perform(begin))
    assert len(lane.core.tick(lane.clock.monotonic())) == 2
    lane.clock.advance(600)
    lane.core.tick(lane.clock.monotonic())
    assert "reached its timeout of 600 s during the load into items, orders" in str(lane.core.error)


@pytest.mark.parametrize(("age", "fails"), [(0.0, False), (590.0, False), (600.0, True), (1e6, True)])
def test_a_label_that_another_lane_has_begun_is_as_old_as_that_lane_made_it(age: float, fails: bool) -> None:
    lane = beginning()
    lane.core.finish(lane.clock.monotonic())
    (begin,) = lane.core.tick(lane.clock.monotonic())
    assert lane.core.waiting_for == f"the begin of label {lane.core.label}"
    lane.clock.advance(3600)  # while the other one begins it
    lane.core.complete(begin, Begun(age))
    loads = lane.core.tick(lane.clock.monotonic())
    assert (len(loads), lane.core.error is not None) == ((0, True) if fails else (2, False))
    if fails:
        assert (lane.core.phase, lane.core.buffer.buffered_bytes) == (Phase.FAILED, 0)
    else:
        lane.clock.advance(600 - age)
        lane.core.tick(lane.clock.monotonic())
        assert "reached its timeout of 600 s during the load" in str(lane.core.error)


def test_a_lane_that_cannot_begin_its_label_loads_nothing() -> None:
    lane = beginning(ModelServer(faults=plan_faults({(Operation.BEGIN, 0): Fault.NOT_SENT})))
    lane.finish()
    assert isinstance(lane.core.error, BeginFailed)
    assert operations(lane.server) == [Operation.BEGIN]
    assert (lane.core.phase, lane.core.buffer.buffered_bytes) == (Phase.FAILED, 0)


def test_a_lane_that_gives_up_while_it_begins_its_label_loads_nothing() -> None:
    lane = beginning()
    lane.core.finish(lane.clock.monotonic())
    (begin,) = lane.core.tick(lane.clock.monotonic())
    lane.core.fail(DeadlineExceeded("over"))
    assert not lane.core.finished  # its begin runs
    lane.core.complete(begin, lane.perform(begin))
    assert (lane.core.phase, lane.core.buffer.buffered_bytes) == (Phase.FAILED, 0)
    assert operations(lane.server) == [Operation.BEGIN]


def test_a_lane_without_rows_begins_no_label() -> None:
    lane = LaneDriver(ModelServer(), small_limits(), lane_begins=True)
    lane.finish()
    assert operations(lane.server) == []
    assert (lane.core.phase, lane.core.receipt) == (Phase.DONE, None)


def test_one_load_per_table_at_a_time() -> None:
    lane = driver(load_bytes=1)
    transaction(lane, "p0", 1, "orders")
    lane.settle()
    lane.clock.advance(1)
    transaction(lane, "p0", 2, "orders", "items")
    first = lane.loads(lane.clock.monotonic())
    assert sorted(action.table for action in first) == ["items", "orders"]
    lane.clock.advance(1)
    transaction(lane, "p0", 3, "orders", "items")
    assert lane.loads(lane.clock.monotonic()) == []


def test_load_parallelism_bounds_the_loads_under_way() -> None:
    lane = driver(load_bytes=1, load_parallelism=2)
    transaction(lane, "p0", 1, "a", "b", "c")
    assert len(lane.loads(lane.clock.monotonic())) == 2


def test_a_huge_source_transaction_flows_through_a_small_buffer() -> None:
    lane = driver(buffer_bytes=5_000, chunk_bytes=1_000)
    highest = 0
    for number in range(2_000):
        lane.write_rows("p0", f"t{number % 7}", [["x" * 50, number]])
        highest = max(highest, lane.core.buffer.buffered_bytes)
    lane.end("p0", 1)
    lane.finish()
    lane.commit()
    assert sum(map(len, lane.server.tables.values())) == 2_000
    assert highest <= 5_000 + 100


def test_many_small_regions_cannot_fill_the_buffer_for_good() -> None:
    lane = driver(buffer_bytes=2_000, chunk_bytes=1_999)
    for number in range(300):
        lane.write_rows("p0", f"t{number % 100}", [["x" * 40]])
    lane.end("p0", 1)
    lane.finish()
    lane.commit()
    assert sum(map(len, lane.server.tables.values())) == 300


def test_a_full_buffer_sends_the_largest_regions_away_until_half_of_it_is_frozen() -> None:
    lane = driver(buffer_bytes=100, load_bytes=1)
    for table, size in (("a", 10), ("b", 30), ("c", 25), ("d", 35)):
        lane.core.take(RegionRows("p", table, memoryview(b"x" * size), 1), 0.0)
    assert [(load.table, load.bytes) for load in lane.loads()] == [("d", 35), ("b", 30)]


def test_full_buffers_send_what_is_too_little_for_a_load_otherwise() -> None:
    lane = driver(buffer_bytes=100, load_bytes=1_000)
    lane.core.take(RegionRows("p", "a", memoryview(b"x" * 99), 1), 0.0)
    assert lane.loads() == []
    lane.core.take(RegionRows("p", "a", memoryview(b"x"), 1), 0.0)
    assert [(load.table, load.bytes) for load in lane.loads()] == [("a", 100)]


def test_input_that_ends_inside_a_source_transaction_is_refused() -> None:
    lane = driver()
    lane.write_rows("p7", "orders", [[1]])
    with pytest.raises(InputError, match="p7"):
        lane.core.finish(0.0)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.NOT_SENT])
def test_a_failed_load_is_final_and_no_other_load_follows(fault: Fault) -> None:
    lane = driver(ModelServer(faults=plan_faults({(Operation.LOAD, 0): fault})), load_parallelism=1)
    transaction(lane, "p0", 1, "orders", "items")
    lane.finish()
    assert lane.core.phase is Phase.FAILED
    assert lane.core.error is not None
    assert lane.core.receipt is None
    assert operations(lane.server).count(Operation.LOAD) == 1


def test_a_failed_lane_ends_when_its_last_load_has_ended() -> None:
    """Until then rows and connection are in use."""
    lane = driver()
    transaction(lane, "p0", 1, "orders", "items")
    lane.core.finish(0.0)
    first, second = lane.core.tick(0.0)
    lane.core.complete(first, LoadFailed("no"))
    assert not lane.core.finished
    assert lane.core.tick(1.0) == []
    lane.core.complete(second, Loaded(1, 0))
    assert lane.core.phase is Phase.FAILED
    assert lane.core.buffer.buffered_bytes == 0


def test_a_refusal_is_the_cause_though_another_load_says_first_that_the_label_is_gone() -> None:
    vanished, refused = LoadFailed("Transaction not exists"), ServerRefused("Failed to find table")
    for first, second, cause in (
        (vanished, refused, refused),
        (refused, vanished, refused),
        (vanished, LoadFailed("busy"), vanished),
    ):
        lane = driver()
        transaction(lane, "p0", 1, "orders", "items")
        lane.core.finish(0.0)
        for load, error in zip(lane.core.tick(0.0), (first, second), strict=True):
            lane.core.complete(load, error)
        assert lane.core.error is cause


def test_a_stop_ends_the_lane_and_the_first_error_counts() -> None:
    lane, stop = driver(), DeadlineExceeded("stop")
    transaction(lane, "p0", 1, "orders")
    lane.core.finish(0.0)
    (load,) = lane.core.tick(0.0)
    lane.core.fail(stop)
    lane.core.fail(DeadlineExceeded("a later one"))
    assert not lane.core.finished
    lane.core.complete(load, Loaded(1, 0))
    lane.core.fail(DeadlineExceeded("too late"))
    assert (lane.core.phase, lane.core.error) == (Phase.FAILED, stop)


def test_a_stop_after_the_last_load_changes_nothing() -> None:
    lane = driver()
    transaction(lane, "p0", 1, "orders")
    lane.finish()
    lane.core.fail(DeadlineExceeded("stop"))
    assert (lane.core.phase, lane.core.error) == (Phase.DONE, None)


def test_retries_and_the_servers_number_come_from_the_loads() -> None:
    lane = driver(load_bytes=4, chunk_bytes=4)
    lane.core.take(RegionRows("p", "a", memoryview(b",xxx"), 1), 0.0)
    (load,) = lane.core.tick(0.0)
    lane.core.complete(load, Loaded(7, 2))
    lane.core.take(RegionRows("p", "a", memoryview(b",xxx"), 1), 0.0)
    lane.end("p", 1)
    lane.core.finish(0.0)
    (load,) = lane.core.tick(0.0)
    lane.core.complete(load, Loaded(None, 1))
    lane.core.tick(0.0)
    receipt = lane.core.receipt
    assert receipt is not None
    assert (receipt.txn_id, receipt.loads, receipt.retries) == (7, 2, 3)


# --- the timeout ---


def test_rows_that_outlive_the_timeout_are_an_error_that_names_label_and_open_source_transaction() -> None:
    lane = driver(timeout=100.0)
    lane.write_rows("p0", "orders", [[1]])
    lane.settle()
    lane.clock.advance(99)
    lane.settle()
    early = lane.core.error
    lane.clock.advance(1)
    lane.settle()
    error = lane.core.error
    assert early is None
    assert isinstance(error, TransactionTimedOut)
    assert error.context == {"label": LABEL}
    assert "source partition p0 is still inside one source transaction" in error.message
    assert lane.core.phase is Phase.FAILED


def test_loads_that_lasted_until_the_timeout_are_named() -> None:
    lane = driver()
    transaction(lane, "p", 1, "a", "b")
    lane.core.finish(0.0)
    loads = lane.core.tick(0.0)
    assert lane.core.tick(700.0) == []
    error = lane.core.error
    assert isinstance(error, LoadFailed)
    assert "during the load into a, b" in error.message
    for load in loads:
        assert not lane.core.finished
        lane.core.complete(load, LoadFailed("the label has ended"))
    assert (lane.core.phase, lane.core.error) == (Phase.FAILED, error)


@pytest.mark.parametrize("seconds", [299.0, 301.0])
def test_a_slow_load_inside_a_source_transaction_is_the_cause_if_it_took_most_of_the_time(seconds: float) -> None:
    lane = driver()
    lane.core.take(RegionRows("p", "a", memoryview(b"x" * 10), 1), 0.0)
    assert lane.core.tick(0.0) == []  # from here on the time counts
    lane.core.take(RegionRows("p", "a", memoryview(b"x" * 2000), 1), 600.0 - seconds)
    (load,) = lane.core.tick(600.0 - seconds)
    assert isinstance(load, LoadAction)
    assert lane.core.tick(600.0) == []
    assert isinstance(lane.core.error, LoadFailed if seconds > 300 else TransactionTimedOut)


# --- the phases ---


def test_the_phases_can_only_move_as_the_table_says() -> None:
    assert set(MOVES) == set(Phase)
    assert MOVES[Phase.FAILED] == MOVES[Phase.DONE] == frozenset()
    lane = driver()
    lane.finish()
    with pytest.raises(RuntimeError, match="cannot go from done to loading"):
        lane.core._move(Phase.LOADING)


FAULTY = st.dictionaries(
    st.tuples(st.just(Operation.LOAD), st.integers(0, 8)),
    st.sampled_from([Fault.REFUSED, Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.NOT_SENT, Fault.BUSY]),
    max_size=3,
)


@examples(300)
@given(
    faults=FAULTY,
    generation=st.sampled_from("BC"),
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30)), min_size=1, max_size=12),
    buffer_bytes=st.sampled_from([100, 500, 10_000]),
)
def test_a_lane_that_is_done_has_loaded_every_row_once_and_in_order(
    faults: dict[tuple[Operation, int], Fault],
    generation: str,
    seed: int,
    sizes: list[tuple[str, int]],
    buffer_bytes: int,
) -> None:
    server = ModelServer(generation, plan_faults(faults))
    lane = LaneDriver(server, small_limits(buffer_bytes=buffer_bytes, load_bytes=50, chunk_bytes=80), seed)
    loaded: dict[str, list[list[int]]] = {}
    for position, (partition, rows) in enumerate(sorted(sizes), start=1):
        for number in range(rows):
            if not lane.core.finished:
                table = ["orders", "items"][number % 2]
                lane.write_rows(partition, table, [[position, number]])
                loaded.setdefault(table, []).append([position, number])
                lane.clock.advance(0.01)
                if number % 5 == seed % 5:
                    lane.step()
        lane.end(partition, position)
    if not lane.core.finished:
        lane.finish()
    if lane.core.error is not None:
        assert lane.core.receipt is None
        return
    lane.commit()
    for table, rows_of in loaded.items():
        for partition in "ab":  # source partitions have no order among each other
            positions = {position for position, (name, _) in enumerate(sorted(sizes), start=1) if name == partition}
            rows_read = [row for row in server.tables[table] if row[0] in positions]
            assert rows_read == [row for row in rows_of if row[0] in positions]
    assert lane.core.receipt is not None
    assert lane.core.receipt.rows == sum(map(len, loaded.values()))
