# ruff: noqa: ARG001, ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of rows on their way: transaction batches, chunks, what the ledger has already."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from starrocks_txn_sink.coordinator.model import Region
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.rows import segments
from starrocks_txn_sink.rows.segments import Replay, Skip
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.writer import lane_try

from .. import driver
from .registry import bug


@bug
def a_chunk_frozen_by_size_keeps_its_rows(put: Any) -> None:
    right = Region.freeze

    def broken(self: Any, now: float) -> Any:
        frozen = right(self, now)
        if frozen is not None and not self.clean_boundary:
            self.active.append(frozen.pieces[-1], 1)
        return frozen

    put(Region, "freeze", broken)


@bug
def rows_that_the_ledger_has_are_written_again(put: Any) -> None:
    put(Replay, "new_rows", lambda self, runs, rows: None)


def _filter_with(put: Any, side: Literal["left", "right"], more: int) -> None:
    def broken(self: Any, runs: Any, rows: Any) -> Any:
        keep = np.ones(len(rows.positions), np.bool_)
        for partition, low, high in runs:
            entry = self.committed.get(partition)
            if entry is not None:
                keep[low : low + int(np.searchsorted(rows.positions[low:high], entry.position + more, side=side))] = (
                    False
                )
        return keep

    put(Replay, "new_rows", broken)


@bug
def the_position_that_the_ledger_has_is_written_again(put: Any) -> None:
    _filter_with(put, "left", 0)


@bug
def more_than_the_ledger_has_is_left_out(put: Any) -> None:
    _filter_with(put, "right", 20)


@bug
def a_recreated_source_is_skipped_up_to_where_the_old_one_was(put: Any) -> None:
    put(Replay, "_refuse_passing", lambda self, entry, position: None)


@bug
def a_skip_is_forgotten_between_micro_batches(put: Any) -> None:
    put(Session, "learn_skips", lambda self, reports, *, keep: None)


@bug
def a_skip_counts_as_ended_before_the_ledgers_position(put: Any) -> None:
    right = Replay._follow_skip

    def broken(self: Any, entry: Any, low: int, cut: int, rows: Any) -> None:
        right(self, entry, low, cut, rows)
        self.skips[entry.partition] = Skip(entry.position, met=True)

    put(Replay, "_follow_skip", broken)


@bug
def the_newest_chunk_is_sent_first(put: Any) -> None:
    right = WriteBuffer._take

    def broken(self: Any, table: str) -> Any:
        self.pending[table].reverse()
        return right(self, table)

    put(WriteBuffer, "_take", broken)


@bug
def rows_that_were_cut_off_count_as_all_rows(put: Any) -> None:
    right = driver.Driver._task_over

    def broken(self: Any, slot: Any, number: int, ended: Any, result: Any, cut_off: bool) -> None:
        right(self, slot, number, ended, result, False)

    put(driver.Driver, "_task_over", broken)


@bug
def a_part_is_cut_inside_a_source_transaction(put: Any) -> None:
    right = segments.rows_of_part
    put(lane_try, "rows_of_part", lambda batch, after, upto: right(batch, after, upto).slice(int(upto is not None)))
