"""Balanced reading as a pure k-way merge: polls of a consumer in, emissions in event-time order out.

A consumer that reads its partitions one after the other emits events whose times are far apart. This merge emits
nothing before every partition has been read, and then only events up to the time that all partitions have reached.
"""

import heapq
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.public_names import suggests_arguments

Partition = Hashable
MergeEvent = tuple[Any, ...]  # (partition, event_time, offset, …): the rest is passed through


class Poll(NamedTuple):
    """Events of one poll, and the partitions without events for longer than the idle timeout.

    A partition with events in the poll counts as awake even if `idle` names it.
    """

    events: Sequence[MergeEvent] = ()
    idle: Collection[Partition] = ()


class Emission(NamedTuple):
    """Events to emit after one poll, sorted by event time, partition and offset.

    `watermark`  event time that all partitions have reached; None while a partition of the cycle is unread
    """

    events: list[MergeEvent]
    watermark: Any | None


@suggests_arguments
def balanced_merge(
    polls: Iterable[Poll | tuple[Sequence[MergeEvent], Collection[Partition]]],
    partitions: Iterable[Partition] | None = None,
) -> list[Emission]:
    """Merge polls of a consumer in the order of event time, by the rules of BalancedMerge.

    Args:
        polls: The consumer's polls, in order; a poll may be a plain pair (events, idle).
        partitions: The consumer's partitions; by default all partitions in the polls.

    Returns:
        One Emission per poll.

    Raises:
        InputError: An event has no event time or no offset, or is of another partition.
    """
    all_polls = [Poll(*poll) for poll in polls]
    if partitions is None:
        partitions_with_events = {event[0]: None for poll in all_polls for event in poll.events}
        partitions = partitions_with_events | dict.fromkeys(idle for poll in all_polls for idle in poll.idle)
    merge = BalancedMerge(partitions)
    return [merge.take(poll) for poll in all_polls]


class BalancedMerge:
    """Merge that takes one poll at a time.

    1. A *cycle* ends when every awake partition has been read in it. Until then nothing is emitted.
    2. The *watermark* at the end of a cycle is the minimum over the awake partitions of their highest event time so
       far; the maximum of all partitions when all are idle. It never goes back.
    3. Queued events at or below the watermark are emitted in order; later events stay queued.
    4. An event below the present watermark is late: its partition was idle before, or is out of order in itself. It is
       emitted at once, even inside a cycle, and counted in `late`.
    """

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._partitions = frozenset(partitions)
        self._highest: dict[Partition, Any] = {}
        self._read: set[Partition] = set()  # in this cycle
        self._queue: list[tuple[Any, Any, Any, int, MergeEvent]] = []  # a heap
        self._sequence = 0  # breaks ties in the heap, so that events themselves are never compared
        self.watermark: Any | None = None
        self.late = 0

    def take(self, poll: Poll) -> Emission:
        """Emission after the events of one poll."""
        late = [event for event in poll.events if self._enqueue(event)]
        awake = self._partitions - (set(poll.idle) - {event[0] for event in poll.events})
        if not awake <= self._read:
            late.sort(key=_sort_key)
            return Emission(late, None)
        self._read.clear()
        self._advance(awake or self._partitions, flush=not awake)
        events = sorted([*late, *self._pop_due()], key=_sort_key)
        return Emission(events, self.watermark)

    def _enqueue(self, event: MergeEvent) -> bool:
        """Queue `event` unless it is late; returns whether it is late."""
        partition, time, offset = event[:3]
        if partition not in self._partitions or time is None or offset is None:
            raise InputError(
                "An event has no event time, no offset, or a partition that is not the consumer's.",
                hint="Pass each event as (partition, event time, offset), and all partitions to the merge.",
                partition=partition,
                offset=offset,
            )
        self._read.add(partition)
        self._highest[partition] = max(time, self._highest.get(partition, time))
        if self.watermark is not None and time < self.watermark:
            self.late += 1
            return True
        self._sequence += 1
        heapq.heappush(self._queue, (time, partition, offset, self._sequence, event))
        return False

    def _advance(self, partitions: frozenset[Partition], *, flush: bool) -> None:
        reached = [self._highest[partition] for partition in partitions if partition in self._highest]
        if reached:
            common = max(reached) if flush else min(reached)
            self.watermark = common if self.watermark is None else max(self.watermark, common)

    def _pop_due(self) -> list[MergeEvent]:
        due = []
        while self._queue and self._queue[0][0] <= self.watermark:
            due.append(heapq.heappop(self._queue)[-1])
        return due


def _sort_key(event: MergeEvent) -> tuple[Any, ...]:
    return event[1], event[0], event[2]
