"""A driver whose lanes assemble: it reads and publishes the manifest log around each micro-batch.

It does so as `sink.events_writer` does. The lanes of some drivers read the events from Kafka themselves, in rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.sink.events_writer import EventRounds
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges, spread
from starrocks_txn_sink.sources.kafka.spark_reader import PlannedRanges
from starrocks_txn_sink.writer.assembling import AssemblySpec, LaneAssembler
from starrocks_txn_sink.writer.messages import CarryOver, Message, of_kind
from starrocks_txn_sink.writer.pipe import Stop
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt

from .driver import DATABASE, Checkpoint, Driver, Slot
from .event_log import Event, EventSource, event_batches, kafka_batches
from .lane import LaneAttempt
from .scheduler import Fiber

if TYPE_CHECKING:
    from .assembling_world import AssemblingWorld

IN_JSON = TxnEventLines(source_partition=None, position=None)
TOPIC = "p"  # before the number in the names of source partitions


@dataclass
class Counter:
    """Spark's counter of the source's rows."""

    rows: int = 0

    def set(self, rows: int) -> None:
        self.rows = rows


@dataclass
class ReadingClock:
    """`clock` of a lane that reads: each look at it comes after a piece, which takes its time."""

    clock: Clock
    rng: Random
    read: float = 0.0

    def monotonic(self) -> float:
        self.read += self.rng.choice((0.0, 0.0, 0.02, 0.2, 20.0))
        return self.clock.monotonic() + self.read

    def wall(self) -> float:
        return self.clock.wall()

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)


class AssemblingDriver(Driver):
    """Its checkpoint's directory is shared with every other driver on that checkpoint."""

    _world: AssemblingWorld

    def __init__(self, world: AssemblingWorld, name: str, checkpoint: Checkpoint, lanes: int, oddity: str) -> None:
        super().__init__(world, name, checkpoint, lanes, oddity=oddity)
        self._log: ManifestLog | None = None
        self._before = Manifest()
        self._plan.direct = self._rng.random() < 0.3
        self._events: dict[int, list[Event]] = {}  # by lane
        self._rounds: EventRounds | None = None
        self._reading: list[OffsetRanges] = []  # of each lane in this round
        self.told_otherwise = False  # whether events of this micro-batch come again with other content

    @property
    def _source_log(self) -> EventSource:
        source = self._world.source
        assert isinstance(source, EventSource)
        return source

    def _next_batch(self) -> None:
        spark_log = self._world.spark_logs.get(self.checkpoint.name)
        if spark_log is not None and len(self._offsets) <= self._batch < len(spark_log.offsets):
            self._end(ConnectionError("another driver has planned this micro-batch"))
            return
        super()._next_batch()

    def _plan_batch(self) -> None:
        spark_log = self._world.spark_logs.get(self.checkpoint.name)
        if spark_log is not None and len(spark_log.offsets) <= self._batch:
            spark_log.offsets = list(self._offsets)
        if self._log is None:
            directory = self._world.directory(self.checkpoint.name)
            self._log = ManifestLog.open(directory, self.epoch, "q", self._world.keep)
        self._before = self._log.before(self._batch, may_begin=False)
        self._events, self._rounds, self.told_otherwise = {}, None, False
        cuts = enumerate(zip(self._begin, self._cut, strict=True))
        slices = {number: (low, high) for number, (low, high) in cuts if high > low}
        if self._plan.direct:
            self._plan_offsets(slices)
        else:
            self._plan_events(slices)

    def _plan_events(self, slices: dict[int, tuple[int, int]]) -> None:
        for number, (low, high) in slices.items():
            overlap = self._overlap()
            changed = bool(low and overlap) and self._world.tells_otherwise()
            events = self._source_log.events(number, low, high, overlap, changed=changed)
            self._events.setdefault(number % self.lanes, []).extend(events)
            self.told_otherwise |= changed

    def _overlap(self) -> int:
        """How many events before its own a micro-batch has once more."""
        return self._world.rng.choice((0, 0, 0, 2))

    def _plan_offsets(self, slices: dict[int, tuple[int, int]]) -> None:
        """As `sink.kafka_input` plans what lanes read themselves."""
        if slices:
            ranges = {(TOPIC, number): self._source_log.offsets(number, *bounds) for number, bounds in slices.items()}
            lanes = [OffsetRanges(group, 0.0, {}, topic_names=True) for group in spread(ranges, self.lanes)]
            self._rounds = self._rounds_of(lanes, replace(self._assembly(TxnEventLines()), sortable=False))

    def _rounds_of(self, lanes: list[OffsetRanges], assembly: AssemblySpec) -> EventRounds:
        return EventRounds(self._begin_round, assembly, PlannedRanges(lanes, Counter()))

    def _begin_round(self, task: LaneTask, assembly: AssemblySpec) -> list[Message]:
        del task
        self._reading = list(assembly.ranges)
        return []

    def _assembly(self, lines: RawFormat | None) -> AssemblySpec:
        assert self._log is not None
        return AssemblySpec(
            IncrementalAssembler, Policy(), PayloadEncoder(DATABASE), 0.0, self._world.directory(self.checkpoint.name),
            self._log.stem(self._batch), self._before.partitions, self._before.inline, lines,
        )  # fmt: skip

    def _is_empty(self) -> bool:
        return not self._events and self._rounds is None

    def _layout(self) -> dict[int, Slot]:
        if self._rounds is None:
            return {lane: Slot([]) for lane in self._events}
        self._reading = []
        self._rounds.run(self._any_task())
        return {lane: Slot([]) for lane in range(len(self._reading))}

    def _attempt(self, slot: Slot, task: LaneTask, attempt: Attempt) -> LaneAttempt:
        stop = None
        if self._rounds:
            stop = Stop.of(task, ReadingClock(self._world.clock, self._world.rng))
            assembling, batches = self._reading_lane(attempt, stop)
        else:
            assembling, batches = self._fed_lane(task, attempt)
        lane_attempt = self._made(slot, task, attempt, batches, assembling, stop)
        ended = lane_attempt._ended
        lane_attempt._ended = lambda lane, result: ended(lane, _with_carry(assembling, result))
        return lane_attempt

    def _fed_lane(self, task: LaneTask, attempt: Attempt) -> tuple[LaneAssembler, list[pa.RecordBatch]]:
        """A lane that gets its events from Spark."""
        rng, events = self._world.rng, self._events[attempt.lane]
        raw = rng.random() < 0.5
        small = not task.ordered and rng.random() < 0.5  # then the lane takes them in any order
        events = rng.sample(events, len(events)) if small else events
        assembly = replace(
            self._assembly(IN_JSON if raw else None), arrival_order=not task.ordered,
            small_rows=SMALL_ROWS if small else 0,
        )  # fmt: skip
        return assembly.open(attempt), event_batches(events, rng, raw=raw)

    def _reading_lane(self, attempt: Attempt, stop: Stop | None) -> tuple[LaneAssembler, list[pa.RecordBatch]]:
        """A lane that reads its offsets of this round."""
        assert self._rounds is not None
        world = self._world
        assembly = replace(self._rounds.assembly, ranges=self._reading, small_rows=world.rng.choice((0, SMALL_ROWS)))
        assembling = assembly.open(attempt, stop)
        return assembling, self._read(self._reading[attempt.lane])

    def _read(self, ranges: OffsetRanges) -> list[pa.RecordBatch]:
        return kafka_batches(self._source_log, ranges, self._world.rng)

    def _next_round(self) -> None:
        if self._rounds is not None:
            self._rounds.next_round(self._shares())

    def _shares(self) -> list[CarryOver]:
        """What the lanes that ran last hand on."""
        return of_kind([message for slot in self.ended_slots.values() for message in slot.messages or ()], CarryOver)

    def _may_sort(self, task: LaneTask) -> bool:
        return self._rounds is None and super()._may_sort(task)

    def _acknowledge(self) -> None:
        """All lanes have returned: publish, then let Spark believe it."""
        if self.session.ownership is None or (self._committed_at_end and not self._is_empty()):
            self.soon(self._world.rng.choice((0.0, 0.01, 0.5)), self._publish, None)
            return
        Fiber(
            self,
            self.session.check_owner(self._world.rng),
            self.scheduler.now + self._world.options.batch_deadline,
            self._world.network.send,
            self._publish,
        )

    def _published(self, after: Manifest) -> Manifest:
        """The manifest to publish, with what the driver alone knows."""
        return after

    def _publish(self, result: object) -> None:
        if self.over:
            return
        if isinstance(result, BaseException):
            self._end(result)
            return
        if self.told_otherwise:
            self._world.checker.report("lost", f"{self.name} drops events with other content as repeats")
        assert self._log is not None
        if self._rounds is not None:
            self._rounds.take(self._shares())
        carried = [self._rounds.carried] if self._rounds is not None else self._shares() if self._events else []
        touched = {name: state for share in carried for name, state in share.partitions.items()}
        inline = {name: content for share in carried for name, content in share.inline.items()}
        self._log.publish(self._published(self._before.with_batch(self._batch, "q", touched, inline.items())))
        if self._excluded:
            self._world.checker.report("other", f"{self.name} published though the job was taken over before")
        spark_log = self._world.spark_logs.get(self.checkpoint.name)
        if spark_log is not None and spark_log.done > self._batch:
            self._end(ConnectionError("another driver has ended this micro-batch"))
            return
        super()._acknowledge()
        if spark_log is not None:
            spark_log.done = self._batch


def _with_carry(assembling: LaneAssembler, result: list[Message] | BaseException) -> list[Message] | BaseException:
    """On the executor: what stays open is put away before the task's result goes to the driver."""
    if not isinstance(result, list):
        return result
    try:
        return [*result, *assembling.messages()]
    except StarRocksSinkError as error:
        return error
