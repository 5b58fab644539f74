"""Modules import without the parts of PySpark that Spark 3.5 lacks, as the matrix would find only with that version."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
import pyspark.sql.streaming
import starrocks_spark_stages
import starrocks_txn_ops
import starrocks_txn_sink
del pyspark.sql.streaming.stateful_processor
sys.modules["pyspark.sql.streaming.stateful_processor"] = sys.modules["pyspark.sql.datasource"] = None
for package in (starrocks_spark_stages, starrocks_txn_ops, starrocks_txn_sink):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.rpartition(".")[2] not in ("__main__", "daemon", "_compiled"):  # two work at once, one is C
            try:
                importlib.import_module(module.name)
            except Exception as error:
                print(module.name, error)
"""
DATA_SOURCES = {
    "starrocks_spark_stages.balanced.reader",
    "starrocks_txn_sink.sink.collected",
    "starrocks_txn_sink.sink.plain_frames",
}


def test_only_the_data_sources_need_spark_4() -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    failed = dict(line.split(" ", 1) for line in process.stdout.splitlines())
    assert failed.keys() == DATA_SOURCES, failed
    assert all("datasource" in why for why in failed.values()), failed
