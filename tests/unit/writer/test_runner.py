"""The lane's threads against the model server: real threads, real time, and no waiting without an end."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import orjson
import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.lane import Lane
from starrocks_txn_sink.coordinator.model import Action, BeginAction, CommitAction, PositionSpan, RegionRows, Segment
from starrocks_txn_sink.coordinator.ownership import Ownership, ReplayOwnership
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.errors import DeadlineExceeded, InputError, LoadFailed, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.label import Aborted, Unknown
from starrocks_txn_sink.protocol.ledger import Owner
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from starrocks_txn_sink.writer.runner import DaemonThreadPool, LaneRunner, Perform, Performer
from tests.support.lane_driver import LABEL, small_limits
from tests.support.manual_clock import ManualClock
from tests.support.model_server import Fault, ModelServer, plan_faults


@pytest.fixture
def pool() -> Iterator[DaemonThreadPool]:
    pool = DaemonThreadPool(5, "test-lane")
    yield pool
    pool.close()
    for thread in threading.enumerate():
        if thread.name.startswith("test-lane"):
            thread.join(5)
            assert not thread.is_alive()


def runner(
    server: ModelServer, pool: DaemonThreadPool, seconds: float = 30.0, perform: Perform | None = None, **limits: object
) -> LaneRunner:
    """The runner of a lane whose label the server has begun."""
    clock, rng = SystemClock(), random.Random(1)
    deadline = Deadline.after(seconds, clock)
    core = Lane("job", 0, LABEL, WriteBuffer(small_limits(**limits)), clock.wall)
    options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
    performer = Performer(options, server, clock, deadline, rng)
    performer(BeginAction(LABEL))
    return LaneRunner(core, perform or performer, pool, clock, deadline)


def loads(server: ModelServer) -> list[Request]:
    return [request for request in server.requests if request.operation is Operation.LOAD]


def segments(transactions: int, rows: int = 4) -> Iterator[Segment]:
    for position in range(1, transactions + 1):
        for number in range(rows):
            data = b"," + orjson.dumps([position, number])
            yield RegionRows("p0", ["orders", "items"][number % 2], memoryview(data), 1)
        yield PositionSpan("p0", position, position, 1)


def test_rows_arrive_in_order_under_the_label(pool: DaemonThreadPool) -> None:
    server = ModelServer()
    lane = runner(server, pool, buffer_bytes=2_000)
    receipt = lane.run(segments(2_000))
    assert receipt is not None
    assert (receipt.rows, receipt.label) == (8_000, LABEL)
    assert server.commits == []
    lane.perform(CommitAction(LABEL))
    assert server.tables["orders"] == [[p, n] for p in range(1, 2_001) for n in (0, 2)]
    assert server.tables["items"] == [[p, n] for p in range(1, 2_001) for n in (1, 3)]


def test_a_thread_that_has_loaded_a_table_goes_on_with_the_next_one(
    pool: DaemonThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []
    submit = pool.submit

    def counting(job: Callable[[], None]) -> None:
        submitted.append(job)
        submit(job)

    monkeypatch.setattr(pool, "submit", counting)

    def rows() -> Iterator[Segment]:
        for number in range(100):
            yield RegionRows("p0", f"t{number}", memoryview(b',{"n":1}'), 1)
        yield PositionSpan("p0", 1, 1, 1)

    receipt = runner(ModelServer(), pool, load_parallelism=3).run(rows())
    assert receipt is not None
    assert receipt.loads == 100
    assert len(submitted) < 10  # the loads that run at the same time


def test_nothing_keeps_a_lane_that_has_ended(pool: DaemonThreadPool) -> None:
    """No circle of objects, which would be there until a collection, and no waiting thread."""
    gone = threading.Event()
    gc.collect()
    gc.disable()
    try:
        lane = runner(ModelServer(), pool)
        assert isinstance(lane.perform, Performer)
        weakref.finalize(lane.perform.rng, gone.set)
        assert lane.run(segments(3)) is not None
        del lane
        assert gone.wait(10)
    finally:
        gc.enable()


def test_a_lane_without_rows_has_no_receipt(pool: DaemonThreadPool) -> None:
    assert runner(ModelServer(), pool).run([]) is None


def test_a_failed_load_ends_the_lane_and_is_not_repeated(pool: DaemonThreadPool) -> None:
    server = ModelServer(faults=plan_faults({(Operation.LOAD, 0): Fault.REFUSED}))
    with pytest.raises(LoadFailed, match="no room"):
        runner(server, pool, load_parallelism=1).run(segments(3))
    assert len(loads(server)) == 1


def test_what_the_input_raises_comes_through_untouched_and_no_load_follows(pool: DaemonThreadPool) -> None:
    server = ModelServer()
    stop = KeyboardInterrupt("stop")

    def stopped() -> Iterator[Segment]:
        yield from segments(2)
        raise stop

    lane = runner(server, pool)
    with pytest.raises(KeyboardInterrupt) as failure:
        lane.run(stopped())
    assert failure.value is stop
    count = len(loads(server))
    assert not lane.core.tick(time.monotonic() + 100)
    assert len(loads(server)) == count


def test_a_name_too_long_for_the_ledger_is_refused_before_anything_is_visible(pool: DaemonThreadPool) -> None:
    server = ModelServer()
    longest, beyond = "ü" * 512, "p" * 1025

    def rows() -> Iterator[Segment]:
        for partition in (longest, beyond):
            yield RegionRows(partition, "orders", memoryview(b',{"n":1}'), 1)
            yield PositionSpan(partition, 1, 1, 1)

    with pytest.raises(InputError, match=r"The name of source partition p{60}… has 1025 bytes\."):
        runner(server, pool).run(rows())
    assert server.tables == {}


def test_a_thread_that_hangs_cannot_keep_the_deadline_from_firing(pool: DaemonThreadPool) -> None:
    release = threading.Event()

    def hang(action: Action) -> None:
        del action
        release.wait(60)

    lane = runner(ModelServer(), pool, seconds=0.3, perform=hang)
    lane.grace_seconds = 0.2
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=f"loads into items, orders under label {LABEL}"):
        lane.run(segments(1))
    assert time.monotonic() - started < 20
    release.set()


def test_a_bug_in_a_thread_ends_the_lane_at_once(pool: DaemonThreadPool) -> None:
    def broken(action: Action) -> None:
        raise ZeroDivisionError(action)

    started = time.monotonic()
    with pytest.raises(StarRocksSinkError, match="ZeroDivisionError"):
        runner(ModelServer(), pool, perform=broken).run(segments(1))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", [Ownership, ReplayOwnership, None])
def test_aborted_after_a_lost_commit_is_no_proof_for_a_writer_that_has_a_ledger(kind: type[Ownership] | None) -> None:
    """Wire contract 10.5: after a change of the leader a frontend says ABORTED of a label that is visible."""

    class ChangedLeader(ModelServer):
        def execute(self, request: Request, fault: Fault | None = None) -> Reply:
            if request.operation is Operation.LOAD_STATE:
                return Reply(Status.OK, state=LabelState.ABORTED)
            return super().execute(request, fault)

    server, clock = ChangedLeader(faults=plan_faults({(Operation.COMMIT, 0): Fault.LOST_AFTER})), ManualClock()
    ownership = kind("job", "shop", Owner("t", "e", "c"), lambda: "u", str) if kind is not None else None
    options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
    performer = Performer(options, server, clock, Deadline.after(60, clock), random.Random(1), ownership=ownership)
    performer(BeginAction(LABEL))
    assert type(performer(CommitAction(LABEL))) is (Aborted if kind is None else Unknown)
