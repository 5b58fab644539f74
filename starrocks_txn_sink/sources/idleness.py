"""Which partitions are idle: silent for longer than a timeout."""

from __future__ import annotations

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.sources.balanced_plan import Offsets, Place


class Idleness:
    """Watches the ends of partitions; one that has not moved for `timeout` seconds is idle until it moves."""

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._timeout, self._clock = timeout, clock
        self._seen: dict[Place, tuple[int, float]] = {}

    def idle(self, end: Offsets) -> set[Place]:
        """Take note of the partitions' ends as they are now; those that are idle."""
        now = self._clock.monotonic()
        for place, offset in end.items():
            if place not in self._seen or self._seen[place][0] != offset:
                self._seen[place] = (offset, now)
        return {each for each in end if now - self._seen[each][1] >= self._timeout}
