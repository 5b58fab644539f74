"""Settings of a session, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATE = "org.apache.spark.sql.execution.streaming.state."
STORES = ["RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"]
ROCKSDB, HDFS = (STATE + store for store in STORES)


@contextmanager
def changed_conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
