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
    "recommended_conf",
    "require_supported",
]


def recommended_conf(shuffle_partitions: int = 4) -> dict[str, str]:
    """Recommended Spark settings, for the session's builder or spark-submit's `--conf`.

    docs/performance.md explains each of them. `shuffle_partitions` is the parallelism of stateful stages: about the
    number of cores. A checkpoint keeps the number of its first start.
    """
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.streaming.stateStore.providerClass": rocksdb,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.driver.extraJavaOptions": "-Xss16m",
    }
