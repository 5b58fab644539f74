"""Planning of balanced reading: each micro-batch ends at the same event time on every partition of every topic.

Event time cuts the input twice. The driver ends a micro-batch at one event time, found by bisection over Kafka's
offsets for times (`plan_batch`). Each task reads one slice of that time from all partitions (`slice_bounds`), so rows
are sorted by event time over all tasks without a shuffle. The price: Kafka delivers whole producer batches, and a task
throws away the rows outside its slice.

Pure: Kafka's state comes in as values, and as a function from event time to offsets. Event times are milliseconds since
the epoch. Within a partition they are assumed to ascend; a row older than its predecessor is read with its neighbours,
late.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets

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
        rows = sum(end[partition] - start[partition] for partition in start)
        size = sum((end[partition] - start[partition]) * self.row_bytes.get(partition, 0.0) for partition in start)
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
    awake = [partition for partition in ends.end if partition not in idle]
    if awake:
        newest = [ends.newest[partition] for partition in awake]
        known_times = [time for time in newest if time is not None]
        return min(known_times) if len(known_times) == len(newest) else None
    return max((time for time in ends.newest.values() if time is not None), default=None)


def plan_batch(
    start: Offsets,
    since: int,
    ends: PartitionEnds,
    idle: Collection[KafkaPartition],
    limits: BatchLimits,
    offsets_from: OffsetsFrom,
) -> BatchEnd:
    """End of the micro-batch that begins at `start`; rows up to event time `since` have been read.

    The end is at the highest event time that all awake partitions have reached and the limits allow, never below
    `since`. If the rows of one millisecond exceed the limits, the end is inside this millisecond, and each partition
    gives the same share of its rows.
    """
    common = common_time(ends, idle)
    if common is None:
        return BatchEnd(start, None)
    offsets_at = _offsets_at_time(start, ends.end, offsets_from)
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
    if any(best[partition] > start[partition] for partition in start):
        return BatchEnd(best, low)
    return BatchEnd(_cut_millisecond(start, offsets_at(high), limits), low)


def slice_bounds(
    start: Offsets, end: Offsets, since: int, time: int, count: int, offsets_from: OffsetsFrom
) -> list[Offsets]:
    """Offsets at event times that divide start…end into about `count` equal parts; first `start`, last `end`."""
    offsets_at = _offsets_at_time(start, end, offsets_from)
    total = sum(end[partition] - start[partition] for partition in start)
    cuts: list[Offsets] = [start]
    low = since
    for part in range(1, count):
        target, high = total * part / count, time
        while high - low > 1:
            middle = (low + high) // 2
            rows = sum(offset - start[partition] for partition, offset in offsets_at(middle).items())
            if abs(rows - target) <= total / (10 * count):
                low = middle
                break
            low, high = (middle, high) if rows < target else (low, middle)
        cuts.append(offsets_at(low))
    return [*cuts, end]


def _offsets_at_time(low: Offsets, high: Offsets, offsets_from: OffsetsFrom) -> Callable[[int], Offsets]:
    """A function from an event time to the offsets just past it, clamped to low…high; requests each time only once."""

    @cache
    def offsets_at(time: int) -> Offsets:
        offsets = offsets_from(time + 1)
        return {
            partition: max(first, min(offsets.get(partition, first), high[partition]))
            for partition, first in low.items()
        }

    return offsets_at


def _cut_millisecond(start: Offsets, end: Offsets, limits: BatchLimits) -> Offsets:
    fill = limits.fill(start, end)
    cut = {partition: start[partition] + int((end[partition] - start[partition]) / fill) for partition in start}
    if cut == dict(start):  # at least one row must pass, or the query would stand still
        first = next(partition for partition in start if end[partition] > start[partition])
        cut[first] += 1
    return cut


class Idleness:
    """Tracks the end offsets of partitions; a partition is idle once its end has not moved for `timeout` seconds."""

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._timeout, self._clock = timeout, clock
        self._last_move: dict[KafkaPartition, tuple[int, float]] = {}  # end offset, monotonic time of its first sight

    def update(self, end: Offsets) -> set[KafkaPartition]:
        """Record the partitions' present ends; returns the idle partitions."""
        now = self._clock.monotonic()
        for partition, offset in end.items():
            if partition not in self._last_move or self._last_move[partition][0] != offset:
                self._last_move[partition] = (offset, now)
        return {partition for partition in end if now - self._last_move[partition][1] >= self._timeout}


Times = Mapping[KafkaPartition, int]
TimesFrom = Callable[[Times], Mapping[KafkaPartition, int | None]]
"""Event time of each partition's first readable row at or above the given time; None where there is none."""


def newest_readable(low: Times, high: Times, times_from: TimesFrom) -> dict[KafkaPartition, int]:
    """Highest readable event time of each partition, known to lie in `low`…`high`.

    Bisects all partitions with one request per step. Where times do not ascend within a partition, the result may be
    too low.
    """
    reached, bound = dict(low), dict(high)
    while True:
        middles = {
            partition: (reached[partition] + bound[partition] + 1) // 2
            for partition in bound
            if reached[partition] < bound[partition]
        }
        if not middles:
            return reached
        for partition, time in times_from(middles).items():
            if time is None:
                bound[partition] = middles[partition] - 1
            else:
                reached[partition] = min(time, bound[partition])
