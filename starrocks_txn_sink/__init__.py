"""Whole source transactions from PySpark Structured Streaming into several StarRocks tables, atomically.

    from starrocks_txn_sink import SinkOptions, StarRocksSink, assemble_transactions

The names are loaded on first use: options and errors need no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starrocks_txn_sink.assembler.spark import assemble_transactions
    from starrocks_txn_sink.assembler.verified.spark import assemble_debezium
    from starrocks_txn_sink.audit import Audit
    from starrocks_txn_sink.changelog import from_changelog, to_changelog, to_starrocks_ops, upsert_materializer
    from starrocks_txn_sink.errors import StarRocksSinkError
    from starrocks_txn_sink.lane.receipt import Receipt
    from starrocks_txn_sink.logs import configure_logging
    from starrocks_txn_sink.metrics import MetricsServer
    from starrocks_txn_sink.options import SinkOptions, TableOptions, recommended_conf
    from starrocks_txn_sink.sink import (
        StarRocksDataSource,
        StarRocksSink,
        TableRoute,
        TransactionAssembly,
        lane_partitioned,
    )
    from starrocks_txn_sink.sources.txn_lines import TxnEventLines

__version__ = "0.1.0"

_HOMES = {
    "Audit": "starrocks_txn_sink.audit",
    "MetricsServer": "starrocks_txn_sink.metrics",
    "Receipt": "starrocks_txn_sink.lane.receipt",
    "SinkOptions": "starrocks_txn_sink.options",
    "StarRocksDataSource": "starrocks_txn_sink.sink",
    "StarRocksSink": "starrocks_txn_sink.sink",
    "StarRocksSinkError": "starrocks_txn_sink.errors",
    "TableOptions": "starrocks_txn_sink.options",
    "TableRoute": "starrocks_txn_sink.sink",
    "TransactionAssembly": "starrocks_txn_sink.sink",
    "TxnEventLines": "starrocks_txn_sink.sources.txn_lines",
    "assemble_debezium": "starrocks_txn_sink.assembler.verified.spark",
    "assemble_transactions": "starrocks_txn_sink.assembler.spark",
    "configure_logging": "starrocks_txn_sink.logs",
    "lane_partitioned": "starrocks_txn_sink.sink",
    "recommended_conf": "starrocks_txn_sink.options",
    "from_changelog": "starrocks_txn_sink.changelog",
    "to_changelog": "starrocks_txn_sink.changelog",
    "to_starrocks_ops": "starrocks_txn_sink.changelog",
    "upsert_materializer": "starrocks_txn_sink.changelog",
}

__all__ = [
    "Audit",
    "MetricsServer",
    "Receipt",
    "SinkOptions",
    "StarRocksDataSource",
    "StarRocksSink",
    "StarRocksSinkError",
    "TableOptions",
    "TableRoute",
    "TransactionAssembly",
    "TxnEventLines",
    "__version__",
    "assemble_debezium",
    "assemble_transactions",
    "configure_logging",
    "from_changelog",
    "lane_partitioned",
    "recommended_conf",
    "to_changelog",
    "to_starrocks_ops",
    "upsert_materializer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
