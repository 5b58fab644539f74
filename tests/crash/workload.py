"""What the crash matrix writes, and the one SQL statement that judges it.

A source transaction has rows in two DUPLICATE KEY tables, where no upsert can hide a second copy, and every row says
how many rows its transaction has. So one statement over both tables shows lost, duplicated and torn ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def judge(groups: Iterable[tuple[Any, ...]], wanted: set[tuple[str, int]] | None = None) -> Verdict:
    """Judge the answer to JUDGEMENT; with `wanted` also what is missing, and what nobody wrote counts as duplicated."""
    duplicated = torn = 0
    seen = set()
    for part, position, rows, different, size in groups:
        seen.add((part, int(position)))
        duplicated += int(rows > different)
        torn += int(different != size)
    if wanted is None:
        return Verdict(0, duplicated, torn)
    return Verdict(len(wanted - seen), duplicated + len(seen - wanted), torn)
