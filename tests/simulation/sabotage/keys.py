# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of keys: which row of a key is sent, and what happens when one comes again."""

from __future__ import annotations

from typing import Any

from starrocks_txn_sink.coordinator.write_buffer import TransactionBatch
from starrocks_txn_sink.rows import body
from starrocks_txn_sink.rows.body import SentKeys, UniqueRows

from .registry import bug


@bug
def the_first_row_of_a_key_wins(put: Any) -> None:
    right = body.last_of_each

    def broken(values: Any) -> Any:
        kept = right(values[::-1])
        return None if kept is None else kept[::-1]

    put(body, "last_of_each", broken)


@bug
def each_row_of_a_key_is_sent(put: Any) -> None:
    put(body, "last_of_each", lambda values: None)


@bug
def a_key_that_was_sent_is_sent_again(put: Any) -> None:
    put(SentKeys, "contain", lambda self, values: None)


@bug
def keys_of_an_attempt_are_known_to_the_next(put: Any) -> None:
    right = UniqueRows.select

    def broken(self: Any, action: Any) -> Any:
        for sent in self._sent.values():
            sent.label = action.label
        return right(self, action)

    put(UniqueRows, "select", broken)


@bug
def rows_that_are_held_are_sent_oldest_first(put: Any) -> None:
    def broken(self: Any, table: str, limit: int) -> Any:
        taken: list[Any] = []
        while self.pending[table] and (not taken or sum(each.bytes for each in taken) < limit):
            taken.append(self.pending[table].popleft())
        self._keep(taken, False)
        self.loads += 1
        return taken

    put(TransactionBatch, "take", broken)


@bug
def rows_that_are_held_go_back_in_the_wrong_order(put: Any) -> None:
    right = TransactionBatch._keep

    def broken(self: Any, chunks: Any, newest_first: bool) -> None:
        right(self, chunks, newest_first)
        if newest_first and self.sent is not None:
            self.sent = [*self.sent[len(chunks) :], *chunks]

    put(TransactionBatch, "_keep", broken)


@bug
def rows_that_were_replaced_are_counted_as_sent(put: Any) -> None:
    put(TransactionBatch, "add_replaced", lambda self, table, replaced: None)


@bug
def rows_replaced_in_a_failed_attempt_stay_counted(put: Any) -> None:
    right = TransactionBatch.rewind

    def broken(self: Any) -> int:
        replaced = self.replaced
        put_back = right(self)
        self.replaced = replaced
        return put_back

    put(TransactionBatch, "rewind", broken)
