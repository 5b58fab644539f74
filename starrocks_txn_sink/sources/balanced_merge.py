"""Balanced reading of several partitions, a pure k-way merge: polls of a consumer in, emissions by event time out.

A consumer that reads its partitions one after the other hands on events whose times are far apart. Here nothing is
handed on before every partition has been read, and then only up to the event time that all of them have reached.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from starrocks_txn_sink.errors import InputError

Partition = Hashable
Event = tuple[Any, ...]  # (partition, event_time, offset), and whatever else should travel along


class Poll(NamedTuple):
    """What one poll of the consumer brought, and the partitions that have been silent for longer than the idle timeout.

    A partition with events is not idle, whatever `idle` says.
    """

    events: Sequence[Event] = ()
    idle: Collection[Partition] = ()


class Emission(NamedTuple):
    """What is handed on after one poll.

    `events` are in the order of (event time, partition, offset). `watermark` is the event time that all partitions have
    reached, None while a partition of the cycle is still to be read. `paused` must not be read by the next poll;
    `queued` events wait for the watermark.
    """

    events: list[Event]
    watermark: Any | None
    paused: frozenset[Partition]
    queued: int


def balanced_merge(
    polls: Iterable[Poll | tuple[Sequence[Event], Collection[Partition]]],
    partitions: Iterable[Partition] | None = None,
) -> list[Emission]:
    """One emission per poll, by the rules of BalancedMerge; a poll may be a plain pair (events, idle).

    `partitions` are the consumer's; those that any of the polls names unless told otherwise. Raises InputError for an
    event without partition, event time or offset, and for one of a partition that is not the consumer's.
    """
    taken = [Poll(*each) for each in polls]
    if partitions is None:
        named = {event[0]: None for poll in taken for event in poll.events}
        partitions = named | dict.fromkeys(idle for poll in taken for idle in poll.idle)
    merge = BalancedMerge(partitions)
    return [merge.take(poll) for poll in taken]


class BalancedMerge:
    """The same one poll at a time.

    1. A *cycle* ends when every partition that is not idle has been read in it; a partition that has been read is
       paused until then, and nothing is handed on.
    2. The *watermark* at its end is the lowest, over the partitions that are not idle, of the highest event times read
       so far; the highest of all when every partition is idle. It never goes back.
    3. Queued events at or below the watermark are handed on, merged; the others stay queued.
    4. An event below the watermark that stands is late: a partition came back from idleness, or is itself out of
       order. It is handed on at once, also in the middle of a cycle, and counted in `late`.
    """

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._partitions = frozenset(partitions)
        self._highest: dict[Partition, Any] = {}
        self._read: set[Partition] = set()  # in this cycle
        self._queue: list[tuple[Any, Any, Any, int, Event]] = []  # a heap
        self._arrived = 0  # settles ties, so that the rest of an event is never compared
        self.watermark: Any | None = None
        self.late = 0

    def take(self, poll: Poll) -> Emission:
        """Take in what one poll brought."""
        late = [event for event in poll.events if self._enqueue(event)]
        awake = self._partitions - (set(poll.idle) - {event[0] for event in poll.events})
        if not awake <= self._read:
            late.sort(key=_order)
            return Emission(late, None, frozenset(self._read & awake), len(self._queue))
        self._read.clear()
        self._advance(awake or self._partitions, flush=not awake)
        events = sorted([*late, *self._due()], key=_order)
        return Emission(events, self.watermark, frozenset(), len(self._queue))

    def _enqueue(self, event: Event) -> bool:
        """Queue `event`, unless it is late; whether it is."""
        partition, time, offset = self._checked(event)
        self._read.add(partition)
        self._highest[partition] = max(time, self._highest.get(partition, time))
        if self.watermark is not None and time < self.watermark:
            self.late += 1
            return True
        self._arrived += 1
        heapq.heappush(self._queue, (time, partition, offset, self._arrived, event))
        return False

    def _checked(self, event: Event) -> tuple[Partition, Any, Any]:
        partition, time, offset = event[:3]
        if partition not in self._partitions or time is None or offset is None:
            raise InputError(
                "An event has no event time, no offset, or a partition that is not the consumer's.",
                hint="Give every event as (partition, event time, offset), and the merge all of the partitions.",
                partition=partition,
                offset=offset,
            )
        return partition, time, offset

    def _advance(self, partitions: frozenset[Partition], *, flush: bool) -> None:
        reached = [self._highest[each] for each in partitions if each in self._highest]
        if reached:
            common = max(reached) if flush else min(reached)
            self.watermark = common if self.watermark is None else max(self.watermark, common)

    def _due(self) -> list[Event]:
        due = []
        while self._queue and self._queue[0][0] <= self.watermark:
            due.append(heapq.heappop(self._queue)[-1])
        return due


def _order(event: Event) -> tuple[Any, ...]:
    return event[1], event[0], event[2]
