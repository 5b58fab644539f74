"""Spark settings that fit this package; docs/performance.md explains each of them."""

from __future__ import annotations


def recommended_conf(shuffle_partitions: int = 4) -> dict[str, str]:
    """Settings for the session's builder, or for spark-submit's `--conf`.

    `shuffle_partitions` is the parallelism of stateful stages: about the number of cores. A checkpoint keeps the number
    that it was started with.
    """
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.streaming.stateStore.providerClass": rocksdb,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.driver.extraJavaOptions": "-Xss16m",
    }
