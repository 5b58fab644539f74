"""A source transaction left open for a hundred micro-batches, and one of a gigabyte between small ones.

    python -m benchmarks.long_open [--batches 100] [--rows 1000] [--huge 1000]

Prints the cost of a micro-batch at the beginning and at the end, the growth of the state, and, for the huge one, how
far memory grew (`--huge` is its size in MB, 0 leaves it out).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import SparkSession

from benchmarks import choices
from benchmarks.measure import line, measure_once, say
from benchmarks.null_server import NullServer
from benchmarks.spark import session
from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines

LINES = TxnEventLines(source_partition=None, position=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--huge", type=int, default=1000)
    arguments = parser.parse_args()
    spark = session()
    with choices.home(None) as home, NullServer() as server:
        results = _long_open(spark, server, home, arguments.batches, arguments.rows)
        if arguments.huge:
            results["huge"] = _huge(spark, server, home, arguments.huge)
        line("long open", results)
    spark.stop()


def _long_open(spark: SparkSession, server: NullServer, home: Path, batches: int, rows: int) -> dict[str, Any]:
    source = home / "open"
    source.mkdir()
    position, data = 1, 0
    _put(source, 0, _event(0, "BEGIN"))
    for number in range(1, batches + 1):
        content = b"\n".join(_event(position + n, "DATA") for n in range(rows))
        position, data = position + rows, data + len(content)
        _put(source, number, content)
    seconds: list[float] = []
    _run(spark, server, source, home / "checkpoint", 1, seconds)
    state = sum(
        file.stat().st_size for file in (home / "checkpoint" / "starrocks_txn_sink").rglob("*") if file.is_file()
    )
    first, last = statistics.median(seconds[1:11]), statistics.median(seconds[-10:])
    say(
        f"micro-batch: first ten {first * 1000:.0f} ms, last ten {last * 1000:.0f} ms; "
        f"state {state / data:.2f} x the data"
    )
    return {"first_ten_seconds": first, "last_ten_seconds": last, "state_per_data": round(state / data, 3)}


def _put(source: Path, number: int, content: bytes) -> None:
    """A file whose time is its number, because files are read in the order of their times."""
    file = source / f"{number:05d}.txt"
    file.write_bytes(content)
    os.utime(file, (number, number))


def _huge(spark: SparkSession, server: NullServer, home: Path, megabytes: int) -> dict[str, Any]:
    source = home / "huge"
    source.mkdir()
    body = b"\n".join(_event(n, "DATA", 900) for n in range(1000))
    with (source / "0.txt").open("wb") as file:
        file.write(b"\n".join([_event(0, "BEGIN"), _event(1, "DATA"), _event(2, "END"), _event(3, "BEGIN")]) + b"\n")
        position = 4
        while file.tell() < megabytes * 1_000_000:
            file.write(b"\n".join(_event(position + n, "DATA", 900) for n in range(1000)) + b"\n")
            position += 1000
        file.write(_event(position, "END") + b"\n")
        file.write(
            b"\n".join([_event(position + 1, "BEGIN"), _event(position + 2, "DATA"), _event(position + 3, "END")])
        )
    del body
    shutil.rmtree(home / "checkpoint", ignore_errors=True)
    sample = measure_once(lambda: _run(spark, server, source, home / "checkpoint", 1, []))
    grown = sample.python_rss_growth / 1e6
    say(f"one source transaction of {megabytes} MB: {sample.seconds:.1f} s, Python workers grew by {grown:.0f} MB")
    return {"megabytes": megabytes, "seconds": round(sample.seconds, 1), "python_rss_growth_mb": round(grown)}


def _event(position: int, kind: str, width: int = 100) -> bytes:
    event: dict[str, Any] = {"source_partition": "p-0", "position": position, "type": kind, "txn_id": "t"}
    if kind == "DATA":
        event |= {"table": "orders", "row": orjson.dumps({"id": position, "note": "x" * width}).decode()}
    return orjson.dumps(event)


def _run(
    spark: SparkSession, server: NullServer, source: Path, checkpoint: Path, files: int, seconds: list[float]
) -> None:
    options = SinkOptions(load_url=server.load_url, database="shop", delivery="at-least-once", job="benchmark")
    sink = StarRocksSink(options, assemble=TransactionAssembly(lines=LINES))

    def timed(frame: Any, batch: int) -> None:
        started = time.perf_counter()
        sink(frame, batch)
        seconds.append(time.perf_counter() - started)

    lines = spark.readStream.option("maxFilesPerTrigger", files).text(str(source))
    writer = lines.writeStream.foreachBatch(timed).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
