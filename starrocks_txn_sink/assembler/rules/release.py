"""Rows of ended source transactions as Arrow tables, by source partition, in the order of their ENDs.

`Assembler` is what a lane asks of the rules that release them, whichever they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask
from starrocks_txn_sink.assembler.rules.model import Counters, Partition
from starrocks_txn_sink.assembler.rules.segments import Grouped, concat_ranges
from starrocks_txn_sink.assembler.rules.spill import CarriedState, SpillStorage
from starrocks_txn_sink.protocol.snapshots import Marks
from starrocks_txn_sink.telemetry import Event

READ_BYTES: Final = 4 << 20  # carried-over rows in memory at once, in addition to a single blob
MANY_TABLES: Final = 8  # with more chunks, one copy costs less than the readers' work per chunk

# Carried-over rows join the new rows in one table, because each table costs its readers almost 0.1 ms. Next to many new
# rows, the rows of one or two transactions stay separate: writing columns of several chunks costs more.
FEW_TRANSACTIONS: Final = 2
MANY_ROWS: Final = 10_000

ReadBlob = Callable[[Partition, int], pa.Table]
"""Reads the rows of a blob: source partition, number."""


@dataclass(frozen=True, slots=True)
class ReleasedRows:
    """Rows of whole source transactions: `counts[i]` rows of source partition `names[i]`, one after the other."""

    names: Sequence[Partition]
    counts: Indexes
    rows: pa.Table

    def by_partition(self) -> Iterator[tuple[Partition, pa.Table]]:
        """Yield each source partition with its rows: slices, nothing is copied."""
        for name, count, end in zip(self.names, self.counts.tolist(), np.cumsum(self.counts).tolist(), strict=True):
            yield name, self.rows.slice(end - count, count)


def release(grouped: Grouped, released: Mask, payload: pa.Table, read: ReadBlob) -> Iterator[ReleasedRows]:
    """Yield the rows of the segments `released`; read carried-over rows only when their turn comes.

    A huge source transaction comes blob by blob, so it needs no more memory than a small one.
    """
    ended = np.flatnonzero(released)
    if not len(ended):
        return
    if grouped.order is not None:
        ended = ended[np.argsort(grouped.order[grouped.segments.stop[ended]])]
    for run in _runs(grouped, ended):
        yield from _release_run(grouped, run, payload, read)


def _runs(grouped: Grouped, ended: Indexes) -> list[Indexes]:
    """Split `ended` into runs with about READ_BYTES of carried-over rows; a larger transaction starts its own run."""
    if not grouped.held[ended].any():
        return [ended]
    size = np.zeros(len(ended), dtype=np.int64)
    for at in np.flatnonzero(grouped.held[ended]).tolist():
        size[at] = _carried_bytes(grouped, ended[at])
    total = np.cumsum(size) // READ_BYTES
    return np.split(ended, np.flatnonzero(total[1:] > total[:-1]) + 1)


def _carried_bytes(grouped: Grouped, segment: int) -> int:
    carried = grouped.carried_into(segment)
    return carried.bytes if carried else 0


def _release_run(grouped: Grouped, run: Indexes, payload: pa.Table, read: ReadBlob) -> Iterator[ReleasedRows]:
    """Yield the rows of the segments `run`, each after the carried-over rows of its transaction.

    A part is one table for several segments. Small carried-over transactions join the current part. A large one ends
    the part, and its blobs are yielded alone, so that only one is in memory.
    """
    new, rows, held_rows = _new_rows(grouped, run, payload), grouped.segments.rows[run], grouped.held[run]
    offsets = (np.cumsum(rows) - rows).tolist()  # of each segment in `new`
    seq = np.zeros(len(run), dtype=np.int64)  # of the first row that a segment has in the current part
    part, begin, taken_rows = list[pa.Table](), 0, 0  # the current part, its first segment, the rows used of `new`
    resumed = np.flatnonzero(held_rows > 0).tolist()
    joins = len(resumed) > FEW_TRANSACTIONS or new.num_rows < MANY_ROWS
    for at in resumed:
        part.append(new.slice(taken_rows, offsets[at] - taken_rows))
        taken_rows = offsets[at]
        blobs: Iterable[pa.Table] = _blobs(grouped, run[at], read)
        if joins and _carried_bytes(grouped, run[at]) <= READ_BYTES:
            blobs = tuple(blobs)
            if all(blob.schema == payload.schema for blob in blobs):  # else a restart has changed `passthrough`
                part += blobs
                continue
        yield from _marked(grouped, run[begin:at], seq[begin:at], (held_rows + rows - seq)[begin:at], part)
        for blob in blobs:
            ended = seq[at] + blob.num_rows == held_rows[at] + rows[at]
            yield from _marked(grouped, run[at : at + 1], seq[at : at + 1], np.array([blob.num_rows]), [blob], ended)
            seq[at] += blob.num_rows
        part, begin = [], at
    part.append(new.slice(taken_rows))
    yield from _marked(grouped, run[begin:], seq[begin:], (held_rows + rows - seq)[begin:], part)


def _blobs(grouped: Grouped, segment: int, read: ReadBlob) -> Iterator[pa.Table]:
    carried = grouped.carried_into(segment)
    name = grouped.intake.names[grouped.partition[grouped.segments.group[segment]]]
    return (read(name, number) for number in carried.blobs) if carried else iter(())


def _new_rows(grouped: Grouped, segments: Indexes, payload: pa.Table) -> pa.Table:
    """The payload of the DATA events of `segments`."""
    start, rows = grouped.segments.start[segments], grouped.segments.rows[segments]
    index = concat_ranges(start, rows)
    if not len(index):
        return payload.slice(0, 0)
    if grouped.order is not None:
        return payload.take(pa.array(grouped.order[index]))
    if index[-1] - index[0] + 1 == len(index):
        return payload.slice(int(index[0]), len(index))
    is_chosen = np.zeros(payload.num_rows, dtype=bool)
    is_chosen[index] = True
    return payload.filter(pa.array(is_chosen))


def _marked(
    grouped: Grouped, run: Indexes, seq: Indexes, counts: Indexes, part: list[pa.Table], ended: bool = True
) -> Iterator[ReleasedRows]:
    """Yield the rows of `part` with their transaction's columns; nothing if `part` has no rows.

    `counts[i]` of the rows belong to segment `run[i]`, with seq from `seq[i]` on. `ended`: the rows include the last
    row of each segment.
    """
    parts = [table for table in part if table.num_rows]
    if not parts:
        return
    rows = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    if len(parts) > MANY_TABLES:
        rows = rows.combine_chunks()
    positions, ids = grouped.positions[grouped.segments.stop[run]], grouped.owners.take(pa.array(run))
    table = with_transaction_columns(rows, counts, positions, ids, seq, ended=ended)
    partition = grouped.partition_of(run)
    begins = np.concatenate([[0], np.flatnonzero(partition[1:] != partition[:-1]) + 1])
    sums = np.add.reduceat(counts, begins)
    filled = np.flatnonzero(sums)
    names = tuple(grouped.intake.names[at] for at in partition[begins[filled]].tolist())
    yield ReleasedRows(names, sums[filled], table)


def with_transaction_columns(
    rows: pa.Table,
    counts: Indexes,
    positions: Indexes,
    ids: pa.Array,
    seq: Indexes | int = 0,
    *,
    ended: bool | Mask = True,
) -> pa.Table:
    """`rows` with position, seq, transaction_end and txn_id; the source partition is still missing.

    `rows` has `counts[i]` rows of transaction i, one transaction after the other. They get `positions[i]`, `ids[i]`,
    and seq from `seq[i]` on. `ended`: the rows include the last row of each transaction (of transaction i, if none of
    the counts is 0).
    """
    ends = np.cumsum(counts)
    is_last = np.zeros(ends[-1], dtype=bool)
    is_last[ends[counts > 0] - 1] = ended
    marks = {
        model.POSITION: pa.array(np.repeat(positions, counts)),
        model.SEQ: pa.array(np.arange(ends[-1], dtype=np.int64) + np.repeat(seq - ends + counts, counts)),
        model.TRANSACTION_END: pa.array(is_last),
        model.TXN_ID: ids.take(pa.array(np.repeat(np.arange(len(counts)), counts))),
    }
    names = model.released_names(rows.schema.names)
    return pa.table({name: marks[name] if name in marks else rows[name] for name in names})


class Assembler(ABC):
    """The rules over the events of one task; `flows` and `notices` are those of all events so far."""

    __slots__ = ()

    judges_together: ClassVar[bool] = False
    """Whether one lane reads a micro-batch to its end before it judges any of its events."""
    flows: Counters
    notices: list[Event]

    @classmethod
    @abstractmethod
    def of(
        cls,
        policy: Any,
        carried: Mapping[str, CarriedState],
        now: float,
        storage: SpillStorage,
        *,
        arrival_order: bool,
        compare: bool,
        in_order: bool,
    ) -> Assembler:
        """The rules of `policy` at `now` (seconds since the epoch), after the state `carried`.

        With `arrival_order` the events come as they are, otherwise sorted by (source partition, position). `in_order`:
        as they are, those of a source partition are in the order in which they came. `compare`: see
        TransactionAssembler. Raises InputError for the state of other rules.
        """

    @classmethod
    def expire(
        cls,
        policy: Any,  # noqa: ARG003
        partitions: Mapping[str, CarriedState],  # noqa: ARG003
        now: float,  # noqa: ARG003
    ) -> tuple[dict[str, CarriedState], Counters, list[Event]]:
        """Judge `open_timeout` behind a micro-batch: the changed source partitions, the flows, and notices."""
        return {}, Counters(), []

    @property
    @abstractmethod
    def names(self) -> set[str]:
        """The source partitions with events in this task."""

    @property
    def source_partitions(self) -> int:
        """How many source partitions have events in this task."""
        return len(self.names)

    @abstractmethod
    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:
        """Take in events; yield what is released. `any_order` is for a task with a single chunk."""

    def finish(self) -> Iterator[ReleasedRows]:
        """The rows that are released at the end of the input."""
        return iter(())

    def visible_marks(self, marks: Marks) -> Marks:
        """Those `marks` of a snapshot whose rows are all released."""
        return marks

    def repeat_notices(self) -> list[Event]:
        """A notice for each source partition whose repeats in this task show nothing about its source."""
        return []

    def carry_over(self) -> dict[str, CarriedState]:
        """The state of the source partitions with events, for the next micro-batch."""
        return {}
