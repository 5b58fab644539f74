"""Prometheus' text formats: a collector of prometheus-client that reads the model at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import choose_encoder

from starrocks_txn_sink.metrics.catalogue import METRICS, Metric, MetricKind
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.writer.messages import Durations


class ModelCollector:
    """A prometheus-client collector over one model."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def collect(self) -> Iterator[Family]:
        """Every metric of the catalogue."""
        with self._model.lock:
            yield from [self._family(metric) for metric in METRICS]

    def describe(self) -> Iterator[Family]:
        """Same as `collect`: prometheus-client reads the names from it when the collector is registered."""
        return self.collect()

    def _family(self, metric: Metric) -> Family:
        metrics, model = self._model.metrics, self._model
        if metric.kind is MetricKind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
            for labels, durations in metrics.histograms(metric.name):
                histogram.add_metric(labels, _buckets(durations), durations.total)
            return histogram
        if metric.name == "build_info":
            values = {tuple(model.build[label] for label in metric.labels): 1.0}
        elif metric.name in metrics.partitions:
            values = {(partition,): float(value) for partition, value in metrics.partitions[metric.name].items()}
        else:
            values = metrics.values(metric.name)
        kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = kind(metric.full_name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


def _buckets(durations: Durations) -> Sequence[tuple[str, float]]:
    reached, buckets = 0, []
    for bound, count in zip([*map(repr, map(float, durations.bounds)), "+Inf"], durations.counts, strict=True):
        reached += count
        buckets.append((bound, float(reached)))
    return buckets


def registry_of(model: Model) -> CollectorRegistry:
    """A registry of its own for this model; the process's default registry stays untouched."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ModelCollector(model))
    return registry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Body and content type in the format that the Accept header prefers."""
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
