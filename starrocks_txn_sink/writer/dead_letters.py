"""The rows of a rejected source transaction on their way to the dead-letter table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from starrocks_txn_sink.coordinator.model import SEPARATOR, Receipt, RegionCount, RegionRows, Segment
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, DeadLetterSource, dead_letter_rows

if TYPE_CHECKING:
    from starrocks_txn_sink.writer.task import LaneTask


class DeadLetters:
    """Turns the rows of a source transaction into rows of the dead-letter table."""

    def __init__(self, task: LaneTask, now: Callable[[], str]) -> None:
        assert task.part.dead_letter is not None
        assert task.part.upto is not None
        ((partition, position),) = task.part.upto.items()
        letter = task.part.dead_letter
        self._task = task
        self._place = DeadLetterSource(partition, position, letter.reason, letter.label, task.batch_id, now())
        self._rows: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def take(self, segment: Segment) -> Segment:
        """The segment, with rows for the dead-letter table; raises InputError for a row that is too large for it."""
        if not isinstance(segment, RegionRows):
            return segment
        if segment.row_index is None:
            raise TypeError("Rows for the dead-letter table need a row index.")
        columns = self._task.options.load_headers(segment.table).get("columns", "")
        rows = [row[len(SEPARATOR) :] for row in segment.row_index.rows(segment.piece)]
        first = self._rows[segment.table]
        letters = dead_letter_rows(self._task.job, self._place, segment.table, columns, rows, first)
        self._rows[segment.table] += segment.rows
        self._bytes[segment.table] += segment.piece.nbytes
        return RegionRows(segment.partition, DEAD_LETTER_TABLE, memoryview(b"".join(letters)), segment.rows)

    def receipt(self, receipt: Receipt) -> Receipt:
        """The receipt, which counts the rows as dead letters of their own tables."""
        partition = self._place.partition
        counts = sorted(self._rows.items())
        regions = tuple(RegionCount(partition, table, rows, self._bytes[table]) for table, rows in counts)
        return replace(receipt, regions=(), dead_lettered=regions, dead_lettered_positions=receipt.positions)
