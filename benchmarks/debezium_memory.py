"""What one huge transaction of Debezium, or many open ones, add to a worker's memory, without Spark and Kafka.

    python -m benchmarks.debezium_memory [--megabytes 1000] [--row-bytes 1000] [--transactions 1] [--open]

The rows of the transactions take turns; with `--open` none of them has its END. The server keeps nothing
(`benchmarks.null_server`). Prints one JSON object; `growth` is in MB, with the messages of a batch in it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.measure import say
from benchmarks.memory import PeakMemory
from benchmarks.null_server import NullServer
from starrocks_txn_sink import DebeziumAssembly, SinkOptions
from starrocks_txn_sink.assembler.rules.directory import FileDirectory
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import CarryOver, of_kind
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt

_BATCH_BYTES = 8 << 20
_ENVELOPE = 350  # bytes around a row
_START = 1_790_000_000_000


def messages(size: int, row_bytes: int, transactions: int, *, ended: bool) -> Iterator[pa.RecordBatch]:
    """The messages of `transactions` with as many rows each, about `size` bytes of rows in all."""
    per_transaction = max(1, size // row_bytes // transactions)
    padding, rows = "x" * max(1, row_bytes - 30), per_transaction * transactions
    step = max(1, _BATCH_BYTES // (row_bytes + _ENVELOPE))
    for start in range(0, rows, step):
        numbers = range(start, min(start + step, rows))
        yield _batch(
            "shop.public.orders", start, [_change(n, n % transactions, n // transactions + 1, padding) for n in numbers]
        )
    counts = [{"data_collection": "public.orders", "event_count": per_transaction}]
    end = {"status": "END", "event_count": per_transaction, "data_collections": counts, "ts_ms": _START}
    if ended:
        yield _batch("shop.transaction", 0, [json.dumps(end | {"id": f"{n}:{rows}"}) for n in range(transactions)])


def _change(number: int, transaction: int, order: int, padding: str) -> str:
    source = {"connector": "postgresql", "name": "shop", "schema": "public", "table": "orders", "lsn": number}
    owner = {"id": f"{transaction}:{number}", "total_order": order, "data_collection_order": order}
    change = {"before": None, "after": {"id": number, "v": padding}, "source": source, "transaction": owner, "op": "c"}
    return json.dumps(change, separators=(",", ":"))


def _batch(topic: str, start: int, values: list[str]) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "value": pa.array(values).cast(pa.binary()),
        "topic": pa.repeat(topic, count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(start, start + count), pa.int64()),
        "timestamp": pa.array([_START] * count, pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def write(batches: Iterator[pa.RecordBatch], load_url: str) -> CarryOver:
    """Assemble and load the batches of one micro-batch in a lane."""
    options = SinkOptions(load_url=load_url, database="shop", delivery="at-least-once")
    assembly = DebeziumAssembly()
    with tempfile.TemporaryDirectory(prefix="debezium-memory-") as home:
        (Path(home) / "rows").mkdir()
        directory, content = FileDirectory(home), PayloadEncoder("shop")
        spec = AssemblySpec(
            assembly.assembler, assembly.policy, content, time.time(), directory, "s", lines=assembly.lines
        )
        task = LaneTask(options, "memory", "e", "c", 0, label="memory")
        (carried,) = of_kind(SparkLane(task, spec).run(batches, Attempt(0, 0, False)), CarryOver)
    return carried


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--row-bytes", type=int, default=1000)
    parser.add_argument("--transactions", type=int, default=1)
    parser.add_argument("--open", action="store_true")
    arguments = parser.parse_args()
    if hasattr(os, "confstr"):
        pa.set_memory_pool(pa.system_memory_pool())  # as in a Spark task (writer.worker)
    with NullServer() as server:
        write(messages(100 * arguments.row_bytes, arguments.row_bytes, 1, ended=True), server.load_url)
        ended = not arguments.open
        with PeakMemory() as peak:
            size = arguments.megabytes * 1_000_000
            carried = write(messages(size, arguments.row_bytes, arguments.transactions, ended=ended), server.load_url)
    say(json.dumps({**vars(arguments), "released": carried.flows.released, "growth": round(peak.growth / 1e6)}))


if __name__ == "__main__":
    main()
