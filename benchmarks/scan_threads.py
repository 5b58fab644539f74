"""Micro-batches of four lanes and twenty tables at a budget of scan threads: none fails, none waits for itself.

`python -m benchmarks.scan_threads --micro-batches 500 --cores 1` prints a line of JSON; without Spark, on an emulator.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from tests.support.query_port import query
from tests.unit.sink.test_table_rooms import DDL, Shop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=500)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--tables", type=int, default=4, help="most tables of a source transaction")
    choice = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Emulator(Path(folder), Settings(cores=choice.cores)) as server,
    ):
        for sql in ("CREATE DATABASE shop", *DDL):
            query(server, sql)
        shop = Shop(server, 4, random.Random(11))
        job, started = shop.job(), time.perf_counter()
        labels, slowest = [], 0.0
        for _ in range(choice.micro_batches):
            before = time.perf_counter()
            labels.append(len(job.write(shop.micro_batch(choice.tables)).receipts))
            slowest = max(slowest, time.perf_counter() - before)
        shop.check()
        (threads,) = server.scan_threads
        figures = {
            "cores": choice.cores,
            "micro_batches": choice.micro_batches,
            "transactions": sum(labels),
            "most_in_one": max(labels),
            "attempts": sum(receipt.attempts for receipt in job.receipts),
            "threads": threads.size,
            "most_open_loads": threads.peak,
            "seconds": round(time.perf_counter() - started, 1),
            "slowest": round(slowest, 2),
        }
        sys.stdout.write(f"{json.dumps(figures)}\n")


if __name__ == "__main__":
    main()
