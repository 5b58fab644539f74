"""The lane at work: the task's thread feeds rows, a manager thread decides, a pool of threads talks to the server.

All waiting is here, and none of it is without a deadline. The threads are daemons: one that hangs in spite of its
socket timeouts can neither keep the deadline from firing nor the process from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator.actions import Action, Receipt
from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.region import RegionRows, Segment, TransactionEnds
from starrocks_txn_sink.errors import DeadlineExceeded, StarRocksSinkError

Perform = Callable[[Action], object]

_SCAN_SECONDS = 0.05  # how often the manager looks at the clock when nothing happens
_GRACE_SECONDS = 15.0  # what a lane that gives up may spend on rolling its label back


class DaemonThreadPool:
    """Threads that run what is handed to them; kept between batches, because connections stay with them.

    Not a ThreadPoolExecutor: Python waits for that one's threads before it ends, so a request that hangs would keep the
    process.
    """

    def __init__(self, size: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Let the threads end once they are done with what they do now."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class LaneRunner:
    """Runs one coordinator to its end: `run` returns the receipts or raises the first error."""

    def __init__(
        self,
        core: SharedTransactionCoordinator,
        perform: Perform,
        threads: DaemonThreadPool,
        clock: Clock,
        deadline: Deadline,
    ) -> None:
        self._core = core
        self._perform = perform
        self._threads = threads
        self._clock = clock
        self._deadline = deadline
        self._changed = threading.Condition()
        self._bug: BaseException | None = None
        self._over = False

    def run(self, segments: Iterable[Segment]) -> list[Receipt]:
        """Feed all segments, commit them, and return one receipt a StarRocks transaction.

        Raises the coordinator's error, or untouched whatever `segments` raises (a stop of the query above all); in both
        cases the open label has been rolled back, as far as the server let us.
        """
        manager = threading.Thread(
            target=self._guarded, args=(self._manage,), name="starrocks-lane-manager", daemon=True
        )
        manager.start()
        try:
            return self._run(segments)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _run(self, segments: Iterable[Segment]) -> list[Receipt]:
        try:
            for segment in segments:
                self._feed(segment)
            with self._changed:
                self._core.finish(self._clock.monotonic())
                self._changed.notify_all()
        except BaseException as error:
            self._give_up(error)
            raise
        self._await(lambda: self._core.finished, self._deadline)
        if self._core.error is not None:
            raise self._core.error
        return self._core.receipts

    def _feed(self, segment: Segment) -> None:
        with self._changed:
            self._await_locked(lambda: not self._core.saturated, self._deadline)
            if self._core.finished and self._core.error is not None:
                raise self._core.error
            now = self._clock.monotonic()
            match segment:
                case RegionRows(partition, table, piece, rows):
                    self._core.write(partition, table, piece, rows, now, segment.row_index)
                case TransactionEnds():
                    self._core.end_transactions(segment, now)
            self._changed.notify_all()

    def _give_up(self, error: BaseException) -> None:
        cause = error if isinstance(error, StarRocksSinkError) else _stopped(error)
        with self._changed:
            self._core.fail(cause)
            self._changed.notify_all()
            limit = self._clock.monotonic() + _GRACE_SECONDS
            while not self._core.finished and self._bug is None and (left := limit - self._clock.monotonic()) > 0:
                self._changed.wait(left)

    def _await(self, reached: Callable[[], bool], deadline: Deadline) -> None:
        with self._changed:
            self._await_locked(reached, deadline)

    def _await_locked(self, reached: Callable[[], bool], deadline: Deadline) -> None:
        while not reached():
            if self._bug is not None:
                raise self._bug
            if deadline.expired():
                error = DeadlineExceeded(f"The batch's deadline passed during {self._core.waiting_for}.")
                self._give_up(error)
                raise error
            self._changed.wait(min(deadline.remaining(), 1.0))

    def _manage(self) -> None:
        """The manager thread: ask the coordinator what is due, hand it to the threads, until the lane is finished."""
        while True:
            with self._changed:
                actions = self._core.tick(self._clock.monotonic())
                if self._core.finished or self._over:
                    self._changed.notify_all()
                    return
                if not actions:
                    self._changed.wait(_SCAN_SECONDS)
            for action in actions:
                self._threads.submit(partial(self._guarded, partial(self._do, action)))

    def _guarded(self, work: Callable[[], None]) -> None:
        """A bug in one of the threads must end the lane at once, not at its deadline."""
        try:
            work()
        except BaseException as bug:
            with self._changed:
                self._bug = self._bug or bug
                self._changed.notify_all()

    def _do(self, action: Action) -> None:
        try:
            result = self._perform(action)
        except StarRocksSinkError as error:
            result = error
        except Exception as error:  # a bug must end the lane, not a thread
            result = StarRocksSinkError(f"{type(action).__name__} failed: {type(error).__name__}: {error}")
            result.__cause__ = error
        with self._changed:
            self._core.complete(action, result, self._clock.monotonic())
            self._changed.notify_all()


def _stopped(error: BaseException) -> StarRocksSinkError:
    return StarRocksSinkError(f"The lane was stopped by {type(error).__name__}.")
