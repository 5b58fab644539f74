"""The options of a sink: typed, checked at construction, each declared once; also under the Flink connector's names."""

from __future__ import annotations

from starrocks_txn_sink.options.addresses import MIN_SERVER_VERSION, require_supported
from starrocks_txn_sink.options.declarations import Compression, Delivery, TableOptions
from starrocks_txn_sink.options.sink_options import SinkOptions

__all__ = [
    "MIN_SERVER_VERSION",
    "Compression",
    "Delivery",
    "SinkOptions",
    "TableOptions",
    "require_supported",
]
