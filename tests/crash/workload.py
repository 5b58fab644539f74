"""What the crash matrix writes, and the one SQL statement that judges it.

A source transaction has rows in two DUPLICATE KEY tables, where no upsert can hide a second copy, and every row says
how many rows its transaction has. So one statement over both tables shows lost, duplicated and torn ones.

Some sites get the same source transactions as messages of two Debezium connectors, whole or change by change.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

NAMES = ("source_partition", "position", "seq", "table", "row", "transaction_end")
SCHEMA = "source_partition string, position long, seq long, table string, row string, transaction_end boolean"
TABLES = ("debits", "credits")
PARTITIONS = ("p-0", "p-1")
BATCHES, TRANSACTIONS, SIZE = 3, 2, 4

JUDGEMENT = (
    "SELECT part, position, count(*), count(DISTINCT seq), max(size) FROM ("
    "SELECT part, position, seq, size FROM {0}.debits UNION ALL SELECT part, position, seq, size FROM {0}.credits"
    ") both_tables GROUP BY part, position"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Source transactions by what is wrong with them."""

    lost: int = 0
    duplicated: int = 0
    torn: int = 0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(self.lost + other.lost, self.duplicated + other.duplicated, self.torn + other.torn)

    @property
    def good(self) -> bool:
        return self == Verdict()


def ddl(database: str) -> Iterator[str]:
    yield f"CREATE DATABASE {database}"
    for table in TABLES:
        yield (
            f"CREATE TABLE {database}.{table} (part VARCHAR(16) NOT NULL, position BIGINT NOT NULL, seq INT, size INT)"
            " DUPLICATE KEY(part, position) DISTRIBUTED BY HASH(part)"
        )


def transactions(batch: int, partitions: Sequence[str] = PARTITIONS) -> list[tuple[str, int]]:
    """The (source partition, position) pairs of one micro-batch."""
    return [(part, batch * 10 + n) for part in partitions for n in range(1, TRANSACTIONS + 1)]


def expected(batches: int = BATCHES, partitions: Sequence[str] = PARTITIONS) -> set[tuple[str, int]]:
    return {pair for batch in range(batches) for pair in transactions(batch, partitions)}


def write_source(folder: Path, batches: int = BATCHES, files: int = 1, partitions: Sequence[str] = PARTITIONS) -> None:
    """Write `files` files a micro-batch, each with whole source partitions; Spark takes the oldest first."""
    folder.mkdir(parents=True)
    for batch in range(batches):
        for number in range(files):
            rows = _rows(batch, partitions[number::files])
            file = folder / f"{batch}-{number}.json"
            file.write_bytes(b"\n".join(orjson.dumps(dict(zip(NAMES, row, strict=True))) for row in rows))
            os.utime(file, (batch + 1, batch + 1))


def _rows(batch: int, partitions: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for part, position in transactions(batch, partitions):
        for seq in range(SIZE):
            row = {"part": part, "position": position, "seq": seq, "size": SIZE}
            yield part, position, seq, TABLES[seq % 2], orjson.dumps(row).decode(), seq == SIZE - 1


# --- the same as messages of Debezium ---

Transactions = Literal["whole", "none"]
MESSAGES = "topic string, partition int, offset long, timestamp long, value string"


def write_messages(folder: Path, kind: Transactions) -> None:
    """Write two files a micro-batch, each with the messages of a connector; a connector's name is a source partition.

    A `whole` source transaction goes on in the next micro-batch, if there is one: the connector was killed in it, and
    sends its second half again, with a BEGIN and an END of its own, and a row that the first delivery has, too.
    """
    folder.mkdir(parents=True)
    for part in PARTITIONS:
        delayed: list[Message] = []
        offsets: Counter[str] = Counter()
        for batch in range(BATCHES):
            messages, delayed = delayed, []
            (_, first), (_, second) = transactions(batch, [part])
            messages += _delivery(part, first, kind)
            if kind == "none" or batch == BATCHES - 1:
                messages += _delivery(part, second, kind)
            else:
                messages += _delivery(part, second, kind, upto=SIZE // 2)
                delayed = _delivery(part, second, kind, start=SIZE // 2 - 1)
            lines = []
            for topic, value in messages:
                place = {"topic": topic, "partition": 0, "offset": offsets[topic], "timestamp": 1 + offsets.total()}
                lines.append(orjson.dumps(place | {"value": orjson.dumps(value).decode()}))
                offsets[topic] += 1
            file = folder / f"{batch}-{part}.json"
            file.write_bytes(b"\n".join(lines))
            os.utime(file, (batch + 1, batch + 1))


Message = tuple[str, dict[str, Any]]


def _delivery(part: str, position: int, kind: Transactions, start: int = 0, upto: int = SIZE) -> list[Message]:
    """The rows `start` to `upto` of a source transaction; without the last one also without its END."""
    txn, tables = f"{1000 + position}", [TABLES[seq % 2] for seq in range(start, upto)]
    rows: list[Message] = []
    for order, (seq, table) in enumerate(zip(range(start, upto), tables, strict=True), 1):
        row = {"part": part, "position": position, "seq": seq, "size": SIZE}
        source = {"name": part, "schema": "public", "table": table, "lsn": position}
        transaction = {"id": f"{txn}:{position}", "total_order": order} if kind == "whole" else None
        rows.append((f"{part}.{table}", {"op": "c", "after": row, "source": source, "transaction": transaction}))
    if kind == "none":
        return rows
    counts = [{"data_collection": f"public.{table}", "event_count": tables.count(table)} for table in TABLES]
    end = {"status": "END", "id": f"{txn}:{position}", "event_count": len(rows), "data_collections": counts}
    begin = {"status": "BEGIN", "id": f"{txn}:{position - 1}"}
    markers = f"{part}.transaction"
    return [(markers, begin), *rows, *([(markers, end)] if upto == SIZE else [])]


def newest_positions(kind: Transactions | None) -> dict[str, int]:
    """The ledger's positions when all is written: of changes by themselves the last offset of each topic."""
    if kind == "none":
        last = BATCHES * TRANSACTIONS * SIZE // len(TABLES) - 1
        return {f"{part}.{table}-0": last for part in PARTITIONS for table in TABLES}
    return {part: max(position for partition, position in expected() if partition == part) for part in PARTITIONS}


def judge(groups: Iterable[tuple[Any, ...]], expected_keys: set[tuple[str, int]] | None = None) -> Verdict:
    """Judge the answer to JUDGEMENT; with `expected_keys` also what is missing; what nobody wrote is duplicated."""
    duplicated = torn_count = 0
    keys = set()
    for part, position, rows, different, size in groups:
        keys.add((part, int(position)))
        duplicated += int(rows > different)
        torn_count += int(different != size)
    if expected_keys is None:
        return Verdict(0, duplicated, torn_count)
    return Verdict(len(expected_keys - keys), duplicated + len(keys - expected_keys), torn_count)
