"""Micro-batches of four lanes and twenty tables at a budget of scan threads: none fails, none waits for itself.

`python -m benchmarks.scan_threads --cores 1 --log /tmp/one.jsonl` prints a line of JSON; without Spark, on emulators.
A hundredth of the rows is bad, and only the server finds them: a text, a NULL, an id behind the table's ranges. Each
piece of the run has an emulator of its own, and a line in the log; the same command goes on behind the last piece
there. Figures that say what is wrong are there if they are not 0: micro-batches that `failed`, `repeated` labels,
`unread` loads, for which a commit had to wait, and those of `Shop.count_wrong`.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from starrocks_txn_sink.errors import StarRocksSinkError
from tests.support.query_port import query
from tests.support.twenty_tables import DDL, Shop

_MOST = ("most_labels", "most_open_loads", "threads")


def run_piece(number: int, micro_batches: int, cores: int, tables: int, bad: float) -> dict[str, Any]:
    """Write one piece; its figures."""
    figures: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, Emulator(Path(folder), Settings(cores=cores)) as server:
        for sql in ("CREATE DATABASE shop", *DDL):
            query(server, sql)
        shop = Shop(server, 4, random.Random(number), bad)
        options = {"on_bad_rows": "quarantine", "check_values": False} if bad else {}  # the server finds them
        job, seconds = shop.job(**options), []
        for _ in range(micro_batches):
            before = time.perf_counter()
            try:
                receipts = job.write(shop.micro_batch(tables)).receipts
            except StarRocksSinkError:
                logging.getLogger(__name__).exception("a micro-batch failed")
                figures["failed"] += 1
                break
            figures["labels"] += len(receipts)
            figures["repeated"] += sum(receipt.attempts - 1 for receipt in receipts)
            figures["dead_letters"] += sum(receipt.dead_lettered_transactions for receipt in receipts)
            figures["most_labels"] = max(figures["most_labels"], len(receipts))
            seconds.append(round(time.perf_counter() - before, 2))
        (threads,) = server.scan_threads
        figures["unread"] = threads.unread
        return {
            "piece": number,
            "micro_batches": micro_batches,
            "rows": sum(map(len, shop.rows.values())),
            "bad_rows": len(shop.dead),
            "threads": threads.size,
            "most_open_loads": threads.peak,
            "seconds": seconds,
            **+figures,
            **(shop.count_reasons() if bad else {}),
            **shop.count_wrong(),
        }


def total(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all pieces together."""
    names = dict.fromkeys(name for piece in pieces for name in piece)
    counts = {
        name: max(values) if name in _MOST else sum(values)
        for name in names
        if name not in ("piece", "seconds")
        for values in ([piece.get(name, 0) for piece in pieces],)
    }
    seconds = sorted(second for piece in pieces for second in piece["seconds"])
    twentieths = statistics.quantiles(seconds, n=20, method="inclusive")
    figures = {"all": sum(seconds), "p50": statistics.median(seconds), "p95": twentieths[-1], "most": seconds[-1]}
    return counts | {"seconds": {name: round(figure, 2) for name, figure in figures.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=500)
    parser.add_argument("--piece", type=int, default=50, help="micro-batches on one emulator")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--tables", type=int, default=4, help="most tables of a source transaction")
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad rows")
    parser.add_argument("--log", type=Path, help="file of the pieces' figures; those in it are not run again")
    choice = parser.parse_args()
    lines = choice.log.read_text().splitlines() if choice.log is not None and choice.log.exists() else []
    pieces = [json.loads(line) for line in lines]
    for number in range(len(pieces), -(-choice.micro_batches // choice.piece)):
        size = min(choice.piece, choice.micro_batches - number * choice.piece)
        pieces.append(run_piece(number, size, choice.cores, choice.tables, choice.bad))
        if choice.log is not None:
            with choice.log.open("a") as file:
                file.write(f"{json.dumps(pieces[-1])}\n")
    sys.stdout.write(f"{json.dumps({'cores': choice.cores, **total(pieces)})}\n")


if __name__ == "__main__":
    main()
