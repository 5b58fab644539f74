"""Raw event lines → parsed → assembled → committed in a null server.

    python -m benchmarks.raw_lines [--rows 6000000] [--batches 3] [--rounds 5] [--home DIR]

The ratio is against the JVM parsing the same lines (`from_json`) and throwing the events away.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import feeds
from benchmarks.measure import Variant, report, take_turns
from benchmarks.null_server import NullServer
from benchmarks.spark import session
from starrocks_txn_sink import (
    SinkOptions,
    StarRocksSink,
    TableRules,
    TransactionAssembly,
    TxnEventLines,
    assemble_transactions,
)
from starrocks_txn_sink.sources import parse_txn_events

LINES = TxnEventLines(source_partition=None, position=None)
COLUMNS = TableRules(
    tables=".*", drop=["amount"], rename={"note": "remark"}, mask={"customer": "sha256"}, salt="a salt of the benchmark"
)
METADATA = TableRules(tables=".*", metadata=["_txn_id", "_position"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--only", default="", help="comma-separated: jvm, parse, lanes, rules, metadata, stage")
    parser.add_argument("--conf", action="append", default=[], help="a Spark setting to try, as name=value")
    arguments = parser.parse_args()
    spark = session(**dict(setting.split("=", 1) for setting in arguments.conf))
    home = arguments.home or Path(tempfile.mkdtemp(prefix="raw-lines-"))
    home.mkdir(exist_ok=True)
    rows = arguments.rows // (feeds.ROWS * feeds.PARTITIONS * arguments.batches)
    rows *= feeds.ROWS * feeds.PARTITIONS * arguments.batches
    with NullServer() as server:
        folder = feeds.write_lines(spark, home, rows, arguments.batches)
        variants = _variants(spark, server, folder, home, rows)
        chosen_variants = [
            variant
            for variant in variants
            if not arguments.only or variant.name.split()[0] in arguments.only.split(",")
        ]
        take_turns(chosen_variants, arguments.rounds)
    report("raw lines", chosen_variants)
    spark.stop()
    if arguments.home is None:
        shutil.rmtree(home)


def _variants(spark: SparkSession, server: NullServer, folder: Path, home: Path, rows: int) -> list[Variant]:
    checkpoint = home / "checkpoint"
    source = spark.readStream.option("maxFilesPerTrigger", feeds.PARTITIONS).text(str(folder))
    options = SinkOptions(load_url=server.load_url, database="shop", delivery="at-least-once", job="benchmark", lanes=1)

    def run(frame: DataFrame, sink: StarRocksSink | None) -> None:
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.format("noop") if sink is None else writer.foreachBatch(sink)
        query.start().awaitTermination()

    def clean() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)

    parsed = parse_txn_events(source, source_partition=None, position=None)
    in_lanes = TransactionAssembly(lines=LINES)
    ruled, with_metadata = (TransactionAssembly(lines=LINES, rules=[rule]) for rule in (COLUMNS, METADATA))
    return [
        Variant("jvm from_json, to noop", rows, lambda: run(feeds.parsed_in_jvm(source), None), clean),
        Variant("parse only, to noop", rows, lambda: run(parsed, None), clean),
        Variant("lanes", rows, lambda: run(source, StarRocksSink(options, assemble=in_lanes)), clean),
        Variant("rules in lanes", rows, lambda: run(source, StarRocksSink(options, assemble=ruled)), clean),
        Variant("metadata in lanes", rows, lambda: run(source, StarRocksSink(options, assemble=with_metadata)), clean),
        Variant("stage", rows, lambda: run(assemble_transactions(parsed), StarRocksSink(options)), clean),
    ]


if __name__ == "__main__":
    main()
