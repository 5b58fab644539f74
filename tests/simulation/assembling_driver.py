"""A driver whose lanes assemble: it reads and publishes the manifest log around each micro-batch.

It does so as `sink.events_writer` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Manifest
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.writer.assembling import AssemblySpec, LaneAssembler
from starrocks_txn_sink.writer.messages import CarryOver, Message, of_kind
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt

from .driver import DATABASE, Checkpoint, Driver, Slot
from .event_log import Event, EventSource, event_batches
from .lane import LaneAttempt
from .scheduler import Fiber

if TYPE_CHECKING:
    from .assembling_world import AssemblingWorld

IN_JSON = TxnEventLines(source_partition=None, position=None)


@dataclass(slots=True)
class EventSlot(Slot):
    """A lane of a round, and its events."""

    events: list[Event] = field(default_factory=list)


class AssemblingDriver(Driver):
    """Its checkpoint's directory is shared with every other driver on that checkpoint."""

    _world: AssemblingWorld

    def __init__(self, world: AssemblingWorld, name: str, checkpoint: Checkpoint, lanes: int, oddity: str) -> None:
        super().__init__(world, name, checkpoint, lanes, oddity=oddity)
        self._log: ManifestLog | None = None
        self._before = Manifest()
        self.told_otherwise = False  # whether events of this micro-batch come again with other content

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
        source = self._world.source
        assert isinstance(source, EventSource)
        if self._log is None:
            directory = self._world.directory(self.checkpoint.name)
            self._log = ManifestLog.open(directory, self.epoch, "q", self._world.keep)
        self._before = self._log.before(self._batch, may_begin=False)
        self._events: dict[int, list[Event]] = {}
        self.told_otherwise = False
        for number, (low, high) in enumerate(zip(self._begin, self._cut, strict=True)):
            if high > low:
                overlap = self._world.rng.choice((0, 0, 0, 2))
                changed = bool(low and overlap) and self._world.tells_otherwise()
                events = source.events(number, low, high, overlap, changed=changed)
                self._events.setdefault(number % self.lanes, []).extend(events)
                self.told_otherwise |= changed

    def _is_empty(self) -> bool:
        return not self._events

    def _layout(self) -> dict[int, Slot]:
        return {lane: EventSlot([], events=events) for lane, events in self._events.items()}

    def _attempt(self, slot: Slot, task: LaneTask, attempt: Attempt) -> LaneAttempt:
        world = self._world
        assert isinstance(slot, EventSlot)
        assert self._log is not None
        raw = world.rng.random() < 0.5
        small = not task.ordered and world.rng.random() < 0.5  # then the lane takes them in any order
        events = world.rng.sample(slot.events, len(slot.events)) if small else slot.events
        assembling = AssemblySpec(
            Policy(), PayloadEncoder(DATABASE), 0.0, world.directory(self.checkpoint.name), self._log.stem(self._batch),
            self._before.partitions, self._before.inline, IN_JSON if raw else None, arrival_order=not task.ordered,
            small_rows=SMALL_ROWS if small else 0,
        ).open(attempt)  # fmt: skip
        batches = event_batches(events, world.rng, raw=raw)
        made = self._made(slot, task, attempt, batches, assembling.rows)
        ended = made._ended
        made._ended = lambda lane, result: ended(lane, _with_carry(assembling, result))
        return made

    def _acknowledge(self) -> None:
        """All lanes have returned: publish, then let Spark believe it."""
        if self._committed_at_end and self._events:
            self.soon(self._world.rng.choice((0.0, 0.01, 0.5)), self._publish, None)
            return
        Fiber(
            self,
            self.session.check_owner(self._world.rng),
            self.scheduler.now + self._world.options.batch_deadline,
            self._world.network.send,
            self._publish,
        )

    def _publish(self, result: object) -> None:
        if self.over:
            return
        if isinstance(result, BaseException):
            self._end(result)
            return
        if self.told_otherwise:
            self._world.checker.report("lost", f"{self.name} drops events with other content as repeats")
        assert self._log is not None
        touched: dict[str, CarriedState] = {}
        inline: dict[str, bytes] = {}
        messages = [message for slot in self.ended_slots.values() for message in slot.messages or ()]
        for carry in of_kind(messages, CarryOver) if self._events else ():
            touched |= carry.partitions
            inline |= carry.inline
        self._log.publish(self._before.with_batch(self._batch, "q", touched, inline.items()))
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
        return [*map(assembling.complete, result), assembling.carry_over()]
    except StarRocksSinkError as error:
        return error
