"""The last hour in memory: counts and levels in slots of two seconds, for sparklines and rates."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from starrocks_txn_sink.lane.report import Durations

SLOT_SECONDS = 2.0
SLOTS = 1800
POINTS = 150
"""Points of a series at most, as many as a sparkline can show."""


@dataclass(slots=True)
class HistorySlot:
    """The interval [at, at + SLOT_SECONDS): `counts` are sums, `levels` maxima."""

    at: float
    counts: Counter[str] = field(default_factory=Counter)
    levels: dict[str, float] = field(default_factory=dict)
    latency: Durations | None = None
    commit: Durations | None = None

    def level(self, name: str, value: float) -> None:
        self.levels[name] = max(value, self.levels.get(name, value))


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """Several slots merged: sums of counts, maxima of levels."""

    counts: Counter[str]
    levels: dict[str, float]
    latency: Durations
    commit: Durations


class History:
    """A ring of slots; `now` is in seconds since the Unix epoch. Not thread-safe."""

    def __init__(self, started: float) -> None:
        self.started = started
        self._slots: deque[HistorySlot] = deque(maxlen=SLOTS)

    def slot(self, now: float) -> HistorySlot:
        """The slot of `now`, or the newest slot if the clock went back."""
        at = now - now % SLOT_SECONDS
        if not self._slots or at > self._slots[-1].at:
            self._slots.append(HistorySlot(at))
        return self._slots[-1]

    def since(self, start: float) -> HistoryWindow:
        """All slots from `start` on, merged."""
        return _merge_slots([slot for slot in self._slots if slot.at + SLOT_SECONDS > start])

    def series(self, now: float, seconds: float) -> tuple[float, float, list[HistoryWindow]]:
        """The last `seconds` as at most POINTS windows: (start of the first, seconds of each, windows)."""
        step = max(1, -(-int(seconds / SLOT_SECONDS) // POINTS)) * SLOT_SECONDS
        end = now - now % step  # without the running window: its partial sums would look like a drop
        count = max(1, round(seconds / step))
        start = end - count * step
        groups: list[list[HistorySlot]] = [[] for _ in range(count)]
        for slot in self._slots:
            if start <= slot.at < end:
                groups[int((slot.at - start) / step)].append(slot)
        return start, step, [_merge_slots(group) for group in groups]


def _merge_slots(slots: Sequence[HistorySlot]) -> HistoryWindow:
    counts: Counter[str] = Counter()
    levels: dict[str, float] = {}
    latency, commit = Durations(), Durations()
    for slot in slots:
        counts.update(slot.counts)
        for name, value in slot.levels.items():
            levels[name] = max(value, levels.get(name, value))
        for whole, part in ((latency, slot.latency), (commit, slot.commit)):
            if part is not None:
                whole.merge(part.counts, part.total)
    return HistoryWindow(counts, levels, latency, commit)
