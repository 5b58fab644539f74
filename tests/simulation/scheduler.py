"""Virtual time: a heap of events, nodes that can be paused and killed, and fibers that step through a protocol.

A fiber drives one generator of steps, one request at a time, so that everything else may happen in between. There are
no threads; equal seeds give equal histories.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.errors import DeadlineExceeded, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Steps, Wait

Send = Callable[[Any, "Fiber"], None]
Done = Callable[[object], None]


class Scheduler:
    """`now` is seconds since the schedule began; events at the same time run in the order they were made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.executed = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        self._made += 1
        heapq.heappush(self._heap, (self.now + seconds, self._made, call, args))

    def run(self, limit: float, most: int) -> bool:
        """Run until nothing is left; False when there is more at time `limit`, or after `most` events."""
        heap = self._heap
        while heap:
            if heap[0][0] > limit or self.executed >= most:
                return False
            self.now, _, call, args = heapq.heappop(heap)
            self.executed += 1
            call(*args)
        return True


@dataclass(slots=True)
class SimulatedClock:
    """`clock.Clock` for the core; `offset` is how far the wall clock has been set wrong."""

    scheduler: Scheduler
    offset: float = 0.0

    def monotonic(self) -> float:
        return self.scheduler.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.scheduler.now + self.offset

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing sleeps in a simulation ({seconds} s)")


class Node:
    """A process that may be paused (a zombie that wakes up) or killed: its fibers stop with it."""

    stall = 0.0  # the least share of its commits that get no answer while it hangs

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.paused_until = 0.0

    def when_awake(self, call: Callable[..., None], *args: Any) -> None:
        """Call now, or when the node wakes up; never when it is dead."""
        if not self.alive:
            return
        if self.paused_until > self.scheduler.now:
            self.scheduler.after(self.paused_until - self.scheduler.now, self.when_awake, call, *args)
        else:
            call(*args)

    def soon(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        self.scheduler.after(seconds, self.when_awake, call, *args)


class Fiber:
    """A protocol on its way: `done` gets what it returned, or the error it raised. Mirrors `transaction.steps.run`."""

    def __init__(self, node: Node, steps: Steps[Any], deadline: float, send: Send, callback: Done) -> None:
        self.node = node
        self.deadline = deadline
        self.faults = 0
        self.at_end: Callable[[], None] = _nothing
        self._steps = steps
        self._send = send
        self._done = callback
        node.when_awake(self._step, None)

    def resume(self, answer: object) -> None:
        self.node.when_awake(self._step, answer)

    def left(self) -> float:
        return self.deadline - self.node.scheduler.now

    def _step(self, answer: object) -> None:
        try:
            needed = self._steps.send(answer)
        except StopIteration as ended:
            self._end(ended.value)
            return
        except StarRocksSinkError as error:
            self._end(error)
            return
        if self.left() <= 0.0:
            self._steps.close()
            self._end(DeadlineExceeded("The deadline passed."))
        elif isinstance(needed, Wait):
            self.node.soon(min(needed.seconds, self.left()), self._step, None)
        else:
            self._send(needed, self)

    def _end(self, result: object) -> None:
        self.at_end()
        self._done(result)


def _nothing() -> None:
    """Nobody waits for this fiber's end."""
