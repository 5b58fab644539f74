"""Idle partitions: no new rows for longer than a timeout."""

from __future__ import annotations

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.sources.balanced_plan import KafkaPartition, Offsets


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
        return {each for each in end if now - self._last_move[each][1] >= self._timeout}
