"""The values of all metrics, with a bounded number of series, and their history for the page."""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from starrocks_txn_sink.metrics.catalogue import JOB, JOBS, METRICS, OTHER, PARTITIONS, TABLES, MetricKind
from starrocks_txn_sink.telemetry import LatestValues
from starrocks_txn_sink.writer.messages import Durations

Labels = tuple[str, ...]


class _PerCommit(Durations):
    """A histogram of numbers of source transactions."""

    __slots__ = ()
    bounds = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0, 20000.0)


_SERIES = 500  # series of one metric at most; further label combinations share OTHER


class MetricValues:
    """Current value of every metric of the catalogue. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Durations]] = {}
        self._tables: set[str] = set()
        for metric in METRICS:
            initial = metric.initial or (() if metric.labels else ((),))
            if metric.kind is MetricKind.HISTOGRAM:
                self._histograms[metric.name] = {labels: _histogram(metric.name) for labels in initial}
            elif metric.labels in (("partition",), ("source",)):
                self._numbers[metric.name] = LatestValues(PARTITIONS)
            elif JOB in metric.labels:
                self._numbers[metric.name] = LatestValues(JOBS)
            else:
                self._numbers[metric.name] = dict.fromkeys(initial, 0.0)

    def table(self, name: str) -> str:
        """Label value for a table: `name`, or OTHER beyond TABLES."""
        if len(self._tables) < TABLES:
            self._tables.add(name)
        return name if name in self._tables else OTHER

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Add `amount` to a counter."""
        numbers = self._numbers[name]
        labels = _bounded_labels(labels, numbers)
        numbers[labels] = numbers.get(labels, 0.0) + amount

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        self._numbers[name][labels] = value

    def tell(self, name: str, first: str, text: str) -> None:
        """Set a gauge whose second label is its text to 1, and end the series of the first label's former text."""
        numbers = self._numbers[name]
        for former in [labels for labels in numbers if labels[0] == first]:
            del numbers[former]
        self.set(name, 1.0, first, text)

    def replace(self, name: str, values: Mapping[str, float]) -> None:
        """Set the series of a gauge with one label to `values`, and end its other series."""
        self._numbers[name].clear()
        for label, value in values.items():
            self.set(name, value, label)

    def histogram(self, name: str, *labels: str) -> Durations:
        """The histogram of a series, made if it is new; beyond _SERIES the one that they share."""
        histograms = self._histograms[name]
        return histograms.setdefault(_bounded_labels(labels, histograms), _histogram(name))

    def value(self, name: str, *labels: str) -> float:
        """The number of a series, 0 before it has one; KeyError for a name that is no counter or gauge."""
        return self._numbers[name].get(labels, 0.0)

    def values(self, name: str) -> dict[Labels, float]:
        """The numbers of a counter or gauge, by the label values of their series."""
        return dict(self._numbers[name])

    def total(self, name: str) -> float:
        """Sum over all series."""
        return sum(self._numbers[name].values())

    def histograms(self, name: str) -> Iterator[tuple[Labels, Durations]]:
        """Yield the label values and the histogram of each series."""
        yield from self._histograms[name].items()


def _bounded_labels(labels: Labels, series: Collection[Labels]) -> Labels:
    return labels if labels in series or len(series) < _SERIES else (OTHER,) * len(labels)


def bounds(name: str) -> tuple[float, ...]:
    """Upper bounds of a histogram's buckets."""
    return tuple(_histogram(name).bounds)


def _histogram(name: str) -> Durations:
    return _PerCommit() if name == "transactions_per_commit" else Durations()


SLOT_SECONDS = 2.0
SLOTS = 1800
POINTS = 150
"""Points of a series at most, as many as a sparkline can show."""


@dataclass(slots=True)
class HistorySlot:
    """The interval [at, at + SLOT_SECONDS), or several slots merged: `counts` are sums, `levels` maxima."""

    at: float
    counts: Counter[str] = field(default_factory=Counter)
    levels: dict[str, float] = field(default_factory=dict)
    latency: Durations = field(default_factory=Durations)
    commit: Durations = field(default_factory=Durations)

    def level(self, name: str, value: float) -> None:
        """Take in a level's `value`: the highest of the slot stays."""
        self.levels[name] = max(value, self.levels.get(name, value))


class History:
    """A ring of slots; `now` is in seconds since the Unix epoch. Not thread-safe."""

    def __init__(self, started: float) -> None:
        self.started = started
        self._slots: deque[HistorySlot] = deque(maxlen=SLOTS)

    def slot(self, now: float) -> HistorySlot:
        """The slot of `now`, or the newest slot if the clock went back."""
        slot_start = now - now % SLOT_SECONDS
        if not self._slots or slot_start > self._slots[-1].at:
            self._slots.append(HistorySlot(slot_start))
        return self._slots[-1]

    def since(self, start: float) -> HistorySlot:
        """All slots from `start` on, merged."""
        return _merge_slots([slot for slot in self._slots if slot.at + SLOT_SECONDS > start], start)

    def series(self, now: float, seconds: float) -> tuple[float, float, list[HistorySlot]]:
        """The last `seconds` as at most POINTS windows: (start of the first, seconds of each, windows)."""
        step = max(1, -(-int(seconds / SLOT_SECONDS) // POINTS)) * SLOT_SECONDS
        end = now - now % step  # without the running window: its partial sums would look like a drop
        count = max(1, round(seconds / step))
        start = end - count * step
        groups: list[list[HistorySlot]] = [[] for _ in range(count)]
        for slot in self._slots:
            if start <= slot.at < end:
                groups[int((slot.at - start) / step)].append(slot)
        return start, step, [_merge_slots(group, start + place * step) for place, group in enumerate(groups)]


def _merge_slots(slots: Sequence[HistorySlot], start: float) -> HistorySlot:
    whole = HistorySlot(start)
    for slot in slots:
        whole.counts.update(slot.counts)
        for name, value in slot.levels.items():
            whole.level(name, value)
        whole.latency.merge(slot.latency)
        whole.commit.merge(slot.commit)
    return whole
