"""Rows per second of the sink alone, of typed rows, and of events that are assembled on the way.

    python -m benchmarks.throughput [--rows 5000000] [--rounds 5] [--home DIR] [--only scan,ready,…]

One micro-batch from Parquet into a null server, four source partitions, two tables, transactions of ten rows of 150
bytes. Each part has its own ceiling in the same run: `scan` reads the ready rows and throws them away, `arrow` takes
them to Python as Arrow and throws them away there, `to_json` makes the rows' JSON and throws it away, `ready` is what
`events …` is compared with.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

from benchmarks import choices, feeds
from benchmarks.measure import Variant, figures, line, say, table, take_turns
from benchmarks.null_server import NullServer
from benchmarks.spark import session
from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute, TransactionAssembly, assemble_transactions

TYPED = ("id", "customer", "amount", "note")
COLUMNS = ("source_partition", "position", "table", "transaction_end", "row")
MARKS = ("source_partition", "position", "seq", "transaction_end")


def main() -> None:
    parser = choices.arguments(__doc__, rows=5_000_000)
    parser.add_argument("--only", default="", help="the variants' first words, comma-separated")
    arguments = parser.parse_args()
    rows = arguments.rows // (feeds.PARTITIONS * feeds.ROWS) * feeds.PARTITIONS * feeds.ROWS
    spark = session()
    with choices.home(arguments.home) as home, NullServer() as server:
        variants = _variants(spark, server, home, rows)
        chosen_variants = [
            variant
            for variant in variants
            if not arguments.only or variant.name.split()[0].strip(",") in arguments.only.split(",")
        ]
        take_turns(chosen_variants, arguments.rounds)
        rates = {variant.name: variant.rate for variant in chosen_variants}
        ratios = {
            f"{name} / {base}": round(rates[name] / rates[base], 3) for name, base in _GOALS if {name, base} <= {*rates}
        }
        table("throughput", chosen_variants)
        for name, ratio in ratios.items():
            say(f"{name:44}{ratio:10.3f}")
        line("throughput", figures(chosen_variants) | {"ratios": ratios})
    spark.stop()


_GOALS = (
    ("arrow, one task", "scan"),
    ("arrow, two tasks", "scan"),
    ("ready rows", "scan"),
    ("ready rows", "arrow, one task"),
    ("ready rows, shuffled", "scan"),
    ("ready rows, two lanes", "scan"),
    ("to_json, arrow", "to_json"),
    ("typed rows", "to_json"),
    ("typed rows, two lanes", "to_json"),
    ("events, in lanes", "ready rows"),
    ("events, in lanes with a shuffle", "ready rows, shuffled"),
    ("events, stage", "ready rows, shuffled"),
)


def _variants(spark: SparkSession, server: NullServer, home: Path, rows: int) -> list[Variant]:
    whole = feeds.write_parquet(spark, home, rows, whole=True)
    raw = feeds.write_parquet(spark, home, rows, whole=False)
    checkpoint = home / "checkpoint"

    def stream(folder: Path) -> DataFrame:
        return spark.readStream.schema(spark.read.parquet(str(folder)).schema).parquet(str(folder))

    def run(frame: DataFrame, sink: Callable[[DataFrame, int], None] | None) -> None:
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.format("noop") if sink is None else writer.foreachBatch(sink)
        query.start().awaitTermination()

    def clean() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)

    def options(lanes: int = 1, shuffle: bool | str = "auto") -> SinkOptions:
        return SinkOptions(
            load_url=server.load_url,
            database="shop",
            delivery="at-least-once",
            job="benchmark",
            lanes=lanes,
            shuffle=shuffle,
        )

    ready, events = stream(whole), stream(raw)
    typed = _typed(ready)
    route = TableRoute("orders", TYPED)
    as_json = typed.select(F.to_json(F.struct(*TYPED)))
    return [
        Variant("scan", rows, lambda: run(ready, None), clean),
        Variant("arrow, one task", rows, lambda: run(ready.select(*COLUMNS), _to_python(1)), clean),
        Variant("arrow, two tasks", rows, lambda: run(ready.select(*COLUMNS), _to_python(2)), clean),
        Variant("ready rows", rows, lambda: run(ready, StarRocksSink(options(shuffle=False))), clean),
        Variant("ready rows, shuffled", rows, lambda: run(ready, StarRocksSink(options())), clean),
        Variant("ready rows, two lanes", rows, lambda: run(ready, StarRocksSink(options(2))), clean),
        Variant("to_json", rows, lambda: run(as_json, None), clean),
        Variant("to_json, arrow", rows, lambda: run(as_json, _to_python(2)), clean),
        Variant("typed rows", rows, lambda: run(typed, StarRocksSink(options(shuffle=False), routes=[route])), clean),
        Variant("typed rows, two lanes", rows, lambda: run(typed, StarRocksSink(options(2), routes=[route])), clean),
        Variant("events, in lanes", rows, lambda: run(events, _in_lanes(options())), clean),
        Variant("events, in lanes with a shuffle", rows, lambda: run(events, _in_lanes(options(2))), clean),
        Variant("events, stage", rows, lambda: run(assemble_transactions(events), StarRocksSink(options())), clean),
    ]


def _to_python(tasks: int) -> Callable[[DataFrame, int], None]:
    """Takes a micro-batch to Python and throws it away there: no sink that sees its rows can be faster."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_arrays([pa.array([rows])], names=["rows"])

    def write(batch: DataFrame, _: int) -> None:
        batch.coalesce(tasks).mapInArrow(count, "rows long").collect()

    return write


def _in_lanes(options: SinkOptions) -> StarRocksSink:
    return StarRocksSink(options, assemble=TransactionAssembly())


def _typed(ready: DataFrame) -> DataFrame:
    """The same rows with typed columns instead of ready JSON, all for one table."""
    number = F.col("position") * F.lit(feeds.ROWS) + F.col("seq")
    return ready.select(
        *MARKS,
        F.lit("orders").alias("table"),
        number.alias("id"),
        F.format_string("customer-%06d", F.pmod(number, F.lit(100_000))).alias("customer"),
        (F.pmod(number, F.lit(9_999_999)).cast("decimal(12,2)") / 2).alias("amount"),
        F.substring("row", 70, 75).alias("note"),
    )


if __name__ == "__main__":
    main()
