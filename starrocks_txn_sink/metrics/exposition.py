"""Prometheus' text formats: a collector of prometheus-client that reads the model at each scrape."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import core
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from starrocks_txn_sink.metrics.catalogue import METRICS, Metric, MetricKind
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.writer.messages import Durations


class ModelCollector(Collector):
    """A collector over one model; it is not in the process's default registry."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def collect(self) -> Iterator[core.Metric]:
        """Every metric of the catalogue."""
        with self._model.lock:
            yield from [self._family(metric) for metric in METRICS]

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Body and content type in the format that the Accept header prefers."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self), content_type

    def _family(self, metric: Metric) -> core.Metric:
        metrics, build = self._model.metrics, self._model.build
        if metric.kind is MetricKind.HISTOGRAM:
            histogram = core.HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
            for labels, durations in metrics.histograms(metric.name):
                histogram.add_metric(labels, _buckets(durations), durations.total)
            return histogram
        of_build = {tuple(build[label] for label in metric.labels): 1.0} if metric.name == "build_info" else None
        kind = core.CounterMetricFamily if metric.kind is MetricKind.COUNTER else core.GaugeMetricFamily
        family = kind(metric.full_name, metric.help, labels=metric.labels)
        for labels, value in (of_build or metrics.values(metric.name)).items():
            family.add_metric(labels, value)
        return family


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds = [*map(repr, map(float, durations.bounds)), "+Inf"]
    return list(zip(bounds, map(float, accumulate(durations.counts)), strict=True))
