"""A driver: one run of a streaming query that takes its job over and writes micro-batch after micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import DeadlineExceeded
from starrocks_txn_sink.protocol.fencing import Scope, delete_dead_claims, roll_back_until_confirmed, take_over
from starrocks_txn_sink.protocol.label import Label, LabelPrefix, Steps
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
from starrocks_txn_sink.sink.session import Resumed, Resumption, Session, resume
from starrocks_txn_sink.writer.messages import LaneReport
from starrocks_txn_sink.writer.task import LaneTask, ReadRows
from starrocks_txn_sink.writer.worker import Attempt

from .arriving import arrival_rows, arriving_batches
from .lane import LaneAttempt
from .plain import PlainChecker, Unit, plain_batches, units_of
from .scheduler import Fiber, Node
from .source import Cut, SourceTransaction, batches_of

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
    """A lane of a micro-batch: its rows, and the tries at it."""

    transactions: list[SourceTransaction]
    unit: Unit | None = None  # plain rows
    attempts: list[LaneAttempt] = field(default_factory=list)
    failures: int = 0
    receipts: list[Receipt] | None = None


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
        self._cut: Cut = ()
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
        scope = Scope(JOB, DATABASE, Owner("", self.epoch, self.checkpoint.name))
        steps = take_over(scope, fresh_tokens(self.epoch, 0, world.rng), world.rng)
        resumption = Resumption(self._batch, world.proofs.get(self.checkpoint.name, []))
        resuming = resume(resumption, JOB, self.checkpoint.name, steps, world.rng)
        if self.oddity in LEDGERS:
            resuming = _over_another_ledger(self.oddity, resuming)
        world.trace.say(self.name, f"starts on checkpoint {self.checkpoint.name}, micro-batch {self._batch}")
        self._fiber = Fiber(
            self, resuming, self.scheduler.now + world.options.batch_deadline, world.network.send, self._taken_over
        )

    def _taken_over(self, result: object) -> None:
        if isinstance(result, Resumed):
            taken = result.taken
            self.session.token, self.session.positions = taken.owner.token, taken.positions
            self.session.skips = dict(result.skips)
            if self.oddity in LEDGERS:
                self._world.checker.report("lost", f"{self.name} goes on over a {self.oddity} ledger")
            self._world.trace.say(self.name, f"has the job; positions {_shown(self.session)}")
            self._world.driver_taken_over()
            self._forget_dead_claims(taken.owner)
            self._next_batch()
            return
        assert isinstance(result, BaseException)
        if isinstance(result, DeadlineExceeded) and self._world.undisturbed(self._fiber):
            self._world.checker.report("stuck", f"{self.name} could not take over though nothing disturbed it")
        self._end(result)

    def _forget_dead_claims(self, mine: Owner) -> None:
        """In production it comes before the first micro-batch; here while it runs, which is harder on the protocol."""
        steps = delete_dead_claims(JOB, mine, self._world.rng)
        Fiber(self, steps, self.scheduler.now + 5.0, self._world.network.send, _nothing)

    # --- micro-batches ---

    def _next_batch(self) -> None:
        world = self._world
        begin = self._offsets[self._batch - 1] if self._batch else tuple(0 for _ in self._source.end)
        if self._batch >= len(self._offsets):
            if begin == self._source.end:
                self._end(None)
                return
            self._offsets.append(_cut(begin, self._source.end, world.rng))
        elif world.profile.recut:
            self._offsets[self._batch :] = [_cut(begin, self._source.end, world.rng)]
        if not self.plain:
            self.checkpoint.offsets = list(self._offsets)
        self._cut = self._offsets[self._batch]
        self._excluded = world.checker.is_superseded(self.writer)
        world.trace.say(self.name, f"micro-batch {self._batch}: {begin} to {self._cut}")
        self.slots = self._plain_slots(begin) if self.plain else self._marked_slots(begin)
        if not self.slots:
            self._acknowledge()
        for lane in list(self.slots):
            self.try_lane(lane, first=True)

    def _marked_slots(self, begin: Cut) -> dict[int, Slot]:
        slots: dict[int, Slot] = {}
        for number, (low, high) in enumerate(zip(begin, self._cut, strict=True)):
            if high > low:
                slot = slots.setdefault(number % self.lanes, Slot([]))
                slot.transactions += self._source.released[number][low:high]
        return slots

    def _plain_slots(self, begin: Cut) -> dict[int, Slot]:
        released = self._world.source.released
        ends = enumerate(zip(begin, self._cut, strict=True))
        units = units_of([one for number, (low, high) in ends for one in released[number][low:high]], self.lanes)
        for lane, unit in units.items():
            assert isinstance(self._world.checker, PlainChecker)
            self._world.checker.planned(f"{self.writer}-{lane}-{self._batch}", unit)
            if self._retold and self._is_written(lane):
                units[lane], self._disputed = unit.retold(), self._batch
        self._retold = False
        return {lane: Slot([], unit) for lane, unit in units.items()}

    def _is_written(self, lane: int) -> bool:
        name = f"{self.checkpoint.name}/{lane}/{self.lanes}"
        row = self._world.cluster.server.store.ledger.get((JOB, POSITION, name))
        return row is not None and row["position"] == self._batch

    @property
    def disputed(self) -> bool:
        """Whether the micro-batch has other content now than when it was written."""
        return self._disputed == self._batch

    def try_lane(self, lane: int, first: bool = False) -> None:
        """Start a task for `lane`: the first one, a retry, or a speculative copy."""
        world, slot = self._world, self.slots.get(lane)
        if slot is None or self.over or slot.receipts is not None:
            return  # the driver was paused meanwhile, and the micro-batch is another one now
        ownership = self.session.ownership
        assert ownership is not None
        ownership = replace(ownership, positions=dict(ownership.positions), skips=dict(ownership.skips))
        options = world.options_of(self.lanes)
        task = LaneTask(
            options,
            JOB,
            self.epoch,
            self.checkpoint.name,
            self._batch,
            not self.plain,
            True,
            ownership,
            keys=world.keys,
            hold=self.session.hold,
        )
        batches = plain_batches(slot.unit, world.rng) if slot.unit else batches_of(slot.transactions, world.rng)
        number = world.next_attempt()
        task, batches, rows = self._perhaps_unsorted(slot, task, batches, Random(f"{world.seed}/{number}"))
        name = f"{self.name}.{lane}.{number}"
        attempt = LaneAttempt(
            world,
            name,
            task,
            Attempt(lane, number, not first),
            world.cut_off(batches),
            lambda ended, result: self.soon(0.01, self._task_ended, slot, lane, ended, result),
            rows,
        )
        slot.attempts.append(attempt)
        world.lanes.append(attempt)
        self.soon(world.rng.random() * 0.05, attempt.start)

    def _perhaps_unsorted(
        self, slot: Slot, task: LaneTask, batches: list[pa.RecordBatch], rng: Random
    ) -> tuple[LaneTask, list[pa.RecordBatch], ReadRows | None]:
        """With one lane a micro-batch may come as it is, in every fourth schedule: such lanes commit only at their end.

        One that comes again may come in another way.
        """
        sort = self._world.seed % 4 != 1 or rng.random() < 0.5
        if sort or self.lanes > 1 or slot.unit or task.options.quarantines:
            return task, batches, None
        few = rng.random() < 0.5
        batches = arriving_batches(slot.transactions, rng, few=few)
        return replace(task, at_end_only=True), batches, arrival_rows(few=few)

    def _task_ended(self, slot: Slot, lane: int, attempt: LaneAttempt, result: list[Receipt] | BaseException) -> None:
        if self.over or self.slots.get(lane) is not slot or slot.receipts is not None:
            return
        if isinstance(result, list):
            slot.receipts = result
            self._learn(attempt, attempt.metrics.report(result))
            self._stop(other for other in slot.attempts if other is not attempt)
            if all(one.receipts is not None for one in self.slots.values()):
                self._batch_done()
            return
        self.task_failed(lane, result)

    def _learn(self, attempt: LaneAttempt, report: LaneReport) -> None:
        """What the lane reports in addition to its receipts; the driver must hear of a label that the list hides."""
        asks = attempt.task.ownership is not None and attempt.task.ownership.canary and not attempt.unanswered
        checker = self._world.checker
        if self.session.learn_listed([report]) != (attempt.listed is False):
            checker.report("other", f"{attempt.name} says {report.listed} of its label, the list {attempt.listed}")
        if asks and report.committed and report.listed is None:
            checker.report("other", f"{attempt.name} is the first to commit, and did not ask whether it is listed")
        self.session.learn_skips([report])
        self.session.learn_keys([report])

    def task_failed(self, lane: int, error: BaseException) -> None:
        """Spark counts the failure: another try, or the end of the query."""
        slot = self.slots.get(lane)
        if slot is None or self.over or slot.receipts is not None:
            return
        slot.failures += 1
        if slot.failures < self._world.profile.task_failures:
            self.soon(self._world.rng.uniform(0.01, 1.0), self._again, self._batch, lane)
        else:
            self._end(error)

    def _again(self, batch: int, lane: int) -> None:
        if not self.over and batch == self._batch and self.slots[lane].receipts is None:
            self.try_lane(lane)

    def _stop(self, attempts: object) -> None:
        """Spark cancels what is not needed any more: at once, politely, or too late."""
        for attempt in attempts:  # type: ignore[attr-defined]
            self._world.end_task(attempt)

    def _batch_done(self) -> None:
        receipts = [receipt for slot in self.slots.values() for receipt in slot.receipts or []]
        self.session.learn(receipts)
        if self._excluded and receipts:
            self._world.checker.report("other", f"{self.name} wrote a micro-batch though the job was taken over before")
        self._acknowledge()

    def _acknowledge(self) -> None:
        self._world.trace.say(self.name, f"micro-batch {self._batch} is done")
        if self.disputed:
            self._world.checker.report("other", f"{self.name} took other content for what was written")
        self._world.checker.acknowledged(self.name, self._cut)
        if self._world.rng.random() < 0.8:
            proof = self.session.proof(self._batch)
            self._world.proofs.setdefault(self.checkpoint.name, []).append(proof)
        self._batch += 1
        self.checkpoint.done = max(self.checkpoint.done, self._batch) if self.plain else self._batch
        self.checkpoint.newest = max(self.checkpoint.newest, self._batch)
        self.soon(self._world.rng.choice((0.0, 0.05, 1.0)), self._next_batch)

    # --- the end ---

    def _end(self, error: BaseException | None) -> None:
        if self.over:
            return
        self.over = True
        said = "all is written" if error is None else f"{type(error).__name__}: {error}"
        self._world.trace.say(self.name, f"ends: {said}")
        self._stop(attempt for slot in self.slots.values() for attempt in slot.attempts)
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
