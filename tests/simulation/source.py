"""A replayable source: source partitions with source transactions over three tables, and the batches cut from them.

Every source transaction moves money between accounts: its amounts add up to nothing, so a reader who sees another sum
has seen a part of one. In every eighth schedule the rows come out of the assembler's rules, fed with an event log that
also holds transactions that were given up or never ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.assembler import TransactionAssembler
from starrocks_txn_sink.assembler.rules.intake import one_partition
from starrocks_txn_sink.assembler.rules.model import AssemblerState, Policy
from starrocks_txn_sink.rows.columns import COLUMNS

TABLES = ("accounts", "bookings", "journal")
Row = tuple[str, bytes]  # table, content
Cut = tuple[int, ...]  # how many source transactions of each source partition


@dataclass(frozen=True, slots=True)
class SourceTransaction:
    """One source transaction; `number` counts in its source partition, `position` grows with it."""

    partition: str
    number: int
    position: int
    rows: tuple[Row, ...]


@dataclass(slots=True)
class Source:
    """`truth[i]` is what source partition i says; `released[i]` what the sink gets of it, the same if all is well."""

    truth: list[list[SourceTransaction]]
    released: list[list[SourceTransaction]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.released = self.released or self.truth

    @property
    def end(self) -> Cut:
        return tuple(len(transactions) for transactions in self.released)

    @property
    def rows(self) -> int:
        return sum(len(transaction.rows) for transactions in self.truth for transaction in transactions)

    def recreated(self) -> Source:
        """Another source with as many source transactions: other contents, each one position earlier."""
        return Source([[_recreated(transaction) for transaction in transactions] for transactions in self.released])


def _recreated(transaction: SourceTransaction) -> SourceTransaction:
    rows = tuple((table, content.replace(b'"v":', b'"w":1,"v":')) for table, content in transaction.rows)
    return replace(transaction, position=transaction.position - 1, rows=rows)


def make_source(rng: Random, assembled: bool, partitions: tuple[int, ...] = (1, 2, 2, 3)) -> Source:
    """As many source partitions as one of `partitions` says; with `assembled` the sink gets what the rules made."""
    truth = [_partition(f"p-{number}", rng) for number in range(rng.choice(partitions))]
    return Source(truth, [_assembled(transactions, rng) for transactions in truth] if assembled else [])


def _partition(name: str, rng: Random) -> list[SourceTransaction]:
    transactions, position = [], rng.randrange(5)
    for number in range(rng.randint(1, 5)):
        position += rng.randint(8, 30)  # room for the events of the transaction
        transactions.append(SourceTransaction(name, number, position, _rows(name, position, rng)))
    return transactions


def further_transactions(name: str, upto: int, rng: Random, after: int = 0) -> list[SourceTransaction]:
    """Those of the source partition `name`, numbered from `after`: the first ends up to `upto`, the last behind."""
    transactions: list[SourceTransaction] = []
    position = rng.randint(min(8, upto), upto)
    least = rng.randint(1, 5)
    while len(transactions) < least or transactions[-1].position <= upto:
        number = after + len(transactions)
        transactions.append(SourceTransaction(name, number, position, _rows(name, position, rng)))
        position += rng.randint(8, 30)
    return transactions


def _rows(partition: str, position: int, rng: Random) -> tuple[Row, ...]:
    count = rng.choice((1, 2, 3, 3, 4, 5))
    amounts = [rng.randint(-999, 999) for _ in range(count - 1)]
    rows = []
    for seq, amount in enumerate([*amounts, -sum(amounts)]):
        table = TABLES[rng.randrange(3)]
        key = f"{partition}/{rng.randrange(3)}"
        row = {"p": partition, "x": position, "s": seq, "n": count, "k": key, "v": amount}
        rows.append((table, orjson.dumps(row)))
    return tuple(rows)


def spread(source: Source) -> Source:
    """The same with twice as many tables: every second source transaction is for the other three."""
    return Source([[_moved(transaction) for transaction in transactions] for transactions in source.truth])


def _moved(transaction: SourceTransaction) -> SourceTransaction:
    if transaction.number % 2 == 0:
        return transaction
    return replace(transaction, rows=tuple((f"{table}_2", content) for table, content in transaction.rows))


# --- batches ---


def batches_of(transactions: list[SourceTransaction], rng: Random) -> list[pa.RecordBatch]:
    """Rows as a lane gets them from Spark: ordered, in record batches that end anywhere."""
    rows: list[tuple[Any, ...]] = [
        (transaction.partition, transaction.position, table, number == len(transaction.rows) - 1, b"," + content)
        for transaction in transactions
        for number, (table, content) in enumerate(transaction.rows)
    ]
    cut = rng.randrange(1, len(rows)) if len(rows) > 2 and rng.random() < 0.4 else len(rows)
    return [_batch(part) for part in (rows[:cut], rows[cut:]) if part]


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, TYPES, strict=True)], names=list(COLUMNS)
    )


TYPES = (pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.string())

# --- the assembler ---


def _assembled(transactions: list[SourceTransaction], rng: Random) -> list[SourceTransaction]:
    """What the assembler's rules make of an event log with these source transactions and others that never ended."""
    events = _events(transactions, rng)
    assembler, name, state = TransactionAssembler(Policy()), transactions[0].partition, AssemblerState()
    blobs: dict[int, pa.Table] = {}
    rows: list[dict[str, Any]] = []
    cuts = sorted(rng.randrange(len(events) + 1) for _ in range(2))
    for low, high in zip([0, *cuts], [*cuts, len(events)], strict=True):
        overlap = rng.randrange(min(low, 3) + 1)  # a source may tell its last events again
        fed_events = pa.Table.from_pylist(events[low - overlap : high], schema=pa.schema(model.EVENT_FIELDS))
        step = assembler.feed(one_partition(name, fed_events), {name: state}, 0.0, lambda _, number: blobs[number])
        rows += [row for release in step.released for row in release.rows.to_pylist()]
        change = step.changes[name]
        for number in change.removed:
            del blobs[number]
        blobs.update(change.added)
        state = change.state
    return _whole(name, rows)


def _events(transactions: list[SourceTransaction], rng: Random) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    at = 0
    for transaction in transactions:
        room = transaction.position - at - len(transaction.rows) - 2
        if room >= 2 and rng.random() < 0.4:  # a transaction that is given up: the next BEGIN follows
            events += _phantom(transaction, at)
        first = transaction.position - len(transaction.rows) - 1
        events.append(_event(first, "BEGIN", transaction))
        for number, (table, content) in enumerate(transaction.rows):
            events.append(_event(first + 1 + number, "DATA", transaction, table=table, row=content.decode()))
        events.append(_event(transaction.position, "END", transaction))
        at = transaction.position + 1
    return events + (_phantom(transactions[-1], at) if rng.random() < 0.5 else [])


def _phantom(near: SourceTransaction, at: int) -> list[dict[str, Any]]:
    row = orjson.dumps({"p": near.partition, "x": -1, "s": 0, "n": 1, "k": "phantom", "v": 7}).decode()
    begin = _event(at, "BEGIN", near)
    return [begin, _event(at + 1, "DATA", near, table=TABLES[0], row=row)]


def _event(position: int, kind: str, transaction: SourceTransaction, **fields: str) -> dict[str, Any]:
    name = f"{transaction.partition}:{position}" if kind == "BEGIN" else None
    return {"position": position, "type": kind, "txn_id": name, "database": None, "table": None, "op": None, **fields}


def _whole(partition: str, rows: list[dict[str, Any]]) -> list[SourceTransaction]:
    whole: list[SourceTransaction] = []
    content: list[Row] = []
    for row in rows:
        content.append((row["table"], row["row"].encode()))
        if row["transaction_end"]:
            whole.append(SourceTransaction(partition, len(whole), row["position"], tuple(content)))
            content = []
    return whole
