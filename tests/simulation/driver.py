"""A driver: one run of a streaming query that takes its job over and writes micro-batch after micro-batch.

The production coordinator orders what is done; here its orders are carried out on the virtual clock, as
`sink.lanes.RoundRunner` does it with Spark. At times one source partition is in two tasks, and rows come unsorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.coordinator import (
    LanesResult,
    NextRound,
    Order,
    Pause,
    RunLanes,
    SharedTransactionCoordinator,
    claim_of,
)
from starrocks_txn_sink.coordinator.model import BeginAction, CheckAction, Receipt
from starrocks_txn_sink.coordinator.table_room import ScanThreads, TableRooms
from starrocks_txn_sink.errors import DeadlineExceeded, InputError, StarRocksSinkError, TransactionTimedOut, Unordered
from starrocks_txn_sink.protocol.fencing import Scope, roll_back_until_confirmed, take_over
from starrocks_txn_sink.protocol.label import Aborted, Label, LabelPrefix, RetryPolicy, Steps, roll_back
from starrocks_txn_sink.protocol.ledger import (
    POSITION,
    ListUnfinished,
    Owner,
    ReadPositions,
    ReadTraces,
    Traces,
    fresh_tokens,
    retry_until_answered,
)
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.sink.checkpoint import Proof
from starrocks_txn_sink.sink.lane_plan import LanePlan, Reading
from starrocks_txn_sink.sink.lanes import coordinator_of, ownership_of, result_of
from starrocks_txn_sink.sink.session import Resumed, Resumption, Session, resume
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import LaneReport, LaneTrouble, Message, OrderViolation, of_kind
from starrocks_txn_sink.writer.pipe import ArrivingRows, InputStage, Stop
from starrocks_txn_sink.writer.runner import Performer
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.turns import TurnsAddress
from starrocks_txn_sink.writer.worker import Attempt

from .arriving import arriving_batches
from .bounds import Bounds
from .lane import NOTHING, LaneAttempt
from .orders import follow, perform
from .plain import PlainChecker, Unit, plain_batches, units_of
from .scheduler import Fiber, Node
from .source import TABLES, Cut, SourceTransaction, batches_of

if TYPE_CHECKING:
    from .world import World

DATABASE, JOB = "shop", "job"
LEDGERS = ("dropped", "restored")


@dataclass(slots=True)
class Checkpoint:
    """What Spark remembers of a query: where each micro-batch ends (`offsets`), and how many are `done`."""

    name: str
    offsets: list[Cut] = field(default_factory=list)
    done: int = 0
    newest: int = 0  # the most that were ever done


@dataclass(slots=True)
class Slot:
    """A lane of a round: its rows, the tries at it, and what the try that counts has sent."""

    transactions: list[SourceTransaction]
    unit: Unit | None = None  # plain rows
    attempts: list[LaneAttempt] = field(default_factory=list)
    failures: int = 0
    messages: list[Message] | None = None


class Driver(Node):
    """Runs until the source's end or its first error; `ended` of the world gets which."""

    def __init__(
        self, world: World, name: str, checkpoint: Checkpoint, lanes: int, retold: bool = False,
        oddity: str = "",
    ) -> None:  # fmt: skip
        super().__init__(world.scheduler, name)
        self.epoch = f"{name}x{world.rng.getrandbits(32):08x}"
        self.writer = f"{JOB}-{self.epoch}"
        self.session = Session(self.epoch, JOB, self.epoch, checkpoint.name)
        self.over = False
        self.slots: dict[int, Slot] = {}
        self._world = world
        # Under the same job its source is another one ("recreated"), or its ledger is ("dropped", "restored").
        self.oddity = oddity
        self._source = world.source.recreated() if oddity == "recreated" else world.source
        # Its own view: what another driver on the same checkpoint writes there meanwhile, it does not see.
        # Plain rows depend on the log that all drivers on a checkpoint share.
        self.plain = world.plain
        if self.plain:
            self.checkpoint, self._offsets = checkpoint, checkpoint.offsets
        else:
            self.checkpoint = Checkpoint(checkpoint.name, list(checkpoint.offsets), checkpoint.done)
            self._offsets = list(checkpoint.offsets)
        self._batch = checkpoint.done
        self.lanes = lanes
        self._retold = retold  # its source tells a micro-batch that is written already in other words
        self._disputed = -1
        self._begin: Cut = ()
        self._cut: Cut = ()
        self._rng = Random(f"{world.seed}/{name}")
        turns = None if self._rng.random() < 0.1 else TurnsAddress(name, 0, "")
        self._plan = LanePlan(
            lanes, claims=self._rng.random() < 0.3, disordered=self._rng.random() < 0.5, turns=lambda: turns
        )
        self._performer: Performer | None = None
        self._coordinator: SharedTransactionCoordinator | None = None
        self._rooms: TableRooms | None = None
        self._bounds = Bounds(world.checker, name)
        self._round = 0  # counts runs of lanes
        self._runs = 0  # of the micro-batch
        self._in_order = False  # whether the rows of each source partition are in one task, in order
        self.ended_slots: dict[int, Slot] = {}
        self._committed_at_end = False
        self._unit = Unit(())
        self._claims: list[str] = []
        self._blind = self._rng.random() < 0.1  # the list hides its labels from it
        self._listed: bool | None = None
        self._unanswered = False
        self._excluded = False  # whether another driver had taken over before the micro-batch began

    @property
    def stale(self) -> bool:
        """Whether its checkpoint is ahead of it: another driver went on meanwhile, or its log was rolled back."""
        return self._batch < self.checkpoint.newest

    @property
    def active(self) -> bool:
        return self.alive and not self.over

    def start(self) -> None:
        world = self._world
        world.trace.say(self.name, f"starts on checkpoint {self.checkpoint.name}, micro-batch {self._batch}")
        if not world.ledger:
            self._next_batch()
            return
        scope = Scope(JOB, DATABASE, Owner("", self.epoch, self.checkpoint.name))
        steps = take_over(scope, fresh_tokens(self.epoch, 0, world.rng), world.rng)
        resumption = Resumption(self._batch, self._proofs())
        resuming = resume(resumption, JOB, self.checkpoint.name, steps, world.rng)
        if self.oddity in LEDGERS:
            resuming = _over_another_ledger(self.oddity, resuming)
        self._fiber = Fiber(
            self,
            self._resuming(resuming),
            self.scheduler.now + world.options.batch_deadline,
            world.network.send,
            self._taken_over,
        )

    def _resuming(self, resuming: Steps[Resumed]) -> Steps[Resumed]:
        """The steps of the take-over, with what a kind of driver has around them."""
        return resuming

    def _proofs(self) -> list[Proof]:
        """The proofs of its checkpoint, with the skips of its own plan last.

        Spark keeps one plan of a micro-batch, and ends a driver that has another: its skips are in no checkpoint.
        """
        own_proofs, other_proofs = [], []
        for plan, proof in self._world.proofs.get(self.checkpoint.name, []):
            if len(self._offsets) < len(plan) or self._offsets[: len(plan)] == plan:
                own_proofs.append(proof)
            else:
                other_proofs.append(replace(proof, skips={}))
        return [*other_proofs, *own_proofs]

    def _taken_over(self, result: object) -> None:
        if isinstance(result, Resumed):
            take_over = result.take_over
            self.session.token, self.session.positions = take_over.owner.token, take_over.positions
            self.session.skips = dict(result.skips)
            if self.oddity in LEDGERS:
                self._world.checker.report("lost", f"{self.name} goes on over a {self.oddity} ledger")
            self._world.trace.say(self.name, f"has the job; positions {_shown(self.session)}")
            self._world.driver_taken_over()
            self._next_batch()
            return
        assert isinstance(result, BaseException)
        if isinstance(result, DeadlineExceeded) and self._world.undisturbed(self._fiber):
            self._world.checker.report("stuck", f"{self.name} could not take over though nothing disturbed it")
        self._end(result)

    # --- micro-batches ---

    def _cut_after(self, begin: Cut) -> Cut:
        """Where the next micro-batch ends."""
        return _cut(begin, self._source.end, self._world.rng)

    def _next_batch(self) -> None:
        world = self._world
        begin = self._offsets[self._batch - 1] if self._batch else tuple(0 for _ in self._source.end)
        if self._batch >= len(self._offsets):
            if begin == self._source.end:
                self._end(None)
                return
            self._offsets.append(self._cut_after(begin))
        elif world.profile.recut:
            self._offsets[self._batch :] = [self._cut_after(begin)]
        if not self.plain:
            self.checkpoint.offsets = list(self._offsets)
        self._cut = self._offsets[self._batch]
        self._excluded = world.checker.is_superseded(self.writer)
        world.trace.say(self.name, f"micro-batch {self._batch}: {begin} to {self._cut}")
        self._begin = begin
        self._plan_batch()
        if self._is_empty():
            self._acknowledge()
        else:
            self._write()

    def _plan_batch(self) -> None:
        self._runs = 0
        if not self.plain:
            return
        assert isinstance(self._world.checker, PlainChecker)
        self._unit = units_of(self._transactions(), 1).get(0, Unit(()))
        self._world.checker.planned(f"{self.writer}-all-{self._batch}", self._unit)
        if self._retold and self._is_written():
            self._unit, self._disputed = self._unit.retold(), self._batch
        self._retold = False

    def _is_empty(self) -> bool:
        return not self._transactions()

    def _transactions(self) -> list[SourceTransaction]:
        ends = enumerate(zip(self._begin, self._cut, strict=True))
        return [transaction for number, (low, high) in ends for transaction in self._source.released[number][low:high]]

    def _is_written(self) -> bool:
        row = self._world.cluster.server.store.ledger.get((JOB, POSITION, f"{self.checkpoint.name}/0/1"))
        return row is not None and row["position"] == self._batch

    @property
    def disputed(self) -> bool:
        """Whether the micro-batch has other content now than when it was written."""
        return self._disputed == self._batch

    # --- one write: the coordinator's orders ---

    def _write(self) -> None:
        world = self._world
        task = self._any_task()
        deadline = Deadline.after(world.options.batch_deadline, world.clock)
        ownership = self._ownership = ownership_of(task, world.rng, world.clock)
        self._coordinator = coordinator_of(task, ownership, deadline, world.rng, committed=self._committed)
        self._coordinator.labels = map(self._labelled, self._coordinator.labels)
        if world.crowded:
            names = self._rooms.names if self._rooms is not None else frozenset[str]()
            threads = ScanThreads(1, len(TABLES) + 3)  # one stays free for queries, and the sink's own tables need two
            self._rooms = TableRooms(len(TABLES), threads, 2, self._plan.lanes, names)
        self._performer = Performer(
            task.options,
            NOTHING.transport,
            world.clock,
            deadline,
            world.rng,
            ownership=ownership,
            explainer=world.explainer(),
        )
        follow(self._coordinator.write(self._rooms), self._carry_out, self._written)

    def _labelled(self, label: str) -> str:
        """`label` with a number of this schedule's own: equal seeds have equal labels."""
        head, _, _ = label.rpartition("-")
        return f"{head}-{self._world.next_attempt()}_0"

    def _any_task(self, order: RunLanes | None = None) -> LaneTask:
        task = LaneTask(
            self._world.options_of(self.lanes), JOB, self.epoch, self.checkpoint.name, self._batch, not self.plain,
            True, self.session.ownership, keys=self._world.keys, hold=self.session.hold,
        )  # fmt: skip
        task = self._plan.task_of(task)
        return task if order is None else replace(task, lane_begins=order.lane_begins)

    def _written(self, result: object) -> None:
        assert self._coordinator is not None
        self._roll_back_claims()
        if isinstance(result, BaseException):
            self._end(result)
        elif self._coordinator.unsorted:
            self._world.trace.say(self.name, f"sorts from here: {self._coordinator.unsorted}")
            self._plan.disordered = True
            self._write()
        else:
            receipts: list[Receipt] = result  # type: ignore[assignment]
            self._committed_at_end = bool(receipts) and not receipts[-1].recycled
            if self._excluded and receipts:
                text = f"{self.name} wrote a micro-batch though the job was taken over before"
                self._world.checker.report("other", text)
            self._acknowledge()

    def _committed(self, receipt: Receipt) -> None:
        self._bounds.committed(receipt)
        self._world.checker.receipt(receipt)
        if self._ownership is None:
            return
        self.session.learn_receipt(receipt)
        listed = LaneReport(JOB, 0, self._batch, trouble=LaneTrouble(listed=self._ownership.listed))
        if self.session.learn_listed([listed]) != (self._listed is False):
            self._world.checker.report(
                "other", f"{self.name} says {listed.trouble.listed} of its label, the list {self._listed}"
            )
        if self.session.canary and not self._unanswered:
            self._world.checker.report("other", f"{self.name} commits, and did not ask whether its label is listed")
        self._ownership.listed = self._listed = None

    def _carry_out(self, order: Order, callback: Callable[[object], None]) -> None:
        if self.over:
            return
        match order:
            case RunLanes():
                self._run_lanes(order, callback)
            case NextRound():
                self._next_round()
                callback(None)
            case Pause(seconds):
                self.soon(seconds, callback, None)
            case _:
                self._perform(order, callback)

    def _perform(self, action: Any, callback: Callable[[object], None]) -> None:
        performer = self._performer
        assert performer is not None
        self._bounds.sent(action)

        def ended(result: object) -> None:
            if not self.over:
                if isinstance(result, Aborted):
                    self._bounds.ended()
                callback(result)

        if isinstance(action, CheckAction):
            perform(self, performer, action, self._world.network.send, ended, partial(self._looked_at, action.label))
        else:
            perform(self, performer, action, self._world.network.send, ended)

    def _looked_at(self, label: str, steps: Steps[Any]) -> Steps[None]:
        """`steps` of a check; remember what the list said. For a `blind` driver it has nothing."""
        answer: object = None
        while True:
            try:
                needed = steps.send(answer)
            except StopIteration:  # a check returns nothing
                return
            answer = yield needed
            if isinstance(needed, ListUnfinished):
                self._unanswered = not isinstance(answer, tuple)
                answer = () if self._blind and not self._unanswered else answer
                self._listed = label in answer if isinstance(answer, tuple) else None

    def _roll_back_claims(self) -> None:
        for claim in self._claims:
            steps = roll_back(Label(DATABASE, claim), RetryPolicy(), self._world.rng)
            Fiber(self, steps, self.scheduler.now + 5.0, self._world.network.send, _nothing)
        self._claims = []

    def _next_round(self) -> None:
        """All rows up to where the lanes have stopped are visible; those that are read again are left out."""

    # --- lanes ---

    def _run_lanes(self, order: RunLanes, callback: Callable[[object], None]) -> None:
        self._roll_back_claims()
        self._round += 1
        self._runs += 1
        if self._world.poison and self._runs == self._most_runs():
            self._world.checker.report("stuck", f"{self.name} searches for rejected rows, and finds no end")
        self._lanes_done, self._order = callback, order
        if order.lane_begins:
            self._bounds.sent(BeginAction(order.label))
            self._world.network.turns.open(order.label, self)
        self.slots = dict(self._layout())
        if not self.slots:
            self._all_over()
        for lane in list(self.slots):
            self.try_lane(lane, first=True)

    def _most_runs(self) -> int:
        """More runs than a quarantine may need, each of whose labels fails `max_attempts` times."""
        count = len(self._transactions())
        return self._world.options.max_attempts * count * (count.bit_length() + 2) + 1

    def _layout(self) -> dict[int, Slot]:
        if self.plain:
            return {lane: Slot([], Unit(rows.rows)) for lane, rows in self._units().items()}
        slots: dict[int, Slot] = {}
        self._in_order = True
        for number, (low, high) in enumerate(zip(self._begin, self._cut, strict=True)):
            for lane, (first, last) in self._tasks_of(number, low, high):
                if last > first:
                    self._in_order &= (first, last) == (low, high) or self.lanes == 1
                    slot = slots.setdefault(lane % self.lanes, Slot([]))
                    slot.transactions += self._source.released[number][first:last]
        return slots

    def _tasks_of(self, number: int, low: int, high: int) -> Iterable[tuple[int, tuple[int, int]]]:
        """The tasks with source partition `number`: at times there are two, where the tasks are the source's own."""
        middle = high
        if self._plan.reading is Reading.OWN_TASKS and self._world.profile.recut and self._rng.random() < 0.1:
            middle = self._rng.randint(low, high)
        return (number, (low, middle)), (number + 1, (middle, high))

    def _units(self) -> dict[int, Unit]:
        """The rows of the micro-batch over tasks, in any way."""
        parts: dict[int, list[Any]] = {}
        for row in self._unit.rows:
            parts.setdefault(self._rng.randrange(self.lanes), []).append(row)
        return {lane: Unit(tuple(rows)) for lane, rows in parts.items()}

    def try_lane(self, lane: int, first: bool = False) -> None:
        """Start a task for `lane`: the first one, a retry, or a speculative copy."""
        world, slot = self._world, self.slots.get(lane)
        if slot is None or self.over or slot.messages is not None:
            return  # the driver was paused meanwhile, and the round is another one now
        number = world.next_attempt()
        order = self._order
        task = self._any_task(order)
        ownership = self.session.ownership
        if ownership is not None:
            ownership = replace(ownership, positions=dict(ownership.positions), skips=dict(ownership.skips))
        task = replace(
            task, label=order.label, part=order.part, hold=order.hold, ownership=ownership, room=order.room,
            round_ends=world.clock.wall() + order.seconds, round_seconds=order.seconds,
        )  # fmt: skip
        attempt = Attempt(lane, number, bool(slot.attempts) or not first)
        repeated = SparkLane(task).repeated((), attempt, world.clock)
        if repeated is not None:  # it must not load
            self.soon(0.01, self._lane_over, slot, [repeated])
            return
        if task.claims and not task.lane_begins:
            self._claims.append(claim_of(order.label, lane))
        lane_attempt = self._attempt(slot, task, attempt)
        slot.attempts.append(lane_attempt)
        world.lanes.append(lane_attempt)
        self.soon(self._rng.random() * 0.05, lane_attempt.start)

    def _attempt(self, slot: Slot, task: LaneTask, attempt: Attempt) -> LaneAttempt:
        rng = Random(f"{self._world.seed}/{attempt.number}")
        source: InputStage | None = None
        if slot.unit is not None:
            batches = plain_batches(slot.unit, rng)
        elif task.ordered:
            batches = batches_of(slot.transactions, rng)
        else:
            few = rng.random() < 0.5
            batches = arriving_batches(slot.transactions, rng, few=few)
            source = ArrivingRows(small_rows=SMALL_ROWS if few else 0).open(attempt)
        return self._made(slot, task, attempt, batches, source)

    def _made(
        self, slot: Slot, task: LaneTask, attempt: Attempt, batches: list[pa.RecordBatch],
        source: InputStage | None, stop: Stop | None = None,
    ) -> LaneAttempt:  # fmt: skip
        cut = self._world.cut_off(batches)
        ended = partial(self._on_executor, slot, self._round, cut is not batches)
        name = f"{self.name}.{attempt.lane}.{attempt.number}"
        return LaneAttempt(self._world, name, task, attempt, cut, ended, source, stop)

    def _on_executor(
        self, slot: Slot, number: int, cut_off: bool, ended: LaneAttempt, result: list[Message] | BaseException
    ) -> None:
        self.soon(0.01, self._task_over, slot, number, ended, result, cut_off)

    def _task_over(
        self, slot: Slot, number: int, ended: LaneAttempt, result: list[Message] | BaseException, cut_off: bool
    ) -> None:
        """A task whose JVM died fails, whatever its lane believes; Spark tries it again."""
        if number != self._round:
            return
        lane = ended.attempt.lane
        if self._in_order and not cut_off and isinstance(result, (InputError, Unordered)):
            self._world.checker.report("other", f"{ended.name} refuses rows that are in order: {result}")
        if cut_off:
            self.task_failed(lane, ConnectionError("The JVM died."))
        elif isinstance(result, list):
            self._lane_over(slot, result)
        elif isinstance(result, (Unordered, TransactionTimedOut)) and self._may_sort(ended.task):
            self._lane_over(slot, [OrderViolation(result.message)])
        elif isinstance(result, StarRocksSinkError):
            self._lane_over(slot, [ended.report((), result).fail(result, self.scheduler.now)])
        else:
            self.task_failed(lane, result)

    def _may_sort(self, task: LaneTask) -> bool:
        return not (task.ordered or task.whole or self.plain)

    def task_failed(self, lane: int, error: BaseException) -> None:
        """Spark counts the failure: another try, or the end of the job."""
        slot = self.slots.get(lane)
        if slot is None or self.over or slot.messages is not None:
            return
        slot.failures += 1
        if slot.failures < self._world.profile.task_failures:
            self.soon(self._world.rng.uniform(0.01, 1.0), self._again, self._round, lane)
        else:
            self._end_lanes(error)

    def _again(self, number: int, lane: int) -> None:
        if not self.over and number == self._round:
            self.try_lane(lane)

    def _lane_over(self, slot: Slot, messages: list[Message]) -> None:
        if self.over or slot not in self.slots.values() or slot.messages is not None:
            return
        slot.messages = messages
        self._stop(attempt for attempt in slot.attempts if attempt.result is not messages)
        if all(slot.messages is not None for slot in self.slots.values()):
            self._all_over()

    def _all_over(self) -> None:
        messages = [message for slot in self.slots.values() for message in slot.messages or ()]
        self.session.learn_skips(of_kind(messages, LaneReport), keep=True)
        self.session.learn_keys(of_kind(messages, LaneReport))
        self._end_lanes(result_of(messages))

    def _end_lanes(self, result: object) -> None:
        self.ended_slots, self.slots = self.slots, {}
        self._round += 1
        begun = self._close()
        if isinstance(result, LanesResult):
            self._plan.asks = self._plan.asks and not result.unreached
            result = replace(result, begun=begun)
            if not begun:
                self._bounds.ended()
        self._stop(attempt for slot in self.ended_slots.values() for attempt in slot.attempts)
        self._lanes_done(result)

    def _close(self) -> bool:
        """No lane begins the label any more; whether one may have, or the driver has."""
        return not self._order.lane_begins or self._world.network.turns.close(self._order.label)

    def _stop(self, attempts: Iterable[LaneAttempt]) -> None:
        """Spark cancels what is not needed any more: at once, politely, or too late."""
        for attempt in attempts:
            self._world.end_task(attempt)

    # --- the end of a micro-batch ---

    def _acknowledge(self) -> None:
        self._world.trace.say(self.name, f"micro-batch {self._batch} is done")
        if self.disputed:
            self._world.checker.report("other", f"{self.name} took other content for what was written")
        self._world.checker.acknowledged(self.name, self._cut)
        if self._world.rng.random() < 0.8:
            proof = self.session.proof(self._batch)
            self._world.proofs.setdefault(self.checkpoint.name, []).append((self._offsets[: self._batch + 1], proof))
        self._batch += 1
        self.checkpoint.done = max(self.checkpoint.done, self._batch) if self.plain else self._batch
        self.checkpoint.newest = max(self.checkpoint.newest, self._batch)
        self.soon(self._world.rng.choice((0.0, 0.05, 1.0)), self._next_batch)

    # --- the end ---

    def _end(self, error: BaseException | None) -> None:
        if self.over:
            return
        self.over = True
        text = "all is written" if error is None else f"{type(error).__name__}: {error}"
        self._world.trace.say(self.name, f"ends: {text}")
        self._stop(attempt for slot in self.slots.values() for attempt in slot.attempts)
        if self.slots:
            self._close()
        if error is not None and self.session.token:
            family = LabelPrefix(JOB, self.epoch)
            Fiber(self, _end_all(family, self._world.rng), self.scheduler.now + 5.0, self._world.network.send, _nothing)
        self._world.driver_ended(self, error)


def _end_all(family: LabelPrefix, rng: Random) -> Steps[None]:
    """What the session does when it fails: roll back what it leaves open, as far as that is possible."""
    for name in (yield from retry_until_answered(ListUnfinished(family), rng)):
        yield from roll_back_until_confirmed(Label(DATABASE, name), rng)


def _over_another_ledger(kind: str, steps: Steps[Resumed]) -> Steps[Resumed]:
    """`steps` that read a ledger which was dropped, or restored from a backup of before the first position."""
    answer: object = None
    while True:
        try:
            needed = steps.send(answer)
        except StopIteration as ended:
            resumed: Resumed = ended.value
            return resumed
        answer = yield needed
        if isinstance(needed, ReadTraces) and isinstance(answer, Traces) and kind == "dropped":
            answer = Traces(known=False)
        if isinstance(needed, ReadPositions) and isinstance(answer, dict):
            answer = {}


def _nothing(result: object) -> None:
    """A clean-up that fails is nobody's business: the next take-over cleans up too."""


def _cut(begin: Cut, end: Cut, rng: Random) -> Cut:
    """Where the next micro-batch ends: some more of each source partition, at least one of something."""
    if rng.random() < 0.2:
        return end
    cut = tuple(rng.randint(low, min(high, low + 2)) for low, high in zip(begin, end, strict=True))
    return cut if cut != begin else end


def _shown(session: Session) -> str:
    return ", ".join(f"{name}@{position.position}" for name, position in sorted(session.positions.items())) or "none"
