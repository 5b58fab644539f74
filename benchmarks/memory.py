"""What one source transaction adds to a worker's memory, with a rare table next to two busy ones.

    python -m benchmarks.memory --megabytes 1000 --row-bytes 10000 --rare-every 200

The rows come as Spark sends them: Arrow batches in an IPC stream through a pipe, from a process of its own. So does the
server, which keeps nothing (`benchmarks.null_server`). Prints one JSON object; `growth` is in MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from threading import Event, Thread

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.measure import say
from benchmarks.null_server import NullServer
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.keys import KeyColumn
from starrocks_txn_sink.writer.lane_try import LaneTry
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt

_BATCH_ROWS = 10_000  # spark.sql.execution.arrow.maxRecordsPerBatch
_BATCH_BYTES = 16 << 20  # spark.sql.execution.arrow.maxBytesPerBatch, as recommended_conf() has it


class PeakMemory:
    """The largest resident size of this process above the one at the start, sampled every 5 ms."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._start = self._highest = self._process.memory_info().rss
        self._over = Event()
        self._thread = Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self._highest - self._start

    def _sample(self) -> None:
        while not self._over.wait(0.005):
            self._highest = max(self._highest, self._process.memory_info().rss)


def batches(size: int, row_bytes: int, rare_every: int) -> Iterator[pa.RecordBatch]:
    """One source transaction of about `size` bytes, where each `rare_every`-th row (0: none) is for the rare table."""
    rows = min(_BATCH_ROWS, _BATCH_BYTES // row_bytes, size // row_bytes)
    tables = np.array(["orders", "items"], dtype=object)[np.arange(rows) % 2]
    if rare_every:
        tables[::rare_every] = "audit"
    last = max(1, size // (rows * row_bytes)) - 1
    for number in range(last + 1):
        starts = [f',{{"k":{number * rows + row},"v":"' for row in range(rows)]
        yield _batch(
            pa.array(["p"] * rows),
            pa.array(np.ones(rows, np.int64)),
            pa.array(tables, pa.string()),
            pa.array([(number, row) == (last, rows - 1) for row in range(rows)]),
            pa.array([start + "x" * (row_bytes - len(start) - 2) + '"}' for start in starts]),
        )


def _batch(*arrays: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(arrays), names=list(columns.COLUMNS))


def write_batches(numbers: list[int]) -> None:
    """Write the batches to standard output."""
    size, row_bytes, rare_every = numbers
    stream: pa.RecordBatchStreamWriter | None = None
    for batch in batches(size, row_bytes, rare_every):
        stream = stream or pa.ipc.new_stream(sys.stdout.buffer, batch.schema)
        stream.write_batch(batch)


def received_batches(*numbers: int) -> Iterator[pa.RecordBatch]:
    """The batches that another process writes."""
    command = [sys.executable, "-m", "benchmarks.memory", "--write", *map(str, numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        yield from pa.ipc.open_stream(process.stdout)


def measure_growth(size: int, row_bytes: int, rare_every: int, options: SinkOptions, *, keyed: bool) -> int:
    """Bytes that a lane adds to this process while it writes such a source transaction; a small one goes before it."""
    keys = {table: [KeyColumn.of("k", "BIGINT", None)] for table in ("orders", "items", "audit")} if keyed else {}
    task = LaneTask(options, "memory", "e", "c", 0, keys=keys, label="memory")
    LaneTry(task, Attempt(0, 0, False), SystemClock()).run(received_batches(row_bytes * 100, row_bytes, rare_every))
    with PeakMemory() as peak:
        LaneTry(task, Attempt(0, 1, False), SystemClock()).run(received_batches(size, row_bytes, rare_every))
    return peak.growth


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--row-bytes", type=int, default=10_000)
    parser.add_argument("--rare-every", type=int, default=200, help="0: no rare table")
    parser.add_argument("--buffer", type=int, default=16, help="buffer_bytes in MiB")
    parser.add_argument("--keyed", action="store_true", help="tables with primary keys")
    parser.add_argument("--write", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = vars(parser.parse_args())
    if numbers := arguments.pop("write"):
        write_batches(numbers)
        return
    with NullServer() as server:
        options = SinkOptions(
            load_url=server.load_url,
            database="shop",
            delivery="at-least-once",
            buffer_bytes=arguments["buffer"] << 20,
        )
        size = arguments["megabytes"] * 1_000_000
        grown = measure_growth(size, arguments["row_bytes"], arguments["rare_every"], options, keyed=arguments["keyed"])
    say(json.dumps({**arguments, "growth": round(grown / 1e6)}))


if __name__ == "__main__":
    main()
