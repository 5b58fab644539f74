"""Counters, gauges and histograms by metric and labels: plain values that the endpoint reads."""

from __future__ import annotations

from collections.abc import Iterator

from starrocks_txn_sink.lane.report import BOUNDS, Durations
from starrocks_txn_sink.metrics.bounded import BoundedNames, LatestValues
from starrocks_txn_sink.metrics.catalogue import BY_NAME, METRICS, OTHER, PARTITIONS, TABLES, Kind

Labels = tuple[str, ...]

_PER_COMMIT = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0, 20000.0)
_BOUNDS = {"transactions_per_commit": _PER_COMMIT}
_SERIES = 500  # series of one metric at most; further label combinations share OTHER


class MetricValues:
    """Current value of every metric of the catalogue. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Durations]] = {}
        self._tables = BoundedNames(TABLES)
        self.partitions: dict[str, LatestValues[float]] = {
            metric.name: LatestValues(PARTITIONS) for metric in METRICS if metric.labels == ("partition",)
        }
        for metric in METRICS:
            initial = metric.initial or (() if metric.labels else ((),))
            if metric.kind is Kind.HISTOGRAM:
                self._histograms[metric.name] = {labels: Durations(bounds=bounds(metric.name)) for labels in initial}
            else:
                self._numbers[metric.name] = dict.fromkeys(initial, 0.0)
        self._numbers["last_committed_batch_id"][()] = -1.0

    def table(self, name: str) -> str:
        """Label value for a table: `name`, or OTHER beyond TABLES."""
        return self._tables.label_for(name)

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Add `amount` to a counter."""
        known = self._numbers[name]
        if labels not in known and len(known) >= _SERIES:
            labels = (OTHER,) * len(labels)
        known[labels] = known.get(labels, 0.0) + amount

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        self._numbers[name][labels] = value

    def histogram(self, name: str, *labels: str) -> Durations:
        known = self._histograms[name]
        if labels not in known and len(known) >= _SERIES:
            labels = (OTHER,) * len(labels)
        return known.setdefault(labels, Durations(bounds=bounds(name)))

    def value(self, name: str, *labels: str) -> float:
        return self._numbers[name].get(labels, 0.0)

    def values(self, name: str) -> dict[Labels, float]:
        return dict(self._numbers[name])

    def total(self, name: str, **wanted: str) -> float:
        """Sum over all series, or over the series with the given label values."""
        names = BY_NAME[name].labels
        return sum(
            value
            for labels, value in self._numbers[name].items()
            if all(labels[names.index(label)] == given for label, given in wanted.items())
        )

    def histograms(self, name: str) -> Iterator[tuple[Labels, Durations]]:
        yield from self._histograms[name].items()


def bounds(name: str) -> tuple[float, ...]:
    """Upper bounds of a histogram's buckets."""
    return _BOUNDS.get(name, BOUNDS)
