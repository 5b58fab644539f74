"""Quarantine: of rejected rows, find the source transactions at fault and make them dead letters. Pure.

The lane's first work was rejected. It is halved, again and again, and the halves are committed in order, until the
rejected one is a single source transaction. That one is buried: its rows become dead letters, which
travel with the part that follows it. The ledger's positions advance over it like over any other, so that nobody
tries it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starrocks_txn_sink.dead_letter.table import DEAD_LETTER_TABLE, DeadLetterSource, dead_letter_rows
from starrocks_txn_sink.errors import InputError, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.lane.columns import SEPARATOR
from starrocks_txn_sink.lane.halves import halves
from starrocks_txn_sink.lane.region import Chunk
from starrocks_txn_sink.lane.work import Work


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
