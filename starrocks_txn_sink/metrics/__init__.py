"""Metrics of the driver: a model fed by the sink's events and receipts, an endpoint for Prometheus, and a page.

The endpoint needs the extra `metrics` (prometheus-client). The public name is loaded on first use, because the sink
imports single modules from here without an endpoint.
"""

from typing import TYPE_CHECKING

from starrocks_txn_sink.public_names import loaded_on_use

_MODULES = {"MetricsServer": "starrocks_txn_sink.metrics.server"}

if TYPE_CHECKING:
    from starrocks_txn_sink.metrics.server import MetricsServer as MetricsServer
else:
    __all__ = [*_MODULES]


__getattr__, __dir__ = loaded_on_use(__name__, _MODULES)
