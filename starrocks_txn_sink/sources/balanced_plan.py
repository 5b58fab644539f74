"""Planning of balanced reading: each micro-batch ends at the same event time on every partition of every topic.

Event time cuts the input twice. The driver ends a micro-batch at one event time, found by bisection over Kafka's
offsets for times (`plan_batch`). Each task reads one slice of that time from all partitions (`slice_bounds`), so rows
are sorted by event time over all tasks without a shuffle. The price: Kafka delivers whole producer batches, and a task
throws away the rows outside its slice.

Pure: Kafka's state comes in as values, and as a function from event time to offsets. Event times are milliseconds since
the epoch. Within a partition they are assumed to ascend; a row older than its predecessor is read with its neighbours,
late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

KafkaPartition = tuple[str, int]  # topic, number of the partition
Offsets = Mapping[KafkaPartition, int]
OffsetsFrom = Callable[[int], Offsets]
"""The first offset of each partition with an event time at or above the given one; its end where there is none."""

FULL_ENOUGH = 0.85  # share of a limit at which bisection stops: each further step is a request to Kafka


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """State of the partitions: `end` is one past the newest offset, `newest` the highest event time (None: no rows)."""

    end: Offsets
    newest: Mapping[KafkaPartition, int | None]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Maximum rows and bytes of a micro-batch; `row_bytes` is the mean row size of each partition."""

    rows: float = float("inf")
    bytes: float = float("inf")
    row_bytes: Mapping[KafkaPartition, float] = field(default_factory=dict)

    def fill(self, start: Offsets, end: Offsets) -> float:
        """Share of the tighter limit that the rows from `start` to `end` use; above 1 they exceed it."""
        rows = sum(end[each] - start[each] for each in start)
        size = sum((end[each] - start[each]) * self.row_bytes.get(each, 0.0) for each in start)
        return max(rows / self.rows, size / self.bytes)


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """End of a micro-batch; `time` is the event time up to which all partitions have been read (None: unknown yet)."""

    offsets: Offsets
    time: int | None


def common_time(ends: PartitionEnds, idle: Collection[KafkaPartition]) -> int | None:
    """Event time that every awake partition has reached; the highest of all when all are idle.

    None while an awake partition has no readable row: its first row may have any event time.
    """
    awake = [each for each in ends.end if each not in idle]
    if awake:
        newest = [ends.newest[each] for each in awake]
        known = [each for each in newest if each is not None]
        return min(known) if len(known) == len(newest) else None
    return max((each for each in ends.newest.values() if each is not None), default=None)


def plan_batch(
    start: Offsets,
    since: int,
    ends: PartitionEnds,
    idle: Collection[KafkaPartition],
    limits: BatchLimits,
    offsets_from: OffsetsFrom,
) -> BatchEnd:
    """End of the micro-batch that begins at `start`; rows up to event time `since` have been read.

    It is the highest event time that all awake partitions have reached and the limits allow, never below `since`. If
    the rows of one millisecond exceed the limits, that millisecond is cut, each partition in proportion.
    """
    common = common_time(ends, idle)
    if common is None:
        return BatchEnd(start, None)
    offsets_at = _OffsetsAtTime(start, ends.end, offsets_from)
    time = max(common, since)
    end = offsets_at(time)
    if limits.fill(start, end) <= 1:
        return BatchEnd(end, time)
    low, high = since, time
    best: Offsets = start
    while high - low > 1:
        middle = (low + high) // 2
        end = offsets_at(middle)
        fill = limits.fill(start, end)
        if fill > 1:
            high = middle
            continue
        low, best = middle, end
        if fill >= FULL_ENOUGH:
            break
    if any(best[each] > start[each] for each in start):
        return BatchEnd(best, low)
    return BatchEnd(_cut_millisecond(start, offsets_at(high), limits), low)


def slice_bounds(
    start: Offsets, end: Offsets, since: int, time: int, count: int, offsets_from: OffsetsFrom
) -> list[Offsets]:
    """Offsets at event times that divide start…end into about `count` equal parts; first `start`, last `end`."""
    offsets_at = _OffsetsAtTime(start, end, offsets_from)
    total = sum(end[each] - start[each] for each in start)
    cuts: list[Offsets] = [start]
    low = since
    for part in range(1, count):
        target, high = total * part / count, time
        while high - low > 1:
            middle = (low + high) // 2
            rows = sum(offset - start[each] for each, offset in offsets_at(middle).items())
            if abs(rows - target) <= total / (10 * count):
                low = middle
                break
            low, high = (middle, high) if rows < target else (low, middle)
        cuts.append(offsets_at(low))
    return [*cuts, end]


class _OffsetsAtTime:
    """Offsets just past an event time, clamped to low…high; requests each time only once."""

    def __init__(self, low: Offsets, high: Offsets, offsets_from: OffsetsFrom) -> None:
        self._low, self._high, self._offsets_from = low, high, offsets_from
        self._known: dict[int, Offsets] = {}

    def __call__(self, time: int) -> Offsets:
        if time not in self._known:
            found = self._offsets_from(time + 1)
            self._known[time] = {
                each: max(low, min(found.get(each, low), self._high[each])) for each, low in self._low.items()
            }
        return self._known[time]


def _cut_millisecond(start: Offsets, end: Offsets, limits: BatchLimits) -> Offsets:
    fill = limits.fill(start, end)
    cut = {each: start[each] + int((end[each] - start[each]) / fill) for each in start}
    if cut == dict(start):  # at least one row must pass, or the query would stand still
        first = next(each for each in start if end[each] > start[each])
        cut[first] += 1
    return cut
