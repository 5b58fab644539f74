# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of loads, and what is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starrocks_txn_sink.coordinator import coordinator
from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.lane import Lane, Phase
from starrocks_txn_sink.coordinator.table_room import TableRooms
from starrocks_txn_sink.coordinator.write_buffer import WriteBuffer
from starrocks_txn_sink.errors import TransportError
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import Loaded
from starrocks_txn_sink.protocol.turns import TurnQueue, TurnRequest
from starrocks_txn_sink.protocol.wire import Operation, Reply, Status
from starrocks_txn_sink.rows.admission import TableAdmission

from .registry import bug, nothing


@bug
def a_load_is_sent_again_after_a_lost_reply(put: Any) -> None:
    right = protocol.load

    def broken(label: Any, table: str, body: Any, headers: Any, retry_policy: Any, rng: Any) -> Any:
        yield TurnRequest(label.name, table)
        answer = yield label.request(Operation.LOAD, table=table, headers=headers, body=body)
        if isinstance(answer, Reply) and answer.status is Status.OK:
            return Loaded(answer.txn_id, 0)
        return (yield from right(label, table, body, headers, retry_policy, rng))

    put(protocol, "load", broken)


def _load_with(put: Any, believe: Callable[[Any], bool]) -> None:
    right = protocol.load

    def broken(*arguments: Any) -> Any:
        steps = right(*arguments)
        needed = next(steps)
        while True:
            answer = yield needed
            if believe(answer):
                return Loaded(None, 0)
            try:
                needed = steps.send(answer)
            except StopIteration as ended:
                return ended.value

    put(protocol, "load", broken)


@bug
def a_load_without_a_reply_counts_as_loaded(put: Any) -> None:
    _load_with(put, lambda answer: isinstance(answer, TransportError))


@bug
def a_load_that_the_backend_refused_counts_as_loaded(put: Any) -> None:
    _load_with(put, lambda answer: isinstance(answer, Reply) and answer.status is Status.INTERNAL_ERROR)


@bug
def a_busy_table_counts_as_loaded(put: Any) -> None:
    _load_with(put, lambda answer: isinstance(answer, Reply) and answer.status is Status.TXN_IN_PROCESSING)


@bug
def a_load_does_not_wait_for_its_turn(put: Any) -> None:
    right = protocol.load

    def broken(*arguments: Any) -> Any:
        steps = right(*arguments)
        next(steps)
        return (yield from steps)

    put(protocol, "load", broken)


@bug
def two_loads_have_the_turn(put: Any) -> None:
    right = TurnQueue.take

    def broken(self: Any, turn: Any, holder: Any) -> bool:
        right(self, turn, holder)
        return True

    put(TurnQueue, "take", broken)


@bug
def the_next_load_does_not_get_the_turn(put: Any) -> None:
    right = TurnQueue.leave

    def broken(self: Any, holder: Any) -> None:
        right(self, holder)

    put(TurnQueue, "leave", broken)


@bug
def a_full_buffer_takes_more_rows(put: Any) -> None:
    put(WriteBuffer, "saturated", property(lambda self: False))


@bug
def a_lane_does_not_wait_for_loads_under_way(put: Any) -> None:
    def broken(self: Any, now: float) -> Any:
        loads = list(self._loads(now))
        if not loads and self.buffer.all_sent:
            self.receipt = self._receipt()
            self._move(Phase.DONE)
        return loads

    put(Lane, "_load", broken)


@bug
def a_full_body_leaves_the_next_chunk_behind(put: Any) -> None:
    right = WriteBuffer._take

    def broken(self: Any, table: str) -> Any:
        body = right(self, table)
        if self.pending[table]:
            self.pending[table].popleft()
        return body

    put(WriteBuffer, "_take", broken)


@bug
def a_failed_load_does_not_end_the_lane(put: Any) -> None:
    right = Lane.complete
    put(Lane, "complete", lambda self, action, result: right(self, action, Loaded(None, 0)))


@bug
def a_label_that_failed_is_not_rolled_back(put: Any) -> None:
    put(coordinator, "roll_back", nothing)
    put(protocol, "roll_back", nothing)


@bug
def a_label_that_was_given_up_is_not_counted(put: Any) -> None:
    right = SharedTransactionCoordinator._attempt
    put(
        SharedTransactionCoordinator,
        "_attempt",
        lambda self, part, seconds, _, missing: right(self, part, seconds, 0, missing),
    )


@bug
def a_label_has_more_tables_than_have_room(put: Any) -> None:
    put(TableAdmission, "admit", lambda self, runs, rows: None)
    put(TableRooms, "check", lambda self, shares: None)


@bug
def rows_that_wait_are_not_written(put: Any) -> None:
    put(TableRooms, "go_on", lambda self, shares: False)
