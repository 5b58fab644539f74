"""The benchmarks' Spark: local, all cores, the settings that the documentation recommends."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink import SinkOptions, StarRocksSink, recommended_conf


def session(**conf: str) -> SparkSession:
    """A session with recommended_conf(); `conf` is laid over it."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    home = tempfile.mkdtemp(prefix="benchmark-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    builder = SparkSession.builder.master("local[*]").appName("benchmark")
    settings = {
        **recommended_conf(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.local.dir": home,
        "spark.sql.warehouse.dir": f"{home}/warehouse",
        "spark.log.level": "ERROR",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write_all(frame: DataFrame, load_url: str, assemble: Any, checkpoint: Path, lanes: int | None = None) -> None:
    """Write all that the frame's topics have now, at least once, into a server that needs no ledger."""
    options = SinkOptions(load_url=load_url, database="shop", delivery="at-least-once", job="benchmark", lanes=lanes)
    writer = frame.writeStream.foreachBatch(StarRocksSink(options, assemble=assemble))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
