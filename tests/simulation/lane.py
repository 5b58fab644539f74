"""One try of Spark's at a lane, put together by `LaneTry.open`; feeding and stepping mirror `writer.runner`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from starrocks_txn_sink.coordinator.lane import Lane, LaneAction
from starrocks_txn_sink.coordinator.model import LaneLimits, RegionRows, Result, Segment
from starrocks_txn_sink.coordinator.table_room import Crowded
from starrocks_txn_sink.errors import DeadlineExceeded, StarRocksSinkError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.protocol.label import Steps
from starrocks_txn_sink.writer.lane_try import LaneTry, NotReached
from starrocks_txn_sink.writer.messages import DriverUnreached, Message, RowsWait
from starrocks_txn_sink.writer.pipe import InputStage, Stop
from starrocks_txn_sink.writer.runner import DaemonThreadPool, Performer
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt, WorkerResources

from .bounds import Bounds
from .scheduler import Fiber, Node

if TYPE_CHECKING:
    from .world import World

Ended = Callable[["LaneAttempt", "list[Message] | BaseException"], None]
_GRACE = 15.0
_SCANS = (0.05, 0.1, 0.2, 0.4, 0.8)
NOTHING = WorkerResources(cast(HttpTransport, None), cast(DaemonThreadPool, None), None)  # fibers send


class LaneAttempt(Node):
    """A Spark task, on an executor of its own; `ended` gets its messages or its error, unless it was killed."""

    def __init__(
        self, world: World, name: str, task: LaneTask, attempt: Attempt, batches: list[pa.RecordBatch], ended: Ended,
        source: InputStage | None = None, stop: Stop | None = None,
    ) -> None:  # fmt: skip
        super().__init__(world.scheduler, name)
        self.attempt = attempt
        self.result: list[Message] | BaseException | None = None
        self.task = task
        self._world = world
        self._batches = batches
        self._ended = ended
        self._limits = _limits(world)
        self._try = LaneTry(task, attempt, world.clock, world.rng, source, stop)
        self.report, self._deadline = self._try.report, self._try.deadline
        self._segments: Iterator[Segment] = iter(())
        self._performer: Performer | None = None
        self._core: Lane | None = None
        self._feeding = True
        self._running_actions = 0
        self._scan = 0
        self._scanning = False
        self._error: BaseException | None = None
        self._bounds = Bounds(world.checker, name)

    def start(self) -> None:
        """Wait for the first input, and then have the lane, as far as the task has to."""
        self.soon(self._world.first_pause(), self._enter)

    def _enter(self) -> None:
        if self.task.claims or self.task.lane_begins:
            self._fiber(self._have_lane(), self._deadline.at, self._entered)
        else:
            self._open()

    def _have_lane(self) -> Steps[NotReached | None]:
        try:
            yield from self._try.have_lane()
        except NotReached as unreached:
            return unreached
        return None

    def _entered(self, result: object) -> None:
        if isinstance(result, NotReached):
            self._end([DriverUnreached(result.host), self.report(())])
        elif isinstance(result, BaseException):
            self._end(result)
        elif self.result is None:  # what it reads first is not always a row to load
            pause = self._world.first_pause()
            if pause:
                self._world.copy_within(pause, self)
            self.soon(pause, self._open)

    def _fiber(self, steps: Any, deadline: float, callback: Callable[[Any], None]) -> None:
        Fiber(self, steps, deadline, self._world.network.send, callback)

    def _open(self) -> None:
        if self.result is not None:
            return
        lane = self._try.open(self._batches, NOTHING, lane_limits=self._limits)
        self._core, self._performer, self._segments = lane.core, lane.performer, iter(lane.segments)
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
            except (StarRocksSinkError, Crowded) as error:
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
        """Spark cancels the task."""
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

    def _do(self, action: LaneAction) -> None:
        self._running_actions += 1
        self._scan = 0
        steps, deadline = self._acting.steps(action)
        self._fiber(steps, deadline.at, lambda result: self._completed(action, result))

    def _completed(self, action: LaneAction, result: Result) -> None:
        self._running_actions -= 1
        core = self._core
        assert core is not None
        try:
            core.complete(action, result)
        except Exception as bug:
            self._end(bug)
            return
        self._bounds.buffered(core.buffer.buffered_bytes, self._limits)
        if self._feeding:
            self._feed()
        else:
            self._pump()

    def _conclude(self, core: Lane) -> None:
        if self._error is not None:
            self._end(self._error)
        elif core.error is not None:
            self._end(core.error)
        elif not self._feeding:
            loaded = [core.receipt] if core.receipt is not None else []
            self._end([self._try.share(loaded), self.report(loaded)])

    def _end(self, result: list[Message] | BaseException) -> None:
        if isinstance(result, Crowded):
            result = [RowsWait(result.waits), self.report(())]
        if self.result is None:
            self.result = result
            text = "loaded" if isinstance(result, list) else f"{type(result).__name__}: {result}"
            self._world.trace.say(self.name, f"ends: {text}")
            self._ended(self, result)


def _limits(world: World) -> LaneLimits:
    profile = world.profile
    return LaneLimits(
        mini_interval=0.1,
        timeout=world.options.timeout,
        buffer_bytes=profile.buffer_bytes,
        chunk_bytes=profile.chunk_bytes,
        load_bytes=profile.load_bytes,
        load_parallelism=profile.load_parallelism,
        body_bytes=150 if world.keys else 2000,  # held rows of a table then need several loads
    )
