"""The options of a sink: typed, checked at construction, each declared once; also under the Flink connector's names."""

from starrocks_txn_sink.options.enums import Compression, Delivery, SchemaChanges, TableOptions
from starrocks_txn_sink.options.sink_options import SinkOptions

__all__ = ["Compression", "Delivery", "SchemaChanges", "SinkOptions", "TableOptions"]
