# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of rows on their way: transaction batches, chunks, what the ledger has already."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.model import Region
from starrocks_txn_sink.coordinator.ownership import LaneOwnership
from starrocks_txn_sink.coordinator.write_buffer import TransactionBatch, WriteBuffer
from starrocks_txn_sink.errors import CommitFailed
from starrocks_txn_sink.protocol import label as protocol, ledger
from starrocks_txn_sink.protocol.label import Committed
from starrocks_txn_sink.protocol.ledger import ReadOwners
from starrocks_txn_sink.rows import segments
from starrocks_txn_sink.rows.segments import Replay, Skip
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.writer import task

from .registry import bug


@bug
def a_source_transaction_is_split_by_a_commit(put: Any) -> None:
    right = WriteBuffer.close_if_due

    def broken(self: Any, now: float, recycle: bool) -> None:
        kept, self.open_partition = self.open_partition, None
        right(self, now, recycle)
        self.open_partition = kept

    put(WriteBuffer, "close_if_due", broken)


@bug
def a_recycle_point_splits_an_open_source_transaction(put: Any) -> None:
    right = WriteBuffer.close_if_due

    def broken(self: Any, now: float, recycle: bool) -> None:
        kept, self.open_partition = self.open_partition, None if recycle else self.open_partition
        right(self, now, recycle)
        self.open_partition = kept

    put(WriteBuffer, "close_if_due", broken)


@bug
def chunks_go_back_in_the_wrong_order(put: Any) -> None:
    def broken(self: Any) -> int:
        put_back: int = self.sent_bytes
        for chunk in self.sent:
            self.pending[chunk.table].appendleft(chunk)
        self.sent, self.sent_bytes, self.loads = [], 0, 0
        return put_back

    put(TransactionBatch, "rewind", broken)


@bug
def the_chunk_sent_last_is_forgotten(put: Any) -> None:
    right = TransactionBatch.rewind

    def broken(self: Any) -> int:
        if self.sent:
            self.sent_bytes -= self.sent.pop().bytes
        return right(self)

    put(TransactionBatch, "rewind", broken)


@bug
def chunks_put_back_stay_in_the_retry_buffer(put: Any) -> None:
    right = TransactionBatch.rewind

    def broken(self: Any) -> int:
        kept = list(self.sent)
        put_back = right(self)
        self.sent = kept
        return put_back

    put(TransactionBatch, "rewind", broken)


@bug
def chunks_beyond_the_retry_buffer_are_let_go_silently(put: Any) -> None:
    def broken(self: Any, chunks: Any, size: int) -> None:
        if self.sent_bytes + size <= self.retry_limit:
            self.sent_bytes += size
            self.sent.extend(chunks)

    put(TransactionBatch, "_keep", broken)


@bug
def the_newest_chunk_is_sent_first(put: Any) -> None:
    right = TransactionBatch.take

    def broken(self: Any, table: str, limit: int) -> Any:
        self.pending[table].reverse()
        return right(self, table, limit)

    put(TransactionBatch, "take", broken)


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
            known = self.committed.get(partition)
            if known is not None:
                keep[low : low + int(np.searchsorted(rows.positions[low:high], known.position + more, side=side))] = (
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
    put(Replay, "_refuse_passing", lambda self, known, position: None)


@bug
def a_skip_is_forgotten_between_micro_batches(put: Any) -> None:
    put(Session, "learn_skips", lambda self, reports: None)


@bug
def a_skip_counts_as_ended_before_the_ledgers_position(put: Any) -> None:
    right = Replay._follow_skip

    def broken(self: Any, known: Any, low: int, cut: int, rows: Any) -> None:
        right(self, known, low, cut, rows)
        self.skips[known.partition] = Skip(known.position, met=True)

    put(Replay, "_follow_skip", broken)


@bug
def rows_that_were_cut_off_count_as_all_rows(put: Any) -> None:
    right = segments.rows_before_sentinel

    def broken(batches: Any, column: str) -> Iterator[Any]:
        try:
            yield from right(batches, column)
        except Exception:
            return

    put(task, "rows_before_sentinel", broken)


@bug
def an_error_while_committing_starts_over(put: Any) -> None:
    def broken(self: Any, result: Any, now: float) -> None:
        if isinstance(result, Committed):
            self._record_commit(result, now)
        else:
            self._abort(CommitFailed("not committed"))

    put(SharedTransactionCoordinator, "_handle_commit", broken)


@bug
def the_owner_is_read_when_the_transaction_begins(put: Any) -> None:
    """The check is made before the loads instead of after them."""
    kept: dict[str, Any] = {}
    begin = protocol.begin

    def early(label: Any, headers: Any) -> Any:
        lane, epoch = int(label.name.rsplit("-", 4)[2]), label.name.rsplit("-", 4)[1]
        batch = int(label.name.rsplit("-", 4)[3])
        kept[label.name] = yield from ledger.retry_until_answered(
            ReadOwners("job", lane, epoch, batch), random.Random(0)
        )
        yield from begin(label, headers)

    def late(self: Any, label: str, rng: Any) -> Any:
        del label, rng
        self.listed = True  # which it would be
        mine = [n for n in kept if n.startswith(f"job-{self.owner.epoch}-{self.owner.lane}-{self.owner.batch}-")]
        ledger.refuse_others(kept[mine[-1]], self.owner, self.driver_token)
        yield from ()

    put(protocol, "begin", early)
    put(LaneOwnership, "check", late)
