"""A driver whose lanes load under one label: it begins the label, and commits when all lanes have loaded.

It does so as `sink.lanes` does; judgement, ownership and the steps of the commit are the production code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import Action, BeginAction, Receipt
from starrocks_txn_sink.coordinator.ownership import LaneOwnership
from starrocks_txn_sink.coordinator.shared_label import Actions, LaneShare, SharedContents, commit_shared, roll_back
from starrocks_txn_sink.errors import DeadlineExceeded, KeyRepeated, RowsCutOff, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Committed, RetryPolicy, labels
from starrocks_txn_sink.rows.arrival import SMALL_ROWS, ArrivalOrder
from starrocks_txn_sink.sink.lanes import judge
from starrocks_txn_sink.writer.messages import LaneReport, Message, OrderViolation, of_kind
from starrocks_txn_sink.writer.runner import Performer
from starrocks_txn_sink.writer.task import JobOwnership, LaneTask
from starrocks_txn_sink.writer.worker import Attempt

from .arriving import arriving_batches
from .driver import JOB, Checkpoint, Driver, Slot
from .lane import _NOTHING, LaneAttempt
from .scheduler import Fiber
from .source import Cut

if TYPE_CHECKING:
    from .shared_world import SharedWorld


@dataclass(slots=True)
class SharedSlot(Slot):
    """A task of the micro-batch under one label, and what it has sent."""

    messages: list[Message] | None = None
    attempted: bool = False


class SharedDriver(Driver):
    """Tries labels until one is committed; a source partition in two tasks has its rows sorted first, for good."""

    _world: SharedWorld

    def __init__(self, world: SharedWorld, name: str, checkpoint: Checkpoint, lanes: int, oddity: str) -> None:
        super().__init__(world, name, checkpoint, lanes, oddity=oddity)
        self._rng = Random(f"{world.seed}/{name}")
        self._sorted = False
        self._begin: Cut = ()
        self._label = ""
        self._failures = 0
        self._hold = False
        self._performer: Performer | None = None

    # --- a micro-batch ---

    def _marked_slots(self, begin: Cut) -> dict[int, Slot]:
        if self._sorted:
            return super()._marked_slots(begin)
        self._begin, self._failures, self._hold = begin, 0, self.session.hold
        self.soon(0.0, self._next_label)
        return {}

    def _next_batch(self) -> None:
        self._label = "(none yet)"
        super()._next_batch()

    def _acknowledge(self) -> None:
        if self._label != "(none yet)" or self._sorted:
            super()._acknowledge()

    def _next_label(self) -> None:
        if self.over:
            return
        world = self._world
        (self._label,) = (next(labels(JOB, self.epoch, "all", self._batch, world.next_attempt())),)
        task = replace(self._any_task(), ownership=self.session.ownership)
        ownership = task.owned_by(None, 0, world.rng, world.clock)
        assert ownership is not None
        self._deadline = Deadline.after(world.options.batch_deadline, world.clock)
        self._performer = Performer(
            world.options_of(self.lanes), _NOTHING.transport, world.clock, self._deadline, world.rng,
            RetryPolicy(commit_again=False), ownership=ownership,
        )  # fmt: skip
        self._ownership: LaneOwnership = ownership
        self._perform(BeginAction(self._label), self._begun)

    def _begun(self, result: object) -> None:
        if isinstance(result, StarRocksSinkError):
            self._run(roll_back(self._label), partial(self._rolled_back, result))
            return
        self.slots = dict(self._layout())
        for lane in list(self.slots):
            self.try_lane(lane, first=True)

    def _layout(self) -> dict[int, SharedSlot]:
        """The tasks of the source: at times one source partition is in two of them."""
        slots: dict[int, SharedSlot] = {}
        for number, (low, high) in enumerate(zip(self._begin, self._cut, strict=True)):
            middle = self._rng.randint(low, high) if self._world.profile.recut and self._rng.random() < 0.1 else high
            for lane, (first, last) in ((number, (low, middle)), (number + 1, (middle, high))):
                if last > first:
                    slot = slots.setdefault(lane % self.lanes, SharedSlot([]))
                    slot.transactions += self._source.released[number][first:last]
        return slots

    def try_lane(self, lane: int, first: bool = False) -> None:
        if self._sorted:
            super().try_lane(lane, first)
            return
        world, slot = self._world, self.slots.get(lane)
        if slot is None or self.over:
            return
        assert isinstance(slot, SharedSlot)
        if slot.messages is not None:
            return
        number = world.next_attempt()
        task = LaneTask(
            world.options_of(self.lanes), JOB, self.epoch, self.checkpoint.name, self._batch, True, True,
            self._session_ownership(), at_end_only=True, keys=world.keys, hold=self._hold, label=self._label,
        )  # fmt: skip
        attempt = Attempt(lane, number, slot.attempted or not first)
        slot.attempted = True
        said = task.answer(attempt, world.clock, list)
        if said:  # it must not load
            self.soon(0.01, self._lane_over, slot, said)
            return
        few = self._rng.random() < 0.5
        batches = [batch.slice(0, batch.num_rows) for batch in arriving_batches(slot.transactions, self._rng, few=few)]
        last = batches.pop()
        batches.append(last.slice(0, last.num_rows - 1))  # without the sentinel
        cut = world.cut_off(batches) if any(batch.num_rows for batch in batches[-1:]) else batches
        made = LaneAttempt(
            world, f"{self.name}.{lane}.{number}", task, attempt, cut,
            lambda ended, result: self.soon(0.01, self._task_over, slot, ended, result, cut is not batches),
            ArrivalOrder(SMALL_ROWS if few else 0, sentinel=False).rows,
        )  # fmt: skip
        slot.attempts.append(made)
        world.lanes.append(made)
        self.soon(self._rng.random() * 0.05, made.start)

    def _session_ownership(self) -> JobOwnership:
        ownership = self.session.ownership
        assert ownership is not None
        return replace(ownership, positions=dict(ownership.positions), skips=dict(ownership.skips))

    def _task_over(self, slot: SharedSlot, ended: LaneAttempt, result: object, cut_off: bool) -> None:
        """A task whose JVM died fails, whatever its lane believes; Spark tries it again."""
        if cut_off:
            self.task_failed(ended.attempt.lane, RowsCutOff("The JVM died."))
        elif isinstance(result, StarRocksSinkError):
            self._lane_over(slot, [ended.metrics.report((), result).fail(result, self.scheduler.now)])
        elif isinstance(result, BaseException):
            self.task_failed(ended.attempt.lane, result)
        else:
            assert isinstance(result, list)
            self._lane_over(slot, [ended.metrics.share(result), ended.metrics.report(result)])

    def task_failed(self, lane: int, error: BaseException) -> None:
        if self._sorted:
            super().task_failed(lane, error)
            return
        slot = self.slots.get(lane)
        if isinstance(slot, SharedSlot) and not self.over and slot.messages is None:
            self.soon(self._rng.uniform(0.01, 1.0), self._again_shared, self._label, lane)

    def _again_shared(self, label: str, lane: int) -> None:
        if label == self._label:
            self.try_lane(lane)

    def _lane_over(self, slot: SharedSlot, messages: list[Message]) -> None:
        if self.over or slot not in self.slots.values() or slot.messages is not None:
            return
        slot.messages = messages
        if all(isinstance(one, SharedSlot) and one.messages is not None for one in self.slots.values()):
            self._all_over([each for one in self.slots.values() for each in one.messages or ()])  # type: ignore[attr-defined]

    def _all_over(self, messages: list[Message]) -> None:
        slots, self.slots = self.slots, {}
        self._stop(attempt for slot in slots.values() for attempt in slot.attempts)
        task = self._any_task()
        try:
            violations = judge(messages, task)
        except StarRocksSinkError as error:
            self._run(roll_back(self._label), partial(self._rolled_back, error))
            return
        if violations:
            self._run(roll_back(self._label), lambda _: self._sort(violations))
            return
        loaded = [one for share in of_kind(messages, LaneShare) for one in share.loaded]
        if not loaded:
            self._run(roll_back(self._label), lambda _: self._done([], messages))
            return
        contents = SharedContents(loaded)
        steps = commit_shared(self._label, contents, [self._ownership.ledger_entries], fenced=True)
        self._run(steps, partial(self._committed, contents, messages))

    def _rolled_back(self, error: StarRocksSinkError, _: object) -> None:
        self._give_up(error)

    def _any_task(self) -> LaneTask:
        return LaneTask(self._world.options_of(self.lanes), JOB, self.epoch, self.checkpoint.name, self._batch)

    def _sort(self, violations: list[OrderViolation]) -> None:
        self._world.trace.say(self.name, f"sorts from here: {violations[0].why}")
        self._sorted = True
        self.slots = super()._marked_slots(self._begin)
        for lane in list(self.slots):
            self.try_lane(lane, first=True)

    def _committed(self, contents: SharedContents, messages: list[Message], result: object) -> None:
        if isinstance(result, BaseException):
            self._give_up(result)
            return
        assert isinstance(result, Committed)
        receipt = contents.receipt(result, 0, 1, self._world.clock.wall())
        self._world.checker.receipt(receipt)
        self._done([receipt], messages)

    def _done(self, receipts: list[Receipt], messages: list[Message]) -> None:
        if self.over:
            return
        reports = of_kind(messages, LaneReport)
        self.session.learn(receipts)
        self.session.learn_skips(reports)
        self.session.learn_keys(reports)
        if self._excluded and receipts:
            self._world.checker.report("other", f"{self.name} wrote a micro-batch though the job was taken over before")
        super()._acknowledge()

    def _give_up(self, error: BaseException) -> None:
        """The label has certainly not been committed, unless the outcome is unknown, which is final."""
        if self.over:
            return
        self._world.trace.say(self.name, f"{self._label} failed: {error}")
        if isinstance(error, KeyRepeated) and not self._hold:
            self._hold = True
            self.soon(0.0, self._next_label)
            return
        self._failures += 1
        retryable = isinstance(error, StarRocksSinkError) and error.retryable
        if retryable and self._failures < self._world.options.max_attempts:
            self.soon(self._rng.uniform(0.1, 1.0), self._next_label)
        else:
            self._end(error)

    # --- actions ---

    def _run(self, steps: Actions[object], done: Callable[[object], None]) -> None:
        """As `coordinator.shared_label.perform_all`, one action after the other."""

        def go_on(answer: object) -> None:
            try:
                action = steps.throw(answer) if isinstance(answer, StarRocksSinkError) else steps.send(answer)
            except StopIteration as ended:
                done(ended.value)
                return
            except StarRocksSinkError as error:
                done(error)
                return
            self._perform(action, go_on)

        go_on(None)

    def _perform(self, action: Action, done: Callable[[object], None]) -> None:
        performer = self._performer
        assert performer is not None
        steps, deadline = performer.steps(action)

        def ended(result: object) -> None:
            if isinstance(result, DeadlineExceeded):
                try:
                    result = performer.result_after_deadline(action, result)
                except DeadlineExceeded as error:
                    result = error
            if not self.over:
                done(result)

        Fiber(self, steps, deadline.at, self._world.network.send, ended)
