"""Rows per second of the changelog functions: stateless ones next to a plain projection, and those with state.

    python benchmarks/changelog.py [--rows 2000000] [--keys 20000] [--rounds 11] [--stateless]
    python benchmarks/changelog.py --keyed 100,10000,100000 [--rounds 11] [--seconds 100]

Everything is read from one Parquet file and thrown away (`noop`), so a plain projection is the ceiling. The variants
take turns; each is compared with the projection of its own round, and the median of these ratios counts. What runs in
the JVM alone is measured in CPU time; on a busy machine compare the ratios, not the times.

`--keyed` measures keyed state alone: a stream of micro-batches in which every key is updated once, for each number of
keys. It counts the CPU time of the JVM and its workers, with and without the JVM's just-in-time compilers, which take
half of it in a stream's first minutes. A number of keys ends after `--rounds` micro-batches or `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_txn_sink.changelog import from_changelog, to_changelog, to_starrocks_ops, upsert_materializer

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CODES = {"c": "INSERT", "u": "UPDATE_AFTER", "d": "DELETE"}
UPSERT = {"c, u": "INSERT, UPDATE_BEFORE, UPDATE_AFTER", "d": "DELETE"}

Variant = Callable[[DataFrame], DataFrame]


def plain(frame: DataFrame) -> DataFrame:
    kind = F.when(F.col("op") == "c", "+I").when(F.col("op") == "u", "+U").otherwise("-D")
    return frame.select(kind.alias("row_kind"), *(name for name in frame.columns if name != "op"))


def with_images(frame: DataFrame) -> DataFrame:
    row = F.struct(*(name for name in frame.columns if name not in ("op", "lsn")))
    return frame.select("op", "lsn", row.alias("before"), row.alias("after"))


def plain_images(frame: DataFrame) -> DataFrame:
    """By hand what the images' conversion gives: one row of an insert or a delete, two of an update."""
    events = with_images(frame)
    parts = {"c": [("+I", "after")], "u": [("-U", "before"), ("+U", "after")], "d": [("-D", "before")]}
    rows = F.lit(None)
    for code, kinds in parts.items():
        images_of_code = F.array(
            *(F.struct(F.lit(kind).alias("kind"), F.col(image).alias("row")) for kind, image in kinds)
        )
        rows = F.when(F.col("op") == code, images_of_code).otherwise(rows)
    return events.select(F.explode(rows).alias("change"), "lsn").select("change.kind", "change.row.*", "lsn")


def images(frame: DataFrame) -> DataFrame:
    return from_changelog(
        with_images(frame),
        before="before",
        after="after",
        op_mapping={"c": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER", "d": "DELETE"},
        passthrough="lsn",
    )


STATELESS: dict[str, tuple[Variant, Variant]] = {  # each with the projection that it is compared with
    "from_changelog, flat": (
        lambda frame: from_changelog(frame, op_mapping=CODES, partition_by="id"),
        plain,
    ),
    "from_changelog, before and after": (images, plain_images),
    "to_changelog, flat": (
        lambda frame: to_changelog(plain(frame), op_mapping={kind: code for code, kind in CODES.items()}),
        plain,
    ),
    "from_changelog and to_changelog": (lambda frame: to_changelog(from_changelog(frame, op_mapping=CODES)), plain),
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


def cpu_seconds(frame: DataFrame) -> float:
    """Seconds of CPU time of the JVM: what it costs, also where others use the machine."""
    java = psutil.Process(frame.sparkSession.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    started = java.cpu_times()
    seconds(frame)
    ended = java.cpu_times()
    return float(ended.user + ended.system - started.user - started.system)


def time_stream(variant: Variant, source: DataFrame, path: str, home: Path) -> float:
    """Seconds of the whole stream in four micro-batches, start-up included."""
    stream = source.sparkSession.readStream.schema(source.schema).option("maxFilesPerTrigger", 1).parquet(path)
    writer = variant(stream).writeStream.format("noop").option("checkpointLocation", str(home))
    started = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return time.perf_counter() - started


class CpuTime(NamedTuple):
    """Seconds of CPU time: all of the JVM and its Python workers, and the JVM's just-in-time compilers alone."""

    all: float
    compilers: float

    @classmethod
    def so_far(cls, spark: SparkSession) -> CpuTime:
        """CPU time since the start, of ended workers too. Compilers are known on Linux only, else 0."""
        java = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
        total = sum(sum(process.cpu_times()[:4]) for process in (java, *java.children(recursive=True)))
        compilers = 0.0
        for thread in java.threads():
            with suppress(OSError):
                name = Path(f"/proc/{java.pid}/task/{thread.id}/comm").read_text()
                compilers += thread.user_time + thread.system_time if "CompilerThre" in name else 0.0
        return cls(float(total), compilers)

    def since(self, before: CpuTime) -> CpuTime:
        return CpuTime(self.all - before.all, self.compilers - before.compilers)


def keyed_costs(spark: SparkSession, keys: int, rounds: int, limit: float, home: Path) -> list[CpuTime]:
    """The cost of each micro-batch of `from_changelog` with previous rows; every key is updated once in it.

    Two micro-batches come before them: the first fills the state, the second warms up.
    """
    (folder := home / "events").mkdir(parents=True)
    number = F.col("id")
    code, amount = F.lit("u").alias("op"), (number * 1.5).alias("amount")
    stream = spark.readStream.schema("op string, id bigint, name string, amount double, lsn bigint").parquet(
        str(folder)
    )
    writer = STATEFUL["from_changelog with previous rows"](stream).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
    costs: list[CpuTime] = []
    ends_at = time.monotonic() + limit
    for batch in range(rounds + 2):
        name = F.concat(F.lit(f"name {batch} "), number.cast("string")).alias("name")
        changes = spark.range(keys).select(code, "id", name, amount, F.lit(batch).cast("bigint").alias("lsn"))
        changes.coalesce(1).write.parquet(str(home / f"made-{batch}"))
        (file,) = (home / f"made-{batch}").glob("*.parquet")
        before = CpuTime.so_far(spark)
        file.rename(folder / file.name)
        query.processAllAvailable()
        costs += [CpuTime.so_far(spark).since(before)] if batch > 1 else []
        if time.monotonic() > ends_at and costs:
            break
    query.stop()
    return costs


def measure_keyed(spark: SparkSession, sizes: list[int], rounds: int, limit: float, home: Path) -> None:
    for place, keys in enumerate(sizes):
        costs = keyed_costs(spark, keys, rounds, limit, home / str(place))
        seconds = statistics.median(cost.all for cost in costs)
        bare = statistics.median(cost.all - cost.compilers for cost in costs)
        show(f"keyed state, {keys} keys", keys, seconds, f"per CPU second, {seconds:.2f} s in median of {len(costs)}")
        show(f"keyed state, {keys} keys, compiled", keys, bare, f"per CPU second without JIT compilers, {bare:.2f} s")


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


SHOWN: dict[str, int] = {}


def show(name: str, rows: int, seconds: float, note: str) -> None:
    SHOWN[name] = round(rows / seconds)
    print(f"{name:45} {rows / seconds / 1000:9.1f} k rows {note}", flush=True)  # noqa: T201


def compare(source: DataFrame, rows: int, rounds: int) -> None:
    """Show the stateless variants, which run in the JVM alone, by CPU time."""
    times: dict[str, list[float]] = {name: [] for name in STATELESS}
    ratios: dict[str, list[float]] = {name: [] for name in STATELESS}
    plains: list[float] = []
    for number in range(rounds + 1):
        for name, (variant, ceiling) in STATELESS.items():
            bare, seconds = cpu_seconds(ceiling(source)), cpu_seconds(variant(source))
            if number:  # the first round warms up
                times[name].append(seconds)
                ratios[name].append(bare / seconds)
                plains += [bare] if ceiling is plain else []
    show("plain projection", rows, statistics.median(plains), "per CPU second")
    for name in STATELESS:
        note = f"per CPU second, {statistics.median(ratios[name]):6.1%} of its projection"
        show(name, rows, statistics.median(times[name]), note)


def measure_rows(spark: SparkSession, arguments: argparse.Namespace, home: str) -> None:
    """Rows of the stateless and the stateful variants."""
    path = f"{home}/events"
    events(spark, arguments.rows, arguments.keys).repartition(4).write.parquet(path)
    source = spark.read.parquet(path)
    compare(source, arguments.rows, arguments.rounds)
    stateful = {} if arguments.stateless else STATEFUL
    for name, variant in stateful.items():
        show(f"{name}, batch", arguments.rows, seconds(variant(source)), "a second")
    for number, (name, variant) in enumerate(stateful.items()):
        stream_seconds = time_stream(variant, source, path, Path(home) / f"checkpoint-{number}")
        show(f"{name}, stream of 4 batches", arguments.rows, stream_seconds, "a second, start-up included")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--stateless", action="store_true", help="leave out what keeps state")
    parser.add_argument("--keyed", help="measure keyed state alone, with these numbers of keys, as in 100,10000,100000")
    parser.add_argument("--seconds", type=float, default=100.0, help="of one number of keys (default 100)")
    arguments = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory() as home:
        if arguments.keyed:
            sizes = [int(keys) for keys in arguments.keyed.split(",")]
            measure_keyed(spark, sizes, arguments.rounds, arguments.seconds, Path(home))
        else:
            measure_rows(spark, arguments, home)
    spark.stop()
    rows = None if arguments.keyed else arguments.rows
    print(json.dumps({"benchmark": "changelog", "rows": rows, "rows_per_second": SHOWN}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
