"""The lane over ready rows that were not sorted for it; it tells the driver when they should have been."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import orjson
import pyarrow as pa

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import Unordered
from starrocks_txn_sink.lane.arrival import SMALL_ROWS, ArrivalOrder
from starrocks_txn_sink.lane.attempt import Attempt
from starrocks_txn_sink.lane.ending import RowsAfterEnd
from starrocks_txn_sink.lane.task import LaneTask, lines_batch

_UNSORTED: Final = "unsorted"


@dataclass(frozen=True, slots=True)
class UnsortedLaneTask:
    """`lane`'s task over marked rows with `lane.columns.SEQ`, as they come; yields the lines of a LaneTask.

    Nothing is committed before the last row was seen, so a lane whose rows are not in order has rolled back, and ends
    well: with a complaint in place of its lines. `small_only` as in ArrivalOrder.
    """

    lane: LaneTask
    small_only: bool
    small_rows: int = SMALL_ROWS

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order = ArrivalOrder(self.small_rows, self.small_only)
        lane = replace(self.lane, at_end_only=True)
        try:
            lines = lane.lines(batches, Attempt.current(), SystemClock(), order.rows)
        except (Unordered, RowsAfterEnd) as unordered:
            lines = [orjson.dumps({_UNSORTED: unordered.message}).decode()]
        yield lines_batch(lines)


def complaint(lines: Iterable[str]) -> str | None:
    """Why the lane did not take its rows; None when `lines` are those of a LaneTask."""
    for line in lines:
        if line.startswith(f'{{"{_UNSORTED}"'):
            message: str = orjson.loads(line)[_UNSORTED]
            return message
    return None
