"""Rows that go to their lane as they come, without a sort: source partitions mixed, or, if few, in any order."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pyarrow as pa

from starrocks_txn_sink.rows.columns import COLUMNS, SEQ

from .source import TYPES, SourceTransaction

_FIELDS = [*zip(COLUMNS, TYPES, strict=True), (SEQ, pa.int32())]


def arriving_batches(transactions: list[SourceTransaction], rng: Random, *, few: bool) -> list[pa.RecordBatch]:
    """Rows as Spark's tasks give them out without a shuffle, in record batches that end anywhere."""
    rows = [
        (
            transaction.partition,
            transaction.position,
            table,
            number == len(transaction.rows) - 1,
            b"," + content,
            number,
        )
        for transaction in transactions
        for number, (table, content) in enumerate(transaction.rows)
    ]
    rows = rng.sample(rows, len(rows)) if few else _mixed(rows, rng)
    cuts = sorted({0, len(rows), *(rng.randrange(1, len(rows) + 1) for _ in range(rng.randrange(4)))})
    return [_batch(rows[low:high]) for low, high in itertools.pairwise(cuts)]


def _mixed(rows: list[tuple[Any, ...]], rng: Random) -> list[tuple[Any, ...]]:
    """Each source partition's rows in order, in pieces between those of others."""
    queues = [[row for row in rows if row[0] == name] for name in dict.fromkeys(row[0] for row in rows)]
    mixed: list[tuple[Any, ...]] = []
    while queues := [queue for queue in queues if queue]:
        queue, count = rng.choice(queues), rng.randint(1, 6)
        mixed += queue[:count]
        del queue[:count]
    return mixed


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(column), kind) for column, (_, kind) in zip(columns, _FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in _FIELDS])
