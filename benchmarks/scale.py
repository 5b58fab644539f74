"""How cost grows: with lanes, with source partitions, with tables; at a low rate; and with a ledger.

    python -m benchmarks.scale [--rows 400000] [--rounds 5] [--only lanes,partitions,tables,low,ledger]

Events are parsed already and assembled in the lanes, one micro-batch a run, into a null server. The ledger's part needs
the emulator's SQL port; loads go to the null server all the same.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from benchmarks import choices, feeds
from benchmarks.measure import Variant, figures, line, say, table, take_turns, where
from benchmarks.null_server import NullServer
from benchmarks.spark import session
from starrocks_emulator.server import Emulator
from starrocks_txn_sink import Receipt, SinkOptions, StarRocksSink, TransactionAssembly
from starrocks_txn_sink.telemetry import Event

MICRO_BATCHES = 6
PARTS = ("lanes", "partitions", "tables", "low", "ledger")


@dataclass(slots=True)
class Bench:
    """What every part needs."""

    spark: SparkSession
    server: NullServer
    home: Path
    rows: int
    rounds: int
    results: dict[str, Any] = field(default_factory=dict)

    def events(self, partitions: int = 4, tables: int = 2) -> DataFrame:
        """`rows` rows in transactions of ten, spread over source partitions and tables, as one Parquet file."""
        file = self.home / f"events-{partitions}-{tables}"
        if not file.exists():
            plain = feeds.events(self.spark, self.rows, 0)
            transaction = F.floor(F.col("position") / feeds.EVENTS)
            spread = plain.withColumns(
                {
                    "source_partition": F.concat(F.lit("p-"), F.pmod(transaction, F.lit(partitions))),
                    "table": F.when(
                        F.col("table").isNotNull(), F.concat(F.lit("t"), F.pmod("position", F.lit(tables)))
                    ),
                }
            )
            spread.write.parquet(str(file))
        return self.spark.readStream.schema(self.spark.read.parquet(str(file)).schema).parquet(str(file))

    def micro_batches(self, count: int) -> DataFrame:
        """`count` files of `rows` rows, each a micro-batch."""
        folder = self.home / "micro-batches"
        for number in range(0 if folder.exists() else count):
            batch = feeds.events(self.spark, self.rows, 0, number * self.rows // feeds.ROWS)
            batch.write.mode("append").parquet(str(folder))
        reader = self.spark.readStream.schema(self.spark.read.parquet(str(folder)).schema)
        return reader.option("maxFilesPerTrigger", 1).parquet(str(folder))

    def time_batches(self, frame: DataFrame, options: SinkOptions) -> list[float]:
        """What each micro-batch takes in the sink."""
        shutil.rmtree(self.home / "checkpoint", ignore_errors=True)
        sink, seconds = StarRocksSink(options, assemble=TransactionAssembly()), list[float]()

        def write(batch: DataFrame, number: int) -> None:
            started = time.perf_counter()
            sink(batch, number)
            seconds.append(time.perf_counter() - started)

        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(self.home / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return seconds

    def run(self, frame: DataFrame, options: SinkOptions, receipts: list[Receipt] | None = None) -> None:
        shutil.rmtree(self.home / "checkpoint", ignore_errors=True)

        def listen(event: Event) -> None:
            if receipts is not None and event.name == "receipt.collected":
                receipts.append(event.fields["receipt"])

        sink = StarRocksSink(options, assemble=TransactionAssembly(), listener=listen)
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(self.home / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def options(self, **changes: Any) -> SinkOptions:
        values = {"load_url": self.server.load_url, "database": "shop", "delivery": "at-least-once", "job": "benchmark"}
        return SinkOptions(**{**values, **changes})

    def variant(self, name: str, **changes: Any) -> Variant:
        shape = {key: changes.pop(key) for key in ("partitions", "tables") if key in changes}
        frame, options = self.events(**shape), self.options(**changes)
        return Variant(name, self.rows, lambda: self.run(frame, options))


def lanes(bench: Bench) -> None:
    """Lanes 1, 2, 4 over eight source partitions."""
    _compare(bench, "lanes", [bench.variant(f"{n} lanes", lanes=n, partitions=8) for n in (1, 2, 4)])


def partitions(bench: Bench) -> None:
    """Source partitions 1 to 1000."""
    variants = [bench.variant(f"{n} source partitions", partitions=n) for n in (1, 10, 100, 1000)]
    _compare(bench, "source partitions", variants)


def tables(bench: Bench) -> None:
    """Tables 2 to 200."""
    _compare(bench, "tables", [bench.variant(f"{n} tables", tables=n) for n in (2, 20, 200)])


def low(bench: Bench) -> None:
    """20 000 rows in a micro-batch, 60 source partitions: how many loads a commit has."""
    small = Bench(bench.spark, bench.server, bench.home / "low", 20_000, 1)
    small.home.mkdir(exist_ok=True)
    receipts: list[Receipt] = []
    small.run(small.events(60), small.options(), receipts)
    loads = [receipt.loads for receipt in receipts]
    say(f"low rate: {len(receipts)} StarRocks transactions, loads of each: {loads}, for 2 tables")
    bench.results["low rate"] = {"transactions": len(receipts), "loads": loads, "tables": 2}


def ledger(bench: Bench) -> None:
    """The ledger's rows and the owner check of a micro-batch, against none; each query's first one is left out."""
    with Emulator(bench.home / "emulator") as server:
        connection = {"query_url": server.query_url, "delivery": "exactly-once"}
        _create(server.query_url)
        ways = {"without a ledger": bench.options(), "with a ledger": bench.options(**connection)}
        frame = bench.micro_batches(MICRO_BATCHES)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(bench.rounds):
            for name in list(ways) if number % 2 else reversed(ways):
                seconds[name] += bench.time_batches(frame, ways[name])[1:]
    medians = {name: statistics.median(samples) for name, samples in seconds.items()}
    share = medians["without a ledger"] / medians["with a ledger"]
    say(f"\nscale: ledger ({where()}), seconds of a micro-batch of {bench.rows} rows")
    for name, median in medians.items():
        say(f"{name:44}{median:10.3f}")
    say(f"{'with a ledger / without, rows a second':44}{share:10.3f}")
    bench.results["ledger"] = {**medians, "ratio": round(share, 3)}


def _create(query_url: str) -> None:
    import pymysql

    port = int(query_url.rpartition(":")[2])
    with pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True) as connection:
        connection.cursor().execute("CREATE DATABASE shop")


def _compare(bench: Bench, title: str, variants: list[Variant]) -> None:
    take_turns(variants, bench.rounds)
    table(f"scale: {title}", variants)
    bench.results[title] = figures(variants)


def main() -> None:
    parser = choices.arguments(__doc__, rows=400_000)
    parser.add_argument("--only", default=",".join(PARTS))
    arguments = parser.parse_args()
    parts: dict[str, Callable[[Bench], None]] = {
        "lanes": lanes, "partitions": partitions, "tables": tables, "low": low, "ledger": ledger
    }  # fmt: skip
    spark = session()
    with choices.home(arguments.home) as home, NullServer() as server:
        bench = Bench(spark, server, home, arguments.rows, arguments.rounds)
        for name in arguments.only.split(","):
            parts[name](bench)
        line("scale", bench.results)
    spark.stop()


if __name__ == "__main__":
    main()
