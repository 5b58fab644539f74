"""Rows per second of the changelog functions: stateless ones next to a plain projection, and those with state.

    python benchmarks/changelog.py [--rows 2000000] [--keys 20000] [--rounds 5]

Everything is read from one Parquet file and thrown away (`noop`), so a plain projection is the ceiling. The variants
take turns, and the best round of each counts: on a busy machine trust the ratios, not the figures.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from starrocks_txn_sink.changelog import from_changelog, to_changelog, to_starrocks_ops, upsert_materializer

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CODES = {"c": "INSERT", "u": "UPDATE_AFTER", "d": "DELETE"}
UPSERT = {"c, u": "INSERT, UPDATE_BEFORE, UPDATE_AFTER", "d": "DELETE"}

Variant = Callable[[DataFrame], DataFrame]


def plain(frame: DataFrame) -> DataFrame:
    kind = F.when(F.col("op") == "c", "+I").when(F.col("op") == "u", "+U").otherwise("-D")
    return frame.select(kind.alias("row_kind"), *(name for name in frame.columns if name != "op"))


STATELESS: dict[str, Variant] = {
    "plain projection": plain,
    "from_changelog, flat": lambda frame: from_changelog(frame, op_mapping=CODES, partition_by="id"),
    "from_changelog and to_changelog": lambda frame: to_changelog(from_changelog(frame, op_mapping=CODES)),
}
STATEFUL: dict[str, Variant] = {
    "to_starrocks_ops": lambda frame: to_starrocks_ops(
        from_changelog(frame, op_mapping=CODES), sink_key="id", sequence="lsn"
    ),
    "from_changelog with previous rows": lambda frame: from_changelog(
        frame, op_mapping=UPSERT, partition_by="id", sequence="lsn"
    ),
    "upsert_materializer": lambda frame: upsert_materializer(
        from_changelog(frame, op_mapping=CODES), sink_key="id", upsert_key="id", mode="force", sequence="lsn"
    ),
}


def seconds(frame: DataFrame) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def streamed(variant: Variant, source: DataFrame, path: str, home: Path) -> float:
    """Seconds of the whole stream in four micro-batches, start-up included."""
    stream = source.sparkSession.readStream.schema(source.schema).option("maxFilesPerTrigger", 1).parquet(path)
    writer = variant(stream).writeStream.format("noop").option("checkpointLocation", str(home))
    started = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - started


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-Xss16m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def events(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    number = F.col("id")
    return spark.range(rows).select(
        F.element_at(F.array(*map(F.lit, ("c", "u", "u", "d"))), (number % 4 + 1).cast("int")).alias("op"),
        (F.xxhash64(number) % keys).alias("id"),
        F.concat(F.lit("name "), number.cast("string")).alias("name"),
        (number * 1.5).alias("amount"),
        number.alias("lsn"),
    )


def show(name: str, rows: int, best: float, ceiling: float) -> None:
    print(f"{name:45} {rows / best / 1000:9.0f} k rows/s   {ceiling / best:6.1%} of plain", flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory() as home:
        path = f"{home}/events"
        events(spark, asked.rows, asked.keys).repartition(4).write.parquet(path)
        source = spark.read.parquet(path)
        best = dict.fromkeys(STATELESS, float("inf"))
        for _ in range(asked.rounds):
            for name, variant in STATELESS.items():
                best[name] = min(best[name], seconds(variant(source)))
        ceiling = best["plain projection"]
        for name in STATELESS:
            show(name, asked.rows, best[name], ceiling)
        for name, variant in STATEFUL.items():
            show(f"{name}, batch", asked.rows, seconds(variant(source)), ceiling)
        for number, (name, variant) in enumerate(STATEFUL.items()):
            taken = streamed(variant, source, path, Path(home) / f"checkpoint-{number}")
            show(f"{name}, stream of 4 batches", asked.rows, taken, ceiling)
    spark.stop()


if __name__ == "__main__":
    main()
