"""Planted bugs of rows that come unsorted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from starrocks_txn_sink.rows import arrival
from starrocks_txn_sink.rows.arrival import ArrivalOrder

from .registry import bug


@bug
def what_waits_for_its_end_is_forgotten(put: Any) -> None:
    right = ArrivalOrder._hold

    def broken(self: Any, tails: Any) -> Iterator[pa.RecordBatch]:
        yield from right(self, tails)
        self._held = []

    put(ArrivalOrder, "_hold", broken)


@bug
def unfinished_source_transactions_do_not_wait(put: Any) -> None:
    def broken(self: Any, tails: Any) -> Iterator[pa.RecordBatch]:
        del self
        yield from (tail.rows for tail in tails)

    put(ArrivalOrder, "_hold", broken)


@bug
def few_rows_are_taken_as_they_come(put: Any) -> None:
    put(arrival, "_sort", lambda rows: rows)
