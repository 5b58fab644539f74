"""Rows of ended source transactions as Arrow tables, in the order of their ENDs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.grouping import Grouped
from starrocks_txn_sink.assembler.intake import Indexes
from starrocks_txn_sink.assembler.segments import spread
from starrocks_txn_sink.assembler.state import OpenTransaction

ReadBlob = Callable[[int], pa.Table]


@dataclass(frozen=True, slots=True)
class Released:
    """Rows of whole source transactions: `counts[i]` of source partition `names[i]`, one after the other."""

    names: Sequence[str]
    counts: Indexes
    rows: pa.Table

    @classmethod
    def of(cls, name: str, rows: pa.Table) -> Released:
        """Of one source partition."""
        return cls((name,), np.array([rows.num_rows]), rows)

    def cut(self, count: int) -> tuple[list[Released], Released | None]:
        """The rows of the first `count` source partitions, and those of the others, where there are any."""
        rows = int(self.counts[:count].sum())
        first = Released(self.names[:count], self.counts[:count], self.rows.slice(0, rows))
        rest = Released(self.names[count:], self.counts[count:], self.rows.slice(rows))
        return [first] if first.names else [], rest if rest.names else None


def rows_of(grouped: Grouped, index: Indexes, payload: list[str]) -> pa.Table:
    """The payload of the DATA events at the places `index` (in grouped order)."""
    table = grouped.intake.table.select(payload)
    if len(index) == 0:
        return table.slice(0, 0)
    if grouped.order is not None:
        return table.take(pa.array(grouped.order[index]))
    if index[-1] - index[0] + 1 == len(index):
        return table.slice(int(index[0]), len(index))
    chosen = np.zeros(table.num_rows, dtype=bool)
    chosen[index] = True
    return table.filter(pa.array(chosen))


def release(grouped: Grouped, ended: Indexes, payload: list[str], read: ReadBlob) -> Iterator[pa.Table]:
    """Yield the rows of the segments `ended`, each with what its transaction held before, read only when it is due."""
    ends = grouped.segments.stop[ended]
    if grouped.order is not None:
        ended = ended[np.argsort(grouped.order[ends], kind="stable")]
    for run in np.split(ended, np.flatnonzero(grouped.held[ended] > 0)):
        if len(run) == 0:
            continue
        carried = grouped.carried_into(run[0])
        if carried and carried.rows:
            yield from _held_rows(grouped, run[0], carried, read)
        if grouped.segments.rows[run].any():
            yield _new_rows(grouped, run, payload)


def _held_rows(grouped: Grouped, segment: int, carried: OpenTransaction, read: ReadBlob) -> Iterator[pa.Table]:
    position = int(grouped.positions[grouped.segments.stop[segment]])
    seq = 0
    for number in carried.blobs:
        table = read(number)
        end = np.zeros(table.num_rows, dtype=bool)
        end[-1] = number == carried.blobs[-1] and grouped.segments.rows[segment] == 0
        ids = pa.repeat(pa.scalar(carried.txn_id, pa.string()), table.num_rows)
        positions = np.full(table.num_rows, position, dtype=np.int64)
        yield marked(table, positions, np.arange(seq, seq + table.num_rows, dtype=np.int64), end, ids)
        seq += table.num_rows


def _new_rows(grouped: Grouped, run: Indexes, payload: list[str]) -> pa.Table:
    segments = grouped.segments
    rows = segments.rows[run]
    total = np.cumsum(rows)
    seq = np.arange(total[-1], dtype=np.int64) - np.repeat(total - rows, rows)
    seq[: rows[0]] += grouped.held[run[0]]
    end = np.zeros(total[-1], dtype=bool)
    end[total[rows > 0] - 1] = True
    positions = np.repeat(grouped.positions[segments.stop[run]], rows)
    ids = grouped.owners.take(pa.array(np.repeat(run, rows)))
    return marked(rows_of(grouped, spread(segments.start[run], rows), payload), positions, seq, end, ids)


def marked(rows: pa.Table, positions: Indexes, seq: Indexes, end: object, ids: pa.Array) -> pa.Table:
    """Released rows with the columns that say where they belong."""
    marks = {
        schema.POSITION: pa.array(positions),
        schema.SEQ: pa.array(seq),
        schema.TRANSACTION_END: pa.array(end),
        schema.TXN_ID: ids,
    }
    names = schema.released_names(rows.schema.names)
    return pa.table({name: marks[name] if name in marks else rows[name] for name in names})
