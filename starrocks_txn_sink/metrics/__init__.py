"""Metrics of the driver: a model fed by the sink's events and receipts, an endpoint for Prometheus, and a page.

Needs the extra `metrics` (prometheus-client). The sink imports this package only when an endpoint is configured.
"""

from starrocks_txn_sink.metrics.server import MetricsServer

__all__ = ["MetricsServer"]
