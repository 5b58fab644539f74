"""A driver whose lanes assemble: it reads and publishes the manifest log around each micro-batch.

It does so as `sink.events_writer` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Manifest
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.writer.assembling import AssemblySpec, LaneAssembler
from starrocks_txn_sink.writer.messages import CarryOver
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt

from .driver import DATABASE, JOB, Checkpoint, Driver, Slot
from .event_log import Event, EventSource, event_batches
from .lane import LaneAttempt
from .scheduler import Fiber
from .source import Cut

if TYPE_CHECKING:
    from .assembling_world import AssemblingWorld

IN_JSON = TxnEventLines(source_partition=None, position=None)


@dataclass(slots=True)
class EventSlot(Slot):
    """A lane of a micro-batch: its events, and what the attempt that counts carries on."""

    events: list[Event] = field(default_factory=list)
    carry: CarryOver | None = None


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

    def _marked_slots(self, begin: Cut) -> dict[int, Slot]:
        spark_log = self._world.spark_logs.get(self.checkpoint.name)
        if spark_log is not None and len(spark_log.offsets) <= self._batch:
            spark_log.offsets = list(self._offsets)
        source = self._world.source
        assert isinstance(source, EventSource)
        if self._log is None:
            directory = self._world.directory(self.checkpoint.name)
            self._log = ManifestLog.open(directory, self.epoch, "q", self._world.keep)
        self._before = self._log.before(self._batch, may_begin=False)
        slots: dict[int, Slot] = {}
        self.told_otherwise = False
        for number, (low, high) in enumerate(zip(begin, self._cut, strict=True)):
            if high > low:
                slot = slots.setdefault(number % self.lanes, EventSlot([]))
                assert isinstance(slot, EventSlot)
                overlap = self._world.rng.choice((0, 0, 0, 2))
                changed = bool(low and overlap) and self._world.tells_otherwise()
                slot.events += source.events(number, low, high, overlap, changed=changed)
                self.told_otherwise |= changed
        return slots

    def try_lane(self, lane: int, first: bool = False) -> None:
        world, slot = self._world, self.slots.get(lane)
        if slot is None or self.over or slot.receipts is not None:
            return
        assert isinstance(slot, EventSlot)
        ownership = self.session.ownership
        assert ownership is not None
        assert self._log is not None
        number, raw = world.next_attempt(), world.rng.random() < 0.5
        small = world.rng.random() < 0.5  # then the lane takes them in any order
        events = world.rng.sample(slot.events, len(slot.events)) if small else slot.events
        attempt = Attempt(lane, number, not first)
        assembling = AssemblySpec(
            Policy(), PayloadEncoder(DATABASE), 0.0, world.directory(self.checkpoint.name), self._log.stem(self._batch),
            self._before.partitions, self._before.inline, IN_JSON if raw else None,
            small_rows=SMALL_ROWS if small else 0,
        ).open(attempt)  # fmt: skip
        task = LaneTask(
            world.options, JOB, self.epoch, self.checkpoint.name, self._batch, True, True,
            replace(ownership, positions=dict(ownership.positions), skips=dict(ownership.skips)),
        )  # fmt: skip
        made = LaneAttempt(
            world,
            f"{self.name}.{lane}.{number}",
            task,
            attempt,
            world.cut_off(event_batches(events, world.rng, raw=raw)),
            lambda ended, result: self._lane_ended(slot, lane, ended, result, assembling),
            assembling.rows,
        )
        slot.attempts.append(made)
        world.lanes.append(made)
        self.soon(world.rng.random() * 0.05, made.start)

    def _lane_ended(
        self,
        slot: EventSlot,
        lane: int,
        attempt: LaneAttempt,
        result: list[Receipt] | BaseException,
        assembling: LaneAssembler,
    ) -> None:
        """On the executor: what stays open is put away before the task's result goes to the driver."""
        carry = assembling.carry_over() if isinstance(result, list) else None
        self.soon(0.01, self._task_with_carry, slot, lane, attempt, result, carry)

    def _task_with_carry(
        self,
        slot: EventSlot,
        lane: int,
        attempt: LaneAttempt,
        result: list[Receipt] | BaseException,
        carry: CarryOver | None,
    ) -> None:
        if self.slots.get(lane) is slot and slot.receipts is None and carry is not None:
            slot.carry = carry
        self._task_ended(slot, lane, attempt, result)

    def _acknowledge(self) -> None:
        """All lanes have returned: publish, then let Spark believe it."""
        if any(slot.receipts for slot in self.slots.values()):
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
        for slot in self.slots.values():
            assert isinstance(slot, EventSlot)
            assert slot.carry is not None
            touched |= slot.carry.partitions
            inline |= slot.carry.inline
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
