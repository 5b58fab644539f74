"""OpenLoads: the writes of one driver share the threads that open loads hold (wire contract 4.16).

Each write of a micro-batch asks for a part of the room before its first label, and gives it back at its end. So the
labels of all jobs of a process have room together, and none waits for a thread that another one holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.options import SinkOptions

_LOOK_SECONDS = 1.0
"""Between two looks at the deadline while others hold all of the room; who gives some back is heard at once."""


@dataclass(slots=True)
class OpenLoads:
    """The parts that writes hold, by server, and what the last write of each job has shown."""

    _parts: dict[str, list[Part]] = field(default_factory=dict)
    _known: dict[tuple[str, str], tuple[frozenset[str], int]] = field(default_factory=dict)  # by server and job
    _halvings: dict[tuple[str, str], int] = field(default_factory=dict)  # by server and job
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def held(self, server: str) -> int:
        """Loads that may be open now."""
        with self._changed:
            return self._taken(server)

    @contextmanager
    def part(self, server: str, job: str, room: int, minimum: int, first: int, deadline: Deadline) -> Iterator[Part]:
        """A part of the `room` of a server: twice what the job's last write needed, `first` for a new job.

        Waits while less than `minimum` is free, at most until `deadline`; then the write has the least.
        """
        part = Part(self, server, room)
        with self._changed:
            _, loads = self._known.get((server, job), (frozenset(), 0))
            goal = min(room, 2 * loads or first)
            self._take(part, minimum, max(minimum, goal), deadline)
        try:
            yield part
        finally:
            with self._changed:
                self._parts[server].remove(part)
                self._changed.notify_all()

    def halvings(self, server: str, job: str) -> int:
        """How often the job's last write has halved the tables of its labels."""
        return self._halvings.get((server, job), 0)

    def halve(self, server: str, job: str, times: int) -> None:
        """The job's next write begins with tables that are halved so many `times`."""
        self._halvings[server, job] = times

    def learn(self, server: str, job: str, tables: frozenset[str], loads: int) -> None:
        """The last label of the job had these tables, and one had so many loads, or should have had."""
        with self._changed:
            self._known[server, job] = tables, loads

    def needed(self, server: str) -> int:
        """The most loads that labels of all jobs have open at once."""
        with self._changed:
            return sum(loads for (name, _), (_, loads) in self._known.items() if name == server)

    def tables(self, server: str, job: str) -> frozenset[str] | None:
        """The tables of the job's last label; None for a new job."""
        with self._changed:
            return self._known[server, job][0] if (server, job) in self._known else None

    def extend(self, part: Part) -> None:
        """Add what is free to a part, or half of that if there are others."""
        with self._changed:
            free = max(0, part.room - self._taken(part.server))
            part.size += free if len(self._parts[part.server]) == 1 else (free + 1) // 2

    def replace(self, part: Part, minimum: int, deadline: Deadline) -> None:
        """Give a part back, and wait for one of at least `minimum`."""
        with self._changed:
            self._parts[part.server].remove(part)
            self._changed.notify_all()
            self._take(part, minimum, minimum, deadline)

    def _take(self, part: Part, minimum: int, goal: int, deadline: Deadline) -> None:
        while self._taken(part.server) and part.room - self._taken(part.server) < minimum and not deadline.expired():
            self._changed.wait(min(_LOOK_SECONDS, deadline.remaining()))
        part.size = max(minimum, min(goal, part.room - self._taken(part.server)))
        self._parts.setdefault(part.server, []).append(part)

    def _taken(self, server: str) -> int:
        return sum(part.size for part in self._parts.get(server, ()))


@dataclass(slots=True, eq=False)
class Part:
    """Loads that one write may hold open: `size` of the `room` of a server."""

    loads: OpenLoads
    server: str
    room: int
    size: int = 0

    def grow(self, loads: int, deadline: Deadline) -> int:
        """Take of what is free, and wait for room for `loads` while the write has none open; returns how many fit."""
        self.loads.extend(self)
        if self.size < loads <= self.room:
            self.loads.replace(self, loads, deadline)
        return self.size


OPEN_LOADS = OpenLoads()
"""The parts of this process."""


def server_of(options: SinkOptions) -> str:
    """The name of a server among the parts."""
    return ",".join(sorted(map(str, options.frontends)))


def needed_loads(options: SinkOptions) -> int:
    """The most loads that labels of this process's jobs have open at once on their server."""
    return OPEN_LOADS.needed(server_of(options))
