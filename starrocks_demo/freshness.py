"""How long a source transaction takes from its file's appearance to the first sample that sees it."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest-rank percentile of values in ascending order; None without values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class Freshness:
    """Pairs transactions written with transactions seen; within a partition both come in order. Thread-safe.

    Times are seconds on one monotonic clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[int, list[float | None]] = {}
        self._seen: dict[int, int] = {}
        self._delays: list[float] = []

    def written(self, transactions: Sequence[tuple[int, int]], at: float | None) -> None:
        """Transactions (partition, txn_no) whose END is readable since `at`; None: they count, but are not timed."""
        with self._lock:
            for partition, _ in transactions:
                self._written.setdefault(partition, []).append(at)

    def seen(self, newest: Mapping[int, int], at: float) -> None:
        """A sample that ended at `at` saw every partition up to this txn_no."""
        with self._lock:
            for partition, txn_no in newest.items():
                times = self._written.get(partition, [])
                first, last = self._seen.get(partition, 0), min(txn_no, len(times))
                if last > first:
                    self._delays.extend(at - time for time in times[first:last] if time is not None)
                    self._seen[partition] = last

    @property
    def visible(self) -> int:
        """Source transactions seen so far."""
        with self._lock:
            return sum(self._seen.values())

    def percentiles(self, *shares: float, last: int | None = None) -> tuple[float | None, ...]:
        """Percentiles over all transactions seen, or over the `last` ones."""
        with self._lock:
            delays = self._delays[-last:] if last else list(self._delays)
        delays.sort()
        return tuple(percentile(delays, share) for share in shares)
