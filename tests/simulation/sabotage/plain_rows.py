# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of rows without positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starrocks_txn_sink.rows.columns import HASH
from starrocks_txn_sink.rows.unpositioned import _MASK, UnpositionedSegmenter

from .registry import bug


@bug
def a_unit_is_written_whatever_the_ledger_has(put: Any) -> None:
    put(UnpositionedSegmenter, "replayed", property(lambda self: False))


@bug
def the_unit_that_the_ledger_has_is_written_again(put: Any) -> None:
    put(
        UnpositionedSegmenter,
        "replayed",
        property(lambda self: self.committed is not None and self.committed.position > self.number),
    )


@bug
def the_digest_of_a_unit_depends_on_the_order_of_its_rows(put: Any) -> None:
    right = UnpositionedSegmenter.split

    def broken(self: Any, batch: Any) -> Iterator[Any]:
        yield from right(self, batch)
        for value in batch.column(HASH).to_pylist():
            self.sum = (self.sum * 31 + value) & _MASK

    put(UnpositionedSegmenter, "split", broken)


@bug
def the_digest_of_a_unit_is_that_of_its_last_batch(put: Any) -> None:
    right = UnpositionedSegmenter.split

    def broken(self: Any, batch: Any) -> Iterator[Any]:
        self.sum = 0
        yield from right(self, batch)

    put(UnpositionedSegmenter, "split", broken)


@bug
def each_lane_is_a_unit_of_its_own(put: Any) -> None:
    put(UnpositionedSegmenter, "add", lambda self, rows, total: _overwrite(self, rows, total))


def _overwrite(segmenter: UnpositionedSegmenter, rows: int, total: int) -> None:
    segmenter.rows, segmenter.sum = rows, total
