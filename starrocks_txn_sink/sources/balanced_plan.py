"""Where a micro-batch of balanced reading ends: at the same event time on every partition of every topic.

Pure: what Kafka knows comes in as values, and as a function from an event time to offsets (Kafka's offsets for times).
Event times are milliseconds since the epoch. Within a partition they are taken to ascend; a row that is older than one
before it comes with its neighbours, late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

Place = tuple[str, int]  # topic, partition
Offsets = Mapping[Place, int]
OffsetsFrom = Callable[[int], Offsets]
"""The first offset of each partition with an event time at or above the given one; its end where there is none."""

FULL_ENOUGH = 0.85  # of a limit, at which the search for the best event time may stop


@dataclass(frozen=True, slots=True)
class Log:
    """What the partitions hold: `end` is one past the newest offset, `newest` the highest event time (None: empty)."""

    end: Offsets
    newest: Mapping[Place, int | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows and bytes that a micro-batch may have; `row_bytes` is the mean size of a partition's rows."""

    rows: float = float("inf")
    bytes: float = float("inf")
    row_bytes: Mapping[Place, float] = field(default_factory=dict)

    def fill(self, start: Offsets, end: Offsets) -> float:
        """The share of the tighter limit that is used up between the offsets."""
        rows = sum(end[each] - start[each] for each in start)
        size = sum((end[each] - start[each]) * self.row_bytes.get(each, 0.0) for each in start)
        return max(rows / self.rows, size / self.bytes)


@dataclass(frozen=True, slots=True)
class Plan:
    """`end` of a micro-batch, and the event time that all of its partitions have been read up to (None: not known)."""

    end: Offsets
    time: int | None


def common_time(log: Log, idle: Collection[Place]) -> int | None:
    """The event time that every partition has reached that is not idle; the highest of all when all are idle."""
    awake = [each for each in log.end if each not in idle]
    if awake:
        newest = [log.newest[each] for each in awake]
        known = [each for each in newest if each is not None]
        return min(known) if len(known) == len(newest) else None
    return max((each for each in log.newest.values() if each is not None), default=None)


def plan(
    start: Offsets, since: int, log: Log, idle: Collection[Place], limits: Limits, offsets_from: OffsetsFrom
) -> Plan:
    """The end of the micro-batch that begins at `start`, everything up to event time `since` having been read.

    It ends at the highest event time that all awake partitions have reached and the limits allow, never below `since`.
    If the rows of a single millisecond exceed the limits, that millisecond is cut, each partition in proportion.
    """
    common = common_time(log, idle)
    if common is None:
        return Plan(start, None)
    reach = _Reach(start, log.end, offsets_from)
    time = max(common, since)
    end = reach(time)
    if limits.fill(start, end) <= 1:
        return Plan(end, time)
    low, high = since, time
    best: Offsets = start
    while high - low > 1:
        middle = (low + high) // 2
        end = reach(middle)
        fill = limits.fill(start, end)
        if fill > 1:
            high = middle
            continue
        low, best = middle, end
        if fill >= FULL_ENOUGH:
            break
    if any(best[each] > start[each] for each in start):
        return Plan(best, low)
    return Plan(_cut(start, reach(high), limits), low)


def slices(start: Offsets, end: Offsets, since: int, time: int, count: int, offsets_from: OffsetsFrom) -> list[Offsets]:
    """Offsets that cut start…end at event times into about `count` equal parts, `start` first and `end` last."""
    reach = _Reach(start, end, offsets_from)
    total = sum(end[each] - start[each] for each in start)
    cuts: list[Offsets] = [start]
    low = since
    for part in range(1, count):
        wanted, high = total * part / count, time
        while high - low > 1:
            middle = (low + high) // 2
            rows = sum(offset - start[each] for each, offset in reach(middle).items())
            if abs(rows - wanted) <= total / (10 * count):
                low = middle
                break
            low, high = (middle, high) if rows < wanted else (low, middle)
        cuts.append(reach(low))
    return [*cuts, end]


class _Reach:
    """The offsets that an event time reaches between two bounds; never asks twice for one time."""

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


def _cut(start: Offsets, end: Offsets, limits: Limits) -> Offsets:
    fill = limits.fill(start, end)
    cut = {each: start[each] + int((end[each] - start[each]) / fill) for each in start}
    if cut == dict(start):  # a single row above a limit still has to pass
        first = next(each for each in start if end[each] > start[each])
        cut[first] += 1
    return cut
