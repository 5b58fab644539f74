"""Connector scan threads of a backend: who holds one, who waits, and what waits with them (wire contract 4.16).

The load of a (label, table) in multi mode takes a thread with its first body, and reads its pipe there until the pipe
ends: at commit, at rollback, or at the `timeout` of begin. Scans of some relations of information_schema need a thread
for a moment. Threads are given in the order of arrival. A load whose pipe has ended is read in two steps, and between
the two another one may get its thread: so a commit, which ends the pipes one after the other, can wait for itself.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_LOOK_SECONDS = 0.05
"""Between two looks of who waits at the clock and at the emulator's end, which nobody announces."""
_READ_BY_ONE = frozenset({"loads", "load_tracking_logs"})
"""Relations that one backend scans."""
_READ_BY_ALL = frozenset({"be_configs", "be_tablets"})
"""Relations that every backend scans."""

Key = tuple[str, str]
"""A label, and a table."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One place in the queue of a backend. `ended`: nothing more will come; `read`: the first step is done."""

    until: float
    key: Key | None = None
    ended: bool = False
    read: bool = False


class ScanThreads:
    """The threads of one backend; `count` says how many, which grows at once and shrinks never (wire contract 4.16).

    `now` is the emulator's clock. `stopped` ends all waiting. `peak` is the most loads that there were at once,
    `unread` how often a commit came to a load that was not read at once.
    """

    def __init__(self, count: Callable[[], int], now: Callable[[], float], stopped: Callable[[], bool]) -> None:
        self._count, self._now, self._stopped = count, now, stopped
        self._queue: list[Ticket] = []  # the first ones have a thread
        self._changed = threading.Condition()
        self._size = count()
        self.peak = 0
        self.unread = 0

    @property
    def size(self) -> int:
        """All threads."""
        with self._changed:
            self._advance()
            return self._size

    @property
    def running(self) -> int:
        """Threads in use."""
        with self._changed:
            self._advance()
            return min(len(self._queue), self._size)

    @property
    def waiting(self) -> int:
        """Loads and scans without a thread."""
        with self._changed:
            self._advance()
            return max(0, len(self._queue) - self._size)

    def hold(self, key: Key, until: float) -> None:
        """Queue up for a thread, unless the load has one or waits for one; it keeps it until the time `until`."""
        with self._changed:
            if all(ticket.key != key for ticket in self._queue):
                self._queue.append(Ticket(until, key))
                self.peak = max(self.peak, sum(ticket.key is not None for ticket in self._queue))

    def end(self, key: Key) -> None:
        """End the pipe of a load: once it has a thread, it is read to its end."""
        with self._changed:
            for ticket in self._queue:
                if ticket.key == key:
                    ticket.ended = True
            self._advance()

    def wait(self, key: Key, until: float) -> bool:
        """Wait until the load is read to its end; False if the time `until` or the emulator's end comes first."""
        if self._wait(lambda: all(ticket.key != key for ticket in self._queue), until):
            return True
        with self._changed:
            self.unread += 1
        return False

    def drop(self, label: str | None = None) -> None:
        """Take the loads of a label out, or all; who waits for one goes on."""
        with self._changed:
            self._queue = [
                ticket for ticket in self._queue if ticket.key is None or (label is not None and ticket.key[0] != label)
            ]
            self._advance()
            self._changed.notify_all()

    @contextmanager
    def scan(self, until: float) -> Iterator[bool]:
        """Hold a thread; yields False if none was free until the time `until`."""
        ticket = Ticket(until)
        with self._changed:
            self._queue.append(ticket)
        try:
            yield self._wait(lambda: ticket in self._queue[: self._size], until)
        finally:
            with self._changed:
                if ticket in self._queue:
                    self._queue.remove(ticket)
                self._advance()
                self._changed.notify_all()

    def _wait(self, reached: Callable[[], bool], until: float) -> bool:
        with self._changed:
            while True:
                self._advance()
                if reached():
                    return True
                if self._stopped() or self._now() >= until:
                    return False
                self._changed.wait(_LOOK_SECONDS)

    def _advance(self) -> None:
        """Read what has ended and has a thread, until nothing changes. Lock held.

        Only a change wakes who waits: two of them would wake each other for ever.
        """
        before = self._size, self._queue
        self._size = max(self._size, self._count())
        now = self._now()
        self._queue = [ticket for ticket in self._queue if ticket.key is None or ticket.until > now]
        while ended := [ticket for ticket in self._queue[: self._size] if ticket.ended]:
            for ticket in ended:
                self._queue.remove(ticket)
                if not ticket.read:
                    ticket.read = True
                    self._queue.append(ticket)
        if (self._size, self._queue) != before:
            self._changed.notify_all()


class WaitingCommits:
    """Commits that wait for their loads' ends: each holds the lock of its label, which reading its loads needs, too."""

    def __init__(self, now: Callable[[], float], stopped: Callable[[], bool]) -> None:
        self._now, self._stopped = now, stopped
        self._labels: set[tuple[str, str]] = set()
        self._changed = threading.Condition()

    @contextmanager
    def at(self, database: str, label: str) -> Iterator[None]:
        """Hold the label's lock."""
        with self._changed:
            self._labels.add((database, label))
        try:
            yield
        finally:
            with self._changed:
                self._labels.discard((database, label))
                self._changed.notify_all()

    def wait(self, until: float, database: str = "", label: str = "") -> bool:
        """Wait for the locks of all labels, of those in a database, or of one; False if `until` comes first."""
        with self._changed:
            locked = {place for place in self._labels if database in ("", place[0]) and label in ("", place[1])}
            while locked & self._labels:
                if self._stopped() or self._now() >= until:
                    return False
                self._changed.wait(_LOOK_SECONDS)
            return True


class ScanTimedOut(Exception):
    """A query has waited longer than its limit for a thread, or for a commit's lock."""


class Scans:
    """What statements wait for: threads of the backends `threads` (those that are alive), and locks of `commits`."""

    def __init__(
        self,
        threads: Callable[[], Sequence[ScanThreads]],
        commits: WaitingCommits,
        now: Callable[[], float],
        wait: Callable[[float], object] = time.sleep,
        log_seconds: float = 0.0,
    ) -> None:
        self._threads, self._commits, self._now, self._wait = threads, commits, now, wait
        self._log_seconds = log_seconds
        self._turns = itertools.count()

    def look_for_logs(self, missing: int, seconds: float) -> None:
        """Wait as a backend that tries an empty address again for each missing log; raises ScanTimedOut."""
        needed = missing * self._log_seconds
        self._wait(min(needed, seconds))
        if needed > seconds:
            raise ScanTimedOut

    @contextmanager
    def of(self, relations: set[str], seconds: float) -> Iterator[None]:
        """Hold the threads that a query of these relations of information_schema needs; raises ScanTimedOut."""
        until = self._now() + seconds
        with ExitStack() as stack:
            for relation in sorted(relations):
                for threads in self._of(relation):
                    if not stack.enter_context(threads.scan(until)):
                        raise ScanTimedOut
                if relation == "loads" and not self._commits.wait(until):
                    raise ScanTimedOut
            yield

    def lock(self, database: str, label: str, seconds: float) -> None:
        """Wait for the lock of a label, or of all of a database; raises ScanTimedOut."""
        if not self._commits.wait(self._now() + seconds, database, label):
            raise ScanTimedOut

    def _of(self, relation: str) -> Sequence[ScanThreads]:
        threads = self._threads() if relation in _READ_BY_ONE | _READ_BY_ALL else ()
        if relation in _READ_BY_ONE and threads:
            return [threads[next(self._turns) % len(threads)]]
        return threads
