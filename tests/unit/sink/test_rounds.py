"""Rounds: a micro-batch of lanes that read Kafka becomes several StarRocks transactions, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Counters, Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import CarriedState
from starrocks_txn_sink.assembler.verified.lane import VerifiedLane
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.coordinator.model import ColumnNeeds
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sink.events_writer import EventRounds
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, spread
from starrocks_txn_sink.sources.kafka.spark_reader import PlannedRanges
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.messages import CarryOver, LaneReport, Message, decode, encode, of_kind
from starrocks_txn_sink.writer.pipe import Stop
from starrocks_txn_sink.writer.task import LaneTask
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
        messages: list[bytes] = []
        for number, length in enumerate(self.lengths[partition]):
            kinds = ["BEGIN", *["DATA"] * length, "END"]
            if self.open_last and number == len(self.lengths[partition]) - 1:
                kinds.pop()
            for kind in kinds:
                event = {"type": kind, "txn_id": str(number)}
                if kind == "DATA":
                    event |= {"table": "items", "op": "insert", "row": f'{{"n":{len(messages)}}}'}
                messages.append(orjson.dumps(event))
        return messages

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
            assembler = spec.open(attempt, Stop(seconds, topic.clock))
            for batch in assembler(topic.read(lane)):
                rounds[-1] += zip(
                    *(batch[name].to_pylist() for name in ("source_partition", "position", "payload")), strict=True
                )
            messages += [decode(encode(assembler.carry_over())), LaneReport("job", number, 7)]
            assembler.close()
        return messages

    parts = [OffsetRanges(group, 1.0, {}) for group in spread(topic.ranges(), lanes)]
    spec = AssemblySpec(
        IncrementalAssembler,
        Policy(),
        PayloadEncoder("shop"),
        0.0,
        MemoryDirectory(),
        "000001-e-7",
        lines=TxnEventLines(),
        small_rows=0,
    )
    kafka = EventRounds(run_round, spec, PlannedRanges(parts, count))
    shares = of_kind(kafka.run(TASK), CarryOver)
    while any(share.reached is not None for share in shares):
        kafka.next_round(shares)
        shares = of_kind(kafka.run(TASK), CarryOver)
    kafka.take(shares)
    return rounds, kafka.carried, count.rows


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
    rounds, carry_left, again = written(topic, lanes, seconds)
    assert by_partition(rounds) == by_partition([whole])
    ends = {(row[0], row[1]) for row in whole}
    for of_round in rounds:
        for name, position in {(row[0], row[1]) for row in of_round}:
            expected = [row for row in whole if row[:2] == (name, position)]
            assert [row for row in of_round if row[:2] == (name, position)] == expected
            assert (name, position) in ends
    assert count == again == sum(len(topic.values(number)) for number in range(len(lengths)))
    assert carry_left.flows == carried.flows
    states = (
        {name: partition.state for name, partition in carry.partitions.items()} for carry in (carried, carry_left)
    )
    first, second = (
        {name: (state.last_position, len(state.live())) for name, state in states_of_lane.items()}
        for states_of_lane in states
    )
    assert first == second


def test_a_round_takes_at_least_one_piece_of_each_lane() -> None:
    """A lane whose clock is ahead of the driver's would otherwise never end."""
    rounds, _, _ = written(Topic([[1, 1, 1]], False, 3), 1, 0.0)
    assert [len(rows) for rows in rounds] == [1, 1, 1]


def test_a_round_that_is_run_again_reads_the_same_offsets_from_the_same_state() -> None:
    """After a failed label, and for each part of a quarantine."""
    specs: list[AssemblySpec] = []

    def run_round(_: LaneTask, spec: AssemblySpec) -> list[Message]:
        specs.append(spec)
        return [CarryOver(reached={"0": 3 * len(specs)}, small=True)]

    parts = [OffsetRanges({("topic", 0): (0, 10)}, 1.0, {})]
    spec = AssemblySpec(
        IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s", lines=TxnEventLines()
    )
    kafka = EventRounds(run_round, spec, PlannedRanges(parts, Counter()))
    kafka.run(TASK)
    last = of_kind(kafka.run(TASK), CarryOver)
    assert specs[0] == specs[1]
    kafka.next_round(last)
    kafka.run(TASK)
    assert [dict(lane.ranges) for lane in specs[2].ranges] == [{("topic", 0): (6, 10)}]


def test_a_lane_that_proves_transactions_reads_all_offsets_in_each_round() -> None:
    specs: list[AssemblySpec] = []

    def run_round(_: LaneTask, spec: AssemblySpec) -> list[Message]:
        specs.append(spec)
        return [CarryOver({"0": CarriedState()}, Counters(events=5))]

    count, parts = Counter(), [OffsetRanges({("topic", 0): (0, 10)}, 1.0, {})]
    spec = AssemblySpec(VerifiedLane, VerifiedPolicy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s")
    kafka = EventRounds(run_round, spec, PlannedRanges(parts, count), rereads=True)
    kafka.next_round(of_kind(kafka.run(TASK), CarryOver))
    kafka.take(of_kind(kafka.run(TASK), CarryOver))
    assert specs[0] == specs[1]
    assert (kafka.carried.flows, count.rows) == (Counters(events=5), 5)  # once, as the last round has them


def test_the_types_of_rows_that_wait_go_on_into_the_next_round() -> None:
    specs: list[AssemblySpec] = []

    def run_round(_: LaneTask, spec: AssemblySpec) -> list[Message]:
        specs.append(spec)
        return [CarryOver({"0": CarriedState()}, described={"b": NEEDS}, reached={"0": 3 * len(specs)})]

    spec = AssemblySpec(
        IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s",
        lines=TxnEventLines(), described={"a": NEEDS},
    )  # fmt: skip
    kafka = EventRounds(run_round, spec, PlannedRanges([OffsetRanges({("topic", 0): (0, 10)}, 1.0, {})], Counter()))
    kafka.next_round(of_kind(kafka.run(TASK), CarryOver))
    kafka.run(TASK)
    assert [spec.described for spec in specs] == [{"a": NEEDS}, {"a": NEEDS, "b": NEEDS}]


NEEDS = {"column": ColumnNeeds(types=("BIGINT",))}


def test_when_all_offsets_are_read_no_lane_runs() -> None:
    """The last lane may stop at its last offset."""
    spec = AssemblySpec(
        IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s", lines=TxnEventLines()
    )
    planned = PlannedRanges([OffsetRanges({("topic", 0): (0, 10)}, 1.0, {})], Counter())
    kafka = EventRounds(lambda *_: [LaneReport("job", 0, 7)], spec, planned)
    kafka.next_round([CarryOver(reached={"0": 10})])
    assert kafka.run(TASK) == []


def test_two_lanes_with_one_source_partition_are_a_bug_with_an_error() -> None:
    spec = AssemblySpec(
        IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s", lines=TxnEventLines()
    )
    kafka = EventRounds(lambda *_: [], spec, PlannedRanges([], Counter()))
    share = CarryOver({"0": CarriedState()})
    with pytest.raises(InputError, match="Two lanes had events of source partition 0"):
        kafka.take([share, share])


def test_a_lane_that_has_read_its_offsets_is_not_in_the_next_round() -> None:
    parts = [
        OffsetRanges({("topic", 0): (0, 10), ("topic", 2): (4, 6)}, 1.0, {}),
        OffsetRanges({("topic", 1): (0, 3)}, 1.0, {}),
    ]
    ranges_left = PlannedRanges(parts, None).after({"0": 5, "2": 6})
    assert [lane.ranges for lane in ranges_left.lanes] == [{("topic", 0): (5, 10)}]
    assert ranges_left.offsets == 5


def test_partitions_of_several_topics_are_told_apart() -> None:
    lane = OffsetRanges({("a", 0): (1, 10), ("b", 0): (2, 10)}, 1.0, {}, topic_names=True)
    assert lane.starts() == {"a-0": 1, "b-0": 2}
    assert lane.after({"b-0": 7}).ranges == {("b", 0): (7, 10)}
