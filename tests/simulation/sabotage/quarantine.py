# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of the quarantine and of replays."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from unittest.mock import patch

from starrocks_txn_ops import dead_letters as replay_command, own_loads
from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.ownership import LabelContents, Ownership, ReplayOwnership
from starrocks_txn_sink.coordinator.quarantine import DeadLetter, Part, Quarantine
from starrocks_txn_sink.errors import OutcomeUnknown, RowsRejected
from starrocks_txn_sink.protocol import dead_letters as letter_table, fencing as take_over
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.label import Committed
from starrocks_txn_sink.protocol.refusals import NO_ROWS
from starrocks_txn_sink.writer.dead_letters import DeadLetters
from starrocks_txn_sink.writer.rejections import Explainer

from .. import replays
from .one_label import unknown
from .registry import bug, nothing


@bug
def a_replay_does_not_list(put: Any) -> None:
    put(replays, "take_over_replays", _without("roll_back_unfinished"))


@bug
def a_replay_has_no_barrier(put: Any) -> None:
    put(replays, "take_over_replays", _without("_write_barrier"))


@bug
def a_replay_does_not_check_the_owner(put: Any) -> None:
    put(ReplayOwnership, "check", nothing)


@bug
def a_replay_leaves_the_dead_letters(put: Any) -> None:
    right = replay_command._loads

    def broken(*words: Any) -> Any:
        return [load for load in right(*words) if load[0] != DEAD_LETTER_TABLE]

    put(replay_command, "_loads", broken)


@bug
def a_replay_has_no_row_in_the_ledger(put: Any) -> None:
    """Then its commit is none that the barrier of the next replay waits for."""
    put(replays, "coordinator_of", lambda *words: _without_entries(own_loads.coordinator_of(*words)))


def _without_entries(coordinator: SharedTransactionCoordinator) -> SharedTransactionCoordinator:
    coordinator.entries = ()
    return coordinator


@bug
def an_unknown_outcome_of_a_replay_is_taken_for_committed(put: Any) -> None:
    def broken(self: Any, label: str, spans: Any, rng: Any) -> Any:
        del self, spans, rng
        yield from ()
        return Committed(label, None)

    put(ReplayOwnership, "recover", broken)


def _without(step: str) -> Any:
    """`take_over_replays` without one of the steps of a take-over."""
    right = letter_table.take_over_replays

    def nothing(*_: object) -> Iterator[Any]:
        yield from ()

    def broken(*words: Any) -> Generator[Any, Any, Any]:
        steps = right(*words)
        answer = None
        while True:  # what is left out is left out while these steps run, and no others
            with patch.object(take_over, step, nothing):
                try:
                    needed = steps.send(answer)
                except StopIteration as ended:
                    return ended.value
            answer = yield needed

    return broken


# --- the search ---


@bug
def what_is_dead_lettered_does_not_advance_the_positions(put: Any) -> None:
    spans = LabelContents.position_spans

    def broken(self: LabelContents) -> Any:
        return () if self.dead_lettered() else spans(self)

    put(LabelContents, "position_spans", broken)


@bug
def all_suspects_of_a_source_partition_are_dead_lettered_as_one(put: Any) -> None:
    right = Quarantine.reject

    def broken(self: Quarantine, error: RowsRejected) -> None:
        if len(self._cuts) == 2 and len({name for name, _ in self._cuts}) == 1:
            self.add(dict.fromkeys(self._cuts, DeadLetter(error.message, "")))
        else:
            right(self, error)

    put(Quarantine, "reject", broken)


@bug
def rejected_rows_are_dropped(put: Any) -> None:
    put(DeadLetters, "_letter", lambda self, partition, position, table, payload: b",{}")


@bug
def the_second_half_is_written_first(put: Any) -> None:
    def broken(self: Quarantine, tables: frozenset[str]) -> None:
        half = self._suspects[len(self._suspects) // 2 :]
        self.part = Part(dict(half), dict(self._set_aside), tables)

    put(Quarantine, "_halve", broken)


@bug
def what_follows_the_rejected_part_is_left_out(put: Any) -> None:
    right = Quarantine.commit

    def broken(self: Quarantine, *, stopped: bool = False) -> bool:
        return right(self, stopped=stopped) or self.part.upto is None

    put(Quarantine, "commit", broken)


@bug
def no_rows_were_imported_counts_as_a_rejection(put: Any) -> None:
    right = Explainer.explain

    def broken(self: Explainer, error: Any, label: str, deadline: Any) -> Any:
        explained = right(self, error, label, deadline)
        return RowsRejected(error.message, label=label) if NO_ROWS in explained.message else explained

    put(Explainer, "explain", broken)


@bug
def an_unknown_outcome_of_a_part_is_taken_for_rejected(put: Any) -> None:
    right = SharedTransactionCoordinator._write_part

    def broken(self: Any, part: Any) -> Any:
        try:
            return (yield from right(self, part))
        except OutcomeUnknown as error:
            if self.quarantine is None:
                raise
            raise RowsRejected("unknown", label="") from error

    put(SharedTransactionCoordinator, "_write_part", broken)
    put(Ownership, "recover", lambda self, label, spans, rng: unknown(label))
