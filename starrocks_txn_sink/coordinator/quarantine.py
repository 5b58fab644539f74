"""Quarantine: bisect a rejected transaction batch until the rejected part is one source transaction, a dead letter.

The server judges at commit, and its reasons name no source transaction: the only way to find the rejected ones is to
commit parts. A part is a run of whole source transactions in order, with positions of its own: so each committed part
is progress, and no commit has to be undone. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from starrocks_txn_sink.coordinator.model import SEPARATOR, Chunk, Ints, PositionSpan, RowIndex
from starrocks_txn_sink.coordinator.write_buffer import TransactionBatch, WriteBuffer
from starrocks_txn_sink.errors import RowsRejected
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, DeadLetterSource, dead_letter_rows

Cut = tuple[int, int]  # index of a source partition in the batch, and its last position that goes to the left


def positions_of(batch: TransactionBatch) -> dict[str, Ints]:
    """Positions of the batch's source transactions, by source partition in the lane's order."""
    found: dict[str, list[Ints]] = {partition: [] for partition in batch.spans}
    for chunk in batch.chunks():
        for _, row_index in _indexed_pieces(chunk):
            found.setdefault(chunk.partition, []).append(row_index.positions)
    return {name: np.unique(np.concatenate(parts)) for name, parts in found.items() if parts}


def bisect(batch: TransactionBatch) -> tuple[TransactionBatch, TransactionBatch] | None:
    """Split the batch into the first and the second half of its source transactions, both closed; None if it has one.

    Dead letters of the batch go with the first half, because they come before its source transactions.
    """
    positions = positions_of(batch)
    total = sum(len(found) for found in positions.values())
    if total < 2:
        return None
    left, right = batch.successor(), batch.successor()
    cut = _find_cut(positions, total // 2)
    names = list(positions)
    for chunk in batch.chunks():
        _divide_chunk(chunk, names.index(chunk.partition), cut, left, right)
    for place, (name, found) in enumerate(positions.items()):
        _add_span(left, found[: _count_left(found, place, cut)], batch.spans[name])
        _add_span(right, found[_count_left(found, place, cut) :], batch.spans[name])
    left.inherit_dead_letters(batch)
    return left, right


def _find_cut(positions: dict[str, Ints], count: int) -> Cut:
    """The end of the first `count` source transactions."""
    for place, found in enumerate(positions.values()):
        if count <= len(found):
            return place, int(found[count - 1])
        count -= len(found)
    raise ValueError("There are fewer source transactions than that.")


def _count_left(found: Ints, place: int, cut: Cut) -> int:
    """How many of the ascending positions `found` in a partition go to the left."""
    if place != cut[0]:
        return len(found) if place < cut[0] else 0
    return int(np.searchsorted(found, cut[1], side="right"))


def _divide_chunk(chunk: Chunk, place: int, cut: Cut, left: TransactionBatch, right: TransactionBatch) -> None:
    first, second = Chunk(chunk.partition, chunk.table), Chunk(chunk.partition, chunk.table)
    for piece, row_index in _indexed_pieces(chunk):
        rows = len(row_index.positions)
        low = _count_left(row_index.positions, place, cut)
        for target, begin, end in ((first, 0, low), (second, low, rows)):
            if end > begin:
                part, own = row_index.cut(piece, begin, end)
                target.append(part, end - begin, own)
    for batch, half in ((left, first), (right, second)):
        if half.rows:
            batch.add(half)


def _indexed_pieces(chunk: Chunk) -> Iterator[tuple[memoryview, RowIndex]]:
    for piece, row_index in zip(chunk.pieces, chunk.row_indexes, strict=True):
        if row_index is None:
            raise RuntimeError("A chunk without a row index cannot be bisected.")
        yield piece, row_index


def _add_span(batch: TransactionBatch, found: Ints, whole: PositionSpan) -> None:
    """Add the span of the positions `found`. It has the digest of `whole` only if it ends there: a replay is compared
    at the last position alone."""
    if len(found):
        last = int(found[-1])
        digest = whole.digest if last == whole.last else ""
        batch.spans[whole.partition] = PositionSpan(whole.partition, int(found[0]), last, len(found), digest)


@dataclass(slots=True)
class Quarantine:
    """Rules for one lane and micro-batch: at most `most` dead letters; `columns` returns a table's load header."""

    job: str
    batch_id: int
    most: int
    now_text: Callable[[], str]
    columns: Callable[[str], str]
    count: int = 0

    def replace_rejected(self, buffer: WriteBuffer, error: RowsRejected) -> None:
        """Replace the first batch, rejected with `error`, by its two parts, or by a dead letter if it cannot be split.

        Raises the error that ends the lane if that is not possible.
        """
        batch = buffer.first
        if not batch.repeatable:
            error.advice = (
                "Raise retry_buffer_bytes above twice the largest source transaction, so that it can be dead-lettered."
            )
            raise error
        if not batch.spans:
            raise error  # the dead letters themselves were rejected
        if len(batch.spans) == 1 and batch.source_transactions == 1 and self.count >= self.most:
            error.advice = (
                f"max_quarantined ({self.most}) is reached: correct the source or the table, or raise max_quarantined."
            )
            raise error
        buffer.rewind()
        halves = bisect(batch)
        if halves is not None:
            buffer.replace_first(halves)
        else:
            self._dead_letter_first(buffer, error)

    def _dead_letter_first(self, buffer: WriteBuffer, error: RowsRejected) -> None:
        dead = self.dead_letter(buffer.first, error)
        self.count += 1
        buffer.replace_first([dead])
        if buffer.batches[1].closed:  # the next part can take the dead letter along: one commit less
            buffer.batches.popleft()
            buffer.first.inherit_dead_letters(dead)

    def dead_letter(self, batch: TransactionBatch, error: RowsRejected) -> TransactionBatch:
        """A batch with the only source transaction of `batch` as dead letters instead of rows.

        Raises InputError for a row that is too large for the dead-letter table.
        """
        ((partition, span),) = batch.spans.items()  # dead-lettered ones are not in `spans`
        label = str(error.context.get("label", ""))
        place = DeadLetterSource(partition, span.last, error.message, label, self.batch_id, self.now_text())
        dead_letters = Chunk("", DEAD_LETTER_TABLE)
        for table in dict.fromkeys(chunk.table for chunk in batch.chunks()):
            for piece in dead_letter_rows(self.job, place, table, self.columns(table), _table_rows(batch, table)):
                dead_letters.append(memoryview(piece), 1)
        replacement = batch.successor()
        replacement.inherit_dead_letters(batch)
        replacement.add_dead_letters(dead_letters, batch.spans, batch.counts)
        return replacement


def _table_rows(batch: TransactionBatch, table: str) -> Iterator[bytes]:
    """Rows of a table, without their separators."""
    for chunk in batch.chunks():
        if chunk.table == table:
            for piece, row_index in _indexed_pieces(chunk):
                for row in row_index.rows(piece):
                    yield row[len(SEPARATOR) :]
