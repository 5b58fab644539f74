"""Plain rows in a schedule: no positions, no order; the rows of a micro-batch are one unit.

Spark keeps where micro-batches end in the checkpoint's log, which all drivers on that checkpoint share. The checker
knows which rows each micro-batch has, and nothing of units, digests or numbers of micro-batches.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson
import pyarrow as pa

from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from starrocks_txn_sink.rows.columns import HASH, PAYLOAD, TABLE
from tests.support.model_store import Change

from .checker import Checker, Published
from .source import Cut, Row, SourceTransaction

Key = tuple[str, int, int]  # source partition, position, number in the source transaction: unique to a row
Rows = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """The rows of a micro-batch, or of one of its lanes."""

    rows: Rows

    def retold(self) -> Unit:
        """The same rows, one of them with another content."""
        table, content = self.rows[0]
        return Unit(((table, content.replace(b'"v":', b'"w":1,"v":')), *self.rows[1:]))

    def keys(self) -> Counter[Key]:
        return Counter(_key(orjson.loads(content)) for _, content in self.rows)


def hash_of(row: Row) -> int:
    """The row's hash, as the JVM makes one: 64 bits with a sign, of table and content."""
    table, content = row
    low, high = zlib.crc32(content, zlib.crc32(table.encode())), zlib.crc32(table.encode() + b"," + content)
    return (high << 32 | low) - (1 << 63)


def units_of(transactions: list[SourceTransaction], lanes: int) -> dict[int, Unit]:
    """The rows of a micro-batch over its lanes, by their hash; lanes without rows are left out."""
    rows = [row for transaction in transactions for row in transaction.rows]
    spread = {lane: tuple(row for row in rows if hash_of(row) % lanes == lane) for lane in range(lanes)}
    return {lane: Unit(transactions) for lane, transactions in spread.items() if transactions}


def plain_batches(unit: Unit, rng: Random) -> list[pa.RecordBatch]:
    """The rows of a lane in any order, in record batches that end anywhere."""
    rows: list[tuple[Any, ...]] = [(table, b"," + content, hash_of((table, content))) for table, content in unit.rows]
    rng.shuffle(rows)
    cut = rng.randrange(1, len(rows)) if len(rows) > 2 and rng.random() < 0.4 else len(rows)
    return [_batch(part) for part in (rows[:cut], rows[cut:]) if part]


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    kinds = (pa.string(), pa.string(), pa.int64())
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[TABLE, PAYLOAD, HASH])


def _key(row: dict[str, Any]) -> Key:
    return row["p"], row["x"], row["s"]


class PlainChecker(Checker):
    """The checker for plain rows: each once, and the rows of a micro-batch all at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._units: dict[str, Counter[Key]] = {}

    def planned(self, writer: str, unit: Unit) -> None:
        """Labels that begin with `writer` (up to the micro-batch) are for `unit`."""
        self._units[writer] = unit.keys()

    def version(self, change: Change, tables: dict[str, list[Any]]) -> None:
        """A StarRocks transaction has become visible with `tables`' rows."""
        label = change.label
        self.refuse_superseded(label)
        keys: Counter[Key] = Counter()
        for table, rows in tables.items():
            if table != LEDGER_TABLE:
                for row in rows:
                    self._one(table, row, keys)
        unit = self._units[label.rsplit("-", 1)[0]]
        if keys != unit:
            self.report("torn", f"{label} shows {keys.total()} of {unit.total()} rows of its unit, or others")
        positions = {row["name"]: row["position"] for row in tables.get(LEDGER_TABLE, [])}
        self.published[label] = Published(keys.total(), positions)
        self._entry(label, keys, tables.get(LEDGER_TABLE, []))

    def _one(self, table: str, row: dict[str, Any], keys: Counter[Key]) -> None:
        key = _key(row)
        if self._contents.get(key) != (table, row):
            self.report("other", f"a row that the source does not have: {key} in {table}")
        if key in self._seen:
            self.report("duplicated", f"row {key} of {table} is there twice")
        self._seen.add(key)
        keys[key] += 1

    def _entry(self, label: str, keys: Counter[Key], rows: list[dict[str, Any]]) -> None:
        batch = int(label.rsplit("-", 2)[1])
        entries = [(row["position"], row["label"], row["row_count"], bool(row["digest"])) for row in rows]
        if entries != [(batch, label, keys.total(), True)]:
            self.report("other", f"{label}: the ledger's rows are {rows}")

    def sample(self) -> None:
        """The rows of a micro-batch are looked at with each version."""

    def acknowledged(self, who: str, cut: Cut) -> None:
        """A driver's micro-batch is done: Spark will never send its rows again."""
        for transactions, upto in zip(self._source.released, cut, strict=True):
            for transaction in transactions[:upto]:
                missing = [
                    seq
                    for seq in range(len(transaction.rows))
                    if (transaction.partition, transaction.position, seq) not in self._seen
                ]
                if missing:
                    self.report(
                        "lost",
                        f"{who} acknowledged {transaction.partition}@{transaction.position}, rows {missing} missing",
                    )

    def final(self) -> None:
        """Nothing more will happen: every row is there once."""
        missing = len(self._contents) - len(self._seen)
        if missing:
            self.report("lost", f"{missing} rows never became visible")
