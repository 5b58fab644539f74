"""The order of rows as they reach a lane.

Lanes that are the source's own tasks get rows as they arrive, and so does the one lane of a small micro-batch, for
which a shuffle would be the larger part of its time. Here `ArrivalOrder` sorts such rows if they are few, and checks
them if they are many. Its output looks sorted: each batch has whole source transactions, one source partition after the
other; only the last source transaction may go on in the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.coordinator.model import Ints
from starrocks_txn_sink.errors import Unordered
from starrocks_txn_sink.rows import segments
from starrocks_txn_sink.rows.columns import PARTITION, POSITION, SEQ, TRANSACTION_END

SMALL_ROWS: Final = 100_000  # up to so many rows are collected and sorted, so any order will do
SMALL_BYTES: Final = 32 << 20
HELD_BYTES: Final = 32 << 20  # of unfinished source transactions that wait while other source partitions go on

_NULL: Final = -(2**63)


Piece = TypeVar("Piece", pa.RecordBatch, pa.Table)


@dataclass(slots=True)
class ArrivalOrder:
    """Brings the rows of one attempt at a lane into order; the rows have COLUMNS and SEQ.

    With `small_only` more than `small_rows` rows are Unordered, whatever their order.
    """

    small_rows: int = SMALL_ROWS
    small_only: bool = False
    held_bytes: int = HELD_BYTES
    _latest: dict[str, tuple[int, int]] = field(default_factory=dict)  # position and seq by source partition
    _held: list[pa.RecordBatch] = field(default_factory=list)  # unfinished source transactions, one a batch
    _unfinished: str | None = None  # source partition of the source transaction that the lane has read in part

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, each source partition's by position and seq.

        Raises Unordered if many rows are out of order, or if source partitions come so mixed that their unfinished
        source transactions do not fit `held_bytes`; InputError for NULLs.
        """
        lane = filter(len, batches)
        first, small = take_first(lane, self.small_rows, SMALL_BYTES)
        if small:
            if first:
                yield _sort(_concat(first))
            return
        if self.small_only:
            raise Unordered(f"These are more than {self.small_rows} rows, or {SMALL_BYTES} bytes.")
        for batch in chain(first, lane):
            segments.refuse_nulls(batch)
            yield from self._release(batch)
        yield from self._held  # Segmenter rejects these: their source transactions have no END

    def _release(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Check `batch`; yield those rows of it and of the held ones that the lane can read next, and hold the rest."""
        rows = _concat([*self._held, batch])
        runs = segments.runs_of(rows)
        if len(pc.unique(runs.values)) < len(runs.values):
            rows = rows.take(pc.array_sort_indices(pa.array(_codes(rows)[0])))
            runs = segments.runs_of(rows)
        parts = [_PartitionRows(name, rows.slice(low, high - low)) for name, low, high in segments.list_runs(runs)]
        held_rows = {batch.column(PARTITION)[0].as_py(): batch.num_rows for batch in self._held}
        for part in parts:
            self._check(part, held_rows.get(part.name, 0))
        self._held = []
        if len(parts) == 1 and self._unfinished in (None, parts[0].name):
            self._unfinished = None if parts[0].ended else parts[0].name
            yield parts[0].rows
        else:
            yield from self._in_turn(parts)

    def _in_turn(self, parts: list[_PartitionRows]) -> Iterator[pa.RecordBatch]:
        """Yield the partition that the lane has read in part, then whole source transactions of the other partitions.

        While the lane is inside a source transaction, all rows of other partitions are held.
        """
        waiting = [part for part in parts if part.name != self._unfinished]
        for part in (part for part in parts if part.name == self._unfinished):
            whole, remainder = part.split()
            if whole:
                self._unfinished = None
                waiting += remainder
            yield from whole or [part.rows]
        if self._unfinished is None:
            parts, waiting = waiting, []
            for part in parts:
                whole, remainder = part.split()
                yield from whole
                waiting += remainder
        yield from self._hold(waiting)

    def _hold(self, tails: list[_PartitionRows]) -> Iterator[pa.RecordBatch]:
        """Hold rows for the next batch; of unfinished source transactions yield the only one, or the largest of many.

        The lane may read one source transaction in part: its chunks leave memory, and the commit waits for its end.
        """
        size = sum(tail.rows.nbytes for tail in tails)
        if self._unfinished is None and tails and (len(tails) == 1 or size > self.held_bytes):
            largest = max(tails, key=lambda tail: tail.rows.nbytes)
            tails = [tail for tail in tails if tail is not largest]
            size -= largest.rows.nbytes
            self._unfinished = largest.name
            yield largest.rows
        if size > self.held_bytes:
            raise Unordered(
                f"Rows of {len(tails) + 1} source partitions came mixed: {size} bytes of unfinished source "
                f"transactions wait for the end of the one of source partition {self._unfinished}.",
                hint='Leave shuffle at "auto" or set it to true, so that rows are sorted first.',
            )
        self._held = [tail.rows for tail in tails]

    def _check(self, part: _PartitionRows, held_rows: int) -> None:
        """Raise Unordered if rows of `part` are not by position and seq; its first `held_rows` are checked already."""
        positions, seqs = _ints(part.rows, POSITION), _ints(part.rows, SEQ)
        if held_rows < part.rows.num_rows and part.name in self._latest:
            last, seq = self._latest[part.name]
            positions = np.concatenate(([last], positions[held_rows:]))
            seqs = np.concatenate(([seq], seqs[held_rows:]))
        back = (positions[1:] < positions[:-1]) | ((positions[1:] == positions[:-1]) & (seqs[1:] < seqs[:-1]))
        if back.any():
            index = int(np.argmax(back))
            raise Unordered(
                f"The rows of source partition {part.name} did not come in order: position {positions[index + 1]} came "
                f"after {positions[index]}."
                if positions[index + 1] != positions[index]
                else f"The rows of source partition {part.name}, position {positions[index]}, did not come by seq.",
                hint='Leave shuffle at "auto" or set it to true, so that rows are sorted first.',
            )
        self._latest[part.name] = (int(positions[-1]), int(seqs[-1]))


@dataclass(frozen=True, slots=True)
class _PartitionRows:
    """Rows of one source partition."""

    name: str
    rows: pa.RecordBatch

    @property
    def ended(self) -> bool:
        """Whether the last source transaction is whole."""
        return bool(self.rows.column(TRANSACTION_END)[-1].as_py())

    def split(self) -> tuple[list[pa.RecordBatch], list[_PartitionRows]]:
        """Split into whole source transactions and the unfinished one; each list has at most one entry."""
        ends = np.flatnonzero(self.rows.column(TRANSACTION_END).to_numpy(zero_copy_only=False))
        cut = int(ends[-1]) + 1 if ends.size else 0
        whole = [self.rows.slice(0, cut)] if cut else []
        return whole, [_PartitionRows(self.name, self.rows.slice(cut))] if cut < self.rows.num_rows else []


def take_first(pieces: Iterator[Piece], rows: int, size: int) -> tuple[list[Piece], bool]:
    """Take pieces until they exceed `rows` rows or `size` bytes; the bool says whether these are all pieces."""
    first: list[Piece] = []
    for piece in pieces:
        first.append(piece)
        rows, size = rows - piece.num_rows, size - piece.nbytes
        if rows < 0 or size < 0:
            return first, False
    return first, True


def _sort(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Sort by source partition's name, position and seq; raises InputError for NULLs."""
    segments.refuse_nulls(rows)
    codes, names = _codes(rows)
    ranks = np.argsort(np.argsort(np.array(names, dtype=object)))
    return rows.take(pa.array(np.lexsort((_ints(rows, SEQ), _ints(rows, POSITION), ranks[codes]))))


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (whole,) = batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _codes(rows: pa.RecordBatch) -> tuple[Ints, list[str]]:
    """A number for each row's source partition, which is the place of its name in the list."""
    encoded = pc.dictionary_encode(rows.column(PARTITION))
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def _ints(rows: pa.RecordBatch, name: str) -> Ints:
    column = rows.column(name)
    if column.null_count:
        column = pc.fill_null(column.cast(pa.int64()), _NULL)  # NULL comes first, as in a sort
    values: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values
