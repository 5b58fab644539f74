# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of keys: which row of a key is sent, and what happens when one comes again."""

from __future__ import annotations

import dataclasses
from typing import Any

from starrocks_txn_sink.coordinator import coordinator as coordinator_module
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.rows import body
from starrocks_txn_sink.rows.body import SentKeys

from .registry import bug


@bug
def the_first_row_of_a_key_wins(put: Any) -> None:
    right = body.last_of_each

    def broken(values: Any) -> Any:
        newest_first = right(values[::-1])
        return None if newest_first is None else newest_first[::-1]

    put(body, "last_of_each", broken)


@bug
def each_row_of_a_key_is_sent(put: Any) -> None:
    put(body, "last_of_each", lambda values: None)


@bug
def a_key_that_was_sent_is_sent_again(put: Any) -> None:
    put(SentKeys, "contain", lambda self, values: None)


@bug
def rows_that_were_replaced_are_counted_as_sent(put: Any) -> None:
    put(WriteBuffer, "add_replaced", lambda self, table, replaced: None)


@bug
def rows_that_are_held_are_sent_oldest_first(put: Any) -> None:
    right = WriteBuffer._take

    def broken(self: Any, table: str) -> Any:
        keyed, self.keyed = self.keyed, ()
        body = right(self, table)
        self.keyed = keyed
        return body

    put(WriteBuffer, "_take", broken)


@bug
def rows_are_not_held_after_a_key_came_again(put: Any) -> None:
    right = coordinator_module._carry_out

    def broken(order: Any) -> Any:
        lanes = isinstance(order, coordinator_module.RunLanes)
        return right(dataclasses.replace(order, hold=False) if lanes else order)

    put(coordinator_module, "_carry_out", broken)
