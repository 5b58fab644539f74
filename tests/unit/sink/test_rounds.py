"""Rounds: a micro-batch of lanes that read Kafka becomes several StarRocks transactions, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import RECYCLE_AT, Receipt
from starrocks_txn_sink.errors import NotSent
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.events_writer import run_rounds
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, spread
from starrocks_txn_sink.sources.kafka.spark_reader import PlannedRanges
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.messages import CarryOver, LaneReport, Message, decode, encode, of_kind
from starrocks_txn_sink.writer.task import JobOwnership, LaneTask
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.depth import examples
from tests.support.manual_clock import ManualClock
from tests.support.memory_directory import MemoryDirectory

OPTIONS = SinkOptions(load_url="fe", database="shop", delivery="at-least-once")
TASK = LaneTask(OPTIONS, "job", "e1", "c1", 7, label="L")
Row = tuple[str, int, str]


@dataclass
class Counter:
    """Spark's counter of the source's rows."""

    rows: int = 0

    def set(self, rows: int) -> None:
        self.rows = rows


@dataclass
class Topic:
    """A topic's logs: for each partition the lengths of its source transactions; the last one may have no END."""

    lengths: list[list[int]]
    open_last: bool
    piece: int
    clock: ManualClock = field(default_factory=ManualClock)

    def values(self, partition: int) -> list[bytes]:
        made: list[bytes] = []
        for number, length in enumerate(self.lengths[partition]):
            kinds = ["BEGIN", *["DATA"] * length, "END"]
            if self.open_last and number == len(self.lengths[partition]) - 1:
                kinds.pop()
            for kind in kinds:
                event = {"type": kind, "txn_id": str(number)}
                if kind == "DATA":
                    event |= {"table": "items", "op": "insert", "row": f'{{"n":{len(made)}}}'}
                made.append(orjson.dumps(event))
        return made

    def ranges(self) -> dict[tuple[str, int], tuple[int, int]]:
        ends = {("topic", number): len(self.values(number)) for number in range(len(self.lengths))}
        return {partition: (0, end) for partition, end in ends.items() if end}

    def read(self, lane: OffsetRanges) -> Iterator[pa.RecordBatch]:
        """The lane's values in pieces, partition after partition; each piece takes a second."""
        for (_, number), (start, end) in lane.ranges.items():
            values = self.values(number)[start:end]
            for low in range(0, len(values), self.piece):
                self.clock.sleep(1.0)
                part = values[low : low + self.piece]
                yield pa.RecordBatch.from_pydict(
                    {
                        "source_partition": pa.array([str(number)] * len(part)),
                        "position": pa.array(range(start + low, start + low + len(part)), pa.int64()),
                        "value": pa.array(part),
                    }
                )


def written(topic: Topic, lanes: int, seconds: float) -> tuple[list[list[Row]], CarryOver, int]:
    """The rows of each round whose lanes stop after `seconds`, what is carried in the end, and Spark's count."""
    rounds: list[list[Row]] = []
    count = Counter()

    def run_round(_: LaneTask, spec: AssemblySpec) -> list[Message]:
        rounds.append([])
        messages: list[Message] = []
        for number, lane in enumerate(spec.ranges):
            attempt = Attempt(number, 100 * len(rounds) + number, False)
            assembler = spec.open(attempt, Deadline.after(seconds, topic.clock))
            for batch in assembler.rows(topic.read(lane)):
                rounds[-1] += zip(
                    *(batch[name].to_pylist() for name in ("source_partition", "position", "payload")), strict=True
                )
            messages += [decode(encode(assembler.carry_over())), LaneReport("job", number, 7)]
            assembler.close()
        return messages

    parts = [OffsetRanges(group, 1.0, {}) for group in spread(topic.ranges(), lanes)]
    spec = AssemblySpec(
        Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "000001-e-7", lines=TxnEventLines(), small_rows=0
    )
    collected: list[Message] = []
    messages = run_rounds(run_round, TASK, replace(spec, sentinel=False), PlannedRanges(parts, count), collected.extend)
    (carried,) = of_kind(messages, CarryOver)
    assert len(of_kind([*collected, *messages], LaneReport)) >= len(rounds)
    return rounds, carried, count.rows


def by_partition(rounds: list[list[Row]]) -> Mapping[str, list[Row]]:
    rows = [row for of_round in rounds for row in of_round]
    return {name: [row for row in rows if row[0] == name] for name in {row[0] for row in rows}}


@given(
    lengths=st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=1, max_size=4),
    open_last=st.booleans(),
    piece=st.integers(1, 7),
    lanes=st.integers(1, 3),
    seconds=st.integers(0, 5),
)
@examples(60)
def test_rounds_write_the_rows_of_one_round(
    lengths: list[list[int]], open_last: bool, piece: int, lanes: int, seconds: int
) -> None:
    """The same rows in the same order, whole source transactions in each round, and the same open state at the end."""
    topic = Topic(lengths, open_last, piece)
    if not topic.ranges():
        return
    (whole,), carried, count = written(topic, lanes, 1e9)
    rounds, left, again = written(topic, lanes, seconds)
    assert by_partition(rounds) == by_partition([whole])
    ends = {(row[0], row[1]) for row in whole}
    for of_round in rounds:
        for name, position in {(row[0], row[1]) for row in of_round}:
            expected = [row for row in whole if row[:2] == (name, position)]
            assert [row for row in of_round if row[:2] == (name, position)] == expected
            assert (name, position) in ends
    assert count == again == sum(len(topic.values(number)) for number in range(len(lengths)))
    assert left.flows == carried.flows
    states = ({name: each.state for name, each in one.partitions.items()} for one in (carried, left))
    first, second = ({name: (state.last_position, len(state.open)) for name, state in one.items()} for one in states)
    assert first == second


def test_a_round_takes_at_least_one_piece_of_each_lane() -> None:
    """A lane whose clock is ahead of the driver's would otherwise never end."""
    rounds, _, _ = written(Topic([[1, 1, 1]], False, 3), 1, 0.0)
    assert [len(rows) for rows in rounds] == [1, 1, 1]


def test_the_next_round_knows_what_was_left_out_before() -> None:
    skip, tasks = Skip(9, False), list[LaneTask]()

    def run_round(task: LaneTask, _: AssemblySpec) -> list[Message]:
        tasks.append(task)
        reached = {"0": 5} if len(tasks) == 1 else None
        return [CarryOver(reached=reached), LaneReport("job", 0, 7, skips={"0": skip}, keys_repeated=True)]

    task = replace(TASK, ownership=JobOwnership("token", canary=True))
    spec = AssemblySpec(Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s", lines=TxnEventLines())
    parts = [OffsetRanges({("topic", 0): (0, 10), ("topic", 1): (0, 3)}, 1.0, {})]
    run_rounds(run_round, task, spec, PlannedRanges(parts, Counter()), lambda _: None)
    first, second = (made.ownership for made in tasks)
    assert first is not None
    assert second is not None
    assert (first.canary, second.canary, second.skips, tasks[1].hold) == (True, False, {"0": skip}, True)


def test_a_round_is_known_as_soon_as_it_has_ended_and_progress_renews_the_time() -> None:
    """A later round that fails takes nothing away from it."""
    limits, collected = list[float](), list[Message]()

    def run_round(task: LaneTask, _: AssemblySpec) -> list[Message]:
        limits.append(task.time_limit)
        if len(limits) == 4:
            raise NotSent("nobody")
        receipts = [] if len(limits) == 1 else [receipt(len(limits))]  # the first round replays what is visible
        return [*receipts, LaneReport("job", 0, 7), CarryOver(reached={"0": len(limits)})]

    spec = AssemblySpec(Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s", lines=TxnEventLines())
    parts = [OffsetRanges({("topic", 0): (0, 10)}, 1.0, {})]
    task = replace(TASK, seconds=40.0)
    with pytest.raises(NotSent):
        run_rounds(run_round, task, spec, PlannedRanges(parts, Counter()), collected.extend)
    assert [(made.label, made.recycled) for made in of_kind(collected, Receipt)] == [("l2", True), ("l3", True)]
    assert len(of_kind(collected, LaneReport)) == 3
    assert limits == [40.0, 40.0, OPTIONS.batch_deadline, OPTIONS.batch_deadline]


def receipt(number: int) -> Receipt:
    return Receipt(f"l{number}", None, "job", 0, 7, (), (), 1, 1, 0, recycled=False)


def test_a_lane_that_has_read_its_offsets_is_not_in_the_next_round() -> None:
    parts = [
        OffsetRanges({("topic", 0): (0, 10), ("topic", 2): (4, 6)}, 1.0, {}),
        OffsetRanges({("topic", 1): (0, 3)}, 1.0, {}),
    ]
    left = PlannedRanges(parts, None).after({"0": 5, "2": 6})
    assert [lane.ranges for lane in left.lanes] == [{("topic", 0): (5, 10)}]
    assert left.offsets == 5


def test_partitions_of_several_topics_are_told_apart() -> None:
    lane = OffsetRanges({("a", 0): (1, 10), ("b", 0): (2, 10)}, 1.0, {}, topic_names=True)
    assert lane.starts() == {"a-0": 1, "b-0": 2}
    assert lane.after({"b-0": 7}).ranges == {("b", 0): (7, 10)}


def test_a_round_ends_before_any_limit_of_its_label() -> None:
    def seconds(**changes: Any) -> float:
        return replace(TASK, options=replace(OPTIONS, **changes)).round_seconds

    assert seconds() == RECYCLE_AT * 300.0  # released servers end a transaction then, whatever `timeout` says
    assert seconds(timeout=100) == RECYCLE_AT * 100.0
    assert seconds(batch_deadline=60.0) == RECYCLE_AT * 60.0


def test_a_lane_on_a_host_with_another_clock_reads_no_longer_than_a_round() -> None:
    clock = ManualClock()
    task = replace(TASK, round_ends=clock.wall() + 1e6)
    late = replace(TASK, round_ends=clock.wall() - 1e6)
    assert TASK.end_of_round(clock) is None
    assert task.end_of_round(clock) == Deadline.after(task.round_seconds, clock)
    assert late.end_of_round(clock) == Deadline.after(0.0, clock)
