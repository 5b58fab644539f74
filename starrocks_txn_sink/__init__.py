"""Whole source transactions from PySpark Structured Streaming into several StarRocks tables, atomically.

    from starrocks_txn_sink import SinkOptions, StarRocksSink, assemble_transactions

The names are loaded on first use: options and errors need no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starrocks_txn_sink.assembler.spark import assemble_transactions
    from starrocks_txn_sink.errors import StarRocksSinkError
    from starrocks_txn_sink.lane.receipt import Receipt
    from starrocks_txn_sink.options import SinkOptions, TableOptions
    from starrocks_txn_sink.sink import StarRocksSink, TableRoute

__version__ = "0.1.0"

_HOMES = {
    "Receipt": "starrocks_txn_sink.lane.receipt",
    "SinkOptions": "starrocks_txn_sink.options",
    "StarRocksSink": "starrocks_txn_sink.sink",
    "StarRocksSinkError": "starrocks_txn_sink.errors",
    "TableOptions": "starrocks_txn_sink.options",
    "TableRoute": "starrocks_txn_sink.sink",
    "assemble_transactions": "starrocks_txn_sink.assembler.spark",
}

__all__ = [
    "Receipt",
    "SinkOptions",
    "StarRocksSink",
    "StarRocksSinkError",
    "TableOptions",
    "TableRoute",
    "__version__",
    "assemble_transactions",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
