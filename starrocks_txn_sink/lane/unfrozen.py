"""The regions whose active chunk has rows, found by source partition and by the time when they are due.

There may be thousands (source partitions × tables), and the coordinator asks after every segment, so nothing here looks
at all of them without need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from starrocks_txn_sink.lane.region import Region


@dataclass(slots=True)
class Unfrozen:
    """A set of regions, in the order in which they were added."""

    _regions: dict[tuple[str, str], Region] = field(default_factory=dict)
    _tables: dict[str, dict[str, Region]] = field(default_factory=dict)
    _waiting: list[tuple[float, str, str]] = field(default_factory=list)  # a heap

    def __bool__(self) -> bool:
        return bool(self._regions)

    def add(self, region: Region) -> None:
        self._regions[(region.partition, region.table)] = region
        self._tables.setdefault(region.partition, {})[region.table] = region

    def remove(self, region: Region) -> None:
        del self._regions[(region.partition, region.table)]
        del self._tables[region.partition][region.table]

    def all(self) -> list[Region]:
        return list(self._regions.values())

    def of(self, partition: str) -> list[Region]:
        return list(self._tables.get(partition, {}).values())

    def wait(self, region: Region, mini_interval: float) -> None:
        """`region` is at a clean boundary, and due `mini_interval` after its last freeze."""
        if region.last_switch is not None:
            heappush(self._waiting, (region.last_switch + mini_interval, region.partition, region.table))

    def due(self, now: float, mini_interval: float) -> Iterator[Region]:
        """Those that waited long enough, unless rows of another source transaction have come to them since."""
        while self._waiting and self._waiting[0][0] <= now:
            _, partition, table = heappop(self._waiting)
            region = self._regions.get((partition, table))
            if region is not None and region.switch_due(now, mini_interval):
                yield region
