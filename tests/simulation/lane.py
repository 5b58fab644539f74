"""One try of Spark's at a lane, put together by `LaneTry.open`; feeding and stepping mirror `writer.runner`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.model import (
    RECYCLE_AT,
    Action,
    CheckAction,
    CoordinatorLimits,
    Receipt,
    RegionRows,
    Result,
    Segment,
)
from starrocks_txn_sink.coordinator.ownership import LaneOwnership
from starrocks_txn_sink.errors import DeadlineExceeded, StarRocksSinkError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.protocol.label import Steps
from starrocks_txn_sink.protocol.ledger import ListUnfinished
from starrocks_txn_sink.writer.runner import DaemonThreadPool, Performer
from starrocks_txn_sink.writer.task import LaneTask, LaneTry, OpenLane, ReadRows
from starrocks_txn_sink.writer.worker import Attempt, WorkerResources

from .bounds import LETTERS, Bounds
from .scheduler import Fiber, Node

if TYPE_CHECKING:
    from .world import World

Ended = Callable[["LaneAttempt", "list[Receipt] | BaseException"], None]
_GRACE = 15.0
_SCANS = (0.05, 0.1, 0.2, 0.4, 0.8)
_NOTHING = WorkerResources(cast(HttpTransport, None), cast(DaemonThreadPool, None), None)  # fibers send


class LaneAttempt(Node):
    """A Spark task, on an executor of its own; `ended` gets its receipts or its error, unless it was killed."""

    def __init__(
        self, world: World, name: str, task: LaneTask, attempt: Attempt, batches: list[pa.RecordBatch], ended: Ended,
        rows: ReadRows | None = None,
    ) -> None:  # fmt: skip
        super().__init__(world.scheduler, name)
        self.attempt = attempt
        self.writer = f"{task.job}-{task.epoch}-{attempt.lane}-{task.batch_id}-{attempt.number}"
        self.holds = not attempt.retry  # may write: it was first, or has taken the lane over
        self.result: list[Receipt] | BaseException | None = None
        self.task = task
        self._world = world
        self._batches = batches
        self._ended = ended
        self._rows = rows
        self._limits = _limits(world, task)
        self.blind = Random(name + str(world.seed)).random() < 0.1  # the list hides its labels from it
        self.listed: bool | None = None
        self.unanswered = False
        self._try = LaneTry(task, attempt, world.clock, world.rng)
        self.metrics, self._deadline = self._try.metrics, self._try.deadline
        self.shared = task.label is not None  # then the driver commits
        assert self.shared or self._try.ownership is not None
        self._segments: Iterator[Segment] = iter(())
        self._performer: Performer | None = None
        self._core: SharedTransactionCoordinator | None = None
        self._feeding = True
        self._running_actions = 0
        self._scan = 0
        self._scanning = False
        self._error: BaseException | None = None
        self._bounds = Bounds(world.checker, name, LETTERS if task.options.quarantines else 0)

    @property
    def ownership(self) -> LaneOwnership:
        assert self._try.ownership is not None
        return self._try.ownership

    def start(self) -> None:
        steps = self._try.open(self._batches, _NOTHING, self._rows, coordinator_limits=self._limits)
        self._fiber(steps, self._deadline.at, self._opened)

    def _fiber(self, steps: Any, deadline: float, done: Callable[[Any], None]) -> None:
        Fiber(self, steps, deadline, self._world.network.send, done)

    def _opened(self, result: object) -> None:
        if not isinstance(result, OpenLane):
            assert isinstance(result, BaseException)
            self._end(result)
            return
        if self.attempt.retry:
            self.holds = True
            self._world.lane_taken_over(self)
        self._core, self._performer, self._segments = result.core, result.performer, iter(result.segments)
        self.soon(self._deadline.remaining(), self._too_late)
        self._feed()

    # --- rows in ---

    def _feed(self) -> None:
        core = self._core
        assert core is not None
        while self._feeding and self._error is None and not core.saturated:
            if core.finished and core.error is not None:
                break
            try:
                segment = next(self._segments, None)
            except StarRocksSinkError as error:
                self._give_up(error)
                return
            now = self.scheduler.now
            if segment is None:
                self._feeding = False
                try:
                    core.finish(now)
                except StarRocksSinkError as error:  # the source partition goes on in another task
                    self._give_up(error)
                    return
                break
            if isinstance(segment, RegionRows):
                self._bounds.written(segment.piece.nbytes)
            core.take(segment, now)
            self._bounds.buffered(core.buffer.buffered_bytes, self._limits)
            pause = self._world.row_pause()
            if pause:
                self._feeding = False
                self.soon(pause, self._feed_again)
        self._pump()

    def _feed_again(self) -> None:
        self._feeding = True
        self._feed()

    def _give_up(self, error: BaseException) -> None:
        assert self._core is not None
        if self._error is None:
            self._error = error
            cause = error if isinstance(error, StarRocksSinkError) else StarRocksSinkError("The lane was stopped.")
            self._core.fail(cause)
            self.soon(_GRACE, self._end, error)
            self._pump()

    def _too_late(self) -> None:
        if self.result is None:
            self._give_up(DeadlineExceeded("The batch's deadline passed."))

    def stop(self) -> None:
        """Spark cancels the task: the lane rolls back what is open, as far as it can."""
        if self.result is None and self._core is not None:
            self._give_up(InterruptedError("stopped"))
        else:
            self.alive = False

    # --- actions out ---

    @property
    def _acting(self) -> Performer:
        assert self._performer is not None
        return self._performer

    def _pump(self) -> None:
        core = self._core
        if self.result is not None or core is None:
            return
        try:
            actions = core.tick(self.scheduler.now)
            if core.finished:
                self._conclude(core)
                return
            for action in actions:
                self._do(action)
        except Exception as bug:  # a bug in the core is a finding
            self._end(bug)
            return
        if not self._running_actions and not self._scanning:
            self._scanning = True
            self.soon(_SCANS[min(self._scan, 4)], self._look)
            self._scan += 1

    def _look(self) -> None:
        self._scanning = False
        self._pump()

    def _do(self, action: Action) -> None:
        self._running_actions += 1
        self._scan = 0
        self._bounds.sent(action)
        steps, deadline = self._acting.steps(action)
        if isinstance(action, CheckAction):
            steps = self._looked_at(action.label, steps)
        self._fiber(steps, deadline.at, lambda result: self._completed(action, result))

    def _looked_at(self, label: str, steps: Steps[Result]) -> Steps[None]:
        """`steps` of a check; remember what the list said. For the canary of a `blind` attempt it has nothing."""
        answer: object = None
        while True:
            try:
                needed = steps.send(answer)
            except StopIteration:  # a check returns nothing
                return
            answer = yield needed
            if isinstance(needed, ListUnfinished):
                self.unanswered = not isinstance(answer, tuple)
                answer = () if self.blind and not self.unanswered else answer
                self.listed = label in answer if isinstance(answer, tuple) else None

    def _completed(self, action: Action, result: Result) -> None:
        self._running_actions -= 1
        core = self._core
        assert core is not None
        before = len(core.receipts)
        try:
            core.complete(action, self._result(action, result), self.scheduler.now)
        except Exception as bug:
            self._end(bug)
            return
        self._bounds.buffered(core.buffer.buffered_bytes, self._limits)
        for receipt in () if self.shared else core.receipts[before:]:
            self._bounds.committed(receipt)
            self._world.checker.receipt(receipt)
        if self._feeding:
            self._feed()
        else:
            self._pump()

    def _result(self, action: Action, result: Result) -> Result:
        """As the lane's runner reports it: an error that was raised is a result too."""
        try:
            return (
                self._acting.result_after_deadline(action, result) if isinstance(result, DeadlineExceeded) else result
            )
        except DeadlineExceeded as error:
            return error

    def _conclude(self, core: SharedTransactionCoordinator) -> None:
        if self._error is not None:
            self._end(self._error)
        elif core.error is not None:
            self._end(core.error)
        elif not self._feeding:
            self._end(list(core.receipts))

    def _end(self, result: list[Receipt] | BaseException) -> None:
        if self.result is None:
            self.result = result
            said = f"{len(result)} receipts" if isinstance(result, list) else f"{type(result).__name__}: {result}"
            self._world.trace.say(self.name, f"ends: {said}")
            self._ended(self, result)


def _limits(world: World, task: LaneTask) -> CoordinatorLimits:
    profile = world.profile
    return CoordinatorLimits(
        commit_interval=None if task.at_end_only else profile.commit_interval,
        mini_interval=0.1,
        timeout=world.options.timeout,
        buffer_bytes=profile.buffer_bytes,
        chunk_bytes=profile.chunk_bytes,
        load_bytes=profile.load_bytes,
        retry_buffer_bytes=profile.retry_buffer_bytes,
        load_parallelism=profile.load_parallelism,
        max_attempts=world.options.max_attempts,
        body_bytes=150 if world.keys else 2000,  # held rows of a table then need several loads
        recycle_at=math.inf if task.at_end_only else RECYCLE_AT,
        close_bytes=profile.load_bytes if world.options.quarantines else None,
    )
