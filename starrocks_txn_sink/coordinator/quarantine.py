"""Taking a work apart by source transactions, to find out which of them the server rejects.

A work that was rejected is halved and halved again: the parts are committed one after another, in order, each with its
own positions, until a rejected part is a single source transaction. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from starrocks_txn_sink.coordinator.region import SEPARATOR, Chunk, Ints, RowIndex
from starrocks_txn_sink.coordinator.write_buffer import GrowingSpan, TransactionBatch
from starrocks_txn_sink.errors import InputError, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, DeadLetterSource, dead_letter_rows

Cut = tuple[int, int]  # place of a source partition in the work's order, position: the last that belongs to the left


def positions_of(work: TransactionBatch) -> dict[str, Ints]:
    """The positions whose rows the work has, by source partition in the lane's order."""
    found: dict[str, list[Ints]] = {partition: [] for partition in work.spans}
    for chunk in work.chunks():
        for _, row_index in _indexed_pieces(chunk):
            found.setdefault(chunk.partition, []).append(row_index.positions)
    return {name: np.unique(np.concatenate(parts)) for name, parts in found.items() if parts}


def bisect(work: TransactionBatch) -> tuple[TransactionBatch, TransactionBatch] | None:
    """The first and the second half of the work's source transactions, both sealed; None when it has only one.

    What was set aside already goes with the first half.
    """
    positions = positions_of(work)
    total = sum(len(found) for found in positions.values())
    if total < 2:
        return None
    left, right = _closed_like(work), _closed_like(work)
    cut = _find_cut(positions, total // 2)
    names = list(positions)
    for chunk in work.chunks():
        _divide_chunk(chunk, names.index(chunk.partition), cut, left, right)
    for place, (name, found) in enumerate(positions.items()):
        _add_span(left, name, found[: _count_left(found, place, cut)], work.spans[name])
        _add_span(right, name, found[_count_left(found, place, cut) :], work.spans[name])
    left.inherit_dead_letters(work)
    return left, right


def _find_cut(positions: dict[str, Ints], count: int) -> Cut:
    """Where the first `count` source transactions end."""
    for place, found in enumerate(positions.values()):
        if count <= len(found):
            return place, int(found[count - 1])
        count -= len(found)
    raise ValueError("There are fewer source transactions than that.")


def _count_left(found: Ints, place: int, cut: Cut) -> int:
    """How many of a partition's source transactions go to the left."""
    if place != cut[0]:
        return len(found) if place < cut[0] else 0
    return int(np.searchsorted(found, cut[1], side="right"))


def _divide_chunk(chunk: Chunk, place: int, cut: Cut, left: TransactionBatch, right: TransactionBatch) -> None:
    first, second = Chunk(chunk.partition, chunk.table), Chunk(chunk.partition, chunk.table)
    for piece, row_index in _indexed_pieces(chunk):
        rows = len(row_index.positions)
        low = row_index.count_up_to(cut[1]) if place == cut[0] else (rows if place < cut[0] else 0)
        for target, begin, end in ((first, 0, low), (second, low, rows)):
            if end > begin:
                part, own = row_index.cut(piece, begin, end)
                target.append(part, end - begin, own)
    for work, made in ((left, first), (right, second)):
        if made.rows:
            work.add(made)


def _indexed_pieces(chunk: Chunk) -> Iterator[tuple[memoryview, RowIndex]]:
    for piece, row_index in zip(chunk.pieces, chunk.row_index, strict=True):
        if row_index is None:
            raise RuntimeError("A chunk without marks cannot be taken apart.")
        yield piece, row_index


def _closed_like(work: TransactionBatch) -> TransactionBatch:
    return TransactionBatch(work.retry_limit, closed=True, recycled=work.recycled)


def _add_span(work: TransactionBatch, name: str, found: Ints, whole: GrowingSpan) -> None:
    """The fingerprint belongs to the last source transaction of the whole; those in the middle have none."""
    if len(found):
        last = int(found[-1])
        digest = whole.digest if last == whole.last else ""
        work.spans[name] = GrowingSpan(int(found[0]), last, len(found), digest)


@dataclass(slots=True)
class Quarantine:
    """`most` source transactions of a lane and micro-batch may be set aside; `columns` gives a table's load header."""

    job: str
    batch: int
    most: int
    now_text: Callable[[], str]
    columns: Callable[[str], str]
    count: int = 0

    def bisect_or_dead_letter(self, batches: deque[TransactionBatch], error: RowsRejected) -> int | StarRocksSinkError:
        """Replace the first of `works`, rejected with `error`, by its parts, or bury it; the change in buffered bytes.

        Returns the error that the lane ends with when that cannot be done.
        """
        work = batches[0]
        if not work.repeatable:
            error.advice = (
                "Raise retry_buffer_bytes above twice the largest source transaction, so that it can be set aside."
            )
            return error
        if not work.spans:
            return error  # the dead letters themselves were rejected
        if len(work.spans) == 1 and work.source_transactions == 1 and self.count >= self.most:
            error.advice = (
                f"max_quarantined ({self.most}) is reached: correct the source or the table, or raise max_quarantined."
            )
            return error
        rewound = work.rewind()
        divided = bisect(work)
        if divided is None:
            changed = self._dead_letter_first(batches, error)
            return changed if isinstance(changed, StarRocksSinkError) else rewound + changed
        batches.popleft()
        batches.extendleft(reversed(divided))
        return rewound

    def _dead_letter_first(self, batches: deque[TransactionBatch], error: RowsRejected) -> int | StarRocksSinkError:
        work = batches[0]
        try:
            dead = self.dead_letter(work, error)
        except InputError as too_large:
            return too_large
        self.count += 1
        batches.popleft()
        if batches[0].closed:
            batches[0].inherit_dead_letters(dead)
        else:
            batches.appendleft(dead)
        return _pending_bytes(dead) - _pending_bytes(work)

    def dead_letter(self, work: TransactionBatch, error: RowsRejected) -> TransactionBatch:
        """A work that has the only source transaction of `work` as dead letters, instead of its rows.

        Raises InputError for a row that is too large to be kept.
        """
        ((partition, span),) = work.spans.items()  # the living one; what was buried before is not among them
        label = str(error.context.get("label", ""))
        place = DeadLetterSource(self.job, partition, span.last, error.message, label, self.batch, self.now_text())
        dead_letters = Chunk("", DEAD_LETTER_TABLE)
        for table in dict.fromkeys(chunk.table for chunk in work.chunks()):
            for piece in dead_letter_rows(place, table, self.columns(table), _table_rows(work, table)):
                dead_letters.append(memoryview(piece), 1)
        made = TransactionBatch(work.retry_limit, closed=True, recycled=work.recycled)
        made.inherit_dead_letters(work)
        made.add_dead_letters(dead_letters, work.spans, work.counts)
        return made


def _pending_bytes(work: TransactionBatch) -> int:
    return sum(work.pending_bytes(table) for table in work.pending)


def _table_rows(work: TransactionBatch, table: str) -> Iterator[bytes]:
    """The rows of a table without their separator."""
    for chunk in work.chunks():
        if chunk.table == table:
            for piece, row_index in zip(chunk.pieces, chunk.row_index, strict=True):
                for row in row_index.rows(piece) if row_index is not None else ():
                    yield row[len(SEPARATOR) :]
