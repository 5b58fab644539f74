"""One bad row among 100,000 of a micro-batch, under a quarantine: what finding it costs, by the number of tables.

`python -m benchmarks.bad_row --tables 2,5,20` prints a line of JSON for each number; without Spark, on emulators. Each
has the seconds of a micro-batch without a bad row, of one with a row that the sink judges itself, and of one with a row
that only the server refuses.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from tests.support.query_port import query
from tests.support.threaded_lanes import ThreadedJob, Transaction

LANES, ROWS_OF_TABLE = 2, 5
BAD = 1 << 40  # no INT
KINDS = {"good": (False, True), "judged": (True, True), "refused": (True, False)}
"""Whether a row is bad, and whether the sink looks at values."""


def transactions(tables: int, rows: int, bad: bool) -> list[list[Transaction]]:
    """Source transactions of each lane, with five rows of two tables each; the bad one is in the middle."""
    count = rows // (2 * ROWS_OF_TABLE)
    ids = [range(number * ROWS_OF_TABLE, (number + 1) * ROWS_OF_TABLE) for number in range(count)]
    written: list[Transaction] = [
        {f"t{number % tables}": list(ids[number]), f"t{(number + 1) % tables}": list(ids[number])}
        for number in range(count)
    ]
    if bad:
        table, numbers = next(iter(written[count // 3].items()))
        written[count // 3] = {**written[count // 3], table: [*numbers[1:], BAD]}
    return [written[: count // LANES], written[count // LANES :]]


def seconds_of(kind: str, tables: int, rows: int) -> dict[str, Any]:
    """Write one micro-batch on an emulator of its own."""
    bad, check_values = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder, Emulator(Path(folder), Settings(cores=4)) as server:
        query(server, "CREATE DATABASE shop")
        for number in range(tables):
            query(server, f"CREATE TABLE shop.t{number} (id INT NOT NULL) DUPLICATE KEY (id)")
        places: dict[str, Any] = {
            "load_url": server.load_url,
            "query_url": server.query_url,
            "database": "shop",
            "job": "shop",
        }
        settings: dict[str, Any] = {"on_bad_rows": "quarantine", "check_values": check_values, "lanes": LANES}
        job = ThreadedJob(SinkOptions(**places, **settings), LANES)
        job.write([[{"t0": [0]}], []])  # connections, and the sink's own tables
        content = transactions(tables, rows, bad)
        started = time.perf_counter()
        receipts = job.write(content).receipts
        seconds = time.perf_counter() - started
        letters = query(server, f"SELECT count(*) FROM shop.{DEAD_LETTER_TABLE}")
        assert letters == [(2 * ROWS_OF_TABLE if bad else 0,)], letters
        assert sum(receipt.rows + receipt.dead_lettered_rows for receipt in receipts) == rows
        return {
            f"{kind}_seconds": round(seconds, 1),
            f"{kind}_commits": len(receipts),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", default="2,5,20")
    parser.add_argument("--rows", type=int, default=100_000)
    choice = parser.parse_args()
    for tables in map(int, choice.tables.split(",")):
        figures: dict[str, Any] = {"tables": tables, "rows": choice.rows}
        for kind in KINDS:
            figures |= seconds_of(kind, tables, choice.rows)
        sys.stdout.write(f"{json.dumps(figures)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
