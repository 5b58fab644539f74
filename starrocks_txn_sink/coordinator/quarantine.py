"""Taking a work apart by source transactions, to find out which of them the server rejects.

A work that was rejected is halved and halved again: the parts are committed one after another, in order, each with its
own positions, until a rejected part is a single source transaction. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from starrocks_txn_sink.coordinator.batch import Span, Work
from starrocks_txn_sink.coordinator.input import SEPARATOR, Ints, Marks
from starrocks_txn_sink.coordinator.region import Chunk
from starrocks_txn_sink.errors import InputError, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, DeadLetterSource, dead_letter_rows

Cut = tuple[int, int]  # place of a source partition in the work's order, position: the last that belongs to the left


def positions_of(work: Work) -> dict[str, Ints]:
    """The positions whose rows the work has, by source partition in the lane's order."""
    found: dict[str, list[Ints]] = {partition: [] for partition in work.spans}
    for chunk in work.chunks():
        for _, marks in _marked(chunk):
            found.setdefault(chunk.partition, []).append(marks.positions)
    return {name: np.unique(np.concatenate(parts)) for name, parts in found.items() if parts}


def halves(work: Work) -> tuple[Work, Work] | None:
    """The first and the second half of the work's source transactions, both sealed; None when it has only one.

    What was set aside already goes with the first half.
    """
    positions = positions_of(work)
    total = sum(len(found) for found in positions.values())
    if total < 2:
        return None
    left, right = _empty_like(work), _empty_like(work)
    cut = _middle(positions, total // 2)
    names = list(positions)
    for chunk in work.chunks():
        _divide(chunk, names.index(chunk.partition), cut, left, right)
    for place, (name, found) in enumerate(positions.items()):
        _span(left, name, found[: _share(found, place, cut)], work.spans[name])
        _span(right, name, found[_share(found, place, cut) :], work.spans[name])
    left.inherit_letters(work)
    return left, right


def _middle(positions: dict[str, Ints], count: int) -> Cut:
    """Where the first `count` source transactions end."""
    for place, found in enumerate(positions.values()):
        if count <= len(found):
            return place, int(found[count - 1])
        count -= len(found)
    raise ValueError("There are fewer source transactions than that.")


def _share(found: Ints, place: int, cut: Cut) -> int:
    """How many of a partition's source transactions go to the left."""
    if place != cut[0]:
        return len(found) if place < cut[0] else 0
    return int(np.searchsorted(found, cut[1], side="right"))


def _divide(chunk: Chunk, place: int, cut: Cut, left: Work, right: Work) -> None:
    first, second = Chunk(chunk.partition, chunk.table), Chunk(chunk.partition, chunk.table)
    for piece, marks in _marked(chunk):
        rows = len(marks.positions)
        low = marks.upto(cut[1]) if place == cut[0] else (rows if place < cut[0] else 0)
        for target, begin, end in ((first, 0, low), (second, low, rows)):
            if end > begin:
                part, own = marks.cut(piece, begin, end)
                target.append(part, end - begin, own)
    for work, made in ((left, first), (right, second)):
        if made.rows:
            work.add(made)


def _marked(chunk: Chunk) -> Iterator[tuple[memoryview, Marks]]:
    for piece, marks in zip(chunk.pieces, chunk.marks, strict=True):
        if marks is None:
            raise RuntimeError("A chunk without marks cannot be taken apart.")
        yield piece, marks


def _empty_like(work: Work) -> Work:
    return Work(work.retry_limit, sealed=True, recycled=work.recycled)


def _span(work: Work, name: str, found: Ints, whole: Span) -> None:
    """The fingerprint belongs to the last source transaction of the whole; those in the middle have none."""
    if len(found):
        last = int(found[-1])
        digest = whole.digest if last == whole.last else ""
        work.spans[name] = Span(int(found[0]), last, len(found), digest)


@dataclass(slots=True)
class Quarantine:
    """`most` source transactions of a lane and micro-batch may be set aside; `columns` gives a table's load header."""

    job: str
    batch: int
    most: int
    now_text: Callable[[], str]
    columns: Callable[[str], str]
    count: int = 0

    def take_apart(self, works: deque[Work], error: RowsRejected) -> int | StarRocksSinkError:
        """Replace the first of `works`, rejected with `error`, by its parts, or bury it; the change in buffered bytes.

        Returns the error that the lane ends with when that cannot be done.
        """
        work = works[0]
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
        divided = halves(work)
        if divided is None:
            changed = self._bury(works, error)
            return changed if isinstance(changed, StarRocksSinkError) else rewound + changed
        works.popleft()
        works.extendleft(reversed(divided))
        return rewound

    def _bury(self, works: deque[Work], error: RowsRejected) -> int | StarRocksSinkError:
        work = works[0]
        try:
            dead = self.set_aside(work, error)
        except InputError as too_large:
            return too_large
        self.count += 1
        works.popleft()
        if works[0].sealed:
            works[0].inherit_letters(dead)
        else:
            works.appendleft(dead)
        return _waiting(dead) - _waiting(work)

    def set_aside(self, work: Work, error: RowsRejected) -> Work:
        """A work that has the only source transaction of `work` as dead letters, instead of its rows.

        Raises InputError for a row that is too large to be kept.
        """
        ((partition, span),) = work.spans.items()  # the living one; what was buried before is not among them
        label = str(error.context.get("label", ""))
        place = DeadLetterSource(self.job, partition, span.last, error.message, label, self.batch, self.now_text())
        letters = Chunk("", DEAD_LETTER_TABLE)
        for table in dict.fromkeys(chunk.table for chunk in work.chunks()):
            for piece in dead_letter_rows(place, table, self.columns(table), _rows(work, table)):
                letters.append(memoryview(piece), 1)
        made = Work(work.retry_limit, sealed=True, recycled=work.recycled)
        made.inherit_letters(work)
        made.bury(letters, work.spans, work.counts)
        return made


def _waiting(work: Work) -> int:
    return sum(work.pending_bytes(table) for table in work.pending)


def _rows(work: Work, table: str) -> Iterator[bytes]:
    """The rows of a table without their separator."""
    for chunk in work.chunks():
        if chunk.table == table:
            for piece, marks in zip(chunk.pieces, chunk.marks, strict=True):
                for row in marks.rows(piece) if marks is not None else ():
                    yield row[len(SEPARATOR) :]
