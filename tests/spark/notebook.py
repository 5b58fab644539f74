"""Cells of a notebook, as a process: some are interrupted; then Spark stops and starts again under the same sinks.

`python -m tests.spark.notebook FOLDER` ends with 0 if every row has come once, and every cell has ended as it should.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import MetricsServer, StarRocksSink, TableRoute
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of
from tests.support.waiting import wait_until

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
TYPED = "source_partition string, position long, seq long, transaction_end boolean, part string, at long"


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.warehouse.dir", str(folder / "tables"))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    new_session = builder.getOrCreate()
    new_session.sparkContext.setLogLevel("ERROR")
    return new_session


class Notebook:
    """The shop's files are of p-0, frames of p-1, and typed frames of p-2."""

    def __init__(self, shop: Shop, metrics: MetricsServer) -> None:
        self.shop = shop
        self.sink = StarRocksSink(shop.options(job=None), metrics=metrics)
        self.frames = StarRocksSink(shop.options(job="frames"))
        self.typed = StarRocksSink(
            shop.options(job="typed"), routes=[TableRoute("items", {"part": "part", "position": "at"})]
        )

    def write(self, spark: SparkSession, upto: int) -> None:
        self.frames.write(spark.createDataFrame(rows_of("p-1", range(1, upto + 1)), SCHEMA))
        rows = [("p-2", at, 0, True, "p-2", at) for at in range(1, upto + 1)]
        self.typed.write(spark.createDataFrame(rows, TYPED))

    def start(self, spark: SparkSession) -> Any:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.shop.source))
        writer = rows.writeStream.foreachBatch(self.sink).option("checkpointLocation", str(self.shop.checkpoint()))
        return writer.trigger(processingTime="100 milliseconds").start()

    def interrupt(self, cell: Callable[[], object]) -> None:
        """Run the cell, and press Ctrl-C when it is about to commit; nothing of it may stay open."""
        self.shop.fault({"operation": "commit", "action": "delay", "when": "before", "seconds": 3, "times": 1})

        def press() -> None:
            wait_until(lambda: self.shop.server.faults.report()["rules"][0]["applied"])
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        try:
            cell()
        except KeyboardInterrupt:
            wait_until(lambda: not self.shop.open_labels())
            return
        raise AssertionError("The cell went on.")

    def rows(self) -> list[tuple[str, int, int]]:
        """Source partition, rows, and how many of them differ."""
        sql = "SELECT part, count(*), count(DISTINCT concat(position, '/', ifnull(seq, 0))) FROM shop.items GROUP BY 1"
        return sorted(self.shop.ask(sql))


def main(folder: Path) -> None:
    spark = session(folder)
    with Emulator(folder / "emulator") as server, MetricsServer(0) as metrics:
        shop = Shop(spark, server, folder)
        notebook = Notebook(shop, metrics)
        notebook.interrupt(lambda: notebook.write(spark, 2))
        notebook.write(spark, 2)
        shop.feed(rows_of("p-0", [1]))
        notebook.interrupt(lambda: notebook.start(spark).awaitTermination())
        query = notebook.start(spark)
        shop.feed(rows_of("p-0", [2]))
        wait_until(lambda: notebook.rows() == [("p-0", 4, 4), ("p-1", 4, 4), ("p-2", 2, 2)])

        # Spark lets an idle query outlive its session: it would read on, into the checkpoint of the next one.
        query.stop()
        spark.stop()
        spark = session(folder)
        progress_before = progress(metrics)
        notebook.write(spark, 3)
        query = notebook.start(spark)
        shop.feed(rows_of("p-0", [3]))
        wait_until(lambda: notebook.rows() == [("p-0", 6, 6), ("p-1", 6, 6), ("p-2", 3, 3)])
        wait_until(lambda: progress(metrics) > progress_before)
        query.stop()
        spark.stop()
        assert shop.open_labels() == []


def progress(metrics: MetricsServer) -> float:
    """How many rows Spark says that queries have read."""
    with urlopen(f"{metrics.url}metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if "input_rows" in line and not line.startswith("#"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
