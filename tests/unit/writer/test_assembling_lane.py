"""The lane that assembles, without Spark: which order it takes, and in which pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.coordinator import LanesResult, judge
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.errors import DeadlineExceeded, TransactionTimedOut, Unordered
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.sources.kafka import ranges
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.lane_try import LaneTry, SparkLane, in_time
from starrocks_txn_sink.writer.messages import CarryOver, LaneReport, Message, OrderViolation, decode, encode, of_kind
from starrocks_txn_sink.writer.pipe import ArrivingRows
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import RESOURCES, Attempt
from tests.support.manual_clock import ManualClock
from tests.support.memory_directory import MemoryDirectory

IN_JSON = TxnEventLines(source_partition=None, position=None)
OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")


def event(partition: str, position: int, kind: str, row: str = "{}") -> dict[str, Any]:
    fields = {"source_partition": partition, "position": position, "type": kind, "txn_id": "t"}
    return fields | ({"table": "items", "row": row} if kind == "DATA" else {})


def whole(partition: str, first: int = 1, row: str = "{}") -> list[dict[str, Any]]:
    """A source transaction of two rows."""
    kinds = ("BEGIN", "DATA", "DATA", "END")
    return [event(partition, position, kind, row) for position, kind in enumerate(kinds, first)]


def values(events: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """A lane's input."""
    count = len(events)
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": pa.nulls(count, pa.string()),
            "position": pa.nulls(count, pa.int64()),
            "value": pa.array([orjson.dumps(event).decode() for event in events]),
        }
    )


def run(
    batches: list[pa.RecordBatch], small_rows: int = SMALL_ROWS, lines: TxnEventLines = IN_JSON
) -> tuple[list[tuple[str, int]], CarryOver]:
    """(source partition, position) of each row that goes on, and what is carried."""
    assembly = AssemblySpec(
        IncrementalAssembler,
        Policy(),
        PayloadEncoder("shop"),
        0.0,
        MemoryDirectory(),
        "000001-e-0",
        lines=lines,
        small_rows=small_rows,
    )
    lane = assembly.open(Attempt(0, 0, False))
    rows = [
        row
        for batch in lane(batches)
        for row in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    ]
    try:
        return rows, lane.carry_over()
    finally:
        lane.close()


def test_no_two_attempts_at_a_lane_write_files_of_one_name() -> None:
    """An attempt that was given up may still write while the one that counts is read."""
    assembly = AssemblySpec(
        IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "000001-e-0", lines=IN_JSON
    )
    names: list[str] = []
    for lane, number in ((0, 1), (0, 2), (1, 1)):
        attempt = assembly.open(Attempt(lane, number, False))
        assert list(attempt([values(whole("p")[:3])])) == []
        carried = attempt.carry_over()
        attempt.close()
        files = {place.file for partition in carried.partitions.values() for place in partition.places.values()}
        assert files
        names += files
    assert len(set(names)) == len(names)


def test_a_lane_names_every_source_partition_that_it_has_met() -> None:
    """Also those of which no row is released: two tasks with events of one partition must not be committed."""
    assembly = AssemblySpec(
        IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s", lines=IN_JSON
    )
    lane = assembly.open(Attempt(0, 0, False))
    open_only = whole("open")[:3]
    rows = [row for batch in lane([values([*whole("a"), *open_only])]) for row in batch.column(0).to_pylist()]
    shares = [lane.share(LaneShare(partitions=partitions)) for partitions in ((), ("a",), ("b",))]
    lane.close()
    assert rows == ["a", "a"]
    assert [share.partitions for share in of_kind(shares, LaneShare)] == [("a", "open")] * 2 + [("a", "b", "open")]
    second = LaneShare(partitions=("open",))
    (first,) = of_kind(shares[:1], LaneShare)
    assert judge(LanesResult([first, second]), may_sort=True) == "Source partition open came in two tasks."


def test_few_events_may_come_in_any_order() -> None:
    later, earlier = values([*whole("b"), *whole("a", 5)]), values(whole("a"))
    rows, carry = run([later, earlier])
    assert rows == [("a", 4), ("a", 4), ("a", 8), ("a", 8), ("b", 4), ("b", 4)]
    assert carry.small


def test_values_that_are_no_events_are_counted_where_they_are_dropped() -> None:
    good = values(whole("a"))
    bad = good.set_column(2, "value", pa.array([None, "{", "[]", '{"position": "x"}']))
    dropping = TxnEventLines(source_partition=None, position=None, on_malformed="drop")
    rows, carry = run([bad, good, bad.slice(1, 2)], lines=dropping)
    assert (len(rows), carry.malformed) == (2, 6)
    assert decode(encode(carry)) == carry


def test_many_events_may_not() -> None:
    with pytest.raises(Unordered, match="1 came after 8"):
        run([values(whole("a", 5)), values(whole("a"))], small_rows=4)
    rows, carry = run([values(whole("a")), values(whole("a", 5))], small_rows=4)
    assert (len(rows), carry.small) == (4, False)


def test_large_events_are_taken_in_pieces_and_none_is_lost() -> None:
    events = [event for first in range(1, 25, 4) for event in whole("a", first, f'"{"x" * (4 << 20)}"')]
    rows, carry = run([values(events)])
    assert [position for _, position in rows] == [last for last in range(4, 25, 4) for _ in range(2)]
    assert not carry.small


def test_nothing_at_all_is_nothing() -> None:
    rows, carry = run([])
    assert (rows, carry.partitions, carry.small) == ([], {}, True)


@pytest.mark.parametrize("sortable", [True, False])
@pytest.mark.parametrize("assembles", [True, False])
def test_a_micro_batch_that_outlives_the_timeout_is_sorted_where_that_is_allowed(
    sortable: bool, assembles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorted, it is committed in rounds; in arrival order it would meet the timeout again after each restart."""

    def outlive(*_: object) -> list[Message]:
        raise TransactionTimedOut("too long")

    monkeypatch.setattr(LaneTry, "_write", outlive)
    shuffle = "auto" if sortable else False
    options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once", shuffle=shuffle)
    lane = LaneTask(options, "job", "e", "c", 0)
    rules = IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "000001-e-0"
    task = (
        SparkLane(lane, AssemblySpec(*rules, lines=IN_JSON, sortable=sortable))
        if assembles
        else SparkLane(lane, ArrivingRows(may_sort=sortable))
    )
    (batch,) = task(iter(()))
    (message,) = (decode(text) for text in batch.column(0).to_pylist())
    if sortable:
        assert message == OrderViolation("too long")
    else:
        assert isinstance(message, LaneReport)
        assert isinstance(message.lane_error(), TransactionTimedOut)


def test_a_lane_that_reads_kafka_reads_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[Deadline] = []

    def read(_: OffsetRanges, deadline: Deadline) -> Iterator[pa.RecordBatch]:
        deadlines.append(deadline)
        yield from ()

    monkeypatch.setattr(ranges, "read_values", read)
    options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
    lane = LaneTask(options, "job", "e", "c", 0, seconds=7.0)
    rules = IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "000001-e-0"
    part = OffsetRanges({("t", 0): (0, 1)}, 120.0, {})
    list(SparkLane(lane, AssemblySpec(*rules, lines=TxnEventLines(), ranges=[part]))(iter(())))
    RESOURCES.close()
    assert 0 < deadlines[0].remaining() <= 7.0


def test_a_lane_that_fails_gives_its_consumer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the error, and the frames in its traceback, are still there."""
    ended: list[bool] = []

    def read(*_: object) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield values([event("a", 1, "DATA")])
        finally:
            ended.append(True)

    monkeypatch.setattr(ranges, "read_values", read)
    rules = IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "000001-e-0"
    part = OffsetRanges({("t", 0): (0, 1)}, 120.0, {})
    opened = AssemblySpec(*rules, lines=TxnEventLines(), ranges=[part]).open(Attempt(0, 0, False))
    rows = opened.read(iter(()), Deadline.after(7.0, ManualClock()))
    next(rows)
    assert not ended
    opened.close()
    assert ended


def test_rows_that_come_after_the_deadline_end_the_lane() -> None:
    """However slowly a source delivers them, and also before a request could meet the deadline."""
    clock, rows = ManualClock(), values(whole("a"))

    def slow() -> Iterator[pa.RecordBatch]:
        for _ in range(9):
            clock.advance(3.0)
            yield rows

    pieces = in_time(slow(), Deadline.after(7.0, clock))
    assert [next(pieces), next(pieces)] == [rows, rows]
    with pytest.raises(DeadlineExceeded, match="passed while the lane read its rows"):
        next(pieces)
