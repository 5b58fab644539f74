"""Whole source transactions from PySpark Structured Streaming into several StarRocks tables, atomically.

    from starrocks_txn_sink import SinkOptions, StarRocksSink, assemble_transactions

The names are loaded on first use: options and errors need no Spark.
"""

from typing import TYPE_CHECKING

from starrocks_txn_sink.public_names import loaded_on_use

__version__ = "0.1.0"

_HOMES = {
    "starrocks_spark_stages.assemble.transactions": ("assemble_transactions",),
    "starrocks_spark_stages.assemble.debezium": ("assemble_debezium",),
    "starrocks_txn_ops.wait": ("wait_for_position",),
    "starrocks_txn_sink.sql.audit": ("Audit",),
    "starrocks_spark_stages.changelog.decode": ("from_changelog",),
    "starrocks_spark_stages.changelog.encode": ("to_changelog",),
    "starrocks_spark_stages.changelog.materializer": ("upsert_materializer",),
    "starrocks_spark_stages.changelog.starrocks_ops": ("to_starrocks_ops",),
    "starrocks_txn_sink.errors": ("StarRocksSinkError",),
    "starrocks_txn_sink.coordinator.model": ("Receipt",),
    "starrocks_txn_sink.telemetry": ("configure_logging",),
    "starrocks_txn_sink.metrics.server": ("MetricsServer",),
    "starrocks_txn_sink.options": ("SinkOptions", "TableOptions"),
    "starrocks_txn_sink.options.table_rules": ("TableRules",),
    "starrocks_txn_sink.sink.assembly": ("CanalAssembly", "DebeziumAssembly", "MaxwellAssembly", "TransactionAssembly"),
    "starrocks_txn_sink.sink.lineage": ("LineageListener",),
    "starrocks_txn_sink.sink.plain_frames": ("StarRocksDataSource",),
    "starrocks_txn_sink.sink.schema.source_tables": ("plan_tables",),
    "starrocks_txn_sink.sink.sink": ("StarRocksSink",),
    "starrocks_txn_sink.sink.spans": ("SpanListener",),
    "starrocks_txn_sink.sink.supervisor": ("RestartPolicy", "run_forever"),
    "starrocks_txn_sink.sink.typed.route": ("TableRoute",),
    "starrocks_txn_sink.spark_version": ("recommended_conf",),
    "starrocks_txn_sink.sources.formats.txn_events": ("TxnEventLines",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from starrocks_spark_stages.assemble.debezium import assemble_debezium as assemble_debezium
    from starrocks_spark_stages.assemble.transactions import assemble_transactions as assemble_transactions
    from starrocks_spark_stages.changelog.decode import from_changelog as from_changelog
    from starrocks_spark_stages.changelog.encode import to_changelog as to_changelog
    from starrocks_spark_stages.changelog.materializer import upsert_materializer as upsert_materializer
    from starrocks_spark_stages.changelog.starrocks_ops import to_starrocks_ops as to_starrocks_ops
    from starrocks_txn_ops.wait import wait_for_position as wait_for_position
    from starrocks_txn_sink.coordinator.model import Receipt as Receipt
    from starrocks_txn_sink.errors import StarRocksSinkError as StarRocksSinkError
    from starrocks_txn_sink.metrics.server import MetricsServer as MetricsServer
    from starrocks_txn_sink.options import SinkOptions as SinkOptions, TableOptions as TableOptions
    from starrocks_txn_sink.options.table_rules import TableRules as TableRules
    from starrocks_txn_sink.sink.assembly import (
        CanalAssembly as CanalAssembly,
        DebeziumAssembly as DebeziumAssembly,
        MaxwellAssembly as MaxwellAssembly,
        TransactionAssembly as TransactionAssembly,
    )
    from starrocks_txn_sink.sink.lineage import LineageListener as LineageListener
    from starrocks_txn_sink.sink.plain_frames import StarRocksDataSource as StarRocksDataSource
    from starrocks_txn_sink.sink.schema.source_tables import plan_tables as plan_tables
    from starrocks_txn_sink.sink.sink import StarRocksSink as StarRocksSink
    from starrocks_txn_sink.sink.spans import SpanListener as SpanListener
    from starrocks_txn_sink.sink.supervisor import RestartPolicy as RestartPolicy, run_forever as run_forever
    from starrocks_txn_sink.sink.typed.route import TableRoute as TableRoute
    from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines as TxnEventLines
    from starrocks_txn_sink.spark_version import recommended_conf as recommended_conf
    from starrocks_txn_sink.sql.audit import Audit as Audit
    from starrocks_txn_sink.telemetry import configure_logging as configure_logging
else:
    __all__ = ["__version__", *_MODULES]


__getattr__, __dir__ = loaded_on_use(__name__, _MODULES)
